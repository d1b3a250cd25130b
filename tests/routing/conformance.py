"""Checks of what every routing has to do, by the name of a routing and a bias, in ``CHECKS``.

``test_conformance.py`` runs them over the registry; a test can run them for a routing of its
own.
"""

from __future__ import annotations

import contextlib
import inspect
import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import pytest
import torch
from references import route_by_loops
from torch import Tensor

from capslib.routing import (
    LazyVotes,
    Routing,
    RoutingResult,
    fast,
    make_routing,
    use_path,
)

N, CHILDREN, PARENTS, DIM = 7, 8, 3, 4
SHAPES = {
    "votes": ((N, CHILDREN, PARENTS, DIM),),
    "vectors": ((CHILDREN, PARENTS, DIM, 5), (N, CHILDREN, 5)),
    "matrices": ((CHILDREN, PARENTS, 2, 2), (N, CHILDREN, 2, 2)),
}
"""Votes, or the weights and poses that make them."""
SCALES = {"zero": 0.0, "tiny": 1e-6, "random": 1.0, "huge": 1e4}
KINDS = (*SCALES, "inactive", "one active child", "all alike")
BIASES = {"no bias": None, "bias": 0.1}
EXACT = {"rtol": 0, "atol": 1e-10}
BITS = {"rtol": 0, "atol": 0}
LEAVES_ROUNDING = {"connectionist": 16}
"""Routings whose gradients lose more to rounding than others, and how many times as much.

The gates of an LSTM lose digits where votes of 1e4 enter them as they are.
"""
SIZES = [
    # children, parents, dim, iterations
    (8, 1, 2, 1),
    (9, 2, 1, 5),
    (11, 4, 3, 3),
    (14, 3, 6, 2),
]
CHECKS: dict[str, Callable[[str, float | None], None]] = {}
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))),
    reason="torch.compile needs a C++ compiler",
)


def check(function: Callable) -> Callable:
    CHECKS[function.__name__] = function
    return function


def build(
    name: str, bias: float | None, *, seed: int = 0, dtype=torch.float64, **options: object
) -> Routing:
    """Return a routing whose parameters are random, a bias included."""
    torch.manual_seed(seed)
    sizes = {"parents": PARENTS, "dim": DIM, "bias": bias}
    routing = make_routing(name, **(sizes | options)).to(dtype)
    if routing.bias is not None:
        torch.nn.init.normal_(routing.bias)
    return routing


def draw(
    *batch: int,
    children: int = CHILDREN,
    parents: int = PARENTS,
    dim: int = DIM,
    seed: int = 0,
    dtype=torch.float64,
) -> tuple[Tensor, Tensor]:
    """Return random votes [*batch, I, J, D] and activations [*batch, I] between 0.1 and 1."""
    generator = torch.Generator().manual_seed(seed)
    votes = torch.randn(*batch, children, parents, dim, generator=generator, dtype=dtype)
    return votes, torch.rand(*batch, children, generator=generator, dtype=dtype) * 0.9 + 0.1


def draw_kind(kind: str, form: str = "votes", dtype=torch.float64) -> tuple[Tensor, ...]:
    """Return votes, or weights and poses that make them, and activations [N, I]."""
    generator = torch.Generator().manual_seed(0)
    tensors = []
    for shape in SHAPES[form]:
        tensors.append(torch.randn(shape, generator=generator, dtype=torch.float64))
    activation = torch.rand(N, CHILDREN, generator=generator, dtype=torch.float64)
    tensors[-1] = tensors[-1] * SCALES.get(kind, 1.0)
    if kind == "all alike":
        tensors = [torch.full_like(tensor, 0.7) for tensor in tensors]
    if kind == "inactive":
        activation = torch.zeros_like(activation)
    if kind == "one active child":
        activation[:, 1:] = 0
    return tuple(tensor.to(dtype) for tensor in (*tensors, activation))


@contextlib.contextmanager
def small_chunks(example: int = CHILDREN * PARENTS * DIM * 8) -> Iterator[None]:
    """Cut into chunks of two and blocks of three examples of so many bytes; keep nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(fast.CHUNK_BYTES, "cpu", 2 * example)
        patch.setitem(fast.BLOCK_BYTES, "cpu", 3 * example)
        patch.setitem(fast.KEPT_BYTES, "cpu", 0)
        yield


def assert_equal(result: RoutingResult, expected: RoutingResult, **tolerance: float) -> None:
    """Compare poses (item 0), activations (1) and couplings (2)."""
    torch.testing.assert_close(tuple(result), tuple(expected), **tolerance)


def assert_close(
    result: Sequence[Tensor],
    expected: Sequence[Tensor],
    tolerance: float,
    rounding: float = 0.0,
    case: object = "",
) -> None:
    """Compare to within ``tolerance`` of the largest number of each tensor, and ``rounding``.

    What is a millionth of all other numbers is as good as zero.
    """
    assert len(result) == len(expected)
    largest = max(tensor.abs().max().item() for tensor in expected)
    for number, (a, b) in enumerate(zip(result, expected, strict=True)):
        error = (a - b).abs().max().item()
        scale = max(1e-6 * largest, b.abs().max().item())
        assert error <= tolerance * scale + rounding, (case, number, error, scale)


def weighted(result: RoutingResult) -> Tensor:
    """Return a sum with a weight for each number, so that no gradient is zero by symmetry."""
    total = 0
    for tensor in result:
        weight = torch.linspace(-1, 2, tensor.numel()).to(tensor)
        total = total + (tensor * weight.view_as(tensor)).sum()
    return total


def outcome(routing: Callable, *tensors: Tensor) -> list[Tensor]:
    """Return the result, and its gradients for votes, activations and parameters."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    *votes, activation = leaves
    result = routing(LazyVotes(*votes) if len(votes) == 2 else votes[0], activation)
    leaves += routing.parameters()
    needed = {"allow_unused": True, "materialize_grads": True}
    return [*result, *torch.autograd.grad(weighted(result), leaves, **needed)]


def outcome_on(path: str, routing: Routing, *tensors: Tensor) -> list[Tensor]:
    routing.path = path
    return outcome(routing, *tensors)


def of_every_size(name: str, bias: float | None) -> Iterator[tuple[Routing, Tensor, Tensor]]:
    """Yield routings, and votes and activations of one example for each."""
    for seed, (children, parents, dim, iterations) in enumerate(SIZES):
        sizes = {"parents": parents, "dim": dim, "seed": seed}
        routing = build(name, bias, iterations=iterations, **sizes)
        yield routing, *draw(children=children, **sizes)


@check
def couplings_sum_to_one(name, bias):
    """Over the parents of a child or the children of a parent, as the routing declares."""
    for routing, *tensors in of_every_size(name, bias):
        coupling = routing(*tensors).coupling
        assert (coupling >= 0).all()
        total = coupling.sum({"parents": -1, "children": -2}[routing.couplings_sum_over])
        torch.testing.assert_close(total, torch.ones_like(total))


@check
def it_is_what_the_plain_loops_say(name, bias):
    for routing, *tensors in of_every_size(name, bias):
        assert_equal(routing(*tensors), route_by_loops(name, routing, *tensors), **EXACT)


@check
def negated_votes_without_a_bias_give_negated_poses_and_with_one_do_not(name, bias):
    """With a bias a routing can tell votes from their negatives; so can one that is not odd."""
    for routing, votes, activation in of_every_size(name, bias):
        result, negated = routing(votes, activation), routing(-votes, activation)
        if bias is None and routing.odd_without_bias:
            # To the last bit, since the sign of a number takes no part in rounding.
            assert_equal(negated, result._replace(pose=-result.pose), **BITS)
        elif votes.shape[-1] > 1:  # of one number, a vector may keep the sign alone
            assert (result.pose + negated.pose).abs().max() > 1e-6


@check
def the_order_of_the_children_does_not_matter(name, bias):
    routing, (votes, activation) = build(name, bias), draw()
    order = torch.randperm(CHILDREN)
    result = routing(votes, activation)
    expected = result._replace(coupling=result.coupling[order])
    assert_equal(routing(votes[order], activation[order]), expected, **EXACT)


@check
def values_and_gradients_are_finite(name, bias):
    """Of votes that are zero, tiny, huge, equal or of one child, and of inactive children."""
    for dtype in (torch.float32, torch.float64):
        routing = build(name, bias, dtype=dtype)
        for kind, children, active in product(KINDS, (1, CHILDREN), (0, 1)):
            votes, activation = draw_kind(kind, dtype=dtype)
            tensors = outcome(routing, votes[:, :children], active * activation[:, :children])
            finite = [tensor.isfinite().all() for tensor in tensors]
            assert all(finite), (kind, dtype, children, active)


@check
def gradients_are_those_of_finite_differences(name, bias):
    for iterations in (1, 3):
        routing = build(name, bias, iterations=iterations, parents=2, dim=2)
        assert_gradients(routing, *draw(children=4, parents=2, dim=2))


def assert_gradients(routing: Routing, *tensors: Tensor) -> None:
    """Compare gradients, those of parameters included, with finite differences."""
    names = [name for name, _ in routing.named_parameters()]

    def function(votes, activation, *parameters):
        state = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(routing, state, (votes, activation))

    inputs = (*tensors, *routing.parameters())
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    is_large = sum(leaf.numel() for leaf in leaves) > 100
    torch.autograd.gradcheck(function, leaves, fast_mode=is_large)


@check
def the_dtype_of_the_votes_comes_back_and_is_routed_in_at_least_float32(name, bias):
    """The result is that of float32, rounded once, and autocast changes nothing."""
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        wide = torch.promote_types(dtype, torch.float32)
        routing, tensors = build(name, bias, dtype=wide), draw(2, dtype=dtype)
        exact = routing(*(tensor.to(wide) for tensor in tensors))
        expected = RoutingResult(*(tensor.to(dtype) for tensor in exact))
        for autocast in (False, True):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                assert_equal(routing(*tensors), expected, **BITS)
        for tensor in routing.to(dtype)(*tensors):
            assert tensor.dtype == dtype
            assert tensor.isfinite().all()


@check
def examples_of_a_batch_know_nothing_of_each_other(name, bias):
    """Of none, one or many, there and back; shapes are those of a :class:`RoutingResult`."""
    routing = build(name, bias)
    for path, batch in product(("eager", "fast"), ((), (0,), (1,), (2, 3))):
        use_path(routing, path)
        votes, activation = draw(*batch)
        result = RoutingResult(*outcome(routing, votes, activation)[:3])
        assert result.pose.shape == (*batch, PARENTS, DIM)
        assert result.activation.shape == (*batch, PARENTS)
        assert result.coupling.shape == (*batch, CHILDREN, PARENTS)
        for example in product(*map(range, batch)):
            expected = RoutingResult(*(tensor[example] for tensor in result))
            assert_equal(routing(votes[example], activation[example]), expected, **EXACT)


@check
def every_path_is_the_definition(name, bias):
    """In values and gradients, for votes in every form and of every kind, in uneven chunks."""
    cases = [(form, kind, 3) for form, kind in product(SHAPES, KINDS)]
    cases += [("vectors", "random", iterations) for iterations in (1, 2, 4, 5)]
    for form, kind, iterations in cases:
        routing, tensors = build(name, bias, iterations=iterations), draw_kind(kind, form)
        expected = outcome_on("eager", routing, *tensors)
        # Equal votes have no variance: what a rounded mean leaves of it, 1e-16, is divided by a
        # floor of 1e-12 in the gradient.
        tolerance = 1e-4 if kind == "all alike" else 1e-9
        case = form, kind, iterations
        assert_close(outcome_on("fast", routing, *tensors), expected, tolerance, case=case)
        with small_chunks():
            result = outcome_on("fast", routing, *tensors)
        assert_close(result, expected, tolerance, case=(*case, "in chunks"))


@check
def float32_is_as_good_as_float64_within_its_digits(name, bias):
    for kind in KINDS:
        if kind == "all alike":  # without a variance, rounding is all that a gradient has
            continue
        tensors = draw_kind(kind, dtype=torch.float32)
        routing = build(name, bias, dtype=torch.float32)
        result = [tensor.double() for tensor in outcome_on("fast", routing, *tensors)]
        exact = outcome_on("eager", routing.double(), *(t.double() for t in tensors))
        # Terms of about one that cancel in a gradient leave their rounding.
        rounding, tolerance = torch.finfo(torch.float32).eps, 1e-4
        if name in LEAVES_ROUNDING:
            rounding *= LEAVES_ROUNDING[name] * max(1, tensors[0].abs().max().item())
            tolerance = 1e-3 if kind == "huge" else tolerance
        assert_close(result[:3], exact[:3], 1e-4, case=kind)
        assert_close(result[3:5], exact[3:5], tolerance, rounding, kind)


@check
def torch_func_sees_through_it(name, bias):
    """Gradients of each example, as for influence functions."""
    routing = build(name, bias)
    votes, activation = draw(2)
    parameters = {key: p.detach() for key, p in routing.named_parameters()}

    def loss(parameters, votes, activation):
        return weighted(torch.func.functional_call(routing, parameters, (votes, activation)))

    per_example = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))
    gradients = per_example(parameters, votes, activation)
    for example in range(2):
        expected = outcome(routing, votes[example], activation[example])[5:]
        result = [gradient[example] for gradient in gradients.values()]
        torch.testing.assert_close(result, expected)


@check
def the_path_that_is_chosen_is_taken(name, bias):
    """Otherwise comparing two paths would compare one with itself."""
    routing = build(name, bias)
    assert "path" in inspect.signature(type(routing).function).parameters
    use_path(routing, "eager")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "_one_batch", _leave_the_definition)
        routing(*draw(2))
        use_path(routing, "fast")
        with pytest.raises(AssertionError, match=r"path=self.path"):
            routing(*draw(2))


def _leave_the_definition(*_: object) -> None:
    raise AssertionError("forward has to give path=self.path to the routing function")


@check
def torch_compile_of_the_module_agrees_with_eager(name, bias):
    """Traced in one graph with its gradient, which has what one without a bias has.

    ``test_fast.py`` has the compiler of C++.
    """
    if bias is None:
        return  # a routing with a bias computes all that one without it does
    routing = build(name, bias, iterations=2)
    tensors = draw(2)
    torch._dynamo.reset()
    traced = torch.compile(routing, backend="aot_eager", fullgraph=True, dynamic=False)
    assert_close(outcome(traced, *tensors), outcome(routing, *tensors), 1e-9)


@check
def iterations_are_at_least_one_and_can_be_given_for_a_call(name, bias):
    three, two = build(name, bias, iterations=3), build(name, bias, iterations=2)
    assert_equal(three(*draw(2), iterations=2), two(*draw(2)), **BITS)
    assert three.iterations == 3
    with pytest.raises(ValueError, match="iterations has to be a whole number"):
        build(name, bias, iterations=0)
    with pytest.raises(ValueError, match="iterations has to be a whole number"):
        three(*draw(2), iterations=-1)
