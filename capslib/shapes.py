"""Checks of shapes and numbers, so that broadcasting never hides a wrong one."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Protocol

import torch
from torch import Tensor

__all__ = [
    "check_images",
    "check_labels",
    "check_positive",
    "check_shapes",
    "values_can_be_read",
]

_BATCH_AXES = ("N", "...")
"""Axes that may be empty. Every other axis has at least one entry."""


class _HasShape(Protocol):
    """A tensor, or an object that stands for one."""

    @property
    def shape(self) -> torch.Size: ...


_Pattern = str | Sequence[str | int]
"""Axes by name or size: ``"N C 28 28"`` or ``("N", "C", 28, 28)``."""


def check_shapes(**tensors: tuple[_HasShape | None, _Pattern]) -> None:
    """Raise ValueError unless all tensors have the axes that their patterns name.

    Each argument is a pair: a tensor, or None for one that is left out, and its pattern. A
    pattern lists axes. A name has the same size wherever it occurs, a number is a size, and
    ``...`` stands for any number of axes, the same in all tensors. The message shows every
    pattern and shape. Code that is compiled, exported or traced is not checked.

    >>> check_shapes(votes=(torch.zeros(8, 5, 3, 4), "... I J D"), bias=(None, "J D"))
    >>> check_shapes(x=(torch.zeros(5, 3), "I J"), y=(torch.zeros(2, 4), "J D"))
    Traceback (most recent call last):
        ...
    ValueError: J is 3 in x and 2 in y: x [I, J] is [5, 3], y [J, D] is [2, 4]
    """
    if _is_compiling():
        return
    seen: dict[str, tuple[object, str]] = {}  # the size of an axis, and the tensor that has it
    for name, (tensor, pattern) in tensors.items():
        if tensor is None:
            continue
        sizes = _sizes(tensor.shape, _axes(pattern))
        if sizes is None:
            raise ValueError(f"{name} has {len(tensor.shape)} axes: {_described(tensors)}")
        for axis, size in sizes:
            expected, first = seen.setdefault(axis, (size, name))
            if axis.isdigit() and size != int(axis):
                raise ValueError(
                    f"{name} has {size} in the place of {axis}: {_described(tensors)}"
                )
            if size != expected:
                fault = f"{axis} is {expected} in {first} and {size} in {name}"
                raise ValueError(f"{fault}: {_described(tensors)}")
            if size == 0 and axis not in _BATCH_AXES:
                raise ValueError(
                    f"{axis} is 0 in {name}, and has to be 1 or more: {_described(tensors)}"
                )


def check_positive(**numbers: int) -> None:
    """Raise ValueError unless all numbers are integers of at least 1, also those of NumPy.

    Code that is compiled, exported or traced is not checked.

    >>> check_positive(iterations=3, parents=0)
    Traceback (most recent call last):
        ...
    ValueError: parents has to be a whole number of at least 1, not 0
    """
    if _is_compiling():
        return
    for name, number in numbers.items():
        is_whole = isinstance(number, Integral) and not isinstance(number, bool)
        if not is_whole or number < 1:
            raise ValueError(f"{name} has to be a whole number of at least 1, not {number!r}")


def check_images(images: Tensor, axes: _Pattern, labels: Tensor | None = None) -> None:
    """Raise unless images have these axes, and are floats, and ``labels`` are [N].

    Raises ValueError for a shape, and TypeError for images of integers.

    >>> check_images(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), "N 1 8 8")
    Traceback (most recent call last):
        ...
    TypeError: images have to be floats, such as pixels / 255, not torch.uint8
    """
    check_shapes(images=(images, axes), labels=(labels, "N"))
    if not images.is_floating_point():
        raise TypeError(f"images have to be floats, such as pixels / 255, not {images.dtype}")


def check_labels(labels: Tensor, classes: int) -> None:
    """Raise unless labels [N] are integers from 0 to ``classes`` − 1.

    Raises TypeError for other dtypes, and ValueError for another number. Numbers are read on
    the CPU only: on a GPU that would mean waiting.

    >>> check_labels(torch.tensor([0, 10]), classes=10)
    Traceback (most recent call last):
        ...
    ValueError: labels go from 0 to 9, and there is 10
    """
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise TypeError(f"class indices [N] are integers, not {labels.dtype}")
    if labels.device.type == "cpu" and values_can_be_read():
        labels = labels.long()
        wrong = labels[(labels < 0) | (labels >= classes)]
        if len(wrong):
            raise ValueError(f"labels go from 0 to {classes - 1}, and there is {int(wrong[0])}")


def values_can_be_read() -> bool:
    """Return whether code can look at the numbers in a tensor.

    It cannot while it is compiled, exported, traced, or transformed by torch.func.
    """
    return not _is_compiling() and not torch._C._are_functorch_transforms_active()


def _is_compiling() -> bool:
    """Return whether the calling code is being compiled, exported or traced."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def _axes(pattern: _Pattern) -> list[str]:
    return pattern.split() if isinstance(pattern, str) else [str(axis) for axis in pattern]


def _sizes(shape: torch.Size, axes: list[str]) -> list[tuple[str, object]] | None:
    """Return each axis with its size, or None if the shape has too few or too many axes."""
    if "..." not in axes:
        return list(zip(axes, shape, strict=True)) if len(axes) == len(shape) else None
    start = axes.index("...")
    end = start + len(shape) - (len(axes) - 1)
    if end < start:
        return None
    sizes = [*shape[:start], list(shape[start:end]), *shape[end:]]
    return list(zip(axes, sizes, strict=True))


def _described(tensors: dict[str, tuple[_HasShape | None, _Pattern]]) -> str:
    """Return the pattern and the shape of every tensor, for an error message."""
    parts = []
    for name, (tensor, pattern) in tensors.items():
        if tensor is not None:
            parts.append(f"{name} [{', '.join(_axes(pattern))}] is {[*tensor.shape]}")
    return ", ".join(parts)
