"""What every routing procedure shares: its result, its module, and the arithmetic it runs in."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from capslib.routing.competition import Competition


class RoutingResult(NamedTuple):
    """What a routing procedure gives back for ``J`` parents of ``I`` children.

    ``pose`` [..., J, D], ``activation`` [..., J], and ``coupling`` [..., I, J]: how each child shares itself out among the
    parents in the last iteration. The couplings of a child sum to one.
    """

    pose: Tensor
    activation: Tensor
    coupling: Tensor


def squash(x: Tensor, dim: int = -1) -> Tensor:
    """Shrink vectors to a length below one and keep their direction: ‖x‖²/(1+‖x‖²) · x/‖x‖ (Sabour et al. 2017, eq. 1).

    Takes and returns the same shape; vectors lie along ``dim``. Written as x·‖x‖/(1+‖x‖²), which needs no ε: it is exact
    everywhere, exactly odd, and its gradient at zero is zero.
    """
    norm = torch.linalg.vector_norm(x, dim=dim, keepdim=True)
    return x * (norm / (1 + norm.square()))


def at_least_one(iterations: int) -> None:
    """Raise ValueError unless there is an iteration to run."""
    if iterations < 1:
        raise ValueError(f"a routing needs at least one iteration, not {iterations}")


Path = Literal["eager", "fast", "compiled", "triton"]
"""How a routing is computed: as its definition is written, in chunks by its core, by its core after ``torch.compile``, or by
kernels of its own for a GPU."""


class Routing(nn.Module):
    """A routing with its parameters. Subclasses implement :meth:`forward` and, in plain loops, :meth:`reference`.

    ``parents`` J and ``dim`` D give the shapes of the parameters. ``bias`` is the value that a learned bias [J, D] starts
    from, or None for a routing without one. ``path`` is how it is computed; see :func:`capslib.routing.use_path`.
    """

    odd_without_bias: ClassVar[bool] = True
    """Without a bias: negated votes give negated poses and unchanged activations (checked for every registered routing)."""

    def __init__(self, parents: int, dim: int, *, iterations: int = 3, bias: float | None = None):
        super().__init__()
        at_least_one(iterations)
        self.iterations = iterations
        self.path: Path = "fast"
        self.bias = None if bias is None else nn.Parameter(torch.full((parents, dim), float(bias)))

    def forward(self, votes: Tensor, activation: Tensor, competition: Competition | None = None) -> RoutingResult:
        """Votes [..., I, J, D] and activations of the children [..., I]; with a ``competition``, the children of its fields."""
        raise NotImplementedError

    def reference(self, votes: Tensor, activation: Tensor) -> RoutingResult:
        """The same for one example, votes [I, J, D] and activations [I], as the loops that the paper prints."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"iterations={self.iterations}, bias={self.bias is not None}"
