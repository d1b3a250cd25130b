"""A new routing is one class and one line: two that exist in this file only run in every layer and network.

Soft k-means shares each child out among its parents, and knows nothing of rivals at other positions. In attention each parent
shares itself out among its children.
"""

from __future__ import annotations

import math

import pytest
import torch
from conformance import BIASES, CHECKS

from capslib.lab import planning, plots
from capslib.layers import ClassCapsules, ConvCapsules, DenseCapsules
from capslib.networks.em_routing import MatrixCapsNet
from capslib.networks.negation_limitation import DeepCapsNet, SignNetwork
from capslib.papers import config, experiments
from capslib.registry import NETWORKS
from capslib.routing import ROUTINGS, Routing, RoutingResult, routing_function, use_path
from capslib.training import Context

MASS = 1e-8


@routing_function
def soft_k_means(votes, activation, *, iterations=3, bias=None):
    """Parents are weighted means of their votes; a child belongs to the parents that are near its votes."""
    coupling = torch.full_like(votes[..., 0], 1 / votes.shape[-2])
    for iteration in range(iterations):
        r = coupling * activation[..., None]  # [..., I, J]
        mass = r.sum(dim=-2)  # [..., J]
        pose = (r[..., None] * votes).sum(dim=-3) / mass.clamp_min(MASS)[..., None]  # [..., J, D]
        if bias is not None:
            pose = pose + bias
        if iteration < iterations - 1:
            distance = (votes - pose[..., None, :, :]).square().sum(dim=-1)
            coupling = (-distance).softmax(dim=-1)
    return RoutingResult(pose, mass / activation.sum(dim=-1, keepdim=True).clamp_min(MASS), coupling)


class SoftKMeans(Routing):
    function = soft_k_means

    def forward(self, votes, activation, *, iterations=None):
        iterations = self.iterations if iterations is None else iterations
        return soft_k_means(votes, activation, iterations=iterations, bias=self.bias, path=self.path)

    def reference(self, votes, activation):
        I, J, _ = votes.shape
        c = torch.full((I, J), 1 / J, dtype=votes.dtype)
        for _ in range(self.iterations):
            used, pose, a = c, [], []
            for j in range(J):
                m = sum(c[i, j] * activation[i] for i in range(I))
                pose.append(sum(c[i, j] * activation[i] * votes[i, j] for i in range(I)) / m)
                pose[j] = pose[j] if self.bias is None else pose[j] + self.bias[j]
                a.append(m / activation.sum())
            p = torch.stack([torch.stack([torch.exp(-((votes[i, j] - pose[j]) ** 2).sum()) for j in range(J)]) for i in range(I)])
            c = p / p.sum(dim=1, keepdim=True)
        return RoutingResult(torch.stack(pose), torch.stack(a), used)


@routing_function
def attention(votes, activation, *, iterations=3, bias=None):
    """Parents are means of their votes, and attend to the votes that agree with them."""
    coupling = torch.full_like(votes[..., 0], 1 / votes.shape[-3])
    for iteration in range(iterations):
        pose = (coupling[..., None] * activation[..., None, None] * votes).sum(dim=-3)
        pose = pose if bias is None else pose + bias
        if iteration < iterations - 1:
            coupling = (votes * pose[..., None, :, :]).sum(dim=-1).softmax(dim=-2)
    return RoutingResult(pose, (coupling * activation[..., None]).sum(dim=-2), coupling)


class Attention(Routing):
    function = attention
    couplings_sum_over = "children"

    def forward(self, votes, activation, competition=None, *, iterations=None):
        iterations = self.iterations if iterations is None else iterations
        return attention(votes, activation, iterations=iterations, bias=self.bias, path=self.path)

    def reference(self, votes, activation):
        I, J, _ = votes.shape
        c = torch.full((I, J), 1 / I, dtype=votes.dtype)
        for _ in range(self.iterations):
            used, columns, pose = c, [], []
            for j in range(J):
                pose.append(sum(c[i, j] * activation[i] * votes[i, j] for i in range(I)))
                pose[j] = pose[j] if self.bias is None else pose[j] + self.bias[j]
                columns.append(torch.stack([votes[i, j] @ pose[j] for i in range(I)]).softmax(dim=0))
            c = torch.stack(columns, dim=1)
        return RoutingResult(torch.stack(pose), (used * activation[:, None]).sum(dim=0), used)


NEW = {"soft_k_means": SoftKMeans, "attention": Attention}


@pytest.fixture(params=NEW)
def name(request, monkeypatch):
    monkeypatch.setitem(ROUTINGS, request.param, NEW[request.param])
    return request.param


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("bias", BIASES)
def test_it_conforms(name, bias, check):
    CHECKS[check](name, BIASES[bias])


def tried(network, *inputs, path: str):
    """The output, and the gradients of all parameters that have one."""
    network.zero_grad()
    assert use_path(network, path) == ("eager" if path == "eager" else "fast")
    output = network(*inputs)
    output = output.activation if hasattr(output, "activation") else output
    (output * torch.linspace(0, 1, output.numel()).view_as(output)).sum().backward()
    gradients = {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}
    assert any("weight" in n and g.abs().max() > 0 for n, g in gradients.items())
    return {"output": output, **gradients}


GRID = torch.rand(2, 5, 5, 3, 4, 4), torch.rand(2, 5, 5, 3)
USES = {
    "DenseCapsules": (lambda **o: DenseCapsules(6, 3, 4, 5, **o), (torch.randn(2, 6, 4), torch.rand(2, 6))),
    "ConvCapsules": (lambda **o: ConvCapsules(3, 2, **o), GRID),
    "ConvCapsules, a window at a time": (lambda **o: ConvCapsules(3, 2, normalise="types-per-position", **o), GRID),
    "ClassCapsules": (lambda **o: ClassCapsules(3, 4, **o), GRID),
    "MatrixCapsNet": (lambda **o: MatrixCapsNet((1, 17, 17), 5, (4, 2, 2, 2), **o), (torch.randn(2, 1, 17, 17),)),
    "DeepCapsNet": (
        lambda **o: DeepCapsNet(
            (1, 8, 8), depth=3, filters=4, kernel=3, primary_types=2, primary_kernel=3, hidden=(4, 6), decoder=(), **o
        ),
        (torch.randn(2, 1, 8, 8),),
    ),
    "SignNetwork": (lambda **o: SignNetwork(5, **o), (torch.randn(4),)),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("bias", [None, 0.1])
def test_it_runs_forward_and_backward_in_every_layer_and_network_on_every_path(name, use, bias):
    build, inputs = USES[use]
    torch.manual_seed(0)
    network = build(routing=name, iterations=2, bias=bias)
    eager = tried(network, *inputs, path="eager")
    for path in ("fast", "compiled", "triton"):
        found = tried(network, *inputs, path=path)
        assert found.keys() == eager.keys()
        for key, value in found.items():
            torch.testing.assert_close(value, eager[key], msg=lambda text, key=key, path=path: f"{path}, {key}: {text}")


@pytest.mark.parametrize(
    ("stem", "experiment"), [("em_routing", "test_error"), ("em_routing", "viewpoint"), ("negation_limitation", "depth")]
)
def test_it_runs_in_an_experiment(name, stem, experiment):
    """As ``capslib run STEM --set routing=NAME`` does; and what a step costs is counted without a further line."""
    found = experiments(stem)[experiment]
    tiny = dict(images=30, epochs=1, batch_size=15, routing=name)
    tiny |= dict(sizes=(4, 2, 2, 2), multi_crop=0) if experiment == "test_error" else {}
    where = {"network": "matrix_capsnet", "data": "toys"} if stem == "em_routing" else {"routing": "dynamic"}
    trial = found.trials("smoke", where=where, change=tiny)[0]
    outcome = found.run(config(trial), Context(seed=0))
    assert outcome.routing_path == "fast"
    assert all(math.isfinite(metric.value) for metric in outcome.metrics.values())
    steps, flops = planning.work(trial)
    assert steps > 0 < flops


def test_it_runs_in_a_benchmark_and_has_a_colour_and_a_name_in_figures(name):
    cases = pytest.importorskip("benchmarks.cases", reason="benchmarks/ stands beside the package in a checkout only")
    case = cases.Layer("a new one", name, (2, 6, 3, 4), paths=("eager", "fast"))
    for path in case.paths:
        case.prepare(path, "cpu")()
    others = [plots.routing_color(known) for known in ("dynamic", "em")]
    assert plots.routing_color(name) not in others
    assert plots.routing_name(name)
    figure, axes = plots.panels(1)
    axes.plot([1, 2], color=plots.routing_color(name), label=plots.routing_name(name))
    figure.canvas.draw()


def test_a_start_at_half_leaves_it_alone(name):
    network = MatrixCapsNet((1, 17, 17), 5, (4, 2, 2, 2), routing=name)
    before = {k: v.clone() for k, v in network.state_dict().items()}
    network.start_at_half(torch.randn(4, 1, 17, 17))
    assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())


@pytest.mark.parametrize("normalise", ["types+positions", "positions-per-type"])
def test_parents_at_other_positions_cannot_compete_and_asking_for_it_is_an_error(name, normalise):
    why = {"soft_k_means": "takes no competition", "attention": "normalises over the children"}[name]
    for build in (lambda **o: ConvCapsules(3, 2, **o), lambda **o: MatrixCapsNet((1, 17, 17), 5, (4, 2, 2, 2), **o)):
        with pytest.raises(ValueError, match=f"'{name}' {why}, .* leave normalise='{normalise.replace('+', '.')}' out"):
            build(routing=name, normalise=normalise)


def test_a_network_is_found_by_name_as_well(name):
    assert NETWORKS["deep_capsnet"] is DeepCapsNet
    assert isinstance(NETWORKS["sign"](5, routing=name).layers[0].routing, NEW[name])
