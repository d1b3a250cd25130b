"""Dynamic routing, or routing by agreement: Sabour, Frosst & Hinton (2017), with the bias of Peer et al. (2021)."""

from __future__ import annotations

import torch
from einops import einsum, rearrange
from torch import Tensor

from capslib.routing.base import Routing, RoutingResult, at_least_one, squash
from capslib.routing.competition import Competition, softmax, softmax_gradient, uniform
from capslib.routing.fast import Core, materialised, routing_function


@routing_function
def dynamic_routing(
    votes: Tensor, *, iterations: int = 3, bias: Tensor | None = None, competition: Competition | None = None
) -> RoutingResult:
    """Route votes [..., I, J, D] to J parents; the activation of a parent is the length of its pose, below one.

    ``bias`` [J, D] is added to the pre-activation s_j inside the loop (Peer et al. 2021, §4), so it also changes the
    agreements. ``competition`` lets more parents than these J compete for a child. Gradients flow through all iterations. Sabour et al. 2017, Procedure 1.
    """
    at_least_one(iterations)
    logits = votes.new_zeros(votes.shape[:-1])  # [..., I, J]  b_ij
    for iteration in range(iterations):
        coupling = softmax(logits, competition)  # [..., I, J]  c_ij, over the parents j of a child
        s = einsum(coupling, votes, "... i j, ... i j d -> ... j d")  # [..., J, D]  s_j
        if bias is not None:
            s = s + bias
        pose = squash(s)  # [..., J, D]  v_j
        if iteration < iterations - 1:
            logits = logits + einsum(pose, votes, "... j d, ... i j d -> ... i j")  # agreement of child and parent
    return RoutingResult(pose, torch.linalg.vector_norm(pose, dim=-1), coupling)


def _forward(
    votes: Tensor, *, iterations: int, bias: Tensor | None, competition: Competition | None
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The loop on a chunk: poses and couplings. Kept: s_j of every iteration, c_ij of those between the first and the last."""
    logits, coupling, kept, couplings = None, _first(votes, competition), [], []
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
    return (pose, coupling), (*kept, *couplings[1:-1])


def _backward(
    votes: Tensor,
    outputs: tuple[Tensor, ...],
    kept: tuple[Tensor, ...],
    gradients: tuple[Tensor, ...],
    *,
    iterations: int,
    bias: Tensor | None,
    competition: Competition | None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loop from its end. The votes meet a gradient as outer products only, so all of them are added up at once."""
    couplings = [_first(votes, competition), *kept[iterations:], outputs[1]]
    to_pose, to_coupling = gradients
    to_logits, to_bias, to_votes = None, 0, 0
    for iteration in reversed(range(iterations)):
        s, coupling = kept[iteration], couplings[iteration]
        norm = torch.linalg.vector_norm(s, dim=-1, keepdim=True)
        scale, direction = norm / (1 + norm.square()), s / norm.clamp_min(torch.finfo(s.dtype).tiny)
        if to_logits is not None:  # of the next iteration, whose logits are ours plus the agreement
            to_pose = (to_logits[:, :, None] @ votes.mT).squeeze(2)
            to_votes = to_votes + _outer(to_logits, materialised(s * scale))
            to_coupling = 0
        along = (direction * to_pose).sum(dim=-1, keepdim=True)
        to_s = materialised(scale * to_pose + s * along * (1 - norm.square()) / (1 + norm.square()).square())
        to_bias = to_bias + to_s
        to_votes = to_votes + _outer(coupling, to_s)
        if iteration > 0:
            to_coupling = to_coupling + (to_s[:, :, None] @ votes).squeeze(2)
            step = softmax_gradient(coupling, to_coupling, competition)
            to_logits = materialised(step if to_logits is None else to_logits + step)
    return rearrange(to_votes, "n i j d -> n j d i"), {} if bias is None else {"bias": to_bias.sum(dim=0)}


def _first(votes: Tensor, competition: Competition | None) -> Tensor:
    """The couplings [n, J, I] of logits that are all zero; a constant, where a compiler can see that it is one."""
    like = votes[:, :, 0]
    return uniform(like, dim=1) if competition is None else softmax(torch.zeros_like(like), competition, dim=1)


def _outer(child: Tensor, parent: Tensor) -> Tensor:
    """[n, J, I] times [n, J, D] in the order in which the gradient of the votes lies in memory, [n, I, J, D]."""
    return child.mT[..., None] * parent[:, None]


def _finish(pose: Tensor, coupling: Tensor, **_: object) -> RoutingResult:
    return RoutingResult(pose, torch.linalg.vector_norm(pose, dim=-1), coupling.transpose(-1, -2))


dynamic_routing.core = Core(_forward, _backward, _finish)


class DynamicRouting(Routing):
    """:func:`dynamic_routing` with its bias. The activations of the children are not looked at: a vote carries them."""

    def forward(self, votes: Tensor, activation: Tensor | None = None, competition: Competition | None = None) -> RoutingResult:
        return dynamic_routing(votes, iterations=self.iterations, bias=self.bias, competition=competition, path=self.path)

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
