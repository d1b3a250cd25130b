"""Who competes for a child: the parents of one field of view, or all parents whose fields contain it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from einops import rearrange, repeat
from torch import Tensor
from torch.nn import functional as F

from capslib.routing.fast import materialised

Normalise = Literal["types+positions", "positions-per-type", "types-per-position"]
"""Over which parents the couplings of a child sum to one: over all that see it (Hinton et al. 2018, Procedure 1); separately for
each type over the positions that see it (the released code); separately at each position over the types (a common mistake)."""


class Competition(NamedTuple):
    """Children seen from several positions at once: what their parents at P positions, with I slots each, have to know.

    Slots of a field are ordered by place, then by the ``types`` of child at it, F·types = I; types at one place are seen alike.
    ``place`` [P·F] says which place is in each part of a field, ``parts`` [places, V] in which parts each place is, filled up with
    P·F, and ``seen`` [P, F] by how many positions it is seen. With ``per_type`` only parents of one type compete with each other.
    Couplings [N·P, J, I] have the slots of an example in P neighbouring rows.
    """

    place: Tensor
    parts: Tensor
    seen: Tensor
    positions: int
    types: int
    per_type: bool = False

    def over(self, x: Tensor, reduce: Literal["amax", "sum"]) -> Tensor:
        """The largest of, or the sum over, all that compete for a child: [N·P, J, I] to something that broadcasts with it.

        Gathers are of all types of a place, which are neighbours in memory, and each is written down: a compiler would rather
        look every slot up anew where its sum is used.
        """
        x = x if self.per_type else getattr(x, reduce)(dim=1, keepdim=True)
        x = rearrange(x, "(n p) j (f t) -> n j (p f) t", p=self.positions, t=self.types)
        x = materialised(F.pad(x, (0, 0, 0, 1), value=-torch.inf if reduce == "amax" else 0.0).contiguous())
        x = materialised(getattr(x[:, :, self.parts], reduce)(dim=3).contiguous())  # [N, 1 or J, places, types]
        return rearrange(x[:, :, self.place], "n j (p f) t -> (n p) j (f t)", p=self.positions)

    def first(self, like: Tensor) -> Tensor:
        """Couplings [N·P, J, I] to begin with: equal, and as many as there are parents; in the released code, as there are types."""
        equal = torch.full_like(like, 1 / like.shape[1])
        if self.per_type:
            return equal
        seen = repeat(self.seen, "p f -> (n p) 1 (f t)", n=len(like) // self.positions, t=self.types)
        return equal / seen

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

    Slots are ordered (row in the kernel, column, type). Places that no field reaches, where stride and kernel do not fit, are in
    no part. None for "types-per-position": then each field is a layer of its own.
    """
    if normalise == "types-per-position":
        return None
    rows, columns = ((side - kernel) // stride + 1 for side in size)
    places = torch.arange(size[0] * size[1]).view(size)
    place = places.unfold(0, kernel, stride).unfold(1, kernel, stride).flatten()  # [P·K·K]
    found: list[list[int]] = [[] for _ in range(places.numel())]
    for part, of in enumerate(place.tolist()):
        found[of].append(part)
    parts = torch.tensor(list(zip(*itertools.zip_longest(*found, fillvalue=len(place)), strict=True)))
    seen = (parts < len(place)).sum(dim=1)[place].view(rows * columns, -1)
    tables = (t.to(device) for t in (place, parts, seen))
    return Competition(*tables, rows * columns, types, normalise == "positions-per-type")
