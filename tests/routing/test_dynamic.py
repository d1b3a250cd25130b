"""Dynamic routing: numbers that can be worked out on paper, and squash."""

from __future__ import annotations

import math

import pytest
import torch

from capslib.routing import dynamic_routing, squash

pytestmark = pytest.mark.usefixtures("float64")


def length(s: float) -> float:
    return s * abs(s) / (1 + s * s)


VOTES = torch.tensor([[[1.0], [2.0]]], dtype=torch.float64)
"""Of one child for two parents."""


@pytest.mark.parametrize("bias", [(0.0, 0.0), (3.0, -5.0)])
def test_two_iterations_worked_by_hand(bias):
    first = length(0.5 + bias[0]), length(1.0 + bias[1])  # both couplings are one half
    weights = math.exp(first[0] * 1), math.exp(first[1] * 2)  # agreements of pose and vote
    coupling = weights[0] / sum(weights), weights[1] / sum(weights)
    poses = length(coupling[0] * 1 + bias[0]), length(coupling[1] * 2 + bias[1])
    result = dynamic_routing(VOTES, iterations=2, bias=torch.tensor(bias)[:, None])
    assert result.coupling.flatten().tolist() == pytest.approx(coupling)
    assert result.pose.flatten().tolist() == pytest.approx(poses)
    lengths = abs(poses[0]), abs(poses[1])
    assert result.activation.tolist() == pytest.approx(lengths)


def test_a_bias_enters_before_squash_and_changes_the_agreement():
    bias = torch.tensor([[3.0], [-5.0]])
    pose = dynamic_routing(VOTES, iterations=1, bias=bias).pose
    expected = [length(0.5 + 3), length(1.0 - 5)]
    assert pose.flatten().tolist() == pytest.approx(expected)
    without_bias = dynamic_routing(VOTES, iterations=2).coupling[0, 0]
    coupling = dynamic_routing(VOTES, iterations=2, bias=bias).coupling[0, 0]
    assert without_bias < 0.5 < coupling, "the second parent points away from its vote"


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e4])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_squash_keeps_the_direction_and_a_length_below_one(size, dim):
    x = torch.randn(2, 3, 4)
    unit = x / x.norm(dim=dim, keepdim=True)
    y = squash(size * unit, dim)
    assert (y.norm(dim=dim) < 1).all()
    torch.testing.assert_close(y, unit * size**2 / (1 + size**2))
    assert torch.equal(squash(-size * unit, dim), -y)


def test_squash_at_zero_is_zero_and_so_is_its_gradient():
    x = torch.zeros(2, 3, requires_grad=True)
    y = squash(x)
    y.sum().backward()
    assert not y.any()
    assert not x.grad.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_squash_keeps_long_vectors_of_half_precision(dtype):
    """The square of a length above 256 is no float16."""
    lengths = torch.tensor([1e-3, 300.0, 60_000.0])
    x = lengths.to(dtype)[:, None]
    result, expected = squash(x), squash(x.double())
    assert result.dtype == dtype
    torch.testing.assert_close(result.double(), expected, rtol=0.01, atol=1e-7)


def test_squash_refuses_integers():
    with pytest.raises(TypeError, match=r"floating-point numbers, not torch\.int64"):
        squash(torch.tensor([3, 4]))
