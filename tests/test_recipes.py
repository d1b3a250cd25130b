"""Recipes name trainings; everything that needs the same training shares it."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import subprocess
import sys
import time
from collections import Counter
from typing import Literal

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from capslib import recipes, training
from capslib.config import Config, matches
from capslib.data import prepared
from capslib.data.registry import SETS, DataSet
from capslib.errors import Interrupted, UserError
from capslib.lab.runs import run_trial
from capslib.papers import PAPERS, experiments
from capslib.papers.em_routing import recipe as em_recipe
from capslib.papers.em_routing.recipe import MARGIN_STEPS, SMALLER, EMRecipe
from capslib.papers.experiment import Arm
from capslib.papers.inequality_anomaly.recipe import REDUCED as ANOMALY
from capslib.papers.inequality_anomaly.recipe import AnomalyRecipe
from capslib.papers.negation_limitation.sign import SignRecipe
from capslib.recipes import Recipe, Training, flops, new_network, train
from capslib.registry import NETWORKS, ROUTINGS
from capslib.routing import Routing
from capslib.training import Context, Patience

SIGN = SignRecipe(routing="dynamic", bias=True, points=60, epochs=3, batch_size=20)


@pytest.fixture
def fits(monkeypatch) -> list[int]:
    """The steps that were really taken, one entry a training."""
    taken: list[int] = []
    gradients = training._Gradients.__call__

    def counted(self, batch):
        taken[-1] += 1
        return gradients(self, batch)

    fit = training.fit

    def started(*args, **kwargs):
        taken.append(0)
        return fit(*args, **kwargs)

    monkeypatch.setattr(training._Gradients, "__call__", counted)
    monkeypatch.setattr(training, "fit", started)
    return taken


# ----------------------------------------------------------------------------------------------
# names


@pytest.mark.parametrize(
    ("field", "given", "nearest"),
    [
        ("routing", "dynamc", "dynamic"),
        ("network", "deep_capsnett", "deep_capsnet"),
        ("loss", "margn", "margin"),
        ("data", "mnits", "mnist"),
    ],
)
def test_a_mistyped_name_is_told_the_nearest(field, given, nearest):
    with pytest.raises(ValidationError, match=f"Did you mean '{nearest}'"):
        EMRecipe(**{field: given})


def test_a_name_that_is_registered_later_is_valid(monkeypatch):
    with pytest.raises(ValidationError):
        EMRecipe(routing="mine")
    monkeypatch.setitem(recipes.ROUTINGS, "mine", recipes.ROUTINGS["em"])
    assert EMRecipe(routing="mine").routing == "mine"


def test_a_recipe_builds_the_routing_that_it_names():
    """It was the default of the network, under another name. A network without a routing gets
    none.
    """
    for name in ("dynamic", "em", "similarity"):
        network = new_network(
            Recipe(data="digits", network="matrix_capsnet", routing=name), (1, 17, 17), 0
        )
        assert {type(m) for m in network.modules() if isinstance(m, Routing)} == {
            ROUTINGS[name]
        }
    new_network(Recipe(data="digits", network="cnn", routing="em"), (1, 8, 8), 0)


@pytest.mark.parametrize(
    "network", ["deep_capsnet", "sign", "sparse_capsnet", "autoencoder", "anomaly_capsnet"]
)
def test_a_plain_recipe_says_whose_recipe_builds_a_network_that_it_cannot(network):
    """They ended in a bare TypeError, but for the autoencoder: its sixteen latent capsules
    passed for classes.
    """
    paper = NETWORKS[network].__module__.rpartition(".")[2]
    advice = f"Take a recipe of capslib.papers.{paper}, or override"
    with pytest.raises(UserError, match=f"^Recipe cannot build .*'{network}': .*{advice}"):
        new_network(Recipe(data="digits", network=network), (1, 28, 28), 0)


def test_a_recipe_of_your_own_may_say_what_its_network_needs(monkeypatch):
    class Deep(Recipe):
        def options(self):
            return {"depth": 2, "filters": 8, "primary_types": 2}

    new_network(Deep(data="digits", network="deep_capsnet"), (1, 28, 28), 0)
    monkeypatch.setitem(NETWORKS.data, "mine", lambda shape: torch.nn.Flatten())
    advice = "In a recipe of your own, override options"
    with pytest.raises(UserError, match=rf"'mine': it takes no number of classes\. {advice}"):
        new_network(Recipe(data="digits", network="mine"), (1, 28, 28), 0)


def test_a_recipe_without_data_says_so():
    with pytest.raises(UserError, match="Recipe names no data set: give data=, one of mnist"):
        train(Recipe(network="cnn"), 0, Context(seed=0))


# ----------------------------------------------------------------------------------------------
# keys


class Old(Config):
    size: int = 3
    kind: Literal["a", "b"] = "a"


class New(Old):
    option: float = 0.5


def test_a_new_option_orphans_no_configuration():
    for fields in ({}, {"size": 4}, {"size": 3, "kind": "b"}):
        assert New(**fields).differences() == Old(**fields).differences()
    assert New(option=1).differences() == {"option": 1}


def test_trainings_have_keys_of_their_own():
    """By what differs from the defaults, the seed, and the paper whose defaults they are."""
    others = [
        SIGN.model_copy(update=change)
        for change in ({"bias": False}, {"epochs": 4}, {"routing": "em_vector"})
    ]
    keys = [Training(r, s).key for r in (SIGN, *others) for s in (0, 1)]
    assert len(set(keys)) == len(keys)

    class Elsewhere(SignRecipe):
        pass

    assert Training(Elsewhere(**SIGN.model_dump()), 0).key != Training(SIGN, 0).key


EM = {"data": "toys", **SMALLER["smoke"]}


def test_what_a_network_sees_of_a_data_set_is_known_before_it_is_read():
    recipe = Recipe(data="mnist", network="cnn", resize=16, downsample=2)
    assert (recipe.input_shape, recipe.train_size) == ((1, 8, 8), 60_000)
    with pytest.raises(
        UserError, match="ham10000 is not split into train and test: choose another set"
    ):
        EMRecipe(data="ham10000").train_size  # noqa: B018


@pytest.mark.parametrize("size", [(18, 24), (24, 18), (24, 24), (20, 30)])
def test_images_of_any_size_are_resized_to_what_the_recipe_says(tmp_path, monkeypatch, size):
    images = np.arange(4 * math.prod(size), dtype=np.uint8).reshape(4, 1, *size)
    split = {"images": images, "labels": np.arange(4)}
    splits = dict.fromkeys(("train", "test"), images.shape)
    monkeypatch.setitem(
        SETS.data,
        "oblong",
        DataSet("oblong", "here", "none", ("a", "b", "c", "d"), splits=splits),
    )
    about = {"source": "here", "licence": "none", "complete": True, "deviations": []}
    prepared.write(tmp_path / "oblong", about, [(name, split) for name in splits])
    recipe = Recipe(data="oblong", network="cnn", resize=24)
    parts, _ = recipe.splits(Context(seed=0, data_dir=tmp_path))
    for part in parts.values():
        assert tuple(part.inputs.shape[1:]) == recipe.input_shape == (1, 24, 24)


def test_one_matcher_takes_lists_for_tuples():
    fields = {"sizes": [32, 8, 8, 8], "iterations": 3}
    assert matches(fields, {"sizes": (32, 8, 8, 8)})
    assert matches(fields, {"sizes": [32, 8, 8, 8], "iterations": 3})
    assert not matches(fields, {"sizes": [32, 8, 8, 9]})
    assert not matches({}, {"sizes": None})


# ----------------------------------------------------------------------------------------------
# sharing


def test_a_training_is_run_once_and_then_read(tmp_path, fits):
    first, again = (train(SIGN, 0, Context(seed=0, folder=tmp_path)) for _ in range(2))
    assert fits == [12, 0]
    assert first.history == again.history
    assert not again.network.training
    assert all(
        torch.equal(p, q)
        for p, q in zip(first.network.parameters(), again.network.parameters(), strict=True)
    )
    train(SIGN, 1, Context(seed=0, folder=tmp_path))
    assert fits[2:] == [12]


def test_weights_of_another_code_are_set_aside_if_the_code_has_a_name(tmp_path, fits):
    for code in ("one", "one", "two"):
        train(SIGN, 0, Context(seed=0, folder=tmp_path, code=code))
    assert fits == [12, 0, 12]


def test_weights_of_a_network_whose_code_has_changed_are_set_aside(tmp_path, fits, monkeypatch):
    """They were read into the new code, without a word."""
    source, place = tmp_path / "my_network.py", Context(seed=0, folder=tmp_path / "trainings")
    monkeypatch.syspath_prepend(tmp_path)
    for factor in (1, 1, -1):
        source.write_text(
            f"""
from torch import nn
class Mine(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.only = nn.Linear(64, classes)
    def forward(self, x):
        return {factor} * self.only(x.flatten(1))
""",
            encoding="utf-8",
        )
        sys.modules.pop("my_network", None)
        importlib.invalidate_caches()
        monkeypatch.setitem(NETWORKS.data, "mine", importlib.import_module("my_network").Mine)
        train(
            Recipe(
                data="digits", network="mine", loss="cross_entropy", epochs=1, batch_size=500
            ),
            0,
            place,
        )
    assert [steps > 0 for steps in fits] == [True, False, True]


def test_waiting_for_another_process_is_not_counted_beside_its_training(tmp_path, monkeypatch):
    @contextlib.contextmanager
    def taken(*_, **__):
        time.sleep(0.2)
        yield

    monkeypatch.setattr("capslib.recipes.locked", taken)
    train(SIGN, 0, context := Context(seed=0, folder=tmp_path))
    assert context.seconds_before <= -0.2


def test_without_a_folder_nothing_is_kept(tmp_path, fits, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        train(SIGN, 0, Context(seed=0))
    train(SIGN, 0, Context(seed=0, folder=tmp_path / "rehearsal", max_steps=2))
    assert fits == [12, 12, 2]
    assert list(tmp_path.iterdir()) == []


def test_an_experiment_with_three_networks_goes_on_in_the_one_that_was_stopped(tmp_path, fits):
    """Each has a checkpoint of its own: the first is read, the second goes on, the third
    starts.
    """
    attacks = experiments("em_routing")["attacks"]
    run = attacks.run
    arm = attacks.at("smoke")["capsules_and_cnn"]
    arm = arm.changed(dict(images=40, epochs=1, attacked=4))
    undisturbed = run(arm, Context(seed=0, folder=tmp_path / "undisturbed"))
    taken = list(fits)
    fits.clear()

    def context(stop=lambda: False) -> Context:
        return Context(seed=0, folder=tmp_path / "stopped", stop=stop)

    with pytest.raises(KeyboardInterrupt):
        run(arm, context(lambda: len(fits) == 2 and fits[1] == 1))
    assert fits == [taken[0], 1]
    fits.clear()
    second = context()
    found = run(arm, second)
    assert fits == [0, taken[1] - 1, taken[2]]
    assert second.resumed_from == [1]
    assert (found.metrics, found.series) == (undisturbed.metrics, undisturbed.series)


def test_two_processes_share_one_training(tmp_path):
    """The second waits for the first, and reads its weights."""
    script = f"""
import sys
from pathlib import Path
from capslib.papers.negation_limitation.sign import SignRecipe
from capslib.recipes import train
from capslib.training import Context
config = SignRecipe(routing="dynamic", bias=True, points=400, epochs=15, batch_size=20)
folder = Path({str(tmp_path)!r})
context = Context(seed=0, folder=folder, progress=lambda *_: print("epoch", flush=True))
trained = train(config, 0, context)
print(trained.history.terms["loss"][-1])
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env=environment,
        )
        for _ in range(2)
    ]
    said = [process.communicate()[0].split() for process in both]
    assert sorted(Counter(words)["epoch"] for words in said) == [0, 15]
    assert said[0][-1] == said[1][-1]


def test_a_recipe_may_stop_early(tmp_path):
    class Impatient(SignRecipe):
        def patience(self) -> Patience:
            return Patience("train_accuracy", 1)

        def recipe(self, **changes):
            return self

        def evaluate(self, network, splits):
            return {"train_accuracy": 0.5}

    trained = train(
        Impatient(**{**SIGN.model_dump(), "epochs": 9}), 0, Context(seed=0, folder=tmp_path)
    )
    assert len(trained.history.epochs["train_accuracy"]) == 2


def same(one, other) -> bool:
    """Whether two trainings gave the same to the last bit."""
    weights = zip(one.network.parameters(), other.network.parameters(), strict=True)
    return one.history == other.history and all(torch.equal(p, q) for p, q in weights)


@pytest.mark.parametrize("keep", ["last", "best"])
@pytest.mark.parametrize(
    ("epochs", "taken"), [(4, 4), (8, 7)]
)  # early stopping ends the longest after seven
def test_a_training_leaves_the_one_with_half_the_epochs_behind(
    tmp_path, fits, monkeypatch, keep, epochs, taken
):
    """It is its first half. Whoever wants both runs the longer one first, and the other trains
    no step.
    """
    monkeypatch.setattr(
        AnomalyRecipe, "evaluate", lambda self, network, splits: {"stop_loss": next(losses)}
    )
    recipe = AnomalyRecipe(
        data="digits",
        setup="outliers",
        kind=0,
        percent=10.0,
        keep=keep,
        **ANOMALY["smoke"]["digits"],
    )
    found = {}
    for folder, order in (
        ("long first", (epochs, epochs // 2)),
        ("short alone", (epochs // 2,)),
    ):
        for n in order:
            losses = iter([0.5, 0.4, 0.3, 0.2, 0.6, 0.6, 0.6, 0.6])
            context = Context(seed=0, folder=tmp_path / folder, doubles=True)
            found[folder, n] = train(recipe.model_copy(update={"epochs": n}), 0, context)
            assert (context.resumed_from, context.seconds_before > 0) == (
                [],
                (folder, n) == ("long first", epochs // 2),
            )
    long, half, alone = found.values()
    assert len(long.history.epochs["stop_loss"]) == taken
    assert fits[1] == 0
    assert same(half, alone)


def test_a_training_that_stops_itself_in_its_first_half_is_the_shorter_one_too(tmp_path, fits):
    recipe = AnomalyRecipe(
        data="digits", setup="outliers", kind=0, percent=10.0, **ANOMALY["smoke"]["digits"]
    )
    recipe = recipe.model_copy(update={"epochs": 12, "stop_after": 1, "learning_rate": 0.5})
    long, half = (
        train(
            recipe.model_copy(update={"epochs": n}),
            0,
            Context(seed=0, folder=tmp_path, doubles=True),
        )
        for n in (12, 6)
    )
    assert len(long.history.epochs["stop_loss"]) < 6
    assert fits[1] == 0
    assert same(long, half)


def test_a_training_that_was_begun_is_left_alone(tmp_path, fits):
    """And so are those of a recipe whose rate falls, or which has an odd number of epochs."""
    half = Training(SIGN.model_copy(update={"epochs": 2}), 0).path(tmp_path)
    half.write_bytes(b"another process writes here")
    train(
        SIGN.model_copy(update={"epochs": 4}), 0, Context(seed=0, folder=tmp_path, doubles=True)
    )
    assert half.read_bytes() == b"another process writes here"
    small = {**EM, "images": 40, "epochs": 2}
    train(EMRecipe(**small), 0, Context(seed=0, folder=tmp_path, doubles=True))
    train(
        SIGN.model_copy(update={"epochs": 1}), 0, Context(seed=0, folder=tmp_path, doubles=True)
    )
    assert len(list(tmp_path.glob("*.pt"))) == 4
    train(SIGN.model_copy(update={"epochs": 6}), 0, Context(seed=0, folder=tmp_path))
    assert len(list(tmp_path.glob("*.pt"))) == 5, "nobody wants its half"


RELEASED = {
    **EM,
    "images": 40,
    "epochs": 4,
    "decay": "exponential",
    "schedule": "steps",
}


def test_a_training_with_schedules_by_the_step_leaves_each_shorter_one_behind(
    tmp_path, fits, monkeypatch
):
    """So the learning curve of days has a record after each day, and a longer curve contains
    the shorter ones to the last bit.
    """
    monkeypatch.setattr(em_recipe, "RELEASED_EPOCHS", 1)
    recipe = EMRecipe(**RELEASED)
    assert list(recipe.shorter()) == [1, 2, 3]
    long = train(recipe, 0, Context(seed=0, folder=tmp_path / "long"))
    taken = fits.count(0)
    for epochs in (1, 2, 3):
        shorter = recipe.model_copy(update={"epochs": epochs})
        left = train(shorter, 0, Context(seed=0, folder=tmp_path / "long"))
        assert same(left, train(shorter, 0, Context(seed=0)))
        assert (
            left.history.epochs["error_of_some"]
            == long.history.epochs["error_of_some"][:epochs]
        )
    assert fits.count(0) == taken + 3, "the three that were left behind train no step"


def test_a_training_with_schedules_by_the_step_is_killed_and_taken_up_again(tmp_path):
    recipe = EMRecipe(**RELEASED)
    asked = iter([False] * 5)
    with pytest.raises(Interrupted):
        train(recipe, 0, Context(seed=0, folder=tmp_path, stop=lambda: next(asked, True)))
    context = Context(seed=0, folder=tmp_path)
    again = train(recipe, 0, context)
    assert context.resumed_from == [6]
    assert same(again, train(recipe, 0, Context(seed=0)))


def test_schedules_by_the_step_do_not_know_how_long_a_training_is():
    one, two = (EMRecipe(schedule="steps", epochs=epochs) for epochs in (100, 200))
    assert one.steps == 38_000
    for step in (0, 1, 20_000, 37_999):
        assert (
            one.rate(step / 38_000)
            == two.rate(step / 76_000)
            == pytest.approx(3e-3 * 0.96 ** (step / 20_000))
        )
        assert one.spanned(step / 38_000, MARGIN_STEPS) == two.spanned(
            step / 76_000, MARGIN_STEPS
        )
    assert EMRecipe(epochs=100).rate(0.5) == EMRecipe(epochs=200).rate(0.5)


def test_a_trial_with_twice_the_budget_of_its_grid_trains_for_the_one_of_the_grid_too(
    store, fits
):
    sign = experiments("negation_limitation")["sign"]
    own = next(iter(sign.at("smoke").values()))
    epochs = own.recipe.epochs

    def run(arm: Arm) -> list[float]:
        record = run_trial(sign, sign.trial("smoke", arm, 0), store, Context(seed=0))
        return record.series["train_accuracy"]

    long, half = run(sign.twice(own)), run(own)
    assert fits[0] > 0
    assert fits[1] == 0
    assert (len(long), half) == (2 * epochs, long[:epochs])
    run(own.changed({"epochs": 4}))
    assert len(list(store.trainings.glob("*.pt"))) == 3, "half of that is not asked for"


# ----------------------------------------------------------------------------------------------
# costs


def some_recipes() -> list[Recipe]:
    """One of every experiment, network and routing, at smoke scale."""
    found = {}
    for stem in PAPERS:
        for name, experiment in experiments(stem).items():
            for config in experiment.at("smoke").values():
                for recipe, _ in experiment.trainings(config, 0):
                    found.setdefault((name, recipe.network, recipe.routing), recipe)
    return list(found.values())


@pytest.mark.parametrize("recipe", some_recipes(), ids=lambda r: f"{r.network}-{r.routing}")
def test_a_step_is_counted_from_the_network_itself(recipe):
    """On no device at all; and the steps are those that training takes."""
    step = flops(recipe)
    assert step > 0
    larger = recipe.model_copy(update={"batch_size": 2 * recipe.batch_size})
    assert flops(larger) == pytest.approx(2 * step, rel=0.05)
    train = recipe.splits(Context(seed=0))[0]["train"].inputs
    assert tuple(recipe.seen(train[:2]).shape[1:]) == recipe.input_shape
    classes_count = hasattr(recipe, "setup")  # which are taken to be equally large
    tolerance = 0.3 if classes_count else 0
    assert len(train) == pytest.approx(recipe.train_size, rel=tolerance)
    assert recipe.steps == recipe.epochs * math.ceil(recipe.train_size / recipe.batch_size)


def test_the_count_is_that_of_the_layers():
    """A CNN by hand: products of input and weights forward, and twice as many backward, but for
    the first layer's input.
    """
    recipe = EMRecipe(**EM, network="cnn")
    channels, side, (first, second, hidden), batch = (
        2,
        recipe.crop,
        recipe.cnn,
        recipe.batch_size,
    )
    conv1, conv2 = channels * first * 25 * side**2, first * second * 25 * (side // 2) ** 2
    dense = second * (side // 4) ** 2 * hidden + hidden * 5
    assert flops(recipe) == 2 * batch * (2 * conv1 + 3 * conv2 + 3 * dense)
