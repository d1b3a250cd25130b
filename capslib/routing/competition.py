"""The parents that compete for a child: those of one field, or of all that contain it."""

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
"""The parents over which the couplings of a child sum to one.

* "types+positions": all parents that see the child (Hinton et al. 2018, Procedure 1).
* "positions-per-type": for each type, the positions that see it (after the released code).
* "types-per-position": at each position, the types (a common mistake).
* "released": the E-step of the released code, to the letter. For each type the positions
  compete, with one maximum for each pair of child type and parent type in the whole image, and
  ``RELEASED_EPSILON`` is added to each sum.

In the released code a child that is explained much worse than the best of its type gives next
to nothing: for each parent type its couplings sum to less than one. The code's index arithmetic
holds for windows that step by one. Where windows step by two, it adds up couplings of different
children, so those of one child sum to something else.
"""

RELEASED_EPSILON = 1e-7
"""The number that the released code adds to the sum of exponentials over positions."""


class Competition(NamedTuple):
    """Which parents of a convolutional layer compete for the same child.

    Layers make it (:func:`convolutional`). A routing passes it on to :func:`softmax` and
    :func:`uniform`, and needs to know no more.

    A layer has P fields of view, one for each position of its parents. A field has F places
    with ``types`` children each, so I = F·types slots, ordered by place and then by type.
    ``grid_place`` [P·F] is the place in the grid that each place of a field shows;
    ``field_places`` [places, V] are the places of fields that show each place of the grid,
    filled up with P·F. ``field_count`` [P, F] is the number of fields that see it. With
    ``per_type``, only parents of one type compete with each other. With ``released``, they
    compete as in the released code (:data:`Normalise`). In couplings [N·P, J, I], the P fields
    of an example are neighbours.
    """

    grid_place: Tensor
    field_places: Tensor
    field_count: Tensor
    positions: int
    types: int
    per_type: bool = False
    released: bool = False

    def over(self, x: Tensor, reduce: Literal["amax", "sum"]) -> Tensor:
        """Return the maximum or the sum of ``x`` [N·P, J, I] over the rivals for a child.

        All types of a place are gathered at once, since they are neighbours in memory.
        """
        padding = -torch.inf if reduce == "amax" else 0.0
        if not self.per_type:
            x = getattr(x, reduce)(dim=1, keepdim=True)
        x = rearrange(x, "(n p) j (f t) -> n j (p f) t", p=self.positions, t=self.types)
        x = materialised(F.pad(x, (0, 0, 0, 1), value=padding).contiguous())
        x = getattr(x[:, :, self.field_places], reduce)(dim=3)  # [N, 1 or J, places, types]
        x = materialised(x.contiguous())
        x = x[:, :, self.grid_place]
        return rearrange(x, "n j (p f) t -> (n p) j (f t)", p=self.positions)

    def uniform(self, x: Tensor) -> Tensor:
        """Return equal couplings in the shape [N·P, J, I] of ``x``, to start from.

        They sum to one over all parents that see a child; with ``per_type``, as in the released
        code, over the types at each position.
        """
        equal = torch.full_like(x, 1 / x.shape[1])
        if self.per_type:
            return equal
        N = x.shape[0] // self.positions
        return equal / repeat(self.field_count, "p f -> (n p) 1 (f t)", n=N, t=self.types)

    def softmax(self, logits: Tensor) -> Tensor:
        """Return the couplings of logits, both [N·P, J, I]."""
        if self.released:
            weight = (logits - self._over_image(logits, "amax")).exp()
            return weight / (self.over(weight, "sum") + RELEASED_EPSILON)
        weight = (logits - self.over(logits, "amax")).exp()
        return weight / self.over(weight, "sum")

    def maximum_gradient(self, logits: Tensor, gradient: Tensor) -> Tensor:
        """Return what a shared maximum adds to the ``gradient`` of logits, both [N·P, J, I].

        Adding a number to all logits that share a maximum changes no coupling, so the
        gradients of these logits sum to zero: the largest logit gets what is missing.
        """
        is_largest = (logits == self._over_image(logits, "amax")).to(logits.dtype)
        missing = -self._over_image(gradient, "sum") / self._over_image(is_largest, "sum")
        return is_largest * missing

    def _over_image(self, x: Tensor, reduce: Literal["amax", "sum"]) -> Tensor:
        """Return the maximum or the sum of ``x`` for each example, parent type and child type.

        The shape [N·P, J, I] stays, so that every slot holds the number that it is compared
        with.
        """
        fields = rearrange(x, "(n p) j (f t) -> n p j f t", p=self.positions, t=self.types)
        reduced = getattr(fields, reduce)(dim=(1, 3), keepdim=True)
        reduced = materialised(reduced.contiguous()).expand_as(fields)
        return rearrange(reduced, "n p j f t -> (n p) j (f t)")


def softmax(
    logits: Tensor, competition: Competition | None = None, *, children_last: bool = False
) -> Tensor:
    """Return the couplings of logits [..., I, J], or of [N, J, I] with ``children_last``.

    They sum to one over J, or as the ``competition`` says.

    >>> softmax(torch.zeros(5, 2))[0]
    tensor([0.5000, 0.5000])
    """
    if competition is None:
        return logits.softmax(dim=1 if children_last else -1)
    return _in_rows(competition.softmax, logits, children_last)


def uniform(
    x: Tensor, competition: Competition | None = None, *, children_last: bool = False
) -> Tensor:
    """Return equal couplings to start from, in the shape [..., I, J] of ``x``.

    With ``children_last``, ``x`` is [N, J, I]. They sum to one over J, or as the
    ``competition`` says.

    >>> uniform(torch.zeros(5, 2))[0]
    tensor([0.5000, 0.5000])
    """
    if competition is None:
        return torch.full_like(x, 1 / x.shape[1 if children_last else -1])
    return _in_rows(competition.uniform, x, children_last)


def _in_rows(function: Callable[[Tensor], Tensor], x: Tensor, children_last: bool) -> Tensor:
    """Apply a function of [N·P, J, I] to [..., I, J], or if ``children_last`` to its like."""
    if children_last:
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
    """Return the gradient of the logits for a ``gradient`` of the couplings; all are [N, J, I].

    Where :func:`needs_logits` says so, the maximum of the whole image has a gradient too, since
    ε is added after it was subtracted.
    """
    weighted = coupling * gradient
    if competition is None:
        return weighted - coupling * weighted.sum(dim=1, keepdim=True)
    to_logits = weighted - coupling * competition.over(weighted, "sum")
    if needs_logits(competition):
        to_logits = to_logits + competition.maximum_gradient(logits, to_logits)
    return to_logits


def convolutional(
    size: tuple[int, int],
    kernel: int,
    stride: int,
    types: int,
    normalise: Normalise,
    device: torch.device,
) -> Competition | None:
    """Return the competition in a convolutional layer over a grid (H, W) of child ``types``.

    Slots are ordered by row in the kernel, column and type. Returns None for
    "types-per-position", where each field is a layer of its own.

    >>> options = dict(types=2, normalise="types+positions", device=torch.device("cpu"))
    >>> competition = convolutional((4, 4), 3, 1, **options)
    >>> competition.positions, competition.field_count[0].view(3, 3)[1, 1].item()  # the middle
    (4, 4)
    """
    if normalise == "types-per-position":
        return None
    rows = (size[0] - kernel) // stride + 1
    columns = (size[1] - kernel) // stride + 1
    if normalise == "released":  # its index arithmetic knows no stride
        size, stride = (rows + kernel - 1, columns + kernel - 1), 1
    places = torch.arange(size[0] * size[1], device=device).view(size)
    grid_place = places.unfold(0, kernel, stride).unfold(1, kernel, stride).flatten()  # [P·K·K]
    row, y = _windows_of_places(size[0], kernel, stride, rows, device)  # [H, V]
    column, x = _windows_of_places(size[1], kernel, stride, columns, device)  # [W, V]
    row = row[:, None, :, None]
    column = column[:, None]
    field = row * columns + column  # [H, W, V, V]
    slot = (field * kernel + y[:, None, :, None]) * kernel + x[:, None]
    slot = slot.where((row >= 0) & (column >= 0), grid_place.shape[0])
    field_places = slot.flatten(2).flatten(0, 1).sort(dim=1).values  # [places, V]
    fields = (field_places < grid_place.shape[0]).sum(dim=1)  # [places]  that see each
    field_count = fields[grid_place].view(rows * columns, -1)
    per_type = normalise in ("positions-per-type", "released")
    released = normalise == "released"
    positions = rows * columns
    return Competition(
        grid_place, field_places, field_count, positions, types, per_type, released
    )


def _windows_of_places(
    side: int, kernel: int, stride: int, windows: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the windows that hold each place of an axis, and its place in them, [side, V].

    A window is -1 where fewer than V hold the place.
    """
    V = min(windows, -(-kernel // stride))
    index = torch.arange(side, device=device)[:, None]
    last = (index // stride).clamp(max=windows - 1)
    window = last - torch.arange(V, device=device)
    offset = index - stride * window
    holds = (window >= 0) & (offset < kernel)
    return window.where(holds, -1), offset
