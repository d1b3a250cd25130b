"""Theorems 1 and 2 (§3): random stacks of capsule layers and their symmetry under negation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic import Field

from capslib.config import Config, RoutingName
from capslib.papers.common import abscissa, bias_name, in_unit
from capslib.papers.experiment import Arm, Experiment, Outcome, Scale

if TYPE_CHECKING:
    from torch import nn

    from capslib.training import Context


CAPSULES, DIM = 6, 8
"""The capsules of a layer, and the dimension of each."""


class SymmetryOptions(Config):
    """Random stacks of capsule layers, of every depth and number of iterations."""

    routing: RoutingName
    bias: bool
    max_depth: int = Field(9, ge=1, le=32, title="layers at most")
    max_iterations: int = Field(5, ge=1, le=20, title="routing iterations at most")
    inputs: int = Field(64, ge=1, title="random inputs")


def random_stack(options: SymmetryOptions, depth: int, iterations: int) -> nn.Module:
    """Return a stack of capsule layers in float64, with random weights and biases."""
    import torch

    from capslib.networks.negation_limitation import CapsuleStack

    betas = {"beta_std": 1.0} if options.routing in ("em", "em_vector") else {}
    stack = CapsuleStack(
        [(CAPSULES, DIM)] * (depth + 1),
        routing=options.routing,
        iterations=iterations,
        bias=0.0 if options.bias else None,
        weight_std=1.0,
        **betas,
    ).double()
    for name, parameter in stack.named_parameters():
        if name.endswith("bias"):
            # any bias; with a larger one deep stacks forget their input
            torch.nn.init.normal_(parameter, std=0.1)
    return stack


def run(arm: Arm, context: Context) -> Outcome:
    """Compare f(x) with f(−x), in float64, at every depth and number of iterations."""
    import torch

    from capslib.training import seeded

    options: SymmetryOptions = arm.options
    size = (options.max_depth, options.max_iterations)
    odd = torch.zeros(size, dtype=torch.float64)
    even = torch.zeros(size, dtype=torch.float64)
    with seeded(context.seed), torch.no_grad():
        for depth in range(1, options.max_depth + 1):
            for iterations in range(1, options.max_iterations + 1):
                stack = random_stack(options, depth, iterations)
                shape = (options.inputs, CAPSULES, DIM)
                x = torch.randn(shape, dtype=torch.float64)
                pose, activation = stack(x)
                negated_pose, negated_activation = stack(-x)
                cell = depth - 1, iterations - 1
                odd[cell] = (pose + negated_pose).abs().max()
                even[cell] = (activation - negated_activation).abs().max()
    violations = {
        "odd_violation": odd.max(),
        "even_violation": even.max(),
        "least_odd_violation": odd.min(),
        "least_even_violation_one_layer": even[0].min(),
        "even_violation_one_layer": even[0].max(),
        "least_even_violation_deeper": even[1:].min() if options.max_depth > 1 else even.min(),
    }
    values = {name: float(violation) for name, violation in violations.items()}
    series = {
        "depths": abscissa(options.max_depth),
        "odd_violation": odd.amax(dim=1).tolist(),
        "even_violation": even.amax(dim=1).tolist(),
    }
    return Outcome(
        metrics=in_unit(values, options.inputs * odd.numel(), "absolute difference"),
        series=series,
        routing_path="fast",
    )


def arms(scale: Scale) -> Iterator[Arm]:
    """Yield stacks of each routing, with and without a bias."""
    for routing in ("dynamic", "em", "em_vector"):
        for bias in (False, True):
            options = SymmetryOptions(routing=routing, bias=bias)
            yield Arm(f"{routing}/{bias_name(bias)}", options=options)


def smaller(scale: Scale, arm: Arm) -> dict[str, Any]:
    """Return fewer iterations and inputs at smoke scale."""
    return dict(max_iterations=3, inputs=16) if scale == "smoke" else {}


SYMMETRY = Experiment(
    name="symmetry",
    paper="negation_limitation",
    arms=arms,
    smaller=smaller,
    run=run,
    revision=2,
)
