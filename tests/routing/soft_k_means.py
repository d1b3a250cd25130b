"""Routing by soft k-means: a complete example of a routing, to copy and to change."""

from __future__ import annotations

import torch
from einops import einsum
from torch import Tensor

from capslib.routing.base import RoutingResult, squash
from capslib.routing.competition import Competition, softmax, uniform
from capslib.routing.fast import routing_function
from capslib.routing.module import Routing

__all__ = ["SoftKMeans", "soft_k_means"]


@routing_function
def soft_k_means(
    votes: Tensor,
    activation: Tensor,
    *,
    iterations: int = 3,
    bias: Tensor | None = None,
    competition: Competition | None = None,
) -> RoutingResult:
    """Route votes [..., I, J, D] of children with activations [..., I] to J parents.

    A child belongs to the parents whose mean votes are near its own. The pose of a parent is
    the squashed sum of its votes and of its ``bias`` [J, D]; its activation is the length of
    the pose.

    >>> result = soft_k_means(torch.randn(8, 100, 10, 16), torch.rand(8, 100))
    >>> result.pose.shape
    torch.Size([8, 10, 16])
    """
    coupling = uniform(votes[..., 0], competition)  # [..., I, J]
    for _ in range(iterations - 1):
        r = coupling * activation[..., None]  # [..., I, J]
        total = einsum(r, votes, "... i j, ... i j d -> ... j d")  # [..., J, D]
        mean = total / r.sum(dim=-2).clamp_min(1e-8)[..., None]  # [..., J, D]
        distance = (votes - mean[..., None, :, :]).square().sum(dim=-1)  # [..., I, J]
        coupling = softmax(-distance, competition)  # [..., I, J]
    total = einsum(coupling, votes, "... i j, ... i j d -> ... j d")  # [..., J, D]
    if bias is not None:
        total = total + bias
    pose = squash(total)  # [..., J, D]
    return RoutingResult(pose, torch.linalg.vector_norm(pose, dim=-1), coupling)


class SoftKMeans(Routing):
    """:func:`soft_k_means` with its bias."""

    function = soft_k_means

    def forward(
        self,
        votes: Tensor,
        activation: Tensor,
        competition: Competition | None = None,
        *,
        iterations: int | None = None,
    ) -> RoutingResult:
        return soft_k_means(
            votes,
            activation,
            iterations=self.iterations if iterations is None else iterations,
            bias=self.bias,
            competition=competition,
            path=self.path,
        )

    def reference(self, votes: Tensor, activation: Tensor) -> RoutingResult:
        """Route one example, votes [I, J, D] and activations [I], in plain loops."""
        I, J, D = votes.shape
        c, p = votes.new_full((I, J), 1 / J), votes.new_zeros(I, J)
        for _ in range(self.iterations - 1):
            for j in range(J):
                mass = sum(c[i, j] * activation[i] for i in range(I))
                mean = sum(c[i, j] * activation[i] * votes[i, j] for i in range(I)) / mass
                for i in range(I):
                    p[i, j] = torch.exp(-((votes[i, j] - mean) ** 2).sum())
            c = p / p.sum(dim=1, keepdim=True)
        pose = votes.new_zeros(J, D)
        for j in range(J):
            pose[j] = sum(c[i, j] * votes[i, j] for i in range(I))
        if self.bias is not None:
            pose += self.bias
        length = pose.norm(dim=1, keepdim=True)
        pose = length**2 / (1 + length**2) * pose / length
        return RoutingResult(pose, pose.norm(dim=1), c)
