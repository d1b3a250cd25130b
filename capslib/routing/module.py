"""A routing as a module with parameters, and the choice of the path that computes it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from capslib.errors import check_name
from capslib.routing.base import PATHS, Path, RoutingResult
from capslib.routing.competition import Competition
from capslib.shapes import check_positive

__all__ = ["Routing", "use_path"]


class Routing(nn.Module):
    """A routing with its parameters, for ``parents`` J of ``dim`` D dimensions.

    Subclasses implement :meth:`forward` and, in plain loops, :meth:`reference`. ``bias`` is what
    a learned bias [J, D] starts from, None for no bias. For ``path`` see :func:`use_path`.
    ``function`` is what ``forward`` calls; it knows whether there is a faster core. The couplings
    of each child sum to one over the "parents", or those of each parent over the "children".
    In means a vote counts as its coupling, times its activation if ``activation_weighs_votes``.
    ``odd_without_bias``: negated votes give negated poses and unchanged activations.
    """

    function: ClassVar[Callable[..., RoutingResult] | None] = None
    couplings_sum_over: ClassVar[Literal["parents", "children"]] = "parents"
    activation_weighs_votes: ClassVar[bool] = False
    odd_without_bias: ClassVar[bool] = True

    def __init__(
        self, parents: int, dim: int, *, iterations: int = 3, bias: float | None = None
    ):
        super().__init__()
        check_positive(parents=parents, dim=dim, iterations=iterations)
        if isinstance(bias, bool):  # False would be a bias that starts from zero
            raise TypeError(
                f"a bias is the value that it starts from, or None for no bias; not {bias}"
            )
        self.iterations = iterations
        self.path: Path = "fast"
        self.bias = (
            None if bias is None else nn.Parameter(torch.full((parents, dim), float(bias)))
        )

    def forward(
        self,
        votes: Tensor,
        activation: Tensor,
        competition: Competition | None = None,
        *,
        iterations: int | None = None,
    ) -> RoutingResult:
        """Route votes [..., I, J, D] of children with activations [..., I].

        ``competition`` comes from a convolutional layer; a routing that cannot take it into
        account leaves the argument out. ``iterations`` stands in for the routing's own number.
        """
        raise NotImplementedError

    def reference(self, votes: Tensor, activation: Tensor) -> RoutingResult:
        """The same for one example, votes [I, J, D] and activations [I], as the paper's loops."""
        raise NotImplementedError

    def possible_path(self, path: Path, like: Tensor) -> Path:
        """The fastest path up to ``path`` that computes this routing for tensors ``like`` this. A core knows no learned module."""
        core = getattr(type(self).function, "core", None)
        if path != "compiled" or core is None or any(True for _ in self.children()):
            return "eager" if path == "eager" else "fast"
        return "compiled" if _compiler_works(like.device) else "fast"

    def extra_repr(self) -> str:
        return f"iterations={self.iterations}, bias={self.bias is not None}"


def use_path(network: nn.Module, path: Path) -> Path:
    """Let every routing in ``network`` compute on this path, or on the fastest below it that works.

    Returns the slowest path taken; "fast" if none is. Raises UserError for an unknown path.

    >>> from capslib.routing import make_routing
    >>> use_path(make_routing("em", 3, 4), "eager")
    'eager'
    """
    check_name("path", path, PATHS)
    like = next(network.parameters(), torch.empty(0))
    routings = [module for module in network.modules() if isinstance(module, Routing)]
    for routing in routings:
        routing.path = routing.possible_path(path, like)
    return min((routing.path for routing in routings), key=PATHS.index, default="fast")


@functools.cache
def _compiler_works(device: torch.device) -> bool:
    """Whether ``torch.compile`` works here, which needs a C++ compiler, or Triton on a GPU. Tried once."""
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1  # helper processes would outlive a killed worker
    with contextlib.suppress(
        Exception
    ):  # whatever is missing: the compiler, its headers, a writable cache
        compiled = torch.compile(lambda x: x + 1)
        return not torch._dynamo.config.disable and bool(
            compiled(torch.zeros(1, device=device)) == 1
        )
    return False
