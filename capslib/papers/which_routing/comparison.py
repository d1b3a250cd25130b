"""Which routing should I use? Every routing, and two yardsticks, under one protocol.

The protocol was fixed before any run at cpu scale. We lowered ε after rehearsals in which
hardly a smallNORB image survived.

* *Networks.* One small CapsNet without a decoder (``ComparisonRecipe``), with each entry of
  ``ROUTINGS`` by its name and defaults; the same with uniform couplings, which is one iteration
  of dynamic routing; and a CNN with as many parameters. Routings that need it start from the
  first batch.
* *Data.* MNIST, Fashion-MNIST, and smallNORB resized to 32 × 32, each image standardised.
  5,000 training images are held out, of smallNORB one instance of each class. Test images are
  for reporting alone.
* *Training.* Margin loss; Adam with a constant rate; batches of 64; no augmentation. Every
  network is trained with two learning rates. The one with the higher held-out accuracy, as the
  mean over the seeds 0, 1 and 2, counts (:func:`chosen_rates`).
* *Budgets.* 60 epochs of 200 steps, 12,000 in all, for every network; and in a second column
  the core-seconds that dynamic routing takes for them. The steps that these buy follow from
  ``MILLISECONDS``, measured once before the runs. Rate and loss are constant, so one training
  passes through both numbers of steps. A routing without a time there has the first budget
  alone.
* *Measured at both budgets.* Held-out, test and training accuracy. A network *trained* if it
  is right on nine of ten training images.
* *Measured at equal steps.* Accuracy after shifts, rotations and scales that training never
  saw; under FGSM and PGD, whose ε is in standard deviations of an image; and on negated images.
  How evenly children couple, and how far from uniformly. Time and memory of a step.

Novel viewpoints of smallNORB need a training on familiar ones alone: they are the experiment
``viewpoints``.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import Field

from capslib.config import Config
from capslib.papers.check import Measured
from capslib.papers.common import bytes_kept, cross_entropy, in_unit, outcome
from capslib.papers.experiment import Arm, Experiment, Metric, Outcome, Scale
from capslib.papers.which_routing.recipe import ComparisonRecipe
from capslib.recipes import Trained, train
from capslib.registry import ROUTINGS

if TYPE_CHECKING:
    from torch import Tensor, nn

    from capslib.training import Context, Examples

DATA = ("mnist", "fashion_mnist", "smallnorb")
RATES = (0.001, 0.003)
"""Learning rates that are tried for all networks."""
EPOCHS = 60
"""Epochs of 200 steps that all networks train for."""
LEARNED = 0.9
"""The accuracy on training images below which a network has not trained."""
UNIFORM, CNN = "uniform", "cnn"
"""The yardsticks: no routing, and no capsules."""
REFERENCE = "dynamic"
"""The network whose time for ``EPOCHS`` is the budget of the second column."""
MILLISECONDS: Mapping[str, tuple[float, float]] = {
    "dynamic": (11.6, 12.7),
    "dynamic_over_children": (12.0, 12.9),
    "em": (13.6, 13.7),
    "em_vector": (14.1, 15.3),
    "similarity": (28.7, 24.6),
    "connectionist": (89.6, 73.1),
    UNIFORM: (9.5, 11.2),
    CNN: (12.9, 17.4),
}
"""Milliseconds of a training step on one core, of 28 × 28 images and of smallNORB.

Medians of 100 steps by :func:`seconds_of_steps`, on an x86-64 server of 2026.
"""
WARM_UP = 3
"""Training steps before those that are timed."""
Budget = Literal["steps", "seconds"]
BUDGETS: tuple[Budget, ...] = ("steps", "seconds")
"""What is equal for all networks, in the order of ``ComparisonRecipe.measured_after``."""


class ComparisonOptions(Config):
    """What is measured beside the accuracies of both budgets, and on how many test images."""

    changed: int = Field(2000, ge=1, title="test images that are shifted, turned and scaled")
    pixels: tuple[int, ...] = Field((2, 4), title="shifts in pixels")
    degrees: tuple[int, ...] = Field((15, 30), title="rotations in degrees")
    factors: tuple[float, ...] = Field((0.75, 1.25), title="scales")
    attacked: int = Field(500, ge=1, title="test images that are attacked")
    epsilons: tuple[float, ...] = Field(
        (0.05, 0.1, 0.2), title="sizes ε of attacks, in standard deviations of an image"
    )
    pgd_steps: int = Field(10, ge=1, title="steps of projected gradient descent")
    timed: int = Field(20, ge=1, title="training steps that are timed")


# ---------------------------------------------------------------------------------- arms


def networks() -> dict[str, dict[str, Any]]:
    """Return the fields of every network that is compared, by its name."""
    compared: dict[str, dict[str, Any]] = {name: {"routing": name} for name in ROUTINGS}
    compared[UNIFORM] = {"routing": "dynamic", "iterations": 1}
    compared[CNN] = {"network": "cnn"}
    return compared


def epochs_of(name: str, data: str) -> tuple[int, ...]:
    """Return the epochs of equal steps and of equal seconds of a network on a data set.

    The second is left out for a network whose step was not timed.
    """
    if name not in MILLISECONDS:
        return (EPOCHS,)
    image = 1 if data == "smallnorb" else 0
    ratio = MILLISECONDS[REFERENCE][image] / MILLISECONDS[name][image]
    return EPOCHS, max(1, round(EPOCHS * ratio))


def recipe_of(name: str, data: str, rate: float) -> ComparisonRecipe:
    """Return the training of a network on a data set."""
    measured_after = epochs_of(name, data)
    return ComparisonRecipe(
        data=data,
        resize=32 if data == "smallnorb" else None,
        learning_rate=rate,
        measured_after=measured_after,
        epochs=max(measured_after),
        **networks()[name],
    )


SMOKE = (
    *itertools.product(["digits"], ["dynamic", "em", UNIFORM, CNN], RATES),
    ("toys", "em", 0.003),
)
"""Data, network and learning rate of the arms of smoke scale."""
STANDS_FOR = {"digits": "mnist", "toys": "smallnorb"}
"""The data set for which each stand-in stands."""


def arms(scale: Scale) -> Iterator[Arm]:
    """Yield every network on every data set with every learning rate."""
    settings: Iterable[tuple[str, str, float]] = SMOKE
    if scale != "smoke":
        settings = itertools.product(DATA, networks(), RATES)
    for data, name, rate in settings:
        real_data = STANDS_FOR.get(data, data)
        recipe = recipe_of(name, real_data, rate).model_copy(update={"data": data})
        yield Arm(f"{data}/{name}/{rate:g}", recipe, ComparisonOptions())


def smaller(scale: Scale, arm: Arm) -> dict[str, Any]:
    """Return fewer images, steps and attacks for smoke scale."""
    if scale != "smoke":
        return {}
    fewer: dict[str, Any] = dict(
        epochs=6,
        measured_after=(4, 6),
        epoch_steps=5,
        images=200,
        held_out=200,
        filters=8,
        primary_types=2,
        changed=20,
        attacked=20,
        pgd_steps=2,
        timed=2,
    )
    if arm.data == "digits":
        fewer |= dict(kernel=3, stride=1, pixels=(1, 2))
    return fewer


# ------------------------------------------------------------------------------ measures


def run(arm: Arm, context: Context) -> Outcome:
    """Train a network, and measure it at both budgets."""
    recipe: ComparisonRecipe = arm.recipe
    recipes = [recipe.model_copy(update={"epochs": n}) for n in recipe.measured_after]
    longest = train(recipe, context.seed, context)
    trained = {recipe.epochs: longest}
    # The longest training has left these in its folder on its way, so they are only read, and
    # their seconds are in its own.
    reading = dataclasses.replace(context, seconds_before=0.0, resumed_from=[])
    for recipe_at_budget in recipes:
        epochs = recipe_at_budget.epochs
        if epochs not in trained:
            trained[epochs] = train(recipe_at_budget, context.seed, reading)
    metrics: dict[str, Metric] = {}
    for budget, recipe_at_budget in zip(BUDGETS, recipes, strict=False):
        metrics |= accuracies(recipe_at_budget, trained[recipe_at_budget.epochs], budget)
    at_equal_steps = trained[recipe.measured_after[0]]
    network, splits = at_equal_steps.network, at_equal_steps.splits
    options: ComparisonOptions = arm.options
    examples = splits["test"].at_most(options.changed)
    metrics |= after_changes(recipe, network, examples, options)
    metrics |= negated(recipe, network, examples)
    metrics |= couplings(recipe, network, examples)
    metrics |= attacked(recipe, network, splits["test"].at_most(options.attacked), options)
    batch = splits["train"].rows(slice(recipe.batch_size))
    metrics |= cost(recipe, network, batch, options.timed)
    return outcome(longest, metrics, curves=["held_out_accuracy"])


def accuracies(recipe: ComparisonRecipe, trained: Trained, budget: Budget) -> dict[str, Metric]:
    """Return the accuracy on each split, and whether the network trained.

    Training accuracy is that of as many images, at most, as are held out.
    """
    splits = dict(trained.splits)
    splits["train"] = splits["train"].at_most(len(splits["held_out"].labels))
    metrics = {}
    for name, examples in splits.items():
        value = recipe.accuracy(trained.network, examples)
        accuracy = {f"{name}_accuracy_at_{budget}": value}
        metrics |= in_unit(accuracy, len(examples.labels), "fraction")
    has_trained = metrics[f"train_accuracy_at_{budget}"].value >= LEARNED
    metrics |= in_unit({f"trained_at_{budget}": float(has_trained)}, 1, "fraction")
    steps = recipe.steps
    return metrics | in_unit({f"steps_at_{budget}": steps}, 1, "steps")


def after_changes(
    recipe: ComparisonRecipe, network: nn.Module, examples: Examples, options: ComparisonOptions
) -> dict[str, Metric]:
    """Return the accuracy on images, and after shifts, rotations and scales of them.

    Training never saw such changes. A shift goes to four sides and a rotation two ways; their
    accuracy is the mean.
    """
    from capslib.data.transforms import standardise, to_float
    from capslib.papers.which_routing import transformed
    from capslib.training import Examples, accuracy

    def accuracy_on(images: Tensor) -> float:
        changed = Examples(images, examples.labels)
        return accuracy(scores, changed, recipe.BATCH_OF_TEST)

    def scores(images: Tensor) -> Tensor:
        return recipe.scores(network, standardise(images))

    pixels = to_float(examples.inputs)
    variants: dict[str, Iterable[Tensor]] = {"unchanged": [pixels]}
    for distance in options.pixels:
        variants[f"shifted_{distance}"] = transformed.shifts(pixels, distance)
    for degrees in options.degrees:
        variants[f"rotated_{degrees}"] = transformed.rotations(pixels, degrees)
    for factor in options.factors:
        name = f"scaled_{round(100 * factor)}_percent"
        variants[name] = [transformed.scaled(pixels, factor)]
    values = {}
    for name, images in variants.items():
        values[f"{name}_accuracy"] = statistics.fmean(map(accuracy_on, images))
    return in_unit(values, len(examples.labels), "fraction")


def negated(
    recipe: ComparisonRecipe, network: nn.Module, examples: Examples
) -> dict[str, Metric]:
    """Return the accuracy on −x, and how often −x gets the class of x.

    x is a standardised image.
    """
    import torch

    right, agreeing = 0, 0
    with torch.no_grad():
        for inputs, labels in examples.batches(recipe.BATCH_OF_TEST):
            x = recipe.seen(inputs)
            of_x, of_negative = (
                recipe.scores(network, images).argmax(dim=-1) for images in (x, -x)
            )
            right += int((of_negative == labels).sum())
            agreeing += int((of_negative == of_x).sum())
    count = len(examples.labels)
    values = {"negated_accuracy": right / count, "negated_agreement": agreeing / count}
    return in_unit(values, count, "fraction")


class Evenness(NamedTuple):
    """How evenly couplings are spread, as means over images and over their distributions."""

    entropy: float
    """Entropy relative to that of uniform couplings: 1 is uniform, 0 is all on one."""
    distance: float
    """Share that lies elsewhere than uniform couplings: ½ Σ |c − 1/K| over the K competitors.
    """


def evenness(coupling: Tensor, axis: int) -> Evenness:
    """Return how evenly couplings [N, I, J] are spread over the competitors of an axis.

    >>> import torch
    >>> evenness(torch.tensor([[[1.0, 0.0], [0.5, 0.5]]]), -1)
    Evenness(entropy=0.5, distance=0.25)
    """
    import torch

    competitors = coupling.shape[axis]
    wide = coupling.detach().double()
    entropy = -torch.special.xlogy(wide, wide).sum(dim=axis) / math.log(competitors)
    distance = (wide - 1 / competitors).abs().sum(dim=axis) / 2
    return Evenness(float(entropy.mean()), float(distance.mean()))


def couplings(
    recipe: ComparisonRecipe, network: nn.Module, examples: Examples
) -> dict[str, Metric]:
    """Return how the couplings of the last iteration are spread; nothing of a CNN."""
    import torch

    if recipe.network == "cnn":
        return {}
    over_parents = network.classes.routing.couplings_sum_over == "parents"
    axis = -1 if over_parents else -2
    sums = Evenness(0.0, 0.0)
    count = len(examples.labels)
    with torch.no_grad():
        for inputs, _ in examples.batches(recipe.BATCH_OF_TEST):
            part = evenness(network(recipe.seen(inputs)).coupling, axis)
            share = len(inputs) / count
            sums = Evenness(*(s + share * p for s, p in zip(sums, part, strict=True)))
    values = {
        "coupling_entropy": min(1.0, sums.entropy),  # above it by rounding alone
        "coupling_distance": sums.distance,
    }
    return in_unit(values, count, "fraction")


def attacked(
    recipe: ComparisonRecipe, network: nn.Module, examples: Examples, options: ComparisonOptions
) -> dict[str, Metric]:
    """Return the accuracy under FGSM and PGD, which raise the cross entropy of the scores.

    The cross entropy, unlike the margin loss, has a gradient where an image is well classified.
    Standardised pixels stay between black and white. Where many entries of the gradient are
    zero, the attacks say little. A draw of PGD depends on ε and the number of its batch alone.
    """
    import torch

    from capslib.attacks import fgsm, input_gradient, pgd, zero_share
    from capslib.data.transforms import black_and_white, standardise, to_float

    def scores(x: Tensor) -> Tensor:
        return recipe.scores(network, x)

    loss = cross_entropy(scores)
    counts: dict[str, int] = {}
    gradients = []
    for number, (inputs, labels) in enumerate(examples.batches(recipe.batch_size)):
        pixels = to_float(inputs)
        x = standardise(pixels)
        bounds = black_and_white(pixels)
        gradients.append(input_gradient(loss, x, labels))
        for epsilon in options.epsilons:
            seed = round(1000 * epsilon) + 1_000_003 * number
            generator = torch.Generator(x.device).manual_seed(seed)
            pgd_options: dict[str, Any] = {"steps": options.pgd_steps, "generator": generator}
            images = {
                "fgsm": fgsm(loss, x, labels, epsilon, bounds=bounds),
                "pgd": pgd(loss, x, labels, epsilon, bounds=bounds, **pgd_options),
            }
            for attack, image in images.items():
                name = f"{attack}_{epsilon:g}_accuracy"
                with torch.no_grad():
                    right = int((scores(image).argmax(dim=-1) == labels).sum())
                counts[name] = counts.get(name, 0) + right
    values = {name: count / len(examples.labels) for name, count in counts.items()}
    values["zero_gradient"] = zero_share(torch.cat(gradients))
    return in_unit(values, len(examples.labels), "fraction")


# --------------------------------------------------------------------------------- costs


def cost(
    recipe: ComparisonRecipe, network: nn.Module, batch: Examples, timed: int
) -> dict[str, Metric]:
    """Return the seconds of a training step, and the bytes that it keeps for its gradient.

    The peak memory of the whole trial is in its record.
    """
    seconds = statistics.median(seconds_of_steps(recipe, network, batch, timed))
    memory = bytes_for_gradient(recipe, network, batch)
    return {
        "seconds_of_step": Metric(value=seconds, n=timed, unit="seconds"),
        "bytes_for_gradient": Metric(value=memory, n=len(batch.labels), unit="bytes"),
    }


def seconds_of_steps(
    recipe: ComparisonRecipe, network: nn.Module, batch: Examples, count: int
) -> list[float]:
    """Return the seconds of ``count`` training steps on a batch, after some to warm up.

    On a CPU they are core-seconds, which other programs on the machine hardly change; on a GPU
    they are wall seconds. Steps are those of a copy; the network stays as it is.
    """
    import torch

    copied = copy.deepcopy(network).train()
    optimizer = recipe.optimizer(copied)
    objective = recipe.objective(batch.inputs.device)
    clock = time.perf_counter if batch.inputs.is_cuda else time.process_time
    seconds = []
    for _ in range(WARM_UP + count):
        start = clock()
        optimizer.zero_grad(set_to_none=True)
        seen = batch._replace(inputs=recipe.seen(batch.inputs))
        objective(copied, seen)["loss"].backward()
        optimizer.step()
        if batch.inputs.is_cuda:
            torch.cuda.synchronize(batch.inputs.device)
        seconds.append(clock() - start)
    return seconds[WARM_UP:]


def bytes_for_gradient(recipe: ComparisonRecipe, network: nn.Module, batch: Examples) -> int:
    """Return the bytes that a forward pass of training keeps, without the parameters."""
    copied = copy.deepcopy(network).train()
    objective = recipe.objective(batch.inputs.device)
    seen = batch._replace(inputs=recipe.seen(batch.inputs))
    return bytes_kept(copied, lambda: objective(copied, seen))


# -------------------------------------------------------------------------------- choice


def name_of(config: Mapping[str, Any]) -> str:
    """Return the name that :func:`networks` gives a network with these fields."""
    if config["network"] == "cnn":
        return CNN
    return UNIFORM if config["iterations"] == 1 else config["routing"]


def chosen_rates(
    records: Iterable[Measured], budget: Budget = "steps", seeds: Sequence[int] = (0, 1, 2)
) -> dict[tuple[str, str], float]:
    """Return the learning rate that counts, by data set and network.

    It has the highest held-out accuracy at a budget, as the mean over seeds; of equal ones it
    is the smallest. A run without any metric, such as one that ended in NaN, counts as zero. A
    network is left out until all rates have run with all seeds, and if it was not measured at
    this budget. No test image is looked at.
    """
    metric = f"held_out_accuracy_at_{budget}"
    accuracy: dict[tuple[str, str], dict[float, dict[int, float]]] = {}
    for record in records:
        if record.metrics and metric not in record.metrics:
            continue
        network = record.config["data"], name_of(record.config)
        value = record.metrics[metric].value if metric in record.metrics else 0.0
        by_rate = accuracy.setdefault(network, {rate: {} for rate in RATES})
        rate = record.config["learning_rate"]
        if rate in by_rate and record.trial.seed in seeds:
            by_rate[rate][record.trial.seed] = value
    chosen = {}
    for network, by_rate in accuracy.items():
        if all(len(by_seed) == len(seeds) for by_seed in by_rate.values()):
            means = {r: statistics.fmean(by_seed.values()) for r, by_seed in by_rate.items()}
            chosen[network] = max(sorted(means), key=means.__getitem__)
    return chosen


COMPARISON = Experiment(
    name="comparison",
    paper="which_routing",
    arms=arms,
    smaller=smaller,
    run=run,
    budget_fields=(),
)
