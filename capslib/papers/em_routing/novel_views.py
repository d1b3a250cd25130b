"""Recognition from novel viewpoints, at an equal error on familiar ones (Table 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from capslib.data.registry import dataset
from capslib.papers.common import abscissa, error_change, in_unit, outcome
from capslib.papers.em_routing.recipe import REDUCED, EMRecipe
from capslib.papers.experiment import Outcome, Scale
from capslib.recipes import Training, train

if TYPE_CHECKING:
    from capslib.training import Context


class ViewpointConfig(EMRecipe):
    """A CNN and capsules, trained on a third of the viewpoints and compared at an equal error on these."""

    factor: Literal["azimuth", "elevation"]


def trainings(config: ViewpointConfig, seed: int) -> list[Training]:
    """Those of the CNN and of the capsules."""
    return [Training(config.recipe(network="cnn"), seed), Training(config.recipe(), seed)]


def matched(familiar: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """After how many epochs to compare each model, by its errors on familiar viewpoints before the first epoch and after every one.

    The worse model is taken at its end, a better one where its error first came down to that, on a line between two epochs.
    """
    target = max(errors[-1] for errors in familiar.values())

    def reached(errors: Sequence[float]) -> float:
        if errors[-1] == target:
            return len(errors) - 1
        first = next(k for k, error in enumerate(errors) if error <= target)
        return first and first - (target - errors[first]) / (errors[first - 1] - errors[first])

    return {model: reached(errors) for model, errors in familiar.items()}


def after(errors: Sequence[float], epochs: float) -> float:
    """The error after so many epochs, on a line between two of them, of the errors that :func:`matched` takes."""
    whole = int(epochs)
    return errors[whole] if epochs == whole else errors[whole] + (epochs - whole) * (errors[whole + 1] - errors[whole])


def run(config: ViewpointConfig, context: Context) -> Outcome:
    """Train both on the familiar viewpoints; the better one is taken where its familiar error came down to that of the other."""
    both = dict(zip(("cnn", "capsules"), (train(*t, context) for t in trainings(config, context.seed)), strict=True))
    guessing = 100 * (1 - 1 / len(dataset(config.data).classes))  # before the first epoch, in which a CNN learns most
    curves = {f"{m}_{name}": t.history.epochs[name] for m, t in both.items() for name in ("familiar", "novel")}
    errors = {name: [guessing, *curve] for name, curve in curves.items()}
    epochs = matched({model: errors[f"{model}_familiar"] for model in both})
    splits = both["capsules"].splits
    metrics = in_unit({f"{model}_epoch": epoch for model, epoch in epochs.items()}, 1, "epochs")
    for name in ("familiar", "novel"):
        found = {f"{model}_{name}": after(errors[f"{model}_{name}"], epoch) for model, epoch in epochs.items()}
        metrics |= in_unit(found, len(splits[name].labels), "percent")
    cnn, ours, n = metrics["cnn_novel"].value, metrics["capsules_novel"].value, len(splits["novel"].labels)
    metrics |= in_unit({"novel_gap": cnn - ours}, n, "points")
    metrics |= in_unit({"reduction": 100 * (1 - ours / cnn) if cnn else 0.0}, n, "percent")
    series = {"epochs": abscissa(len(curves["cnn_novel"])), **curves}
    return outcome(both["capsules"], metrics, series, rest=error_change(both["capsules"]))


def grid(scale: Scale) -> list[ViewpointConfig]:
    longer = {"smoke": 3, "cpu": 16, "paper": 100}[scale]  # a third of the images
    return [ViewpointConfig(**{**REDUCED[scale], "epochs": longer, "factor": f}) for f in ("azimuth", "elevation")]
