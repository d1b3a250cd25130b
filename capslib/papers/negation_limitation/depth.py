"""How deep a CapsNet still trains (§5.2, §5.3), and images beside their negatives (§6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from capslib.papers.common import bias_name, in_unit, outcome
from capslib.papers.experiment import Arm, Experiment, Metric, Outcome, Scale
from capslib.papers.negation_limitation.recipe import paper_recipe, smaller
from capslib.recipes import train

if TYPE_CHECKING:
    from capslib.training import Context

RBA_DEPTHS = (2, 3, 4, 5)
EM_DEPTHS = (5, 6, 7, 8, 9)
CONTROLS = {
    # a bias that is there to learn, and does not help at the start
    "bias_from_zero": dict(bias=True, bias_start=0.0),
    # without a bias: signals that fade less from layer to layer
    "larger_weights": dict(bias=False, weight_std=0.3),
    "unit_lengths": dict(bias=False, weight_std="unit"),
    "near_identity": dict(bias=False, weight_std="identity"),
    # without a bias: couplings that stay equal
    "one_iteration": dict(bias=False, iterations=1),
}
"""Controls that tell the symmetry's effect from that of signals that fade."""
CONTROLLED_DEPTHS = {"dynamic": (4, 5), "em_vector": (7, 9)}
"""Where networks with and without a bias differ."""


def depths(scale: Scale, routing: str) -> Sequence[int]:
    """Return the depths of the networks with a routing at a scale."""
    if routing == "dynamic":
        return (2, 4) if scale == "smoke" else RBA_DEPTHS
    return {"smoke": (3,), "cpu": (3, 4, *EM_DEPTHS), "paper": (3, *EM_DEPTHS)}[scale]


def depth_arms(scale: Scale) -> Iterator[Arm]:
    """Yield the networks of Tables 2 and 3, and their controls: ``mnist/dynamic/4/no_bias``."""
    for data in ("digits",) if scale == "smoke" else ("mnist", "fashion_mnist"):
        for routing in ("dynamic", "em_vector"):
            for depth in depths(scale, routing):
                variations = {"no_bias": dict(bias=False), "bias": dict(bias=True)}
                controlled = scale != "paper" and data != "fashion_mnist"
                if controlled and depth in CONTROLLED_DEPTHS[routing]:
                    variations |= CONTROLS
                for name, changes in variations.items():
                    recipe = paper_recipe(data, routing, depth=depth, **changes)
                    yield Arm(f"{data}/{routing}/{depth}/{name}", recipe)


def negated_arms(scale: Scale) -> Iterator[Arm]:
    """Yield networks of a depth that trains without a bias: ``dynamic/odd/no_bias``."""
    data = "digits" if scale == "smoke" else "mnist"
    for routing in ("dynamic", "em_vector"):
        for front in ("relu", "odd"):
            for bias in (False, True):
                recipe = paper_recipe(data, routing, depth=3, bias=bias, front=front)
                yield Arm(f"{routing}/{front}/{bias_name(bias)}", recipe)


def smaller_negated(scale: Scale, arm: Arm) -> dict[str, Any]:
    """Return the fields that a scale makes smaller.

    There are half the epochs of other networks, for there are two images for one.
    """
    return smaller(scale, arm) | {"epochs": {"smoke": 1, "cpu": 2, "paper": 25}[scale]}


def run(arm: Arm, context: Context) -> Outcome:
    """Train one CapsNet; measure its test accuracy, and when it starts to learn."""
    trained = train(arm.recipe, context.seed, context)
    test_accuracy = trained.history.epochs["test_accuracy"]
    batch_accuracy = trained.history.terms["accuracy"]
    accuracies = {"test_accuracy": test_accuracy[-1], "best_test_accuracy": max(test_accuracy)}
    metrics = in_unit(accuracies, len(trained.splits["test"].labels), "fraction")
    metrics["steps_to_20_percent"] = first_step_above(batch_accuracy, 0.2)
    metrics["steps_to_50_percent"] = first_step_above(batch_accuracy, 0.5)
    return outcome(trained, metrics, curves=["test_accuracy"])


def first_step_above(accuracy: Sequence[float], level: float, window: int = 20) -> Metric:
    """Return the first step after which the mean accuracy of a window is above a level.

    A network that never gets there has the number of its steps.
    """
    total = sum(accuracy[:window])
    for step in range(window, len(accuracy) + 1):
        if total / window > level:
            return Metric(value=step, n=1, unit="steps")
        if step < len(accuracy):
            total += accuracy[step] - accuracy[step - window]
    return Metric(value=len(accuracy), n=1, unit="steps")


DEPTH = Experiment(
    name="depth",
    paper="negation_limitation",
    arms=depth_arms,
    smaller=smaller,
    run=run,
)
NEGATED = Experiment(
    name="negated",
    paper="negation_limitation",
    arms=negated_arms,
    smaller=smaller_negated,
    run=run,
)
