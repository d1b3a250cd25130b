"""Dynamic routing, or routing by agreement: Sabour, Frosst & Hinton (2017)."""

from __future__ import annotations

from typing import Annotated

import torch
from einops import einsum, rearrange
from torch import Tensor

from capslib.routing.base import RoutingResult, materialised, squash
from capslib.routing.competition import (
    Competition,
    needs_logits,
    softmax,
    softmax_gradient,
    uniform,
)
from capslib.routing.fast import Core, Tensors, routing_function
from capslib.routing.module import Routing

__all__ = ["DynamicRouting", "dynamic_routing"]


@routing_function
def dynamic_routing(
    votes: Annotated[Tensor, "... I J D"],
    *,
    iterations: int = 3,
    bias: Annotated[Tensor | None, "J D"] = None,
    competition: Competition | None = None,
) -> RoutingResult:
    """Route votes [..., I, J, D] to J parents (Sabour et al. 2017, Procedure 1).

    The activation of a parent is the length of its pose, below one. ``bias`` [J, D] is added to
    the pre-activation s_j inside the loop, so it also changes the agreements (Peer et al.
    2021, §4). ``competition`` lets parents at other positions compete for the same children.
    Gradients flow through all iterations. Raises ValueError for less than one iteration, and for
    shapes that do not fit together.

    >>> pose, activation, coupling = dynamic_routing(torch.randn(8, 100, 10, 16))
    >>> pose.shape, activation.shape, coupling.shape
    (torch.Size([8, 10, 16]), torch.Size([8, 10]), torch.Size([8, 100, 10]))
    """
    logits = votes.new_zeros(votes.shape[:-1])  # [..., I, J]  b_ij
    for iteration in range(iterations):
        coupling = softmax(logits, competition)  # [..., I, J]  c_ij, over the parents j
        s = einsum(coupling, votes, "... i j, ... i j d -> ... j d")  # [..., J, D]  s_j
        if bias is not None:
            s = s + bias
        pose = squash(s)  # [..., J, D]  v_j
        if iteration < iterations - 1:
            agreement = einsum(pose, votes, "... j d, ... i j d -> ... i j")
            logits = logits + agreement  # [..., I, J]
    return RoutingResult(pose, torch.linalg.vector_norm(pose, dim=-1), coupling)


def _forward(
    votes: Tensor, *, iterations: int, bias: Tensor | None, competition: Competition | None
) -> tuple[Tensors, Tensors]:
    """The loop on a chunk, to poses and couplings. Keeps all s_j, inner c_ij."""
    logits, coupling = None, _first(votes, competition)
    kept, couplings, all_logits = [], [], []
    for iteration in range(iterations):
        s = (coupling[:, :, None] @ votes.mT).squeeze(2)  # [n, J, D]
        if bias is not None:
            s = s + bias
        pose = materialised(squash(s))
        kept.append(s)
        couplings.append(coupling)
        if iteration < iterations - 1:
            agreement = (pose[:, :, None] @ votes).squeeze(2)  # [n, J, I]
            logits = agreement if logits is None else logits + agreement
            coupling = softmax(logits, competition, dim=1)
            if needs_logits(competition):
                all_logits.append(logits)
    return (pose, coupling), (*kept, *couplings[1:-1], *all_logits)


def _backward(
    votes: Tensor,
    outputs: Tensors,
    kept: Tensors,
    gradients: Tensors,
    *,
    iterations: int,
    bias: Tensor | None,
    competition: Competition | None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loop from its end to its start. Votes get a sum of outer products."""
    kept_s, kept = kept[:iterations], kept[iterations:]
    inner = max(0, iterations - 2)  # couplings that are neither the first nor an output
    couplings = [_first(votes, competition), *kept[:inner], outputs[1]]
    all_logits = (None, *(kept[inner:] or (None,) * iterations))
    to_pose, to_coupling = gradients
    to_logits, to_bias, to_votes = None, 0, 0
    for iteration in reversed(range(iterations)):
        s, coupling = kept_s[iteration], couplings[iteration]
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
            step = softmax_gradient(coupling, to_coupling, competition, all_logits[iteration])
            to_logits = materialised(step if to_logits is None else to_logits + step)
    others = {} if bias is None else {"bias": to_bias.sum(dim=0)}
    return rearrange(to_votes, "n i j d -> n j d i"), others


def _first(votes: Tensor, competition: Competition | None) -> Tensor:
    """The couplings [n, J, I] of zero logits; a constant, where the compiler can see it."""
    if competition is None:
        return uniform(votes[:, :, 0], dim=1)
    return softmax(torch.zeros_like(votes[:, :, 0]), competition, dim=1)


def _outer(child: Tensor, parent: Tensor) -> Tensor:
    """[n, J, I] times [n, J, D], in the memory order of the votes' gradient, [n, I, J, D]."""
    return child.mT[..., None] * parent[:, None]


def _finish(pose: Tensor, coupling: Tensor, **_: object) -> RoutingResult:
    return RoutingResult(pose, torch.linalg.vector_norm(pose, dim=-1), coupling)


dynamic_routing.core = Core(_forward, _backward, _finish)


class DynamicRouting(Routing):
    """:func:`dynamic_routing` with its bias. It ignores activations: a vote carries them."""

    function = dynamic_routing

    def forward(
        self,
        votes: Tensor,
        activation: Tensor | None = None,
        competition: Competition | None = None,
        *,
        iterations: int | None = None,
    ) -> RoutingResult:
        return dynamic_routing(
            votes,
            iterations=self.iterations if iterations is None else iterations,
            bias=self.bias,
            competition=competition,
            path=self.path,
        )
