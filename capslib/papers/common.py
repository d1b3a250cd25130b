"""What the chapters' experiments share: how a training run becomes metrics and curves, and a configuration its deviations."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from capslib.trials import Config, Deviation, Metric, Scale

if TYPE_CHECKING:
    from capslib.training import History


SEEDS: dict[Scale, tuple[int, ...]] = dict(smoke=(0,), cpu=(0, 1, 2), paper=(0, 1, 2))
"""The seeds of an experiment whose paper does not say how often it ran."""


def abscissa(n: int) -> list[float]:
    return [float(k) for k in range(1, n + 1)]


def flattening(history: History) -> Metric:
    return Metric(value=history.loss_change_last_quarter(), n=len(history.loss), unit="share of the initial loss")


def thinned(history: History, points: int = 300) -> dict[str, list[float]]:
    """Loss and training accuracy as means over equal stretches of steps, at most ``points`` of them, with their last steps."""
    width = max(1, -(-len(history.loss) // points))
    ends = [min(k + width, len(history.loss)) for k in range(0, len(history.loss), width)]

    def means(curve: Sequence[float]) -> list[float]:
        return [round(sum(curve[max(0, e - width) : e]) / (e - max(0, e - width)), 5) for e in ends]

    return {"steps": list(map(float, ends)), "loss": means(history.loss), "batch_accuracy": means(history.accuracy)}


def differences(config: Config, setting: Config, arm: Collection[str], why: str) -> list[Deviation]:
    """One deviation for each field, outside those that tell the arms apart, in which ``config`` is not the paper's ``setting``."""
    return [
        Deviation(what=field.title or name, paper=str(getattr(setting, name)), ours=str(getattr(config, name)), why=why)
        for name, field in type(config).model_fields.items()
        if name not in arm and getattr(config, name) != getattr(setting, name)
    ]
