"""Theorems 1 and 2 (§3): random stacks of capsule layers and their symmetry under negation."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from pydantic import Field

from capslib.config import Config, RoutingName
from capslib.papers.common import abscissa, in_unit
from capslib.papers.experiment import Outcome, Scale

if TYPE_CHECKING:
    from capslib.training import Context


class SymmetryConfig(Config):
    """Random stacks of capsule layers, and how far they are from f(−x) = −f(x)."""

    routing: RoutingName
    bias: bool
    max_depth: int = Field(9, ge=1, le=32, title="layers at most")
    max_iterations: int = Field(5, ge=1, le=20, title="routing iterations at most")
    capsules: int = Field(6, ge=1, title="capsules of a layer")
    dim: int = Field(8, ge=1, title="dimension of a capsule")
    inputs: int = Field(64, ge=1, title="random inputs")


def run(config: SymmetryConfig, context: Context) -> Outcome:
    """Draw a stack for every depth and number of iterations, in float64, and compare f(x) with f(−x)."""
    import torch

    from capslib.networks.negation_limitation import CapsuleStack
    from capslib.training import seeded

    odd, even = torch.zeros(2, config.max_depth, config.max_iterations, dtype=torch.float64)
    with seeded(context.seed), torch.no_grad():
        for depth, iterations in itertools.product(
            range(1, config.max_depth + 1), range(1, config.max_iterations + 1)
        ):
            sizes = [(config.capsules, config.dim)] * (depth + 1)
            options = {"beta_std": 1.0} if config.routing in ("em", "em_vector") else {}
            options |= dict(
                routing=config.routing,
                iterations=iterations,
                bias=0.0 if config.bias else None,
                weight_std=1.0,
            )
            stack = CapsuleStack(sizes, **options).double()
            for name, parameter in stack.named_parameters():
                if name.endswith("bias"):
                    torch.nn.init.normal_(
                        parameter, std=0.1
                    )  # any; with a larger one deep stacks forget their input
            x = torch.randn(config.inputs, config.capsules, config.dim, dtype=torch.float64)
            (pose, activation), (negated_pose, negated_activation) = stack(x), stack(-x)
            odd[depth - 1, iterations - 1] = (pose + negated_pose).abs().max()
            even[depth - 1, iterations - 1] = (activation - negated_activation).abs().max()
    violations = {
        "odd_violation": odd.max(),
        "even_violation": even.max(),
        "least_odd_violation": odd.min(),
        "least_even_violation_one_layer": even[0].min(),
        "even_violation_one_layer": even[0].max(),
        "least_even_violation_deeper": even[1:].min() if config.max_depth > 1 else even.min(),
    }
    metrics = in_unit(
        {k: float(v) for k, v in violations.items()},
        config.inputs * odd.numel(),
        "absolute difference",
    )
    of_depth = {
        "odd_violation": odd.amax(dim=1).tolist(),
        "even_violation": even.amax(dim=1).tolist(),
    }
    return Outcome(
        metrics=metrics,
        series={"depths": abscissa(config.max_depth), **of_depth},
        routing_path="fast",
    )


def grid(scale: Scale) -> list[SymmetryConfig]:
    budget = {"max_iterations": 3, "inputs": 16} if scale == "smoke" else {}
    return [
        SymmetryConfig(routing=r, bias=b, **budget)
        for r in ("dynamic", "em", "em_vector")
        for b in (False, True)
    ]
