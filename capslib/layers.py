"""Capsule layers. A layer makes votes; which routing turns them into parents is an argument.

Between layers a capsule is a pose [N, I, D] and an activation [N, I]. For vector capsules the activation is the length of
the pose, so the pose carries both.
"""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor, nn

from capslib.routing import LazyVotes, RoutingResult, make_routing, squash

__all__ = ["DenseCapsules", "PrimaryCapsules", "as_capsules", "squash"]


def as_capsules(pose: Tensor) -> tuple[Tensor, Tensor]:
    """Vector capsules [N, I, D] as pose and activation: the activation [N, I] is the length of the pose."""
    return pose, torch.linalg.vector_norm(pose, dim=-1)


class PrimaryCapsules(nn.Module):
    """Vector capsules out of feature maps: a convolution whose channels are grouped into capsules, and squash.

    Features [N, channels, H, W] become poses [N, types·H'·W', dim] and activations [N, types·H'·W'], with
    H' = ⌊(H − kernel)/stride⌋ + 1. The convolution has no ReLU, and a bias unless told otherwise (Sabour et al. 2017, §4).
    """

    def __init__(self, channels: int, types: int, dim: int, *, kernel: int = 9, stride: int = 2, bias: bool = True):
        super().__init__()
        self.dim = dim
        self.conv = nn.Conv2d(channels, types * dim, kernel, stride, bias=bias)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return as_capsules(squash(rearrange(self.conv(features), "n (t d) h w -> n (t h w) d", d=self.dim)))


class DenseCapsules(nn.Module):
    """Every child votes for every parent: û_{j|i} = W_{ij} u_i, then any routing.

    Poses [N, I, d] and activations [N, I] become a :class:`RoutingResult` with J = ``parents`` of D = ``parent_dim``.
    ``weight_std`` is the standard deviation that W [I, J, D, d] starts from; ``routing`` is a name of
    ``capslib.routing.ROUTINGS`` and ``options`` are its keywords (``iterations``, ``bias``, …).
    """

    def __init__(
        self,
        children: int,
        parents: int,
        child_dim: int,
        parent_dim: int,
        *,
        routing: str = "dynamic",
        weight_std: float = 0.1,
        **options: object,
    ):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(children, parents, parent_dim, child_dim) * weight_std)
        self.routing = make_routing(routing, parents, parent_dim, **options)

    def votes(self, pose: Tensor) -> Tensor:
        """Votes [N, I, J, D] of poses [N, I, d]."""
        return LazyVotes(self.weight, pose).form()

    def forward(self, pose: Tensor, activation: Tensor) -> RoutingResult:
        return self.routing(LazyVotes(self.weight, pose), activation)
