"""How deep a CapsNet still trains (§5.2–5.3, Tables 2 and 3), and whether it can tell an image from its negative (§6)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from capslib.papers.common import in_unit, outcome
from capslib.papers.experiment import Metric, Outcome, Scale
from capslib.papers.negation_limitation.recipe import ARMS, CapsNetRecipe, budget
from capslib.recipes import train

if TYPE_CHECKING:
    from capslib.training import Context


class DepthConfig(CapsNetRecipe):
    """A CapsNet of a depth, with or without a bias."""

    front: None = None


class NegatedConfig(CapsNetRecipe):
    """A CapsNet on images and their negatives, which have other labels."""

    front: Literal["relu", "odd"]


def run(config: CapsNetRecipe, context: Context) -> Outcome:
    """Train one CapsNet and measure its test accuracy after every epoch, and when it starts to learn."""
    trained = train(config, context.seed, context)
    curve, steps = trained.history.epochs["test_accuracy"], trained.history.terms["accuracy"]
    accuracies = {"test_accuracy": curve[-1], "best_test_accuracy": max(curve)}
    starts = {
        f"steps_to_{level}_percent": first_above(steps, level / 100) for level in (20, 50)
    }
    metrics = in_unit(accuracies, len(trained.splits["test"].labels), "fraction") | starts
    return outcome(trained, metrics, curves=["test_accuracy"])


def first_above(curve: Sequence[float], level: float, window: int = 20) -> Metric:
    """The first step after which the mean training accuracy of ``window`` steps lies above ``level``; at most the run's length."""
    total = sum(curve[:window])
    for step in range(window, len(curve) + 1):
        if total / window > level:
            return Metric(value=step, n=1, unit="steps")
        total += curve[step] - curve[step - window] if step < len(curve) else 0
    return Metric(value=len(curve), n=1, unit="steps")


RBA_DEPTHS, EM_DEPTHS = (2, 3, 4, 5), (5, 6, 7, 8, 9)
CONTROLS = (
    {"bias": True, "bias_start": 0.0},
    *({"bias": False, "weight_std": std} for std in (0.3, "unit", "identity")),
    {"bias": False, "iterations": 1},
)
"""The arms that separate symmetry from what a layer passes on: a bias that starts at zero; without a bias, larger weights, all ‖s‖
near one, weights near the identity, or couplings that stay equal, as in one iteration.
"""
CONTROL_DEPTHS = {"dynamic": (4, 5), "em_vector": (7, 9)}
"""Where networks with and without bias differ."""


def grid(scale: Scale) -> list[DepthConfig]:
    smoke = scale == "smoke"
    depths = {
        "dynamic": (2, 4) if smoke else RBA_DEPTHS,
        "em_vector": {"smoke": (3,), "cpu": (3, 4, *EM_DEPTHS), "paper": (3, *EM_DEPTHS)}[
            scale
        ],
    }
    configs = []
    for data, routing in itertools.product(
        ("digits",) if smoke else ("mnist", "fashion_mnist"), depths
    ):
        for depth in depths[routing]:
            controlled = (
                scale != "paper"
                and data != "fashion_mnist"
                and depth in CONTROL_DEPTHS[routing]
            )
            for arm in (*ARMS, *(CONTROLS if controlled else ())):
                configs.append(
                    DepthConfig(
                        data=data,
                        routing=routing,
                        depth=depth,
                        **{**budget(scale, data, routing), **arm},
                    )
                )
    return configs


def negated_grid(scale: Scale) -> list[NegatedConfig]:
    """At a depth that trains without a bias; half the epochs of the depth experiment, since there are two images for one."""
    data, epochs = (
        "digits" if scale == "smoke" else "mnist",
        {"smoke": 1, "cpu": 2, "paper": 25}[scale],
    )
    return [
        NegatedConfig(
            data=data,
            routing=routing,
            depth=3,
            front=front,
            **{**budget(scale, data, routing), **arm, "epochs": epochs},
        )
        for routing, front, arm in itertools.product(
            ("dynamic", "em_vector"), ("relu", "odd"), ARMS
        )
    ]
