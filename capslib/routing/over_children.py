"""Dynamic routing whose couplings sum to one over the children (Kirillov & Panov 2022)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from capslib.routing.base import RoutingResult
from capslib.routing.dynamic import DynamicRouting

__all__ = ["DynamicRoutingOverChildren", "OverChildren"]


class OverChildren:
    """A competition in which the children compete for a parent, each parent on its own.

    It takes the place of :class:`~capslib.routing.competition.Competition` in
    :func:`~capslib.routing.dynamic_routing`; couplings are [N, J, I] here too.

    >>> from capslib.routing import dynamic_routing
    >>> votes = torch.randn(8, 100, 2, 16)
    >>> dynamic_routing(votes, competition=OverChildren()).coupling.sum(dim=1).allclose(torch.ones(8, 2))
    True
    """

    positions = 1
    """Examples of a batch know nothing of each other."""

    def over(self, x: Tensor, reduce: Literal["amax", "sum"]) -> Tensor:
        return getattr(x, reduce)(dim=2, keepdim=True)

    def softmax(self, logits: Tensor) -> Tensor:
        return logits.softmax(dim=2)


class DynamicRoutingOverChildren(DynamicRouting):
    """:func:`dynamic_routing` with c_ij = exp(b_ij)/Σ_k exp(b_kj), as the released code has it.

    The parents do not compete. The released logits have a dimension more, that of the votes, and
    every entry along it gets the same increments; so couplings do not depend on it, and here it is
    left out (paper, eq. 2, sums over it: M_j = D·c_j).
    """

    couplings_sum_over = "children"
    COMPETITION = OverChildren()

    def forward(
        self, votes: Tensor, activation: Tensor | None = None, *, iterations: int | None = None
    ) -> RoutingResult:
        return super().forward(votes, activation, self.COMPETITION, iterations=iterations)

    def reference(self, votes: Tensor, activation: Tensor | None = None) -> RoutingResult:
        """The released loop, with logits of the full shape of the votes."""
        logits = torch.zeros_like(votes)  # [I, J, D]
        for _ in range(self.iterations):
            coupling = logits.exp() / logits.exp().sum(dim=0)  # [I, J, D]
            s = (coupling * votes).sum(dim=0) + (
                0 if self.bias is None else self.bias
            )  # [J, D]
            length = (s * s).sum(dim=-1, keepdim=True).sqrt()
            pose = length**2 / (1 + length**2) * s / length
            logits = logits + (votes * pose).sum(dim=-1, keepdim=True)
        return RoutingResult(pose, (pose * pose).sum(dim=-1).sqrt(), coupling[..., 0])
