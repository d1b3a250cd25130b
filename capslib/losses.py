"""Losses on capsule activations: margin loss and spread loss."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def margin_loss(
    activation: Tensor, target: Tensor, *, positive: float = 0.9, negative: float = 0.1, down_weight: float = 0.5
) -> Tensor:
    """Push present classes above ``positive`` and absent ones below ``negative`` (Sabour et al. 2017, eq. 4).

    ``activation`` is [N, C], ``target`` [N] holds class indices, ``down_weight`` is λ. Returns a scalar: the sum over classes,
    averaged over the batch.

    >>> import torch
    >>> margin_loss(torch.tensor([[0.5, 0.3]]), torch.tensor([0]))  # 0.4² + ½·0.2²
    tensor(0.1800)
    """
    present = F.one_hot(target, activation.shape[-1]).to(activation.dtype)  # [N, C]  T_k
    short = F.relu(positive - activation).square()
    long = F.relu(activation - negative).square()
    return (present * short + down_weight * (1 - present) * long).sum(dim=-1).mean()


def spread_loss(activation: Tensor, target: Tensor, margin: float = 0.9) -> Tensor:
    """Push every wrong class at least ``margin`` below the right one (Hinton et al. 2018, eq. 3).

    ``activation`` is [N, C], ``target`` [N] holds class indices. The paper's ``margin`` grows from 0.2 to 0.9. Returns a scalar: the
    sum over the wrong classes, averaged over the batch.

    >>> import torch
    >>> spread_loss(torch.tensor([[0.7, 0.6, 0.1]]), torch.tensor([0]), margin=0.2)  # (0.2 − 0.1)²
    tensor(0.0100)
    """
    right = activation.gather(-1, target[:, None])  # [N, 1]  a_t
    violation = F.relu(margin - (right - activation)).square()
    wrong = 1 - F.one_hot(target, activation.shape[-1]).to(activation.dtype)
    return (wrong * violation).sum(dim=-1).mean()
