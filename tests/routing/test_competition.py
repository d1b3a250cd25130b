"""Parents at all positions that see a child compete for it: against loops, on every path."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import nullcontext
from typing import get_args

import pytest
import torch
from conformance import EXACT, assert_close, needs_compiler, outcome, small_chunks
from grids import (
    PARENTS,
    TYPES,
    Node,
    assert_couplings_sum_to_one,
    build,
    edges_of,
    place_of,
)
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from capslib.layers import ClassCapsules, ConvCapsules, field_centres
from capslib.routing import ROUTINGS, Normalise, convolutional, use_path

pytestmark = pytest.mark.usefixtures("float64")
GEOMETRIES = {
    "stride 1": (4, 3, 1),
    "stride 2, a row left over": (6, 3, 2),
    "even kernel": (4, 2, 2),
    "one field": (3, 3, 1),
}
"""Size of the grid, kernel and stride."""
VARIANTS = ({}, {"smoothing": 0.1}, {"mixing": True})
each_geometry = pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
each_normaliser = pytest.mark.parametrize("normalise", get_args(Normalise))


@each_geometry
@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_child_shares_itself_out_among_all_parents_that_see_it(geometry, routing):
    """A corner child has the parents of one position, another child those of up to nine."""
    assert_couplings_sum_to_one(geometry, routing)


def released_sums(weights: Tensor) -> Tensor:
    """Return the sums of the released code for edges [n, n, K, K], by its own lines."""
    n, K = weights.shape[0], weights.shape[2]
    grid = weights.permute(0, 2, 1, 3).reshape(1, 1, n * K, n * K)
    groups = F.unfold(grid, K, dilation=K - 1, stride=K, padding=(K - 1) ** 2)
    sums = groups.sum(dim=1).view(n + K - 1, n + K - 1)
    return sums.unfold(0, K, 1).unfold(1, K, 1)  # [n, n, K, K]


@each_geometry
def test_the_released_sums_are_those_of_its_index_arithmetic(geometry):
    """Where windows step by two, it adds up edges of different children."""
    size, kernel, stride = geometry
    device = torch.device("cpu")
    competition = convolutional((size, size), kernel, stride, 1, "released", device)
    n = (size - kernel) // stride + 1
    weights = torch.rand(n, n, kernel, kernel)
    sums = competition.over(weights.view(n * n, 1, kernel * kernel), "sum")
    torch.testing.assert_close(sums.view_as(weights), released_sums(weights))


def rivalry(normalise: str, child: Node, parent: Node, stride: int) -> tuple:
    """Return what rival edges have in common."""
    (y, x, i), (h, w, j) = child, parent
    rivalries = {
        "types+positions": (child,),
        "positions-per-type": (child, j),
        "types-per-position": (child, h, w),
        "released": (y - h * stride + h, x - w * stride + w, i, j),
    }
    return rivalries[normalise]


def couplings_by_loops(log_p: dict[tuple, Tensor], normalise: str, stride: int) -> dict:
    """The E-step: the coupling of each edge, from its log-density."""
    rivals, pairs = defaultdict(list), defaultdict(list)
    for child, parent in log_p:
        rivals[rivalry(normalise, child, parent, stride)].append((child, parent))
        pairs[child[2], parent[2]].append(log_p[child, parent])
    couplings = {}
    for edges in rivals.values():
        logits = torch.stack([log_p[edge] for edge in edges])
        shares = logits.softmax(0)
        if normalise == "released":
            child, parent = edges[0]
            weights = (logits - max(pairs[child[2], parent[2]])).exp()
            shares = weights / (weights.sum() + 1e-7)
        couplings |= zip(edges, shares, strict=True)
    return couplings


def route_by_loops(layer: ConvCapsules, pose, activation, geometry, normalise: str):
    """Procedure 1 of one image, child by child and parent by parent, as the paper has it."""
    routing, stride = layer.routing, geometry[2]
    beta_u, beta_a = routing.betas()
    fields, votes, R, mu, a = defaultdict(list), {}, {}, {}, {}
    seen = Counter(child for child, _ in edges_of(geometry))
    for child, parent in edges_of(geometry):
        fields[parent].append(child)
        weight = layer.weight[place_of(child, parent, stride)[2:]]
        votes[child, parent] = (pose[child] @ weight).flatten()
        rivals = seen[child] if normalise == "types+positions" else PARENTS
        R[child, parent] = 1 / rivals
    for t in range(routing.iterations):
        lamda = routing.inverse_temperature * (1 - 0.95 ** (t + 1))
        log_p = {}
        for parent, children in fields.items():
            j = parent[2]
            r = torch.stack([R[child, parent] * activation[child] for child in children])
            V = torch.stack([votes[child, parent] for child in children])
            mu[parent] = r @ V / r.sum()
            square = (V - mu[parent]) ** 2
            variance = r @ square / r.sum() + routing.options["variance_offset"]
            log_spread = variance.sqrt().log()
            cost = ((beta_u[j] + log_spread) * r.sum()).sum()
            a[parent] = torch.sigmoid(lamda * (beta_a[j] - cost))
            log_density = a[parent].log() - (square / (2 * variance) + log_spread).sum(dim=1)
            for child, density in zip(children, log_density, strict=True):
                log_p[child, parent] = density
        couplings = R
        R = couplings_by_loops(log_p, normalise, stride)
    return mu, a, couplings


@each_geometry
@each_normaliser
def test_it_is_what_loops_over_all_positions_say(geometry, normalise):
    layer, pose, activation = build(geometry, normalise, variance_offset=1e-3)
    result = layer(pose[:1], activation[:1])
    with torch.no_grad():
        mu, a, couplings = route_by_loops(layer, pose[0], activation[0], geometry, normalise)
    for parent in mu:
        pose = result.pose[0, *parent].flatten()
        torch.testing.assert_close(pose, mu[parent], **EXACT)
        torch.testing.assert_close(result.activation[0, *parent], a[parent], **EXACT)
    for (child, parent), share in couplings.items():
        index = place_of(child, parent, geometry[2])
        torch.testing.assert_close(result.coupling[0, *index], share, **EXACT)


def outcome_on(path: str, layer: ConvCapsules, *grid: Tensor) -> list[Tensor]:
    assert use_path(layer, path) == path
    return outcome(layer, *grid)


@each_geometry
@each_normaliser
def test_the_fast_path_is_the_definition(geometry, normalise):
    """An image is never cut into its positions, however small the chunks."""
    for options in (*VARIANTS, {"pose": "vector"}, {"routing": "dynamic"}):
        layer, *grid = build(geometry, normalise, **options)
        expected = outcome_on("eager", layer, *grid)
        for chunks in (nullcontext(), small_chunks(1)):
            with chunks:
                result = outcome_on("fast", layer, *grid)
            assert_close(result, expected, 1e-9, case=options)


@needs_compiler
def test_the_compiled_path_is_the_definition():
    """``test_fast.py`` compiles the loop of EM routing, which takes longest."""
    options = {"routing": "dynamic", "iterations": 2}
    layer, *grid = build(GEOMETRIES["stride 1"], "released", **options)
    expected = outcome_on("eager", layer, *grid)
    assert_close(outcome_on("compiled", layer, *grid), expected, 1e-9)


@pytest.mark.parametrize("options", [*VARIANTS, {"normalise": "released"}], ids=str)
def test_gradients_are_those_of_finite_differences(options):
    """In the released code a gradient goes through its maximum, too."""
    options = {**options, "iterations": 2, "variance_offset": 1e-2}
    layer, pose, activation = build((3, 2, 1), **options)

    def function(pose, activation, weight):
        return functional_call(layer, {"weight": weight}, (pose, activation))

    tensors = pose[:1], activation[:1], 3 * layer.weight
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    torch.autograd.gradcheck(function, leaves, fast_mode=True)


def test_class_capsules_share_their_matrices_and_add_coordinates():
    coordinates = field_centres((8, 8), [(3, 2), (2, 1)])
    rows = torch.tensor([[-0.02, -0.02], [0.0, 0.0]], dtype=torch.float32)
    expected = torch.stack([rows, rows.T], dim=-1)
    torch.testing.assert_close(coordinates, expected)
    layer = ClassCapsules(3, 5, coordinates=coordinates)
    pose, activation = torch.randn(2, 2, 2, 3, 4, 4), torch.rand(2, 2, 2, 3)
    vote = pose[1, 1, 0, 2] @ layer.weight[2, 4]
    vote[:2, 3] += coordinates[1, 0]
    votes = layer.votes(pose)
    torch.testing.assert_close(votes[1, 2 * 3 + 2, 4], vote.flatten())
    routed = layer.routing(votes, activation.flatten(1))
    torch.testing.assert_close(layer(pose, activation), routed)


def test_fields_share_children_with_their_neighbours():
    """Slots are ordered by row, column and type, as in a window that is cut out by hand."""
    layer, pose, activation = build(GEOMETRIES["stride 2, a row left over"])
    votes, children, _ = layer.fields(pose, activation)
    field = 2 * 2 + 1 * 2  # row 1, column 0 of the second image
    slot = (2 * 3 + 1) * TYPES + 1
    vote = pose[1, 2 + 2, 0 + 1, 1] @ layer.weight[2, 1, 1, 2]
    torch.testing.assert_close(votes.form()[field, slot, 2], vote.flatten())
    assert children[field, slot] == activation[1, 4, 1, 1]
