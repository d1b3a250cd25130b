"""Recognition from novel viewpoints, at an equal error on familiar ones (Table 2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from capslib.costs import Work
from capslib.data.registry import dataset
from capslib.papers.common import abscissa, thinned
from capslib.papers.em_routing import trained
from capslib.papers.em_routing.trained import REDUCED, TrainingConfig
from capslib.trials import Context, Deviation, Metric, Outcome, Scale

if TYPE_CHECKING:
    from capslib.training import History


class ViewpointConfig(TrainingConfig):
    """A CNN and capsules, trained on a third of the viewpoints and compared at an equal error on these."""

    factor: Literal["azimuth", "elevation"]


def matched(familiar: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """After how many epochs to compare each model, by its errors on familiar viewpoints before the first epoch and after every one.

    The worse model at its end; a better one where its error first came down to that, on a line between two epochs.
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
    from capslib.data.viewpoints import familiar

    train, known, fingerprint = trained.load_splits(config, context, lambda split: familiar(split, config.factor))
    novel, _ = trained.load_split(config, context, "test", lambda split: ~familiar(split, config.factor))
    found: dict[str, History] = {}
    for model in ("cnn", "capsules"):  # the CNN takes little, and is trained anew when the trial is taken up again
        of_model = config.model_copy(update={"model": model})
        both = lambda net, c=of_model: {"familiar": trained.error_of(c, net, known), "novel": trained.error_of(c, net, novel)}  # noqa: E731
        own = context if model == "capsules" else dataclasses.replace(context, checkpoint=None)
        network, found[model] = trained.fit_network(of_model, own, train, both)
    guessing = 100 * (1 - 1 / len(dataset(config.data).classes))  # before the first epoch, in which a CNN learns most
    errors = {(m, name): [guessing, *h.epochs[name]] for m, h in found.items() for name in ("familiar", "novel")}
    epochs = matched({model: errors[model, "familiar"] for model in found})
    metrics: dict[str, Metric] = {}
    for model, epoch in epochs.items():
        for name, split in (("familiar", known), ("novel", novel)):
            metrics[f"{model}_{name}"] = Metric(value=after(errors[model, name], epoch), n=len(split.labels), unit="percent")
        metrics[f"{model}_epoch"] = Metric(value=epoch, n=1, unit="epochs")
    cnn, ours = (metrics[f"{model}_novel"].value for model in ("cnn", "capsules"))
    metrics["novel_gap"] = Metric(value=cnn - ours, n=len(novel.labels), unit="percent")
    metrics["reduction"] = Metric(value=100 * (1 - ours / cnn) if cnn else 0.0, n=len(novel.labels), unit="percent")
    metrics["loss_change_last_quarter"] = trained.flattening_of_error(config, found["capsules"], len(train.labels))
    curves = {f"{m}_{name}": h.epochs[name] for m, h in found.items() for name in ("familiar", "novel")}
    return Outcome(
        metrics=metrics, series={"epochs": abscissa(len(curves["cnn_novel"])), **curves, **thinned(found["capsules"])},
        data=[fingerprint], parameters=sum(p.numel() for p in network.parameters()), routing_path=found["capsules"].routing_path,
    )  # fmt: skip


def grid(scale: Scale) -> list[ViewpointConfig]:
    longer = {"smoke": 3, "cpu": 16, "paper": 100}[scale]  # a third of the images
    return [ViewpointConfig(**{**REDUCED[scale], "epochs": longer, "factor": f}) for f in ("azimuth", "elevation")]


def work(config: ViewpointConfig) -> Work:
    return trained.work(config, cnns=1, share=1 / 3)


def deviations(config: ViewpointConfig) -> list[Deviation]:
    return [
        *trained.deviations(config, cnns=1),
        Deviation(what="matched error", paper="the capsules are stopped at the CNN's familiar error",
                  ours="the better model is taken where its familiar error comes down to the other's final one, on a line between two epochs, or from guessing to the first",
                  why="either may be the better one at a reduced scale"),
    ]  # fmt: skip
