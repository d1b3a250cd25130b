"""Recognition from novel viewpoints, at an equal error on familiar ones (Table 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from capslib.data.registry import SETS
from capslib.papers.common import abscissa, in_unit, outcome
from capslib.papers.em_routing.recipe import EMRecipe, at_scale
from capslib.papers.experiment import Outcome, Scale
from capslib.recipes import Training, train

if TYPE_CHECKING:
    from capslib.training import Context


class ViewpointConfig(EMRecipe):
    """A CNN and capsules, trained on a third of the viewpoints and compared at an equal error on these; or a CNN alone."""

    factor: Literal["azimuth", "elevation"]


def trainings(config: ViewpointConfig, seed: int) -> list[Training]:
    """Those of the CNN and of the capsules, or of the CNN alone."""
    return [
        Training(config.recipe(network=n), seed) for n in dict.fromkeys(("cnn", config.network))
    ]


def matched(familiar: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The number of epochs after which to compare each model, from its errors on familiar viewpoints (first: before any training).

    The model with the higher final error is taken at its end. For the other we interpolate when its error first fell that low.
    """
    target = max(errors[-1] for errors in familiar.values())

    def reached(errors: Sequence[float]) -> float:
        if errors[-1] == target:
            return len(errors) - 1
        first = next(k for k, error in enumerate(errors) if error <= target)
        if first == 0:
            return 0
        return first - (target - errors[first]) / (errors[first - 1] - errors[first])

    return {model: reached(errors) for model, errors in familiar.items()}


def run(config: ViewpointConfig, context: Context) -> Outcome:
    """Train both on familiar viewpoints and compare them on novel ones, at an equal error on familiar ones."""
    both = dict(
        zip(
            ("cnn", "capsules"),
            (train(*t, context) for t in trainings(config, context.seed)),
            strict=False,
        )
    )
    guessing = 100 * (
        1 - 1 / len(SETS[config.data].classes)
    )  # the error before the first epoch
    curves = {
        f"{m}_{name}": t.history.epochs[name]
        for m, t in both.items()
        for name in ("familiar", "novel")
    }
    errors = {name: [guessing, *curve] for name, curve in curves.items()}
    epochs = matched({model: errors[f"{model}_familiar"] for model in both})
    last = both[next(reversed(both))]
    splits = last.splits
    metrics = in_unit({f"{model}_epoch": epoch for model, epoch in epochs.items()}, 1, "epochs")
    for name in ("familiar", "novel"):
        curve = {model: errors[f"{model}_{name}"] for model in both}
        found = {
            f"{model}_{name}": float(np.interp(epochs[model], range(len(of)), of))
            for model, of in curve.items()
        }
        metrics |= in_unit(found, len(splits[name].labels), "percent")
    if len(both) == 2:
        cnn, ours, n = (
            metrics["cnn_novel"].value,
            metrics["capsules_novel"].value,
            len(splits["novel"].labels),
        )
        metrics |= in_unit({"novel_gap": cnn - ours}, n, "points")
        metrics |= in_unit({"reduction": 100 * (1 - ours / cnn) if cnn else 0.0}, n, "percent")
    series = {"epochs": abscissa(len(curves["cnn_novel"])), **curves}
    return outcome(last, metrics, series, beside=both["cnn"] if len(both) == 2 else None)


def grid(scale: Scale) -> list[ViewpointConfig]:
    longer = {"smoke": 3, "cpu": 16, "paper": 100}[scale]  # a third of the images
    networks = (
        ("matrix_capsnet", "cnn") if scale == "paper" else ("matrix_capsnet",)
    )  # alone it takes a hundredth of the time
    return [
        ViewpointConfig(**at_scale(scale, epochs=longer, network=network, factor=factor))
        for network in networks
        for factor in ("azimuth", "elevation")
    ]
