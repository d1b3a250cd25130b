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

import inspect
from collections.abc import Callable

from capslib.errors import check_name
from capslib.registry import ROUTINGS
from capslib.routing.base import RoutingResult, squash
from capslib.routing.competition import Competition, Normalise, convolutional
from capslib.routing.dynamic import DynamicRouting, dynamic_routing
from capslib.routing.em import EMRouting, em_routing
from capslib.routing.fast import LazyVotes, routing_function
from capslib.routing.module import Routing, use_path


def make_routing(name: str, parents: int, dim: int, **options: object) -> Routing:
    """Return a routing by its name in ``ROUTINGS``, for ``parents`` J of ``dim`` D dimensions.

    Raises UserError for a name or an option that does not exist.

    >>> make_routing("em", 10, 16, iterations=2)
    EMRouting(iterations=2, bias=False)
    """
    kind = ROUTINGS[name]
    known = _option_names(kind)
    for option in options:
        check_name(f"option of {name!r} routing", option, known)
    return kind(parents, dim, **options)


def _option_names(kind: Callable[..., Routing]) -> list[str]:
    """Return the keywords of a routing, also those that it passes on to the classes above it."""
    names: list[str] = []
    makers = (
        [c.__init__ for c in kind.__mro__ if "__init__" in vars(c)]
        if isinstance(kind, type)
        else [kind]
    )
    for maker in makers:
        parameters = inspect.signature(maker).parameters.values()
        names += [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            break
    return list(dict.fromkeys(names))


__all__ = [
    "ROUTINGS",
    "Competition",
    "DynamicRouting",
    "EMRouting",
    "LazyVotes",
    "Normalise",
    "Routing",
    "RoutingResult",
    "convolutional",
    "dynamic_routing",
    "em_routing",
    "make_routing",
    "routing_function",
    "squash",
    "use_path",
]
