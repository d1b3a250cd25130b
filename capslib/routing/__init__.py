"""Routings: how children agree on their parents. One file each; ``ROUTINGS`` knows them by name.

The files, from the top of the room to its bottom. Each imports only from files below it::

    free_energy        which free energies the updates of EM routing lower
    over_children      dynamic routing, normalised over the children
    consensus          routings that learn what agreement is
    dynamic  em        the routings
    module             a routing with its parameters; the choice of its path
    fast               votes and routings in chunks that stay in the cache
    competition        who competes for a child
    base               the result of a routing; squash

CONTRIBUTING.md says how to add a routing.
"""

from capslib.registry import ROUTINGS
from capslib.routing.base import RoutingResult, squash
from capslib.routing.competition import Competition, Normalise, convolutional
from capslib.routing.dynamic import DynamicRouting, dynamic_routing
from capslib.routing.em import EMRouting, em_routing
from capslib.routing.fast import LazyVotes, routing_function
from capslib.routing.module import Routing, use_path


def make_routing(name: str, parents: int, dim: int, **options: object) -> Routing:
    """A routing by its name in ``ROUTINGS``, for ``parents`` J of ``dim`` D dimensions. UserError: no such name.

    >>> make_routing("em", 10, 16, iterations=2)
    EMRouting(iterations=2, bias=False)
    """
    return ROUTINGS[name](parents, dim, **options)


__all__ = [
    "ROUTINGS", "Competition", "DynamicRouting", "EMRouting", "LazyVotes", "Normalise", "Routing", "RoutingResult",
    "convolutional", "dynamic_routing", "em_routing", "make_routing", "routing_function", "squash", "use_path",
]  # fmt: skip
