"""The fast path, made once for all routings: chunks that stay in the cache, and a backward pass that keeps almost nothing.

Votes [N, I, J, D] are what a routing costs: every iteration reads them, and autograd keeps a copy for each. Here they are
formed a few examples at a time, laid out as [n, J, D, I] so that neighbours in memory are children, and formed once more for
the gradient. What stays in between has no D: couplings, and the few numbers of each parent.

A routing may bring a :class:`Core`, its loop and the gradient of its loop for one chunk; without one, autograd goes through its
definition, chunk by chunk. Either agrees with the definition in values and gradients (``tests/routing/test_fast.py``).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import itertools
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from einops import einsum, rearrange
from torch import Tensor, nn

from capslib.routing.base import Path, Routing, RoutingResult

CHUNK_BYTES = {"cpu": 2 << 20, "cuda": 64 << 20}
"""Votes of one chunk: a chunk and what is made of it have to fit into the second-level caches of the CPU or of the GPU."""
BLOCK_BYTES = {"cpu": 32 << 20, "cuda": 1 << 30}
"""Votes that are formed at once: few enough to be no burden, enough for a matrix product that is worth its reading of W."""


class LazyVotes(NamedTuple):
    """Votes of a dense layer that are formed where they are used, from the poses of the children and one W_ij for each pair.

    Vector capsules, û_{j|i} = W_ij u_i: ``weight`` [I, J, D, d], ``pose`` [N, I, d]. Matrix capsules, V_ij = M_i W_ij:
    ``weight`` [I, J, 4, 4], ``pose`` [N, I, 4, 4], and D = 16, row by row.
    """

    weight: Tensor
    pose: Tensor

    @property
    def _equation(self) -> tuple[str, str, str]:
        matrix = self.pose.ndim == 4
        return ("i j k b", "n i a k", "n i j a b") if matrix else ("i j e d", "n i d", "n i j e")

    def form(self) -> Tensor:
        """All of them, [N, I, J, D]."""
        weight, pose, votes = self._equation
        return einsum(self.weight, self.pose, f"{weight}, {pose} -> {votes}").flatten(3)

    def empty(self) -> Tensor:
        """A tensor [N, I, J, D] to hold their gradient."""
        I, J, *dims = self.weight.shape
        D = dims[0] if self.pose.ndim == 3 else self.pose.shape[2] * dims[1]
        return self.pose.new_empty(len(self.pose), I, J, D)

    def to_weight(self, gradient: Tensor) -> Tensor:
        """The gradient of the weight from that of the votes."""
        weight, pose, votes = self._equation
        return einsum(self._unflattened(gradient), self.pose, f"{votes}, {pose} -> {weight}")

    def to_pose(self, gradient: Tensor) -> Tensor:
        """The gradient of the poses from that of the votes."""
        weight, pose, votes = self._equation
        return einsum(self._unflattened(gradient), self.weight, f"{votes}, {weight} -> {pose}")

    def _unflattened(self, votes: Tensor) -> Tensor:
        return votes if self.pose.ndim == 3 else votes.unflatten(3, (self.pose.shape[2], self.weight.shape[3]))


class Core(NamedTuple):
    """A routing for one chunk, as three functions of tensors. ``arguments`` are those of the definition, by name.

    ``forward(votes, **arguments)`` takes votes [n, J, D, I] and gives ``(outputs, kept)``, tuples of tensors [n, …];
    ``backward(votes, outputs, kept, gradients, **arguments)`` takes them back with the gradients of the outputs
    and gives those of the votes and, by name, of the other tensors. Neither is seen by autograd. ``finish(*outputs, **arguments)`` makes the
    :class:`RoutingResult` of the outputs of all chunks, and is. ``covers(**arguments)`` says of kernels whether they can do
    with these; where not, the core that they stand for does.
    """

    forward: Callable[..., tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]
    backward: Callable[..., tuple[Tensor, dict[str, Tensor]]]
    finish: Callable[..., RoutingResult]
    covers: Callable[..., bool] = lambda **_: True


def routing_function(definition: Callable[..., RoutingResult]) -> Callable[..., RoutingResult]:
    """Make a routing of its definition: in at least float32, and on the path that the keyword ``path`` names.

    The definition takes votes [..., I, J, D]; of its other tensors the one named ``activation`` [..., I] belongs to the
    children, the rest to the parents. Couplings come out of a softmax of accumulated agreements, for which eight bits of
    mantissa are not enough: whatever the input's dtype and under whichever autocast, the loop runs in at least float32, and the
    result has the input's dtype. ``routing.core`` is the :class:`Core` of the fast path.
    """
    signature = inspect.signature(definition)

    @functools.wraps(definition)
    def routing(votes: Tensor | LazyVotes, *tensors: Tensor, path: Path = "fast", **options: object) -> RoutingResult:
        arguments = signature.bind(votes, *tensors, **options)
        arguments.apply_defaults()
        arguments = arguments.arguments
        given = votes.pose if isinstance(votes, LazyVotes) else votes
        wide = torch.promote_types(given.dtype, torch.float32)
        arguments = {k: v.to(wide) if isinstance(v, Tensor) else v for k, v in arguments.items() if v is not votes}
        votes = LazyVotes(*(t.to(wide) for t in votes)) if isinstance(votes, LazyVotes) else votes.to(wide)
        with torch.autocast(given.device.type, enabled=False), _float32_products(given.device):
            if path == "eager" or torch.compiler.is_compiling():  # a compiler that sees the caller sees the loop itself
                result = definition(votes.form() if isinstance(votes, LazyVotes) else votes, **arguments)
            else:
                kernels = _kernels(routing.core, given.device, wide, arguments) if path == "triton" else None
                plan = _Plan(routing.core, kernels, path == "compiled", isinstance(votes, LazyVotes))
                result = _in_chunks(plan, votes, arguments)
        return RoutingResult(*(t.to(given.dtype) for t in result))

    routing.core = _core_by_autograd(definition)
    path = inspect.Parameter("path", inspect.Parameter.KEYWORD_ONLY, default="fast", annotation=Path)
    routing.__signature__ = signature.replace(parameters=[*signature.parameters.values(), path])
    return routing


def materialised(few: Tensor) -> Tensor:
    """The same tensor, which a compiler has to write down.

    It would rather compute anew, at every use, what has ``few`` numbers, and a core uses those of a parent, and couplings, once for
    each number of a vote. Through a view by strides it cannot look.
    """
    return few.as_strided(few.shape, few.stride())


@contextlib.contextmanager
def _float32_products(device: torch.device) -> Iterator[None]:
    """No TF32 in a routing, whatever the rest of the network runs in: it has ten bits of mantissa."""
    if device.type != "cuda" or torch.compiler.is_compiling():
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _core_by_autograd(definition: Callable[..., RoutingResult]) -> Core:
    """The core of a routing that brings none: its definition, run once more where its gradient is asked for."""

    def forward(votes: Tensor, **arguments: Any) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        return tuple(definition(rearrange(votes, "n j d i -> n i j d"), **arguments)), ()

    def backward(
        votes: Tensor, outputs: object, kept: object, gradients: tuple[Tensor, ...], **arguments: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        votes = votes.detach().requires_grad_()
        leaves = {k: v.detach().requires_grad_() for k, v in arguments.items() if isinstance(v, Tensor)}
        with torch.enable_grad():
            outputs, _ = forward(votes, **{**arguments, **leaves})
        outputs, gradients = zip(*((o, g) for o, g in zip(outputs, gradients, strict=True) if o.requires_grad), strict=True)
        found = torch.autograd.grad(outputs, [votes, *leaves.values()], gradients, materialize_grads=True)
        return found[0], dict(zip(leaves, found[1:], strict=True))

    return Core(forward, backward, lambda *outputs, **arguments: RoutingResult(*outputs))


def _in_chunks(plan: _Plan, votes: Tensor | LazyVotes, arguments: dict[str, Any]) -> RoutingResult:
    if isinstance(votes, LazyVotes):
        lead, (weight, source) = votes.pose.shape[:1], votes
    else:
        lead, weight, source = votes.shape[:-3], None, votes.reshape(-1, *votes.shape[-3:])
    if "activation" in arguments:
        arguments["activation"] = arguments["activation"].expand(*lead, source.shape[1]).reshape(-1, source.shape[1])
    if plan.compiled and source.device.type == "cpu":  # a compiler takes numbers for constants, and compiles anew for others
        arguments = {k: source.new_tensor(v) if _is_numbers(v) else v for k, v in arguments.items()}
    tensors = {k: v for k, v in arguments.items() if isinstance(v, Tensor)}
    options = {k: v for k, v in arguments.items() if k not in tensors}
    plan = plan._replace(options=options, names=tuple(tensors), differentiable=torch.is_grad_enabled())
    outputs = _Chunked.apply(plan, weight, source, *tensors.values())
    result = plan.core.finish(*outputs, **arguments)
    return RoutingResult(*(t.reshape(*lead, *t.shape[1:]) for t in result))


def _hashable(option: object) -> object:
    """The option, or, of one that cannot be looked up, what it looks like: the compiler checks for itself whether they are alike."""
    try:
        hash(option)
    except TypeError:
        return repr(option)
    return option


def _is_numbers(option: object) -> bool:
    return isinstance(option, (list, tuple)) and all(isinstance(number, (int, float)) for number in option)


class _Plan(NamedTuple):
    """What the examples are run with, apart from tensors: ``kernels``, if there are any, do the work of the core.

    ``differentiable`` is whether a gradient may be asked for; inside an autograd function nobody can tell.
    """

    core: Core
    kernels: Core | None
    compiled: bool
    lazy: bool
    options: Mapping[str, Any] = types.MappingProxyType({})
    names: tuple[str, ...] = ()
    differentiable: bool = True

    @property
    def together(self) -> int:
        """How many neighbouring rows compete with each other and cannot be taken apart."""
        return 1 if self.options.get("competition") is None else self.options["competition"].positions

    @property
    def constants(self) -> tuple[object, ...]:
        """What a compiler takes for constants, as something to look up."""
        return self.core, self.names, *((name, _hashable(option)) for name, option in self.options.items())

    def forms_in_chunks(self, source: Tensor) -> bool:
        """Whether these are poses of matrix capsules, [N, I, a, k], and no kernels take their votes."""
        return source.ndim == 4 and self.lazy and self.kernels is None

    def arguments(self, tensors: tuple[Tensor, ...], chunk: slice) -> dict[str, Any]:
        of_chunk = {n: t[chunk] if n == "activation" else t for n, t in zip(self.names, tensors, strict=True)}
        return {**of_chunk, **self.options}

    def runs(
        self, direction: str, weight: Tensor | None, source: Tensor, block: slice, *to_votes: Tensor
    ) -> Iterator[tuple[slice, Callable]]:
        """The chunks of a block, and for each what runs it "forward" or "backward", there with what is to hold the gradient."""
        if self.kernels is not None:  # they form the votes of vector capsules themselves
            vectors = weight is None or source.ndim == 3
            votes = (weight, source[block]) if vectors else (None, LazyVotes(weight, source[block]).form())
            yield block, functools.partial(getattr(self.kernels, direction), *votes, *to_votes)
            return
        votes, run = source[block] if weight is None else LazyVotes(weight, source[block]).form(), _RUN[direction]
        for chunk, whole in _chunks(votes[0].numel(), votes, self.together):
            of_chunk, this = [t[chunk] for t in (votes, *to_votes)], run
            if self.compiled and whole:
                this = _compiled_for(run, *self.constants, of_chunk[0].shape, votes.stride(), votes.dtype, votes.device)
            yield _shift(chunk, block), functools.partial(this, getattr(self.core, direction), *of_chunk)

    def runs_of_matrices(
        self, direction: str, weight: Tensor, pose: Tensor, *gradients: Tensor | None
    ) -> Iterator[tuple[slice, Callable]]:
        """The same where each chunk forms the votes of matrix capsules itself; weights [J, k, B, I], poses [n, A, k, I].

        A vote is then four products a number, and as much in memory as W: making it in the cache costs less than reading it.
        ``gradients`` are those of weight and pose, which a chunk adds to, or None.
        """
        J, _, B, I = weight.shape
        for chunk, whole in _chunks(J * B * I * pose.shape[1], pose, self.together):
            part, run = pose[chunk], _RUN_MATRICES[direction]
            if self.compiled and whole:
                run = _compiled_for(run, *self.constants, weight.shape, part.shape, pose.dtype, pose.device)
            to_part = [gradients[0], None if gradients[1] is None else gradients[1][chunk]] if gradients else []
            yield chunk, functools.partial(run, getattr(self.core, direction), weight, part, *to_part)


class _Chunked(torch.autograd.Function):
    """Runs a core over the examples, a chunk at a time, and once more over them for the gradient."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, weight: Tensor | None, source: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        done: list[tuple[Tensor, ...]] = []
        if plan.forms_in_chunks(source):
            runs = plan.runs_of_matrices("forward", *_children_last(weight, source))
        else:
            blocks = _blocks(weight, source, plan.together)
            runs = (one for block in blocks for one in plan.runs("forward", weight, source, block))
        for part, run in runs:
            outputs, kept = run(**plan.arguments(tensors, part))
            done.append((*outputs, *kept) if plan.differentiable else outputs)
        joined = tuple(torch.cat(parts) if len(parts) > 1 else parts[0] for parts in zip(*done, strict=True))
        ctx.plan, ctx.counts = plan, (2, len(tensors), len(outputs))
        ctx.save_for_backward(weight, source, *tensors, *joined)
        return joined[: len(outputs)]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        with _float32_products(gradients[0].device):
            return _Chunked._backward(ctx, *gradients)

    @staticmethod
    def _backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # once_differentiable would drop a second derivative without a word
            raise RuntimeError("The fast path has a first derivative only: for the gradient of a gradient take path='eager'.")
        plan = ctx.plan
        (weight, source), tensors, outputs, kept = _split(ctx.saved_tensors, ctx.counts)
        _, of_weight, of_source, *of_tensors = ctx.needs_input_grad
        to_tensors = {
            n: torch.zeros_like(t, memory_format=torch.contiguous_format)
            for n, t, needed in zip(plan.names, tensors, of_tensors, strict=True)
            if needed
        }

        def work_off(runs: Iterator[tuple[slice, Callable]]) -> None:
            for part, run in runs:
                of_part = [tuple(t[part] for t in some) for some in (outputs, kept, gradients)]
                found = run(*of_part, **plan.arguments(tensors, part))
                for name in to_tensors.keys() & found.keys():
                    to_tensors[name][part if name == "activation" else ...] += found[name]

        if plan.forms_in_chunks(source):
            matrices = _children_last(weight, source)
            to_weight, to_source = (
                torch.zeros_like(t) if needed else None for t, needed in zip(matrices, (of_weight, of_source), strict=True)
            )
            work_off(plan.runs_of_matrices("backward", *matrices, to_weight, to_source))
            to_weight = rearrange(to_weight, "j k b i -> i j k b") if of_weight else None
            to_source = rearrange(to_source, "n a k i -> n i a k") if of_source else None
            return None, to_weight, to_source, *map(to_tensors.get, plan.names)
        to_weight = torch.zeros_like(weight) if of_weight else None
        to_source = torch.empty_like(source, memory_format=torch.contiguous_format) if of_source or weight is None else None
        for block in _blocks(weight, source, plan.together):
            to_votes = _on_large_pages(to_source if weight is None else LazyVotes(weight, source[block]).empty())
            work_off(plan.runs("backward", weight, source, block, to_votes))
            if of_weight:
                to_weight += LazyVotes(weight, source[block]).to_weight(to_votes)
            if weight is not None and of_source:
                to_source[block] = LazyVotes(weight, source[block]).to_pose(to_votes)
        return None, to_weight, to_source if of_source else None, *map(to_tensors.get, plan.names)


def _on_large_pages(fresh: Tensor) -> Tensor:
    """Ask Linux to back memory that nobody has touched yet with pages of 2 MiB: faults of 4 KiB took a quarter of a gradient's time."""
    if sys.platform == "linux" and fresh.device.type == "cpu" and fresh.nbytes >= 8 << 20:
        page = 2 << 20
        start = -(-fresh.data_ptr() // page) * page
        length = (fresh.data_ptr() + fresh.nbytes - start) // page * page
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), 14)  # MADV_HUGEPAGE; it may refuse
    return fresh


def _run_forward(forward: Callable, votes: Tensor, **arguments: Any) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    return forward(rearrange(votes, "n i j d -> n j d i").contiguous(), **arguments)


def _run_backward(
    backward: Callable,
    votes: Tensor,
    to_votes: Tensor,
    outputs: tuple[Tensor, ...],
    kept: tuple[Tensor, ...],
    gradients: tuple[Tensor, ...],
    **arguments: Any,
) -> dict[str, Tensor]:
    gradient, others = backward(rearrange(votes, "n i j d -> n j d i").contiguous(), outputs, kept, gradients, **arguments)
    to_votes.copy_(rearrange(gradient, "n j d i -> n i j d"))
    return others


_RUN = {"forward": _run_forward, "backward": _run_backward}


def _children_last(weight: Tensor, pose: Tensor) -> tuple[Tensor, Tensor]:
    """Matrix capsules laid out for chunks: weights [J, k, B, I] and poses [N, A, k, I]."""
    return rearrange(weight, "i j k b -> j k b i").contiguous(), rearrange(pose, "n i a k -> n a k i").contiguous()


def _form(weight: Tensor, pose: Tensor) -> Tensor:
    """Votes [n, J, A·B, I] of these."""
    terms = (pose[:, None, :, k, None] * weight[:, k].unsqueeze(1) for k in range(pose.shape[2]))  # [n, J, A, B, I]
    return functools.reduce(torch.add, terms).flatten(2, 3)


def _run_forward_matrices(
    forward: Callable, weight: Tensor, pose: Tensor, **arguments: Any
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    return forward(_form(weight, pose), **arguments)


def _run_backward_matrices(
    backward: Callable,
    weight: Tensor,
    pose: Tensor,
    to_weight: Tensor | None,
    to_pose: Tensor | None,
    *saved: Any,
    **arguments: Any,
) -> dict[str, Tensor]:
    gradient, others = backward(_form(weight, pose), *saved, **arguments)
    gradient = gradient.unflatten(2, (pose.shape[1], weight.shape[2]))  # [n, J, A, B, I]
    for k in range(pose.shape[2]):
        if to_pose is not None:
            to_pose[:, :, k] = (gradient * weight[:, k].unsqueeze(1)).sum(dim=(1, 3))
        if to_weight is not None:
            to_weight[:, k] += (gradient * pose[:, None, :, k, None]).sum(dim=(0, 2))
    return others


_RUN_MATRICES = {"forward": _run_forward_matrices, "backward": _run_backward_matrices}


def _split(tensors: tuple[Tensor, ...], counts: tuple[int, ...]) -> list[tuple[Tensor, ...]]:
    ends = list(itertools.accumulate(counts))
    return [tensors[start:end] for start, end in zip([0, *ends], [*ends, None], strict=True)]


def _shift(chunk: slice, block: slice) -> slice:
    return slice(block.start + chunk.start, block.start + chunk.stop)


def _slices(total: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, total)) for start in range(0, total, size)]


def _blocks(weight: Tensor | None, source: Tensor, together: int) -> list[slice]:
    """Examples whose votes are formed at once; votes that are there already are one block."""
    if weight is None:
        return [slice(0, len(source))]
    example = weight[..., 0].numel() * weight.element_size() * (source.shape[2] if source.ndim == 4 else 1)
    return _slices(len(source), max(1, BLOCK_BYTES.get(source.device.type, 1 << 62) // (example * together)) * together)


def _chunks(numbers: int, rows: Tensor, together: int) -> list[tuple[slice, bool]]:
    """The chunks of a block of ``rows`` with so many ``numbers`` in the votes of each, and which of them have the full size.

    It is a power of two, so that the batch sizes in use are whole numbers of chunks and one compiled function serves them all.
    """
    fit = CHUNK_BYTES.get(rows.device.type, 1 << 62) // max(1, together * numbers * rows.element_size())
    size = min(together << max(0, fit.bit_length() - 1), len(rows))
    return [(chunk, chunk.stop - chunk.start == size) for chunk in _slices(len(rows), size)]


# ------------------------------------------------------------------------------------------------- Triton and torch.compile


def use_path(network: nn.Module, path: Path) -> Path:
    """Let every routing in ``network`` compute on this path, or on what is left where this machine cannot, and say which it is.

    On a GPU "compiled" is "triton", the core's own kernels, if they pass a test there. Where they do not, or the network is in
    float64, it is "compiled", and "fast" where the compiler does not work.
    """
    parameter = next(network.parameters(), torch.empty(0))
    if path == "triton" or (path == "compiled" and parameter.is_cuda):
        path = "triton" if parameter.dtype != torch.float64 and _kernels_work(parameter.device) else "compiled"
    if path == "compiled" and not _compiler_works(parameter.device):
        path = "fast"
    for module in network.modules():
        if isinstance(module, Routing):
            module.path = path
    return path


def _kernels(core: Core, device: torch.device, dtype: torch.dtype, arguments: dict[str, Any]) -> Core | None:
    """The kernels of a core, if it has some for these arguments; a routing on the path "triton" without them is a fast one."""
    try:
        from capslib.routing import kernels  # here and not above, for it needs Triton
    except ImportError:
        return None
    found = kernels.CORES.get(core) if dtype == torch.float32 and kernels.run_on(device) else None
    return found if found and found.covers(**arguments) else None


@functools.cache
def _kernels_work(device: torch.device) -> bool:
    """Whether the Triton kernels run here and compute what they should. Tried once, on a few random numbers."""
    try:
        from capslib.routing import kernels

        return kernels.agree(device)
    except Exception:  # whatever is missing: Triton, its compiler, a GPU that it knows
        return False


@functools.cache
def _compiler_works(device: torch.device) -> bool:
    """Whether ``torch.compile`` can do its work here: it needs a C++ compiler, and Triton on a GPU. Tried once, on one addition."""
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1  # no helper processes: they would outlive a worker that is killed
    try:
        return not torch._dynamo.config.disable and bool(torch.compile(lambda x: x + 1)(torch.zeros(1, device=device)) == 1)
    except Exception:  # whatever is missing: the compiler, its headers, a writable cache
        return False


@functools.lru_cache(maxsize=256)
def _compiled_for(run: Callable, *constants: object) -> Callable:
    """A compiled copy of ``run`` for one shape, its strides, and all options of one routing.

    The compiler makes a function anew for each of them, and gives up on a code object that it has made eight times: in a process
    that trains one network after another it would soon be without.
    """
    return torch.compile(types.FunctionType(run.__code__.replace(), run.__globals__, run.__name__), dynamic=False)
