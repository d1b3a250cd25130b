"""The roofline of the speed page, and what is measured on a card in minutes."""

from __future__ import annotations

import io

import pytest
import torch

from capslib.papers import STEMS
from capslib.registry import ROUTINGS

cases = pytest.importorskip(
    "benchmarks.cases", reason="benchmarks/ stands beside the package in a checkout only"
)
from benchmarks import card  # noqa: E402
from benchmarks.__main__ import add_limits  # noqa: E402

RATES = {"vector_flops_per_second": 100.0, "bytes_per_second": 10.0}


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
    assert counted(lambda: a.t().reshape(12).contiguous()) == 0


@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_the_operations_of_a_layer_grow_with_its_votes(routing):
    layer = cases.Layer("x", routing, (6, 24, 5, 16))
    assert counted(layer.prepare("textbook", "cpu")) == pytest.approx(layer.flops, rel=0.01)
    # three iterations of a few operations per vote, forward and backward
    assert 15 < layer.flops / torch.Size(layer.shape).numel() < 150


def test_the_larger_of_arithmetic_and_memory_is_the_limit():
    assert cases.limit(200, 10, RATES) == (2.0, "arithmetic")
    assert cases.limit(200, 30, RATES) == (3.0, "memory")


def test_each_layer_is_compared_with_its_limit_and_a_step_with_none():
    layer = cases.Layer("x", "dynamic", (2, 24, 5, 16))
    seconds, bound = cases.limit(layer.flops, layer.bytes, RATES)
    rows = [{"name": "x", "milliseconds": 3e3 * seconds}, {"name": "y", "milliseconds": 1}]
    add_limits(rows, {"x": layer}, RATES)
    assert (rows[0]["times_limit"], rows[0]["bound_by"]) == (3.0, bound)
    assert "times_limit" not in rows[1]


def test_every_main_network_of_the_card_is_an_arm_at_paper_scale():
    sizes = {name: card.recipe_of(name).batch_size for name in card.MAIN_NETWORKS}
    assert min(sizes.values()) > 0
    assert {paper for paper, *_ in card.MAIN_NETWORKS.values()} == set(STEMS)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_routing_on_this_machine_agrees_with_its_definition(routing):
    assert card.disagreement(routing, "fast", "cpu") < 1e-4
    assert card.disagreement(routing, "eager", "cpu") < 1e-4


def test_the_clock_counts_only_what_follows_the_start(monkeypatch, capsys):
    times = iter([0.0, *range(100, 106)])
    monkeypatch.setattr(card.time, "perf_counter", lambda: next(times))
    monkeypatch.setattr(card.sys, "stdin", io.StringIO("go\n"))
    clock = card.Clock()
    for epoch in range(1, 8):
        clock(epoch * card.EPOCH_STEPS, 0, "")
    assert capsys.readouterr().out == "warm\n"
    assert clock.seconds_of_a_step() == 1 / card.EPOCH_STEPS
