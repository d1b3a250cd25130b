"""Registries of routings, networks and losses by name.

An entry is an object, or a string ``"module:attribute"`` that is imported on first use, so that
a mistyped name raises its error without importing torch. A notebook or a test can add an entry,
as in ``ROUTINGS["mine"] = MyRouting``.
"""

from __future__ import annotations

from collections import UserDict
from pkgutil import resolve_name
from typing import Any

from capslib.errors import check_name

__all__ = ["LOSSES", "NETWORKS", "ROUTINGS", "Registry"]


class Registry(UserDict[str, Any]):
    """A mapping from names to objects. Error messages call an entry by its ``kind``.

    >>> constants = Registry("constant", {"pi": "math:pi", "one": 1})
    >>> list(constants), constants["one"], round(constants["pi"], 2)
    (['pi', 'one'], 1, 3.14)
    >>> constants["pie"]
    Traceback (most recent call last):
        ...
    capslib.errors.UserError: Unknown constant 'pie'. Did you mean 'pi'? Valid: pi, one.
    """

    def __init__(self, kind: str, entries: dict[str, Any]):
        self.kind = kind
        super().__init__(entries)

    def __getitem__(self, name: str) -> Any:
        check_name(self.kind, name, self)
        entry = self.data[name]
        if isinstance(entry, str):
            entry = self.data[name] = resolve_name(entry)
        return entry

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401


ROUTINGS = Registry(
    "routing",
    {
        "dynamic": "capslib.routing.dynamic:DynamicRouting",
        "dynamic_over_children": "capslib.routing.over_children:DynamicRoutingOverChildren",
        "em": "capslib.routing.em:EMRouting",
        "em_vector": "capslib.routing.em:VectorEMRouting",
        "similarity": "capslib.routing.consensus:SimilarityRouting",
        "connectionist": "capslib.routing.consensus:ConnectionistRouting",
    },
)
"""Subclasses of :class:`capslib.routing.Routing`, called with (parents, dim, **options)."""

NETWORKS = Registry(
    "network",
    {
        "capsnet": "capslib.networks.capsnet:CapsNet",
        "matrix_capsnet": "capslib.networks.em_routing:MatrixCapsNet",
        "cnn": "capslib.networks.em_routing:BaselineCNN",
        "deep_capsnet": "capslib.networks.negation_limitation:DeepCapsNet",
        "sign": "capslib.networks.negation_limitation:SignNetwork",
        "sparse_capsnet": "capslib.networks.sparse_unsupervised:SparseCapsNet",
        "autoencoder": "capslib.networks.sparse_unsupervised:Autoencoder",
        "anomaly_capsnet": "capslib.networks.inequality_anomaly:AnomalyCapsNet",
        "consensus_capsnet": "capslib.networks.learned_routing:ConsensusCapsNet",
    },
)
"""Classes of networks. Those of images return a named tuple, which has ``activation``.

``sign`` takes single numbers.
"""

LOSSES = Registry(
    "loss",
    {
        "margin": "capslib.losses:margin_loss",
        "spread": "capslib.losses:spread_loss",
        "cross_entropy": "torch.nn.functional:cross_entropy",
    },
)
"""Functions of class activations or logits [N, C] and class numbers [N]."""
