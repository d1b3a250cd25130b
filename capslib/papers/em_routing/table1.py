"""Test error of the main network and its ablations (Table 1, §5), and where its votes lie (Fig. 2, B.2)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from capslib.data.registry import SETS
from capslib.papers.common import in_unit, outcome
from capslib.papers.em_routing.recipe import COPY, RELEASED_EPOCHS, SMALL, EMRecipe, at_scale
from capslib.papers.experiment import Metric, Outcome, Scale
from capslib.recipes import train

if TYPE_CHECKING:
    from torch import Tensor, nn

    from capslib.recipes import Trained
    from capslib.training import Context, Examples


class TestErrorConfig(EMRecipe):
    """A network of Table 1."""

    __test__: ClassVar[bool] = False  # no test of pytest, whatever its name
    multi_crop: int = Field(0, ge=0, title="test images that are looked at in 13 crops")


def run(config: TestErrorConfig, context: Context) -> Outcome:
    """Train one network and measure its test error; for capsules, also vote distances and dead types."""
    trained = train(config, context.seed, context)
    network, test = trained.network, trained.splits["test"]
    metrics = in_unit({"test_error": config.error(network, test)}, len(test.labels), "percent")
    if config.multi_crop:
        some = test.some(config.multi_crop)
        several, one = config.error_of_crops(network, some), config.error(network, some)
        errors = {
            "multi_crop_error": several,
            "same_images_error": one,
            "fewer_errors_than_2.56": 100 * (1 - several / 2.56),
        }
        metrics |= in_unit(errors, len(some.labels), "percent")
        metrics |= in_unit({"multi_crop_gain": one - several}, len(some.labels), "points")
    found, series = (
        ({}, {}) if config.network == "cnn" else look_inside(config, network, test.some(500))
    )
    return outcome(trained, metrics | found | error_change(trained), series, ["error_of_some"])


def error_change(trained: Trained) -> dict[str, Metric]:
    """How far the training error moved over the last quarter, as a share of the error of guessing; means over an epoch."""
    right, epochs = (
        trained.history.terms["accuracy"],
        max(1, len(next(iter(trained.history.epochs.values())))),
    )
    corner = max(1, len(right) * 3 // 4)
    window = min(-(-len(right) // epochs), corner)
    moved = abs(fmean(right[corner - window : corner]) - fmean(right[-window:]))
    guessing = 1 - 1 / len(SETS[trained.data[0].name].classes)
    return {
        "error_change_last_quarter": Metric(
            value=moved / guessing, n=len(right), unit="share of the error of guessing"
        )
    }


CLOSE, BINS, WIDTH = 0.05, 40, 0.01
"""A vote is close within this distance of its parent's mean (Fig. 2); the bins of the histograms."""


def vote_histogram(distance: Tensor, mass: Tensor, right: Tensor) -> Tensor:
    """How much mass a right and a wrong class get from votes at each distance, summed over images: float64 [2, BINS].

    ``distance`` and ``mass`` [N, I, J] are of every child's vote for every class, ``right`` [N, J] is true for one class an image.
    """
    import torch

    bins = (distance / WIDTH).long().clamp_max(BINS - 1)
    found = []
    for kind in (right, ~right):
        chosen = kind[:, None].expand_as(bins)
        found.append(torch.bincount(bins[chosen], mass[chosen].double(), BINS) / kind[0].sum())
    return torch.stack(found)


def look_inside(
    config: EMRecipe, network: nn.Module, examples: Examples
) -> tuple[dict[str, Metric], dict[str, list[float]]]:
    """How far votes for a class lie from their mean after each iteration, and which capsule types are dead.

    Distances are Euclidean, coordinates included, and weighted with the assignment a_i R_ij, as in Fig. 2; a histogram is of the
    mass that one class gets from an image. A type is dead where no image makes it more active than 0.05.
    """
    import torch

    histograms = torch.zeros(
        config.iterations, 2, BINS, dtype=torch.float64
    )  # iteration, right or wrong, distance
    most: dict[str, Tensor] = {}
    n = len(examples.labels)
    with torch.no_grad():
        for images, labels in examples.batches(50):
            pose, activation = network.primary_capsules(config.seen(images))
            grids = {"primary": activation}
            for name in ("capsules1", "capsules2"):
                pose, activation, _ = getattr(network, name)(pose, activation)
                grids[name] = activation
            for name, grid in grids.items():
                top = grid.amax(dim=(0, 1, 2))
                most[name] = torch.maximum(most[name], top) if name in most else top
            votes, children = network.classes.votes(pose), activation.flatten(1)
            right = torch.nn.functional.one_hot(labels, votes.shape[2]).bool()  # [N, J]
            routing = network.classes.routing
            for iteration in range(config.iterations):
                result = routing(votes, children, iterations=iteration + 1)
                mass = result.coupling * children[..., None]  # [N, I, J]
                distance = torch.linalg.vector_norm(votes - result.pose[:, None], dim=-1)
                histograms[iteration] += vote_histogram(distance, mass, right).cpu() / n
    close = histograms[..., : round(CLOSE / WIDTH)].sum(
        dim=-1
    )  # mass a class gets from votes that are close, per image
    kinds = {
        f"{kind}_{t + 1}": (t, k)
        for t in range(config.iterations)
        for k, kind in enumerate(("right", "wrong"))
    }
    metrics = in_unit(
        {f"close_{name}": float(close[at]) for name, at in kinds.items()}, n, "children"
    )
    of_all = close * torch.tensor(
        [1, len(SETS[config.data].classes) - 1]
    )  # one class is right, the others are wrong
    for t, (right, wrong) in enumerate(of_all.tolist(), start=1):
        if right + wrong > 0:
            name = "right_share_of_close" + (f"_{t}" if t < config.iterations else "")
            metrics |= in_unit({name: right / (right + wrong)}, n, "fraction")
    dead = {f"dead_{name}": (top < 0.05).double() for name, top in most.items()}
    dead["dead"] = torch.cat([*dead.values()])
    metrics |= {
        name: Metric(value=float(d.mean()), n=len(d), unit="fraction")
        for name, d in dead.items()
    }
    series = {
        f"votes_{name}": [round(v, 6) for v in histograms[at].tolist()]
        for name, at in kinds.items()
    }
    return metrics, {"distances": [round(WIDTH * k, 3) for k in range(BINS)], **series}


MNIST: dict[Scale, dict[str, Any]] = {
    "smoke": dict(data="digits", resize=24, crop=20, jitter=False),
    "cpu": dict(data="mnist", resize=28, crop=24, jitter=False, epochs=4, batch_size=64),
    "paper": dict(data="mnist", resize=28, crop=24, jitter=False),
}
ABLATIONS: tuple[dict[str, Any], ...] = (
    {},
    *({"iterations": t} for t in (1, 2, 5)),
    {"pose": "vector"},
    {"coordinates": False},
    {"pose": "vector", "coordinates": False},
    *({"loss": name} for name in ("margin", "cross_entropy")),
    {"activation": "mixing"},
    {"network": "cnn"},
)
"""The rows of Table 1, and the mixing proportions of §5, as differences from the main network."""
OURS: tuple[dict[str, Any], ...] = (
    *({"iterations": t, "normalise": "types+positions"} for t in (1, 2, 3, 5)),
    *({"iterations": t, "normalise": "types-per-position"} for t in (2, 3, 5)),
    *({"preset": p} for p in ("released", "printed")),
    *({"margin": m} for m in ("fixed", "linear")),
)
"""Arms of our own: who competes for a child, the constants, the schedule of the margin.

With one iteration a competition within a window is that within a type: both start alike, and nobody has competed yet.
"""
MATCHED, FULL = (8, 16, 20), (32, 64, 1024)
"""The CNN with as many parameters as the capsules of the smaller copy, and the paper's."""
COPIES: tuple[dict[str, Any], ...] = (
    *({**COPY, "iterations": t} for t in (1, 2)),
    {**COPY, "multi_crop": 24_300},
    {**COPY, "normalise": "released", "iterations": 2},
    {**COPY, "normalise": "released", "multi_crop": 24_300},
    *({**COPY, "normalise": "types+positions", "iterations": t} for t in (1, 2, 3)),
    *(
        {**COPY, "network": "cnn", "cnn": cnn, "learning_rate": rate}
        for cnn, rate in ((MATCHED, 3e-3), (FULL, 1e-3))
    ),
)
"""The arms of the smaller copy, which decide how many iterations are best and whether capsules beat a CNN.

With one iteration nobody has competed yet, so competition as released is that within a type.
"""
SMALL_ARMS: tuple[dict[str, Any], ...] = (
    *({"size": "small", "sizes": SMALL, "iterations": t} for t in (3, 2, 1)),
    *(
        {
            "size": "small",
            "sizes": SMALL,
            "preset": "released",
            "schedule": "steps",
            "standardise": "crop",
            "epochs": epochs,
        }
        for epochs in range(8 * RELEASED_EPOCHS, 0, -RELEASED_EPOCHS)
    ),
)
"""The paper's small network: trained as the main one, with three iterations or fewer; and as released, constants, schedules by the
step and order of the augmentation included, for 400,000 steps, and for each 50,000 on the way."""


def replicates(config: TestErrorConfig, seeds: Sequence[int]) -> Sequence[int]:
    """Seeds of an arm: one for the learning curve as released, which takes days."""
    return seeds[:1] if config.schedule == "steps" else seeds


def grid(scale: Scale) -> list[TestErrorConfig]:
    arms = [{"multi_crop": 24_300}, *ABLATIONS[1:], MNIST[scale], *OURS]
    if scale == "cpu":
        arms += COPIES
    if scale == "smoke":
        arms = [{"multi_crop": 30}, {"iterations": 1}, {"network": "cnn"}, MNIST[scale]]
    if scale == "paper":
        arms += [
            *SMALL_ARMS,
            {"data": "cifar10", "sizes": (256, 32, 32, 32), "resize": 32, "crop": 24},
        ]
    return [TestErrorConfig(**at_scale(scale, **arm)) for arm in arms]
