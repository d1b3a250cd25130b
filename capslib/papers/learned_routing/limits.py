"""What λ₁ and λ₂ do on the toy data of Figure 2, and what routings do with negated votes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic import Field

from capslib.config import Config, RoutingName
from capslib.papers.common import bias_name, in_unit
from capslib.papers.experiment import Arm, Experiment, Outcome, Scale

if TYPE_CHECKING:
    from capslib.training import Context

LIMIT = 1e6
"""A weight as large as this stands for an infinite one."""
SMALL = (3.0, 1.0, 0.3, 0.1)
"""λ₁ and λ₂ fall through these values together."""


LEAST_IS_WORST = ("least_dense_share",)
"""Measures of which the least of several draws counts, and not the largest."""


class ToyOptions(Config):
    """Two clusters of votes for one parent."""

    draws: int = Field(5, ge=1, title="draws of the votes")


def run_toys(arm: Arm, context: Context) -> Outcome:
    """Measure the worst of some draws: see :func:`measure`."""
    draws = arm.options.draws
    measured = [measure(1000 * context.seed + draw) for draw in range(draws)]
    worst = {}
    for name in measured[0]:
        values = [measures[name] for measures in measured]
        worst[name] = min(values) if name in LEAST_IS_WORST else max(values)
    return Outcome(metrics=in_unit(worst, draws, "difference"))


def measure(seed: int) -> dict[str, float]:
    """Measure one draw of the votes.

    * ``off_uniform``: how far couplings are from uniform ones if λ₁ is as good as infinite.
    * ``off_activation``: how far they are from the activations if λ₂ is.
    * ``least_dense_share``: the share of the dense cluster at the smallest λ₁ and λ₂.
    * ``largest_fall_of_share``: how much that share ever falls on the way there.
    * ``off_minimum``: how far the closed form is from what a minimiser finds.
    * ``rise``: how much an iteration ever raises the disagreement.
    """
    from capslib.papers.learned_routing import toy
    from capslib.routing.consensus import closed_form, kernel

    votes, activation, mixture, width = toy.clusters(seed)
    uniform = toy.couplings(seed, LIMIT, 1.0)
    active = toy.couplings(seed, 1.0, LIMIT)
    shares = []
    for value in SMALL:
        couplings = toy.couplings(seed, value, value, iterations=10)
        shares.append(float(couplings[: toy.DENSE].sum()))
    measures = {
        "off_uniform": float((len(activation) * uniform - 1).abs().max()),
        "off_activation": float((active * activation.sum() / activation - 1).abs().max()),
        "largest_fall_of_share": max(a - b for a, b in itertools.pairwise(shares)),
        "least_dense_share": shares[-1],
    }
    mu = votes.mean(dim=0)[0]
    k = kernel(votes.permute(2, 1, 0), mu[:, None], mixture, width)[0]
    log_prior = activation.log()
    gaps = []
    rises = []
    for lambda1, lambda2 in ((0.5, 0.5), (2.0, 0.1), (0.2, 1.0)):
        weights = votes.new_tensor(lambda1), votes.new_tensor(lambda2)
        closed = closed_form(k, log_prior, *weights).softmax(0)
        minimised = toy.minimised(k, log_prior, lambda1, lambda2)
        gaps.append(float((closed - minimised).abs().max()))
        rises.append(toy.largest_rise(seed, lambda1, lambda2))
    return measures | {"off_minimum": max(gaps), "rise": max(rises)}


def toy_arms(scale: Scale) -> Iterator[Arm]:
    """Yield the toy data."""
    yield Arm("two_clusters", options=ToyOptions())


def smaller_toys(scale: Scale, arm: Arm) -> dict[str, Any]:
    """Return fewer draws at smoke scale."""
    return {"draws": 2} if scale == "smoke" else {}


class NegationOptions(Config):
    """A routing of random votes and of their negatives."""

    routing: RoutingName
    bias: bool = Field(False, title="bias")


def negate(arm: Arm, context: Context) -> Outcome:
    """Route votes and their negatives.

    Measure how far poses are from changing sign, and how much activations change.
    """
    import torch

    from capslib.routing import make_routing

    options: NegationOptions = arm.options
    torch.manual_seed(context.seed)
    bias = 0.1 if options.bias else None
    routing = make_routing(options.routing, 5, 16, bias=bias).double()
    votes = torch.randn(20, 30, 5, 16, dtype=torch.float64)
    activation = torch.rand(20, 30, dtype=torch.float64)
    with torch.no_grad():
        parents = routing(votes, activation)
        negated = routing(-votes, activation)
    length = torch.linalg.vector_norm(parents.pose, dim=-1).mean()
    gap = torch.linalg.vector_norm(parents.pose + negated.pose, dim=-1).amax()
    change = (parents.activation - negated.activation).abs().max()
    measures = {
        "pose_is_not_odd": float(gap / length),
        "activation_is_not_even": float(change),
    }
    return Outcome(metrics=in_unit(measures, 20, "difference"))


def negation_arms(scale: Scale) -> Iterator[Arm]:
    """Yield each routing without and with a bias: ``em/no_bias``."""
    for routing in ("similarity", "connectionist", "em", "dynamic"):
        for bias in (False, True):
            options = NegationOptions(routing=routing, bias=bias)
            yield Arm(f"{routing}/{bias_name(bias)}", options=options)


TOYS = Experiment(
    name="toys",
    paper="learned_routing",
    arms=toy_arms,
    smaller=smaller_toys,
    run=run_toys,
)
NEGATION = Experiment(
    name="negation",
    paper="learned_routing",
    arms=negation_arms,
    run=negate,
)
