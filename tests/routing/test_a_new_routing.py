"""A new routing is one class and one line: two that capslib does not have run everywhere.

Soft k-means shares each child out among its parents, those at other positions included. In
attention each parent shares itself out among its children, so its parents do not compete.
"""

from __future__ import annotations

import importlib
from copy import deepcopy
from functools import partial
from itertools import product

import pytest
import torch
from conformance import BIASES, CHECKS
from grids import assert_couplings_sum_to_one
from soft_k_means import SoftKMeans, soft_k_means

from capslib.lab import estimates
from capslib.layers import ClassCapsules, ConvCapsules, DenseCapsules
from capslib.papers import arm, experiments
from capslib.registry import NETWORKS
from capslib.routing import ROUTINGS, Routing, RoutingResult, routing_function, use_path
from capslib.training import Context


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


IMAGE = (1, 17, 17)
SIZES = (4, 2, 2, 2)
SMALL = {"depth": 3, "filters": 4, "kernel": 3, "primary_types": 2, "primary_kernel": 3}
GRID = [(2, 5, 5, 3, 4, 4), (2, 5, 5, 3)]
"""Poses and activations of a grid of matrix capsules."""
USES = {
    "dense": (partial(DenseCapsules, 9, 3, 4, 5), [(2, 9, 4), (2, 9)]),
    "conv": (partial(ConvCapsules, 3, 2), GRID),
    "class": (partial(ClassCapsules, 3, 4), GRID),
    "matrix_capsnet": (partial(NETWORKS["matrix_capsnet"], IMAGE, 5, SIZES), [(2, *IMAGE)]),
    "deep_capsnet": (partial(NETWORKS["deep_capsnet"], (1, 8, 8), **SMALL), [(2, 1, 8, 8)]),
    "sign": (partial(NETWORKS["sign"], 5), [(20,)]),
}
"""Layers and networks, and the shapes of what they take."""


@pytest.mark.parametrize(("make", "shapes"), USES.values(), ids=USES)
@pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)
def test_it_runs_in_every_layer_and_network_on_every_path(name, bias, make, shapes):
    network = make(routing=name, iterations=2, bias=bias)
    assert any(isinstance(module, NEW[name]) for module in network.modules())
    inputs = [torch.rand(shape) for shape in shapes]
    outcomes = []
    for path in ("eager", "fast", "compiled"):
        assert use_path(network, path) == ("eager" if path == "eager" else "fast")
        result = network(*inputs)
        output = getattr(result, "activation", result)
        loss = (output * torch.arange(output.numel()).view_as(output)).sum()
        needed = {"allow_unused": True, "materialize_grads": True}
        gradients = torch.autograd.grad(loss, list(network.parameters()), **needed)
        outcomes.append([output, *gradients])
    eager, fast, compiled = outcomes
    largest = [gradient.abs().max() for gradient in eager[1:]]
    assert max(largest) > 0
    torch.testing.assert_close(fast, eager)
    torch.testing.assert_close(compiled, eager)


TRIALS = {
    ("em_routing", "test_error"): {"sizes": (4, 2, 2, 2), "multi_crop": 0},
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
    assert estimates.steps(trial) > 0 < estimates.flops(trial)


def test_it_runs_in_a_benchmark(name):
    reason = "benchmarks/ stands beside the package in a checkout only"
    cases = pytest.importorskip("benchmarks.cases", reason=reason)
    measuring = importlib.import_module("benchmarks.__main__")
    case = cases.RoutingCase("a new one", name, (2, 6, 3, 4), paths=("eager", "fast"))
    for path in case.paths:
        case.prepare(path, "cpu")()
    row = {"kind": "layer", "name": case.name, "path": "fast", "milliseconds": 1.0}
    measuring.add_limits([row], {case.name: case}, rates={})
    assert "times_limit" not in row, "no textbook form says how many operations it needs"


def test_a_start_at_half_leaves_it_alone(name):
    network = NETWORKS["matrix_capsnet"](IMAGE, 5, SIZES, routing=name)
    state = deepcopy(network.state_dict())
    network.start_at_half(torch.randn(4, *IMAGE))
    torch.testing.assert_close(network.state_dict(), state, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("routing", "reason"),
    [(Windows, "takes no competition"), (Attention, "normalises over the children")],
)
def test_competition_that_a_routing_does_not_take_is_refused(monkeypatch, routing, reason):
    """Each window then stands for itself."""
    monkeypatch.setitem(ROUTINGS, "mine", routing)
    assert_couplings_sum_to_one((6, 3, 1), "mine")
    message = f"'mine' {reason}, .* leave normalise='types.positions' out"
    with pytest.raises(ValueError, match=message):
        ConvCapsules(3, 2, routing="mine", normalise="types+positions")
