"""Who competes for a child: the parents of one field of view, or all parents whose fields contain it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

Normalise = Literal["types+positions", "positions-per-type", "types-per-position"]
"""Over which parents the couplings of a child sum to one: over all that see it (Hinton et al. 2018, Procedure 1); separately for
each type over the positions that see it (the released code); separately at each position over the types (a common mistake)."""


class Competition(NamedTuple):
    """Children seen from several positions at once: what their parents at P positions, with I slots each, have to know.

    ``child`` [P·I] says which child is in each slot, ``slots`` [children, V] in which slots each child is, filled up with P·I, and
    ``seen`` [P, I] by how many positions the child of each slot is seen. With ``per_type`` only parents of one type compete with
    each other. Couplings [N·P, J, I] have the slots of an example in P neighbouring rows.
    """

    child: Tensor
    slots: Tensor
    seen: Tensor
    positions: int
    per_type: bool = False

    def over(self, x: Tensor, reduce: Literal["amax", "sum"]) -> Tensor:
        """The largest of, or the sum over, all that compete for a child: [N·P, J, I] to something that broadcasts with it."""
        x = x if self.per_type else getattr(x, reduce)(dim=1, keepdim=True)
        x = x.unflatten(0, (-1, self.positions)).transpose(1, 2).flatten(2)  # [N, 1 or J, P·I]
        x = F.pad(x, (0, 1), value=-torch.inf if reduce == "amax" else 0.0)
        x = getattr(x[..., self.slots], reduce)(dim=-1)[..., self.child]
        return x.unflatten(-1, (self.positions, -1)).transpose(1, 2).flatten(0, 1)

    def first(self, like: Tensor) -> Tensor:
        """Couplings [N·P, J, I] to begin with: equal, and as many as there are parents; in the released code, as there are types."""
        equal = torch.full_like(like, 1 / like.shape[1])
        return equal if self.per_type else (equal.unflatten(0, (-1, self.positions)) / self.seen[:, None]).flatten(0, 1)

    def softmax(self, logits: Tensor) -> Tensor:
        weight = (logits - self.over(logits, "amax")).exp()
        return weight / self.over(weight, "sum")


def softmax(logits: Tensor, competition: Competition | None = None, dim: int = -1) -> Tensor:
    """Couplings of logits [..., I, J], or with ``dim=1`` [N, J, I]: each child shares itself out among the parents that see it."""
    return logits.softmax(dim=dim) if competition is None else _in_rows(competition.softmax, logits, dim)


def uniform(like: Tensor, competition: Competition | None = None, dim: int = -1) -> Tensor:
    """The couplings that a routing begins with, in the same two layouts."""
    return torch.full_like(like, 1 / like.shape[dim]) if competition is None else _in_rows(competition.first, like, dim)


def _in_rows(function: Callable[[Tensor], Tensor], x: Tensor, dim: int) -> Tensor:
    """Apply a function of [N·P, J, I] to a tensor of that layout, ``dim=1``, or of [..., I, J]."""
    if dim == 1:
        return function(x)
    rows = x.transpose(-1, -2)
    return function(rows.flatten(0, -3)).reshape(rows.shape).transpose(-1, -2)


def softmax_gradient(coupling: Tensor, gradient: Tensor, competition: Competition | None = None) -> Tensor:
    """The gradient of the logits from that of the couplings, both [N, J, I]."""
    weighted = coupling * gradient
    return weighted - coupling * (weighted.sum(dim=1, keepdim=True) if competition is None else competition.over(weighted, "sum"))


@functools.lru_cache(maxsize=64)
def convolutional(
    size: tuple[int, int], kernel: int, stride: int, types: int, normalise: Normalise, device: torch.device
) -> Competition | None:
    """The competition of a convolutional layer over a grid of ``size`` (H, W) with ``types`` child types at each place.

    Slots are ordered (row in the kernel, column, type). Children that no field reaches, where stride and kernel do not fit, have
    no slot. None for "types-per-position": then each field is a layer of its own.
    """
    if normalise == "types-per-position":
        return None
    rows, columns = ((side - kernel) // stride + 1 for side in size)
    place = torch.arange(size[0] * size[1]).view(size)
    fields = place.unfold(0, kernel, stride).unfold(1, kernel, stride).reshape(rows * columns, -1)  # [P, K·K]
    child = (fields[..., None] * types + torch.arange(types)).flatten()  # [P·I]
    found: list[list[int]] = [[] for _ in range(size[0] * size[1] * types)]
    for slot, of in enumerate(child.tolist()):
        found[of].append(slot)
    slots = torch.tensor(list(zip(*itertools.zip_longest(*found, fillvalue=len(child)), strict=True)))
    seen = (slots < len(child)).sum(dim=1)[child].view(rows * columns, -1)
    return Competition(child.to(device), slots.to(device), seen.to(device), rows * columns, normalise == "positions-per-type")
