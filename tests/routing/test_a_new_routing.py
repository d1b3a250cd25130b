"""A new routing is one class and one line: two that exist in this file only run in every layer and network.

Soft k-means shares each child out among its parents, those at other positions included. In attention each parent shares itself
out among its children, so its parents do not compete.
"""

from __future__ import annotations

import importlib
import math

import pytest
import test_competition
import test_fast
import torch
from conformance import BIASES, CHECKS

from capslib.lab import planning, plots
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
    """Parents are weighted means of their votes; a child belongs to the parents that are near its votes."""
    coupling = uniform(votes[..., 0], competition)
    for iteration in range(iterations):
        r = coupling * activation[..., None]  # [..., I, J]
        mass = r.sum(dim=-2)  # [..., J]
        pose = (r[..., None] * votes).sum(dim=-3) / mass.clamp_min(MASS)[
            ..., None
        ]  # [..., J, D]
        if bias is not None:
            pose = pose + bias
        if iteration < iterations - 1:
            distance = (votes - pose[..., None, :, :]).square().sum(dim=-1)
            coupling = softmax(-distance, competition)
    return RoutingResult(
        pose, mass / activation.sum(dim=-1, keepdim=True).clamp_min(MASS), coupling
    )


class SoftKMeans(Routing):
    function = soft_k_means

    def forward(self, votes, activation, competition=None, *, iterations=None):
        iterations = self.iterations if iterations is None else iterations
        given = dict(
            iterations=iterations, bias=self.bias, competition=competition, path=self.path
        )
        return soft_k_means(votes, activation, **given)

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
            p = torch.stack(
                [
                    torch.stack(
                        [torch.exp(-((votes[i, j] - pose[j]) ** 2).sum()) for j in range(J)]
                    )
                    for i in range(I)
                ]
            )
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

    def forward(self, votes, activation, *, iterations=None):
        iterations = self.iterations if iterations is None else iterations
        return attention(
            votes, activation, iterations=iterations, bias=self.bias, path=self.path
        )

    def reference(self, votes, activation):
        I, J, _ = votes.shape
        c = torch.full((I, J), 1 / I, dtype=votes.dtype)
        for _ in range(self.iterations):
            used, columns, pose = c, [], []
            for j in range(J):
                pose.append(sum(c[i, j] * activation[i] * votes[i, j] for i in range(I)))
                pose[j] = pose[j] if self.bias is None else pose[j] + self.bias[j]
                columns.append(
                    torch.stack([votes[i, j] @ pose[j] for i in range(I)]).softmax(dim=0)
                )
            c = torch.stack(columns, dim=1)
        return RoutingResult(torch.stack(pose), (used * activation[:, None]).sum(dim=0), used)


class Windows(SoftKMeans):
    """Its ``forward`` leaves ``competition`` out."""

    def forward(self, votes, activation, *, iterations=None):
        return super().forward(votes, activation, iterations=iterations)


NEW = {"soft_k_means": SoftKMeans, "attention": Attention}


@pytest.fixture(params=NEW)
def name(request, monkeypatch):
    monkeypatch.setitem(ROUTINGS, request.param, NEW[request.param])
    return request.param


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("bias", BIASES)
def test_it_conforms(name, bias, check):
    CHECKS[check](name, BIASES[bias])


def test_a_forward_that_forgets_the_path_is_found_out(monkeypatch):
    class Forgets(SoftKMeans):
        def forward(self, votes, activation, competition=None, *, iterations=None):
            return soft_k_means(votes, activation, bias=self.bias, competition=competition)

    monkeypatch.setitem(ROUTINGS, "mine", Forgets)
    with pytest.raises(AssertionError, match=r"path=self\.path"):
        CHECKS["the_path_that_is_chosen_is_taken"]("mine", None)


@pytest.mark.parametrize("bias", [None, 0.1])
@pytest.mark.parametrize("kind", ["random", "tiny", "huge", "zero", "inactive"])
def test_it_is_as_good_in_float32(name, bias, kind):
    test_fast.test_float32_is_as_good_as_float64_within_its_digits(name, bias, kind)


def test_without_a_core_there_is_nothing_to_compile(name, monkeypatch):
    test_fast.test_what_is_compiled_is_compiled_once(name, monkeypatch)


def test_its_couplings_sum_to_one_in_a_convolution(name):
    test_competition.test_a_child_shares_itself_out_among_all_parents_that_see_it(
        (6, 3, 1), name
    )


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


ALWAYS = torch.Generator().manual_seed(
    0
)  # a sign network without a bias has inputs of which no gradient comes back
GRID = torch.rand(2, 5, 5, 3, 4, 4, generator=ALWAYS), torch.rand(2, 5, 5, 3, generator=ALWAYS)
USES = {
    "DenseCapsules": (
        lambda **o: DenseCapsules(6, 3, 4, 5, **o),
        (torch.randn(2, 6, 4, generator=ALWAYS), torch.rand(2, 6, generator=ALWAYS)),
    ),
    "ConvCapsules": (lambda **o: ConvCapsules(3, 2, **o), GRID),
    "ConvCapsules, a window at a time": (
        lambda **o: ConvCapsules(3, 2, normalise="types-per-position", **o),
        GRID,
    ),
    "ClassCapsules": (lambda **o: ClassCapsules(3, 4, **o), GRID),
    "MatrixCapsNet": (
        lambda **o: MatrixCapsNet((1, 17, 17), 5, (4, 2, 2, 2), **o),
        (torch.randn(2, 1, 17, 17, generator=ALWAYS),),
    ),
    "DeepCapsNet": (
        lambda **o: DeepCapsNet(
            (1, 8, 8),
            depth=3,
            filters=4,
            kernel=3,
            primary_types=2,
            primary_kernel=3,
            hidden=(4, 6),
            decoder=(4,),
            **o,
        ),
        (torch.randn(2, 1, 8, 8, generator=ALWAYS),),
    ),
    "SignNetwork": (lambda **o: SignNetwork(5, **o), (torch.randn(4, generator=ALWAYS),)),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("bias", [None, 0.1])
def test_it_runs_forward_and_backward_in_every_layer_and_network_on_every_path(name, use, bias):
    build, inputs = USES[use]
    torch.manual_seed(0)
    network = build(routing=name, iterations=2, bias=bias)
    eager = tried(network, *inputs, path="eager")
    for path in ("fast", "compiled"):
        found = tried(network, *inputs, path=path)
        assert found.keys() == eager.keys()
        for key, value in found.items():
            torch.testing.assert_close(
                value, eager[key], msg=lambda text, key=key, path=path: f"{path}, {key}: {text}"
            )


@pytest.mark.parametrize(
    ("stem", "experiment"),
    [
        ("em_routing", "test_error"),
        ("em_routing", "viewpoint"),
        ("negation_limitation", "depth"),
    ],
)
def test_it_runs_in_an_experiment(name, stem, experiment):
    """As ``capslib run STEM --set routing=NAME`` does; and what a step costs is counted without a further line."""
    found = experiments(stem)[experiment]
    tiny = dict(images=30, epochs=1, batch_size=15, routing=name)
    tiny |= dict(sizes=(4, 2, 2, 2), multi_crop=0) if experiment == "test_error" else {}
    where = (
        {"network": "matrix_capsnet", "data": "toys"}
        if stem == "em_routing"
        else {"routing": "dynamic"}
    )
    trial = found.trials("smoke", where=where, change=tiny)[0]
    outcome = found.run(arm(trial), Context(seed=0))
    assert outcome.routing_path == "fast"
    assert all(math.isfinite(metric.value) for metric in outcome.metrics.values())
    steps, flops = planning.work(trial)
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


@pytest.mark.parametrize(
    ("routing", "why"),
    [(Windows, "takes no competition"), (Attention, "normalises over the children")],
)
@pytest.mark.parametrize("normalise", ["types+positions", "positions-per-type"])
def test_where_parents_at_other_positions_cannot_compete_asking_for_it_is_an_error(
    monkeypatch, routing, why, normalise
):
    monkeypatch.setitem(ROUTINGS, "mine", routing)
    test_competition.test_a_child_shares_itself_out_among_all_parents_that_see_it(
        (6, 3, 1), "mine"
    )
    for build in (
        lambda **o: ConvCapsules(3, 2, **o),
        lambda **o: MatrixCapsNet((1, 17, 17), 5, (4, 2, 2, 2), **o),
    ):
        with pytest.raises(
            ValueError,
            match=f"'mine' {why}, .* leave normalise='{normalise.replace('+', '.')}' out",
        ):
            build(routing="mine", normalise=normalise)


def test_a_network_is_found_by_name_as_well(name):
    assert NETWORKS["deep_capsnet"] is DeepCapsNet
    assert isinstance(NETWORKS["sign"](5, routing=name).layers[0].routing, NEW[name])
