"""Losses against plain loops and against values computed by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from capslib.losses import margin_loss, spread_loss
from capslib.registry import LOSSES


def draw(n: int, classes: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.rand(n, classes, generator=g, dtype=torch.float64), torch.randint(
        classes, (n,), generator=g
    )


shapes = given(n=st.integers(1, 6), classes=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))


@shapes
def test_margin_loss_is_its_loops(n, classes, seed):
    a, target = draw(n, classes, seed)
    total = 0.0
    for row, t in zip(a.tolist(), target.tolist(), strict=True):
        for k, x in enumerate(row):
            total += max(0, 0.8 - x) ** 2 if k == t else 0.25 * max(0, x - 0.2) ** 2
    loss = margin_loss(a, target, positive=0.8, negative=0.2, down_weight=0.25)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(total / n)


@shapes
def test_spread_loss_is_its_loops(n, classes, seed):
    a, target = draw(n, classes, seed)
    total = sum(
        max(0, 0.4 - (row[t] - x)) ** 2
        for row, t in zip(a.tolist(), target.tolist(), strict=True)
        for k, x in enumerate(row)
        if k != t
    )
    loss = spread_loss(a, target, 0.4)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(total / n)


def test_margin_loss_worked_by_hand():
    a = torch.tensor([[0.5, 0.3, 0.05], [0.95, 0.1, 0.6]])
    # 0.4² + ½·0.2² + 0 = 0.18 and 0 + 0 + ½·0.5² = 0.125; class 0 is right in both
    assert margin_loss(a, torch.tensor([0, 0])).item() == pytest.approx((0.18 + 0.125) / 2)


def test_every_registered_loss_takes_scores_and_labels_alone():
    scores, labels = torch.rand(4, 3), torch.tensor([0, 1, 2, 0])
    assert all(loss(scores, labels).ndim == 0 for loss in LOSSES.values())
    assert LOSSES["spread"](scores, labels) == spread_loss(scores, labels, 0.9)


def test_spread_loss_worked_by_hand():
    a = torch.tensor([[0.7, 0.6, 0.1]])
    assert spread_loss(a, torch.tensor([0]), margin=0.2).item() == pytest.approx(0.1**2)
    assert spread_loss(a, torch.tensor([0]), margin=0.9).item() == pytest.approx(
        0.8**2 + 0.3**2
    )


def test_equal_activations_raise_only_the_right_class():
    """The gradients of both losses raise the right class and lower all others."""
    for loss in (margin_loss, lambda a, t: spread_loss(a, t, 0.5)):
        a = torch.full((1, 4), 0.5, requires_grad=True)
        loss(a, torch.tensor([2])).backward()
        assert a.grad[0, 2] < 0
        assert (a.grad[0, [0, 1, 3]] > 0).all()


@pytest.mark.parametrize("loss", [margin_loss, spread_loss])
def test_labels_are_integers_of_any_width(loss):
    a, target = draw(4, 3, 0)
    for dtype in (torch.uint8, torch.int32):
        assert loss(a, target.to(dtype)) == loss(a, target)
    with pytest.raises(
        TypeError, match=r"class indices \[N\] are integers, not torch\.float32"
    ):
        loss(a, target.float())
