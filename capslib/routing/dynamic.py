"""Dynamic routing, or routing by agreement: Sabour, Frosst & Hinton (2017), with the bias of Peer et al. (2021)."""

from __future__ import annotations

import torch
from einops import einsum
from torch import Tensor

from capslib.routing.base import Routing, RoutingResult, at_least_one, full_precision, squash


@full_precision
def dynamic_routing(votes: Tensor, *, iterations: int = 3, bias: Tensor | None = None) -> RoutingResult:
    """Route votes [..., I, J, D] to J parents; the activation of a parent is the length of its pose, below one.

    ``bias`` [J, D] is added to the pre-activation s_j inside the loop (Peer et al. 2021, §4), so it also changes the
    agreements. Gradients flow through all iterations. Sabour et al. 2017, Procedure 1.
    """
    at_least_one(iterations)
    logits = votes.new_zeros(votes.shape[:-1])  # [..., I, J]  b_ij
    for iteration in range(iterations):
        coupling = logits.softmax(dim=-1)  # [..., I, J]  c_ij, over the parents j of a child
        s = einsum(coupling, votes, "... i j, ... i j d -> ... j d")  # [..., J, D]  s_j
        if bias is not None:
            s = s + bias
        pose = squash(s)  # [..., J, D]  v_j
        if iteration < iterations - 1:
            logits = logits + einsum(pose, votes, "... j d, ... i j d -> ... i j")  # agreement of child and parent
    return RoutingResult(pose, torch.linalg.vector_norm(pose, dim=-1), coupling)


class DynamicRouting(Routing):
    """:func:`dynamic_routing` with its bias. The activations of the children are not looked at: a vote carries them."""

    def forward(self, votes: Tensor, activation: Tensor | None = None) -> RoutingResult:
        return dynamic_routing(votes, iterations=self.iterations, bias=self.bias)

    def reference(self, votes: Tensor, activation: Tensor | None = None) -> RoutingResult:
        I, J, D = votes.shape
        b = [[votes.new_zeros(()) for j in range(J)] for i in range(I)]
        for _ in range(self.iterations):
            c = [[b[i][j].exp() / sum(b[i][k].exp() for k in range(J)) for j in range(J)] for i in range(I)]
            v = []
            for j in range(J):
                s = sum(c[i][j] * votes[i, j] for i in range(I))
                if self.bias is not None:
                    s = s + self.bias[j]
                length = (s * s).sum().sqrt()
                v.append(length**2 / (1 + length**2) * s / length)
            b = [[b[i][j] + sum(votes[i, j, h] * v[j][h] for h in range(D)) for j in range(J)] for i in range(I)]
        pose = torch.stack(v)
        return RoutingResult(pose, (pose * pose).sum(-1).sqrt(), torch.stack([torch.stack(row) for row in c]))
