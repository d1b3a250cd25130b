"""The base class of routings with parameters, and the choice of the path that computes them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from capslib.errors import check_name, notify
from capslib.routing.base import PATHS, Path, RoutingResult
from capslib.routing.competition import Competition
from capslib.routing.fast import LazyVotes
from capslib.shapes import check_positive

__all__ = [
    "FIRST_ROWS",
    "FIRST_VOTES",
    "Routing",
    "end_wait",
    "start_on_first_batch",
    "use_path",
    "wait_again",
    "waiting_routings",
]

_Network = TypeVar("_Network", bound=nn.Module)
FIRST_VOTES = 2**24
"""Numbers of the votes, of one layer, that a start looks at: 64 MiB."""
FIRST_ROWS = 4
"""Examples, or positions of a grid, that a start looks at even where this takes more memory."""


class Routing(nn.Module):
    """A routing with its parameters, for ``parents`` J of ``dim`` D dimensions.

    A subclass implements :meth:`forward`, and sets the class attributes below where their
    defaults are wrong: couplings sum over the parents, activations do not weigh votes, and
    without a bias the routing is odd. ``bias`` is the initial value of a learned bias [J, D],
    or None for no bias. ``path`` is "eager", "fast" or "compiled"; :func:`use_path` sets it.

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
    # Of start_on_first_batch. Here, since a subclass may leave out our __init__.
    starts_on_batch: bool = False
    start_hook: RemovableHandle | None = None

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
        votes: Tensor | LazyVotes,
        activation: Tensor,
        competition: Competition | None = None,
        *,
        iterations: int | None = None,
    ) -> RoutingResult:
        """Route votes [..., I, J, D] of children with activations [..., I].

        Layers pass :class:`LazyVotes`. A :func:`routing_function` takes them; to compute with
        votes yourself, call ``votes.form()`` first. ``competition`` comes from a convolutional
        layer; a routing that cannot take it into account leaves the argument out.
        ``iterations`` replaces the routing's own number.
        """
        raise NotImplementedError

    def start_from(
        self, votes: Tensor, activation: Tensor, competition: Competition | None = None
    ) -> None:
        """Set initial parameters from votes [N, I, J, D] and activations [N, I] of a batch.

        Here do nothing. Override it in a routing whose activations are nearly equal unless its
        parameters fit the scale of the votes. :func:`start_on_first_batch` calls it.
        """

    def reference(self, votes: Tensor, activation: Tensor) -> RoutingResult:
        """Route one example, votes [I, J, D] and activations [I], by the loops of the paper.

        The conformance suite compares :meth:`forward` with it. The six shipped routings have
        theirs in tests/routing/references.py.
        """
        raise NotImplementedError

    def possible_path(self, path: Path, device: torch.device) -> Path:
        """Return ``path``, or "fast" if "compiled" cannot compute this routing on a device."""
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


def start_on_first_batch(network: _Network) -> _Network:
    """Have every routing in ``network`` start from the first batch that it trains on.

    At its first forward pass in training mode, each :class:`Routing` sets itself for the votes
    that it gets (:meth:`Routing.start_from`), once. Votes that are the same for all examples,
    as of a single one, tell nothing: the routing then waits for the next batch. Loading weights
    of a routing takes the place of its start. Returns the network. Networks of
    :func:`capslib.networks.create_network` have it; call it for a network of your own layers,
    before the first batch.

    Under ``torch.compile``, and before the network is copied to several processes, do one
    forward pass in training mode first.

    >>> from capslib.layers import DenseCapsules
    >>> layer = start_on_first_batch(DenseCapsules(50, 10, 8, 16, routing="em_vector"))
    >>> activation = layer(torch.randn(32, 50, 8), torch.rand(32, 50)).activation
    >>> bool(activation.std() > 0.01)  # without: 0.0001
    True
    """
    for routing in network.modules():
        is_new = isinstance(routing, Routing) and not routing.starts_on_batch
        if is_new and type(routing).start_from is not Routing.start_from:
            routing.starts_on_batch = True
            routing.register_load_state_dict_pre_hook(_end_wait_if_loaded)
            _wait_for_batch(routing)
    return network


def waiting_routings(network: nn.Module) -> list[str]:
    """Return the names of the routings in ``network`` that wait for their first batch."""
    names = []
    for name, routing in network.named_modules():
        if isinstance(routing, Routing) and routing.start_hook is not None:
            names.append(name)
    return names


def wait_again(network: nn.Module, names: Iterable[str]) -> None:
    """Let only the routings with these names wait for a first batch, and no others."""
    for name, routing in network.named_modules():
        if isinstance(routing, Routing) and routing.starts_on_batch:
            end_wait(routing)
            if name in names:
                _wait_for_batch(routing)


def end_wait(routing: Routing) -> None:
    """Let a routing keep its parameters: it has started, or has loaded weights."""
    if routing.start_hook is not None:
        routing.start_hook.remove()
        routing.start_hook = None


def _wait_for_batch(routing: Routing) -> None:
    routing.start_hook = routing.register_forward_pre_hook(_start, with_kwargs=True)


def _end_wait_if_loaded(
    routing: Routing, state: Mapping[str, Any], prefix: str, *_: object
) -> None:
    """End the wait of a routing if the weights that are being loaded have its own."""
    if any(key.startswith(prefix) for key in state):
        end_wait(routing)


def _start(routing: Routing, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Start a routing that trains, from the votes of its first batch."""
    if not routing.training:
        return
    arguments = inspect.signature(routing.forward).bind(*args, **options).arguments
    votes, activation = arguments["votes"], arguments["activation"]
    if 0 not in votes.shape and not activation.is_meta:
        _start_from_part(routing, votes, activation, arguments.get("competition"))


@torch.compiler.disable
@torch.no_grad()
def _start_from_part(
    routing: Routing,
    votes: Tensor | LazyVotes,
    activation: Tensor,
    competition: Competition | None,
) -> None:
    """Start a routing from the first examples of a batch, as many as ``FIRST_VOTES`` allows."""
    I, J, D = votes.shape[-3:]
    positions = 1 if competition is None else competition.positions
    least = -(-FIRST_ROWS // positions)
    rows = positions * max(least, FIRST_VOTES // (positions * I * J * D))
    with torch.autocast(activation.device.type, enabled=False):
        if isinstance(votes, LazyVotes):
            # Under autocast the poses are narrower than W.
            wide = torch.promote_types(votes.weight.dtype, torch.float32)
            first = LazyVotes(votes.weight.to(wide), votes.pose[:rows].to(wide)).form()
        else:
            first = votes.reshape(-1, I, J, D)[:rows]
        if bool((first == first[:1]).all()):
            notify(
                f"{type(routing).__name__} waits for another batch to start from: "
                "all votes of this one are the same, or it has one example."
            )
            return
        wide = torch.promote_types(first.dtype, torch.float32)
        children = activation.reshape(-1, I)[:rows]
        routing.start_from(first.to(wide), children.to(wide), competition)
    end_wait(routing)


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
