"""The fast path: votes are formed and routed in chunks that stay in the cache.

Every iteration reads the votes [N, I, J, D], and autograd keeps a copy for each. Here a few
examples at a time are laid out as [n, J, D, I], so that children are neighbours in memory, and are
formed once more for the gradient. A routing may bring a :class:`Core`: its loop for one chunk and
the gradient of that loop. Without one, autograd goes through the definition, chunk by chunk, and
through it again for the gradient where it would keep too much.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import itertools
import sys
import types
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

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
    "routing_function",
]

CHUNK_BYTES = {
    "cpu": 2 << 20,
    "cuda": 64 << 20,
}  # of votes that, with temporaries, fit the second-level cache
BLOCK_BYTES = {
    "cpu": 32 << 20,
    "cuda": 1 << 30,
}  # of votes of one matrix product, worth one reading of W
KEPT_BYTES = {
    "cpu": 32 << 20,
    "cuda": 256 << 20,
}  # of votes up to which autograd keeps what it needs: an LSTM 40 times as much
Tensors = tuple[Tensor, ...]


class LazyVotes(NamedTuple):
    """Votes that are formed where they are used, from child poses and one W_ij for each pair.

    Vector capsules, û_{j|i} = W_ij u_i: ``weight`` [I, J, D, d] and ``pose`` [N, I, d]. Matrix
    capsules, V_ij = M_i W_ij: ``weight`` [I, J, 4, 4] and ``pose`` [N, I, 4, 4]; D is 16, by rows.

    >>> LazyVotes(torch.ones(5, 3, 4, 2), torch.ones(7, 5, 2)).form().shape
    torch.Size([7, 5, 3, 4])
    """

    weight: Tensor
    pose: Tensor

    @property
    def shape(self) -> torch.Size:
        """The shape [N, I, J, D] of all votes. Raises ValueError unless weight and pose fit together."""
        matrices = self.pose.ndim == 4
        pose = "N I rows k" if matrices else "N I k"
        weight = "I J k columns" if matrices else "I J D k"
        check_shapes(weight=(self.weight, weight), pose=(self.pose, pose))
        I, J = self.weight.shape[:2]
        dim = self.pose.shape[2] * self.weight.shape[3] if matrices else self.weight.shape[2]
        return torch.Size([self.pose.shape[0], I, J, dim])

    def form(self) -> Tensor:
        """Return all votes [N, I, J, D]."""
        vectors, matrices = "i j e d, n i d -> n i j e", "i j k b, n i a k -> n i j a b"
        return einsum(
            self.weight, self.pose, matrices if self.pose.ndim == 4 else vectors
        ).flatten(3)


class Core(NamedTuple):
    """A routing for one chunk, as functions that autograd does not see.

    ``forward(votes, **arguments)`` takes votes [n, J, D, I] and the arguments of the definition;
    it returns ``(outputs, kept)``, two tuples of tensors [n, …], the last output the couplings
    [n, J, I]. ``backward(votes, outputs, kept, gradients, **arguments)`` returns the gradient of
    the votes and, by name, of the other tensors. ``finish(*outputs, **arguments)``, which autograd
    sees and which gets couplings [n, I, J], makes a :class:`RoutingResult`.
    """

    forward: Callable[..., tuple[Tensors, Tensors]]
    backward: Callable[..., tuple[Tensor, dict[str, Tensor]]]
    finish: Callable[..., RoutingResult]


def routing_function(definition: Callable[..., RoutingResult]) -> Callable[..., RoutingResult]:
    """Make a routing of its definition: in at least float32, and on the path that ``path`` names.

    The definition takes votes [..., I, J, D] and keywords. Of its other tensors the one named
    ``activation`` [..., I] belongs to the children; the rest belong to the parents. Shapes are
    checked: a tensor that is annotated as ``Annotated[Tensor, "J D"]`` has those axes. A softmax of
    agreements needs more than eight bits of mantissa, so no autocast is heeded; the result has
    the dtype of the votes. ``routing.core`` is the :class:`Core`, or None. A call whose options
    learn always takes the definition, so that autograd finds them.
    """
    signature = inspect.signature(definition)
    hints = get_type_hints(definition, include_extras=True)
    choices = {
        name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal
    }
    patterns = {"votes": "... I J D", "activation": "... I"}
    for name, hint in hints.items():
        if get_origin(hint) is Annotated:
            patterns[name] = hint.__metadata__[0]

    @functools.wraps(definition)
    def routing(
        votes: Tensor | LazyVotes, *tensors: Tensor, path: Path = "fast", **options: object
    ) -> RoutingResult:
        bound = signature.bind(votes, *tensors, **options)
        bound.apply_defaults()
        options = dict(bound.arguments)
        check_positive(iterations=options.get("iterations", 1))
        check_name("path", path, PATHS)
        for name, names in choices.items():
            check_name(name, options[name], names)
        shaped = {
            name: (options[name], pattern)
            for name, pattern in patterns.items()
            if name in options
        }
        check_shapes(**shaped)
        del options["votes"]
        weight, given = votes if isinstance(votes, LazyVotes) else (None, votes)
        if not given.is_floating_point():
            raise TypeError(f"votes are floating-point numbers, not {given.dtype}")
        wide = torch.promote_types(given.dtype, torch.float32)
        arguments = {
            name: value.to(wide) if isinstance(value, Tensor) else value
            for name, value in options.items()
        }
        weight, source = None if weight is None else weight.to(wide), given.to(wide)
        meta = (
            given.device.type == "meta"
        )  # where nothing is computed, there is nothing to cast
        with (
            torch.autocast("cpu" if meta else given.device.type, enabled=False),
            float32_products(given.device),
        ):
            # A compiler and torch.func read the loop itself, and an empty batch has nothing to cut.
            if path == "eager" or not values_can_be_read() or source.numel() == 0:
                result = definition(_formed(weight, source), **arguments)
            else:
                lead, source, arguments = _one_batch(weight, source, arguments)
                if routing.core is None or any(map(_learns, arguments.values())):
                    result = _in_chunks(definition, weight, source, arguments)
                else:
                    result = _by_core(routing.core, path, weight, source, arguments)
                result = (t.reshape(*lead, *t.shape[1:]) for t in result)
        return RoutingResult(*(t.to(given.dtype) for t in result))

    routing.core = None
    path = inspect.Parameter(
        "path", inspect.Parameter.KEYWORD_ONLY, default="fast", annotation=Path
    )
    routing.__signature__ = signature.replace(parameters=[*signature.parameters.values(), path])
    return routing


@contextlib.contextmanager
def float32_products(device: torch.device, precision: str = "highest") -> Iterator[None]:
    """Keep TF32 out of a routing: it has ten bits of mantissa. With "high", let it in."""
    if device.type != "cuda" or torch.compiler.is_compiling():
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _formed(weight: Tensor | None, source: Tensor) -> Tensor:
    return source if weight is None else LazyVotes(weight, source).form()


def _learns(option: object) -> bool:
    """Whether an option, not itself a tensor, may hold something that wants a gradient."""
    if isinstance(option, Mapping):
        option = tuple(option.values())
    if isinstance(option, (list, tuple)):
        return any((isinstance(o, Tensor) and o.requires_grad) or _learns(o) for o in option)
    owners = option, getattr(option, "__self__", None), getattr(option, "func", None)
    return any(isinstance(owner, nn.Module) for owner in owners)


def _one_batch(
    weight: Tensor | None, source: Tensor, arguments: dict[str, Any]
) -> tuple[torch.Size, Tensor, dict[str, Any]]:
    """The shape of the batch, and the source and the activations with one batch dimension."""
    lead = source.shape[:-3] if weight is None else source.shape[:1]
    source = source.reshape(-1, *source.shape[len(lead) :])
    if "activation" in arguments:
        activation = arguments["activation"].reshape(-1, source.shape[1])
        arguments = {**arguments, "activation": activation}
    return lead, source, arguments


def _in_chunks(
    definition: Callable[..., Tensors],
    weight: Tensor | None,
    source: Tensor,
    arguments: dict[str, Any],
) -> Tensors:
    """The definition, a chunk at a time; of many votes autograd runs it again instead of keeping its tensors."""

    def run(rows: Tensor, own: dict[str, Tensor]) -> Tensors:
        with float32_products(source.device):
            return tuple(definition(_formed(weight, rows), **arguments | own))

    numbers = _numbers(weight, source)
    many = len(source) * numbers * source.element_size() > KEPT_BYTES.get(source.device.type, 0)
    capturing = source.is_cuda and torch.cuda.is_current_stream_capturing()
    if (
        many and torch.is_grad_enabled() and not capturing
    ):  # a CUDA graph cannot read random states
        run = functools.partial(checkpoint, run, use_reentrant=False)
    chunks = _chunks(numbers, source, _together(arguments))
    sizes = [
        chunk.stop - chunk.start for chunk, _ in chunks
    ]  # the gradient of a slice would be as large as the whole
    children = {k: v.split(sizes) for k, v in arguments.items() if k == "activation"}
    return _joined(
        [
            run(rows, {k: v[n] for k, v in children.items()})
            for n, rows in enumerate(source.split(sizes))
        ]
    )


def _by_core(
    core: Core, path: Path, weight: Tensor | None, source: Tensor, arguments: dict[str, Any]
) -> Tensors:
    compiled = path == "compiled"
    if compiled and source.device.type == "cpu":  # a compiler would take numbers for constants
        lists = {k: v for k, v in arguments.items() if isinstance(v, (list, tuple))}
        numbers = {
            k: v for k, v in lists.items() if all(isinstance(n, (int, float)) for n in v)
        }
        arguments = arguments | {k: source.new_tensor(v) for k, v in numbers.items()}
    tensors = {k: v for k, v in arguments.items() if isinstance(v, Tensor)}
    options = {k: v for k, v in arguments.items() if k not in tensors}
    plan = _Plan(core, compiled, options, tuple(tensors), torch.is_grad_enabled())
    if weight is None:
        outputs = _Chunked.apply(plan, None, None, source, *tensors.values())
    elif source.ndim == 4:  # matrix capsules: the chunks form their votes
        weight = rearrange(weight, "i j k b -> j k b i").contiguous()
        source = rearrange(source, "n i a k -> n a k i").contiguous()
        outputs = _Chunked.apply(plan, None, weight, source, *tensors.values())
    else:  # a matrix product forms the votes of a block
        done, together = [], _together(options)
        example = _numbers(weight, source) * source.element_size() * together
        fit = BLOCK_BYTES.get(source.device.type, 1 << 62) // example
        for part in _slices(len(source), max(1, fit) * together):
            lazy = LazyVotes(weight, source[part])
            again = LazyVotes(*(t.detach() for t in lazy))
            done.append(
                _Chunked.apply(
                    plan, again, None, lazy.form(), *_of_chunk(tensors, part).values()
                )
            )
        outputs = _joined(done)
    return core.finish(*outputs[:-1], outputs[-1].mT, **arguments)


def _together(arguments: Mapping[str, Any]) -> int:
    """How many neighbouring rows compete with each other and stay in one chunk."""
    competition = arguments.get("competition")
    return 1 if competition is None else competition.positions


def _of_chunk(arguments: Mapping[str, Any], chunk: slice) -> dict[str, Any]:
    return {k: v[chunk] if k == "activation" else v for k, v in arguments.items()}


def _numbers(weight: Tensor | None, source: Tensor) -> int:
    """How many numbers the votes of one example have."""
    rows = source.shape[2] if source.ndim == 4 and weight is not None else 1
    return source[0].numel() if weight is None else weight[..., 0].numel() * rows


def _joined(done: list[Tensors]) -> Tensors:
    return tuple(torch.cat(p) if len(p) > 1 else p[0] for p in zip(*done, strict=True))


def _slices(total: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, total)) for start in range(0, total, size)]


def _chunks(numbers: int, rows: Tensor, together: int) -> list[tuple[slice, bool]]:
    """The chunks of ``rows`` whose votes have ``numbers`` each, and whether they are full.

    Their size is a power of two, so usual batches are whole numbers of chunks.
    """
    example = max(1, together * numbers * rows.element_size())
    fit = CHUNK_BYTES.get(rows.device.type, 1 << 62) // example
    size = min(together << max(0, fit.bit_length() - 1), len(rows))
    return [(chunk, chunk.stop - chunk.start == size) for chunk in _slices(len(rows), size)]


def _votes(weight: Tensor | None, rows: Tensor) -> Tensor:
    """Votes [n, J, D, I] of a chunk: given as ``rows`` [n, I, J, D], or of matrix capsules.

    Those have a ``weight`` [J, k, B, I], and poses [n, A, k, I] for rows.
    """
    if weight is None:
        return rearrange(rows, "n i j d -> n j d i").contiguous()
    terms = (rows[:, None, :, k, None] * weight[:, k, None] for k in range(rows.shape[2]))
    return functools.reduce(torch.add, terms).flatten(2, 3)  # of [n, J, A, B, I]


def _run_forward(
    forward: Callable, weight: Tensor | None, rows: Tensor, **arguments: Any
) -> Any:
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
    """Write the gradient of the rows, add that of the weight, and return those of the others."""
    gradient, others = backward(_votes(weight, rows), *saved, **arguments)
    if weight is None:
        to_rows.copy_(rearrange(gradient, "n j d i -> n i j d"))
        return others
    gradient = gradient.unflatten(2, (rows.shape[1], weight.shape[2]))  # [n, J, A, B, I]
    for k in range(rows.shape[2]):
        if to_rows is not None:
            to_rows[:, :, k] = (gradient * weight[:, k, None]).sum(dim=(1, 3))
        if to_weight is not None:
            to_weight[:, k] += (gradient * rows[:, None, :, k, None]).sum(dim=(0, 2))
    return others


class _Plan(NamedTuple):
    """What a batch is run with, beside its tensors."""

    core: Core
    compiled: bool
    options: Mapping[str, Any]
    names: tuple[str, ...]  # of the tensors
    differentiable: bool  # whether somebody may ask for a gradient: an autograd function cannot tell from inside

    def runs(
        self, direction: str, weight: Tensor | None, rows: Tensor, *to: Tensor | None
    ) -> Iterator[tuple[slice, Callable]]:
        """The chunks, and what runs each "forward" or "backward", ``to`` the gradients of weight and rows."""
        run = {"forward": _run_forward, "backward": _run_backward}[direction]
        numbers = rows[0].numel() if weight is None else weight[:, 0].numel() * rows.shape[1]
        for chunk, full in _chunks(numbers, rows, _together(self.options)):
            some, this = rows[chunk], run
            if self.compiled and full:
                options = ((name, _constant(option)) for name, option in self.options.items())
                layout = (
                    weight is None or weight.shape,
                    some.shape,
                    some.stride(),
                    some.dtype,
                    some.device,
                )
                this = _compiled_for(run, self.core, self.names, *options, *layout)
            shared = to and (to[0], None if to[1] is None else to[1][chunk])
            yield (
                chunk,
                functools.partial(this, getattr(self.core, direction), weight, some, *shared),
            )

    def arguments(self, tensors: Tensors, chunk: slice) -> dict[str, Any]:
        return _of_chunk({**dict(zip(self.names, tensors, strict=True)), **self.options}, chunk)


def _constant(option: Any) -> Hashable:
    """Return what tells an option from others for the compiler, which knows a tensor by its shape."""
    if isinstance(option, Competition):
        return tuple(part.shape if isinstance(part, Tensor) else part for part in option)
    return option if isinstance(option, Hashable) else repr(option)


@functools.lru_cache(maxsize=256)
def _compiled_for(run: Callable, *constants: object) -> Callable:
    """A compiled copy of ``run`` for one shape, its strides, and all options of one routing.

    The compiler specialises a function for each of them, and gives up on a code object after eight.
    """
    code = run.__code__.replace()
    return torch.compile(types.FunctionType(code, run.__globals__, run.__name__), dynamic=False)


class _Chunked(torch.autograd.Function):
    """Runs a core over ``rows`` in chunks, and once more for the gradient, for which ``lazy`` forms votes again."""

    @staticmethod
    def forward(
        ctx: Any,
        plan: _Plan,
        lazy: LazyVotes | None,
        weight: Tensor | None,
        rows: Tensor,
        *tensors: Tensor,
    ) -> Tensors:
        done: list[Tensors] = []
        for chunk, run in plan.runs("forward", weight, rows):
            outputs, kept = run(**plan.arguments(tensors, chunk))
            done.append((*outputs, *kept) if plan.differentiable else outputs)
        joined = _joined(done)
        source = (weight, rows) if lazy is None else lazy
        ctx.plan, ctx.formed, ctx.counts = (
            plan,
            lazy is not None,
            (2, len(tensors), len(outputs)),
        )
        ctx.save_for_backward(*source, *tensors, *joined)
        return joined[: len(outputs)]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if (
            torch.is_grad_enabled()
        ):  # once_differentiable would drop a second derivative silently
            raise RuntimeError(
                "The fast path has a first derivative only: for the gradient of a gradient take path='eager'."
            )
        with float32_products(gradients[0].device):
            return None, None, *_gradients(ctx, gradients)


def _gradients(ctx: Any, gradients: Tensors) -> tuple[Tensor | None, ...]:
    plan, saved = ctx.plan, iter(ctx.saved_tensors)
    (weight, rows), tensors, outputs = (tuple(itertools.islice(saved, n)) for n in ctx.counts)
    kept = tuple(saved)
    if ctx.formed:
        weight, rows = None, LazyVotes(weight, rows).form()
    of_weight, of_rows, *of_tensors = ctx.needs_input_grad[2:]
    needed = zip(plan.names, tensors, of_tensors, strict=True)
    to_tensors = {
        name: torch.zeros_like(t, memory_format=torch.contiguous_format)
        for name, t, of in needed
        if of
    }
    to_weight = torch.zeros_like(weight) if of_weight else None
    to_rows = _on_large_pages(rows.new_empty(rows.shape)) if of_rows or weight is None else None
    for chunk, run in plan.runs("backward", weight, rows, to_weight, to_rows):
        of_chunk = (tuple(t[chunk] for t in some) for some in (outputs, kept, gradients))
        found = run(*of_chunk, **plan.arguments(tensors, chunk))
        for name in to_tensors.keys() & found.keys():
            to_tensors[name][chunk if name == "activation" else ...] += found[name]
    return to_weight, to_rows if of_rows else None, *map(to_tensors.get, plan.names)


def _on_large_pages(fresh: Tensor) -> Tensor:
    """Ask Linux to back fresh memory with pages of 2 MiB: faults of small ones took a quarter of a gradient's time."""
    page, advice = 2 << 20, 14  # MADV_HUGEPAGE, which the system may refuse
    if sys.platform == "linux" and fresh.device.type == "cpu" and fresh.nbytes >= 4 * page:
        start = -(-fresh.data_ptr() // page) * page
        length = (fresh.data_ptr() + fresh.nbytes - start) // page * page
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), advice)
    return fresh
