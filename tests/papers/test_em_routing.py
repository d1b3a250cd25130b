"""The chapter of Hinton et al. (2018): its experiments, what its claims ask of them, and how they differ from the paper."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from capslib import data, training
from capslib.config import Config
from capslib.errors import Interrupted
from capslib.lab.judging import judge
from capslib.lab.ledger import ledger
from capslib.lab.ledger.deviations import deviations
from capslib.lab.records import faults
from capslib.lab.runs import run_trial
from capslib.lab.store import Store
from capslib.lab.words import GROUPS, NOT_RUN
from capslib.layers import ClassCapsules, ConvCapsules
from capslib.networks.em_routing import MatrixCapsNet
from capslib.papers import arm as whole_config
from capslib.papers import query as q
from capslib.papers.em_routing import EXPERIMENTS, QUERIES, STEM, adversarial, table1
from capslib.papers.em_routing.novel_views import matched
from capslib.papers.em_routing.recipe import REDUCED, SMALL, EMRecipe, margin_at
from capslib.papers.em_routing.table1 import TestErrorConfig, error_change
from capslib.papers.experiment import Metric, Outcome
from capslib.recipes import Trained, new_network, train
from capslib.training import Context, Examples, History

TRAINED = ("test_error", "viewpoint", "attacks")
TINY = dict(
    sizes=(4, 2, 2, 2), cnn=(2, 2, 4), resize=22, crop=20, images=40, epochs=2, batch_size=20
)


def tiny(config: Config) -> Config:
    """The same arm on a stand-in and with next to no budget."""
    fields, change = type(config).model_fields, {}
    if "draws" in fields:
        change = dict(draws=4, iterations=3)
    if "data" in fields:
        stand_in = "digits" if config.data in ("mnist", "digits") else "toys"
        change = dict(TINY, data=stand_in, shared_stream=False)
        change |= {"multi_crop": min(config.multi_crop, 6)} if "multi_crop" in fields else {}
    if "attacked" in fields:
        change |= dict(attacked=10, bim_steps=2)
    return type(config)(**{**config.model_dump(), **change})


@functools.cache
def measured(name: str, config: Config) -> Outcome:
    """What a tiny run of an arm yields. Arms of all scales that differ in their budget only are one run."""
    return EXPERIMENTS[name].run(tiny(config), Context(seed=0))


def simple(query: q.Query) -> list[q.Query]:
    return (
        [found for part in query.parts.values() for found in simple(part)]
        if isinstance(query, q.Count)
        else [query]
    )


# ------------------------------------------------------------------------------------------------ configurations and claims


def arms(name: str, scale: str) -> list[Config]:
    return list(EXPERIMENTS[name].grid(scale))


@pytest.mark.parametrize(
    ("name", "scale"), [(n, s) for n in EXPERIMENTS for s in ("cpu", "paper")]
)
def test_every_arm_runs_and_leaves_a_sound_record_of_finite_numbers(name, scale, make_record):
    for config in arms(name, scale):
        outcome = measured(name, tiny(config))
        assert outcome.metrics
        assert all(math.isfinite(m.value) and m.n > 0 for m in outcome.metrics.values()), config
        assert all(map(math.isfinite, itertools.chain(*outcome.series.values())))
        trial = EXPERIMENTS[name].trial(scale, tiny(config), 0)
        assert (
            list(faults(make_record(trial, metrics=outcome.metrics, series=outcome.series)))
            == []
        )
        assert (outcome.parameters > 0) == (name != "free_energy")
        assert [d.name for d in outcome.data] == (
            [tiny(config).data] if name in TRAINED else []
        )


@pytest.fixture(scope="module")
def records(make_record):
    """A record of every trial of a scale, as if it had run there on real data, with the names and units that a run yields."""

    def of(scale: str) -> list:
        found = []
        for name, experiment in EXPERIMENTS.items():
            for trial in experiment.trials(scale):
                outcome = measured(name, tiny(whole_config(trial)))
                metrics = {
                    k: m.model_copy(update={"value": m.value + trial.seed / 100})
                    for k, m in outcome.metrics.items()
                }
                config = whole_config(trial).model_dump(mode="json")
                series = {**outcome.series, "epsilons": [0.0, 0.1, 0.2, 0.5]}
                series |= {k: [0.99] for k in series if k.startswith("batch_accuracy")}
                series |= {
                    k: [0.9, 0.5, 0.3 + trial.seed / 100, 0.1]
                    for k in series
                    if k.endswith(("_cnn", "_capsules"))
                }
                metrics |= {
                    k: m.model_copy(update={"value": 4.0})
                    for k, m in metrics.items()
                    if k == "capsules_familiar"
                }
                found.append(
                    make_record(
                        trial,
                        config=config,
                        metrics=metrics,
                        parameters=outcome.parameters,
                        series=series,
                    )
                )
        return found

    return of


def test_the_chapters_own_records_answer_every_claim_at_paper_scale_and_all_that_can_be_asked_at_cpu_scale(
    records,
):
    """No claim asks for a metric that no run yields, leaves an arm open, or is of another unit than what answers it."""
    claims = ledger("em_routing")
    for scale in ("paper", "cpu"):
        of_scale = records(scale)
        for name, query in QUERIES.items():
            if scale == "cpu" and (
                name in ("EM-X-small-68k", "EM-X-cifar10")
                or any(leaf.paper_scale_only for leaf in q.leaves(query))
            ):
                continue
            if isinstance(query, q.Erratum) or (
                scale == "cpu"
                and claims[name].kind == "property"
                and isinstance(query, q.Value)
            ):
                continue  # no run answers the first, and a reduced network has other counts
            verdict = judge(claims[name], query, of_scale)
            for part in verdict.parts or [verdict]:
                assert part.status not in GROUPS[NOT_RUN], f"{name}: {part.reason}"
                assert part.ours is not None, f"{name}: {part.reason}"
                assert part.scale == scale, name


def test_what_the_claims_read_of_curves(make_record):
    """The CNN of Table 2 at its end, not where it was matched; attacks at one step, by both metrics."""
    trial = EXPERIMENTS["viewpoint"].trials("cpu")[0]
    familiar = {"cnn_familiar": Metric(value=17.5, n=8100, unit="percent")}
    record = make_record(trial, metrics=familiar, series={"cnn_familiar": [20.0, 17.5, 9.0]})
    (leaf,) = q.leaves(QUERIES["EM-T2-azi-familiar-cnn"])
    assert q.read(leaf.metric, record) == Metric(value=9, n=8100, unit="percent")
    assert q.read(leaf.metric, make_record(trial, metrics=familiar)) is None

    curves = {
        "fgsm_capsules": [0.8, 0.6, 0.4],
        "fgsm_cnn": [1.0, 0.5, 0.25],
        "targeted_capsules": [0.2, 0.3, 0.4],
        "targeted_cnn": [0.2, 0.5, 0.9],
    }
    attacked = make_record(
        trial,
        metrics={"zero_share_cnn": Metric(value=0, n=500, unit="")},
        series={"epsilons": [0, 0.1, 0.2], **curves},
    )
    found = {
        name: q.read(part.metric, attacked) for name, part in QUERIES["EM-W-2"].parts.items()
    }
    assert {name: (round(m.value, 6), m.n, m.unit) for name, m in found.items()} == {
        f"{name}": (value, 500, "difference of fractions")
        for name, value in {
            "untargeted FGSM, ε = 0.1, accuracy": 0.1,
            "untargeted FGSM, ε = 0.1, share of the accuracy that is kept": 0.25,
            "untargeted FGSM, ε = 0.2, accuracy": 0.15,
            "untargeted FGSM, ε = 0.2, share of the accuracy that is kept": 0.25,
            "targeted FGSM, ε = 0.1, accuracy": 0.2,
            "targeted FGSM, ε = 0.2, accuracy": 0.5,
        }.items()
    }


def test_a_capsule_layer_stores_matrices_and_two_biases():
    """EM-W-7: two numbers for each type of parent, and a 4 × 4 matrix for each pair of types, at each place of a window."""
    network = MatrixCapsNet((2, 32, 32))
    for layer in (network.capsules1, network.capsules2, network.classes):
        assert isinstance(layer, ConvCapsules | ClassCapsules)
        stored = dict(layer.named_parameters())
        assert set(stored) == {"weight", "routing.beta_u", "routing.beta_a"}
        *_, parents, rows, columns = stored["weight"].shape
        assert (rows, columns) == (4, 4)
        assert stored["routing.beta_u"].shape == stored["routing.beta_a"].shape == (parents,)
    for config in arms("sizes", "paper"):
        measure = measured("sizes", config).metrics
        assert config.network == "cnn" or measure["beside_matrices_and_two_biases"].value == 0


def test_sizes_are_those_of_the_paper():
    found = {c.network: measured("sizes", c) for c in arms("sizes", "paper")}
    assert {n: o.parameters for n, o in found.items()} == {
        "main": 316_650,
        "small": 68_618,
        "cnn": 4_253_349,
    }
    assert found["cnn"].metrics["times_main"].value == pytest.approx(4_253_349 / 316_650)
    assert found["main"].metrics["ciresan_times"].value == pytest.approx(2.7e6 / 316_650)


def test_only_the_matched_steps_never_raise_the_free_energy():
    for config in arms("free_energy", "smoke"):
        rise = (
            EXPERIMENTS["free_energy"]
            .run(config, Context(seed=0))
            .metrics["largest_rise"]
            .value
        )
        if config.e_step == "matched":
            assert rise < 1e-9, config
        elif config.form == "printed" and config.children == 8:
            assert rise > 0.01, config


# ---------------------------------------------------------------------------------------------------------------- training


@pytest.mark.parametrize(
    ("factor", "known"), [("azimuth", {0, 2, 4, 30, 32, 34}), ("elevation", {0, 1, 2})]
)
def test_trained_on_familiar_viewpoints_and_tested_on_both_kinds(factor, known):
    """§5.1: a third of the azimuths, 300° to 40°, or the three smallest elevations. Nothing is left out of the test."""
    for name, parts in {"train": {"train"}, "test": {"familiar", "novel"}}.items():
        split = data.load("toys", name)
        views = {
            part: set(split[factor][mask].tolist())
            for part, mask in EMRecipe(factor=factor).choose(split).items()
        }
        assert set(views) == parts
        assert views.pop("novel", set()) == (
            set(split[factor].tolist()) - known if name == "test" else set()
        )
        assert all(found == known for found in views.values())


def test_no_arm_is_a_copy_of_another():
    """From the same random numbers every network of Table 1 that routes three times makes something else of the same images."""
    fields = {"pose", "coordinates", "activation", "normalise", "preset"}
    found = [
        c
        for c in arms("test_error", "paper")
        if c.network == "matrix_capsnet" and c.iterations == 3
    ]
    given, answers = torch.randn(8, 2, 24, 24, generator=torch.Generator().manual_seed(0)), {}
    for told, config in {str(c.model_dump(include=fields)): c for c in found}.items():
        with torch.no_grad():
            answers[told] = new_network(
                config.recipe(data="toys", sizes=(4, 2, 2, 2)), (2, 24, 24), 0
            )(given)
    assert len(answers) >= 9
    for one, two in itertools.combinations(answers, 2):
        assert not torch.allclose(answers[one], answers[two], rtol=0, atol=1e-6), (one, two)


@pytest.mark.parametrize("preset", ["printed", "released", "calibrated"])
def test_only_the_calibrated_preset_sets_a_start_and_half_of_the_capsules_are_active(preset):
    config = tiny(EMRecipe(data="toys", preset=preset))
    images = config.splits(Context(seed=0))[0]["train"]
    network, seen = new_network(config, config.input_shape, 0), config.seen(images.inputs)
    drawn = network.layers(seen)
    config.start(network, images, 0)
    for name, layer in network.layers(seen).items():
        assert torch.equal(layer.activation, drawn[name].activation) == (
            preset != "calibrated"
        ), name
        assert preset != "calibrated" or 0.4 < layer.activation.mean() < 0.6, name


def test_the_margin_rises_as_in_the_release_and_as_in_the_paper():
    assert margin_at(0, "sigmoid") == pytest.approx(0.214, abs=5e-4)
    assert margin_at(0.5, "sigmoid") == pytest.approx(0.595, abs=5e-4)
    assert margin_at(1, "sigmoid") == pytest.approx(0.976, abs=5e-4)
    assert [margin_at(p, "linear") for p in (0, 0.5, 1)] == pytest.approx([0.2, 0.55, 0.9])
    assert {margin_at(p, "fixed") for p in (0, 0.5, 1)} == {0.9}


def test_schedules_and_weight_decay_reach_the_optimiser(monkeypatch):
    """Both rates are stretched over the training; decay is for weights and not for biases or β."""
    seen, history = {}, History({"loss": [1.0] * 8}, {"test_error": [50.0]})
    monkeypatch.setattr(
        training,
        "fit",
        lambda network, *_, **options: seen.update(options, network=network) or history,
    )
    config = tiny(EMRecipe(data="toys", weight_decay=0.25))
    for decay, rates in {
        "exponential": (1, 0.96**50, 0.96**100),
        "cosine": (1, 0.5, 0),
    }.items():
        train(config.model_copy(update={"decay": decay}), 0, Context(seed=0))
        steps = seen["epochs"] * math.ceil(40 / seen["batch_size"])
        groups = seen["optimizer"].param_groups
        for step, factor in zip((0, steps / 2, steps), rates, strict=True):
            seen["before_step"](step)
            assert [g["lr"] for g in groups] == pytest.approx([3e-3 * factor] * 2)
        decayed, plain = groups
        assert (decayed["weight_decay"], plain["weight_decay"]) == (0.25, 0)
        names = {id(p): name for name, p in seen["network"].named_parameters()}
        assert {names[id(p)] for p in decayed["params"]} == {
            n for n in names.values() if n.endswith("weight") and ".bias" not in n
        }
        assert len(decayed["params"]) + len(plain["params"]) == len(names)


def test_jitter_reaches_the_network_only_where_the_image_is_standardised_before_it():
    """The release standardises last and so undoes most of the jitter; the paper's text standardises first."""
    images = EMRecipe(data="toys", images=8).splits(Context(seed=0))[0]["train"].inputs
    moved = {}
    for first in ("crop", "image"):
        recipes = [
            EMRecipe(data="toys", resize=48, crop=32, standardise=first, jitter=jitter)
            for jitter in (True, False)
        ]
        shifts = [
            r.model_copy(update={"crop": 48}).prepare(images, torch.Generator().manual_seed(1))
            for r in recipes
        ]
        moved[first] = (
            (shifts[0] - shifts[1]).square().mean().sqrt().item()
        )  # the whole image: no place to draw
    assert moved["crop"] < 0.1 < 0.5 < moved["image"]


def test_where_the_image_is_standardised_first_test_crops_keep_its_moments():
    images = EMRecipe(data="toys", images=8).splits(Context(seed=0))[0]["train"].inputs
    recipe = EMRecipe(data="toys", resize=48, crop=32, standardise="image")
    x = images.float() / 255
    mean, std = (
        x.mean(dim=(1, 2, 3), keepdim=True),
        x.std(dim=(1, 2, 3), keepdim=True, correction=0),
    )
    torch.testing.assert_close(recipe.seen(images), ((x - mean) / std)[..., 8:40, 8:40])


def test_a_part_of_the_images_has_all_that_is_in_the_whole():
    """The sets are sorted by their factors: equal steps through smallNORB miss every sixth lighting and an instance."""
    whole = data.load("toys", "test")
    part = EMRecipe(data="toys", resize=22, images=500).splits(Context(seed=0))[0]["test"]
    assert len(part.labels) == 500
    assert len(part.some(60).labels) == 60
    rows = training.subset(len(whole), 500)
    assert part.labels.tolist() == whole["labels"][rows].tolist()
    for factor in ("labels", "instance", "elevation", "azimuth", "lighting"):
        assert set(whole[factor][rows].tolist()) == set(whole[factor].tolist()), factor
    assert len(training.subset(7, 0)) == 7


@pytest.mark.parametrize(
    ("right", "moved"),
    [
        ([0.5] * 16, 0),
        (
            [0] * 12 + [0.25, 0.75, 0.25, 0.75],
            0.5,
        ),  # four epochs of four steps: the third and the last
        ([0] * 8 + [0.75, 0.25, 0.75, 0.25] + [0] * 4, 0.5),  # falling back is moving
        ([1, 1, 1, 1] + [0] * 4 + [0.5] * 8, 0),  # what came before does not count
        ([0.2], 0),
        ([0, 0.4], 0.4),
    ],
    ids=["flat", "better", "worse", "early", "one step", "two steps"],
)
def test_how_far_the_training_error_still_moved(right, moved):
    epochs = {"error_of_some": [0.0] * -(-len(right) // 4)}
    trained = Trained(
        nn.Identity(),
        History({"accuracy": right}, epochs),
        {},
        [data.load("toys", "test").fingerprint],
    )
    metric = error_change(trained)["error_change_last_quarter"]
    assert metric.value == pytest.approx(
        moved / 0.8
    )  # five classes: guessing errs in four of five cases


def test_the_loss_that_is_asked_for_is_taken_with_the_margin_of_the_step():
    scores, labels = torch.tensor([[0.5, 0.1], [0.2, 0.9]]), torch.tensor([0, 0])

    def of(margin: float, **change: str) -> float:
        objective = EMRecipe(**change).objective(torch.device("cpu"))
        if hasattr(objective, "margin"):
            objective.margin.fill_(margin)
        return float(objective.terms(scores, labels)["loss"])

    assert of(0.2) == pytest.approx((0 + 0.9**2) / 2)
    assert of(0.9) == pytest.approx((0.5**2 + 1.6**2) / 2)
    assert (
        of(0.2, loss="cross_entropy")
        == of(0.9, loss="cross_entropy")
        == pytest.approx(float(nn.functional.cross_entropy(scores, labels)))
    )
    assert of(0.2, network="cnn") == of(0.2, loss="cross_entropy")
    assert of(0.2, loss="margin") == of(0.9, loss="margin") != of(0.2)


@pytest.mark.parametrize("network", ["cnn", "matrix_capsnet"])
def test_a_trial_is_a_function_of_its_seed(network):
    """Dropout draws from torch's own generator, which other trials of a worker have used."""
    config = tiny(TestErrorConfig(data="toys", network=network))
    found = []
    for drawn_before, seed in ((1, 0), (2, 0), (1, 3)):
        torch.manual_seed(drawn_before)
        found.append(EXPERIMENTS["test_error"].run(config, Context(seed=seed)).series["loss"])
    assert found[0] == found[1] != found[2]


def test_killed_and_taken_up_again_a_trial_of_several_trainings_leaves_the_same_record(
    store, tmp_path
):
    """Stopped in the first training and in the last: both go on where they were, and those between are not run again."""
    experiment = EXPERIMENTS["viewpoint"]
    config = tiny(experiment.grid("smoke")[0])
    trial = experiment.trial("smoke", config, 0)
    whole = run_trial(experiment, trial, Store(tmp_path / "whole"), Context(seed=0))
    assert whole.exit == "ok", whole.message
    for stop_in in range(len(experiment.trainings(config, 0))):
        asked = [0]

        def stop(asked=asked, stop_in=stop_in) -> bool:
            finished = len(list(store.trainings.glob("*.pt")))
            asked[0] += finished >= stop_in
            return finished >= stop_in and asked[0] > 1

        with pytest.raises(Interrupted):
            run_trial(experiment, trial, store, Context(seed=0, stop=stop))
        torch.rand(7)
    again = run_trial(experiment, trial, store, Context(seed=0))
    assert again.exit == "ok"
    assert again.resumed_from
    assert (again.metrics, again.series) == (whole.metrics, whole.series)


# ------------------------------------------------------------------------------------------------ what is made of a training


@pytest.mark.parametrize(
    ("cnn", "capsules", "epochs"),
    [
        (
            [9, 5, 4],
            [8, 4, 2],
            (3, 2),
        ),  # the capsules are better: where they were as the CNN is at its end
        (
            [9, 3, 1],
            [8, 6, 5],
            (1 + 4 / 6, 3),
        ),  # the CNN is better; its line from 9 to 3 meets 5 after four sixths
        (
            [9, 5, 4, 5],
            [8, 4, 2, 3],
            (4, 1.75),
        ),  # the worse at its end, even if it had the same error before
        ([9, 3, 6, 2], [8, 6, 5, 5], (1 + 4 / 6, 4)),  # the first time
        ([9, 4, 4], [4, 4, 4], (3, 3)),
        ([9, 8, 7], [6, 5, 4], (3, 1 - 1 / 74)),  # within the first epoch
        ([84, 83, 85], [81, 79, 82], (3, 0)),  # who learns nothing is compared with guessing
    ],
)
def test_models_are_compared_where_their_familiar_errors_match(cnn, capsules, epochs):
    errors = {"cnn": [80, *cnn], "capsules": [80, *capsules]}
    found = matched(errors)
    assert found == pytest.approx(dict(zip(errors, epochs, strict=True)))
    if max(cnn[-1], capsules[-1]) < 80:
        reached = {
            model: np.interp(found[model], range(len(of)), of) for model, of in errors.items()
        }
        assert reached["cnn"] == pytest.approx(reached["capsules"])


def test_a_viewpoint_trial_tells_the_errors_of_its_matched_epochs():
    for config in arms("viewpoint", "smoke"):
        outcome = measured("viewpoint", tiny(config))
        value = {name: m.value for name, m in outcome.metrics.items()}
        epochs = matched(
            {m: [80, *outcome.series[f"{m}_familiar"]] for m in ("cnn", "capsules")}
        )
        for model, epoch in epochs.items():
            assert value[f"{model}_epoch"] == epoch
            for view in ("familiar", "novel"):
                curve = [80, *outcome.series[f"{model}_{view}"]]
                assert value[f"{model}_{view}"] == np.interp(epoch, range(len(curve)), curve)
        assert value["novel_gap"] == value["cnn_novel"] - value["capsules_novel"]
        assert value["reduction"] == pytest.approx(
            100 * value["novel_gap"] / value["cnn_novel"]
        )


def test_what_a_record_of_attacks_tells():
    (config,) = arms("attacks", "smoke")
    outcome = measured("attacks", tiny(config))
    curves, value = outcome.series, {name: m.value for name, m in outcome.metrics.items()}
    for attack in ("fgsm", "bim", "transfer"):
        for name in ("capsules", "cnn"):
            assert len(curves[f"{attack}_{name}"]) == len(config.epsilons)
            assert curves[f"{attack}_{name}"][0] > 0, (
                "ten images of which none is known show nothing"
            )
    assert value["least_fgsm_accuracy"] == min(
        *curves["fgsm_capsules"], *curves["fgsm_spread_capsules"]
    )
    assert value["zero_gap"] == value["zero_share_cnn"] - value["zero_share_capsules"]
    with pytest.raises(ValidationError, match="the first step is 0"):
        type(config)(**{**config.model_dump(), "epsilons": (0.1, 0.2)})


class Lit(nn.Module):
    """Answers by where the brightest pixel of a crop is: ``centre`` at (10, 10), and ``diagonal`` elsewhere on the diagonals."""

    def __init__(self, centre: list[float], diagonal: list[float]):
        super().__init__()
        self.answers, self.crops = torch.tensor([diagonal, centre]), []

    def forward(self, crops: Tensor) -> Tensor:
        self.crops += crops
        row, column = (
            crops.sum(dim=1).flatten(1).argmax(dim=1) // 20,
            crops.sum(dim=1).flatten(1).argmax(dim=1) % 20,
        )
        assert ((row - 10).abs() == (column - 10).abs()).all()
        return self.answers[((row == 10) & (column == 10)).long()]


@pytest.mark.parametrize("standardise", ["crop", "image"])
@pytest.mark.parametrize(
    ("network", "centre", "diagonal"),
    [("matrix_capsnet", [0.9, 0.1], [0.01, 0.03]), ("cnn", [20.0, -1.0], [-2.0, -1.0])],
)
def test_all_crops_have_the_same_weight_in_a_vote(network, centre, diagonal, standardise):
    """One crop is sure of class 0; its twelve neighbours lean to class 1, hardly active or with small logits, and outvote it."""
    config = EMRecipe(data="toys", network=network, resize=26, crop=20, standardise=standardise)
    images = torch.randint(
        100, (3, 2, 26, 26), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    images[:, :, 13, 13] = 255
    examples, lit = Examples(images, torch.tensor([1, 1, 0])), Lit(centre, diagonal)
    assert config.error(lit, examples) == pytest.approx(200 / 3)
    (*seen,), lit.crops = lit.crops, []
    assert config.error_of_crops(lit, examples) == pytest.approx(100 / 3)
    assert len(lit.crops) == 13 * 3
    for centre_crop in seen:  # standardised as in every other test
        assert any(torch.equal(centre_crop, crop) for crop in lit.crops)


class Looks(nn.Module):
    """A class is as likely as its four rows are bright, in some columns of the first image of a pair."""

    def __init__(self, columns: slice, scale: float):
        super().__init__()
        self.columns, self.scale = columns, scale

    def forward(self, pairs: Tensor) -> Tensor:
        return self.scale * pairs[:, 0, :, self.columns].unflatten(1, (5, 4)).mean(dim=(2, 3))


def test_what_each_attack_does_to_networks_whose_gradients_are_known(monkeypatch):
    """Victims look at the left; the network behind the black box at the right; the CNN's gradients are a hundred times as large."""
    labels = torch.tensor([1, 2, 3, 4])
    pairs = torch.full((4, 2, 20, 20), 100, dtype=torch.uint8)
    pairs[:, 1, :, ::2] = 200
    for pair, label in zip(pairs, labels, strict=True):
        pair[0, 4 * label : 4 * label + 4] = 120
    config = tiny(arms("attacks", "smoke")[0]).model_copy(
        update={"crop": 20, "epsilons": (0.0, 1.0)}
    )
    left, right = slice(0, 10), slice(10, 20)
    shown = {
        ("cnn", 0): Looks(left, 0.1),
        ("cnn", 1000): Looks(right, 0.1),
        ("matrix_capsnet", 0): Looks(left, 0.001),
    }
    history, made = (
        History({"loss": [1.0], "accuracy": [1.0]}),
        data.load("toys", "test").fingerprint,
    )
    splits = {"test": Examples(pairs, labels)}
    monkeypatch.setattr(
        adversarial,
        "train",
        lambda recipe, seed, context: Trained(
            shown[recipe.network, seed], history, splits, [made]
        ),
    )
    outcome = adversarial.run(config, Context(seed=0))
    for name in ("cnn", "capsules"):
        assert outcome.series[f"fgsm_{name}"] == outcome.series[f"bim_{name}"] == [1, 0]
        assert outcome.series[f"transfer_{name}"] == [1, 1], (
            "it does not know where the victim looks"
        )
        assert outcome.series[f"targeted_{name}"] == [0.2, 1], (
            "every class is a target, that of an image too"
        )
    assert outcome.series["fgsm_spread_capsules"] == [1, 0], (
        "the margin leaves a gradient where all are right"
    )
    assert outcome.metrics["gradient_orders"].value == pytest.approx(2, abs=0.05)


@pytest.mark.parametrize("name", ["viewpoint", "attacks"])
def test_a_cnn_alone_is_the_cnn_beside_the_capsules(name):
    """So the weights that one claim needs serve the other, and a page may show either."""
    both, alone = (
        arms(name, "paper")[0],
        next(c for c in arms(name, "paper") if c.network == "cnn"),
    )
    assert alone == both.model_copy(update={"network": "cnn", "normalise": alone.normalise}), (
        "nobody competes in a CNN"
    )
    assert [t.recipe.network for t in EXPERIMENTS[name].trainings(alone, 0)] == ["cnn"]
    whole, part = (measured(name, tiny(config)).series for config in (both, alone))
    shared = {curve for curve in whole if "cnn" in curve} - {"transfer_cnn"}
    assert shared == {curve for curve in part if "cnn" in curve}
    assert {curve: whole[curve] for curve in shared} == {curve: part[curve] for curve in shared}


def test_votes_are_counted_by_distance_for_right_and_wrong_classes():
    right = torch.tensor([[True, False, False], [False, False, True]])
    distance = torch.tensor(
        [[[0.001, 0.015, 0.399]], [[0.5, 9.0, 0.012]]]
    )  # [N = 2, I = 1, J = 3]
    mass = torch.tensor([[[0.5, 0.3, 0.2]], [[0.1, 0.2, 0.4]]])
    found = table1.vote_histogram(distance, mass, right)
    assert found.shape == (2, table1.BINS)
    assert {k: round(v, 6) for k, v in enumerate(found[0].tolist()) if v} == {0: 0.5, 1: 0.4}
    assert {k: round(v, 6) for k, v in enumerate(found[1].tolist()) if v} == {
        1: 0.15,
        table1.BINS - 1: 0.25,
    }  # two wrong classes


def test_histograms_hold_the_mass_of_all_assignments():
    """A child of a class layer gives away all of itself, so over the classes the mass is that of the active children."""
    config = tiny(TestErrorConfig(data="toys", sizes=(6, 3, 3, 3)))
    test = config.splits(Context(seed=0))[0]["test"]
    network = new_network(config, config.input_shape, 0)
    config.start(network, test, 0)
    metrics, curves = table1.look_inside(config, network, test)
    second = network.layers(config.seen(test.inputs))["capsules2"].activation
    active, wrong = second.flatten(1).sum(dim=1).mean().item(), 4
    for t in (1, 2, 3):
        right_mass, wrong_mass = (
            sum(curves[f"votes_{kind}_{t}"]) for kind in ("right", "wrong")
        )
        assert right_mass + wrong * wrong_mass == pytest.approx(active, rel=1e-3)
        for kind in ("right", "wrong"):
            close = sum(
                v
                for v, d in zip(curves[f"votes_{kind}_{t}"], curves["distances"], strict=True)
                if d < table1.CLOSE - 1e-9
            )
            assert metrics[f"close_{kind}_{t}"].value == pytest.approx(close, abs=1e-4)
    for t, name in (
        (1, "right_share_of_close_1"),
        (2, "right_share_of_close_2"),
        (3, "right_share_of_close"),
    ):
        right, wrong_ones = (
            metrics[f"close_right_{t}"].value,
            wrong * metrics[f"close_wrong_{t}"].value,
        )
        assert metrics[name].value == pytest.approx(right / (right + wrong_ones))
    assert network.classes.routing.iterations == config.iterations
    dead = [metrics[f"dead_{name}"] for name in ("primary", "capsules1", "capsules2")]
    assert metrics["dead"].value == pytest.approx(
        sum(d.value * d.n for d in dead) / sum(d.n for d in dead)
    )


def test_a_wrong_class_gets_what_it_would_as_the_right_one():
    """The class capsules do not know the label: the wrong classes of one label are the right ones of the others."""
    config = tiny(TestErrorConfig(data="toys"))
    inputs = config.splits(Context(seed=0))[0]["test"].inputs[:10]
    network = new_network(config, config.input_shape, 0)
    network.classes.weight.data *= torch.tensor([1.0, 20, 40, 60, 80])[
        :, None, None
    ]  # votes for some classes lie farther apart
    found = [
        table1.look_inside(config, network, Examples(inputs, torch.full((10,), c)))[1]
        for c in range(5)
    ]
    right, wrong = (
        torch.tensor([of[f"votes_{kind}_3"] for of in found]) for kind in ("right", "wrong")
    )
    assert torch.cdist(right, right)[0, 1:].min() > 0.01
    torch.testing.assert_close(wrong, (right.sum(dim=0) - right) / 4, rtol=0, atol=1e-5)


def test_a_type_is_dead_where_no_image_makes_it_more_active_than_a_twentieth():
    """Primary capsules of which one type is never more active than 0.03, one than 0.08; others always are with 0.27."""
    config = tiny(TestErrorConfig(data="toys")).model_copy(update={"sizes": (4, 4, 2, 2)})
    network = new_network(config, config.input_shape, 0)
    for parameter, value in (
        (network.conv.weight, 0),
        (network.conv.bias, 0.25),
        (network.primary.logits.weight, 0),
    ):
        nn.init.constant_(parameter, value)  # so the four features are 0.25 everywhere
    for kind, activation in enumerate((0.03, 0.08)):
        nn.init.constant_(
            network.primary.logits.weight[kind], 1 + math.log(activation / (1 - activation))
        )
    metrics, _ = table1.look_inside(config, network, config.splits(Context(seed=0))[0]["test"])
    assert (metrics["dead_primary"].value, metrics["dead_primary"].n) == (0.25, 4)


# --------------------------------------------------------------------------------------------------------------- deviations

BUDGET = "budget of this scale"


def named(name: str, config: Config, why: str | None = None) -> set[str]:
    return {d.what for d in deviations(STEM, name, config) if why in (None, d.why)}


@pytest.mark.parametrize("name", TRAINED)
def test_at_paper_scale_the_length_of_the_training_is_ours(name):
    for config in arms(name, "paper"):
        assert "length of the training" in named(name, config)


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("scale", ["smoke", "cpu"])
def test_at_other_scales_deviations_name_exactly_the_fields_that_a_budget_changes(name, scale):
    budget = (
        "sizes",
        "cnn",
        "resize",
        "crop",
        "jitter",
        "images",
        "epochs",
        "batch_size",
        "learning_rate",
        "decay",
        "weight_decay",
    )
    for config in arms(name, scale):
        fields, own = type(config).model_fields, set(budget)
        if config.data in ("mnist", "digits"):
            own -= {"resize", "crop", "jitter"}  # part of that arm at every scale
        if name == "attacks":
            own |= {"epsilons", "attacked", "bim_steps"}
        differ = [f for n, f in fields.items() if n in own and getattr(config, n) != f.default]
        assert named(name, config, BUDGET) == {f.title for f in differ}
        assert differ


@pytest.mark.parametrize(
    ("change", "told", "not_told"),
    [
        (
            {},
            {"start of β and λ", "size of smallNORB images"},
            {"vector pose", "dropout of the CNN"},
        ),
        ({"preset": "printed"}, {"start of β and λ, variance floor"}, {"start of β and λ"}),
        ({"preset": "released"}, {"ε in the mass"}, {"start of β and λ"}),
        (
            {"pose": "vector"},
            {"vector pose", "windows that step by two"},
            {"mixing proportions"},
        ),
        ({"activation": "mixing"}, {"mixing proportions"}, set()),
        (
            {"activation": "mixing", "normalise": "types+positions"},
            set(),
            {"mixing proportions", "windows that step by two"},
        ),
        ({"data": "mnist"}, {"rotation of MNIST digits"}, {"size of smallNORB images"}),
        ({"data": "cifar10"}, {"crops of CIFAR-10"}, {"size of smallNORB images"}),
        ({"network": "cnn"}, {"dropout of the CNN"}, {"start of β and λ"}),
    ],
    ids=[
        "main",
        "printed",
        "released",
        "vector",
        "mixing",
        "printed mixing",
        "mnist",
        "cifar10",
        "cnn",
    ],
)
def test_an_arm_says_what_is_its_own(change, told, not_told):
    found = named("test_error", TestErrorConfig(**change))
    assert told <= found
    assert not not_told & found


def test_every_experiment_with_a_cnn_says_at_which_rate_it_learns():
    what = "Adam learning rate of the CNN"
    assert all(
        what in named(name, c) for name in ("viewpoint", "attacks") for c in arms(name, "paper")
    )
    assert {
        c.network for c in arms("test_error", "paper") if what in named("test_error", c)
    } == {"cnn"}
    assert not any(
        what in named(name, c) for name in TRAINED for c in arms(name, "cpu")
    )  # the same there


def test_viewpoints_and_attacks_say_what_the_paper_leaves_open():
    assert all(
        ("matched error" in named("viewpoint", c)) == (c.network != "cnn")
        for c in arms("viewpoint", "paper")
    )
    assert all(
        {"scale of ε", "loss of the attack"} <= named("attacks", c)
        for c in arms("attacks", "paper")
    )


# ------------------------------------------------------------------------------------------------------------- paper scale


def test_the_cnn_of_full_size_outlives_its_first_steps():
    """A network that gives all images one answer has died, and any capsules would beat it."""
    (of_paper,) = (c for c in arms("test_error", "paper") if c.network == "cnn")
    config = of_paper.model_copy(update={"data": "toys", "images": 320})
    trained = train(config, 0, Context(seed=0, max_steps=25))
    with torch.no_grad():
        answers = trained.network(config.seen(trained.splits["train"].inputs))
    assert not (answers == answers[0]).all()


def test_a_rehearsal_computes_as_the_run_would():
    """A training of fewer images would be a shorter one, which is not worth compiling: a rehearsal of something else."""
    config = EMRecipe(**REDUCED["smoke"])
    (whole, _), (rehearsed, _) = (
        config.splits(Context(seed=0, max_steps=steps)) for steps in (None, 3)
    )
    assert torch.equal(rehearsed["train"].inputs, whole["train"].inputs)
    assert len(whole["test"].labels) == config.images
    assert len(rehearsed["test"].labels) == 2 * config.batch_size


@pytest.mark.real_data
@pytest.mark.parametrize("name", TRAINED)
def test_a_rehearsal_at_paper_scale(store, real, name):
    """Two steps of the small network on real pairs, and everything that comes after a training."""
    experiment = EXPERIMENTS[name]
    change = {"sizes": SMALL, "batch_size": 4, "cnn": (4, 4, 8), "epochs": 1, "images": 100}
    change |= {"attacked": 2, "bim_steps": 2} if name == "attacks" else {}
    trial = experiment.trials("paper", seeds=[0], change=change)[0]
    record = run_trial(
        experiment, trial, store, Context(seed=0, max_steps=2, data_dir=real("smallnorb"))
    )
    assert (record.exit, record.message) == ("cut", "")
    assert record.real
    assert all(math.isfinite(m.value) for m in record.metrics.values())
