"""The study of routings: fair arms, honest splits, and measures that mean what they say."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from capslib import papers
from capslib.data import load
from capslib.errors import Interrupted
from capslib.lab.runs import run_trial
from capslib.lab.store import Store
from capslib.papers.common import number_of_parameters
from capslib.papers.experiment import Metric
from capslib.papers.which_routing import comparison, transformed, viewpoints
from capslib.papers.which_routing.recipe import ComparisonRecipe
from capslib.recipes import new_network
from capslib.registry import ROUTINGS
from capslib.routing import DynamicRouting
from capslib.training import Context

EXPERIMENT = comparison.COMPARISON
EACH_DATA = pytest.mark.parametrize("data", comparison.DATA)


def network_of(name: str, data: str) -> torch.nn.Module:
    recipe = comparison.recipe_of(name, data, 0.001)
    return new_network(recipe, recipe.input_shape, seed=0)


# ------------------------------------------------------------------------------------ arms


def test_every_routing_and_both_yardsticks_have_an_arm_for_each_data_set_and_rate():
    names = [*ROUTINGS, "uniform", "cnn"]
    expected = itertools.product(comparison.DATA, names, ("0.001", "0.003"))
    assert set(EXPERIMENT.at("cpu")) == set(map("/".join, expected))
    assert EXPERIMENT.seeds["cpu"] == (0, 1, 2)


def test_a_routing_that_is_registered_later_has_arms_of_the_first_budget(monkeypatch):
    monkeypatch.setitem(ROUTINGS, "later", DynamicRouting)
    later = {arm.name: arm.recipe for arm in comparison.arms("cpu") if "later" in arm.name}
    assert len(later) == len(comparison.DATA) * len(comparison.RATES)
    assert {recipe.measured_after for recipe in later.values()} == {(comparison.EPOCHS,)}


def test_arms_differ_in_data_network_rate_and_length_alone():
    fields = set(EXPERIMENT.varied)
    assert fields == {
        *("data", "resize", "network", "routing", "iterations", "learning_rate"),
        *("epochs", "measured_after"),
    }


@EACH_DATA
def test_the_second_budget_buys_as_many_seconds_for_all(data):
    """To half an epoch of 200 steps, and no network trains longer than it has to."""
    image = 1 if data == "smallnorb" else 0
    seconds = comparison.EPOCHS * comparison.MILLISECONDS[comparison.REFERENCE][image]
    for name, milliseconds in comparison.MILLISECONDS.items():
        recipe = comparison.recipe_of(name, data, 0.001)
        equal_steps, equal_seconds = recipe.measured_after
        assert equal_steps == comparison.EPOCHS
        step = milliseconds[image]
        assert equal_seconds * step == pytest.approx(seconds, abs=step / 2)
        assert recipe.epochs == max(recipe.measured_after)


# -------------------------------------------------------------------------------- networks


@EACH_DATA
def test_the_cnn_has_as_many_parameters_as_the_capsules(data):
    sizes = {name: number_of_parameters(network_of(name, data)) for name in ("dynamic", "cnn")}
    assert sizes["cnn"] == pytest.approx(sizes["dynamic"], rel=0.05)


@pytest.mark.parametrize("side", [28, 32])
@pytest.mark.parametrize("name", ["dynamic", comparison.CNN])
def test_capsules_never_read_the_last_three_rows_and_columns_and_the_cnn_reads_all(name, side):
    recipe = comparison.recipe_of(name, "mnist", rate=0.001)
    network = new_network(recipe, (1, side, side), seed=0).eval()
    images = torch.randn(20, 1, side, side, requires_grad=True)
    recipe.scores(network, images).sum().backward()
    is_read = (images.grad != 0).any(dim=0)[0]
    expected = torch.ones(side, side, dtype=torch.bool)
    if name != comparison.CNN:
        expected[-3:] = False
        expected[:, -3:] = False
    assert torch.equal(is_read, expected)


def test_the_yardstick_without_routing_couples_uniformly():
    recipe = comparison.recipe_of(comparison.UNIFORM, "mnist", 0.001)
    network = network_of(comparison.UNIFORM, "mnist").eval()
    coupling = network(torch.randn(3, *recipe.input_shape)).coupling
    assert torch.equal(coupling, torch.full_like(coupling, 0.1))
    entropy, distance = comparison.evenness(coupling, -1)
    assert entropy == pytest.approx(1)
    assert distance == pytest.approx(0, abs=1e-6)


# ------------------------------------------------------------------------------------ data


@pytest.mark.parametrize("data", ["digits", "toys"])
def test_held_out_images_are_in_no_other_part_and_the_same_for_all_seeds(data):
    recipe = ComparisonRecipe(data=data, held_out=200)
    split = load(data, "train")
    masks = recipe.choose(split)
    assert np.array_equal(masks["train"], ~masks["held_out"])
    assert masks["train"].sum() == recipe.train_size
    assert np.array_equal(masks["held_out"], recipe.choose(split)["held_out"])
    test = load(data, "test")
    assert recipe.choose(test) == {"test": None}, "the publisher's, whole"


def test_of_toys_a_whole_instance_of_each_class_is_held_out():
    """Else other views of the same toy would be trained on."""
    split = load("toys", "train")
    held_out = ComparisonRecipe(data="toys").choose(split)["held_out"]
    instance, labels = np.asarray(split["instance"]), np.asarray(split["labels"])
    assert len(np.unique(instance[held_out])) == 1
    assert set(labels[held_out]) == set(labels)
    assert not set(instance[held_out]) & set(instance[~held_out])


def test_viewpoints_have_as_many_passes_over_their_images_as_the_comparison():
    passes = []
    for experiment, name in (
        (EXPERIMENT, "smallnorb/em/0.001"),
        (viewpoints.VIEWPOINTS, "em/0.001"),
    ):
        recipe = experiment.at("paper")[name].recipe
        steps = recipe.measured_after[0] * recipe.steps_of_epoch(recipe.train_size)
        passes.append(steps * recipe.batch_size / recipe.train_size)
    assert passes == [pytest.approx(40, abs=0.5)] * 2


def test_viewpoints_are_trained_and_held_out_on_familiar_azimuths_alone():
    recipe = viewpoints.ViewpointRecipe(data="toys")
    train, test = load("toys", "train"), load("toys", "test")
    masks = recipe.choose(train)
    assert masks["train"].sum() == recipe.train_size
    seen = set(train["azimuth"][masks["train"]])
    assert seen == set(train["azimuth"][masks["held_out"]])
    assert not set(train["instance"][masks["train"]]) & set(
        train["instance"][masks["held_out"]]
    )
    tested = recipe.choose(test)
    assert set(test["azimuth"][tested["familiar"]]) == seen
    assert not set(test["azimuth"][tested["novel"]]) & seen
    assert (tested["familiar"] ^ tested["novel"]).all()


# -------------------------------------------------------------------------------- measures


def test_images_are_shifted_turned_and_scaled_by_what_is_asked():
    image = torch.rand(2, 1, 8, 6)
    right, left, down, up = transformed.shifts(image, 2)
    assert torch.allclose(right[..., 2:], image[..., :-2], atol=1e-5)
    assert torch.allclose(left[..., :-2], image[..., 2:], atol=1e-5)
    assert torch.allclose(down[:, :, 2:], image[:, :, :-2], atol=1e-5)
    assert torch.allclose(up[:, :, :-2], image[:, :, 2:], atol=1e-5)
    square = torch.rand(2, 1, 8, 8)
    turned = [*transformed.rotations(square, 90)]
    assert torch.allclose(turned[0], square.rot90(-1, (2, 3)), atol=1e-5)
    assert torch.allclose(turned[1], square.rot90(1, (2, 3)), atol=1e-5)
    ramp = torch.arange(8.0).expand(1, 1, 8, 8)
    half = transformed.scaled(ramp, 0.5)[0, 0, 0, 2:6]
    assert torch.allclose(half, torch.tensor([0.5, 2.5, 4.5, 6.5]), atol=1e-5)


def measured(name: str, rate: float, seed: int, held_out: float | None) -> SimpleNamespace:
    """Return a record as the choice of a rate reads it; without accuracy, one that failed."""
    recipe = comparison.recipe_of(name, "mnist", rate)
    metrics = {}
    if held_out is not None:
        metric = Metric(value=held_out, n=5000, unit="fraction")
        metrics["held_out_accuracy_at_steps"] = metric
        metrics["test_accuracy_at_steps"] = metric.model_copy(update={"value": 1 - held_out})
    trial = SimpleNamespace(seed=seed)
    return SimpleNamespace(config=recipe.model_dump(mode="json"), metrics=metrics, trial=trial)


def test_the_rate_with_the_better_mean_on_held_out_images_counts():
    low, high = comparison.RATES
    runs = [measured("em", low, seed, 0.9) for seed in (0, 1, 2)]
    runs += [measured("em", high, seed, value) for seed, value in enumerate((0.95, 0.95, 0.7))]
    runs += [measured("uniform", low, seed, 0.5) for seed in (0, 1, 2)]
    runs += [measured("uniform", high, seed, 0.5) for seed in (0, 1, 2)]
    runs += [measured("cnn", low, seed, 0.5) for seed in (0, 1, 2)]
    runs += [measured("cnn", high, seed, 0.9) for seed in (0, 1)]
    places = ("mnist", "em"), ("mnist", "uniform")
    assert comparison.chosen_rates(runs) == dict.fromkeys(places, low), "the CNN lacks a run"
    runs.append(measured("cnn", high, 2, None))
    assert comparison.chosen_rates(runs)["mnist", "cnn"] == high, "one run that failed is zero"


NAMES = {
    *(f"{part}_accuracy_at_steps" for part in ("held_out", "test", "train")),
    *(f"{part}_accuracy_at_seconds" for part in ("held_out", "test", "train")),
    *("trained_at_steps", "trained_at_seconds", "steps_at_steps", "steps_at_seconds"),
    *("unchanged_accuracy", "shifted_1_accuracy", "shifted_2_accuracy"),
    *("rotated_15_accuracy", "rotated_30_accuracy"),
    *("scaled_75_percent_accuracy", "scaled_125_percent_accuracy"),
    *("negated_accuracy", "negated_agreement", "coupling_entropy", "coupling_distance"),
    *(f"{attack}_{e}_accuracy" for attack in ("fgsm", "pgd") for e in (0.05, 0.1, 0.2)),
    *("zero_gradient", "seconds_of_step", "bytes_for_gradient"),
}
OF_THE_MACHINE = "seconds_of_step"


def test_a_smoke_run_measures_all_that_is_named_and_resumes(tmp_path):
    """A killed run goes on, and ends with the numbers of one that was not."""
    trial = EXPERIMENT.trials("smoke", where={"arm": "digits/dynamic/0.003"})[0]
    lengths = set()
    watched = Context(0, progress=lambda step, steps, note: lengths.add(steps))
    whole = run_trial(EXPERIMENT, trial, Store(tmp_path / "whole"), watched)
    assert lengths == {whole.metrics["steps_at_seconds"].value}, "one training, of the longer"
    assert whole.exit == "ok", whole.message
    assert set(whole.metrics) == NAMES

    store, calls = Store(tmp_path / "killed"), iter(range(100))
    context = Context(0, stop=lambda: next(calls) == 7)
    with pytest.raises(Interrupted):
        run_trial(EXPERIMENT, trial, store, context)
    resumed = run_trial(EXPERIMENT, trial, store, Context(0))
    assert resumed.resumed_from == [8]
    for name in NAMES - {OF_THE_MACHINE}:
        assert resumed.metrics[name] == whole.metrics[name], name


@pytest.mark.parametrize("arm", ["digits/cnn/0.003", "toys/em/0.003"])
def test_other_smoke_arms_run(tmp_path, arm):
    trial = EXPERIMENT.trials("smoke", where={"arm": arm})[0]
    record = run_trial(EXPERIMENT, trial, Store(tmp_path), Context(0))
    assert record.exit == "ok", record.message
    couplings = {"coupling_entropy", "coupling_distance"}
    assert bool(couplings & set(record.metrics)) == ("cnn" not in arm)


@pytest.mark.parametrize("name", ["em", comparison.UNIFORM, comparison.CNN])
def test_viewpoints_are_measured_where_they_are_familiar_and_where_they_are_novel(
    tmp_path, name
):
    experiment = viewpoints.VIEWPOINTS
    trial = experiment.trials("smoke", where={"arm": f"{name}/0.003"})[0]
    record = run_trial(experiment, trial, Store(tmp_path), Context(0))
    assert record.exit == "ok", record.message
    parts = ("train", "held_out", "familiar", "novel")
    expected = {f"{part}_accuracy_at_steps" for part in parts}
    assert set(record.metrics) == expected | {"trained_at_steps", "steps_at_steps"}
    assert comparison.name_of(record.config) == name


# --------------------------------------------------------------------------------- a study


def test_a_study_has_trials_and_no_row_among_the_papers():
    assert "which_routing" not in papers.PAPERS
    assert papers.module("which_routing").EXPERIMENTS["comparison"] is EXPERIMENT
    trial = EXPERIMENT.trials("cpu")[0]
    assert papers.known(trial)
    assert papers.budget(trial) == 1
    assert EXPERIMENT.twice(papers.arm(trial)) is None
