"""Routings: how children agree on their parents. One file each; ``ROUTINGS`` has them by name.

The files, from the top of the room to its bottom. Each imports only from files below it::

    dynamic_fast  em_fast    a faster loop for dynamic and for EM routing
    free_energy              the free energies that the updates of EM routing lower
    over_children            dynamic routing, normalised over the children
    consensus                routings that learn what agreement is
    dynamic  em              the routings, as their papers have them
    module                   the base class with parameters; the choice of the path
    fast                     votes and routings in chunks that stay in the cache
    competition              the parents that compete for a child
    base                     the result of a routing; squash

CONTRIBUTING.md says how to add a routing.
"""

import inspect
from collections.abc import Callable

from capslib.errors import check_name
from capslib.registry import ROUTINGS
from capslib.routing import dynamic_fast, em_fast
from capslib.routing.base import RoutingResult, squash
from capslib.routing.competition import Competition, Normalise, convolutional
from capslib.routing.dynamic import DynamicRouting, dynamic_routing
from capslib.routing.em import EMRouting, em_routing
from capslib.routing.fast import LazyVotes, routing_function
from capslib.routing.module import Routing, use_path

dynamic_routing.core = dynamic_fast.CORE
em_routing.core = em_fast.CORE


def make_routing(name: str, parents: int, dim: int, **options: object) -> Routing:
    """Return the routing ``name`` of ``ROUTINGS``, for ``parents`` J of ``dim`` D dimensions.

    Raises UserError for a name or an option that does not exist.

    >>> make_routing("em", 10, 16, iterations=2)
    EMRouting(iterations=2, bias=False)
    """
    make = ROUTINGS[name]
    valid = _option_names(make)
    for option in options:
        check_name(f"option of {name!r} routing", option, valid)
    return make(parents, dim, **options)


def _option_names(make: Callable[..., Routing]) -> list[str]:
    """Return the keywords of a routing, also those that it passes on to its base classes."""
    functions = [make]
    if isinstance(make, type):
        functions = [vars(cls)["__init__"] for cls in make.__mro__ if "__init__" in vars(cls)]
    names: list[str] = []
    for function in functions:
        parameters = inspect.signature(function).parameters.values()
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
