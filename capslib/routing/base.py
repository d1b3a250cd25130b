"""What all routings share: the result that they return, squash, and a note to the compiler."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

Path = Literal["eager", "fast", "compiled"]
"""By its definition; in chunks; in chunks that are compiled."""
PATHS: tuple[Path, ...] = get_args(Path)


class RoutingResult(NamedTuple):
    """Poses and activations of J parents, and the last couplings of I children."""

    pose: Tensor  # [..., J, D]
    activation: Tensor  # [..., J]
    coupling: Tensor  # [..., I, J]


def squash(x: Tensor, dim: int = -1) -> Tensor:
    """Shrink vectors to a length below one and keep their direction.

    Computes ‖x‖²/(1+‖x‖²) · x/‖x‖ for vectors along ``dim`` (Sabour et al. 2017, eq. 1) and
    returns the same shape. The form x·‖x‖/(1+‖x‖²) needs no ε: it is exact everywhere, exactly
    odd, and its gradient at zero is zero.

    >>> round(squash(torch.tensor([3.0, 4.0])).norm().item(), 4)  # 25/26
    0.9615
    """
    norm = torch.linalg.vector_norm(x, dim=dim, keepdim=True)
    return x * (norm / (1 + norm.square()))


def at_least_one(iterations: int) -> None:
    """Raise ValueError unless there is an iteration to run."""
    if iterations < 1 or iterations != int(iterations):
        raise ValueError(f"a routing needs at least one iteration, and whole ones, not {iterations}")


def materialised(few: Tensor) -> Tensor:
    """The same tensor, behind a view that makes a compiler write it to memory.

    Left alone, it recomputes a small tensor for every number of a vote that needs it.
    """
    return few.as_strided(few.shape, few.stride())
