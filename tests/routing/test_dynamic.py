"""Dynamic routing: numbers that can be worked out on paper, and squash."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from capslib.routing import dynamic_routing, squash

VOTES = torch.tensor([[[1.0], [2.0]]], dtype=torch.float64)
"""The votes [I, J, D] of one child, 1 and 2 for two parents of one dimension."""


def length(s: float) -> float:
    return s * abs(s) / (1 + s * s)


def test_two_iterations_worked_by_hand():
    first = length(0.5), length(1.0)  # both couplings are one half
    weights = math.exp(first[0] * 1), math.exp(first[1] * 2)  # agreements of pose and vote
    coupling = weights[0] / sum(weights), weights[1] / sum(weights)
    poses = length(coupling[0] * 1), length(coupling[1] * 2)
    result = dynamic_routing(VOTES, iterations=2)
    assert result.coupling.flatten().tolist() == pytest.approx(coupling)
    assert result.pose.flatten().tolist() == pytest.approx(poses)
    assert result.activation.tolist() == pytest.approx(poses)


def test_a_bias_enters_before_squash_and_changes_the_agreement():
    bias = torch.tensor([[3.0], [-5.0]], dtype=torch.float64)
    pose = dynamic_routing(VOTES, iterations=1, bias=bias).pose
    assert pose.flatten().tolist() == pytest.approx([length(0.5 + 3), length(1.0 - 5)])
    coupling = dynamic_routing(VOTES, iterations=2, bias=bias).coupling
    # The second parent now points away from its vote.
    assert dynamic_routing(VOTES, iterations=2).coupling[0, 0] < 0.5 < coupling[0, 0]


def test_one_parent_takes_every_child():
    votes = torch.randn(7, 1, 3, dtype=torch.float64)
    result = dynamic_routing(votes)
    assert (result.coupling == 1).all()
    torch.testing.assert_close(result.pose, squash(votes.sum(0)))


def test_gradients_flow_through_the_agreements():
    """The released code of some papers stops them."""
    votes = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)
    dynamic_routing(votes, iterations=3).coupling[0, 0].backward()
    assert (votes.grad != 0).all()


@given(size=st.floats(1e-6, 1e4), dim=st.integers(1, 8), seed=st.integers(0, 2**32 - 1))
def test_squash_keeps_the_direction_and_a_length_below_one(size, dim, seed):
    x = torch.randn(dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = x / x.norm() * size
    y = squash(x)
    assert 0 < y.norm() < 1
    torch.testing.assert_close(y, x / size * (size**2 / (1 + size**2)))
    assert torch.equal(squash(-x), -y)


def test_squash_at_zero_is_zero_and_so_is_its_gradient():
    x = torch.zeros(2, 3, requires_grad=True)
    y = squash(x)
    y.sum().backward()
    assert not y.any()
    assert not x.grad.any()


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2])
def test_squash_along_any_dimension(dim):
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(squash(x, dim), squash(x.movedim(dim, -1)).movedim(-1, dim))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0, 60_000.0])
def test_squash_keeps_long_vectors_of_half_precision(dtype, size):
    """The square of a length above 256 is no float16."""
    x = torch.tensor([size, 0.0], dtype=dtype)
    result = squash(x)
    assert result.dtype == dtype
    torch.testing.assert_close(result.double(), squash(x.double()), rtol=0.01, atol=1e-7)


def test_squash_refuses_integers():
    with pytest.raises(TypeError, match=r"floating-point numbers, not torch\.int64"):
        squash(torch.tensor([3, 4]))
