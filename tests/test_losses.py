"""Losses against plain loops and against values computed by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import one_hot

from capslib.losses import margin_loss, spread_loss
from capslib.registry import LOSSES

each_loss = pytest.mark.parametrize("loss", [margin_loss, spread_loss])
sizes = given(n=st.integers(1, 6), classes=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))


def draw(n: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    activation = torch.rand(n, classes, generator=generator, dtype=torch.float64)
    return activation, torch.randint(classes, (n,), generator=generator)


def assert_mean(loss: Tensor, total: float, n: int) -> None:
    assert loss.shape == ()
    assert loss.item() == pytest.approx(total / n)


@sizes
def test_margin_loss_is_its_loops(n, classes, seed):
    a, target = draw(n, classes, seed)
    total = 0.0
    for row, t in zip(a.tolist(), target.tolist(), strict=True):
        for k, x in enumerate(row):
            total += max(0, 0.8 - x) ** 2 if k == t else 0.25 * max(0, x - 0.2) ** 2
    options = {"positive": 0.8, "negative": 0.2, "down_weight": 0.25}
    assert_mean(margin_loss(a, target, **options), total, n)


@sizes
def test_spread_loss_is_its_loops(n, classes, seed):
    a, target = draw(n, classes, seed)
    total = 0.0
    for row, t in zip(a.tolist(), target.tolist(), strict=True):
        for k, x in enumerate(row):
            total += max(0, 0.4 - (row[t] - x)) ** 2 if k != t else 0
    assert_mean(spread_loss(a, target, 0.4), total, n)


def test_losses_worked_by_hand():
    """Class 0 is right in both examples."""
    a = torch.tensor([[0.5, 0.3, 0.05], [0.95, 0.1, 0.6]])
    margin = 0.4**2 + 0.5 * 0.2**2 + 0.5 * 0.5**2
    assert_mean(margin_loss(a, torch.tensor([0, 0])), margin, 2)
    a = torch.tensor([[0.7, 0.6, 0.1]])
    assert_mean(spread_loss(a, torch.tensor([0]), margin=0.2), 0.1**2, 1)
    assert_mean(spread_loss(a, torch.tensor([0]), margin=0.9), 0.8**2 + 0.3**2, 1)


def test_several_digits_in_one_image_are_their_indicators():
    activation = torch.tensor([[0.5, 0.3, 0.05], [0.95, 0.1, 0.6]], dtype=torch.float64)
    target = torch.tensor([[1, 1, 0], [0, 0, 1]])
    by_hand = 0.4**2 + 0.6**2 + 0.5 * 0.85**2 + 0.3**2
    for dtype in (torch.int64, torch.bool, torch.float32):
        assert_mean(margin_loss(activation, target.to(dtype)), by_hand, 2)


def test_every_registered_loss_takes_scores_and_labels_alone():
    scores, labels = torch.rand(4, 3), torch.tensor([0, 1, 2, 0])
    assert all(loss(scores, labels).ndim == 0 for loss in LOSSES.values())
    assert LOSSES["spread"](scores, labels) == spread_loss(scores, labels, 0.9)


@each_loss
def test_equal_activations_raise_only_the_right_class(loss):
    a = torch.full((1, 4), 0.5, requires_grad=True)
    loss(a, torch.tensor([2])).backward()
    assert a.grad[0, 2] < 0
    assert (a.grad[0, [0, 1, 3]] > 0).all()


@each_loss
def test_labels_are_integers_of_any_width_or_one_hot(loss):
    """One-hot labels [N, C] of as many classes as examples are not N labels each."""
    a, target = draw(3, 3, 0)
    for dtype in (torch.uint8, torch.int32):
        assert loss(a, target.to(dtype)) == loss(a, target)
    assert loss(a, one_hot(target, 3)) == loss(a, target)
    message = r"class indices \[N\] are integers, not torch\.float32"
    with pytest.raises(TypeError, match=message):
        loss(a, target.float())
