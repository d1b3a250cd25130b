"""What the fast path keeps, compiles and refuses; conformance.py compares its numbers."""

from __future__ import annotations

import functools
import weakref

import pytest
import torch
from conformance import (
    CHILDREN,
    DIM,
    PARENTS,
    N,
    assert_close,
    build,
    draw_kind,
    needs_compiler,
    outcome,
    outcome_on,
    weighted,
)
from torch import Tensor

from capslib.layers import DenseCapsules
from capslib.routing import (
    ROUTINGS,
    LazyVotes,
    RoutingResult,
    em_routing,
    fast,
    make_routing,
    module,
    routing_function,
    use_path,
)

CORES = [name for name in ROUTINGS if ROUTINGS[name].function.core is not None]
EXAMPLE = CHILDREN * PARENTS * DIM * 8
"""The bytes of an example's votes."""


@pytest.fixture
def traced(monkeypatch):
    """Let "compiled" trace but not compile, from an empty cache, and never twice the same."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    monkeypatch.setattr(module, "_compiler_works", lambda device: True)
    fast._compiled_for.cache_clear()
    with torch._dynamo.config.patch(error_on_recompile=True):
        yield
    fast._compiled_for.cache_clear()


@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.usefixtures("every_core_is_fast")
def test_what_is_kept_for_the_gradient_is_small(name, monkeypatch):
    """Beside the votes, less than half of them and a third of what autograd keeps."""
    monkeypatch.setitem(fast.KEPT_BYTES, "cpu", 0)
    votes = torch.randn(4, 64, PARENTS, 16, requires_grad=True)
    routing = build(name, 0.1, dim=16, dtype=torch.float32)

    def kept_bytes(path: str) -> int:
        storages: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
            return tensor

        use_path(routing, path)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            result = routing(votes, torch.rand(4, 64))
        result.pose.sum().backward()
        storages.pop(votes.untyped_storage().data_ptr(), None)
        return sum(storages.values())

    assert kept_bytes("fast") < min(kept_bytes("eager") / 3, votes.nbytes / 2)


@pytest.mark.parametrize("path", ["fast", "compiled"])
def test_the_fast_path_leaves_a_core_to_the_compiler_that_needs_it(traced, monkeypatch, path):
    """Without one, the definition is as fast, and gives a short training the same bits."""
    routing, tensors = build("similarity", None), draw_kind("random")
    core = type(routing).function.core
    calls: list[str] = []

    def forward(*votes: Tensor, **arguments: object):
        calls.append("core")
        return core.forward(*votes, **arguments)

    monkeypatch.setattr(type(routing).function, "core", core._replace(forward=forward))
    use_path(routing, path)
    with torch.no_grad():
        routing(*tensors)
    assert bool(calls) == (path == "compiled")


def test_nothing_is_kept_where_no_gradient_can_be_asked_for(monkeypatch):
    """It would be four times the couplings, which are all that comes out."""
    alive: list[int] = []
    residuals: list[weakref.ref] = []
    core = em_routing.core

    def forward(*votes: Tensor, **arguments: object):
        alive.append(sum(reference() is not None for reference in residuals))
        result = core.forward(*votes, **arguments)
        residuals.extend(weakref.ref(t) for t in result[1] if t is not None)
        return result

    monkeypatch.setattr(em_routing, "core", core._replace(forward=forward))
    monkeypatch.setitem(fast.CHUNK_BYTES, "cpu", 1)
    routing, tensors = build("em", None), draw_kind("random")
    with torch.no_grad():
        routing(*tensors)
    per_chunk = len(residuals) // N
    assert max(alive) <= per_chunk  # the chunk before may still be at hand
    routing(*tensors)
    assert alive[-1] >= (N - 1) * per_chunk  # with a gradient to come, all of it has to stay


@pytest.mark.parametrize(("kept_bytes", "times"), [(1 << 20, 1), (0, 2)])
def test_a_routing_without_a_core_keeps_few_votes_and_computes_many_again(
    monkeypatch, kept_bytes, times
):
    monkeypatch.setitem(fast.KEPT_BYTES, "cpu", kept_bytes)
    examples = []

    @routing_function
    def mean_routing(votes, gain):
        examples.append(len(votes))
        pose = (gain[:, None] * votes).sum(dim=-3)
        return RoutingResult(pose, pose.norm(dim=-1), votes[..., 0])

    gain = torch.rand(PARENTS, requires_grad=True)
    mean_routing(torch.randn(N, CHILDREN, PARENTS, DIM), gain).pose.sum().backward()
    assert sum(examples) == times * N


def test_the_gradient_of_a_gradient_is_refused_not_wrong():
    votes, routing = torch.randn(2, 4, 3, 2, requires_grad=True), make_routing("dynamic", 3, 2)
    with pytest.raises(RuntimeError, match="path='eager'"):
        torch.autograd.grad(routing(votes).pose.sum(), votes, create_graph=True)
    use_path(routing, "eager")
    assert torch.autograd.gradgradcheck(lambda votes: routing(votes).pose, votes.double())


@needs_compiler
@pytest.mark.parametrize("name", ["dynamic", "em", "similarity"])
def test_compiled_is_the_definition(name, monkeypatch):
    """Of seven examples four make a whole chunk, which is compiled, and three are left."""
    monkeypatch.setitem(fast.CHUNK_BYTES, "cpu", 4 * EXAMPLE)
    routing, tensors = build(name, 0.1, iterations=2), draw_kind("random", "vectors")
    expected = outcome_on("eager", routing, *tensors)
    assert use_path(routing, "compiled") == "compiled"
    assert_close(outcome(routing, *tensors), expected, 1e-9)


def test_what_is_compiled_is_compiled_once(traced, monkeypatch):
    """The compiler gives up on a function that has met eight lengths, strides or constants.

    Networks that differ in λ share what is compiled: every seed sets its own.
    """
    monkeypatch.setitem(fast.CHUNK_BYTES, "cpu", 4 * EXAMPLE)
    votes, activation = draw_kind("random")
    votes.requires_grad_()
    betas = torch.zeros(2, PARENTS, dtype=torch.float64)
    for lamda in ([0.1], (0.2,), [0.1, 0.3], (0.2, 0.3)):
        options = {"iterations": len(lamda), "inverse_temperature": lamda}
        for length in (4, 6, 2):
            tensors = votes[:length], activation[:length], *betas
            result = em_routing(*tensors, **options, path="compiled")
            assert_close(result, em_routing(*tensors, **options, path="eager"), 1e-9)
            result.pose.sum().backward()
    # There and back, for chunks of four and two, and one and two iterations.
    assert fast._compiled_for.cache_info().currsize == 8


def test_options_that_cannot_be_looked_up_compile_too(traced):
    """What they look like finds the function; the compiler still sees whether they differ."""
    torch._dynamo.config.error_on_recompile = False

    class Silent(dict):
        def __repr__(self):
            return "…"

    def forward(votes, *, scale: dict):
        return (scale["factor"] * votes.mean(dim=-1), torch.ones_like(votes[:, :, 0])), ()

    def finish(pose, coupling, **_):
        return RoutingResult(pose, pose[..., 0], coupling)

    @routing_function
    def scaled_mean(votes, *, scale: dict):
        return finish(scale["factor"] * votes.mean(dim=-3), torch.ones_like(votes[..., 0]))

    scaled_mean.core = fast.Core(forward, None, finish)
    votes, _ = draw_kind("random")
    for scale in ({"factor": 2.0}, Silent(factor=3.0), Silent(factor=4.0)):
        expected = scaled_mean(votes, scale=scale, path="eager")
        assert_close(scaled_mean(votes, scale=scale, path="compiled"), expected, 1e-9)


def test_without_a_compiler_the_fast_path_runs_and_says_so(monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", broken)
    module._compiler_works.cache_clear()
    layer = DenseCapsules(4, 3, 2, 2, routing="dynamic")
    try:
        assert use_path(layer, "compiled") == layer.routing.path == "fast"
    finally:
        module._compiler_works.cache_clear()
    assert layer(torch.randn(2, 4, 2), torch.rand(2, 4)).pose.isfinite().all()


@pytest.mark.parametrize(("device", "inside"), [("cuda", "highest"), ("cpu", "high")])
def test_on_a_gpu_a_routing_takes_no_part_in_tf32(device, inside):
    previous = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with fast.float32_products(torch.device(device)):
            assert torch.get_float32_matmul_precision() == inside
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(previous)


@pytest.mark.parametrize("name", CORES)
@pytest.mark.usefixtures("every_core_is_fast")
def test_a_gradient_asked_for_alone_is_that_of_all_gradients(name):
    """An attack, say, wants that of the poses only."""
    routing = build(name, 0.1)
    weight, pose, activation = draw_kind("random", "matrices")
    leaves = [weight, pose, *routing.parameters()]

    def gradients(*sources: Tensor) -> tuple[Tensor, ...]:
        for leaf in leaves:
            leaf.requires_grad_(any(leaf is source for source in sources))
        loss = weighted(routing(LazyVotes(weight, pose), activation))
        return torch.autograd.grad(loss, sources)

    for leaf, gradient in zip(leaves, gradients(*leaves), strict=True):
        [single] = gradients(leaf)
        assert torch.equal(single, gradient)
