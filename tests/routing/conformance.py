"""What every routing has to do: plain functions of its name in ``ROUTINGS`` and of a bias, in ``CHECKS``.

``test_conformance.py`` runs them over the registry, and a test can run them for a routing of its own.
"""

from __future__ import annotations

import inspect
import itertools
import shutil
from collections.abc import Callable, Sequence
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from references import route_by_loops

from capslib.errors import UserError
from capslib.routing import LazyVotes, Routing, RoutingResult, fast, make_routing, use_path

CHILDREN, PARENTS, DIM = 8, 3, 4
FIELDS = RoutingResult._fields
BIASES = {"no bias": None, "bias": 0.1}
CHECKS: dict[str, Callable[[str, float | None], None]] = {}
seeds = st.integers(0, 2**32 - 1)


def check(function: Callable) -> Callable:
    CHECKS[function.__name__] = function
    return function


def build(
    name: str,
    bias: float | None,
    *,
    parents: int = PARENTS,
    dim: int = DIM,
    iterations: int = 3,
    seed: int = 0,
    dtype=torch.float64,
) -> Routing:
    """A routing whose parameters are all random, a bias included, and the same for the same seed."""
    torch.manual_seed(seed)
    routing = make_routing(name, parents, dim, iterations=iterations, bias=bias).to(dtype)
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
):
    """Random votes [*batch, I, J, D] and activations [*batch, I] between 0.1 and 1."""
    generator = torch.Generator().manual_seed(seed)
    votes = torch.randn(*batch, children, parents, dim, generator=generator, dtype=dtype)
    return votes, torch.rand(*batch, children, generator=generator, dtype=dtype) * 0.9 + 0.1


def assert_equal(ours: RoutingResult, expected: RoutingResult, **tolerance: float) -> None:
    for field, a, b in zip(FIELDS, ours, expected, strict=True):
        torch.testing.assert_close(
            a, b, **tolerance, msg=lambda text, field=field: f"{field}: {text}"
        )


def assert_close(
    ours: list[torch.Tensor],
    expected: list[torch.Tensor],
    tolerance: float,
    rounding: float = 0.0,
    names: Sequence[str] = (),
) -> None:
    """Within ``tolerance`` of the largest number of each tensor; what is a millionth of all others is as good as zero."""
    assert len(ours) == len(expected)
    largest = max(b.abs().max().item() for b in expected)
    for number, (a, b) in enumerate(zip(ours, expected, strict=True)):
        error, scale = (a - b).abs().max().item(), max(1e-6 * largest, b.abs().max().item())
        name = names[number] if number < len(names) else f"tensor {number}"
        assert error <= tolerance * scale + rounding, (
            f"{name}: off by {error:.1e}, and its largest number is {scale:.1e}"
        )


def weighted(result: RoutingResult) -> torch.Tensor:
    """A sum in which every number has a weight of its own, so that no gradient is zero only because a sum is constant."""
    return sum(
        (t * torch.linspace(-1, 2, t.numel(), dtype=t.dtype).view_as(t)).sum() for t in result
    )


EXACT = dict(rtol=0, atol=1e-10)


@check
@given(
    children=st.integers(1, 12),
    parents=st.integers(1, 5),
    dim=st.integers(1, 6),
    iterations=st.integers(1, 5),
    seed=seeds,
)
def couplings_sum_to_one(name, bias, children, parents, dim, iterations, seed):
    """Over the parents of each child or over the children of each parent, as the routing declares."""
    sizes = dict(parents=parents, dim=dim, seed=seed)
    routing = build(name, bias, iterations=iterations, **sizes)
    pose, activation, coupling = routing(*draw(2, children=children, **sizes))
    assert (pose.shape, activation.shape, coupling.shape) == (
        (2, parents, dim),
        (2, parents),
        (2, children, parents),
    )
    assert (coupling >= 0).all()
    total = coupling.sum({"parents": -1, "children": -2}[routing.couplings_sum_over])
    torch.testing.assert_close(total, torch.ones_like(total))


@check
@given(order=st.permutations(range(CHILDREN)), seed=seeds)
def the_order_of_the_children_does_not_matter(name, bias, order, seed):
    routing, (votes, activation) = build(name, bias, seed=seed), draw(seed=seed)
    pose, parent_activation, coupling = routing(votes, activation)
    assert_equal(
        routing(votes[order], activation[order]),
        RoutingResult(pose, parent_activation, coupling[order]),
        **EXACT,
    )


@check
@given(
    children=st.integers(8, 14),
    parents=st.integers(1, 4),
    dim=st.integers(1, 3),
    iterations=st.integers(1, 5),
    seed=seeds,
)
def it_is_what_the_plain_loops_say(name, bias, children, parents, dim, iterations, seed):
    sizes = dict(parents=parents, dim=dim, seed=seed)
    routing, (votes, activation) = (
        build(name, bias, iterations=iterations, **sizes),
        draw(children=children, **sizes),
    )
    expected = route_by_loops(name, routing, votes, activation)
    assert_equal(routing(votes, activation), expected, **EXACT)


@check
def values_and_gradients_are_finite(name, bias):
    """For votes of zero, tiny and huge ones, equal ones, those of one child, and for inactive children."""
    votes_are, active, dtypes = (
        ("zero", "1e-6", "1e4", "all alike", "of one child"),
        (True, False),
        (torch.float32, torch.float64),
    )
    for kind, are_active, dtype in itertools.product(votes_are, active, dtypes):
        routing = build(name, bias, dtype=dtype)
        votes, activation = draw(
            2, children=1 if kind == "of one child" else CHILDREN, dtype=dtype
        )
        scale = {"zero": 0.0, "1e-6": 1e-6, "1e4": 1e4}.get(kind, 1.0)
        votes = (
            torch.full_like(votes, 0.7) if kind == "all alike" else votes * scale
        ).requires_grad_()
        activation = (activation * are_active).requires_grad_()
        result = routing(votes, activation)
        weighted(result).backward()
        assert votes.grad is not None
        tensors = {
            **result._asdict(),
            "gradient of votes": votes.grad,
            "gradient of activations": activation.grad,
        }
        tensors |= {f"gradient of {n}": p.grad for n, p in routing.named_parameters()}
        bad = [n for n, t in tensors.items() if t is not None and not t.isfinite().all()]
        assert not bad, (kind, are_active, dtype, bad)


@check
def gradients_are_those_of_finite_differences(name, bias):
    for iterations in (1, 3):
        routing = build(name, bias, iterations=iterations, parents=2, dim=2)
        votes, activation = draw(children=4, parents=2, dim=2)
        names, parameters = (
            [n for n, _ in routing.named_parameters()],
            [p.detach() for p in routing.parameters()],
        )

        def function(votes, activation, *parameters, routing=routing, names=names):
            return torch.func.functional_call(
                routing, dict(zip(names, parameters, strict=True)), (votes, activation)
            )

        torch.autograd.gradcheck(
            function, [t.clone().requires_grad_() for t in (votes, activation, *parameters)]
        )


@check
def bfloat16_comes_back_as_bfloat16_and_is_routed_in_float32(name, bias):
    """Eight bits of mantissa go in and out, but not through the loop: the result is that of float32, rounded once."""
    for autocast in (False, True):
        routing = build(name, bias, dtype=torch.float32)
        votes, activation = (t.bfloat16() for t in draw(2))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            result = routing(votes, activation)
        assert all(t.dtype == torch.bfloat16 and t.isfinite().all() for t in result)
        wide = routing(votes.float(), activation.float())
        assert_equal(result, RoutingResult(*(t.bfloat16() for t in wide)), rtol=0, atol=0)


@check
def a_routing_cast_to_bfloat16_runs(name, bias):
    routing, tensors = build(name, bias, dtype=torch.bfloat16), draw(2, dtype=torch.bfloat16)
    assert all(t.dtype == torch.bfloat16 and t.isfinite().all() for t in routing(*tensors))


@check
def autocast_changes_nothing_for_wider_votes(name, bias):
    for dtype in (torch.float32, torch.float64):
        routing, tensors = build(name, bias, dtype=dtype), draw(2, dtype=dtype)
        expected = routing(*tensors)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert_equal(routing(*tensors), expected, rtol=0, atol=0)


@check
def examples_of_a_batch_know_nothing_of_each_other(name, bias):
    for path, batch in itertools.product(("eager", "fast"), ((), (1,), (5,), (2, 3))):
        routing, (votes, activation) = build(name, bias), draw(*batch)
        use_path(routing, path)
        result, flat = (
            routing(votes, activation),
            (votes.flatten(0, -4), activation.flatten(0, -2)) if batch else (),
        )
        assert result.pose.shape == (*batch, PARENTS, DIM)
        alone = [routing(v, a) for v, a in zip(*flat, strict=True)] if batch else [result]
        stacked = (
            torch.stack(t).view_as(ours)
            for t, ours in zip(zip(*alone, strict=True), result, strict=True)
        )
        assert_equal(result, RoutingResult(*stacked), **EXACT)


@check
def a_batch_may_be_empty(name, bias):
    for path in ("eager", "fast"):
        routing = build(name, bias)
        use_path(routing, path)
        pose, activation, coupling = routing(*draw(0))
        assert (pose.shape, activation.shape, coupling.shape) == (
            (0, PARENTS, DIM),
            (0, PARENTS),
            (0, CHILDREN, PARENTS),
        )


@check
@given(seed=seeds, iterations=st.integers(1, 5), dim=st.integers(1, 6))
def negated_votes_without_a_bias_give_negated_poses_and_with_one_do_not(
    name, bias, seed, iterations, dim
):
    """An odd routing cannot tell votes from their negatives. With a bias it can, and so can one that says it is not odd."""
    routing, (votes, activation) = (
        build(name, bias, iterations=iterations, dim=dim, seed=seed),
        draw(2, dim=dim, seed=seed),
    )
    result, negated = routing(votes, activation), routing(-votes, activation)
    if (
        bias is None and routing.odd_without_bias
    ):  # to the last bit: the sign of a number takes no part in rounding
        assert_equal(
            negated,
            RoutingResult(-result.pose, result.activation, result.coupling),
            rtol=0,
            atol=0,
        )
    else:
        assert (result.pose + negated.pose).abs().amax() > 1e-6


@check
def every_path_is_the_definition(name, bias):
    """In values and gradients, for votes that are given and for those of vector and of matrix capsules, in uneven chunks.

    "compiled" is tried for a routing without a core only, as it costs nothing there; ``test_fast.py`` has the others.
    """
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "votes": ((7, CHILDREN, PARENTS, DIM),),
        "vectors": ((CHILDREN, PARENTS, DIM, 5), (7, CHILDREN, 5)),
        "matrices": ((CHILDREN, PARENTS, 2, 2), (7, CHILDREN, 2, 2)),
    }
    routing, before = (
        build(name, bias),
        (fast.CHUNK_BYTES["cpu"], fast.BLOCK_BYTES["cpu"], fast.KEPT_BYTES["cpu"]),
    )
    paths = ("fast", *(() if getattr(type(routing).function, "core", None) else ("compiled",)))
    for kind, path in itertools.product(shapes, paths):
        given = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes[kind]]
        given.append(torch.rand(7, CHILDREN, generator=generator, dtype=torch.float64))

        def outcome(path: str, given=given) -> list[torch.Tensor]:
            routing.zero_grad()
            use_path(routing, "eager")
            routing.path = path
            *votes, activation = leaves = [t.clone().requires_grad_() for t in given]
            result = routing(LazyVotes(*votes) if len(votes) == 2 else votes[0], activation)
            weighted(result).backward()
            return [
                *result,
                *(t.grad for t in (*leaves, *routing.parameters()) if t.grad is not None),
            ]

        example = CHILDREN * PARENTS * DIM * 8
        fast.CHUNK_BYTES["cpu"], fast.BLOCK_BYTES["cpu"], fast.KEPT_BYTES["cpu"] = (
            2 * example,
            3 * example,
            0,
        )
        try:
            ours, expected = outcome(path), outcome("eager")
        finally:
            fast.CHUNK_BYTES["cpu"], fast.BLOCK_BYTES["cpu"], fast.KEPT_BYTES["cpu"] = before
        assert len(ours) == len(expected), (kind, path)
        for a, b in zip(ours, expected, strict=True):
            torch.testing.assert_close(
                a, b, rtol=1e-9, atol=1e-9, msg=lambda text, of=(kind, path): f"{of}: {text}"
            )


@check
def the_path_that_is_chosen_is_taken(name, bias):
    """Otherwise the check above compares the default path with itself."""
    routing = build(name, bias)
    use_path(routing, "eager")
    left = mock.Mock(
        side_effect=AssertionError("forward has to give path=self.path to the routing function")
    )
    with mock.patch.object(fast, "_one_batch", left):
        routing(*draw(2))


@check
def torch_compile_of_the_module_agrees_with_eager(name, bias):
    if bias is None:
        pytest.skip(
            "compiled with a bias only: the same loop and one line more, at half the time"
        )
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("torch.compile needs a C++ compiler")
    routing, tensors = (
        build(name, bias, iterations=2, dtype=torch.float32),
        draw(2, dtype=torch.float32),
    )
    torch._dynamo.reset()

    def values_and_gradients(function):
        inputs = [t.clone().requires_grad_() for t in tensors]
        routing.zero_grad()
        result = function(*inputs)
        weighted(result).backward()
        grads = (t.grad for t in (*inputs, *routing.parameters()) if t.grad is not None)
        return [*result, *(g.clone() for g in grads)]

    eager = values_and_gradients(routing)
    for a, b in zip(
        values_and_gradients(torch.compile(routing, fullgraph=True, dynamic=False)),
        eager,
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@check
def iterations_are_at_least_one_and_can_be_given_for_a_call(name, bias):
    for iterations in (0, -1):
        with pytest.raises(ValueError, match="iterations has to be a whole number"):
            make_routing(name, PARENTS, DIM, iterations=iterations, bias=bias)
    for path in ("eager", "fast"):
        three, two = build(name, bias, iterations=3), build(name, bias, iterations=2)
        use_path(three, path)
        use_path(two, path)
        for iterations in (0, -1):
            with pytest.raises(ValueError, match="iterations has to be a whole number"):
                three(*draw(2), iterations=iterations)
        assert_equal(three(*draw(2), iterations=2), two(*draw(2)), rtol=0, atol=0)
        assert three.iterations == 3


@check
def a_mistyped_name_is_answered_with_the_nearest(name, bias):
    with pytest.raises(UserError, match=f"Unknown routing '{name}x'. Did you mean '{name}'"):
        make_routing(f"{name}x", PARENTS, DIM, bias=bias)


@check
def what_it_declares_is_known(name, bias):
    """Who reads these declarations is the suite itself, the layers and :func:`use_path`."""
    routing = build(name, bias)
    assert routing.couplings_sum_over in ("parents", "children")
    assert "iterations" in inspect.signature(routing.forward).parameters
    function = type(routing).function
    assert function is not None, "name the routing function: it knows which paths there are"
    assert "path" in inspect.signature(function).parameters


@check
def a_bias_is_a_number_or_none(name, bias):
    """As False it was learned, from zero."""
    for wrong in (False, True):
        with pytest.raises(TypeError, match="or None for no bias"):
            make_routing(name, PARENTS, DIM, bias=wrong)
