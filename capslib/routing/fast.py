"""The fast path: votes are formed and routed in chunks, which the cache of a CPU holds.

Every iteration reads the votes [N, I, J, D], and autograd keeps a copy for each. Here a few
examples at a time are laid out as [n, J, D, I], so that children are neighbours in memory, and
their votes are formed once more for the gradient. A routing may have a :class:`Core`: its loop
for one chunk, and the gradient of that loop. Without a core, autograd differentiates the
definition chunk by chunk; where it would keep too much, it runs each chunk again for the
gradient.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import sys
import types
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import torch
from einops import einsum, rearrange
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from capslib.errors import check_name
from capslib.routing.base import PATHS, Path, RoutingResult
from capslib.routing.competition import Competition
from capslib.shapes import check_positive, check_shapes, values_can_be_read

__all__ = [
    "BLOCK_BYTES",
    "CHUNK_BYTES",
    "KEPT_BYTES",
    "Core",
    "LazyVotes",
    "Tensors",
    "float32_products",
    "in_steps",
    "routing_function",
]

CHUNK_BYTES = {"cpu": 2 << 20, "cuda": 64 << 20}
"""Bytes of the votes of a chunk, by device.

On a CPU they fit the second-level cache with their temporaries.
"""
BLOCK_BYTES = {"cpu": 32 << 20, "cuda": 1 << 30}
"""Bytes of the votes that one matrix product forms: enough to be worth reading W once."""
KEPT_BYTES = {"cpu": 32 << 20, "cuda": 256 << 20}
"""Bytes of votes above which a chunk runs again for its gradient, which saves memory.

Autograd would keep more than the votes: for an LSTM 40 times as much. On other devices every
chunk runs again.
"""
_UNLIMITED = 1 << 62
"""The bytes of a chunk or block on other devices."""
Tensors = tuple[Tensor, ...]
_Step = TypeVar("_Step", bound=tuple)


class LazyVotes(NamedTuple):
    """Votes that are formed where they are used, of child poses and one W_ij for each pair.

    Vector capsules, û_{j|i} = W_ij u_i: ``weight`` [I, J, D, d] and ``pose`` [N, I, d]. Matrix
    capsules, V_ij = M_i W_ij: ``weight`` [I, J, 4, 4] and ``pose`` [N, I, 4, 4]; D is 16, by
    rows.

    >>> LazyVotes(torch.ones(5, 3, 4, 2), torch.ones(7, 5, 2)).form().shape
    torch.Size([7, 5, 3, 4])
    """

    weight: Tensor
    pose: Tensor

    @property
    def shape(self) -> torch.Size:
        """The shape [N, I, J, D] of the votes; ValueError if weight and pose do not fit."""
        if self.pose.ndim == 4:
            check_shapes(weight=(self.weight, "I J k columns"), pose=(self.pose, "N I rows k"))
            dim = self.pose.shape[2] * self.weight.shape[3]
        else:
            check_shapes(weight=(self.weight, "I J D k"), pose=(self.pose, "N I k"))
            dim = self.weight.shape[2]
        return torch.Size([self.pose.shape[0], *self.weight.shape[:2], dim])

    def form(self) -> Tensor:
        """Return all votes [N, I, J, D]."""
        if self.pose.ndim == 4:
            votes = einsum(self.weight, self.pose, "i j k b, n i a k -> n i j a b")
            return votes.flatten(3)
        return einsum(self.weight, self.pose, "i j e d, n i d -> n i j e")


class Core(NamedTuple):
    """The loop of a routing for one chunk, and its gradient, as functions unseen by autograd.

    ``forward(votes, **arguments)`` takes votes [n, J, D, I] and the arguments of the
    definition. It returns ``(outputs, residuals)``, two tuples of tensors [n, …] (or None in
    ``residuals``); the last output is the couplings [n, J, I]. ``backward(votes, outputs,
    residuals, gradients, **arguments)`` returns the gradient of the votes, and those of other
    tensors by name. ``finish(*outputs, **arguments)``, which autograd sees and which gets
    couplings [n, I, J], makes a :class:`RoutingResult`. With ``only_compiled`` the fast path
    takes the definition: without a compiler the core would gain little on it.
    """

    forward: Callable[..., tuple[Tensors, Tensors]]
    backward: Callable[..., tuple[Tensor, dict[str, Tensor]]]
    finish: Callable[..., RoutingResult]
    only_compiled: bool = False


def in_steps(step: type[_Step], residuals: Tensors) -> list[_Step]:
    """Return the residuals of a core in named tuples, one ``step`` for each iteration."""
    size = len(step._fields)
    return [step(*residuals[start : start + size]) for start in range(0, len(residuals), size)]


def routing_function(definition: Callable[..., RoutingResult]) -> Callable[..., RoutingResult]:
    """Return a routing that computes a definition on the path that the keyword ``path`` names.

    The definition takes votes [..., I, J, D] and keywords. Among its other tensors,
    ``activation`` [..., I] belongs to the children, and the rest belongs to the parents. A
    tensor that is annotated as ``Annotated[Tensor, "J D"]`` has to have these axes, and an
    option that is annotated as ``Literal`` one of these values.

    A softmax of agreements needs more than eight bits of mantissa, so the routing computes in
    at least float32, autocast or not, and the result has the dtype of the votes.
    ``routing.core`` is the :class:`Core`, or None. If an option is or holds a tensor that needs
    a gradient, or holds a module, the call takes the definition, for a core gives it none.

    >>> @routing_function
    ... def mean_routing(votes: Tensor) -> RoutingResult:
    ...     coupling = torch.full_like(votes[..., 0], 1 / votes.shape[-2])
    ...     pose = (coupling[..., None] * votes).sum(dim=-3)
    ...     return RoutingResult(pose, pose.norm(dim=-1), coupling)
    >>> mean_routing(torch.randn(7, 5, 3, 4), path="fast").pose.shape
    torch.Size([7, 3, 4])
    """
    signature = inspect.signature(definition)
    patterns, choices = _annotations(definition)

    @functools.wraps(definition)
    def routing(
        votes: Tensor | LazyVotes, *tensors: Tensor, path: Path = "fast", **options: object
    ) -> RoutingResult:
        bound = signature.bind(votes, *tensors, **options)
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        check_positive(iterations=arguments.get("iterations", 1))
        check_name("path", path, PATHS)
        for name, valid in choices.items():
            check_name(name, arguments[name], valid)
        shaped = [name for name in patterns if name in arguments]
        check_shapes(**{name: (arguments[name], patterns[name]) for name in shaped})
        del arguments["votes"]
        weight, source = votes if isinstance(votes, LazyVotes) else (None, votes)
        if not source.is_floating_point():
            raise TypeError(f"votes are floating-point numbers, not {source.dtype}")
        result = _route(definition, routing.core, path, weight, source, arguments, patterns)
        return RoutingResult(*(tensor.to(source.dtype) for tensor in result))

    routing.core = None
    keyword = inspect.Parameter(
        "path", inspect.Parameter.KEYWORD_ONLY, default="fast", annotation=Path
    )
    parameters = [*signature.parameters.values(), keyword]
    routing.__signature__ = signature.replace(parameters=parameters)
    return routing


def _annotations(
    definition: Callable[..., RoutingResult],
) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Return the axes of tensors and the choices of options, by the names of the arguments."""
    patterns = {"votes": "... I J D", "activation": "... I"}
    choices = {}
    for name, hint in get_type_hints(definition, include_extras=True).items():
        if get_origin(hint) is Annotated:
            patterns[name] = hint.__metadata__[0]
        elif get_origin(hint) is Literal:
            choices[name] = get_args(hint)
    return patterns, choices


def _route(
    definition: Callable[..., RoutingResult],
    core: Core | None,
    path: Path,
    weight: Tensor | None,
    source: Tensor,
    arguments: dict[str, Any],
    declared: Collection[str],
) -> Tensors:
    """Route on a path, in at least float32; ``source`` is votes, or with ``weight`` poses.

    ``declared`` are the names of the arguments whose axes the definition declares.
    """
    wide = torch.promote_types(source.dtype, torch.float32)
    if weight is not None:
        wide = torch.promote_types(wide, weight.dtype)
    device = source.device
    source = source.to(wide)
    weight = None if weight is None else weight.to(wide)
    arguments = {
        name: value.to(wide) if isinstance(value, Tensor) else value
        for name, value in arguments.items()
    }
    autocast_device = "cpu" if device.type == "meta" else device.type  # meta has no autocast
    with torch.autocast(autocast_device, enabled=False), float32_products(device):
        # A compiler and torch.func read the definition; an empty batch has nothing to cut.
        if path == "eager" or not values_can_be_read() or source.numel() == 0:
            return definition(_formed(weight, source), **arguments)
        batch, source, arguments = _one_batch(weight, source, arguments)
        options = [value for name, value in arguments.items() if name not in declared]
        if _takes_core(core, path, options):
            result = _by_core(core, path, weight, source, arguments)
        else:
            result = _in_chunks(definition, weight, source, arguments)
    return tuple(tensor.reshape(*batch, *tensor.shape[1:]) for tensor in result)


def _takes_core(core: Core | None, path: Path, options: Iterable[object]) -> bool:
    """Return whether a path computes the core in the place of the definition."""
    if core is None or (core.only_compiled and path != "compiled"):
        return False
    return not any(_learns(option) for option in options)


@contextlib.contextmanager
def float32_products(device: torch.device, precision: str = "highest") -> Iterator[None]:
    """Set the precision of float32 products on a GPU; only "high" allows TF32."""
    if device.type != "cuda" or torch.compiler.is_compiling():
        yield
        return
    previous = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(previous)


def _formed(weight: Tensor | None, source: Tensor) -> Tensor:
    """Return the votes [..., I, J, D], which are formed if there is a ``weight``."""
    return source if weight is None else LazyVotes(weight, source).form()


def _learns(option: object) -> bool:
    """Return whether an option is or holds a module, or a tensor that needs a gradient."""
    if isinstance(option, Tensor):
        return option.requires_grad
    if isinstance(option, Mapping):
        option = tuple(option.values())
    if isinstance(option, (list, tuple)):
        return any(_learns(part) for part in option)
    if isinstance(option, functools.partial):
        return any(map(_learns, (option.func, *option.args, *option.keywords.values())))
    owner = getattr(option, "__self__", option)  # of a bound method
    return isinstance(owner, nn.Module)


def _one_batch(
    weight: Tensor | None, source: Tensor, arguments: dict[str, Any]
) -> tuple[torch.Size, Tensor, dict[str, Any]]:
    """Return the shape of the batch, and source and arguments with one batch dimension."""
    batch = source.shape[:-3] if weight is None else source.shape[:1]
    source = source.reshape(-1, *source.shape[len(batch) :])
    if "activation" in arguments:
        activation = arguments["activation"].reshape(-1, source.shape[1])
        arguments = {**arguments, "activation": activation}
    return batch, source, arguments


def _in_chunks(
    definition: Callable[..., Tensors],
    weight: Tensor | None,
    source: Tensor,
    arguments: dict[str, Any],
) -> Tensors:
    """Compute the definition in chunks, again for the gradient above ``KEPT_BYTES``."""

    def route(rows: Tensor, activation: dict[str, Tensor]) -> Tensors:
        with float32_products(source.device):
            return tuple(definition(_formed(weight, rows), **(arguments | activation)))

    numbers = _vote_numbers(weight, source)
    has_many = _bytes(source, numbers * len(source)) > KEPT_BYTES.get(source.device.type, 0)
    # A CUDA graph that is being captured cannot read the random state that a checkpoint keeps.
    is_capturing = source.is_cuda and torch.cuda.is_current_stream_capturing()
    if has_many and torch.is_grad_enabled() and not is_capturing:
        route = functools.partial(checkpoint, route, use_reentrant=False)
    chunks = _chunks(numbers, source, _neighbours(arguments))
    # The gradient of a slice is as large as the whole, and that of a part of a split is not.
    sizes = [chunk.stop - chunk.start for chunk in chunks]
    parts = source.split(sizes)
    activations: list[dict[str, Tensor]] = [{} for _ in parts]
    if "activation" in arguments:
        activations = [{"activation": part} for part in arguments["activation"].split(sizes)]
    return _joined(
        [route(rows, activation) for rows, activation in zip(parts, activations, strict=True)]
    )


def _by_core(
    core: Core, path: Path, weight: Tensor | None, source: Tensor, arguments: dict[str, Any]
) -> Tensors:
    """Compute a core, compiled or not, on chunks of given votes or of those that it forms."""
    compiled = path == "compiled"
    # A compiler takes numbers for constants, and compiles anew for others. On a GPU they stay
    # numbers: a CUDA graph that is being captured takes no copy from the CPU.
    if compiled and source.device.type == "cpu":
        arguments = {k: _as_tensor(value, source) for k, value in arguments.items()}
    tensors = {k: value for k, value in arguments.items() if isinstance(value, Tensor)}
    options = {k: value for k, value in arguments.items() if k not in tensors}
    plan = _Plan(core, compiled, options, tuple(tensors), torch.is_grad_enabled())
    if weight is None:
        outputs = _Chunked.apply(plan, None, None, source, *tensors.values())
    elif source.ndim == 4:  # matrix capsules: the chunks form their votes
        weight = rearrange(weight, "i j k b -> j k b i").contiguous()
        source = rearrange(source, "n i a k -> n a k i").contiguous()
        outputs = _Chunked.apply(plan, None, weight, source, *tensors.values())
    else:  # vector capsules: a matrix product forms the votes of a block
        outputs = _in_blocks(plan, LazyVotes(weight, source), tensors)
    return core.finish(*outputs[:-1], outputs[-1].mT, **arguments)


def _as_tensor(option: object, votes: Tensor) -> object:
    """Return a sequence of numbers as a tensor, and any other option as it is."""
    is_sequence = isinstance(option, (list, tuple))
    if is_sequence and all(isinstance(number, (int, float)) for number in option):
        return votes.new_tensor(option)
    return option


def _in_blocks(plan: _Plan, lazy: LazyVotes, tensors: dict[str, Tensor]) -> Tensors:
    """Form and route votes of vector capsules in blocks, each of which is cut into chunks."""
    weight, pose = lazy
    neighbours = _neighbours(plan.options)
    example = _bytes(pose, _vote_numbers(weight, pose) * neighbours)
    fitting = BLOCK_BYTES.get(pose.device.type, _UNLIMITED) // example
    results = []
    for block in _slices(len(pose), max(1, fitting) * neighbours):
        lazy = LazyVotes(weight, pose[block])
        detached = LazyVotes(weight.detach(), lazy.pose.detach())
        block_tensors = _of_chunk(tensors, block).values()
        results.append(_Chunked.apply(plan, detached, None, lazy.form(), *block_tensors))
    return _joined(results)


def _neighbours(arguments: Mapping[str, Any]) -> int:
    """Return how many neighbouring rows compete with each other and stay in one chunk."""
    competition = arguments.get("competition")
    return 1 if competition is None else competition.positions


def _of_chunk(arguments: Mapping[str, Any], chunk: slice) -> dict[str, Any]:
    """Return the arguments for a chunk: activations belong to the children in it."""
    if "activation" not in arguments:
        return dict(arguments)
    return {**arguments, "activation": arguments["activation"][chunk]}


def _vote_numbers(weight: Tensor | None, source: Tensor) -> int:
    """Return how many numbers the votes of one example have."""
    if weight is None:
        return source[0].numel()
    rows = source.shape[2] if source.ndim == 4 else 1
    return weight[..., 0].numel() * rows


def _bytes(x: Tensor, numbers: int) -> int:
    return numbers * x.element_size()


def _joined(parts: list[Tensors]) -> Tensors:
    """Return the tensors of all chunks or blocks in one; None stays None."""
    if len(parts) == 1:
        return tuple(parts[0])
    columns = zip(*parts, strict=True)
    return tuple(None if column[0] is None else torch.cat(column) for column in columns)


def _slices(total: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, total)) for start in range(0, total, size)]


def _chunks(numbers: int, rows: Tensor, neighbours: int) -> list[slice]:
    """Return the chunks of ``rows`` whose votes have ``numbers`` each; the last may be smaller.

    Their size is a power of two, so that usual batches are whole numbers of chunks.
    """
    example = max(1, _bytes(rows, neighbours * numbers))
    fitting = CHUNK_BYTES.get(rows.device.type, _UNLIMITED) // example
    size = min(neighbours << max(0, fitting.bit_length() - 1), len(rows))
    return _slices(len(rows), size)


def _votes(weight: Tensor | None, rows: Tensor) -> Tensor:
    """Return the votes [n, J, D, I] of a chunk of votes [n, I, J, D].

    With a ``weight`` [J, k, B, I], ``rows`` are poses [n, A, k, I] of matrix capsules.
    """
    if weight is None:
        return rearrange(rows, "n i j d -> n j d i").contiguous()
    terms = (rows[:, None, :, k, None] * weight[:, k, None] for k in range(rows.shape[2]))
    return functools.reduce(torch.add, terms).flatten(2, 3)  # of [n, J, A, B, I]


def _run_forward(
    forward: Callable, weight: Tensor | None, rows: Tensor, **arguments: Any
) -> tuple[Tensors, Tensors]:
    """Return the outputs of a chunk, and what its gradient needs."""
    return forward(_votes(weight, rows), **arguments)


def _run_backward(
    backward: Callable,
    weight: Tensor | None,
    rows: Tensor,
    to_weight: Tensor | None,
    to_rows: Tensor | None,
    *saved: Tensors,
    **arguments: Any,
) -> dict[str, Tensor]:
    """Write the gradient of the rows, add that of the weight, return those of the others."""
    gradient, to_arguments = backward(_votes(weight, rows), *saved, **arguments)
    if weight is None:
        to_rows.copy_(rearrange(gradient, "n j d i -> n i j d"))
        return to_arguments
    gradient = gradient.unflatten(2, (rows.shape[1], weight.shape[2]))  # [n, J, A, B, I]
    for k in range(rows.shape[2]):
        if to_rows is not None:
            to_rows[:, :, k] = (gradient * weight[:, k, None]).sum(dim=(1, 3))
        if to_weight is not None:
            to_weight[:, k] += (gradient * rows[:, None, :, k, None]).sum(dim=(0, 2))
    return to_arguments


class _Plan(NamedTuple):
    """How a core runs over a batch: all that is not a tensor."""

    core: Core
    compiled: bool
    options: Mapping[str, Any]
    names: tuple[str, ...]  # of the tensors
    differentiable: bool  # an autograd function cannot tell whether a gradient can be asked for

    def runs(
        self, run: Callable, weight: Tensor | None, rows: Tensor
    ) -> Iterator[tuple[slice, Callable]]:
        """Yield every chunk of a batch with ``run``, which is compiled for full chunks."""
        numbers = rows[0].numel() if weight is None else weight[:, 0].numel() * rows.shape[1]
        chunks = _chunks(numbers, rows, _neighbours(self.options))
        for chunk in chunks:
            is_full = chunk.stop - chunk.start == chunks[0].stop
            if self.compiled and is_full:
                yield chunk, self._compiled(run, weight, rows[chunk])
            else:
                yield chunk, run

    def _compiled(self, run: Callable, weight: Tensor | None, rows: Tensor) -> Callable:
        options = tuple((name, _hashable(option)) for name, option in self.options.items())
        weights = None if weight is None else weight.shape
        layout = (weights, rows.shape, rows.stride(), rows.dtype, rows.device)
        return _compiled_for(run, self.core, self.names, options, layout)

    def arguments(self, tensors: Tensors, chunk: slice) -> dict[str, Any]:
        """Return the arguments of the core for a chunk."""
        tensors_by_name = dict(zip(self.names, tensors, strict=True))
        return _of_chunk({**tensors_by_name, **self.options}, chunk)


def _hashable(option: Any) -> Hashable:
    """Return what tells an option from others, where a compiler knows a tensor by its shape."""
    if isinstance(option, Competition):
        return tuple(part.shape if isinstance(part, Tensor) else part for part in option)
    return option if isinstance(option, Hashable) else repr(option)


@functools.lru_cache(maxsize=256)
def _compiled_for(run: Callable, *constants: object) -> Callable:
    """Return a compiled copy of ``run`` for one layout and all options of a routing.

    The compiler specialises a function for each of them, and gives up on a code object after
    eight.
    """
    code = run.__code__.replace()
    return torch.compile(types.FunctionType(code, run.__globals__, run.__name__), dynamic=False)


class _Chunked(torch.autograd.Function):
    """A core over ``rows`` in chunks. For the gradient, ``lazy`` forms the votes again."""

    @staticmethod
    def forward(
        ctx: Any,
        plan: _Plan,
        lazy: LazyVotes | None,
        weight: Tensor | None,
        rows: Tensor,
        *tensors: Tensor,
    ) -> Tensors:
        results: list[Tensors] = []
        for chunk, run in plan.runs(_run_forward, weight, rows):
            arguments = plan.arguments(tensors, chunk)
            outputs, residuals = run(plan.core.forward, weight, rows[chunk], **arguments)
            results.append((*outputs, *residuals) if plan.differentiable else outputs)
        joined = _joined(results)
        ctx.plan = plan
        ctx.is_lazy = lazy is not None
        ctx.tensors_end = 2 + len(tensors)
        ctx.outputs_end = ctx.tensors_end + len(outputs)
        source = (weight, rows) if lazy is None else lazy
        ctx.save_for_backward(*source, *tensors, *joined)
        return joined[: len(outputs)]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        # once_differentiable would drop a second derivative without a word.
        if torch.is_grad_enabled():
            raise RuntimeError(
                "The fast path has a first derivative only: "
                "for the gradient of a gradient take path='eager'."
            )
        with float32_products(gradients[0].device):
            return None, None, *_gradients(ctx, gradients)


def _gradients(ctx: Any, gradients: Tensors) -> tuple[Tensor | None, ...]:
    """Return the gradients of weight, rows and tensors, None where nobody asks for one."""
    plan, saved = ctx.plan, ctx.saved_tensors
    weight, rows = saved[:2]
    tensors = saved[2 : ctx.tensors_end]
    outputs = saved[ctx.tensors_end : ctx.outputs_end]
    residuals = saved[ctx.outputs_end :]
    if ctx.is_lazy:
        weight, rows = None, LazyVotes(weight, rows).form()
    _, _, weight_needed, rows_needed, *tensors_needed = ctx.needs_input_grad
    to_tensors = {}
    for name, tensor, needed in zip(plan.names, tensors, tensors_needed, strict=True):
        if needed:
            to_tensors[name] = torch.zeros_like(tensor, memory_format=torch.contiguous_format)
    to_weight = torch.zeros_like(weight) if weight_needed else None
    to_rows = None
    if rows_needed or weight is None:
        to_rows = _on_large_pages(rows.new_empty(rows.shape))
    for chunk, run in plan.runs(_run_backward, weight, rows):
        to_chunk = None if to_rows is None else to_rows[chunk]
        to_chunk_arguments = run(
            plan.core.backward,
            weight,
            rows[chunk],
            to_weight,
            to_chunk,
            _part(outputs, chunk),
            _part(residuals, chunk),
            _part(gradients, chunk),
            **plan.arguments(tensors, chunk),
        )
        for name in to_tensors.keys() & to_chunk_arguments.keys():
            to_tensors[name][chunk if name == "activation" else ...] += to_chunk_arguments[name]
    to_arguments = (to_tensors.get(name) for name in plan.names)
    return to_weight, to_rows if rows_needed else None, *to_arguments


def _part(tensors: Tensors, chunk: slice) -> Tensors:
    return tuple(None if tensor is None else tensor[chunk] for tensor in tensors)


def _on_large_pages(fresh: Tensor) -> Tensor:
    """Ask Linux for pages of 2 MiB for a fresh tensor, and return it.

    Faults of small pages took a quarter of a gradient's time.
    """
    page, advice = 2 << 20, 14  # MADV_HUGEPAGE, which the system may refuse
    is_large = fresh.nbytes >= 4 * page
    if sys.platform == "linux" and fresh.device.type == "cpu" and is_large:
        start = -(-fresh.data_ptr() // page) * page
        length = (fresh.data_ptr() + fresh.nbytes - start) // page * page
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), advice)
    return fresh
