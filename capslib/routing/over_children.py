"""Dynamic routing whose couplings sum to one over the children (Kirillov & Panov 2022)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from capslib.routing.base import RoutingResult
from capslib.routing.dynamic import DynamicRouting
from capslib.routing.fast import LazyVotes

__all__ = ["DynamicRoutingOverChildren", "OverChildren"]


class OverChildren:
    """A competition of the children for each parent, with couplings [N, J, I].

    It stands in for a :class:`~capslib.routing.competition.Competition` in
    :func:`~capslib.routing.dynamic_routing`.

    >>> import torch
    >>> from capslib.routing import dynamic_routing
    >>> votes = torch.randn(8, 100, 2, 16)
    >>> coupling = dynamic_routing(votes, competition=OverChildren()).coupling
    >>> coupling.sum(dim=1).allclose(torch.ones(8, 2))
    True
    """

    positions = 1
    """The number of fields in an example that compete with each other."""

    def over(self, x: Tensor, reduce: Literal["amax", "sum"]) -> Tensor:
        """Return the maximum or the sum of ``x`` [N, J, I] over the children."""
        return getattr(x, reduce)(dim=2, keepdim=True)

    def softmax(self, logits: Tensor) -> Tensor:
        """Return the couplings of logits, both [N, J, I]."""
        return logits.softmax(dim=2)


class DynamicRoutingOverChildren(DynamicRouting):
    """:func:`dynamic_routing` with c_ij = exp(b_ij)/Σ_k exp(b_kj), as in the released code.

    Parents do not compete. The released logits have one more dimension, that of the votes.
    Every entry along it gets the same increments, so couplings do not depend on it, and here it
    is left out (eq. 2 of the paper sums over it: M_j = D·c_j).
    """

    couplings_sum_over = "children"
    COMPETITION = OverChildren()

    def forward(
        self,
        votes: Tensor | LazyVotes,
        activation: Tensor | None = None,
        *,
        iterations: int | None = None,
    ) -> RoutingResult:
        return super().forward(votes, activation, self.COMPETITION, iterations=iterations)
