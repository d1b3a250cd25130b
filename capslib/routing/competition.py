"""Who competes for a child: parents of one field of view, or of all fields that contain it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from einops import rearrange, repeat
from torch import Tensor
from torch.nn import functional as F

from capslib.routing.base import materialised

__all__ = [
    "RELEASED_EPSILON",
    "Competition",
    "Normalise",
    "convolutional",
    "needs_logits",
    "softmax",
    "softmax_gradient",
    "uniform",
]

Normalise = Literal["types+positions", "positions-per-type", "types-per-position", "released"]
"""Over which parents the couplings of a child sum to one.

"types+positions": over all parents that see it (Hinton et al. 2018, Procedure 1).
"positions-per-type": for each type, over the positions that see it (after the released code).
"types-per-position": at each position, over the types (a common mistake).
"released": the E-step of the released code, to the letter. For each type, over positions, with one
maximum for each pair of child type and parent type in the whole image and ``RELEASED_EPSILON``
added to each sum. A child that is explained much worse than the best of its type then gives next
to nothing: for each parent type its couplings sum to less than one. The code's index arithmetic
takes every window for one that steps by one. Where windows step by two it adds up couplings of
different children, so those of one child sum to something else.
"""

RELEASED_EPSILON = 1e-7
"""What the released code adds to the sum of exponentials over positions."""


class Competition(NamedTuple):
    """Which slots of P fields of view hold the same child.

    A field has F places with ``types`` children each, so I = F·types slots, ordered by place
    and then by type. ``place`` [P·F] is the place in the grid of each place of a field, and
    ``parts`` [places, V] where in it each place of the grid is found, filled up with P·F.
    ``seen`` [P, F] is how many fields see it. With ``per_type``, only parents of one type compete
    with each other. With ``released``, they compete as in the released code (:data:`Normalise`).
    Couplings [N·P, J, I] have the P fields of an example as neighbours.
    """

    place: Tensor
    parts: Tensor
    seen: Tensor
    positions: int
    types: int
    per_type: bool = False
    released: bool = False

    def over(self, x: Tensor, reduce: Literal["amax", "sum"]) -> Tensor:
        """The maximum or the sum of ``x`` [N·P, J, I] over the rivals for a child.

        All types of a place are gathered at once, since they are neighbours in memory.
        """
        nothing = -torch.inf if reduce == "amax" else 0.0
        x = x if self.per_type else getattr(x, reduce)(dim=1, keepdim=True)
        x = rearrange(x, "(n p) j (f t) -> n j (p f) t", p=self.positions, t=self.types)
        x = materialised(F.pad(x, (0, 0, 0, 1), value=nothing).contiguous())
        x = getattr(x[:, :, self.parts], reduce)(dim=3)  # [N, 1 or J, places, types]
        x = materialised(x.contiguous())
        return rearrange(x[:, :, self.place], "n j (p f) t -> (n p) j (f t)", p=self.positions)

    def first(self, like: Tensor) -> Tensor:
        """Equal couplings [N·P, J, I] to start with, that sum to one over all parents.

        With ``per_type``, as in the released code, they sum to one over the types.
        """
        equal = torch.full_like(like, 1 / like.shape[1])
        if self.per_type:
            return equal
        N = like.shape[0] // self.positions
        return equal / repeat(self.seen, "p f -> (n p) 1 (f t)", n=N, t=self.types)

    @property
    def sums_to_one(self) -> bool:
        """Whether the couplings of a child sum to one over all its rivals."""
        return not self.released

    def softmax(self, logits: Tensor) -> Tensor:
        """Return the couplings [N·P, J, I] of such logits."""
        if self.released:
            weight = (logits - self.largest_of_image(logits)).exp()
            return weight / (self.over(weight, "sum") + RELEASED_EPSILON)
        weight = (logits - self.over(logits, "amax")).exp()
        return weight / self.over(weight, "sum")

    def largest_of_image(self, x: Tensor) -> Tensor:
        """Return the maximum of ``x`` [N·P, J, I] for each example, parent type and child type.

        The shape stays, so that every slot holds the maximum that it is compared with.
        """
        return self._of_image(x, "amax")

    def gradient_of_largest(self, logits: Tensor, gradient: Tensor) -> Tensor:
        """Return what a shared maximum adds to the ``gradient`` of logits, both [N·P, J, I].

        Adding a number to all logits that share a maximum changes no coupling, so the
        gradients of these logits sum to zero: the largest gets what the others lack.
        """
        largest = (logits == self.largest_of_image(logits)).to(logits.dtype)
        lacking = -self._of_image(gradient, "sum") / self._of_image(largest, "sum")
        return largest * lacking

    def _of_image(self, x: Tensor, reduce: Literal["amax", "sum"]) -> Tensor:
        fields = rearrange(x, "(n p) j (f t) -> n p j f t", p=self.positions, t=self.types)
        reduced = getattr(fields, reduce)(dim=(1, 3), keepdim=True)
        reduced = materialised(reduced.contiguous()).expand_as(fields)
        return rearrange(reduced, "n p j f t -> (n p) j (f t)")


def softmax(logits: Tensor, competition: Competition | None = None, dim: int = -1) -> Tensor:
    """Couplings of logits [..., I, J], or with ``dim=1`` [N, J, I]; they sum to one over J.

    >>> softmax(torch.zeros(5, 2))[0]
    tensor([0.5000, 0.5000])
    """
    if competition is None:
        return logits.softmax(dim=dim)
    return _in_rows(competition.softmax, logits, dim)


def uniform(like: Tensor, competition: Competition | None = None, dim: int = -1) -> Tensor:
    """Equal couplings to start with, in the same two layouts."""
    if competition is None:
        return torch.full_like(like, 1 / like.shape[dim])
    return _in_rows(competition.first, like, dim)


def _in_rows(function: Callable[[Tensor], Tensor], x: Tensor, dim: int) -> Tensor:
    """Apply a function of [N·P, J, I] to such a tensor (``dim=1``), or to [..., I, J]."""
    if dim == 1:
        return function(x)
    rows = x.transpose(-1, -2)
    return function(rows.reshape(-1, *rows.shape[-2:])).reshape(rows.shape).transpose(-1, -2)


def needs_logits(competition: Competition | None) -> bool:
    """Whether :func:`softmax_gradient` needs the logits beside the couplings."""
    return isinstance(competition, Competition) and competition.released


def softmax_gradient(
    coupling: Tensor,
    gradient: Tensor,
    competition: Competition | None = None,
    logits: Tensor | None = None,
) -> Tensor:
    """Return the gradient of the logits, from that of the couplings; all are [N, J, I].

    The ``logits`` are read where the couplings were shifted by a maximum of the whole image, which
    has a gradient since ε is added after it.
    """
    weighted = coupling * gradient
    if competition is None:
        return weighted - coupling * weighted.sum(dim=1, keepdim=True)
    to_logits = weighted - coupling * competition.over(weighted, "sum")
    if needs_logits(competition):
        to_logits = to_logits + competition.gradient_of_largest(logits, to_logits)
    return to_logits


def convolutional(
    size: tuple[int, int],
    kernel: int,
    stride: int,
    types: int,
    normalise: Normalise,
    device: torch.device,
) -> Competition | None:
    """Return the competition in a convolutional layer over a grid (H, W) of ``types`` child types.

    Slots are ordered (row in the kernel, column, type). Returns None for "types-per-position",
    where each field is a layer of its own.
    """
    if normalise == "types-per-position":
        return None
    rows, columns = ((side - kernel) // stride + 1 for side in size)
    if normalise == "released":  # its index arithmetic knows no stride
        size, stride = (rows + kernel - 1, columns + kernel - 1), 1
    places = torch.arange(size[0] * size[1], device=device).view(size)
    place = places.unfold(0, kernel, stride).unfold(1, kernel, stride).flatten()  # [P·K·K]
    row, y = _windows_of_places(size[0], kernel, stride, rows, device)
    column, x = _windows_of_places(size[1], kernel, stride, columns, device)
    row, y = row[:, None, :, None], y[:, None, :, None]
    field = row * columns + column[:, None]  # [H, W, rows that hold it, columns that hold it]
    slot = (field * kernel + y) * kernel + x[:, None]
    slot = slot.where((row >= 0) & (column[:, None] >= 0), place.shape[0])
    parts = slot.flatten(2).flatten(0, 1).sort(dim=1).values  # [places, V]
    seen = (parts < place.shape[0]).sum(dim=1)[place].view(rows * columns, -1)
    per_type = normalise in ("positions-per-type", "released")
    released = normalise == "released"
    return Competition(place, parts, seen, rows * columns, types, per_type, released)


def _windows_of_places(
    side: int, kernel: int, stride: int, windows: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return which windows hold each place of an axis, and where in them it lies, both [side, V].

    A window is -1 where fewer than V hold the place.
    """
    most = min(windows, -(-kernel // stride))
    place = torch.arange(side, device=device)[:, None]
    last = (place // stride).clamp(max=windows - 1)
    window = last - torch.arange(most, device=device)
    offset = place - stride * window
    holds = (window >= 0) & (offset < kernel)
    return window.where(holds, -1), offset
