"""Test error of the main network and its ablations (Table 1, §5), and where its votes lie.

How far votes for a class lie from their mean is drawn in Fig. 2 and Fig. B.2 of the paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pydantic import Field

from capslib.config import Config
from capslib.data.registry import SETS
from capslib.papers.common import in_unit, outcome
from capslib.papers.em_routing.recipe import (
    EPOCHS_OF_50000_STEPS,
    SMALL,
    SMALLER,
    EMRecipe,
    paper_recipe,
)
from capslib.papers.experiment import Arm, Experiment, Metric, Outcome, Scale
from capslib.recipes import train

if TYPE_CHECKING:
    from torch import Tensor, nn

    from capslib.recipes import Trained
    from capslib.training import Context, Examples

CIRESAN_ERROR = 2.56
"""The test error, in percent, of the best network on smallNORB before the paper."""


class ErrorOptions(Config):
    """What is measured of a network of Table 1 beside its error on central crops."""

    multi_crop: int = Field(0, ge=0, title="test images that are looked at in 13 crops")


def run(arm: Arm, context: Context) -> Outcome:
    """Train one network and measure its test error.

    Of capsules, measure vote distances and dead types, too.
    """
    recipe: EMRecipe = arm.recipe
    trained = train(recipe, context.seed, context)
    network, test = trained.network, trained.splits["test"]
    metrics = in_unit({"test_error": recipe.error(network, test)}, len(test.labels), "percent")
    if arm.options.multi_crop:
        metrics |= errors_of_crops(recipe, network, test.at_most(arm.options.multi_crop))
    series = {}
    if recipe.network != "cnn":
        inner_metrics, series = look_inside(recipe, network, test.at_most(500))
        metrics |= inner_metrics
    metrics |= error_change(trained)
    return outcome(trained, metrics, series, ["error_of_some"])


def errors_of_crops(
    recipe: EMRecipe, network: nn.Module, examples: Examples
) -> dict[str, Metric]:
    """Return the errors when several crops of an image vote, and when the central one does."""
    several = recipe.error_of_crops(network, examples)
    central = recipe.error(network, examples)
    images = len(examples.labels)
    errors = {
        "multi_crop_error": several,
        "same_images_error": central,
        "fewer_errors_than_2.56": 100 * (1 - several / CIRESAN_ERROR),
    }
    gain = {"multi_crop_gain": central - several}
    return in_unit(errors, images, "percent") | in_unit(gain, images, "points")


def error_change(trained: Trained) -> dict[str, Metric]:
    """Return how far the training error moved over the last quarter.

    It is a share of the error of guessing, and compares means over an epoch.
    """
    accuracy = trained.history.terms["accuracy"]
    epochs = max(1, len(next(iter(trained.history.epochs.values()))))
    corner = max(1, len(accuracy) * 3 // 4)
    epoch = min(-(-len(accuracy) // epochs), corner)
    change = abs(fmean(accuracy[corner - epoch : corner]) - fmean(accuracy[-epoch:]))
    guessing = 1 - 1 / len(SETS[trained.data[0].name].classes)
    share = {"error_change_last_quarter": change / guessing}
    return in_unit(share, len(accuracy), "share of the error of guessing")


CLOSE = 0.05
"""A vote is close within this distance of its parent's mean (Fig. 2)."""
BINS, WIDTH = 40, 0.01
"""The bins of the histograms of distances."""
ALIVE = 0.05
"""A capsule type is dead where no image makes it more active than this."""


def vote_histogram(distance: Tensor, mass: Tensor, right: Tensor) -> Tensor:
    """Return how much mass a right and a wrong class get from votes at each distance.

    ``distance`` and ``mass`` [N, I, J] are of every child's vote for every class, ``right`` [N,
    J] is true for one class an image. The result is summed over images: float64 [2, BINS].
    """
    import torch

    bins = (distance / WIDTH).long().clamp_max(BINS - 1)
    histograms = []
    for classes in (right, ~right):
        chosen = classes[:, None].expand_as(bins)
        masses = torch.bincount(bins[chosen], mass[chosen].double(), BINS)
        histograms.append(masses / classes[0].sum())
    return torch.stack(histograms)


def look_inside(
    recipe: EMRecipe, network: nn.Module, examples: Examples
) -> tuple[dict[str, Metric], dict[str, list[float]]]:
    """Return how far votes for a class lie from their mean, and which capsule types are dead.

    Distances are Euclidean, coordinates included, and weighted with the assignment a_i R_ij, as
    in Fig. 2, after each iteration; a histogram is of the mass that one class gets from an
    image.
    """
    import torch

    # iteration, right or wrong, distance
    histograms = torch.zeros(recipe.iterations, 2, BINS, dtype=torch.float64)
    highest: dict[str, Tensor] = {}
    images_count = len(examples.labels)
    with torch.no_grad():
        for images, labels in examples.batches(50):
            pose, activation = network.primary_capsules(recipe.seen(images))
            grids = {"primary": activation}
            for name in ("capsules1", "capsules2"):
                pose, activation, _ = getattr(network, name)(pose, activation)
                grids[name] = activation
            for name, grid in grids.items():
                top = grid.amax(dim=(0, 1, 2))
                highest[name] = torch.maximum(highest.get(name, top), top)
            votes, children = network.classes.votes(pose), activation.flatten(1)
            right = torch.nn.functional.one_hot(labels, votes.shape[2]).bool()  # [N, J]
            routing = network.classes.routing
            for iteration in range(recipe.iterations):
                result = routing(votes, children, iterations=iteration + 1)
                mass = result.coupling * children[..., None]  # [N, I, J]
                distance = torch.linalg.vector_norm(votes - result.pose[:, None], dim=-1)
                histogram = vote_histogram(distance, mass, right)
                histograms[iteration] += histogram.cpu() / images_count
    classes = len(SETS[recipe.data].classes)
    metrics = close_votes(histograms, classes, images_count) | dead_types(highest)
    series = {"distances": [round(WIDTH * number, 3) for number in range(BINS)]}
    for iteration, pair in enumerate(histograms.tolist(), start=1):
        for kind, masses in zip(("right", "wrong"), pair, strict=True):
            series[f"votes_{kind}_{iteration}"] = [round(mass, 6) for mass in masses]
    return metrics, series


def close_votes(histograms: Tensor, classes: int, images: int) -> dict[str, Metric]:
    """Return the mass that right and wrong classes get from close votes after each iteration.

    One class is right, all others are wrong.
    """
    close = histograms[..., : round(CLOSE / WIDTH)].sum(dim=-1)
    metrics = {}
    for iteration, (right, wrong) in enumerate(close.tolist(), start=1):
        masses = {f"close_right_{iteration}": right, f"close_wrong_{iteration}": wrong}
        metrics |= in_unit(masses, images, "children")
    for iteration, (right, wrong) in enumerate(close.tolist(), start=1):
        total = right + wrong * (classes - 1)
        if total > 0:
            name = "right_share_of_close"
            if iteration < len(close):
                name += f"_{iteration}"
            metrics |= in_unit({name: right / total}, images, "fraction")
    return metrics


def dead_types(highest: dict[str, Tensor]) -> dict[str, Metric]:
    """Return the share of dead types of each layer and of all, by the highest activations."""
    import torch

    dead = {f"dead_{name}": (top < ALIVE).double() for name, top in highest.items()}
    dead["dead"] = torch.cat([*dead.values()])
    metrics = {}
    for name, types in dead.items():
        metrics |= in_unit({name: float(types.mean())}, len(types), "fraction")
    return metrics


TABLE_1: dict[str, dict[str, Any]] = {
    "main": {},
    "iterations_1": dict(iterations=1),
    "iterations_2": dict(iterations=2),
    "iterations_5": dict(iterations=5),
    "vector_pose": dict(pose="vector"),
    "no_coordinates": dict(coordinates=False),
    "vector_pose_no_coordinates": dict(pose="vector", coordinates=False),
    "margin_loss": dict(loss="margin"),
    "cross_entropy": dict(loss="cross_entropy"),
    "mixing_proportions": dict(activation="mixing"),
    "cnn": dict(network="cnn"),
}
"""The rows of Table 1, and the mixing proportions of §5, as changes of the main network."""
DIGITS = dict(data="digits", resize=24, crop=20, jitter=False)
MNIST = dict(data="mnist", resize=28, crop=24, jitter=False)
CIFAR10 = dict(data="cifar10", sizes=(256, 32, 32, 32), resize=32, crop=24)
MULTI_CROP = 24_300
"""All test images of smallNORB."""


def competition(rule: str, normalise: str, iterations: Sequence[int]) -> dict[str, dict]:
    """Return arms with this rule of competition, one for each number of iterations."""
    return {
        f"competition_{rule}/iterations_{number}": dict(normalise=normalise, iterations=number)
        for number in iterations
    }


CONTROLS: dict[str, dict[str, Any]] = {
    **competition("as_printed", "types+positions", (1, 2, 3, 5)),
    # with one iteration it is that within a type: both start alike, and nobody has competed yet
    **competition("in_one_window", "types-per-position", (2, 3, 5)),
    "released_constants": dict(preset="released"),
    "printed_constants": dict(preset="printed"),
    "fixed_margin": dict(margin="fixed"),
    "linear_margin": dict(margin="linear"),
}
"""Arms of our own: who competes for a child, the constants, the schedule of the margin."""
COPIES: dict[str, dict[str, Any]] = {
    "iterations_1": dict(iterations=1),
    "iterations_2": dict(iterations=2),
    "main": {},
    **competition("as_released", "released", (2, 3)),
    **competition("as_printed", "types+positions", (1, 2, 3)),
    "small_cnn": dict(network="cnn"),
    "cnn": dict(network="cnn"),
}
"""The arms of a smaller copy of the paper's setting.

They decide how many iterations are best and whether capsules beat a CNN. The copy has the
paper's pictures and crops, so a last grid of 4 × 4 places, and jitter after standardising. With
one iteration nobody has competed yet, so competition as released is that within a type.
"""
COPY = "copy/"
"""How the names of these arms begin."""
MULTI_CROPPED = ("main", f"{COPY}main", f"{COPY}competition_as_released/iterations_3")
SMALLER_COPY: dict[str, Any] = dict(
    sizes=SMALLER["cpu"]["sizes"], cnn=SMALLER["cpu"]["cnn"], epochs=24
)
"""What makes the copy smaller than the paper's setting.

Learning rates were chosen by hand on held-out toys, without records, before a test image was
seen.
"""
SMALLER_CNNS: dict[str, dict[str, Any]] = {
    f"{COPY}small_cnn": dict(cnn=(8, 16, 20)),
    f"{COPY}cnn": dict(cnn=(32, 64, 1024), learning_rate=1e-3),
}
"""The CNN with as many parameters as the capsules of the copy, and the paper's."""


def small_networks() -> dict[str, dict[str, Any]]:
    """Return the arms of the paper's small network.

    It is trained as the main one, with three iterations or fewer; and as released, constants,
    schedules by the step and order of the augmentation included, for 400,000 steps, and for
    each 50,000 on the way.
    """
    networks: dict[str, dict[str, Any]] = {}
    small = dict(size="small", sizes=SMALL)
    for number in (3, 2, 1):
        networks[f"small/iterations_{number}"] = dict(**small, iterations=number)
    for epochs in range(8 * EPOCHS_OF_50000_STEPS, 0, -EPOCHS_OF_50000_STEPS):
        networks[f"small/as_released/{epochs}_epochs"] = dict(
            **small, preset="released", schedule="steps", standardise="crop", epochs=epochs
        )
    return networks


def variations(scale: Scale) -> dict[str, dict[str, Any]]:
    """Return the names of a scale's arms, and what they change in the main network."""
    if scale == "smoke":
        rows = {name: TABLE_1[name] for name in ("main", "iterations_1", "cnn")}
        return {**rows, "digits": DIGITS}
    common = {**TABLE_1, "mnist": MNIST, **CONTROLS}
    if scale == "paper":
        return {**common, **small_networks(), "cifar10": CIFAR10}
    copies = {}
    for name, changes in COPIES.items():
        copies[COPY + name] = dict(standardise="image", shared_stream=False, **changes)
    return common | copies


def arms(scale: Scale) -> Iterator[Arm]:
    """Yield the networks of Table 1, and arms of our own."""
    images = 30 if scale == "smoke" else MULTI_CROP
    for name, changes in variations(scale).items():
        recipe = paper_recipe(scale, **changes)
        options = ErrorOptions(multi_crop=images if name in MULTI_CROPPED else 0)
        yield Arm(name, recipe, options)


def smaller(scale: Scale, arm: Arm) -> dict[str, Any]:
    """Return the fields that a scale makes smaller."""
    if arm.name.startswith(COPY):
        return SMALLER_COPY | SMALLER_CNNS.get(arm.name, {})
    if scale == "cpu" and arm.data == "mnist":
        return SMALLER[scale] | dict(resize=28, crop=24, epochs=4, batch_size=64)
    return SMALLER[scale]


def replicates(arm: Arm, seeds: Sequence[int]) -> Sequence[int]:
    """Return the seeds of an arm: one for the learning curve as released, which takes days."""
    return seeds[:1] if arm.recipe.schedule == "steps" else seeds


TEST_ERROR = Experiment(
    name="test_error",
    paper="em_routing",
    arms=arms,
    smaller=smaller,
    run=run,
    revision=2,
    replicates=replicates,
)
