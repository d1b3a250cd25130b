"""Dynamic routing, or routing by agreement: Sabour, Frosst & Hinton (2017)."""

from __future__ import annotations

from typing import Annotated

import torch
from einops import einsum
from torch import Tensor

from capslib.routing.base import RoutingResult, squash
from capslib.routing.competition import Competition, softmax
from capslib.routing.fast import LazyVotes, routing_function
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
    the pre-activation s_j inside the loop, so it also changes the agreements (Peer et al. 2021,
    §4). ``competition`` lets parents at other positions compete for the same children.
    Gradients flow through all iterations. Raises ValueError for less than one iteration, and
    for shapes that do not fit together.

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


class DynamicRouting(Routing):
    """:func:`dynamic_routing` with its bias. It ignores activations: a vote carries them."""

    function = dynamic_routing

    def forward(
        self,
        votes: Tensor | LazyVotes,
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
