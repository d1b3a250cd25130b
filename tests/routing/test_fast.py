"""The fast path is the definition: in values, in gradients, however the examples are cut into chunks; and it keeps less."""

from __future__ import annotations

import functools
import re
import shutil
import weakref
from pathlib import Path

import pytest
import torch
from conformance import assert_close, weighted
from hypothesis import given as for_all
from hypothesis import strategies as st

from capslib.layers import DenseCapsules
from capslib.routing import (
    ROUTINGS,
    LazyVotes,
    Routing,
    RoutingResult,
    em_routing,
    fast,
    make_routing,
    module,
    routing_function,
    use_path,
)

N, CHILDREN, PARENTS, DIM = 7, 8, 3, 4
each_routing = pytest.mark.parametrize("name", ROUTINGS)
with_and_without_bias = pytest.mark.parametrize("bias", [None, 0.1], ids=["no bias", "bias"])


def gradients_and_values(routing: Routing, path: str, votes, activation) -> list[torch.Tensor]:
    """The result, and the gradients of everything that has one; every element of the result has a weight of its own."""
    leaves = [t.detach().clone().requires_grad_() for t in (*votes, activation)]
    routing.zero_grad()
    use_path(routing, path)
    *votes, activation = leaves
    result = routing(LazyVotes(*votes) if len(votes) == 2 else votes[0], activation)
    weighted(result).backward()
    return [*result, *(t.grad for t in (*leaves, *routing.parameters()) if t.grad is not None)]


def draw(
    kind: str, given: str, dtype=torch.float64, seed: int = 0
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    scale = {"tiny": 1e-6, "huge": 1e4, "zero": 0.0}.get(kind, 1.0)
    activation = torch.rand(N, CHILDREN, generator=generator, dtype=torch.float64)
    votes = {
        "votes": lambda: (random(N, CHILDREN, PARENTS, DIM) * scale,),
        "vectors": lambda: (random(CHILDREN, PARENTS, DIM, 5), random(N, CHILDREN, 5) * scale),
        "matrices": lambda: (
            random(CHILDREN, PARENTS, 2, 2),
            random(N, CHILDREN, 2, 2) * scale,
        ),
    }[given]()
    if kind == "inactive":
        activation = torch.zeros_like(activation)
    if kind == "one active child":
        activation[:, 1:] = 0
    if kind == "all alike":
        votes = tuple(torch.full_like(t, 0.7) for t in votes)
    return tuple(t.to(dtype) for t in votes), activation.to(dtype)


def build(name: str, bias: float | None, dtype=torch.float64, **options: object) -> Routing:
    torch.manual_seed(1)
    return make_routing(name, PARENTS, DIM, bias=bias, **options).to(dtype)


@pytest.fixture(params=["one chunk", "chunks of two"])
def chunks(request, monkeypatch):
    """Seven examples at once, and in chunks of two within blocks of three: both leave a smaller one at the end."""
    if request.param != "one chunk":
        example = CHILDREN * PARENTS * DIM * 8
        monkeypatch.setitem(fast.CHUNK_BYTES, "cpu", 2 * example)
        monkeypatch.setitem(fast.BLOCK_BYTES, "cpu", 3 * example)
    return request.param


@each_routing
@with_and_without_bias
@pytest.mark.parametrize("given", ["votes", "vectors", "matrices"])
@pytest.mark.parametrize(
    "kind", ["random", "tiny", "huge", "zero", "inactive", "one active child", "all alike"]
)
def test_values_and_gradients_are_those_of_the_definition(name, bias, given, kind, chunks):
    tensors = draw(kind, given)
    routing = build(name, bias)
    # Equal votes have no variance: what a rounded mean leaves of it, 1e-16, is divided by the floor of 1e-12 in the gradient.
    tolerance = 1e-4 if kind == "all alike" else 1e-9
    assert_close(
        gradients_and_values(routing, "fast", *tensors),
        gradients_and_values(routing, "eager", *tensors),
        tolerance,
    )


@pytest.mark.parametrize(
    "options",
    [{"mixing": True}, {"smoothing": 0.1}, {"mixing": True, "smoothing": 0.3}],
    ids=str,
)
@pytest.mark.parametrize(
    "kind", ["random", "tiny", "huge", "zero", "inactive", "one active child"]
)
def test_variants_of_em_are_those_of_the_definition(kind, options, chunks):
    routing, tensors = build("em", 0.1, **options), draw(kind, "votes")
    for beta in (routing.beta_u, routing.beta_a):
        beta.requires_grad_(not options.get("mixing"))  # they have no part in it
    assert_close(
        gradients_and_values(routing, "fast", *tensors),
        gradients_and_values(routing, "eager", *tensors),
        1e-9,
    )


LEAVES_ROUNDING = {"connectionist": 16}
"""Routings whose gradients lose more to rounding than others, and how many times as much.

Nothing else is of the bias of all logits of an LSTM's couplings; and its gates lose digits where votes of 1e4 enter them as they are.
"""


@each_routing
@with_and_without_bias
@pytest.mark.parametrize("kind", ["random", "tiny", "huge", "zero", "inactive"])
def test_float32_is_as_good_as_float64_within_its_digits(name, bias, kind):
    tensors = draw(kind, "votes", torch.float32)
    ours = gradients_and_values(build(name, bias, torch.float32), "fast", *tensors)
    exact = gradients_and_values(
        build(name, bias).double(),
        "eager",
        tuple(t.double() for t in tensors[0]),
        tensors[1].double(),
    )
    ours = [t.double() for t in ours]
    assert_close(ours[:3], exact[:3], 1e-4, names=RoutingResult._fields)
    # Each output has a weight near one in the sum: where such terms cancel in a gradient, their rounding is left.
    rounding, tolerance = torch.finfo(torch.float32).eps, 1e-4
    if name in LEAVES_ROUNDING:
        rounding *= LEAVES_ROUNDING[name] * max(1, float(tensors[0][0].abs().max()))
        tolerance = 1e-3 if kind == "huge" else tolerance
    assert_close(
        ours[3:],
        exact[3:],
        tolerance,
        rounding,
        [f"gradient of {of}" for of in ("votes", "activation")],
    )


@each_routing
@for_all(seed=st.integers(0, 2**32 - 1), iterations=st.integers(1, 5))
def test_any_number_of_iterations(name, seed, iterations):
    routing, tensors = (
        build(name, 0.1, iterations=iterations),
        draw("random", "vectors", seed=seed),
    )
    assert_close(
        gradients_and_values(routing, "fast", *tensors),
        gradients_and_values(routing, "eager", *tensors),
        1e-9,
    )


@each_routing
def test_what_is_kept_for_the_gradient_is_small(name, monkeypatch):
    """Beside the votes themselves, less than a third of what autograd keeps of the definition."""
    monkeypatch.setitem(fast.KEPT_BYTES, "cpu", 0)
    votes = torch.randn(4, 64, PARENTS, 16, dtype=torch.float64, requires_grad=True)
    routing = make_routing(name, PARENTS, 16, bias=0.1).double()

    def kept(path: str) -> int:
        storages: dict[int, int] = {}

        def note(tensor: torch.Tensor) -> torch.Tensor:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        use_path(routing, path)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            result = routing(votes, torch.rand(4, 64, dtype=torch.float64))
        result.pose.sum().backward()
        storages.pop(votes.untyped_storage().data_ptr(), None)
        return sum(storages.values())

    assert kept("fast") < kept("eager") / 3
    assert kept("fast") < votes.numel() * 8 / 2


def test_nothing_is_kept_where_no_gradient_can_be_asked_for(monkeypatch):
    """It was most of what a test of a network took: four times the couplings, which are all that comes out."""
    tensors, routing, core, seen = (
        draw("random", "votes"),
        build("em", None),
        em_routing.core,
        [],
    )

    def forward(*votes: torch.Tensor, **arguments: object):
        alive = sum(reference() is not None for references in seen for reference in references)
        outputs, kept = core.forward(*votes, **arguments)
        seen.append([weakref.ref(t) for t in kept if t is not None])
        assert alive <= len(kept)  # the chunk before this one may still be at hand
        return outputs, kept

    monkeypatch.setattr(em_routing, "core", core._replace(forward=forward))
    monkeypatch.setitem(fast.CHUNK_BYTES, "cpu", 1)
    with torch.no_grad():
        routing(*tensors[0], tensors[1])
    assert len(seen) == N
    with pytest.raises(AssertionError):  # with a gradient to come, all of it has to stay
        routing(*tensors[0], tensors[1])


def test_a_routing_without_a_core_has_the_fast_path_too(chunks, monkeypatch):
    """What autograd keeps of few votes it computes again of many: the same numbers."""
    runs = []

    @routing_function
    def mean_routing(votes, activation, gain, *, iterations=1):
        """Parents are means of their votes, each weighted by how active the child is."""
        runs.append(len(votes))
        share = activation.softmax(dim=-1)[..., None, None] * gain[:, None]
        pose = (share * votes).sum(dim=-3)
        return RoutingResult(
            pose, pose.norm(dim=-1), votes.new_full(votes.shape[:-1], 1 / votes.shape[-2])
        )

    (votes,), activation = draw("random", "votes")
    gain = torch.rand(PARENTS, dtype=torch.float64)

    def outcome(path: str) -> list[torch.Tensor]:
        leaves = [t.clone().requires_grad_() for t in (votes, activation, gain)]
        result = mean_routing(*leaves, path=path)
        (result.pose.square().sum() + result.activation.sum()).backward()
        return [*result, *(t.grad for t in leaves)]

    assert_close(outcome("fast"), outcome("eager"), 1e-12)
    few = runs.copy()
    monkeypatch.setitem(fast.KEPT_BYTES, "cpu", 0)
    assert_close(outcome("fast"), outcome("eager"), 1e-12)
    assert sum(runs) - sum(few) == sum(few) + len(votes), "once more for the gradient"


def test_the_gradient_of_a_gradient_is_refused_not_wrong():
    votes, routing = torch.randn(2, 4, 3, 2, requires_grad=True), make_routing("dynamic", 3, 2)
    with pytest.raises(RuntimeError, match="path='eager'"):
        torch.autograd.grad(routing(votes, None).pose.sum(), votes, create_graph=True)
    use_path(routing, "eager")
    (gradient,) = torch.autograd.grad(routing(votes, None).pose.sum(), votes, create_graph=True)
    gradient.square().sum().backward()
    assert votes.grad.abs().max() > 0


@each_routing
def test_torch_func_sees_through_it(name):
    """Gradients of each example, as for influence functions: torch.func could not see into the fast path."""
    routing, (votes, activation) = build(name, 0.1), draw("random", "votes")
    parameters = {key: p.detach() for key, p in routing.named_parameters()}

    def loss(own, votes, activation):
        return weighted(torch.func.functional_call(routing, own, (votes, activation)))

    every = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, *votes, activation)
    for n, (one, its) in enumerate(zip(*votes, activation, strict=True)):
        routing.zero_grad()
        weighted(routing(one, its)).backward()
        for key, parameter in routing.named_parameters():
            torch.testing.assert_close(every[key][n], parameter.grad)


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="of Linux with large pages"
)
def test_a_large_gradient_asks_for_large_pages(monkeypatch):
    asked = []
    monkeypatch.setattr(
        fast,
        "_on_large_pages",
        lambda fresh, ask=fast._on_large_pages: asked.append(ask(fresh)) or fresh,
    )
    votes = torch.zeros(2, 1 << 16, 4, 4, requires_grad=True)  # 8 MiB
    make_routing("dynamic", 4, 4)(votes, None).pose.sum().backward()
    (gradient,) = asked
    assert gradient.data_ptr() == votes.grad.data_ptr()
    middle, inside, flags = gradient.data_ptr() + gradient.nbytes // 2, False, ""
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(bounds[1], 16) <= middle < int(bounds[2], 16)
        elif inside and line.startswith("VmFlags:"):
            flags = line
    assert "hg" in flags.split()


@each_routing
@pytest.mark.parametrize("given", ["votes", "vectors", "matrices"])
def test_no_gradient_is_formed_that_nobody_asks_for(name, given, chunks, monkeypatch):
    """Of an attack, say, which wants that of the poses only; those that are asked for are what they were."""
    made, (votes, activation) = set(), draw("random", given)
    run = fast._run_backward

    def backward(backward, weight, rows, to_weight, to_rows, *saved, **arguments):
        if weight is not None:
            made.update(
                what for what, t in (("weight", to_weight), ("pose", to_rows)) if t is not None
            )
        return run(backward, weight, rows, to_weight, to_rows, *saved, **arguments)

    monkeypatch.setattr(fast, "_run_backward", backward)
    routing = build(name, 0.1)
    names = ["votes"] if given == "votes" else ["weight", "pose"]
    tensors = {
        **dict(zip(names, votes, strict=True)),
        "activation": activation,
        **dict(routing.named_parameters()),
    }

    def gradients(asked: set[str]) -> dict[str, torch.Tensor | None]:
        made.clear()
        leaves = {k: t.detach().clone().requires_grad_(k in asked) for k, t in tensors.items()}
        votes = [leaves[k] for k in names]
        given = (LazyVotes(*votes) if len(votes) == 2 else votes[0], leaves["activation"])
        parameters = {k: leaves[k] for k, _ in routing.named_parameters()}
        torch.func.functional_call(routing, parameters, given).pose.square().sum().backward()
        return {k: t.grad for k, t in leaves.items()}

    every = gradients(set(tensors))
    in_chunks = (
        {"weight", "pose"} if given == "matrices" and type(routing).function.core else set()
    )
    assert made == in_chunks
    for k in tensors:
        if every[k] is not None:  # dynamic routing does not look at activations
            alone = gradients({k})
            assert [n for n, g in alone.items() if g is not None] == [k]
            assert torch.equal(alone[k], every[k])
            assert made == {k} & in_chunks


@pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))),
    reason="torch.compile needs a C++ compiler",
)
@each_routing
def test_compiled_is_the_definition(name, monkeypatch):
    example = CHILDREN * PARENTS * DIM * 8
    monkeypatch.setitem(
        fast.CHUNK_BYTES, "cpu", 4 * example
    )  # seven examples: one whole chunk, compiled, and a rest
    routing, tensors = build(name, 0.1, iterations=2), draw("random", "vectors")
    expected = gradients_and_values(routing, "eager", *tensors)
    assert use_path(routing, "compiled") == (
        "compiled" if type(routing).function.core else "fast"
    )
    assert_close(gradients_and_values(routing, "compiled", *tensors), expected, 1e-9)


@pytest.mark.parametrize("name", ["dynamic", "em"])
def test_what_is_compiled_is_compiled_once(name, monkeypatch):
    """Batches of other lengths leave other strides in their votes, other networks have other constants, and the compiler gives up
    on a function that has met eight."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    monkeypatch.setattr(module, "_compiler_works", lambda device: True)
    monkeypatch.setitem(fast.CHUNK_BYTES, "cpu", 4 * CHILDREN * PARENTS * DIM * 8)
    fast._compiled_for.cache_clear()
    (weight, pose), activation = draw("random", "vectors")
    try:
        with torch._dynamo.config.patch(error_on_recompile=True):
            for iterations in (1, 2):
                routing = build(name, 0.1, iterations=iterations)
                for length in (4, 6, 4):
                    gradients_and_values(
                        routing, "compiled", (weight, pose[:length]), activation[:length]
                    )
        # There and back, for two lengths and two routings; a routing without a core is not compiled.
        assert fast._compiled_for.cache_info().currsize == (
            8 if type(routing).function.core else 0
        )
    finally:
        fast._compiled_for.cache_clear()


@pytest.mark.parametrize("sequence", [list, tuple])
def test_networks_that_differ_in_temperature_share_what_is_compiled(sequence, monkeypatch):
    """Every seed sets its own λ, and compiling takes a minute."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    fast._compiled_for.cache_clear()
    (votes,), activation = draw("random", "votes")
    betas = torch.zeros(2, PARENTS, dtype=votes.dtype)
    try:
        with torch._dynamo.config.patch(error_on_recompile=True):
            for lamda in (0.1, 0.2):
                options = {"iterations": 2, "inverse_temperature": sequence([lamda, 0.3])}
                ours, expected = (
                    em_routing(votes, activation, *betas, path=path, **options)
                    for path in ("compiled", "eager")
                )
                assert_close([*ours], [*expected], 1e-9)
        assert fast._compiled_for.cache_info().currsize == 1
    finally:
        fast._compiled_for.cache_clear()


def test_options_that_cannot_be_looked_up_compile_too(monkeypatch):
    """What they look like finds the function, and the compiler still sees whether they are alike."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))

    class Silent(dict):
        def __repr__(self):
            return "…"

    @routing_function
    def scaled_mean(votes, activation, *, by: dict):
        pose = by["factor"] * votes.mean(dim=-3)
        return RoutingResult(
            pose, torch.linalg.vector_norm(pose, dim=-1), torch.ones_like(votes[..., 0])
        )

    (votes,), activation = draw("random", "votes")
    for by in ({"factor": 2.0}, Silent(factor=3.0), Silent(factor=4.0)):
        assert_close(
            [*scaled_mean(votes, activation, by=by, path="compiled")],
            [*scaled_mean(votes, activation, by=by, path="eager")],
            1e-9,
        )


def test_without_a_compiler_the_fast_path_runs_and_says_so(monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", broken)
    module._compiler_works.cache_clear()
    layer = DenseCapsules(4, 3, 2, 2, routing="dynamic")
    try:
        assert use_path(layer, "compiled") == "fast"
    finally:
        module._compiler_works.cache_clear()
    assert layer.routing.path == "fast"
    assert layer(torch.randn(2, 4, 2), torch.rand(2, 4)).pose.isfinite().all()


@pytest.mark.parametrize(("device", "inside"), [("cuda", "highest"), ("cpu", "high")])
def test_on_a_gpu_a_routing_takes_no_part_in_tf32(device, inside):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with fast.float32_products(torch.device(device)):
            assert torch.get_float32_matmul_precision() == inside
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
