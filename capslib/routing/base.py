"""What all routings share: their result, the names of their paths, and squash."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

__all__ = ["PATHS", "Path", "RoutingResult", "materialised", "squash"]

Path = Literal["eager", "fast", "compiled"]
"""How a routing is computed: by its definition, in chunks, or in compiled chunks."""
PATHS: tuple[Path, ...] = get_args(Path)


class RoutingResult(NamedTuple):
    """Poses [..., J, D] and activations [..., J] of J parents, and couplings [..., I, J].

    The couplings with I children are those of the last iteration.
    """

    pose: Tensor
    activation: Tensor
    coupling: Tensor


def squash(x: Tensor, dim: int = -1) -> Tensor:
    """Shrink vectors to a length below one and keep their direction.

    Computes ‖x‖²/(1+‖x‖²) · x/‖x‖ for vectors along ``dim`` (Sabour et al. 2017, eq. 1) and
    returns the same shape and dtype. The form x·‖x‖/(1+‖x‖²) needs no ε: it is exact and odd to
    the last bit, and its gradient at zero is zero. Half precision is computed in float32, since
    the square of a length beyond 256 is no float16. Lengths may reach 1e19. Raises TypeError
    for integers.

    >>> round(squash(torch.tensor([3.0, 4.0])).norm().item(), 4)  # 25/26
    0.9615
    """
    if not x.is_floating_point():
        raise TypeError(f"squash takes floating-point numbers, not {x.dtype}")
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    norm = torch.linalg.vector_norm(wide, dim=dim, keepdim=True)
    return (wide * (norm / (1 + norm.square()))).to(x.dtype)


def materialised(x: Tensor) -> Tensor:
    """Return a view of ``x`` that makes a compiler write it to memory.

    Otherwise the compiler recomputes a small tensor for every number of a vote that needs it.
    """
    return x.as_strided(x.shape, x.stride())
