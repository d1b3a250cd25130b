"""The cost model: its FLOPs are those that torch counts, and its networks are those of the papers."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from capslib import papers
from capslib.costs import DEVICES, FLOAT, Work, capsules, on, si, steps
from capslib.layers import DenseCapsules
from capslib.networks.em_routing import BaselineCNN, MatrixCapsNet
from capslib.networks.negation_limitation import DeepCapsNet
from capslib.papers.em_routing.trained import SMALL, TrainingConfig
from capslib.papers.em_routing.trained import work as training_work
from capslib.papers.negation_limitation.depth import DepthConfig
from capslib.papers.negation_limitation.depth import work as depth_work
from capslib.routing.fast import BLOCK_BYTES

chapters = pytest.importorskip("benchmarks.chapters", reason="benchmarks/ stands beside the package in a checkout only")


def counted(step) -> int:
    """What torch's counter makes of a function."""
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def network(config: DepthConfig, side: int) -> DeepCapsNet:
    return DeepCapsNet(
        (1, side, side), depth=config.depth, filters=config.filters, kernel=config.kernel, primary_types=config.primary_types,
        primary_kernel=config.kernel, hidden=(16, config.hidden_dim), decoder=config.decoder, routing=config.routing,
        iterations=config.iterations,
    )  # fmt: skip


REDUCED = dict(filters=8, kernel=3, primary_types=2, decoder=(32, 64), batch_size=5, bias=False)


@pytest.mark.parametrize(
    ("routing", "depth", "iterations"), [("dynamic", 2, 1), ("dynamic", 4, 3), ("em_vector", 3, 2), ("em_vector", 2, 5)]
)
def test_the_flops_of_a_step_are_those_that_torch_counts(routing, depth, iterations):
    config = DepthConfig(data="digits", routing=routing, depth=depth, iterations=iterations, **REDUCED)
    model, images = network(config, side=8), torch.randn(5, 1, 8, 8)

    def step() -> None:
        output = model(images)
        (output.activation.sum() + output.reconstruction.sum()).backward()

    assert depth_work(config).flops == pytest.approx(counted(step), rel=0.01)


@pytest.mark.parametrize("change", [{}, {"iterations": 1}, {"pose": "vector"}, {"model": "cnn"}, {"data": "digits"}], ids=str)
def test_the_flops_of_matrix_capsules_and_of_their_rival_are_those_that_torch_counts(change):
    config = TrainingConfig(**{**dict(data="toys", sizes=(8, 4, 5, 6), cnn=(8, 6, 7), crop=20, batch_size=5), **change})
    channels, classes = (1, 10) if config.data == "digits" else (2, 5)
    shape = (channels, 20, 20)
    model = (
        BaselineCNN(shape, classes, config.cnn)
        if config.model == "cnn"
        else MatrixCapsNet(shape, classes, config.sizes, iterations=config.iterations, pose=config.pose)
    )
    images, work = torch.randn(5, *shape), training_work(config)
    by_elements = (
        config.model == "capsules" and config.pose == "matrix"
    )  # so they are formed on a CPU, and torch does not count it
    uncounted = sum(of.flops for of in [of for of in work.layers if of.name == "votes"][:2]) if by_elements else 0
    assert work.flops - uncounted == pytest.approx(counted(lambda: model(images).sum().backward()), rel=0.01)


@pytest.mark.parametrize("routing", ["dynamic", "em", "em_vector"])
def test_votes_and_routing_count_what_torch_counts_by_themselves(routing):
    layer, pose = DenseCapsules(40, 6, 8, 12, routing=routing), torch.randn(7, 40, 8, requires_grad=True)
    found = counted(lambda: layer(pose, torch.rand(7, 40)).pose.sum().backward())
    assert sum(of.flops for of in capsules(routing, 7, 40, 6, 12, 8)) == pytest.approx(found, rel=0.01)


def test_parameters_are_those_of_the_network_but_for_the_biases():
    config = DepthConfig(data="mnist", routing="dynamic", depth=3, bias=False)
    assert depth_work(config).parameters == sum(p.numel() for p in network(config, 28).parameters() if p.ndim > 1)


@pytest.mark.parametrize(
    ("layers", "parameters"),
    [
        (training_work(TrainingConfig()).layers, 316_650),
        (training_work(TrainingConfig(sizes=SMALL)).layers, 68_618),
        (training_work(TrainingConfig(model="cnn")).layers, 4_253_349),
        (chapters.learned_network(1, 32, 5), 86_344),
        (chapters.connectionist(1, 32, 5), 86_344 + 39_818),
        (chapters.encoder(40, 16), 17.06e6),
        (chapters.encoder(28, 16), 9.15e6),
        (chapters.anomaly_network(1, 1, (28, 28)), 23.8e6),
    ],
)
def test_the_networks_have_as_many_parameters_as_the_papers_say(layers, parameters):
    assert Work(1, layers).parameters == pytest.approx(parameters, rel=0.01)  # the papers count biases, too


def test_the_votes_that_are_formed_at_once_are_those_of_the_fast_path():
    assert {kind: device.block for kind, device in DEVICES.items()} == BLOCK_BYTES


def test_more_work_takes_longer_and_more_memory():
    device = DEVICES["cuda"]
    works = [Work(100, capsules("em", batch, 288, 32, 16, 4, iterations=t)) for batch, t in ((64, 2), (64, 3), (128, 3))]
    for less, more in itertools.pairwise(works):
        assert less.seconds(device) < more.seconds(device)
        assert less.memory(device) < more.memory(device)


def test_a_routing_is_bound_by_memory_and_a_large_convolution_by_arithmetic():
    device, work = DEVICES["cuda"], Work(1, chapters.encoder(40, 16))
    by_name = {(of.name, of.parameters): of.bytes / device.bandwidth / (of.flops / device.flops) for of in work.layers}
    assert by_name["dynamic", 0] > 10
    assert by_name["convolution", 9 * 9 * 256 * 256] < 1


def test_steps_count_a_test_pass_as_a_third():
    assert steps(2, 10, 95, 30) == 2 * (10 + 1)


@pytest.mark.parametrize(("number", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (2.346e9, "2.35 GB"), (7e20, "700 EB")])
def test_numbers_have_a_prefix(number, text):
    assert si(number, "B") == text


@pytest.mark.parametrize("scale", ["smoke", "cpu", "paper"])
def test_every_trial_of_a_built_chapter_has_a_cost(scale):
    for stem in papers.STEMS:
        for experiment in papers.experiments(stem).values():
            for trial in experiment.trials(scale):
                work = papers.work(trial)
                assert work.steps > 0
                assert work.flops > 0


def test_a_claim_needs_the_trials_that_its_query_selects():
    needs = papers.needs("negation_limitation", "paper")
    assert set(needs) == set(papers.queries("negation_limitation"))
    assert all(needs.values())
    assert {(t.experiment, t.config["routing"], t.config["bias"]) for t in needs["NEG-T1-rba-bias"]} == {
        ("sign", "dynamic", True)
    }
    both = needs["NEG-W-5-rba-mnist"]
    assert len(both) == len({t.key for t in both}) == 4 * 2 * 3  # depths, arms, seeds


def test_the_tables_of_all_papers_add_up():
    runs = chapters.runs()
    assert {run.stem for run in runs} == set(papers.STEMS)
    rows = list(chapters.rows(runs))
    assert all(len(row) == len(chapters.COLUMNS) for row in rows)
    assert float(rows[-1][-1]) == pytest.approx(sum(run.minutes for run in runs), abs=1)
    assert rows[-1][2] == str(sum(int(row[2]) for row in rows if row[1] != "together"))
    for stem in filter(papers.experiments, papers.STEMS):
        built = [t for e in papers.experiments(stem).values() for t in e.trials("paper")]
        lines = [run for run in runs if run.stem == stem]
        assert sum(run.trials for run in lines) == len(built)
        assert len({run.name for run in lines}) == len(lines)
    as_it_is, *others = ([float(cell) for cell in row[1:]] for row in chapters.hours(runs))
    assert all(new <= old for other in others for new, old in zip(other, as_it_is, strict=True))
    *of_papers, _ = as_it_is
    longest = dict(zip(papers.STEMS, of_papers, strict=True))
    assert max(longest, key=longest.get) == "em_routing", "book/costs.md says so"
    assert longest["em_routing"] < 24, "book/costs.md says so"


def test_costs_on_a_device_are_told_together():
    work = Work(10, (*capsules("dynamic", 8, 100, 10, 16, 8),))
    device = DEVICES["cuda"]
    assert on(device, [work, work]) == (
        f"{2 * work.seconds(device) / 60:.1f} min and at most {si(work.memory(device), 'B')} on {device.name}"
    )
    assert work.layers[0].votes == FLOAT * 8 * 100 * 10 * 16
