"""What the experiments of all chapters share: turning a training into metrics and curves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from capslib.papers.experiment import Metric, Outcome, Scale
from capslib.recipes import Objective

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from capslib.recipes import Recipe, Trained
    from capslib.training import History


SEEDS: dict[Scale, tuple[int, ...]] = dict(smoke=(0,), cpu=(0, 1, 2), paper=(0, 1, 2))
"""The seeds of an experiment whose paper does not say how often it ran."""


class Spread(Objective):
    """The spread loss, whose margin grows while the network trains: ``margin_at(progress)``."""

    def __init__(
        self, recipe: Recipe, device: torch.device, margin_at: Callable[[float], float]
    ):
        import torch

        super().__init__(recipe)
        self.margin, self.margin_at = torch.zeros((), device=device), margin_at

    def at(self, progress: float) -> None:
        self.margin.fill_(self.margin_at(progress))

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        from capslib.losses import spread_loss

        return spread_loss(scores, labels, self.margin)


def abscissa(n: int) -> list[float]:
    """1, 2, … n: epochs or steps, as a series."""
    return [float(k) for k in range(1, n + 1)]


def in_unit(values: Mapping[str, float], n: int, unit: str) -> dict[str, Metric]:
    """Metrics that were all measured on ``n`` things, in one unit."""
    return {name: Metric(value=value, n=n, unit=unit) for name, value in values.items()}


def outcome(
    trained: Trained,
    metrics: Mapping[str, Metric],
    series: Mapping[str, Sequence[float]] | None = None,
    curves: Collection[str] = (),
    beside: Trained | None = None,
) -> Outcome:
    """The outcome of a training: an experiment's own ``metrics`` and ``series``, and what every
    experiment records.

    ``curves`` names the metrics to keep for every epoch. ``beside`` is another network, whose
    training accuracy is kept, too.
    """
    from capslib.routing import Routing

    history = trained.history
    epochs = {name: history.epochs[name] for name in curves}
    if epochs:
        epochs = {"epochs": abscissa(len(next(iter(epochs.values())))), **epochs}
    other = (
        {}
        if beside is None
        else {"batch_accuracy_beside": thinned(beside.history)["batch_accuracy"]}
    )
    routed = any(isinstance(module, Routing) for module in trained.network.modules())
    return Outcome(
        metrics=dict(metrics),
        series={
            **epochs,
            **{name: list(curve) for name, curve in (series or {}).items()},
            **thinned(history),
            **other,
        },
        data=list(trained.data),
        parameters=sum(p.numel() for p in trained.network.parameters()),
        routing_path=history.routing_path if routed else "none",
    )


def thinned(history: History, points: int = 300) -> dict[str, list[float]]:
    """Loss and training accuracy as means over equal stretches of steps, at most ``points`` of
    them, with their last steps.
    """
    steps = len(history.terms["loss"])
    width = max(1, -(-steps // points))
    ends = [min(k + width, steps) for k in range(0, steps, width)]

    def means(curve: Sequence[float]) -> list[float]:
        return [
            round(sum(curve[max(0, e - width) : e]) / (e - max(0, e - width)), 5) for e in ends
        ]

    curves = {
        "loss": history.terms["loss"],
        "batch_accuracy": history.terms.get("accuracy", ()),
    }
    return {
        "steps": list(map(float, ends)),
        **{name: means(curve) for name, curve in curves.items() if curve},
    }
