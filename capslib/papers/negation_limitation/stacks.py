"""What the experiments share: routings by name, the work of a stack of capsule layers, and how our routings deviate."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

from capslib.costs import Layer, capsules
from capslib.trials import Deviation

RoutingName = Literal["dynamic", "em", "em_vector"]


def layers(routing: str, batch: int, sizes: Sequence[tuple[int, int]], iterations: int) -> list[Layer]:
    """The layers of a ``CapsuleStack``."""
    return [
        layer
        for (children, child_dim), (parents, dim) in itertools.pairwise(sizes)
        for layer in capsules(routing, batch, children, parents, dim, child_dim, iterations=iterations)
    ]


def deviations(routing: RoutingName) -> list[Deviation]:
    """How our routing differs from what the paper or its release does."""
    squash = Deviation(
        what="squash",
        paper="1e-8 added to ‖s‖² and to every output component (released code)",
        ours="no ε; exact at zero",
        why="the added constant is itself a tiny bias and breaks the symmetry that the paper proves",
    )
    e_step = Deviation(
        what="E-step of EM",
        paper="densities as numbers, with ε in every denominator (released code)",
        ours="softmax of log-densities",
        why="the same function; products of many variances underflow otherwise",
    )
    direction = Deviation(
        what="direction of EM vector capsules",
        paper="μ/(‖μ + ε‖ + ε), ε = 1e-8 also on votes and inputs (released code)",
        ours="μ/(‖μ‖ + ε)",
        why="ε inside the norm is a tiny bias; outside it keeps the symmetry exact and the gradient as released",
    )
    return {"dynamic": [squash], "em": [e_step], "em_vector": [e_step, direction]}[routing]  # fmt: skip
