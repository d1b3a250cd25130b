"""Dynamic routing: numbers that can be worked out on paper, and squash."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from capslib.routing import dynamic_routing, squash


def length(s: float) -> float:
    return s * abs(s) / (1 + s * s)


def test_two_iterations_worked_by_hand():
    """One child with the votes 1 and 2 for two parents of one dimension."""
    first = length(0.5), length(1.0)  # both couplings are one half
    odds = math.exp(first[0] * 1), math.exp(first[1] * 2)  # agreement of pose and vote
    coupling = odds[0] / sum(odds), odds[1] / sum(odds)
    result = dynamic_routing(torch.tensor([[[1.0], [2.0]]], dtype=torch.float64), iterations=2)
    torch.testing.assert_close(result.coupling, torch.tensor([coupling], dtype=torch.float64))
    expected = torch.tensor(
        [length(coupling[0] * 1), length(coupling[1] * 2)], dtype=torch.float64
    )
    torch.testing.assert_close(result.pose[:, 0], expected)
    torch.testing.assert_close(result.activation, expected)


def test_a_bias_enters_before_squash_and_changes_the_agreement():
    votes = torch.tensor([[[1.0], [2.0]]], dtype=torch.float64)
    bias = torch.tensor([[3.0], [-5.0]], dtype=torch.float64)
    one = dynamic_routing(votes, iterations=1, bias=bias)
    torch.testing.assert_close(
        one.pose[:, 0], torch.tensor([length(0.5 + 3), length(1.0 - 5)], dtype=torch.float64)
    )
    plain, biased = (
        dynamic_routing(votes, iterations=2, bias=b).coupling[0, 0] for b in (None, bias)
    )
    assert plain < 0.5 < biased  # the second parent now points away from its vote


def test_one_parent_takes_every_child():
    votes = torch.randn(7, 1, 3, dtype=torch.float64)
    result = dynamic_routing(votes)
    torch.testing.assert_close(result.coupling, torch.ones(7, 1, dtype=torch.float64))
    torch.testing.assert_close(result.pose, squash(votes.sum(0)))


def test_gradients_flow_through_the_agreements():
    """The released code of some papers stops them; here the first iteration matters for the gradient of the last."""
    votes = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)
    dynamic_routing(votes, iterations=3).coupling[0, 0].backward()
    assert (votes.grad != 0).all()


# ------------------------------------------------------------------------------------------------------------- squash


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
    assert torch.equal(y, torch.zeros(2, 3))
    assert torch.equal(x.grad, torch.zeros(2, 3))


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2])
def test_squash_along_any_dimension(dim):
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(squash(x, dim), squash(x.movedim(dim, -1)).movedim(-1, dim))
