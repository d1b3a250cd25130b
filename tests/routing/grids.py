"""A layer over a grid of capsules, and which parents see which child."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

from capslib.layers import ConvCapsules

TYPES, PARENTS = 2, 3
Node = tuple[int, int, int]


def build(
    geometry, normalise: str | None = "types+positions", **options
) -> tuple[ConvCapsules, Tensor, Tensor]:
    """Return a layer with random costs, and a grid of capsules of two images."""
    size, kernel, stride = geometry
    if options.get("routing", "em") == "em":
        options = {"beta_std": 1.0, "inverse_temperature": 0.5, **options}
    options |= {"kernel": kernel, "stride": stride, "normalise": normalise}
    layer = ConvCapsules(TYPES, PARENTS, **options)
    grid = 2, size, size, TYPES
    return layer, torch.randn(*grid, *layer.pose), torch.rand(grid) * 0.9 + 0.1


def edges_of(geometry) -> Iterator[tuple[Node, Node]]:
    """Yield every child with every parent that sees it, both as (row, column, type)."""
    size, kernel, stride = geometry
    positions, places = range((size - kernel) // stride + 1), range(kernel)
    for h, w, k, l in product(positions, positions, places, places):
        for i, j in product(range(TYPES), range(PARENTS)):
            yield (h * stride + k, w * stride + l, i), (h, w, j)


def place_of(child: Node, parent: Node, stride: int) -> tuple[int, ...]:
    """Return the indices [h, w, k, l, i, j] of an edge in a tensor of couplings."""
    (y, x, i), (h, w, j) = child, parent
    return h, w, y - h * stride, x - w * stride, i, j


def assert_couplings_sum_to_one(geometry, routing: str) -> None:
    """Over all parents that see a child, or in every window on its own, as the layer says."""
    layer, *grid = build(geometry, None, routing=routing)
    coupling = layer(*grid).coupling
    if layer.normalise == "types-per-position":
        axis = {"parents": -1, "children": -2}[layer.routing.couplings_sum_over]
        totals = coupling.flatten(3, 5).sum(axis)
    else:
        shares = defaultdict(list)
        for child, parent in edges_of(geometry):
            index = place_of(child, parent, geometry[2])
            shares[child].append(coupling[:, *index])
        totals = torch.stack([sum(parts) for parts in shares.values()])
    torch.testing.assert_close(totals, torch.ones_like(totals))
