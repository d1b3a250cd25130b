"""The loop of dynamic routing for one chunk of votes [n, J, D, I], and its gradient by hand."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor

from capslib.routing.base import RoutingResult, materialised, squash
from capslib.routing.competition import (
    Competition,
    needs_logits,
    softmax,
    softmax_gradient,
    uniform,
)
from capslib.routing.fast import Core, Tensors, in_steps

__all__ = ["CORE"]


class _Step(NamedTuple):
    """What the gradient needs of one iteration; None for what it has from elsewhere."""

    s: Tensor  # [n, J, D]
    coupling: Tensor | None  # [n, J, I]
    logits: Tensor | None  # [n, J, I]  of the couplings, if they are needed


def _forward(
    votes: Tensor, *, iterations: int, bias: Tensor | None, competition: Competition | None
) -> tuple[Tensors, Tensors]:
    """Return poses and couplings, and the steps of all iterations in one tuple."""
    logits = None
    coupling = _initial_coupling(votes, competition)
    steps: list[_Step] = []
    for iteration in range(iterations):
        s = (coupling[:, :, None] @ votes.mT).squeeze(2)  # [n, J, D]
        if bias is not None:
            s = s + bias
        pose = materialised(squash(s))
        steps.append(_Step(s, coupling, logits if needs_logits(competition) else None))
        if iteration < iterations - 1:
            agreement = (pose[:, :, None] @ votes).squeeze(2)  # [n, J, I]
            logits = agreement if logits is None else logits + agreement
            coupling = softmax(logits, competition, children_last=True)
    steps[-1] = steps[-1]._replace(coupling=None)  # an output
    steps[0] = steps[0]._replace(coupling=None)  # uniform
    return (pose, coupling), tuple(chain(*steps))


def _backward(
    votes: Tensor,
    outputs: Tensors,
    residuals: Tensors,
    gradients: Tensors,
    *,
    iterations: int,
    bias: Tensor | None,
    competition: Competition | None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the gradients, going through the loop from its end to its start.

    That of the votes is a sum of outer products.
    """
    steps = in_steps(_Step, residuals)
    steps[-1] = steps[-1]._replace(coupling=outputs[1])
    steps[0] = steps[0]._replace(coupling=_initial_coupling(votes, competition))
    to_pose, to_coupling = gradients
    to_logits, to_bias, to_votes = None, 0, 0
    for iteration in reversed(range(iterations)):
        s, coupling, logits = steps[iteration]
        norm = torch.linalg.vector_norm(s, dim=-1, keepdim=True)
        scale = norm / (1 + norm.square())
        direction = s / norm.clamp_min(torch.finfo(s.dtype).tiny)
        if to_logits is not None:  # of the next iteration: our logits plus the agreement
            to_pose = (to_logits[:, :, None] @ votes.mT).squeeze(2)
            to_votes = to_votes + _outer(to_logits, materialised(s * scale))
            to_coupling = 0
        along = (direction * to_pose).sum(dim=-1, keepdim=True)
        slope = (1 - norm.square()) / (1 + norm.square()).square()
        to_s = materialised(scale * to_pose + s * along * slope)
        to_bias = to_bias + to_s
        to_votes = to_votes + _outer(coupling, to_s)
        if iteration > 0:
            to_coupling = to_coupling + (to_s[:, :, None] @ votes).squeeze(2)
            change = softmax_gradient(coupling, to_coupling, competition, logits)
            to_logits = materialised(change if to_logits is None else to_logits + change)
    to_arguments = {} if bias is None else {"bias": to_bias.sum(dim=0)}
    return rearrange(to_votes, "n i j d -> n j d i"), to_arguments


def _initial_coupling(votes: Tensor, competition: Competition | None) -> Tensor:
    """Return the couplings [n, J, I] of zero logits, if possible as a constant."""
    if competition is None:
        return uniform(votes[:, :, 0], children_last=True)
    return softmax(torch.zeros_like(votes[:, :, 0]), competition, children_last=True)


def _outer(child: Tensor, parent: Tensor) -> Tensor:
    """Return the products of [n, J, I] and [n, J, D] in the order [n, I, J, D] of votes."""
    return child.mT[..., None] * parent[:, None]


def _finish(pose: Tensor, coupling: Tensor, **_: object) -> RoutingResult:
    """Return the result with activations, the lengths of poses."""
    return RoutingResult(pose, torch.linalg.vector_norm(pose, dim=-1), coupling)


CORE = Core(_forward, _backward, _finish)
