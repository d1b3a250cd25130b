"""Networks by name, for images of any shape, and the papers' networks, a module a paper.

>>> from capslib.networks import create_network
>>> network = create_network("capsnet", (1, 28, 28), classes=10, routing="em")
"""

from capslib.networks.factory import create_network

__all__ = ["create_network"]
