"""One suite over the registry: whatever is in ``ROUTINGS`` has to do all of this, with and without a bias.

A routing that is added there is tested here without another line.
"""

from __future__ import annotations

import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from capslib.errors import UserError
from capslib.routing import ROUTINGS, Routing, RoutingResult, make_routing

CHILDREN, PARENTS, DIM = 8, 3, 4
FIELDS = RoutingResult._fields

pytestmark = [
    pytest.mark.parametrize("name", ROUTINGS),
    pytest.mark.parametrize("bias", [None, 0.1], ids=["no bias", "bias"]),
]
seeds = st.integers(0, 2**32 - 1)


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


def draw(*batch: int, children: int = CHILDREN, parents: int = PARENTS, dim: int = DIM, seed: int = 0, dtype=torch.float64):
    """Random votes [*batch, I, J, D] and activations [*batch, I] between 0.1 and 1."""
    generator = torch.Generator().manual_seed(seed)
    votes = torch.randn(*batch, children, parents, dim, generator=generator, dtype=dtype)
    return votes, torch.rand(*batch, children, generator=generator, dtype=dtype) * 0.9 + 0.1


def assert_equal(ours: RoutingResult, expected: RoutingResult, **tolerance: float) -> None:
    for field, a, b in zip(FIELDS, ours, expected, strict=True):
        torch.testing.assert_close(a, b, **tolerance, msg=lambda text, field=field: f"{field}: {text}")


EXACT = dict(rtol=0, atol=1e-10)


@given(children=st.integers(1, 12), parents=st.integers(1, 5), dim=st.integers(1, 6), iterations=st.integers(1, 5), seed=seeds)
def test_a_child_shares_itself_out_completely(name, bias, children, parents, dim, iterations, seed):
    sizes = dict(parents=parents, dim=dim, seed=seed)
    pose, activation, coupling = build(name, bias, iterations=iterations, **sizes)(*draw(2, children=children, **sizes))
    assert (pose.shape, activation.shape, coupling.shape) == ((2, parents, dim), (2, parents), (2, children, parents))
    assert (coupling >= 0).all()
    torch.testing.assert_close(coupling.sum(-1), torch.ones(2, children, dtype=torch.float64))


@given(order=st.permutations(range(CHILDREN)), seed=seeds)
def test_the_order_of_the_children_does_not_matter(name, bias, order, seed):
    routing, (votes, activation) = build(name, bias, seed=seed), draw(seed=seed)
    pose, parent_activation, coupling = routing(votes, activation)
    assert_equal(routing(votes[order], activation[order]), RoutingResult(pose, parent_activation, coupling[order]), **EXACT)


@given(children=st.integers(8, 14), parents=st.integers(1, 4), dim=st.integers(1, 3), iterations=st.integers(1, 5), seed=seeds)
def test_it_is_what_the_plain_loops_say(name, bias, children, parents, dim, iterations, seed):
    sizes = dict(parents=parents, dim=dim, seed=seed)
    routing, (votes, activation) = build(name, bias, iterations=iterations, **sizes), draw(children=children, **sizes)
    assert_equal(routing(votes, activation), routing.reference(votes, activation), **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("children_are", ["active", "inactive"])
@pytest.mark.parametrize("votes_are", ["zero", "1e-6", "1e4", "all alike", "of one child"])
def test_values_and_gradients_are_finite(name, bias, votes_are, children_are, dtype):
    routing = build(name, bias, dtype=dtype)
    votes, activation = draw(2, children=1 if votes_are == "of one child" else CHILDREN, dtype=dtype)
    scale = {"zero": 0.0, "1e-6": 1e-6, "1e4": 1e4}.get(votes_are, 1.0)
    votes = (torch.full_like(votes, 0.7) if votes_are == "all alike" else votes * scale).requires_grad_()
    activation = (activation * (children_are == "active")).requires_grad_()
    result = routing(votes, activation)
    # Every element has a weight of its own, so that no gradient is zero only because a sum of couplings is constant.
    sum((t * torch.linspace(-1, 2, t.numel(), dtype=dtype).view_as(t)).sum() for t in result).backward()
    tensors = {**result._asdict(), "gradient of votes": votes.grad, "gradient of activations": activation.grad}
    tensors |= {f"gradient of {n}": p.grad for n, p in routing.named_parameters()}
    bad = [n for n, t in tensors.items() if t is not None and not t.isfinite().all()]
    assert votes.grad is not None
    assert not bad


@pytest.mark.parametrize("iterations", [1, 3])
def test_gradients_are_those_of_finite_differences(name, bias, iterations):
    routing, (votes, activation) = build(name, bias, iterations=iterations, parents=2, dim=2), draw(children=4, parents=2, dim=2)
    names, parameters = [n for n, _ in routing.named_parameters()], [p.detach() for p in routing.parameters()]

    def function(votes, activation, *parameters):
        return torch.func.functional_call(routing, dict(zip(names, parameters, strict=True)), (votes, activation))

    torch.autograd.gradcheck(function, [t.clone().requires_grad_() for t in (votes, activation, *parameters)])


@pytest.mark.parametrize("autocast", [False, True], ids=["bfloat16 votes", "autocast"])
def test_bfloat16_comes_back_as_bfloat16_and_is_routed_in_float32(name, bias, autocast):
    """Eight bits of mantissa go in and out, but not through the loop: the result is the one of float32, rounded once."""
    routing = build(name, bias, dtype=torch.float32)
    votes, activation = (t.bfloat16() for t in draw(2))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        result = routing(votes, activation)
    assert all(t.dtype == torch.bfloat16 and t.isfinite().all() for t in result)
    wide = routing(votes.float(), activation.float())
    assert_equal(result, RoutingResult(*(t.bfloat16() for t in wide)), rtol=0, atol=0)


def test_a_routing_cast_to_bfloat16_runs(name, bias):
    routing, tensors = build(name, bias, dtype=torch.bfloat16), draw(2, dtype=torch.bfloat16)
    assert all(t.dtype == torch.bfloat16 and t.isfinite().all() for t in routing(*tensors))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_autocast_changes_nothing_for_wider_votes(name, bias, dtype):
    routing, tensors = build(name, bias, dtype=dtype), draw(2, dtype=dtype)
    expected = routing(*tensors)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_equal(routing(*tensors), expected, rtol=0, atol=0)


@pytest.mark.parametrize("batch", [(), (1,), (5,), (2, 3)], ids=str)
def test_examples_of_a_batch_know_nothing_of_each_other(name, bias, batch):
    routing, (votes, activation) = build(name, bias), draw(*batch)
    result = routing(votes, activation)
    flat = [routing(v, a) for v, a in zip(votes.flatten(0, -4), activation.flatten(0, -2), strict=True)] if batch else [result]
    assert result.pose.shape == (*batch, PARENTS, DIM)
    for field, ours, alone in zip(FIELDS, result, zip(*flat, strict=True), strict=True):
        torch.testing.assert_close(
            ours, torch.stack(alone).view_as(ours), **EXACT, msg=lambda text, field=field: f"{field}: {text}"
        )


@given(seed=seeds, iterations=st.integers(1, 5), dim=st.integers(1, 6))
def test_negated_votes_without_a_bias_give_negated_poses_and_with_one_do_not(name, bias, seed, iterations, dim):
    routing, (votes, activation) = build(name, bias, iterations=iterations, dim=dim, seed=seed), draw(2, dim=dim, seed=seed)
    if not routing.odd_without_bias:
        pytest.skip(f"{name} does not claim to be odd")
    result, negated = routing(votes, activation), routing(-votes, activation)
    if bias is None:  # to the last bit: the sign of a number takes no part in rounding
        assert_equal(negated, RoutingResult(-result.pose, result.activation, result.coupling), rtol=0, atol=0)
    else:
        assert (result.pose + negated.pose).abs().amax() > 1e-3


def _no_compiler() -> str:
    return "" if shutil.which("c++") or shutil.which("g++") or shutil.which("clang++") else "torch.compile needs a C++ compiler"


@pytest.mark.skipif(bool(_no_compiler()), reason=_no_compiler() or "there is a compiler")
def test_compiled_agrees_with_eager(name, bias):
    if bias is None:
        pytest.skip("compiled with a bias only: the same loop and one line more, at half the time")
    routing, tensors = build(name, bias, iterations=2, dtype=torch.float32), draw(2, dtype=torch.float32)
    torch._dynamo.reset()

    def values_and_gradients(function):
        inputs = [t.clone().requires_grad_() for t in tensors]
        routing.zero_grad()
        result = function(*inputs)
        sum((t * torch.linspace(-1, 2, t.numel()).view_as(t)).sum() for t in result).backward()
        return [*result, *(t.grad for t in inputs if t.grad is not None), *(p.grad.clone() for p in routing.parameters())]

    eager = values_and_gradients(routing)
    for a, b in zip(values_and_gradients(torch.compile(routing, fullgraph=True, dynamic=False)), eager, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("iterations", [0, -1])
def test_no_iteration_is_an_error(name, bias, iterations):
    with pytest.raises(ValueError, match="at least one iteration"):
        make_routing(name, PARENTS, DIM, iterations=iterations, bias=bias)


def test_a_mistyped_name_is_answered_with_the_nearest(name, bias):
    with pytest.raises(UserError, match=f"Unknown routing '{name}x'. Did you mean '{name}'"):
        make_routing(f"{name}x", PARENTS, DIM, bias=bias)
