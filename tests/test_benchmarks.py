"""The roofline of the speed page, public repositories, and what a card shows in minutes."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from capslib.errors import UserError
from capslib.papers import STEMS
from capslib.registry import ROUTINGS
from capslib.routing import make_routing

cases = pytest.importorskip(
    "benchmarks.cases", reason="benchmarks/ stands beside the package in a checkout only"
)
from benchmarks import __main__ as measuring  # noqa: E402
from benchmarks import card, public  # noqa: E402
from benchmarks.__main__ import add_limits  # noqa: E402

RATES = {"vector_flops_per_second": 100.0, "bytes_per_second": 10.0}
ROOFLINE = {"flops_per_second": 100.0, "bytes_per_second": 10.0}


def counted(function) -> int:
    with cases.Arithmetic() as arithmetic:
        function()
    return arithmetic.flops


def test_arithmetic_counts_elements_and_moving_data_is_free():
    a, b = torch.rand(3, 4), torch.rand(3, 4)
    assert counted(lambda: a * b + 1) == 24
    assert counted(lambda: (a[:, None] * b).sum(dim=0)) == 36 + 36
    assert counted(lambda: a.softmax(dim=-1)) == 5 * 12
    assert counted(lambda: a.log()) == 12
    assert counted(lambda: a.t().reshape(12).contiguous()) == 0


OPTIONS = {
    "em": {"beta_std": 0.0},
    # the constants of the paper's text in the place of those of its code
    "em_vector": {"beta_std": 0.0, "spread": "deviation", "variance_offset": 0.0},
}
"""Under these options a routing is the one that its textbook form computes."""


@pytest.mark.parametrize("routing", cases.TEXTBOOK)
def test_a_textbook_form_computes_what_the_definition_does(routing):
    votes, activation = torch.randn(2, 6, 3, 4).double(), torch.rand(2, 6).double()
    betas = torch.zeros(2, 3).double()
    module = make_routing(routing, 3, 4, **OPTIONS.get(routing, {})).double()
    expected = module(votes, activation)
    result = cases.TEXTBOOK[routing](votes, activation, betas)
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_registered_routing_is_measured(routing):
    assert routing in {layer.routing for layer in cases.LAYERS}


@pytest.mark.parametrize("routing", ["dynamic", "dynamic_over_children", "em", "em_vector"])
def test_the_operations_of_a_layer_grow_with_its_votes(routing):
    layer = cases.RoutingCase("x", routing, (6, 24, 5, 16))
    assert counted(layer.prepare("textbook", "cpu")) == pytest.approx(layer.flops, rel=0.01)
    # three iterations of a few operations per vote, forward and backward
    assert 15 < layer.flops / torch.Size(layer.shape).numel() < 150


def test_the_larger_of_arithmetic_and_memory_is_the_limit():
    assert cases.limit(200, 10, **ROOFLINE) == (2.0, "arithmetic")
    assert cases.limit(200, 30, **ROOFLINE) == (3.0, "memory")


def test_each_layer_is_compared_with_its_limit_and_a_step_with_none():
    layer = cases.RoutingCase("x", "dynamic", (2, 24, 5, 16))
    seconds, bound = cases.limit(layer.flops, layer.bytes, **ROOFLINE)
    rows = [{"kind": "layer", "name": "x", "milliseconds": 3e3 * seconds}]
    rows += [{"kind": "step", "name": "y", "milliseconds": 1}]
    add_limits(rows, {"x": layer}, RATES)
    assert (rows[0]["times_limit"], rows[0]["bound_by"]) == (3.0, bound)
    assert "times_limit" not in rows[1]


def test_a_case_is_called_by_its_name_or_by_the_registrys_name_of_its_routing():
    layer = cases.RoutingCase("EM of vectors", "em_vector", (2, 24, 5, 16))
    assert measuring.is_called(layer, "of vec")
    assert measuring.is_called(layer, "em_vector")
    assert not measuring.is_called(layer, "similarity")
    assert not measuring.is_called(cases.STEPS[0], "em_vector"), "a step has no routing"


def test_a_device_that_cannot_be_timed_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(measuring.sys, "argv", ["benchmarks", "--device", "mps"])
    with pytest.raises(SystemExit):
        measuring.main()
    assert "'mps' cannot be timed: choose cpu or cuda" in capsys.readouterr().err


def test_memory_that_cannot_be_measured_is_left_empty(monkeypatch, tmp_path, capsys):
    cost = {"seconds": 0.5, "bytes": None}
    monkeypatch.setattr(measuring, "_in_a_process", lambda *_: cost)
    layer = cases.RoutingCase("x", "dynamic", (2, 24, 5, 16))
    rows = measuring._measure_paths("layer", 0, layer, ["fast"], None)
    assert "None" not in capsys.readouterr().out
    path = measuring.write_table(rows, measuring.COLUMNS, "a machine", tmp_path)
    assert "layer,x,fast,500.0,,1.0," in path.read_text(encoding="utf-8")
    monkeypatch.setattr(measuring.sys, "platform", "darwin")
    assert measuring._peak(lambda: None, "cpu") is None


# ------------------------------------------------------------------------ public repositories

LAYER = replace(cases.SHARED[0], pose=(2, 6, 8), weight=(6, 3, 16, 8))
CLONED = """
import torch


class Mean:
    '''One iteration: the mean of all votes, times a factor.'''

    def __init__(self, weight, factor):
        self.weight, self.factor = weight, factor

    def __call__(self, pose):
        s = torch.einsum("ijek,nik->nje", self.weight, pose) / self.weight.shape[1]
        length = s.norm(dim=-1, keepdim=True)
        return self.factor * s * length / (1 + length**2)
"""


def mean_layer(module, case, device):
    _, _, weight = case.start(device)
    layer = module.Mean(weight, 1.0)
    return lambda pose, activation: layer(pose)


def twice_the_mean(module, case, device):
    _, _, weight = case.start(device)
    layer = module.Mean(weight, 2.0)
    return lambda pose, activation: layer(pose)


def mean_without_a_gradient(module, case, device):
    """The right poses, but the root of zero makes their gradient NaN."""
    layer = mean_layer(module, case, device)
    return lambda pose, activation: layer(pose, activation) + (0 * pose).sqrt().sum()


MEAN = public.Implementation(
    repository="somebody/means",
    commit="a" * 40,
    file="code/layers.py",
    case=LAYER.name,
    adapter=mean_layer,
    agrees="gradient",
)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with a clone that agrees with capslib's layer after one iteration."""
    monkeypatch.setattr(public, "IMPLEMENTATIONS", (MEAN,))
    file = tmp_path / "means" / "code" / "layers.py"
    file.parent.mkdir(parents=True)
    file.write_text(CLONED, encoding="utf-8")
    return tmp_path


def test_a_clone_becomes_a_path_of_its_case_and_is_compared_with_capslib(folder):
    (cloned,) = public.clones(folder)
    assert measuring.paths_of("shared", LAYER, [cloned]) == [*LAYER.paths, "somebody/means"]
    assert measuring.paths_of("layer", LAYER, [cloned]) == list(LAYER.paths)
    layer = replace(LAYER, options={"iterations": 1})
    agrees, difference = public.agreement("somebody/means", layer, folder, "cpu")
    assert agrees == "gradient"
    assert difference < 1e-5
    poses, gradient = public.prepare("somebody/means", layer, folder, "cpu")()
    assert (poses.shape, gradient.shape) == ((2, 3, 16), (2, 6, 8))


def test_the_cost_of_a_clone_says_how_far_it_is_from_capslib(folder, monkeypatch):
    layer = replace(LAYER, options={"iterations": 1})
    monkeypatch.setitem(cases.CASES, "shared", (layer,))
    monkeypatch.setattr(measuring, "SECONDS", 0)
    cost = measuring.measure("shared", 0, "somebody/means", "cpu", public=folder)
    assert cost["seconds"] > 0
    assert cost["difference"] < 1e-5
    assert cost["agrees"] == "gradient"
    assert "difference" not in measuring.measure("shared", 0, "fast", "cpu")


@pytest.mark.parametrize("adapter", [twice_the_mean, mean_without_a_gradient])
def test_a_clone_that_computes_something_else_is_refused(folder, monkeypatch, adapter):
    monkeypatch.setattr(public, "IMPLEMENTATIONS", (replace(MEAN, adapter=adapter),))
    layer = replace(LAYER, options={"iterations": 1})
    with pytest.raises(UserError, match=f"Check out {MEAN.commit}"):
        public.agreement("somebody/means", layer, folder, "cpu")


def test_an_algorithm_of_its_own_is_not_compared(folder, monkeypatch):
    monkeypatch.setattr(public, "IMPLEMENTATIONS", (replace(MEAN, agrees=""),))
    assert public.agreement("somebody/means", LAYER, folder, "cpu") == ("", None)


def test_a_folder_without_clones_or_a_clone_without_its_file_is_named(folder, tmp_path):
    with pytest.raises(UserError, match="is no folder"):
        public.clones(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds a clone of none of somebody/means"):
        public.clones(tmp_path / "empty")
    (folder / "means" / "code" / "layers.py").unlink()
    with pytest.raises(UserError, match=r"has no code/layers\.py.*Clone https://github"):
        public.clones(folder)


def test_every_repository_is_measured_in_a_case_and_linked_on_the_page_as_it_was_tried():
    page = Path(public.__file__).parents[1] / "book" / "speed.md"
    text = page.read_text(encoding="utf-8")
    shared = {case.name for case in cases.SHARED}
    for implementation in public.IMPLEMENTATIONS:
        assert implementation.case in shared
        assert f"({implementation.url})" in text


def test_a_step_of_a_network_from_elsewhere_trains_it():
    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.classes = torch.nn.Linear(9, 2)

        def forward(self, images):
            return SimpleNamespace(activation=self.classes(images.flatten(1)))

    network = Network()
    before = network.classes.weight.clone()
    case = cases.StepCase("x", Network, (1, 3, 3), batch=4, classes=2)
    case.training_step(network, "cpu")()
    assert not torch.equal(network.classes.weight, before)


def test_every_main_network_of_the_card_is_an_arm_at_paper_scale():
    sizes = {name: card.recipe_of(name).batch_size for name in card.MAIN_NETWORKS}
    assert min(sizes.values()) > 0
    assert {network.paper for network in card.MAIN_NETWORKS.values()} <= set(STEMS)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_routing_on_this_machine_agrees_with_its_definition(routing):
    assert card.disagreement(routing, "fast", "cpu") < 1e-4
    assert card.disagreement(routing, "eager", "cpu") < 1e-4


def test_a_gradient_that_is_no_number_is_no_agreement(monkeypatch):
    tensors = [torch.ones(3), torch.ones(3), torch.tensor([1.0, math.nan])]
    monkeypatch.setattr(card, "routed", lambda *_: tensors)
    assert math.isnan(card.disagreement("dynamic", "fast", "cpu"))


@pytest.mark.parametrize("options", [[], ["--together", "1"], ["--only", "em_routing"]])
def test_only_a_whole_run_of_the_card_writes_its_table(monkeypatch, options):
    folders = []
    monkeypatch.setattr(card, "measurements", lambda *_: iter(()))
    monkeypatch.setattr(card, "write_table", lambda *arguments: folders.append(arguments[-1]))
    monkeypatch.setattr(card.sys, "argv", ["benchmarks.card", "--device", "cpu", *options])
    card.main()
    assert folders == ([] if options else [card.CARDS])


def test_the_clock_counts_only_what_follows_the_start(monkeypatch, capsys):
    times = iter([0.0, *range(100, 106)])
    monkeypatch.setattr(card.time, "perf_counter", lambda: next(times))
    monkeypatch.setattr(card.sys, "stdin", io.StringIO("go\n"))
    clock = card.Clock()
    for epoch in range(1, 8):
        clock(epoch * card.EPOCH_STEPS, 0, "")
    assert capsys.readouterr().out == "warm\n"
    assert clock.seconds_of_a_step() == 1 / card.EPOCH_STEPS
