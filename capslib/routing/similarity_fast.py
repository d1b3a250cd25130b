"""The loop of similarity routing for a chunk of votes [n, J, D, I]; its gradient by hand."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from capslib.routing.base import RoutingResult, materialised
from capslib.routing.consensus import (
    SMALLEST_WIDTH,
    activated,
    closed_form,
    gaussians,
    lambdas,
    mixture_of_gaussians,
    total_weight,
)
from capslib.routing.fast import Core, Tensors, in_steps

__all__ = ["CORE"]


class _Step(NamedTuple):
    """What the gradient needs of one iteration; None for what it has from elsewhere."""

    mu: Tensor  # [n, J, D]  the means that votes are compared with
    distance: Tensor  # [n, J, I]  ‖μ − v‖²
    coupling: Tensor | None  # [n, J, I]  of the next means


def _forward(
    votes: Tensor,
    *,
    activation: Tensor,
    mixture: Tensor,
    width: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    iterations: int,
    floor: float,
    **_: object,
) -> tuple[Tensors, Tensors]:
    """Return μ, Σ_i c_i k_i, Σ_i c_i ln a_i and couplings, and all steps in one tuple."""
    log_a = (activation + floor).log()[:, None]  # [n, 1, I]
    lambda1, lambda2 = lambdas(weights)
    steps: list[_Step] = []
    mu = _with_bias(votes.mean(dim=-1), bias)  # [n, J, D]
    for _iteration in range(iterations):
        distance = materialised((votes - mu[..., None]).square().sum(dim=2))  # [n, J, I]
        k = mixture_of_gaussians(distance, mixture, width)
        coupling = materialised(closed_form(k, log_a, lambda1, lambda2).softmax(dim=-1))
        steps.append(_Step(mu, distance, coupling))
        mu = _with_bias((votes @ coupling[..., None]).squeeze(-1), bias)
    steps[-1] = steps[-1]._replace(coupling=None)  # an output
    agreement = (coupling * k).sum(dim=-1)  # [n, J]
    prior = (coupling * log_a).sum(dim=-1)  # [n, J]
    return (mu, agreement, prior, coupling), tuple(chain(*steps))


def _backward(
    votes: Tensor,
    outputs: Tensors,
    residuals: Tensors,
    gradients: Tensors,
    *,
    activation: Tensor,
    mixture: Tensor,
    width: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    floor: float,
    **_: object,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the gradients, going through the loop from its end to its start."""
    log_a = (activation + floor).log()[:, None]  # [n, 1, I]
    steps = in_steps(_Step, residuals)
    steps[-1] = steps[-1]._replace(coupling=outputs[-1])
    to_mu, to_agreement, to_prior, to_coupling = gradients
    # the outputs Σ_i c_i k_i and Σ_i c_i ln a_i
    k = mixture_of_gaussians(steps[-1].distance, mixture, width)
    to_coupling = to_coupling + to_agreement[..., None] * k + to_prior[..., None] * log_a
    to_k = to_agreement[..., None] * outputs[-1]
    to_log_a = to_prior[..., None] * outputs[-1]
    to_votes, to_bias, to_lambdas, to_share, to_precision = 0, 0, 0, 0, 0
    for mu, distance, coupling in reversed(steps):
        # the mean
        to_bias = to_bias + to_mu
        to_votes = to_votes + to_mu[..., None] * coupling[:, :, None]
        to_coupling = to_coupling + (to_mu[:, :, None] @ votes).squeeze(2)
        # the couplings
        weighted = coupling * to_coupling
        to_logits = materialised(weighted - coupling * weighted.sum(dim=-1, keepdim=True))
        k = mixture_of_gaussians(distance, mixture, width)
        changes = _closed_form_gradient(to_logits, k, log_a, *lambdas(weights))
        to_k = to_k + changes[0]
        to_log_a = to_log_a + changes[1]
        to_lambdas = to_lambdas + changes[2]
        # the kernel
        to_distance, *changes = _kernel_gradient(to_k, distance, mixture, width)
        to_share = to_share + changes[0]
        to_precision = to_precision + changes[1]
        # the distance of votes from the mean before
        to_deviation = 2 * materialised(to_distance)[:, :, None] * (votes - mu[..., None])
        to_votes = to_votes + to_deviation
        to_mu = -to_deviation.sum(dim=-1)
        to_k, to_coupling = 0, 0
    to_votes = to_votes + to_mu[..., None] / votes.shape[-1]
    to_mixture, to_width = _gaussians_gradient(
        to_share.sum(dim=0), to_precision.sum(dim=0), mixture, width
    )
    to_arguments = {
        "activation": to_log_a.sum(dim=1) / (activation + floor),
        "mixture": to_mixture,
        "width": to_width,
        "weights": to_lambdas.sum(dim=0) * weights.sign(),
    }
    if bias is not None:
        to_arguments["bias"] = (to_bias + to_mu).sum(dim=0)
    return to_votes, to_arguments


def _with_bias(mu: Tensor, bias: Tensor | None) -> Tensor:
    """Return means [n, J, D] with their bias [J, D], written to memory."""
    return materialised(mu if bias is None else mu + bias)


def _closed_form_gradient(
    to_logits: Tensor, k: Tensor, log_a: Tensor, lambda1: Tensor, lambda2: Tensor
) -> Tensors:
    """Return the gradients of k and ln a [n, J, I], and of both λ [n, J, 2]."""
    to_k = to_logits / total_weight(lambda1, lambda2)
    to_lambda1 = -(to_k * closed_form(k, log_a, lambda1, lambda2)).sum(dim=-1)
    to_lambda2 = to_lambda1 + (to_k * log_a).sum(dim=-1)
    return to_k, to_k * lambda2, torch.stack([to_lambda1, to_lambda2], dim=-1)


def _kernel_gradient(to_k: Tensor, distance: Tensor, mixture: Tensor, width: Tensor) -> Tensors:
    """Return the gradients of distances [n, J, I], and of shares and precisions [n, J, Q]."""
    to_distance = 0
    to_shares, to_precisions = [], []
    for share, precision in gaussians(mixture, width):
        to_part = to_k * (-distance * precision).exp()
        to_exponent = share * to_part
        to_distance = to_distance - to_exponent * precision
        to_shares.append(to_part.sum(dim=-1))
        to_precisions.append(-(to_exponent * distance).sum(dim=-1))
    return to_distance, torch.stack(to_shares, dim=-1), torch.stack(to_precisions, dim=-1)


def _gaussians_gradient(
    to_share: Tensor, to_precision: Tensor, mixture: Tensor, width: Tensor
) -> Tensors:
    """Return the gradients of mixture and width, from those of shares and precisions [J, Q]."""
    share = mixture.softmax(dim=-1)
    to_mixture = share * (to_share - (share * to_share).sum(dim=-1, keepdim=True))
    square = width.square().clamp_min(SMALLEST_WIDTH**2)
    to_width = -to_precision * width / square.square()  # of 1/2ℓ²
    return to_mixture, to_width.masked_fill(width.square() < SMALLEST_WIDTH**2, 0)


def _finish(
    mu: Tensor,
    agreement: Tensor,
    prior: Tensor,
    coupling: Tensor,
    *,
    theta: Tensor,
    logistic: bool,
    **_: object,
) -> RoutingResult:
    """Return the result, whose activations are those of eq. (13)."""
    return RoutingResult(mu, activated(agreement, prior, theta, logistic), coupling)


CORE = Core(_forward, _backward, _finish, only_compiled=True)
