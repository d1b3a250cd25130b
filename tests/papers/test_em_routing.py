"""The chapter of Hinton et al. (2018): its experiments, claims and deviations."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from helpers import make_record, runs_of
from pydantic import ValidationError
from torch import Tensor, nn

from capslib import data, papers, training
from capslib.errors import Interrupted
from capslib.lab.judging import judge
from capslib.lab.ledger import ledger
from capslib.lab.ledger.deviations import deviations
from capslib.lab.records import Record, faults
from capslib.lab.runs import run_trial
from capslib.lab.store import Store
from capslib.lab.words import GROUPS, NOT_RUN
from capslib.layers import ClassCapsules, ConvCapsules
from capslib.losses import spread_loss
from capslib.networks.em_routing import MatrixCapsNet
from capslib.papers.check import Check, Erratum, leaves, read
from capslib.papers.em_routing import CHECKS, EXPERIMENTS, STEM, adversarial, table1
from capslib.papers.em_routing.novel_views import matched
from capslib.papers.em_routing.recipe import SMALL, EMRecipe, margin_at
from capslib.papers.experiment import Arm, Metric, Outcome
from capslib.recipes import Trained, new_network, train
from capslib.routing import Normalise
from capslib.training import Context, Examples, History

TRAINED = ("test_error", "viewpoint", "attacks")
TINY = dict(
    sizes=(4, 2, 2, 2), cnn=(2, 2, 4), resize=22, crop=20, images=40, epochs=2, batch_size=20
)


def tiny_recipe(**changes: object) -> EMRecipe:
    """Return a recipe that trains for next to no time on the stand-in."""
    return EMRecipe(**{**TINY, "data": "toys", **changes})


def tiny(arm: Arm) -> Arm:
    """Return the same arm, without its name, on a stand-in and with next to no budget."""
    values = arm.values()
    changes: dict[str, object] = {}
    if "draws" in values:
        changes["draws"] = 4
    if "data" in values:
        stand_in = "digits" if arm.data in ("mnist", "digits") else "toys"
        changes |= dict(TINY, data=stand_in, shared_stream=False)
    if "multi_crop" in values:
        changes["multi_crop"] = min(values["multi_crop"], 6)
    if "attacked" in values:
        changes |= dict(attacked=10, bim_steps=2)
    return replace(arm.changed(changes), name="", paper_size=None)


@functools.cache
def measured(name: str, arm: Arm) -> Outcome:
    """Return what a tiny run of an arm yields. Arms that differ in their budget are one run."""
    return EXPERIMENTS[name].run(arm, Context(seed=0))


def arms(name: str, scale: str) -> list[Arm]:
    """Return the arms of an experiment at a scale."""
    return list(EXPERIMENTS[name].at(scale).values())


# ------------------------------------------------------------------------------ arms and claims


@pytest.mark.parametrize("scale", ["cpu", "paper"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_arm_runs_and_leaves_a_sound_record_of_finite_numbers(name, scale):
    experiment = EXPERIMENTS[name]
    for arm in map(tiny, arms(name, scale)):
        outcome = measured(name, arm)
        trial = experiment.trial(scale, arm, 0)
        record = make_record(trial, metrics=outcome.metrics, series=outcome.series)
        assert list(faults(record)) == []
        assert (outcome.parameters > 0) == (name != "free_energy")
        sets = [fingerprint.name for fingerprint in outcome.data]
        assert sets == ([arm.data] if name in TRAINED else [])


@pytest.fixture(scope="module")
def records():
    """Return a record of every trial of a scale, as if it had run there on real data.

    It has the names and units that a run yields.
    """

    def record_of(trial) -> Record:
        arm = papers.arm(trial)
        outcome = measured(trial.experiment, tiny(arm))
        metrics = {}
        for name, metric in outcome.metrics.items():
            value = 4.0 if name == "capsules_familiar" else metric.value + trial.seed / 100
            metrics[name] = metric.model_copy(update={"value": value})
        series = {**outcome.series, "epsilons": [0.0, 0.1, 0.2, 0.5]}
        for name in outcome.series:
            if name.startswith("batch_accuracy"):
                series[name] = [0.99]
            elif name.endswith(("_cnn", "_capsules")):
                series[name] = [0.9, 0.5, 0.3 + trial.seed / 100, 0.1]
        return make_record(
            trial,
            config=arm.fields(),
            metrics=metrics,
            parameters=outcome.parameters,
            series=series,
        )

    def of_scale(scale: str) -> list[Record]:
        trials = []
        for experiment in EXPERIMENTS.values():
            trials += experiment.trials(scale)
        return [record_of(trial) for trial in trials]

    return of_scale


PAPER_SCALE_ONLY = ("EM-X-small-68k", "EM-X-cifar10")


def can_be_asked(name: str, scale: str) -> bool:
    """Return whether records of a scale can answer a claim."""
    check = CHECKS[name]
    if isinstance(check, Erratum):
        return False
    if scale == "paper":
        return True
    if name in PAPER_SCALE_ONLY or any(leaf.paper_scale_only for leaf in leaves(check)):
        return False
    # a reduced network has other counts
    is_count = isinstance(check, Check) and check.op == "≈"
    return not (ledger(STEM)[name].kind == "property" and is_count)


@pytest.mark.parametrize("scale", ["paper", "cpu"])
def test_the_chapters_own_records_answer_every_claim_that_can_be_asked(records, scale):
    """No claim asks for a metric that no run yields, or in another unit than it has."""
    runs = runs_of(records(scale))
    for name, check in CHECKS.items():
        if not can_be_asked(name, scale):
            continue
        verdict = judge(ledger(STEM)[name], check, runs)
        for part in verdict.parts or [verdict]:
            assert part.status not in GROUPS[NOT_RUN], f"{name}: {part.reason}"
            assert part.ours is not None, f"{name}: {part.reason}"
            assert part.scale == scale, name


def test_the_cnn_of_table_2_is_read_at_its_end():
    """Not where it was matched."""
    trial = EXPERIMENTS["viewpoint"].trials("cpu")[0]
    familiar = {"cnn_familiar": Metric(value=17.5, n=8100, unit="percent")}
    record = make_record(trial, metrics=familiar, series={"cnn_familiar": [20.0, 17.5, 9.0]})
    (leaf,) = leaves(CHECKS["EM-T2-azi-familiar-cnn"])
    assert read(leaf.metric, record) == Metric(value=9, n=8100, unit="percent")
    assert read(leaf.metric, make_record(trial, metrics=familiar)) is None


def test_attacks_are_read_at_one_step_by_both_metrics():
    trial = EXPERIMENTS["attacks"].trials("cpu")[0]
    series = {
        "epsilons": [0, 0.1, 0.2],
        "fgsm_capsules": [0.8, 0.6, 0.4],
        "fgsm_cnn": [1.0, 0.5, 0.25],
        "targeted_capsules": [0.2, 0.3, 0.4],
        "targeted_cnn": [0.2, 0.5, 0.9],
    }
    images = {"zero_share_cnn": Metric(value=0, n=500, unit="")}
    record = make_record(trial, metrics=images, series=series)
    gaps = {}
    for name, part in CHECKS["EM-W-2"].parts.items():
        metric = read(part.metric, record)
        assert (metric.n, metric.unit) == (500, "difference of fractions")
        gaps[name] = metric.value
    assert gaps == pytest.approx(
        {
            "untargeted FGSM, ε = 0.1, accuracy": 0.1,
            "untargeted FGSM, ε = 0.1, share of the accuracy that is kept": 0.25,
            "untargeted FGSM, ε = 0.2, accuracy": 0.15,
            "untargeted FGSM, ε = 0.2, share of the accuracy that is kept": 0.25,
            "targeted FGSM, ε = 0.1, accuracy": 0.2,
            "targeted FGSM, ε = 0.2, accuracy": 0.5,
        }
    )


def test_a_capsule_layer_stores_matrices_and_two_biases():
    """EM-W-7: two numbers for each type of parent, and a 4 × 4 matrix for each pair of types.

    There is a matrix for each place of a window.
    """
    network = MatrixCapsNet((2, 32, 32))
    for layer in (network.capsules1, network.capsules2, network.classes):
        assert isinstance(layer, ConvCapsules | ClassCapsules)
        stored = dict(layer.named_parameters())
        assert set(stored) == {"weight", "routing.beta_u", "routing.beta_a"}
        *_, parents, rows, columns = stored["weight"].shape
        assert (rows, columns) == (4, 4)
        assert stored["routing.beta_u"].shape == stored["routing.beta_a"].shape == (parents,)
    for name in ("main", "small"):
        metrics = measured("sizes", EXPERIMENTS["sizes"].at("paper")[name]).metrics
        assert metrics["beside_matrices_and_two_biases"].value == 0


def test_sizes_are_those_of_the_paper():
    sizes = EXPERIMENTS["sizes"].at("paper")
    main, small, cnn = (measured("sizes", sizes[name]) for name in ("main", "small", "cnn"))
    assert (main.parameters, small.parameters, cnn.parameters) == (316_650, 68_618, 4_253_349)
    assert cnn.metrics["times_main"].value == pytest.approx(4_253_349 / 316_650)
    assert main.metrics["ciresan_times"].value == pytest.approx(2.7e6 / 316_650)


def test_only_the_matched_steps_never_raise_the_free_energy():
    for arm in arms("free_energy", "smoke"):
        rise = measured("free_energy", arm).metrics["largest_rise"].value
        if arm.options.e_step == "matched":
            assert rise < 1e-9, arm.name
        elif arm.options.form == "printed" and arm.options.children == 8:
            assert rise > 0.01, arm.name


# ------------------------------------------------------------------------------------- training


@pytest.mark.parametrize(
    ("factor", "familiar"), [("azimuth", {0, 2, 4, 30, 32, 34}), ("elevation", {0, 1, 2})]
)
def test_trained_on_familiar_viewpoints_and_tested_on_both_kinds(factor, familiar):
    """§5.1: a third of the azimuths, 300° to 40°, or the three smallest elevations.

    Nothing is left out of the test.
    """
    recipe = EMRecipe(factor=factor)
    for name, kinds in {"train": ["train"], "test": ["familiar", "novel"]}.items():
        split = data.load("toys", name)
        parts = recipe.choose(split)
        assert list(parts) == kinds
        for kind, mask in parts.items():
            views = set(split[factor][mask].tolist())
            if kind == "novel":
                assert views == set(split[factor].tolist()) - familiar
            else:
                assert views == familiar


def test_no_arm_is_a_copy_of_another():
    """From the same random numbers each network of three iterations makes something else."""
    images = torch.randn(8, 2, 24, 24, generator=torch.Generator().manual_seed(0))
    answers = {}
    for arm in arms("test_error", "paper"):
        recipe = arm.recipe
        if recipe.network == "cnn" or recipe.iterations != 3:
            continue
        small = recipe.model_copy(update=dict(data="toys", sizes=(4, 2, 2, 2)))
        design = (recipe.pose, recipe.coordinates, recipe.activation, recipe.normalise)
        with torch.no_grad():
            network = new_network(small, (2, 24, 24), 0)
            answers[(*design, recipe.preset)] = network(images).activation
    assert len(answers) >= 9
    for pair in itertools.combinations(answers, 2):
        first, second = (answers[name] for name in pair)
        assert not torch.allclose(first, second, rtol=0, atol=1e-6), pair


@pytest.mark.parametrize("preset", ["printed", "released", "calibrated"])
def test_only_the_calibrated_preset_sets_a_start_and_half_of_the_capsules_are_active(preset):
    recipe = tiny_recipe(preset=preset)
    images = recipe.splits(Context(seed=0))[0]["train"]
    network, pixels = new_network(recipe, recipe.input_shape, 0), recipe.seen(images.inputs)
    drawn = network.layers(pixels)
    recipe.start(network, images, 0)
    calibrated = preset == "calibrated"
    for name, layer in network.layers(pixels).items():
        is_unchanged = torch.equal(layer.activation, drawn[name].activation)
        assert is_unchanged is not calibrated, name
        if calibrated:
            assert 0.4 < layer.activation.mean() < 0.6, name


def untrained(**changes: object) -> tuple[MatrixCapsNet, Examples]:
    """Return a reduced network at its start, and 16 images as it sees them."""
    recipe = EMRecipe(data="toys", sizes=(32, 8, 8, 8), **changes)
    toys = recipe.splits(Context(seed=0))[0]["train"]
    examples = toys.rows(np.linspace(0, len(toys.labels) - 1, 16).astype(int))
    network = new_network(recipe, recipe.input_shape, 0)
    recipe.start(network, examples, 0)
    return network, examples._replace(inputs=recipe.seen(examples.inputs))


def test_how_many_children_a_parent_keeps_depends_on_who_competes():
    """The inverse sum of squared shares: 72 children that are alike count as 72."""
    children = {}
    for normalise in get_args(Normalise):
        network, images = untrained(normalise=normalise)
        layer = network.capsules1
        with torch.no_grad():
            capsules = network.primary_capsules(images.inputs)
            votes, activation, competition = layer.fields(*capsules)
            routed = layer.routing(votes, activation, competition, iterations=5)
        mass = routed.coupling * activation[..., None]
        share = mass / mass.sum(dim=1, keepdim=True)
        children[normalise] = float((1 / share.square().sum(dim=1)).nanmedian())
    ranking = ["released", "types+positions", "types-per-position", "positions-per-type"]
    assert sorted(children, key=children.get) == ranking
    assert 1 <= children["released"] < 1.5
    assert 2 < children["types+positions"] < 4


def test_the_released_start_has_gradients_that_are_thousands_of_times_smaller():
    gradients = {}
    for preset in ("released", "calibrated"):
        network, images = untrained(preset=preset)
        spread_loss(network(images.inputs).activation, images.labels, margin=0.2).backward()
        gradients[preset] = float(network.conv.weight.grad.abs().mean())
    assert gradients["calibrated"] > 1000 * gradients["released"]


def test_the_margin_rises_as_in_the_release_and_as_in_the_paper():
    assert margin_at(0, "sigmoid") == pytest.approx(0.214, abs=5e-4)
    assert margin_at(0.5, "sigmoid") == pytest.approx(0.595, abs=5e-4)
    assert margin_at(1, "sigmoid") == pytest.approx(0.976, abs=5e-4)
    assert [margin_at(p, "linear") for p in (0, 0.5, 1)] == pytest.approx([0.2, 0.55, 0.9])
    assert {margin_at(p, "fixed") for p in (0, 0.5, 1)} == {0.9}


def test_schedules_and_weight_decay_reach_the_optimiser(monkeypatch):
    """Both rates are stretched over the training; decay is for weights, not for biases or β."""
    calls, history = {}, History({"loss": [1.0] * 8}, {"test_error": [50.0]})

    def fit(network, *_, **options):
        calls.update(options, network=network)
        return history

    monkeypatch.setattr(training, "fit", fit)
    for decay, factors in {
        "exponential": (1, 0.96**50, 0.96**100),
        "cosine": (1, 0.5, 0),
    }.items():
        train(tiny_recipe(weight_decay=0.25, decay=decay), 0, Context(seed=0))
        steps = calls["epochs"] * math.ceil(40 / calls["batch_size"])
        groups = calls["optimizer"].param_groups
        for step, factor in zip((0, steps / 2, steps), factors, strict=True):
            calls["before_step"](step)
            rates = [group["lr"] for group in groups]
            assert rates == pytest.approx([3e-3 * factor] * 2)
    decayed, plain = groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.25, 0)
    parameters = dict(calls["network"].named_parameters())
    assert len(decayed["params"]) + len(plain["params"]) == len(parameters)
    decays = {id(parameter) for parameter in decayed["params"]}
    for name, parameter in parameters.items():
        is_weight = name.endswith("weight") and ".bias" not in name
        assert (id(parameter) in decays) == is_weight, name


def test_jitter_reaches_the_network_only_where_the_image_is_standardised_before_it():
    """The release standardises last and so undoes most of the jitter.

    The paper's text standardises first.
    """
    images = EMRecipe(data="toys", images=8).splits(Context(seed=0))[0]["train"].inputs
    change = {}
    for order in ("crop", "image"):
        pixels = []
        for jitter in (True, False):
            # the whole image: no place to draw
            recipe = EMRecipe(data="toys", crop=48, standardise=order, jitter=jitter)
            pixels.append(recipe.prepare(images, torch.Generator().manual_seed(1)))
        change[order] = (pixels[0] - pixels[1]).square().mean().sqrt().item()
    assert change["crop"] < 0.1 < 0.5 < change["image"]


def test_where_the_image_is_standardised_first_test_crops_keep_its_moments():
    recipe = EMRecipe(data="toys", images=8, standardise="image")
    images = recipe.splits(Context(seed=0))[0]["train"].inputs
    pixels = images.double() / 255
    deviation, mean = torch.std_mean(pixels, dim=(1, 2, 3), keepdim=True, correction=0)
    standardised = ((pixels - mean) / deviation).float()
    torch.testing.assert_close(recipe.seen(images), standardised[..., 8:40, 8:40])


def test_a_part_of_the_images_has_all_that_is_in_the_whole():
    """The sets are sorted by their factors.

    Equal steps through smallNORB miss every sixth lighting and an instance.
    """
    toys = data.load("toys", "test")
    part = EMRecipe(data="toys", resize=22, images=500).splits(Context(seed=0))[0]["test"]
    assert len(part.labels) == 500
    assert len(part.at_most(60).labels) == 60
    rows = training.subset(len(toys), 500)
    assert part.labels.tolist() == toys["labels"][rows].tolist()
    for factor in ("labels", "instance", "elevation", "azimuth", "lighting"):
        assert set(toys[factor][rows].tolist()) == set(toys[factor].tolist()), factor
    assert len(training.subset(7, 0)) == 7


@pytest.mark.parametrize(
    ("accuracy", "change"),
    [
        # four epochs of four steps: the third and the last
        ([0] * 12 + [0.25, 0.75, 0.25, 0.75], 0.5),
        # falling back is a change
        ([0] * 8 + [0.75, 0.25, 0.75, 0.25] + [0] * 4, 0.5),
        # what came before does not count
        ([1, 1, 1, 1] + [0] * 4 + [0.5] * 8, 0),
        ([0.2], 0),
        ([0, 0.4], 0.4),
    ],
    ids=["better", "worse", "early", "one step", "two steps"],
)
def test_how_far_the_training_error_still_moved(accuracy, change):
    epochs = {"error_of_some": [0.0] * math.ceil(len(accuracy) / 4)}
    toys = data.load("toys", "test").fingerprint
    trained = Trained(nn.Identity(), History({"accuracy": accuracy}, epochs), {}, [toys])
    metric = table1.error_change(trained)["error_change_last_quarter"]
    # five classes: guessing errs in four of five cases
    assert metric.value == pytest.approx(change / 0.8)


def test_the_loss_that_is_asked_for_is_taken_with_the_margin_of_the_step():
    scores, labels = torch.tensor([[0.5, 0.1], [0.2, 0.9]]), torch.tensor([0, 0])

    def loss(margin: float, **change: str) -> float:
        objective = EMRecipe(**change).objective(torch.device("cpu"))
        if hasattr(objective, "margin"):
            objective.margin.fill_(margin)
        return float(objective.terms(scores, labels)["loss"])

    entropy = float(nn.functional.cross_entropy(scores, labels))
    assert loss(0.2) == pytest.approx((0 + 0.9**2) / 2)
    assert loss(0.9) == pytest.approx((0.5**2 + 1.6**2) / 2)
    assert loss(0.2, loss="cross_entropy") == pytest.approx(entropy)
    assert loss(0.9, loss="cross_entropy") == loss(0.2, network="cnn") == pytest.approx(entropy)
    assert loss(0.2, loss="margin") == loss(0.9, loss="margin") != loss(0.2)


@pytest.mark.parametrize("network", ["cnn", "matrix_capsnet"])
def test_a_trial_is_a_function_of_its_seed(network):
    """Dropout draws from torch's own generator, which other trials of a worker have used."""
    arm = Arm("", tiny_recipe(network=network), table1.ErrorOptions())
    losses = []
    for drawn_before, seed in ((1, 0), (2, 0), (1, 3)):
        torch.manual_seed(drawn_before)
        outcome = EXPERIMENTS["test_error"].run(arm, Context(seed=seed))
        losses.append(outcome.series["loss"])
    assert losses[0] == losses[1] != losses[2]


def test_killed_and_taken_up_again_a_trial_of_several_trainings_leaves_the_same_record(
    store, tmp_path
):
    """Stopped in the first training and in the last, both go on where they were."""
    experiment = EXPERIMENTS["viewpoint"]
    arm = tiny(arms("viewpoint", "smoke")[0])
    trial = experiment.trial("smoke", arm, 0)
    undisturbed = run_trial(experiment, trial, Store(tmp_path / "whole"), Context(seed=0))
    assert undisturbed.exit == "ok", undisturbed.message

    def stop_in_training(number: int) -> Callable[[], bool]:
        """Ask a training to stop at its second step, and no training before it."""
        checks = itertools.count()

        def stop() -> bool:
            finished = len(list(store.trainings.glob("*.pt")))
            return finished >= number and next(checks) > 0

        return stop

    for stop_in in range(len(experiment.trainings(arm, 0))):
        with pytest.raises(Interrupted):
            run_trial(experiment, trial, store, Context(seed=0, stop=stop_in_training(stop_in)))
        torch.rand(7)
    record = run_trial(experiment, trial, store, Context(seed=0))
    assert record.exit == "ok"
    assert record.resumed_from
    assert record.metrics == undisturbed.metrics
    assert record.series == undisturbed.series


# ------------------------------------------------------------------- what is made of a training


@pytest.mark.parametrize(
    ("cnn", "capsules", "epochs"),
    [
        # the capsules are better: where they were as the CNN is at its end
        ([9, 5, 4], [8, 4, 2], (3, 2)),
        # the CNN is better; its line from 9 to 3 meets 5 after four sixths
        ([9, 3, 1], [8, 6, 5], (1 + 4 / 6, 3)),
        # the worse at its end, even if it had the same error before
        ([9, 5, 4, 5], [8, 4, 2, 3], (4, 1.75)),
        # the first time
        ([9, 3, 6, 2], [8, 6, 5, 5], (1 + 4 / 6, 4)),
        ([9, 4, 4], [4, 4, 4], (3, 3)),
        # within the first epoch
        ([9, 8, 7], [6, 5, 4], (3, 1 - 1 / 74)),
        # who learns nothing is compared with guessing
        ([84, 83, 85], [81, 79, 82], (3, 0)),
    ],
)
def test_models_are_compared_where_their_familiar_errors_match(cnn, capsules, epochs):
    errors = {"cnn": [80, *cnn], "capsules": [80, *capsules]}
    assert matched(errors) == pytest.approx(dict(zip(errors, epochs, strict=True)))


def test_a_viewpoint_trial_tells_the_errors_of_its_matched_epochs():
    for arm in arms("viewpoint", "smoke"):
        outcome = measured("viewpoint", tiny(arm))
        value = {name: metric.value for name, metric in outcome.metrics.items()}
        curves = {name: [80, *curve] for name, curve in outcome.series.items()}
        epochs = matched({model: curves[f"{model}_familiar"] for model in ("cnn", "capsules")})
        for model, epoch in epochs.items():
            assert value[f"{model}_epoch"] == epoch
            for view in ("familiar", "novel"):
                curve = curves[f"{model}_{view}"]
                error = np.interp(epoch, range(len(curve)), curve)
                assert value[f"{model}_{view}"] == error
        assert value["novel_gap"] == value["cnn_novel"] - value["capsules_novel"]
        reduction = 100 * value["novel_gap"] / value["cnn_novel"]
        assert value["reduction"] == pytest.approx(reduction)


def test_what_a_record_of_attacks_tells():
    (arm,) = arms("attacks", "smoke")
    outcome = measured("attacks", tiny(arm))
    curves = outcome.series
    value = {name: metric.value for name, metric in outcome.metrics.items()}
    for attack, name in itertools.product(("fgsm", "bim", "transfer"), ("capsules", "cnn")):
        curve = curves[f"{attack}_{name}"]
        assert len(curve) == len(arm.options.epsilons)
        assert curve[0] > 0, "ten images of which none is known show nothing"
    lowest = min(*curves["fgsm_capsules"], *curves["fgsm_spread_capsules"])
    assert value["least_fgsm_accuracy"] == lowest
    assert value["zero_gap"] == value["zero_share_cnn"] - value["zero_share_capsules"]
    with pytest.raises(ValidationError, match="the first step is 0"):
        arm.changed({"epsilons": (0.1, 0.2)})


class Lit(nn.Module):
    """Answers by where the brightest pixel of a crop is.

    ``centre`` at (10, 10), and ``diagonal`` elsewhere on the diagonals.
    """

    def __init__(self, centre: list[float], diagonal: list[float]):
        super().__init__()
        self.answers = torch.tensor([diagonal, centre])
        self.crops: list[Tensor] = []

    def forward(self, crops: Tensor) -> Tensor:
        self.crops += crops
        brightest = crops.sum(dim=1).flatten(1).argmax(dim=1)
        row, column = brightest // 20, brightest % 20
        assert torch.equal((row - 10).abs(), (column - 10).abs())
        return self.answers[((row == 10) & (column == 10)).long()]


@pytest.mark.parametrize("standardise", ["crop", "image"])
@pytest.mark.parametrize(
    ("network", "centre", "diagonal"),
    [("matrix_capsnet", [0.9, 0.1], [0.01, 0.03]), ("cnn", [20.0, -1.0], [-2.0, -1.0])],
)
def test_all_crops_have_the_same_weight_in_a_vote(network, centre, diagonal, standardise):
    """One crop is sure of class 0; its twelve neighbours lean to class 1, and outvote it.

    They are hardly active, or have small logits.
    """
    recipe = tiny_recipe(network=network, resize=26, standardise=standardise)
    random = torch.Generator().manual_seed(0)
    images = torch.randint(100, (3, 2, 26, 26), dtype=torch.uint8, generator=random)
    images[:, :, 13, 13] = 255
    examples = Examples(images, torch.tensor([1, 1, 0]))
    lit = Lit(centre, diagonal)
    assert recipe.error(lit, examples) == pytest.approx(200 / 3)
    central_crops, lit.crops = lit.crops, []
    assert recipe.error_of_crops(lit, examples) == pytest.approx(100 / 3)
    assert len(lit.crops) == 13 * 3
    for central_crop in central_crops:  # standardised as in every other test
        assert any(torch.equal(central_crop, crop) for crop in lit.crops)


class Looks(nn.Module):
    """A class is as likely as its four rows are bright, in some columns of a first image."""

    def __init__(self, columns: slice, scale: float):
        super().__init__()
        self.columns, self.scale = columns, scale

    def forward(self, pairs: Tensor) -> Tensor:
        return self.scale * pairs[:, 0, :, self.columns].unflatten(1, (5, 4)).mean(dim=(2, 3))


def test_what_each_attack_does_to_networks_whose_gradients_are_known(monkeypatch):
    """Victims look at the left, the network behind the black box at the right.

    The CNN's gradients are a hundred times as large.
    """
    labels = torch.tensor([1, 2, 3, 4])
    pairs = torch.full((4, 2, 20, 20), 100, dtype=torch.uint8)
    pairs[:, 1, :, ::2] = 200
    for pair, label in zip(pairs, labels, strict=True):
        pair[0, 4 * label : 4 * label + 4] = 120
    arm = tiny(arms("attacks", "smoke")[0]).changed({"epsilons": (0.0, 1.0)})
    left_half, right_half = slice(0, 10), slice(10, 20)
    networks = {
        ("cnn", 0): Looks(left_half, 0.1),
        ("cnn", 1000): Looks(right_half, 0.1),
        ("matrix_capsnet", 0): Looks(left_half, 0.001),
    }
    history = History({"loss": [1.0], "accuracy": [1.0]})
    toys = data.load("toys", "test").fingerprint

    def trained(recipe: EMRecipe, seed: int, context: Context) -> Trained:
        splits = {"test": Examples(pairs, labels)}
        return Trained(networks[recipe.network, seed], history, splits, [toys])

    monkeypatch.setattr(adversarial, "train", trained)
    outcome = adversarial.run(arm, Context(seed=0))
    for name in ("cnn", "capsules"):
        assert outcome.series[f"fgsm_{name}"] == outcome.series[f"bim_{name}"] == [1, 0]
        # the source does not know where the victim looks
        assert outcome.series[f"transfer_{name}"] == [1, 1]
        # every class is a target, that of an image too
        assert outcome.series[f"targeted_{name}"] == [0.2, 1]
    # the margin leaves a gradient where all are right
    assert outcome.series["fgsm_spread_capsules"] == [1, 0]
    assert outcome.metrics["gradient_orders"].value == pytest.approx(2, abs=0.05)


@pytest.mark.parametrize(
    ("name", "with_capsules", "without"),
    [
        ("viewpoint", "azimuth/capsules_and_cnn", "azimuth/cnn"),
        ("attacks", "capsules_and_cnn", "cnn"),
    ],
)
def test_a_cnn_alone_is_the_cnn_beside_the_capsules(name, with_capsules, without):
    """So the weights that one claim needs serve the other, and a page may show either."""
    experiment = EXPERIMENTS[name]
    first, second = (experiment.at("paper")[arm] for arm in (with_capsules, without))
    (cnn,) = experiment.trainings(second, 0)
    assert cnn.recipe == second.recipe
    assert cnn == experiment.trainings(first, 0)[0]
    curves = []
    for arm in (first, second):
        series = measured(name, tiny(arm)).series
        curves.append({curve: series[curve] for curve in series if "cnn" in curve})
    # it comes from another CNN
    curves[0].pop("transfer_cnn", None)
    assert curves[0] == curves[1]


def test_capsules_share_no_training_with_their_cnn():
    """Nobody competes in a CNN, so a rule of competition is no part of its recipe."""
    (arm,) = arms("attacks", "smoke")
    trainings = adversarial.trainings(arm.changed({"normalise": "released"}), 0)
    assert [(t.recipe.network, t.recipe.normalise, t.seed) for t in trainings] == [
        ("cnn", "positions-per-type", 0),
        ("cnn", "positions-per-type", 1000),
        ("matrix_capsnet", "released", 0),
    ]


def test_votes_are_counted_by_distance_for_right_and_wrong_classes():
    right = torch.tensor([[True, False, False], [False, False, True]])
    # [N = 2, I = 1, J = 3]
    distance = torch.tensor([[[0.001, 0.015, 0.399]], [[0.5, 9.0, 0.012]]])
    mass = torch.tensor([[[0.5, 0.3, 0.2]], [[0.1, 0.2, 0.4]]])
    expected = torch.zeros(2, table1.BINS, dtype=torch.float64)
    expected[0, [0, 1]] = torch.tensor([0.5, 0.4]).double()
    # two wrong classes
    expected[1, [1, table1.BINS - 1]] = torch.tensor([0.15, 0.25]).double()
    histogram = table1.vote_histogram(distance, mass, right)
    torch.testing.assert_close(histogram, expected, rtol=0, atol=1e-6)


def test_histograms_hold_the_mass_of_all_assignments():
    """A child of a class layer gives away all of itself.

    So over the classes the mass is that of the active children.
    """
    recipe = tiny_recipe(sizes=(6, 3, 3, 3))
    test = recipe.splits(Context(seed=0))[0]["test"]
    network = new_network(recipe, recipe.input_shape, 0)
    recipe.start(network, test, 0)
    metrics, curves = table1.look_inside(recipe, network, test)
    second = network.layers(recipe.seen(test.inputs))["capsules2"].activation
    active, wrong_classes = second.flatten(1).sum(dim=1).mean().item(), 4
    near = sum(distance < table1.CLOSE - 1e-9 for distance in curves["distances"])
    for t in (1, 2, 3):
        right, wrong = curves[f"votes_right_{t}"], curves[f"votes_wrong_{t}"]
        assert sum(right) + wrong_classes * sum(wrong) == pytest.approx(active, rel=1e-3)
        close_right = metrics[f"close_right_{t}"].value
        close_wrong = metrics[f"close_wrong_{t}"].value
        assert close_right == pytest.approx(sum(right[:near]), abs=1e-4)
        assert close_wrong == pytest.approx(sum(wrong[:near]), abs=1e-4)
        name = "right_share_of_close" if t == 3 else f"right_share_of_close_{t}"
        share = close_right / (close_right + wrong_classes * close_wrong)
        assert metrics[name].value == pytest.approx(share)
    assert network.classes.routing.iterations == recipe.iterations
    layers = [metrics[f"dead_{name}"] for name in ("primary", "capsules1", "capsules2")]
    dead = sum(layer.value * layer.n for layer in layers)
    assert metrics["dead"].value == pytest.approx(dead / sum(layer.n for layer in layers))


def test_a_wrong_class_gets_what_it_would_as_the_right_one():
    """The class capsules do not know the label.

    The wrong classes of one label are the right ones of the others.
    """
    recipe = tiny_recipe()
    inputs = recipe.splits(Context(seed=0))[0]["test"].inputs[:10]
    network = new_network(recipe, recipe.input_shape, 0)
    # votes for some classes lie farther apart
    network.classes.weight.data *= torch.tensor([1.0, 20, 40, 60, 80])[:, None, None]
    right, wrong = [], []
    for label in range(5):
        examples = Examples(inputs, torch.full((10,), label))
        _, curves = table1.look_inside(recipe, network, examples)
        right.append(curves["votes_right_3"])
        wrong.append(curves["votes_wrong_3"])
    right, wrong = torch.tensor(right), torch.tensor(wrong)
    assert torch.cdist(right, right)[0, 1:].min() > 0.01
    torch.testing.assert_close(wrong, (right.sum(dim=0) - right) / 4, rtol=0, atol=1e-5)


def test_a_type_is_dead_where_no_image_makes_it_more_active_than_a_twentieth():
    """One type of primary capsules has an activation of 0.03, one of 0.08, others of 0.27."""
    recipe = tiny_recipe(sizes=(4, 4, 2, 2))
    network = new_network(recipe, recipe.input_shape, 0)
    logits = network.primary.logits.weight
    nn.init.constant_(network.conv.weight, 0)
    nn.init.constant_(network.conv.bias, 0.25)  # so the four features are 0.25 everywhere
    nn.init.constant_(logits, 0)
    for kind, activation in enumerate((0.03, 0.08)):
        nn.init.constant_(logits[kind], 1 + math.log(activation / (1 - activation)))
    test = recipe.splits(Context(seed=0))[0]["test"]
    metrics, _ = table1.look_inside(recipe, network, test)
    assert (metrics["dead_primary"].value, metrics["dead_primary"].n) == (0.25, 4)


# ----------------------------------------------------------------------------------- deviations


def subjects(name: str, arm: Arm) -> set[str]:
    """Return in what an arm deviates from the paper."""
    return {deviation.what for deviation in deviations(STEM, name, arm)}


@pytest.mark.parametrize(
    ("change", "expected", "unexpected"),
    [
        ({}, {"start of β and λ", "size of smallNORB images"}, {"vector pose"}),
        ({"preset": "printed"}, {"start of β and λ, variance floor"}, {"start of β and λ"}),
        ({"preset": "released"}, {"ε in the mass"}, {"start of β and λ"}),
        (
            {"pose": "vector"},
            {"vector pose", "windows that step by two"},
            {"mixing proportions"},
        ),
        ({"activation": "mixing"}, {"mixing proportions"}, {"dropout of the CNN"}),
        (
            {"activation": "mixing", "normalise": "types+positions"},
            set(),
            {"mixing proportions", "windows that step by two"},
        ),
        ({"data": "mnist"}, {"rotation of MNIST digits"}, {"size of smallNORB images"}),
        ({"data": "cifar10"}, {"crops of CIFAR-10"}, {"size of smallNORB images"}),
        ({"network": "cnn"}, {"dropout of the CNN"}, {"start of β and λ"}),
    ],
)
def test_an_arm_says_what_is_its_own(change, expected, unexpected):
    deviating = subjects("test_error", Arm("arm", EMRecipe(**change), table1.ErrorOptions()))
    assert expected <= deviating
    assert not unexpected & deviating


def test_every_experiment_with_a_cnn_says_at_which_rate_it_learns():
    """At other scales it is that of the capsules."""
    for name in TRAINED:
        for scale in ("cpu", "paper"):
            for arm in arms(name, scale):
                deviating = subjects(name, arm)
                has_cnn = name != "test_error" or arm.recipe.network == "cnn"
                has_rate = "Adam learning rate of the CNN" in deviating
                assert has_rate == (has_cnn and scale == "paper"), arm.name
                assert "length of the training" in deviating, arm.name


def test_viewpoints_and_attacks_say_what_the_paper_leaves_open():
    for arm in arms("viewpoint", "paper"):
        is_matched = arm.recipe.network != "cnn"
        assert ("matched error" in subjects("viewpoint", arm)) == is_matched
    for arm in arms("attacks", "paper"):
        assert {"scale of ε", "loss of the attack"} <= subjects("attacks", arm)


# ---------------------------------------------------------------------------------- paper scale


def test_the_cnn_of_full_size_outlives_its_first_steps():
    """A network that gives all images one answer has died, and any capsules would beat it."""
    recipe = EXPERIMENTS["test_error"].at("paper")["cnn"].recipe
    recipe = recipe.model_copy(update={"data": "toys", "images": 320})
    trained = train(recipe, 0, Context(seed=0, max_steps=25))
    with torch.no_grad():
        images = recipe.seen(trained.splits["train"].inputs)
        answers = trained.network(images).activation
    assert not (answers == answers[0]).all()


def test_a_rehearsal_computes_as_the_run_would():
    """A training of fewer images would be a shorter one, which is not worth compiling."""
    recipe = EXPERIMENTS["test_error"].at("smoke")["main"].recipe
    run, _ = recipe.splits(Context(seed=0))
    rehearsed, _ = recipe.splits(Context(seed=0, max_steps=3))
    assert torch.equal(rehearsed["train"].inputs, run["train"].inputs)
    assert len(run["test"].labels) == recipe.images
    assert len(rehearsed["test"].labels) == 2 * recipe.batch_size


@pytest.mark.real_data
@pytest.mark.parametrize("name", TRAINED)
def test_a_rehearsal_at_paper_scale(store, real, name):
    """Two steps of the small network on real pairs, and all that comes after a training."""
    experiment = EXPERIMENTS[name]
    change = {"sizes": SMALL, "batch_size": 4, "cnn": (4, 4, 8), "epochs": 1, "images": 100}
    if name == "attacks":
        change |= {"attacked": 2, "bim_steps": 2}
    trial = experiment.trials("paper", seeds=[0], change=change)[0]
    context = Context(seed=0, max_steps=2, data_dir=real("smallnorb"))
    record = run_trial(experiment, trial, store, context)
    assert (record.exit, record.message) == ("cut", "")
    assert record.real
