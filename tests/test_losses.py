"""Losses against plain loops and against values computed by hand."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import one_hot

from capslib.losses import margin_loss, spread_loss
from capslib.registry import LOSSES

each_loss = pytest.mark.parametrize("loss", [margin_loss, spread_loss])
each_size = pytest.mark.parametrize(("n", "classes"), [(1, 1), (1, 5), (6, 4)])


@each_size
def test_margin_loss_is_its_loops(n, classes):
    a, target = torch.rand(n, classes), torch.randint(classes, (n,))
    total = 0.0
    for row, right in zip(a.tolist(), target.tolist(), strict=True):
        for k, x in enumerate(row):
            total += max(0, 0.8 - x) ** 2 if k == right else 0.25 * max(0, x - 0.2) ** 2
    loss = margin_loss(a, target, positive=0.8, negative=0.2, down_weight=0.25)
    assert loss.item() == pytest.approx(total / n)


@each_size
def test_spread_loss_is_its_loops(n, classes):
    a, target = torch.rand(n, classes), torch.randint(classes, (n,))
    total = 0.0
    for row, right in zip(a.tolist(), target.tolist(), strict=True):
        for k, x in enumerate(row):
            total += max(0, 0.4 - (row[right] - x)) ** 2 if k != right else 0
    assert spread_loss(a, target, 0.4).item() == pytest.approx(total / n)


def test_losses_worked_by_hand():
    """Several digits in one image are their indicators."""
    a = torch.tensor([[0.5, 0.3, 0.05], [0.95, 0.1, 0.6]])
    first = 0.4**2 + 0.5 * 0.2**2 + 0.5 * 0.5**2
    assert margin_loss(a, torch.tensor([0, 0])).item() == pytest.approx(first / 2)
    digits = 0.4**2 + 0.6**2 + 0.5 * 0.85**2 + 0.3**2
    for dtype in (torch.int64, torch.bool, torch.float32):
        target = torch.tensor([[1, 1, 0], [0, 0, 1]], dtype=dtype)
        assert margin_loss(a, target).item() == pytest.approx(digits / 2)
    a = torch.tensor([[0.7, 0.6, 0.1]])
    for margin, expected in ((0.2, 0.1**2), (0.9, 0.8**2 + 0.3**2)):
        assert spread_loss(a, torch.tensor([0]), margin).item() == pytest.approx(expected)


def test_every_registered_loss_takes_scores_and_labels_alone():
    scores, labels = torch.rand(4, 3), torch.tensor([0, 1, 2, 0])
    assert all(loss(scores, labels).ndim == 0 for loss in LOSSES.values())
    assert LOSSES["spread"](scores, labels) == spread_loss(scores, labels, 0.9)


@each_loss
def test_equal_activations_raise_only_the_right_class(loss):
    a = torch.full((1, 4), 0.5, requires_grad=True)
    loss(a, torch.tensor([2])).backward()
    assert (a.grad > 0).tolist() == [[True, True, False, True]]


@each_loss
def test_labels_are_integers_of_any_width_or_one_hot(loss):
    """One-hot labels [N, C] of as many classes as examples are not N labels each."""
    a, target = torch.rand(3, 3), torch.tensor([0, 2, 1])
    for same_target in (target.to(torch.uint8), target.to(torch.int32), one_hot(target, 3)):
        assert loss(a, same_target) == loss(a, target)
    message = r"class indices \[N\] are integers, not torch\.float32"
    with pytest.raises(TypeError, match=message):
        loss(a, target.float())
