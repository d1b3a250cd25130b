"""The loop of EM routing for one chunk of votes [n, J, D, I], and its gradient by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from capslib.routing.base import materialised
from capslib.routing.competition import (
    Competition,
    needs_logits,
    softmax,
    softmax_gradient,
    uniform,
)
from capslib.routing.em import (
    MASS_FLOOR,
    VARIANCE_FLOOR,
    Spread,
    finish,
    log_odds,
    schedule,
)
from capslib.routing.fast import Core, Tensors, in_steps

__all__ = ["CORE"]

_SPREAD: dict[Spread, float] = {"deviation": 0.5, "variance": 1.0}
"""The factor of ln σ² in the cost."""


class _Step(NamedTuple):
    """What the gradient needs of one iteration; None for what it has from elsewhere."""

    coupling: Tensor | None  # [n, J, I]
    variance: Tensor  # [n, J, D]
    mu: Tensor | None  # [n, J, D]
    logit: Tensor | None  # [n, J]
    next_logits: Tensor | None  # [n, J, I]  of the next couplings, if they are needed


def _forward(
    votes: Tensor,
    *,
    activation: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    bias: Tensor | None,
    iterations: int,
    inverse_temperature: Sequence[float] | None,
    spread: Spread,
    variance_offset: float,
    smoothing: float,
    mixing: bool,
    competition: Competition | None,
    **_: object,
) -> tuple[Tensors, Tensors]:
    """Return means, logits and couplings, and the steps of all iterations in one tuple."""
    D = votes.shape[2]
    steps: list[_Step] = []
    coupling = uniform(votes[:, :, 0], competition, children_last=True)
    mu = torch.zeros_like(votes[..., 0])
    if bias is not None:
        mu = mu - bias
    for iteration, lamda in enumerate(schedule(iterations, inverse_temperature)):
        mass, share = _shares(coupling, activation)
        mean = (votes @ share[..., None]).squeeze(-1)  # [n, J, D]
        mu = materialised((1 - smoothing) * mean + smoothing * mu) if smoothing else mean
        square = (votes - mu[..., None]).square()  # [n, J, D, I]
        variance = (square @ share[..., None]).squeeze(-1) + variance_offset
        floored = variance.clamp_min(VARIANCE_FLOOR)
        log_variance = floored.log().sum(dim=-1)
        cost = (D * beta_u + log_variance * _SPREAD[spread]) * mass
        logit = log_odds(mass, activation) if mixing else lamda * (beta_a - cost)  # [n, J]
        step = _Step(coupling, variance, mu, logit, None)
        if iteration < iterations - 1:
            distance = (materialised(1 / floored)[:, :, None] @ square).squeeze(2)  # [n, J, I]
            common = materialised(F.logsigmoid(logit) - log_variance / 2)  # constants cancel
            next_logits = common[..., None] - distance / 2  # [n, J, I]
            coupling = softmax(next_logits, competition, children_last=True)
            if needs_logits(competition):
                step = step._replace(next_logits=next_logits)
        steps.append(step)
    steps[-1] = steps[-1]._replace(coupling=None, mu=None, logit=None)  # outputs
    steps[0] = steps[0]._replace(coupling=None)  # uniform
    return (mu, logit, coupling), tuple(chain(*steps))


def _steps(residuals: Tensors, outputs: Tensors, uniform_coupling: Tensor) -> list[_Step]:
    """Return the steps of all iterations, completed."""
    mu, logit, coupling = outputs
    steps = in_steps(_Step, residuals)
    steps[-1] = steps[-1]._replace(coupling=coupling, mu=mu, logit=logit)
    steps[0] = steps[0]._replace(coupling=uniform_coupling)
    return steps


def _backward(
    votes: Tensor,
    outputs: Tensors,
    residuals: Tensors,
    gradients: Tensors,
    *,
    activation: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    bias: Tensor | None,
    iterations: int,
    inverse_temperature: Sequence[float] | None,
    spread: Spread,
    smoothing: float,
    mixing: bool,
    competition: Competition | None,
    **_: object,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the gradients, going through the loop from its end to its start."""
    D = votes.shape[2]
    lamdas = schedule(iterations, inverse_temperature)
    steps = _steps(residuals, outputs, uniform(votes[:, :, 0], competition, children_last=True))
    to_votes = torch.zeros_like(votes)
    to_activation = torch.zeros_like(activation)
    to_beta_u = torch.zeros_like(beta_u)
    to_beta_a = torch.zeros_like(beta_a)
    to_mu, to_logit, to_coupling = gradients
    from_next_mu = 0
    for iteration in reversed(range(iterations)):
        is_last = iteration == iterations - 1
        coupling, variance, mu, logit, next_logits = steps[iteration]
        mass, share = _shares(coupling, activation)
        floored = variance.clamp_min(VARIANCE_FLOOR)
        precision = materialised(1 / floored)
        deviation = votes - mu[..., None]  # anew: a difference of sums loses digits
        square = deviation.square()
        to_log_variance = 0
        if not is_last:  # E-step: from the couplings of the next iteration
            to_next_logits = softmax_gradient(
                steps[iteration + 1].coupling, to_coupling, competition, next_logits
            )
            to_next_logits = materialised(to_next_logits)  # [n, J, I]
            to_parent = to_next_logits.sum(dim=-1)
            to_distance = -to_next_logits / 2
            to_logit = to_parent * (-logit).sigmoid()
            to_precision = (square @ to_distance[..., None]).squeeze(-1)
            to_log_variance = -to_parent[..., None] / 2 - to_precision * precision
            to_mu = -2 * (deviation @ to_distance[..., None]).squeeze(-1) * precision
        # M-step: the activation
        lamda = 0 if mixing else lamdas[iteration]
        to_cost = -lamda * to_logit
        to_beta_a += (lamda * to_logit).sum(dim=0)
        to_beta_u += (D * mass * to_cost).sum(dim=0)
        to_mass = to_cost * (D * beta_u + floored.log().sum(dim=-1) * _SPREAD[spread])
        if mixing:
            to_mass, to_every_child = _log_odds_gradient(mass, activation, to_logit)
            to_activation += to_every_child
        # M-step: the variance
        to_log_variance = to_log_variance + (_SPREAD[spread] * mass * to_cost)[..., None]
        to_variance = (to_log_variance * precision).masked_fill(variance < VARIANCE_FLOOR, 0)
        to_variance = materialised(to_variance)
        # M-step: the mean. Σ_i s_ij (V_ij − μ_j) is zero, but if μ is smoothed or without mass.
        offset = mu * (1 - share.sum(dim=-1, keepdim=True))
        if smoothing:
            offset = (deviation @ share[..., None]).squeeze(-1)
        to_mu = to_mu + from_next_mu - 2 * to_variance * offset
        to_mean = materialised((1 - smoothing) * to_mu)
        from_next_mu = smoothing * to_mu
        # M-step: the shares, the votes and the couplings
        to_share = (to_variance[:, :, None] @ square + to_mean[:, :, None] @ votes).squeeze(2)
        weight = to_variance[..., None] * share[:, :, None]
        if not is_last:
            weight = weight + to_distance[:, :, None] * precision[..., None]
        to_votes += 2 * deviation * weight + to_mean[..., None] * share[:, :, None]
        common = (to_share * share).sum(dim=-1).masked_fill(mass < MASS_FLOOR, 0)
        to_r = (to_share - common[..., None]) / mass.clamp_min(MASS_FLOOR)[..., None]
        to_r = to_r + to_mass[..., None]
        to_activation += (to_r * coupling).sum(dim=1)
        to_coupling = materialised(to_r * activation[:, None] + (to_coupling if is_last else 0))
    to_arguments = {"activation": to_activation, "beta_u": to_beta_u, "beta_a": to_beta_a}
    if bias is not None and smoothing:  # the means start at −bias
        to_arguments["bias"] = -from_next_mu.sum(dim=0)
    return to_votes, to_arguments


def _shares(coupling: Tensor, activation: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mass of every parent [n, J], and the share of each child in it [n, J, I]."""
    r = coupling * activation[:, None]
    mass = r.sum(dim=-1)
    return mass, materialised(r / mass.clamp_min(MASS_FLOOR)[..., None])


def _log_odds_gradient(mass: Tensor, activation: Tensor, to_logit: Tensor) -> Tensors:
    """Return the gradients of mass [n, J] and every activation [n, 1], from that of logits."""
    remainder = activation.sum(dim=-1, keepdim=True) - mass
    to_mass = (to_logit / mass.clamp_min(MASS_FLOOR)).masked_fill(mass < MASS_FLOOR, 0)
    to_rest = (to_logit / remainder.clamp_min(MASS_FLOOR)).masked_fill(
        remainder < MASS_FLOOR, 0
    )
    return to_mass + to_rest, -to_rest.sum(dim=-1, keepdim=True)


CORE = Core(_forward, _backward, finish)
