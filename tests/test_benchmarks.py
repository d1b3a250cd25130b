"""The roofline of the speed page: what is counted, and which of arithmetic and memory binds."""

from __future__ import annotations

import pytest
import torch

cases = pytest.importorskip(
    "benchmarks.cases", reason="benchmarks/ stands beside the package in a checkout only"
)
from benchmarks.__main__ import add_limits  # noqa: E402


def counted(function) -> int:
    with cases.Arithmetic() as arithmetic:
        function()
    return arithmetic.flops


def test_arithmetic_counts_elements_and_moving_data_is_free():
    a, b = torch.rand(3, 4), torch.rand(3, 4)
    assert counted(lambda: a * b + 1) == 24
    assert counted(lambda: (a[:, None] * b).sum(dim=0)) == 36 + 36
    assert counted(lambda: a.softmax(dim=-1)) == 5 * 12
    assert counted(lambda: a.log()) == 12
    assert (
        counted(lambda: a.t().reshape(12).contiguous()) == counted(lambda: torch.zeros(9)) == 0
    )


@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_the_operations_of_a_layer_grow_with_its_votes(routing):
    small, large = (cases.Layer("x", routing, (n, 24, 5, 16)) for n in (1, 6))
    assert large.flops == 6 * small.flops
    step = large.prepare("textbook", "cpu")
    assert counted(step) == pytest.approx(large.flops, rel=0.01)
    votes = torch.Size(large.shape).numel()
    assert (
        15 * votes < large.flops < 150 * votes
    )  # three iterations of a few operations per vote, forward and backward


def test_the_larger_of_arithmetic_and_memory_is_the_limit():
    rates = {"vector_flops_per_second": 100.0, "bytes_per_second": 10.0}
    assert cases.limit(200, 10, rates) == (2.0, "arithmetic")
    assert cases.limit(200, 30, rates) == (3.0, "memory")


def test_each_layer_is_compared_with_its_limit_and_a_step_with_none():
    layer = cases.Layer("x", "dynamic", (2, 24, 5, 16))
    rates = {
        "vector_flops_per_second": layer.flops / 0.5,
        "bytes_per_second": layer.bytes / 0.1,
    }
    rows = [
        {"kind": "layer", "name": "x", "path": "fast", "milliseconds": 1500.0},
        {"kind": "step", "name": "y", "milliseconds": 1},
    ]
    add_limits(rows, {"x": layer}, rates)
    assert (rows[0]["times_limit"], rows[0]["bound_by"]) == (3.0, "arithmetic")
    assert "times_limit" not in rows[1]
