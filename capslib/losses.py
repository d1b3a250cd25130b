"""Losses on capsule activations: margin loss and spread loss."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from capslib.shapes import check_shapes, values_can_be_read

__all__ = ["margin_loss", "spread_loss"]


def _class_indicators(activation: Tensor, target: Tensor) -> Tensor:
    """Return T_k [N, C], one for each class that is present, in the dtype of ``activation`` [N, C].

    ``target`` holds class indices [N], or zeros and ones [N, C] where several classes may be
    present. Raises ValueError for other shapes, and for other numbers in [N, C], and TypeError
    for indices that are no integers.
    """
    if target.ndim != 2:
        check_shapes(activation=(activation, "N C"), target=(target, "N"))
        if target.is_floating_point():
            raise TypeError(f"class indices [N] are integers, not {target.dtype}")
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
) -> Tensor:
    """Push present classes above ``positive`` and absent ones below ``negative`` (Sabour et al. 2017, eq. 4).

    ``activation`` is [N, C], and ``down_weight`` is λ. ``target`` holds class indices [N], or T_k
    [N, C] of zeros and ones, for images of several digits. Returns a scalar: the sum over
    classes, averaged over the batch. Raises ValueError for other shapes.

    >>> import torch
    >>> margin_loss(torch.tensor([[0.5, 0.3]]), torch.tensor([0]))  # 0.4² + ½·0.2²
    tensor(0.1800)
    """
    present = _class_indicators(activation, target)  # [N, C]  T_k
    short = F.relu(positive - activation).square()
    long = F.relu(activation - negative).square()
    return (present * short + down_weight * (1 - present) * long).sum(dim=-1).mean()


def spread_loss(activation: Tensor, target: Tensor, margin: float = 0.9) -> Tensor:
    """Push every wrong class at least ``margin`` below the right one (Hinton et al. 2018, eq. 3).

    ``activation`` is [N, C]. ``target`` holds class indices [N], or one-hot classes [N, C]. The
    paper's ``margin`` grows from 0.2 to 0.9. Returns a scalar: the sum over the wrong classes,
    averaged over the batch. Raises ValueError for other shapes, or without one right class.

    >>> import torch
    >>> spread_loss(torch.tensor([[0.7, 0.6, 0.1]]), torch.tensor([0]), margin=0.2)  # (0.2 − 0.1)²
    tensor(0.0100)
    """
    right = _class_indicators(activation, target)  # [N, C]
    if target.ndim == 2 and values_can_be_read() and not bool((right.sum(dim=1) == 1).all()):
        raise ValueError("the spread loss has one right class for each example")
    right_activation = (right * activation).sum(dim=-1, keepdim=True)  # [N, 1]  a_t
    violation = F.relu(margin - (right_activation - activation)).square()
    return ((1 - right) * violation).sum(dim=-1).mean()
