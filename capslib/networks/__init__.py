"""Networks for images of any shape: by name, or by their class in a module for each paper.

====================  ===========================================
capsnet               CapsNet
em_routing            MatrixCapsNet, BaselineCNN
learned_routing       ConsensusCapsNet
negation_limitation   DeepCapsNet, CapsuleStack, SignNetwork
sparse_unsupervised   SparseCapsNet, Autoencoder
inequality_anomaly    AnomalyCapsNet
====================  ===========================================

``list(capslib.registry.NETWORKS)`` has the names.

>>> from capslib.networks import create_network
>>> network = create_network("capsnet", (1, 28, 28), classes=10, routing="em")
"""

from capslib.networks.factory import create_network

__all__ = ["create_network"]
