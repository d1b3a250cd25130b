"""Recipes name trainings; everything that needs the same training shares it."""

from __future__ import annotations

import fcntl
import importlib
import inspect
import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Literal

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.optim.optimizer import register_optimizer_step_post_hook

from capslib import recipes, training
from capslib.config import Config, matches
from capslib.data import prepared
from capslib.data.registry import SETS, DataSet
from capslib.errors import Interrupted, UserError
from capslib.lab.runs import run_trial
from capslib.papers import WITH_TRIALS, experiments
from capslib.papers.em_routing import recipe as em_recipe
from capslib.papers.em_routing.recipe import MARGIN_STEPS, SMALLER, EMRecipe
from capslib.papers.experiment import Arm
from capslib.papers.inequality_anomaly.recipe import REDUCED as ANOMALY
from capslib.papers.inequality_anomaly.recipe import AnomalyRecipe
from capslib.papers.negation_limitation.sign import SignRecipe
from capslib.recipes import Recipe, Trained, Training, flops, new_network, train
from capslib.registry import NETWORKS, ROUTINGS
from capslib.routing import Routing
from capslib.routing.module import waiting_routings
from capslib.training import Context, Patience

SIGN = SignRecipe(routing="dynamic", bias=True, points=60, epochs=3, batch_size=20)


@pytest.fixture
def fits(monkeypatch) -> Iterator[list[int]]:
    """The steps that were really taken, one entry a training."""
    taken: list[int] = []
    fit = training.fit

    def started(*args, **kwargs):
        taken.append(0)
        return fit(*args, **kwargs)

    def count(*_: object) -> None:
        taken[-1] += 1

    monkeypatch.setattr(training, "fit", started)
    hook = register_optimizer_step_post_hook(count)
    yield taken
    hook.remove()


# ----------------------------------------------------------------------------------------------
# names


@pytest.mark.parametrize(
    ("field", "mistyped", "nearest"),
    [
        ("routing", "dynamc", "dynamic"),
        ("network", "deep_capsnett", "deep_capsnet"),
        ("loss", "margn", "margin"),
        ("data", "mnits", "mnist"),
    ],
)
def test_a_mistyped_name_is_told_the_nearest(field, mistyped, nearest):
    with pytest.raises(ValidationError, match=f"Did you mean '{nearest}'"):
        EMRecipe(**{field: mistyped})


def test_a_name_that_is_registered_later_is_valid(monkeypatch):
    with pytest.raises(ValidationError):
        EMRecipe(routing="mine")
    monkeypatch.setitem(recipes.ROUTINGS, "mine", recipes.ROUTINGS["em"])
    assert EMRecipe(routing="mine").routing == "mine"


def test_a_recipe_builds_the_routing_that_it_names():
    """A network without a routing gets none."""
    for name in ("dynamic", "em", "similarity"):
        recipe = Recipe(data="digits", network="matrix_capsnet", routing=name)
        modules = new_network(recipe, (1, 17, 17), 0).modules()
        routings = {type(module) for module in modules if isinstance(module, Routing)}
        assert routings == {ROUTINGS[name]}
    new_network(Recipe(data="digits", network="cnn", routing="em"), (1, 8, 8), 0)


@pytest.mark.parametrize(
    "network", ["deep_capsnet", "sign", "sparse_capsnet", "autoencoder", "anomaly_capsnet"]
)
def test_a_plain_recipe_says_whose_recipe_builds_a_network_that_it_cannot(network):
    """The message names the recipe to take, or the method to override."""
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

    class Elsewhere(SignRecipe):
        pass

    keys = {Training(Elsewhere(**SIGN.model_dump()), 0).key}
    for change in ({}, {"bias": False}, {"epochs": 4}, {"routing": "em_vector"}):
        recipe = SIGN.model_copy(update=change)
        keys |= {Training(recipe, seed).key for seed in (0, 1)}
    assert len(keys) == 9


def test_a_recipe_says_what_its_convolutions_compute_with():
    options = {"images": 24, "batch_size": 8, "epochs": 1}
    recipe = Recipe(data="digits", network="cnn", loss="cross_entropy", **options)
    bfloat16 = recipe.model_copy(update={"convolutions": "bfloat16"})
    assert "convolutions" not in recipe.differences(), "older trainings keep their keys"
    assert Training(recipe, 0).key != Training(bfloat16, 0).key
    assert flops(recipe) == flops(bfloat16)
    losses = []
    for recipe_of_run in (recipe, bfloat16):
        trained = train(recipe_of_run, 0, Context(0), progress=False)
        losses.append(trained.history.terms["loss"])
        assert {p.dtype for p in trained.network.parameters()} == {torch.float32}
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


EM = {"data": "toys", **SMALLER["smoke"]}


def test_what_a_network_sees_of_a_data_set_is_known_before_it_is_read():
    recipe = Recipe(data="mnist", network="cnn", resize=16, downsample=2)
    assert recipe.input_shape == (1, 8, 8)
    assert recipe.train_size == 60_000
    message = "ham10000 is not split into train and test: choose another set"
    with pytest.raises(UserError, match=message):
        EMRecipe(data="ham10000").train_size  # noqa: B018


@pytest.mark.parametrize("size", [(18, 24), (24, 18), (24, 24), (20, 30)])
def test_images_of_any_size_are_resized_to_what_the_recipe_says(tmp_path, monkeypatch, size):
    images = np.arange(4 * math.prod(size), dtype=np.uint8).reshape(4, 1, *size)
    split = {"images": images, "labels": np.arange(4)}
    splits = dict.fromkeys(("train", "test"), images.shape)
    classes = ("a", "b", "c", "d")
    oblong = DataSet(
        name="oblong", source="here", licence="none", classes=classes, splits=splits
    )
    monkeypatch.setitem(SETS.data, "oblong", oblong)
    card = {"source": "here", "licence": "none", "complete": True, "deviations": []}
    prepared.write(tmp_path / "oblong", card, [(name, split) for name in splits])
    recipe = Recipe(data="oblong", network="cnn", resize=24)
    parts, _ = recipe.splits(Context(seed=0, data_dir=tmp_path))
    for part in parts.values():
        assert tuple(part.inputs.shape[1:]) == recipe.input_shape == (1, 24, 24)


def test_a_set_that_names_no_classes_has_those_of_its_labels(monkeypatch):
    """Labels count from 0."""
    nameless = DataSet(name="nameless", source="here", licence="none")
    monkeypatch.setitem(SETS.data, "nameless", nameless)
    recipe = Recipe(data="nameless", network="cnn")
    assert recipe.number_of_classes(torch.tensor([0, 3, 1])) == 4
    assert Recipe(data="digits", network="cnn").number_of_classes(torch.tensor([0, 3])) == 10


def test_one_matcher_takes_lists_for_tuples():
    fields = {"sizes": [32, 8, 8, 8], "iterations": 3}
    assert matches(fields, {"sizes": (32, 8, 8, 8)})
    assert matches(fields, {"sizes": [32, 8, 8, 8], "iterations": 3})
    assert not matches(fields, {"sizes": [32, 8, 8, 9]})
    assert not matches({}, {"sizes": None})


# ----------------------------------------------------------------------------------------------
# sharing


def same(first: Trained, second: Trained) -> bool:
    """Return whether two trainings gave the same to the last bit."""
    weights = zip(first.network.parameters(), second.network.parameters(), strict=True)
    return first.history == second.history and all(torch.equal(p, q) for p, q in weights)


def test_a_training_is_run_once_and_then_read(tmp_path, fits):
    first = train(SIGN, 0, Context(seed=0, folder=tmp_path))
    second = train(SIGN, 0, Context(seed=0, folder=tmp_path))
    assert not second.network.training
    assert same(first, second)
    train(SIGN, 1, Context(seed=0, folder=tmp_path))
    assert fits == [12, 0, 12]


def test_a_training_shows_its_progress_unless_its_context_does_or_nobody_wants_it(capsys):
    train(SIGN)
    shown = capsys.readouterr().err
    assert "100%" in shown
    assert "loss" in shown
    train(SIGN, progress=False)
    reports = []
    train(SIGN, 0, Context(seed=0, progress=lambda *report: reports.append(report)))
    assert capsys.readouterr().err == ""
    assert reports


def test_weights_of_another_code_are_set_aside_if_the_code_has_a_name(tmp_path, fits):
    for code in ("one", "one", "two"):
        train(SIGN, 0, Context(seed=0, folder=tmp_path, code=code))
    assert fits == [12, 0, 12]


NETWORK = """
from torch import nn
class Mine(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.only = nn.Linear(64, classes)
    def forward(self, x):
        return {factor} * self.only(x.flatten(1))
"""


def test_weights_of_a_network_whose_code_has_changed_are_set_aside(tmp_path, fits, monkeypatch):
    """Weights belong to the code that trained them."""
    context = Context(seed=0, folder=tmp_path / "trainings")
    monkeypatch.syspath_prepend(tmp_path)
    for factor in (1, 1, -1):
        source = NETWORK.format(factor=factor)
        (tmp_path / "my_network.py").write_text(source, encoding="utf-8")
        sys.modules.pop("my_network", None)
        importlib.invalidate_caches()
        module = importlib.import_module("my_network")
        monkeypatch.setitem(NETWORKS.data, "mine", module.Mine)
        options = dict(loss="cross_entropy", epochs=1, batch_size=500)
        train(Recipe(data="digits", network="mine", **options), 0, context)
    assert [steps > 0 for steps in fits] == [True, False, True]


def test_another_release_of_pydantic_sets_no_weights_aside(monkeypatch):
    installed = inspect.getsource

    def another(item):
        return "new" if item.__module__.startswith("pydantic") else installed(item)

    code = recipes._code(SIGN)
    monkeypatch.setattr(inspect, "getsource", another)
    assert recipes._code(SIGN) == code


def test_waiting_for_another_process_is_not_counted_beside_its_training(tmp_path):
    """The training that is read has its own seconds; the waiting is taken off the run's."""
    train(SIGN, 0, Context(seed=0, folder=tmp_path))
    unhindered, waiting = (Context(seed=0, folder=tmp_path) for _ in range(2))
    train(SIGN, 0, unhindered)
    lock = Training(SIGN, 0).path(tmp_path).with_suffix(".lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    threading.Timer(1, lock.close).start()
    train(SIGN, 0, waiting)
    assert waiting.seconds_before < unhindered.seconds_before - 0.5


def test_without_a_folder_nothing_is_kept(tmp_path, fits, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        train(SIGN, 0, Context(seed=0))
    train(SIGN, 0, Context(seed=0, folder=tmp_path / "rehearsal", max_steps=2))
    assert fits == [12, 12, 2]
    assert list(tmp_path.iterdir()) == []


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
    options = dict(
        stdout=subprocess.PIPE,
        encoding="utf-8",
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    command = [sys.executable, "-c", script]
    processes = [subprocess.Popen(command, **options) for _ in range(2)]
    outputs = [process.communicate()[0].split() for process in processes]
    assert sorted(words.count("epoch") for words in outputs) == [0, 15]
    assert outputs[0][-1] == outputs[1][-1]


def test_a_recipe_may_stop_early(tmp_path):
    class Impatient(SignRecipe):
        def patience(self) -> Patience:
            return Patience("train_accuracy", 1)

        def evaluate(self, network, splits):
            return {"train_accuracy": 0.5}

    recipe = Impatient(**{**SIGN.model_dump(), "epochs": 9})
    trained = train(recipe, 0, Context(seed=0, folder=tmp_path))
    assert len(trained.history.epochs["train_accuracy"]) == 2


def anomaly_recipe(**changes) -> AnomalyRecipe:
    fields = dict(data="digits", setup="outliers", kind=0, percent=10.0)
    return AnomalyRecipe(**{**fields, **ANOMALY["smoke"]["digits"], **changes})


def of_epochs(recipe: Recipe, epochs: int) -> Recipe:
    return recipe.model_copy(update={"epochs": epochs})


@pytest.mark.parametrize("keep", ["last", "best"])
# early stopping ends the longest after seven
@pytest.mark.parametrize(("epochs", "taken"), [(4, 4), (8, 7)])
def test_a_training_leaves_the_one_with_half_the_epochs_behind(
    tmp_path, fits, monkeypatch, keep, epochs, taken
):
    """It is its first half. Whoever wants both runs the longer one first, and the other trains
    no step.
    """

    def evaluate(recipe, network, splits):
        return {"stop_loss": next(losses)}

    monkeypatch.setattr(AnomalyRecipe, "evaluate", evaluate)
    recipe = anomaly_recipe(keep=keep)
    half = epochs // 2
    trained, seconds = [], []
    for folder, length in (("shared", epochs), ("shared", half), ("separate", half)):
        losses = iter([0.5, 0.4, 0.3, 0.2, 0.6, 0.6, 0.6, 0.6])
        context = Context(seed=0, folder=tmp_path / folder, doubles=True)
        trained.append(train(of_epochs(recipe, length), 0, context))
        seconds.append(context.seconds_before)
        assert context.resumed_from == []
    assert len(trained[0].history.epochs["stop_loss"]) == taken
    assert fits[1] == 0
    assert [second > 0 for second in seconds] == [False, True, False]
    assert same(trained[1], trained[2])


def test_a_training_that_stops_itself_in_its_first_half_is_the_shorter_one_too(tmp_path, fits):
    recipe = anomaly_recipe(stop_after=1, learning_rate=0.5)
    context = Context(seed=0, folder=tmp_path, doubles=True)
    long = train(of_epochs(recipe, 12), 0, context)
    half = train(of_epochs(recipe, 6), 0, context)
    assert len(long.history.epochs["stop_loss"]) < 6
    assert fits[1] == 0
    assert same(long, half)


def test_a_training_that_was_begun_is_left_alone(tmp_path):
    """And so are those of a recipe whose rate falls, or which has an odd number of epochs."""
    context = Context(seed=0, folder=tmp_path, doubles=True)
    half = Training(of_epochs(SIGN, 2), 0).path(tmp_path)
    half.write_bytes(b"another process writes here")
    train(of_epochs(SIGN, 4), 0, context)
    assert half.read_bytes() == b"another process writes here"
    train(EMRecipe(**{**EM, "images": 40, "epochs": 2}), 0, context)
    train(of_epochs(SIGN, 1), 0, context)
    assert len(list(tmp_path.glob("*.pt"))) == 4
    train(of_epochs(SIGN, 6), 0, Context(seed=0, folder=tmp_path))
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
    monkeypatch.setattr(em_recipe, "EPOCHS_OF_50000_STEPS", 1)
    recipe = EMRecipe(**RELEASED)
    assert list(recipe.shorter()) == [1, 2, 3]
    curve = train(recipe, 0, Context(seed=0, folder=tmp_path)).history.epochs["error_of_some"]
    taken = fits.count(0)
    for epochs in (1, 2, 3):
        shorter = of_epochs(recipe, epochs)
        part = train(shorter, 0, Context(seed=0, folder=tmp_path))
        assert same(part, train(shorter, 0, Context(seed=0)))
        assert part.history.epochs["error_of_some"] == curve[:epochs]
    assert fits.count(0) == taken + 3, "the three that were left behind train no step"


def test_a_training_with_schedules_by_the_step_is_killed_and_taken_up_again(tmp_path):
    recipe = EMRecipe(**RELEASED)
    answers = iter([False] * 5)
    with pytest.raises(Interrupted):
        train(recipe, 0, Context(seed=0, folder=tmp_path, stop=lambda: next(answers, True)))
    context = Context(seed=0, folder=tmp_path)
    resumed = train(recipe, 0, context)
    assert context.resumed_from == [6]
    assert same(resumed, train(recipe, 0, Context(seed=0)))


def test_schedules_by_the_step_do_not_know_how_long_a_training_is():
    short, long = (EMRecipe(schedule="steps", epochs=epochs) for epochs in (100, 200))
    assert short.steps == 38_000
    for step in (0, 1, 20_000, 37_999):
        in_short, in_long = step / 38_000, step / 76_000
        assert short.rate(in_short) == pytest.approx(3e-3 * 0.96 ** (step / 20_000))
        assert short.rate(in_short) == long.rate(in_long)
        assert short.spanned(in_short, MARGIN_STEPS) == long.spanned(in_long, MARGIN_STEPS)
    assert EMRecipe(epochs=100).rate(0.5) == EMRecipe(epochs=200).rate(0.5)


def test_a_trial_with_twice_the_budget_of_its_grid_trains_for_the_one_of_the_grid_too(
    store, fits
):
    sign = experiments("negation_limitation")["sign"]
    arm, *_ = sign.at("smoke").values()
    epochs = arm.recipe.epochs

    def run(arm: Arm) -> list[float]:
        record = run_trial(sign, sign.trial("smoke", arm, 0), store, Context(seed=0))
        return record.series["train_accuracy"]

    long = run(sign.twice(arm))
    half = run(arm)
    assert fits[0] > 0
    assert fits[1] == 0
    assert len(long) == 2 * epochs
    assert half == long[:epochs]
    run(arm.changed({"epochs": 4}))
    assert len(list(store.trainings.glob("*.pt"))) == 3, "half of that is not asked for"


# ----------------------------------------------------------------------------------------------
# costs


def smoke_recipes() -> list[Recipe]:
    """Return one of every experiment, network and routing."""
    by_kind = {}
    for stem in WITH_TRIALS:
        for name, experiment in experiments(stem).items():
            for arm in experiment.at("smoke").values():
                for recipe, _ in experiment.trainings(arm, 0):
                    by_kind.setdefault((name, recipe.network, recipe.routing), recipe)
    return list(by_kind.values())


@pytest.mark.parametrize("recipe", smoke_recipes(), ids=lambda r: f"{r.network}-{r.routing}")
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
    assert recipe.steps == recipe.epochs * recipe.steps_of_epoch(recipe.train_size)


def test_the_count_is_that_of_the_layers():
    """A CNN by hand: products of input and weights forward, and twice as many backward, but for
    the first layer's input.
    """
    recipe = EMRecipe(**EM, network="cnn")
    side, (first, second, hidden) = recipe.crop, recipe.cnn
    conv1 = 2 * first * 25 * side**2
    conv2 = first * second * 25 * (side // 2) ** 2
    dense = second * (side // 4) ** 2 * hidden + hidden * 5
    products = 2 * conv1 + 3 * conv2 + 3 * dense
    assert flops(recipe) == 2 * recipe.batch_size * products


def test_the_seed_of_a_training_is_that_of_its_context_where_none_is_given():
    weights = []
    for arguments in ((SIGN, 5), (SIGN, None, Context(seed=5)), (SIGN, 5, Context(seed=1))):
        weights.append(train(*arguments, progress=False).network.state_dict())
    for other in weights[1:]:
        torch.testing.assert_close(dict(other), dict(weights[0]), rtol=0, atol=0)


def test_em_routing_starts_from_the_first_batch_of_a_recipe():
    recipe = Recipe(data="digits", network="capsnet", routing="em", epochs=1, images=64)
    network = new_network(recipe, (1, 28, 28), 0, torch.arange(10))
    recipe.start(network, None, 0)
    assert waiting_routings(network) == ["classes.routing"]
    matrices = recipe.model_copy(update={"network": "matrix_capsnet"})
    network = new_network(matrices, (1, 32, 32), 0, torch.arange(10))
    assert waiting_routings(network) == []
    matrices.start(network, None, 0)
    assert len(waiting_routings(network)) == 3
