"""Recognition from novel viewpoints, at an equal error on familiar ones (Table 2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from capslib.data.registry import SETS
from capslib.data.viewpoints import FAMILIAR
from capslib.papers.common import abscissa, in_unit, outcome
from capslib.papers.em_routing.recipe import (
    SMALLER,
    recipes_beside,
    trainings_beside,
)
from capslib.papers.experiment import Arm, Experiment, Outcome, Scale
from capslib.recipes import train

if TYPE_CHECKING:
    from capslib.training import Context

CPU_EPOCHS = 16
"""Epochs at cpu scale; more than elsewhere, for only a third of the images are trained on."""


def run(arm: Arm, context: Context) -> Outcome:
    """Train on familiar viewpoints, and compare the errors on novel ones.

    Both networks are compared at an equal error on familiar viewpoints.
    """
    cnn, *capsules = [
        train(*training, context) for training in trainings_beside(arm, context.seed)
    ]
    networks = {"cnn": cnn}
    if capsules:
        networks["capsules"] = capsules[0]
    curves = {}
    for name, trained in networks.items():
        for view in ("familiar", "novel"):
            curves[f"{name}_{view}"] = trained.history.epochs[view]
    guessing = 100 * (1 - 1 / len(SETS[arm.recipe.data].classes))
    errors = {name: [guessing, *curve] for name, curve in curves.items()}  # epoch 0 first
    epochs = matched({name: errors[f"{name}_familiar"] for name in networks})

    measured = capsules[0] if capsules else cnn
    metrics = {}
    for name, epoch in epochs.items():
        metrics |= in_unit({f"{name}_epoch": epoch}, 1, "epochs")
    for view in ("familiar", "novel"):
        images = len(measured.splits[view].labels)
        for name, epoch in epochs.items():
            curve = errors[f"{name}_{view}"]
            error = float(np.interp(epoch, range(len(curve)), curve))
            metrics |= in_unit({f"{name}_{view}": error}, images, "percent")
    if capsules:
        of_cnn, of_capsules = metrics["cnn_novel"].value, metrics["capsules_novel"].value
        reduction = 100 * (1 - of_capsules / of_cnn) if of_cnn else 0.0
        images = metrics["cnn_novel"].n
        metrics |= in_unit({"novel_gap": of_cnn - of_capsules}, images, "points")
        metrics |= in_unit({"reduction": reduction}, images, "percent")
    series = {"epochs": abscissa(len(curves["cnn_novel"])), **curves}
    return outcome(measured, metrics, series, rival=cnn if capsules else None)


def matched(familiar: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return after how many epochs to compare each model.

    ``familiar`` has its errors on familiar viewpoints, the first before any training. The model
    with the higher final error is taken at its end. For the other one we interpolate when its
    error first fell that low.
    """
    target = max(errors[-1] for errors in familiar.values())
    return {model: first_at(target, errors) for model, errors in familiar.items()}


def first_at(target: float, errors: Sequence[float]) -> float:
    """Return when errors reach a target: at their end, or where they first fall to it."""
    if errors[-1] == target:
        return len(errors) - 1
    first = next(epoch for epoch, error in enumerate(errors) if error <= target)
    if first == 0:
        return 0
    return first - (target - errors[first]) / (errors[first - 1] - errors[first])


def arms(scale: Scale) -> Iterator[Arm]:
    """Yield the networks that are compared, for each factor."""
    for factor in FAMILIAR:
        for name, recipe in recipes_beside(scale, factor=factor).items():
            yield Arm(f"{factor}/{name}", recipe)


def smaller(scale: Scale, arm: Arm) -> dict[str, Any]:
    """Return the fields that a scale makes smaller."""
    if scale == "cpu":
        return SMALLER[scale] | {"epochs": CPU_EPOCHS}
    return SMALLER[scale]


VIEWPOINT = Experiment(
    name="viewpoint",
    paper="em_routing",
    arms=arms,
    smaller=smaller,
    run=run,
    revision=2,
    trainings=trainings_beside,
)
