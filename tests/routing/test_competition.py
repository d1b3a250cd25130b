"""Parents at all positions that see a child compete for it: against loops, on every path."""

from __future__ import annotations

import itertools
import shutil
from typing import get_args

import pytest
import torch
from conformance import assert_close, outcome, small_chunks
from torch import Tensor
from torch.nn import functional as F

from capslib.layers import ClassCapsules, ConvCapsules, field_centres
from capslib.routing import (
    ROUTINGS,
    Normalise,
    RoutingResult,
    convolutional,
    em_routing,
    use_path,
)

GEOMETRIES = {
    "stride 1": (4, 3, 1),
    "stride 2, a row left over": (6, 3, 2),
    "even kernel": (4, 2, 2),
    "one field": (3, 3, 1),
}
TYPES, PARENTS = 2, 3
NORMALISERS = get_args(Normalise)
CPU = torch.device("cpu")
each_geometry = pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
each_normaliser = pytest.mark.parametrize("normalise", NORMALISERS)


def build(
    geometry, normalise: str | None = "types+positions", **options
) -> tuple[ConvCapsules, Tensor, Tensor]:
    """Return a float64 layer with random costs, and a grid of capsules of two images."""
    size, kernel, stride = geometry
    torch.manual_seed(0)
    if options.get("routing", "em") == "em":
        options = {"beta_std": 1.0, "inverse_temperature": 0.5, **options}
    sizes = {"kernel": kernel, "stride": stride}
    layer = ConvCapsules(TYPES, PARENTS, normalise=normalise, **sizes, **options).double()
    pose = torch.randn(2, size, size, TYPES, *layer.pose, dtype=torch.float64)
    activation = torch.rand(2, size, size, TYPES, dtype=torch.float64) * 0.9 + 0.1
    return layer, pose, activation


def route(geometry, normalise: str | None = "types+positions", **options) -> RoutingResult:
    layer, pose, activation = build(geometry, normalise, **options)
    return layer(pose, activation)


def fields_of_places(geometry) -> dict[tuple[int, int], list[tuple[int, int, int, int]]]:
    """Return the row and column of each field of a place, and of the place in the field."""
    size, kernel, stride = geometry
    positions = range((size - kernel) // stride + 1)
    fields = {cell: [] for cell in itertools.product(range(size), repeat=2)}
    for h, w, k, l in itertools.product(positions, positions, range(kernel), range(kernel)):
        fields[h * stride + k, w * stride + l].append((h, w, k, l))
    return {cell: edges for cell, edges in fields.items() if edges}


def coupling_of_child(coupling: Tensor, fields: list) -> Tensor:
    """Return the summed couplings [N, types, parents] of the children at a place."""
    return sum(coupling[:, h, w, k, l] for h, w, k, l in fields)


def assert_ones(total: Tensor) -> None:
    torch.testing.assert_close(total, torch.ones_like(total))


def assert_couplings_sum_to_one(geometry, routing: str) -> None:
    """Over all parents that see a child, or in every window on its own, as the layer says."""
    layer, *grid = build(geometry, None, routing=routing)
    coupling = layer(*grid).coupling
    assert coupling.shape[-4:] == (geometry[1], geometry[1], TYPES, PARENTS)
    if layer.normalise == "types-per-position":
        axis = {"parents": -1, "children": -2}[layer.routing.couplings_sum_over]
        assert_ones(coupling.flatten(3, 5).sum(axis))
    else:
        for fields in fields_of_places(geometry).values():
            assert_ones(coupling_of_child(coupling, fields).sum(dim=-1))


@each_geometry
@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_child_shares_itself_out_among_all_parents_that_see_it(geometry, routing):
    """A corner child has the parents of one position, another child those of up to nine."""
    assert_couplings_sum_to_one(geometry, routing)


@each_geometry
def test_the_other_normalisers_sum_over_what_their_names_say(geometry):
    size, kernel, stride = geometry
    assert_ones(route(geometry, "types-per-position").coupling.sum(dim=-1))
    coupling = route(geometry, "positions-per-type").coupling
    for fields in fields_of_places(geometry).values():
        assert_ones(coupling_of_child(coupling, fields))
    for normalise in NORMALISERS:
        competition = convolutional((size, size), kernel, stride, TYPES, normalise, CPU)
        if competition is not None:
            assert competition.sums_to_one == (normalise != "released")


def test_a_child_that_no_parent_explains_gives_its_unit_to_nobody_as_released():
    """It is some 16 nats (1e-7) worse than the best child of its type."""
    geometry = GEOMETRIES["stride 1"]
    layer, pose, activation = build(geometry, "released", variance_offset=1e-2)
    pose[:, 1, 1] += 100  # in all four fields
    coupling = layer(pose, activation).coupling
    totals = {}
    for cell, fields in fields_of_places(geometry).items():
        totals[cell] = coupling_of_child(coupling, fields).max()
    assert totals[1, 1] < 1e-6
    assert 0.99 < max(totals.values()) <= 1


def released_sums(weights: Tensor) -> Tensor:
    """Return the sums of the released code for edges [n, n, K, K], by its own lines."""
    n, K = weights.shape[0], weights.shape[2]
    grid = weights.permute(0, 2, 1, 3).reshape(1, 1, n * K, n * K)
    groups = F.unfold(grid, K, dilation=K - 1, stride=K, padding=(K - 1) ** 2).sum(dim=1)
    groups = groups.view(n + K - 1, n + K - 1)
    return groups.unfold(0, K, 1).unfold(1, K, 1)  # [n, n, K, K]


@each_geometry
def test_the_released_sums_are_those_of_its_index_arithmetic(geometry):
    """Where windows step by two, it adds up edges of different children."""
    size, kernel, stride = geometry
    competition = convolutional((size, size), kernel, stride, 1, "released", CPU)
    n = (size - kernel) // stride + 1
    weights = torch.rand(n, n, kernel, kernel, dtype=torch.float64)
    sums = competition.over(weights.view(n * n, 1, kernel * kernel), "sum")
    torch.testing.assert_close(sums.view_as(weights), released_sums(weights))


RIVALS = {
    "types+positions": lambda y, x, i, h, w, j, S: (y, x, i),
    "positions-per-type": lambda y, x, i, h, w, j, S: (y, x, i, j),
    "types-per-position": lambda y, x, i, h, w, j, S: (y, x, i, h, w),
    "released": lambda y, x, i, h, w, j, S: (y - h * S + h, x - w * S + w, i, j),
}
"""What rival edges, from a child (row, column, type) to a parent, have in common."""


def couplings_by_loops(log_p: dict[tuple, Tensor], normalise: str, stride: int) -> dict:
    """The E-step: the coupling of each edge, from its log-density."""
    rivals, pairs = {}, {}
    for edge in log_p:
        rivals.setdefault(RIVALS[normalise](*edge, stride), []).append(edge)
        pairs.setdefault((edge[2], edge[5]), []).append(log_p[edge])
    couplings = {}
    for edges in rivals.values():
        logits = torch.stack([log_p[edge] for edge in edges])
        shares = logits.softmax(0)
        if normalise == "released":
            weights = (logits - max(pairs[edges[0][2], edges[0][5]])).exp()
            shares = weights / (weights.sum() + 1e-7)
        couplings |= zip(edges, shares, strict=True)
    return couplings


def route_by_loops(layer: ConvCapsules, pose, activation, geometry, normalise: str):
    """Procedure 1 of one image, child by child and parent by parent, as the paper has it."""
    fields_of = fields_of_places(geometry)
    size, K, S = geometry
    side = (size - K) // S + 1
    parents = list(itertools.product(range(side), range(side), range(PARENTS)))
    beta_u, beta_a = layer.routing.betas()
    votes, R = {}, {}
    for (y, x), fields in fields_of.items():
        rivals = PARENTS * (len(fields) if normalise == "types+positions" else 1)
        for i, (h, w, k, l), j in itertools.product(range(TYPES), fields, range(PARENTS)):
            votes[y, x, i, h, w, j] = (pose[y, x, i] @ layer.weight[k, l, i, j]).flatten()
            R[y, x, i, h, w, j] = torch.tensor(1 / rivals, dtype=pose.dtype)
    mu, a = {}, {}
    for t in range(layer.routing.iterations):
        lamda = layer.routing.inverse_temperature * (1 - 0.95 ** (t + 1))
        log_p = {}
        for parent in parents:
            edges = [edge for edge in votes if edge[3:] == parent]
            r = torch.stack([R[edge] * activation[edge[:3]] for edge in edges])[:, None]
            V = torch.stack([votes[edge] for edge in edges])
            mu[parent] = (r * V).sum(0) / r.sum()
            variance = (r * (V - mu[parent]) ** 2).sum(0) / r.sum()
            variance += layer.routing.options["variance_offset"]
            log_spread = variance.sqrt().log()
            cost = ((beta_u[parent[2]] + log_spread) * r.sum()).sum()
            a[parent] = torch.sigmoid(lamda * (beta_a[parent[2]] - cost))
            for edge in edges:
                distance = (votes[edge] - mu[parent]) ** 2 / (2 * variance)
                log_p[edge] = a[parent].log() - (distance + log_spread).sum()
        couplings = R
        R = couplings_by_loops(log_p, normalise, S)
    coupling = pose.new_zeros(side, side, K, K, TYPES, PARENTS)
    for (y, x, i, h, w, j), share in couplings.items():
        coupling[h, w, y - h * S, x - w * S, i, j] = share
    return torch.stack([mu[p] for p in parents]), torch.stack([a[p] for p in parents]), coupling


@each_geometry
@each_normaliser
def test_it_is_what_loops_over_all_positions_say(geometry, normalise):
    layer, pose, activation = build(geometry, normalise, variance_offset=1e-3)
    result = layer(pose[:1], activation[:1])
    with torch.no_grad():
        expected = route_by_loops(layer, pose[0], activation[0], geometry, normalise)
    for tensor, loops in zip(result, expected, strict=True):
        torch.testing.assert_close(tensor.reshape(loops.shape), loops, rtol=0, atol=1e-10)


def outcome_on(path: str, layer: ConvCapsules, *grid: Tensor) -> list[Tensor]:
    assert use_path(layer, path) == path
    return outcome(layer, *grid)


@each_geometry
@each_normaliser
def test_the_fast_path_is_the_definition(geometry, normalise):
    """An image is never cut into its positions, however small the chunks."""
    variants = ({}, {"pose": "vector"}, {"smoothing": 0.1}, {"mixing": True})
    for options in (*variants, {"routing": "dynamic"}):
        layer, *grid = build(geometry, normalise, **options)
        expected = outcome_on("eager", layer, *grid)
        assert_close(outcome_on("fast", layer, *grid), expected, 1e-9, case=options)
        with small_chunks(1):
            assert_close(outcome_on("fast", layer, *grid), expected, 1e-9, case=options)


@pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))),
    reason="torch.compile needs a C++ compiler",
)
@pytest.mark.parametrize(
    ("routing", "normalise"), [("em", "released"), ("dynamic", "types+positions")]
)
def test_the_compiled_path_is_the_definition(routing, normalise):
    layer, *grid = build(GEOMETRIES["stride 1"], normalise, routing=routing, iterations=2)
    assert_close(outcome_on("compiled", layer, *grid), outcome_on("eager", layer, *grid), 1e-9)


@pytest.mark.parametrize(
    "options", [{"smoothing": 0.1}, {"mixing": True}, {}, {"normalise": "released"}], ids=str
)
def test_gradients_are_those_of_finite_differences(options):
    """In the released code a gradient goes through its maximum, too."""
    layer, *grid = build((3, 2, 1), **options, iterations=2, variance_offset=1e-2)
    layer.weight.data *= 3

    def function(pose, activation, weight):
        return torch.func.functional_call(layer, {"weight": weight}, (pose, activation))

    tensors = (grid[0][:1], grid[1][:1], layer.weight)
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    torch.autograd.gradcheck(function, leaves, fast_mode=True)


@pytest.mark.parametrize(
    ("geometry", "equal"),
    [("stride 1", set()), ("even kernel", {("types+positions", "types-per-position")})],
)
def test_competition_matters(geometry, equal):
    """The normalisers are four functions where fields overlap, and three where they do not."""
    coupling = {n: route(GEOMETRIES[geometry], n).coupling for n in NORMALISERS}
    pairs = itertools.combinations(NORMALISERS, 2)
    assert {pair for pair in pairs if torch.allclose(*map(coupling.get, pair))} == equal


@pytest.mark.parametrize("normalise", ["types-per-position", "released"])
@pytest.mark.parametrize("iterations", [1, 2])
def test_nobody_has_competed_after_one_iteration(normalise, iterations):
    """So of these arms an experiment needs one with one iteration."""
    geometry = GEOMETRIES["stride 1"]
    per_type = route(geometry, "positions-per-type", iterations=iterations)
    result = route(geometry, normalise, iterations=iterations)
    assert torch.allclose(per_type.pose, result.pose) == (iterations == 1)
    assert torch.allclose(per_type.activation, result.activation) == (iterations == 1)


def test_smoothing_and_mixing_are_what_their_names_say():
    votes = torch.randn(2, 5, 3, 4, dtype=torch.float64)
    activation = torch.rand(2, 5, dtype=torch.float64)
    tensors = (votes, activation, *torch.randn(2, 3, dtype=torch.float64))
    plain = em_routing(*tensors, iterations=1)
    smooth = em_routing(*tensors, iterations=1, smoothing=0.1)
    torch.testing.assert_close(smooth.pose, 0.9 * plain.pose)  # a mean of zero came before
    mixed = em_routing(*tensors, mixing=True)
    mass = (mixed.coupling * activation[..., None]).sum(dim=-2)
    torch.testing.assert_close(mixed.activation, mass / activation.sum(-1, keepdim=True))


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_the_start_makes_half_of_the_parents_active(iterations):
    layer, pose, activation = build((8, 3, 1), iterations=iterations, variance_offset=5e-4)
    votes, children, competition = layer.fields(pose, activation)
    layer.routing.start_at_half(votes.form(), children, competition)
    assert layer.routing.iterations == iterations
    assert 0.3 < (layer(pose, activation).activation > 0.5).double().mean() < 0.7


def test_class_capsules_share_their_matrices_and_add_coordinates():
    coordinates = field_centres((8, 8), [(3, 2), (2, 1)])
    rows = torch.tensor([[-2.0, -2.0], [0.0, 0.0]]) * 0.01
    torch.testing.assert_close(coordinates, torch.stack([rows, rows.T], dim=-1))
    layer = ClassCapsules(3, 5, coordinates=coordinates, beta_std=0.0)
    pose = torch.randn(2, 2, 2, 3, 4, 4)
    expected = pose[1, 1, 0, 2] @ layer.weight[2, 4]
    expected[:2, 3] += coordinates[1, 0]
    torch.testing.assert_close(layer.votes(pose)[1, 2 * 3 + 2, 4], expected.flatten())
    result = layer(pose, torch.rand(2, 2, 2, 3))
    assert (result.pose.shape, result.coupling.shape) == ((2, 5, 16), (2, 12, 5))


def test_fields_share_children_with_their_neighbours():
    """Slots are ordered by row, column and type, as in a window that is cut out by hand."""
    layer, pose, activation = build(GEOMETRIES["stride 2, a row left over"])
    votes, children, _ = layer.fields(pose, activation)
    field, slot = 2 * 2 + 1 * 2, (2 * 3 + 1) * TYPES + 1  # row 1, column 0 of the second image
    expected = pose[1, 2 + 2, 0 + 1, 1] @ layer.weight[2, 1, 1, 2]
    torch.testing.assert_close(votes.form()[field, slot, 2], expected.flatten())
    assert children[field, slot] == activation[1, 4, 1, 1]
