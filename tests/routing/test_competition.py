"""Parents at all positions that see a child compete for it: against loops over positions, on every path, for every routing."""

from __future__ import annotations

import itertools
import shutil
from typing import get_args

import pytest
import torch
from conformance import assert_close, weighted
from torch.nn import functional as F

from capslib.layers import ClassCapsules, ConvCapsules, field_centres
from capslib.routing import (
    ROUTINGS,
    LazyVotes,
    Normalise,
    convolutional,
    em_routing,
    fast,
    use_path,
)

GEOMETRIES = {
    "stride 1": (4, 3, 1),
    "stride 2, a row left over": (6, 3, 2),
    "even kernel": (4, 2, 2),
    "one field": (3, 3, 1),
}
TYPES, PARENTS = 2, 3
each_geometry = pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
each_normaliser = pytest.mark.parametrize("normalise", get_args(Normalise))


def build(
    geometry, normalise: str | None = "types+positions", seed: int = 0, **options
) -> tuple[ConvCapsules, torch.Tensor, torch.Tensor]:
    """A layer with random costs in float64, and a grid of capsules for it, of two images."""
    size, kernel, stride = geometry
    torch.manual_seed(seed)
    betas = (
        {"beta_std": 1.0, "inverse_temperature": 0.5}
        if options.get("routing", "em") == "em"
        else {}
    )
    layer = ConvCapsules(
        TYPES,
        PARENTS,
        kernel=kernel,
        stride=stride,
        normalise=normalise,
        **{**betas, **options},
    ).double()
    dims = (4, 4) if options.get("pose", "matrix") == "matrix" else (16,)
    pose = torch.randn(2, size, size, TYPES, *dims, dtype=torch.float64)
    return layer, pose, torch.rand(2, size, size, TYPES, dtype=torch.float64) * 0.9 + 0.1


def seen_by(
    size: int, kernel: int, stride: int
) -> dict[tuple[int, int], list[tuple[int, int, int, int]]]:
    """For every place the fields that contain it, as (row, column) of the field and of the place in it."""
    positions = range((size - kernel) // stride + 1)
    found = {place: [] for place in itertools.product(range(size), repeat=2)}
    for h, w, k, l in itertools.product(positions, positions, range(kernel), range(kernel)):
        found[h * stride + k, w * stride + l].append((h, w, k, l))
    return found


@each_geometry
@pytest.mark.parametrize(
    "routing", [name for name, kind in ROUTINGS.items() if kind.couplings_sum_over == "parents"]
)
def test_a_child_shares_itself_out_among_all_parents_that_see_it(geometry, routing):
    """A corner child has one position's parents, others up to nine; what no field reaches is in no coupling. A routing that
    cannot let them compete shares out in every window on its own, as it declares."""
    layer, *grid = build(geometry, None, routing=routing)
    coupling = layer(*grid).coupling
    assert coupling.shape[-4:] == (geometry[1], geometry[1], TYPES, PARENTS)
    if layer.normalise == "types-per-position":
        mass = coupling.flatten(3, 5).sum(
            {"parents": -1, "children": -2}[layer.routing.couplings_sum_over]
        )
        torch.testing.assert_close(mass, torch.ones_like(mass))
        return
    seen = seen_by(*geometry)
    assert sum(map(len, seen.values())) == coupling[0, ..., 0, 0].numel()
    for fields in filter(None, seen.values()):
        mass = sum(coupling[:, h, w, k, l].sum(dim=-1) for h, w, k, l in fields)
        torch.testing.assert_close(mass, torch.ones_like(mass))


@each_geometry
def test_the_other_normalisers_sum_over_what_their_names_say(geometry):
    per_type, per_position = (
        build(geometry, n)[0](*build(geometry, n)[1:]).coupling
        for n in ("positions-per-type", "types-per-position")
    )
    assert torch.allclose(per_position.sum(dim=-1), torch.ones_like(per_position[..., 0]))
    for fields in filter(None, seen_by(*geometry).values()):
        mass = sum(per_type[:, h, w, k, l] for h, w, k, l in fields)  # [2, TYPES, PARENTS]
        torch.testing.assert_close(mass, torch.ones_like(mass))


@each_geometry
def test_the_normalisers_but_the_released_share_out_a_whole_unit(geometry):
    """A competition says itself whether the couplings of a child sum to one: this is what it declares."""
    size, kernel, stride = geometry
    for normalise in get_args(Normalise):
        competition = convolutional(
            (size, size), kernel, stride, TYPES, normalise, torch.device("cpu")
        )
        if competition is not None:
            assert competition.sums_to_one == (normalise != "released")


def test_a_child_that_no_parent_explains_gives_its_unit_to_nobody_as_released():
    """Next to nothing where it is some 16 nats (1e-7) worse than the best child of its type; no child gives more than its unit."""
    layer, pose, activation = build(GEOMETRIES["stride 1"], "released", variance_offset=1e-2)
    pose[:, 1, 1] += 100  # in all four fields
    coupling = layer(pose, activation).coupling
    totals = {}
    for place, fields in seen_by(*GEOMETRIES["stride 1"]).items():
        totals[place] = sum(
            coupling[:, h, w, k, l] for h, w, k, l in fields
        )  # [2, TYPES, PARENTS]
        assert (totals[place] <= 1).all()
    assert totals[1, 1].max() < 1e-6
    assert max(total.max().item() for total in totals.values()) > 0.99


def released_sums(weights: torch.Tensor) -> torch.Tensor:
    """What the released code adds up, of the weights of edges [n, n, K, K]: its own reshaping, padding and dilated windows."""
    n, K = weights.shape[0], weights.shape[2]
    grid = weights.permute(0, 2, 1, 3).reshape(1, 1, n * K, n * K)
    groups = F.unfold(grid, K, dilation=K - 1, stride=K, padding=(K - 1) ** 2).sum(dim=1)
    groups = groups.view(n + K - 1, n + K - 1)
    return groups.unfold(0, K, 1).unfold(1, K, 1)  # [n, n, K, K]


@each_geometry
def test_the_released_sums_are_those_of_its_index_arithmetic(geometry):
    """Also where windows step by two: there it adds up edges of different children."""
    size, kernel, stride = geometry
    competition = convolutional(
        (size, size), kernel, stride, 1, "released", torch.device("cpu")
    )
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
"""What edges have in common, from a child (row, column, type) to a parent, that compete with each other."""


def shares_of(
    log_p: dict[tuple, torch.Tensor], normalise: str, stride: int
) -> dict[tuple, torch.Tensor]:
    """The E-step of loops: what each edge gets of its child, from its log-density."""
    rivals, pairs = {}, {}
    for edge in log_p:
        rivals.setdefault(RIVALS[normalise](*edge, stride), []).append(edge)
        pairs.setdefault((edge[2], edge[5]), []).append(edge)
    shares = {}
    for edges in rivals.values():
        if normalise == "released":
            top = torch.stack([log_p[e] for e in pairs[edges[0][2], edges[0][5]]]).max()
            weights = torch.stack([(log_p[e] - top).exp() for e in edges])
            given = weights / (weights.sum() + 1e-7)
        else:
            given = torch.stack([log_p[e] for e in edges]).softmax(0)
        shares |= zip(edges, given, strict=True)
    return shares


def loops(layer: ConvCapsules, pose, activation, iterations: int, normalise: str):
    """Procedure 1 of one image, child by child and parent by parent, as the paper has it."""
    size, K, S = pose.shape[0], layer.kernel, layer.stride
    seen, side = seen_by(size, K, S), (size - K) // S + 1
    beta_u, beta_a = layer.routing.betas()
    votes, R = {}, {}
    for (y, x), fields in seen.items():
        for i, (h, w, k, l), j in itertools.product(range(TYPES), fields, range(PARENTS)):
            votes[y, x, i, h, w, j] = (pose[y, x, i] @ layer.weight[k, l, i, j]).flatten()
            R[y, x, i, h, w, j] = 1 / (
                PARENTS * (len(fields) if normalise == "types+positions" else 1)
            )
    mu, a = {}, {}
    for t in range(iterations):
        used, lamda, log_p = (
            dict(R),
            layer.routing.inverse_temperature * (1 - 0.95 ** (t + 1)),
            {},
        )
        for parent in itertools.product(range(side), range(side), range(PARENTS)):
            edges = [e for e in votes if e[3:] == parent]
            r = torch.stack(
                [torch.as_tensor(R[e], dtype=pose.dtype) * activation[e[:3]] for e in edges]
            )
            V = torch.stack([votes[e] for e in edges])
            mu[parent] = (r[:, None] * V).sum(0) / r.sum()
            variance = (r[:, None] * (V - mu[parent]) ** 2).sum(
                0
            ) / r.sum() + layer.routing.options["variance_offset"]
            cost = ((beta_u[parent[2]] + variance.sqrt().log()) * r.sum()).sum()
            a[parent] = torch.sigmoid(lamda * (beta_a[parent[2]] - cost))
            for e in edges:
                log_p[e] = (
                    a[parent].log()
                    - (
                        (votes[e] - mu[parent]) ** 2 / (2 * variance) + variance.sqrt().log()
                    ).sum()
                )
        R = shares_of(log_p, normalise, S)
    places = list(itertools.product(range(side), range(side), range(PARENTS)))
    coupling = torch.zeros(side, side, K, K, TYPES, PARENTS, dtype=pose.dtype)
    for (y, x, i, h, w, j), share in used.items():
        coupling[h, w, y - h * S, x - w * S, i, j] = share
    return torch.stack([mu[p] for p in places]), torch.stack([a[p] for p in places]), coupling


@each_geometry
@each_normaliser
def test_it_is_what_loops_over_all_positions_say(geometry, normalise):
    layer, pose, activation = build(geometry, normalise, iterations=3, variance_offset=1e-3)
    result = layer(pose, activation)
    with torch.no_grad():
        for n in range(2):
            mu, a, coupling = loops(layer, pose[n], activation[n], 3, normalise)
            torch.testing.assert_close(result.pose[n].reshape(-1, 16), mu, rtol=0, atol=1e-10)
            torch.testing.assert_close(result.activation[n].flatten(), a, rtol=0, atol=1e-10)
            torch.testing.assert_close(result.coupling[n], coupling, rtol=0, atol=1e-10)


def outcome(layer: ConvCapsules, path: str, pose, activation) -> list[torch.Tensor]:
    leaves = [t.detach().clone().requires_grad_() for t in (pose, activation)]
    layer.zero_grad()
    assert use_path(layer, path) == path
    result = layer(*leaves)
    weighted(result).backward()
    return [
        *result,
        *(
            torch.zeros_like(t) if t.grad is None else t.grad
            for t in (*leaves, *layer.parameters())
        ),
    ]


@each_geometry
@each_normaliser
@pytest.mark.parametrize(
    "options",
    [{}, {"pose": "vector"}, {"smoothing": 0.1}, {"mixing": True}, {"routing": "dynamic"}],
    ids=str,
)
def test_the_fast_path_is_the_definition(geometry, normalise, options, monkeypatch):
    """An image is never cut into its positions, however small the chunks."""
    layer, *grid = build(geometry, normalise, iterations=3, **options)
    expected = outcome(layer, "eager", *grid)
    assert_close(outcome(layer, "fast", *grid), expected, 1e-9)
    monkeypatch.setitem(fast.CHUNK_BYTES, "cpu", 1)
    monkeypatch.setitem(fast.BLOCK_BYTES, "cpu", 1)
    assert_close(outcome(layer, "fast", *grid), expected, 1e-9)


@pytest.mark.skipif(
    shutil.which("c++") is None and shutil.which("g++") is None,
    reason="torch.compile needs a C++ compiler",
)
@pytest.mark.parametrize(
    ("routing", "normalise"),
    [("em", "positions-per-type"), ("em", "released"), ("dynamic", "types+positions")],
)
def test_the_compiled_path_is_the_definition(routing, normalise):
    layer, *grid = build(GEOMETRIES["stride 1"], normalise, routing=routing)
    assert_close(outcome(layer, "compiled", *grid), outcome(layer, "eager", *grid), 1e-9)


@pytest.mark.parametrize(
    "options", [{"smoothing": 0.1}, {"mixing": True}, {}, {"normalise": "released"}], ids=str
)
def test_gradients_are_those_of_finite_differences(options):
    """For the release, whose gradient goes through its maximum too."""
    layer, pose, activation = build(
        (3, 2, 1),
        **{"normalise": "types+positions", **options},
        iterations=2,
        variance_offset=1e-2,
    )
    layer.weight.data *= 3

    def function(pose, activation, weight):
        return torch.func.functional_call(layer, {"weight": weight}, (pose, activation))

    leaves = [t[:1].detach().clone().requires_grad_() for t in (pose, activation)]
    torch.autograd.gradcheck(
        function, [*leaves, layer.weight.detach().clone().requires_grad_()], fast_mode=True
    )


def test_competition_matters():
    """The four normalisers are four functions where fields overlap; a window alone competes as the paper says where they do not."""
    names = get_args(Normalise)
    for geometry, alike in (
        (GEOMETRIES["stride 1"], set()),
        (GEOMETRIES["even kernel"], {("types+positions", "types-per-position")}),
    ):
        coupling = {n: build(geometry, n)[0](*build(geometry, n)[1:]).coupling for n in names}
        same = {
            pair
            for pair in itertools.combinations(names, 2)
            if torch.allclose(*(coupling[n] for n in pair))
        }
        assert same == alike


@pytest.mark.parametrize("other", ["types-per-position", "released"])
@pytest.mark.parametrize(("iterations", "same"), [(1, True), (2, False)])
def test_nobody_has_competed_after_one_iteration(other, iterations, same):
    """So a grid needs one of these arms with one iteration: a competition per type, as released, or within each window."""
    per_type, result = (
        build(GEOMETRIES["stride 1"], n, iterations=iterations)[0](
            *build(GEOMETRIES["stride 1"], n)[1:]
        )
        for n in ("positions-per-type", other)
    )
    assert torch.allclose(per_type.pose, result.pose) == same
    assert torch.allclose(per_type.activation, result.activation) == same


def test_smoothing_keeps_a_part_of_the_mean_before():
    """One iteration from zero shrinks the means by it, as the released code's 0.9 does."""
    votes, activation = (
        torch.randn(2, 5, 3, 4, dtype=torch.float64),
        torch.rand(2, 5, dtype=torch.float64),
    )
    betas = torch.zeros(2, 3, dtype=torch.float64)
    plain, smooth = (
        em_routing(votes, activation, *betas, iterations=1, smoothing=s) for s in (0.0, 0.1)
    )
    torch.testing.assert_close(smooth.pose, 0.9 * plain.pose)


def test_mixing_proportions_share_out_the_children():
    votes, activation = (
        torch.randn(2, 5, 3, 4, dtype=torch.float64),
        torch.rand(2, 5, dtype=torch.float64),
    )
    betas = torch.randn(2, 3, dtype=torch.float64)
    result = em_routing(votes, activation, *betas, mixing=True)
    torch.testing.assert_close(result.activation.sum(-1), torch.ones(2, dtype=torch.float64))
    mass = (result.coupling * activation[..., None]).sum(dim=-2)
    torch.testing.assert_close(result.activation, mass / activation.sum(-1, keepdim=True))


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_the_start_makes_half_of_the_parents_active(iterations):
    layer, pose, activation = build((8, 3, 1), iterations=iterations, variance_offset=5e-4)
    votes, of_field, competition = layer.fields(pose, activation)
    layer.routing.start_at_half(votes.form(), of_field, competition)
    assert layer.routing.iterations == iterations
    active = (layer(pose, activation).activation > 0.5).double().mean().item()
    assert 0.3 < active < 0.7


def test_class_capsules_share_their_matrices_and_add_coordinates():
    torch.manual_seed(0)
    coordinates = field_centres((8, 8), [(3, 2), (2, 1)])
    assert coordinates.shape == (2, 2, 2)
    torch.testing.assert_close(
        coordinates[..., 0], torch.tensor([[-2.0, -2.0], [0.0, 0.0]]) * 0.01
    )
    torch.testing.assert_close(coordinates[..., 1], coordinates[..., 0].T)
    layer, pose = (
        ClassCapsules(3, 5, coordinates=coordinates, beta_std=0.0),
        torch.randn(2, 2, 2, 3, 4, 4),
    )
    votes, column = layer.votes(pose), torch.zeros(4, 4)
    column[0, 3], column[1, 3] = coordinates[1, 0]
    torch.testing.assert_close(
        votes[1, 2 * 3 + 2, 4], (pose[1, 1, 0, 2] @ layer.weight[2, 4] + column).flatten()
    )
    result = layer(pose, torch.rand(2, 2, 2, 3))
    assert (result.pose.shape, result.coupling.shape) == ((2, 5, 16), (2, 12, 5))


def test_fields_share_children_with_their_neighbours():
    """Slots are ordered row, column, type: votes are those of the windows one would cut out by hand."""
    layer, pose, activation = build(GEOMETRIES["stride 2, a row left over"])
    votes, of_field, _ = layer.fields(pose, activation)
    assert isinstance(votes, LazyVotes)
    window = (
        votes.form().unflatten(0, (2, 2, 2))[1, 1, 0].unflatten(0, (3, 3, TYPES))
    )  # the field of row 1, column 0
    expected = pose[1, 2 + 2, 0 + 1, 1] @ layer.weight[2, 1, 1, 2]
    torch.testing.assert_close(window[2, 1, 1, 2], expected.flatten())
    assert (
        of_field.unflatten(0, (2, 2, 2))[1, 1, 0].unflatten(0, (3, 3, TYPES))[2, 1, 1]
        == activation[1, 4, 1, 1]
    )
