"""A new routing is one class and one line: two routings of this file run everywhere.

Soft k-means shares each child out among its parents, those at other positions included. In
attention each parent shares itself out among its children, so its parents do not compete.
"""

from __future__ import annotations

import importlib
import math
from itertools import product

import pytest
import torch
from conformance import BIASES, CHECKS
from test_competition import assert_couplings_sum_to_one

from capslib.lab import estimates, plots
from capslib.layers import ClassCapsules, ConvCapsules, DenseCapsules
from capslib.networks.em_routing import MatrixCapsNet
from capslib.networks.negation_limitation import DeepCapsNet, SignNetwork
from capslib.papers import arm, experiments
from capslib.registry import NETWORKS
from capslib.routing import ROUTINGS, Routing, RoutingResult, routing_function, use_path
from capslib.routing.competition import softmax, uniform
from capslib.training import Context

MASS = 1e-8


@routing_function
def soft_k_means(votes, activation, *, iterations=3, bias=None, competition=None):
    """Parents are weighted means; a child belongs to the parents that are near its votes."""
    coupling = uniform(votes[..., 0], competition)
    for iteration in range(iterations):
        r = coupling * activation[..., None]  # [..., I, J]
        mass = r.sum(dim=-2)  # [..., J]
        total = (r[..., None] * votes).sum(dim=-3)  # [..., J, D]
        pose = total / mass.clamp_min(MASS)[..., None]
        if bias is not None:
            pose = pose + bias
        if iteration < iterations - 1:
            distance = (votes - pose[..., None, :, :]).square().sum(dim=-1)
            coupling = softmax(-distance, competition)
    share = mass / activation.sum(dim=-1, keepdim=True).clamp_min(MASS)
    return RoutingResult(pose, share, coupling)


class SoftKMeans(Routing):
    function = soft_k_means

    def forward(self, votes, activation, competition=None, *, iterations=None):
        return soft_k_means(
            votes,
            activation,
            iterations=self.iterations if iterations is None else iterations,
            bias=self.bias,
            competition=competition,
            path=self.path,
        )

    def reference(self, votes, activation):
        I, J, D = votes.shape
        c = votes.new_full((I, J), 1 / J)
        pose, a, p = votes.new_zeros(J, D), votes.new_zeros(J), votes.new_zeros(I, J)
        for _ in range(self.iterations):
            coupling = c
            for j in range(J):
                mass = sum(c[i, j] * activation[i] for i in range(I))
                pose[j] = sum(c[i, j] * activation[i] * votes[i, j] for i in range(I)) / mass
                a[j] = mass / activation.sum()
            if self.bias is not None:
                pose += self.bias
            for i, j in product(range(I), range(J)):
                p[i, j] = torch.exp(-((votes[i, j] - pose[j]) ** 2).sum())
            c = p / p.sum(dim=1, keepdim=True)
        return RoutingResult(pose, a, coupling)


@routing_function
def attention(votes, activation, *, iterations=3, bias=None):
    """Parents are means of their votes, and attend to the votes that agree with them."""
    coupling = torch.full_like(votes[..., 0], 1 / votes.shape[-3])
    for iteration in range(iterations):
        pose = (coupling[..., None] * activation[..., None, None] * votes).sum(dim=-3)
        if bias is not None:
            pose = pose + bias
        if iteration < iterations - 1:
            coupling = (votes * pose[..., None, :, :]).sum(dim=-1).softmax(dim=-2)
    return RoutingResult(pose, (coupling * activation[..., None]).sum(dim=-2), coupling)


class Attention(Routing):
    function = attention
    couplings_sum_over = "children"

    def forward(self, votes, activation, *, iterations=None):
        iterations = self.iterations if iterations is None else iterations
        options = {"iterations": iterations, "bias": self.bias, "path": self.path}
        return attention(votes, activation, **options)

    def reference(self, votes, activation):
        I, J, D = votes.shape
        c = votes.new_full((I, J), 1 / I)
        pose, agreement = votes.new_zeros(J, D), votes.new_zeros(I, J)
        for _ in range(self.iterations):
            coupling = c
            for j in range(J):
                pose[j] = sum(c[i, j] * activation[i] * votes[i, j] for i in range(I))
            if self.bias is not None:
                pose += self.bias
            for i, j in product(range(I), range(J)):
                agreement[i, j] = votes[i, j] @ pose[j]
            c = agreement.exp() / agreement.exp().sum(dim=0)
        return RoutingResult(pose, coupling.T @ activation, coupling)


class Windows(SoftKMeans):
    """Its ``forward`` leaves ``competition`` out."""

    def forward(self, votes, activation, *, iterations=None):
        return super().forward(votes, activation, iterations=iterations)


class ForgetsThePath(SoftKMeans):
    def forward(self, votes, activation, competition=None, *, iterations=None):
        return soft_k_means(votes, activation, bias=self.bias, competition=competition)


NEW = {"soft_k_means": SoftKMeans, "attention": Attention}


@pytest.fixture(params=NEW)
def name(request, monkeypatch):
    monkeypatch.setitem(ROUTINGS, request.param, NEW[request.param])
    return request.param


@pytest.mark.parametrize("bias", BIASES)
def test_it_conforms(name, bias):
    for check in CHECKS.values():
        check(name, BIASES[bias])


def test_a_forward_that_forgets_the_path_is_found_out(monkeypatch):
    monkeypatch.setitem(ROUTINGS, "mine", ForgetsThePath)
    with pytest.raises(AssertionError, match=r"path=self\.path"):
        CHECKS["the_path_that_is_chosen_is_taken"]("mine", None)


def test_its_couplings_sum_to_one_in_a_convolution(name):
    assert_couplings_sum_to_one((6, 3, 1), name)


GENERATOR = torch.Generator().manual_seed(0)  # not every input of a sign network has a gradient
GRID = (
    torch.rand(2, 5, 5, 3, 4, 4, generator=GENERATOR),
    torch.rand(2, 5, 5, 3, generator=GENERATOR),
)
IMAGES = torch.randn(2, 1, 17, 17, generator=GENERATOR)
SIZES = (4, 2, 2, 2)
DEEP = {
    "depth": 3,
    "filters": 4,
    "kernel": 3,
    "primary_types": 2,
    "primary_kernel": 3,
    "hidden": (4, 6),
    "decoder": (4,),
}
USES = {
    "DenseCapsules": (
        lambda **o: DenseCapsules(3, 3, 4, 5, **o),
        (GRID[0][0, 0, :, :, 0], GRID[1][0, 0]),
    ),
    "ConvCapsules": (lambda **o: ConvCapsules(3, 2, **o), GRID),
    "ClassCapsules": (lambda **o: ClassCapsules(3, 4, **o), GRID),
    "MatrixCapsNet": (lambda **o: MatrixCapsNet((1, 17, 17), 5, SIZES, **o), (IMAGES,)),
    "DeepCapsNet": (lambda **o: DeepCapsNet((1, 8, 8), **DEEP, **o), (IMAGES[:, :, :8, :8],)),
    "SignNetwork": (lambda **o: SignNetwork(5, **o), (GRID[1][0, 0, :, 0] - 0.5,)),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("bias", BIASES)
def test_it_runs_forward_and_backward_in_every_layer_and_network_on_every_path(name, use, bias):
    make, inputs = USES[use]
    torch.manual_seed(0)
    network = make(routing=name, iterations=2, bias=BIASES[bias])

    def outcome(path: str) -> list[torch.Tensor]:
        assert use_path(network, path) == ("eager" if path == "eager" else "fast")
        output = network(*inputs)
        output = getattr(output, "activation", output)
        loss = (output * torch.linspace(0, 1, output.numel()).view_as(output)).sum()
        parameters = list(network.parameters())
        needed = {"allow_unused": True, "materialize_grads": True}
        return [output, *torch.autograd.grad(loss, parameters, **needed)]

    eager = outcome("eager")
    assert any(gradient.abs().max() > 0 for gradient in eager[1:])
    for path in ("fast", "compiled"):
        torch.testing.assert_close(outcome(path), eager)


TRIALS = {
    ("em_routing", "test_error"): {"sizes": SIZES, "multi_crop": 0},
    ("em_routing", "viewpoint"): {},
    ("negation_limitation", "depth"): {},
}


@pytest.mark.parametrize(("stem", "experiment"), TRIALS)
def test_it_runs_in_an_experiment(name, stem, experiment):
    """As ``capslib run STEM --set routing=NAME`` does; what a step costs is counted, too."""
    change = {"images": 30, "epochs": 1, "batch_size": 15, "routing": name}
    change |= TRIALS[stem, experiment]
    where = {"routing": "dynamic"}
    if stem == "em_routing":
        where = {"network": "matrix_capsnet", "data": "toys"}
    runner = experiments(stem)[experiment]
    trial = runner.trials("smoke", where=where, change=change)[0]
    result = runner.run(arm(trial), Context(seed=0))
    assert result.routing_path == "fast"
    assert all(math.isfinite(metric.value) for metric in result.metrics.values())
    steps, flops = estimates.work(trial)
    assert steps > 0 < flops


def test_it_runs_in_a_benchmark_and_has_a_colour_and_a_name_in_figures(name):
    cases = pytest.importorskip(
        "benchmarks.cases", reason="benchmarks/ stands beside the package in a checkout only"
    )
    measuring = importlib.import_module("benchmarks.__main__")
    case = cases.Layer("a new one", name, (2, 6, 3, 4), paths=("eager", "fast"))
    for path in case.paths:
        case.prepare(path, "cpu")()
    row = {"kind": "layer", "name": case.name, "path": "fast", "milliseconds": 1.0}
    measuring.add_limits([row], {case.name: case}, rates={})
    assert "times_limit" not in row, "no textbook form says how many operations it needs"
    assert plots.routing_color(name) not in map(plots.routing_color, ("dynamic", "em"))
    assert plots.routing_name(name)


def test_a_start_at_half_leaves_it_alone(name):
    network = MatrixCapsNet((1, 17, 17), 5, SIZES, routing=name)
    state = {key: tensor.clone() for key, tensor in network.state_dict().items()}
    network.start_at_half(torch.randn(4, 1, 17, 17))
    assert all(torch.equal(tensor, state[key]) for key, tensor in network.state_dict().items())


@pytest.mark.parametrize(
    ("routing", "reason"),
    [(Windows, "takes no competition"), (Attention, "normalises over the children")],
)
def test_where_parents_at_other_positions_cannot_compete_asking_for_it_is_an_error(
    monkeypatch, routing, reason
):
    monkeypatch.setitem(ROUTINGS, "mine", routing)
    assert_couplings_sum_to_one((6, 3, 1), "mine")
    message = f"'mine' {reason}, .* leave normalise='types.positions' out"
    options = {"routing": "mine", "normalise": "types+positions"}
    with pytest.raises(ValueError, match=message):
        ConvCapsules(3, 2, **options)
    with pytest.raises(ValueError, match=message):
        MatrixCapsNet((1, 17, 17), 5, SIZES, **options)


def test_a_network_is_found_by_name_as_well(name):
    assert isinstance(NETWORKS["sign"](5, routing=name).layers[0].routing, NEW[name])
