"""Routings: how children agree on their parents. ``ROUTINGS`` has them by name.

The files of this package. Each imports only from files below it::

    dynamic_fast  em_fast    a faster loop for dynamic and for EM routing
    similarity_fast          a faster loop for similarity routing, where it is compiled
    free_energy              the free energies that the updates of EM routing lower
    over_children            dynamic routing, normalised over the children
    consensus                routings that learn what agreement is
    dynamic  em              the routings, as their papers have them
    module                   the base class with parameters; the choice of the path
    fast                     votes and routings in chunks that stay in the cache
    competition              the parents that compete for a child
    base                     the result of a routing; squash

With the margin loss, each routing by its name alone learns the digits of scikit-learn in the
network "capsnet" of :func:`capslib.networks.create_network`; a test holds this. Other networks
are made for the routings of their papers, and may not train with another. In a network of your
own layers, call :func:`start_on_first_batch`:

======================  ====================  ==================  ==========================
routing                 activation            loss of its paper   what the first batch sets
======================  ====================  ==================  ==========================
dynamic                 length, below one     margin              nothing
dynamic_over_children   length, below one     margin              nothing
em                      logistic, of a cost   spread              β and λ
em_vector               logistic, of a cost   margin              β and λ
similarity              logistic, of kernels  spread              widths, λ₁ and θ
connectionist           logistic, of an LSTM  spread              nothing
======================  ====================  ==================  ==========================

Without it, all activations of "em", "em_vector" and "similarity" are nearly equal.

"dynamic_over_children" learns slowly from the small initial matrices of a layer (0.1 in
:class:`~capslib.layers.DenseCapsules`): give your layers ``weight_std=1``. "em" and "em_vector"
multiply votes by the activations of children, so primary activations should not all be zero. A
learning rate of 0.001 for Adam suits all routings.

CONTRIBUTING.md says how to add a routing.
"""

import inspect

from capslib.errors import check_name
from capslib.registry import ROUTINGS
from capslib.routing import dynamic_fast, em_fast, similarity_fast
from capslib.routing.base import RoutingResult, squash
from capslib.routing.competition import Competition, Normalise, convolutional, softmax, uniform
from capslib.routing.consensus import (
    ConnectionistRouting,
    SimilarityRouting,
    connectionist_routing,
    similarity_routing,
)
from capslib.routing.dynamic import DynamicRouting, dynamic_routing
from capslib.routing.em import EMRouting, VectorEMRouting, em_routing, inverse_temperatures
from capslib.routing.fast import LazyVotes, routing_function
from capslib.routing.module import Routing, start_on_first_batch, use_path
from capslib.routing.over_children import DynamicRoutingOverChildren

# A fast loop imports its definition, so it is attached here.
dynamic_routing.core = dynamic_fast.CORE
em_routing.core = em_fast.CORE
similarity_routing.core = similarity_fast.CORE


def make_routing(name: str, parents: int, dim: int, **options: object) -> Routing:
    """Return the routing ``name`` for J = ``parents`` whose poses have D = ``dim`` numbers.

    Raises UserError for a name or an option that does not exist.

    >>> make_routing("em", 10, 16, iterations=2)
    EMRouting(iterations=2, bias=False)
    """
    make = ROUTINGS[name]
    valid = routing_options(name)
    for option in options:
        check_name(f"option of {name!r} routing", option, valid)
    return make(parents, dim, **options)


def routing_options(name: str) -> list[str]:
    """Return the keywords of a routing, also those that it passes on to its base classes.

    >>> routing_options("dynamic")
    ['iterations', 'bias']
    """
    names: list[str] = []
    for cls in ROUTINGS[name].__mro__:
        if "__init__" not in vars(cls):
            continue
        parameters = inspect.signature(cls.__init__).parameters.values()
        names += [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            break
    return list(dict.fromkeys(names))


__all__ = [
    "ROUTINGS",
    "Competition",
    "ConnectionistRouting",
    "DynamicRouting",
    "DynamicRoutingOverChildren",
    "EMRouting",
    "LazyVotes",
    "Normalise",
    "Routing",
    "RoutingResult",
    "SimilarityRouting",
    "VectorEMRouting",
    "connectionist_routing",
    "convolutional",
    "dynamic_routing",
    "em_routing",
    "inverse_temperatures",
    "make_routing",
    "routing_function",
    "routing_options",
    "similarity_routing",
    "softmax",
    "squash",
    "start_on_first_batch",
    "uniform",
    "use_path",
]
