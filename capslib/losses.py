"""Losses on capsule activations: margin loss and spread loss."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from capslib.errors import check_name
from capslib.shapes import check_labels, check_shapes, values_can_be_read

__all__ = ["Reduction", "margin_loss", "spread_loss"]

Reduction = Literal["mean", "none"]
"""What a loss returns: the mean over the batch, a scalar, or a number for each example [N]."""


def _reduced(losses: Tensor, reduction: Reduction) -> Tensor:
    check_name("reduction", reduction, get_args(Reduction))
    return losses.mean() if reduction == "mean" else losses


def _wide(activation: Tensor) -> Tensor:
    """Return the activation in at least float32: squares of bfloat16 are too coarse to add."""
    return activation.to(torch.promote_types(activation.dtype, torch.float32))


def _class_indicators(activation: Tensor, target: Tensor) -> Tensor:
    """Return T_k [N, C], which is one for each class that is present and zero for the others.

    ``target`` holds class indices [N], or zeros and ones [N, C] if several classes can be
    present. The result has the dtype of ``activation`` [N, C]. Raises ValueError for other
    shapes and for other numbers, and TypeError for indices that are not integers.
    """
    if target.ndim != 2:
        check_shapes(activation=(activation, "N C"), target=(target, "N"))
        check_labels(target, activation.shape[1])
        return torch.zeros_like(activation).scatter(1, target.long()[:, None], 1)
    check_shapes(activation=(activation, "N C"), target=(target, "N C"))
    if values_can_be_read() and not bool(((target == 0) | (target == 1)).all()):
        raise ValueError("a target [N, C] holds zeros and ones; give class indices as [N]")
    return target.to(activation.dtype)


def margin_loss(
    activation: Tensor,
    target: Tensor,
    *,
    positive: float = 0.9,
    negative: float = 0.1,
    down_weight: float = 0.5,
    reduction: Reduction = "mean",
) -> Tensor:
    """Return the margin loss (Sabour et al. 2017, eq. 4).

    It pushes the activation of present classes above ``positive``, and that of absent ones
    below ``negative`` with the weight λ = ``down_weight``. ``activation`` is [N, C]. ``target``
    holds class indices [N], or for images of several digits T_k [N, C] of zeros and ones.
    Returns the sum over classes, in at least float32: its mean over the batch, or with the
    ``reduction`` "none" that of each example [N]. Raises ValueError for other shapes and
    for labels that are no class, and TypeError for indices that are no integers.

    >>> import torch
    >>> margin_loss(torch.tensor([[0.5, 0.3]]), torch.tensor([0]))  # 0.4² + ½·0.2²
    tensor(0.1800)
    """
    activation = _wide(activation)
    present = _class_indicators(activation, target)  # [N, C]  T_k
    short = F.relu(positive - activation).square()
    long = F.relu(activation - negative).square()
    losses = (present * short + down_weight * (1 - present) * long).sum(dim=-1)  # [N]
    return _reduced(losses, reduction)


def spread_loss(
    activation: Tensor, target: Tensor, margin: float = 0.9, *, reduction: Reduction = "mean"
) -> Tensor:
    """Return the spread loss (Hinton et al. 2018, eq. 3).

    It pushes every wrong class at least ``margin`` below the right one; the paper's margin
    grows from 0.2 to 0.9. ``activation`` is [N, C]. ``target`` holds class indices [N], or
    one-hot classes [N, C]. Returns the sum over the wrong classes, in at least float32: its
    mean over the batch, or with the ``reduction`` "none" that of each example [N]. Raises
    ValueError for other shapes, for labels that are no class, or unless each example has one
    right class, and TypeError for indices that are no integers.

    >>> import torch
    >>> activation = torch.tensor([[0.7, 0.6, 0.1]])
    >>> spread_loss(activation, torch.tensor([0]), margin=0.2)  # (0.2 − 0.1)²
    tensor(0.0100)
    """
    activation = _wide(activation)
    right = _class_indicators(activation, target)  # [N, C]
    if target.ndim == 2 and values_can_be_read() and not bool((right.sum(dim=1) == 1).all()):
        raise ValueError("each example needs exactly one right class for the spread loss")
    right_activation = (right * activation).sum(dim=-1, keepdim=True)  # [N, 1]  a_t
    violation = F.relu(margin - (right_activation - activation)).square()
    return _reduced(((1 - right) * violation).sum(dim=-1), reduction)
