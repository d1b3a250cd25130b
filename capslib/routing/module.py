"""The base class of routings with parameters, and the choice of the path that computes them."""

from __future__ import annotations

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

    A subclass implements :meth:`forward` and declares what it is. ``bias`` is the initial value
    of a learned bias [J, D], or None for no bias. :func:`use_path` sets ``path``.

    ``function`` is the routing function that ``forward`` calls. The couplings of each child sum
    to one over the "parents", or those of each parent over the "children"
    (``couplings_sum_over``). A mean weighs a vote by its coupling, and with
    ``activation_weighs_votes`` by the activation of its child too. If the routing is
    ``odd_without_bias``, negated votes give negated poses and unchanged activations.
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
            fault = "a bias is the value that it starts from, or None for no bias"
            raise TypeError(f"{fault}; not {bias}")
        self.iterations = iterations
        self.path: Path = "fast"
        self.bias: nn.Parameter | None = None
        if bias is not None:
            self.bias = nn.Parameter(torch.full((parents, dim), float(bias)))

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
        account leaves the argument out. ``iterations`` replaces the routing's own number.
        """
        raise NotImplementedError

    def reference(self, votes: Tensor, activation: Tensor) -> RoutingResult:
        """Route one example, votes [I, J, D] and activations [I], by the loops of the paper.

        The conformance suite compares :meth:`forward` with it.
        """
        raise NotImplementedError

    def possible_path(self, path: Path, device: torch.device) -> Path:
        """Return the fastest path up to ``path`` that can compute this routing on a device."""
        if path != "compiled":
            return path
        has_core = getattr(type(self).function, "core", None) is not None
        has_modules = any(True for _ in self.children())  # a core gives them no gradient
        can_compile = has_core and not has_modules and _compiler_works(device)
        return "compiled" if can_compile else "fast"

    def extra_repr(self) -> str:
        return f"iterations={self.iterations}, bias={self.bias is not None}"


def use_path(network: nn.Module, path: Path) -> Path:
    """Set the path of every routing in ``network``, or the fastest path below it that works.

    Returns the slowest path that is set, or "fast" if there is no routing. Raises UserError for
    an unknown path.

    >>> from capslib.routing import make_routing
    >>> use_path(make_routing("em", 3, 4), "eager")
    'eager'
    """
    check_name("path", path, PATHS)
    device = next(network.parameters(), torch.empty(0)).device
    routings = [module for module in network.modules() if isinstance(module, Routing)]
    for routing in routings:
        routing.path = routing.possible_path(path, device)
    return min((routing.path for routing in routings), key=PATHS.index, default="fast")


@functools.cache
def _compiler_works(device: torch.device) -> bool:
    """Return whether ``torch.compile`` works on a device; try it once.

    It needs a C++ compiler, its headers and a writable cache, or on a GPU Triton.
    """
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1  # helper processes would outlive a killed worker
    try:
        compiled = torch.compile(lambda x: x + 1)
        result = compiled(torch.zeros(1, device=device))
    except Exception:  # whatever is missing
        return False
    return not torch._dynamo.config.disable and bool(result == 1)
