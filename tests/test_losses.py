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
    activation, labels = torch.rand(n, classes), torch.randint(classes, (n,))
    total = 0.0
    for row, label in zip(activation.tolist(), labels.tolist(), strict=True):
        for k, a in enumerate(row):
            if k == label:
                total += max(0, 0.8 - a) ** 2
            else:
                total += 0.25 * max(0, a - 0.2) ** 2
    loss = margin_loss(activation, labels, positive=0.8, negative=0.2, down_weight=0.25)
    assert loss.item() == pytest.approx(total / n)


@each_size
def test_spread_loss_is_its_loops(n, classes):
    activation, labels = torch.rand(n, classes), torch.randint(classes, (n,))
    total = 0.0
    for row, label in zip(activation.tolist(), labels.tolist(), strict=True):
        for k, a in enumerate(row):
            if k != label:
                total += max(0, 0.4 - (row[label] - a)) ** 2
    loss = spread_loss(activation, labels, 0.4)
    assert loss.item() == pytest.approx(total / n)


def test_losses_worked_by_hand():
    activation = torch.tensor([[0.5, 0.3, 0.05], [0.95, 0.1, 0.6]])
    total = 0.4**2 + 0.5 * 0.2**2 + 0.5 * 0.5**2
    loss = margin_loss(activation, torch.tensor([0, 0]))
    assert loss.item() == pytest.approx(total / 2)
    activation = torch.tensor([[0.7, 0.6, 0.1]])
    label = torch.tensor([0])
    loss = spread_loss(activation, label, 0.2)
    assert loss.item() == pytest.approx(0.1**2)
    loss = spread_loss(activation, label, 0.9)
    assert loss.item() == pytest.approx(0.8**2 + 0.3**2)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32])
def test_several_digits_in_one_image_are_their_indicators(dtype):
    activation = torch.tensor([[0.5, 0.3, 0.05], [0.95, 0.1, 0.6]])
    digits = torch.tensor([[1, 1, 0], [0, 0, 1]], dtype=dtype)
    total = 0.4**2 + 0.6**2 + 0.5 * 0.85**2 + 0.3**2
    loss = margin_loss(activation, digits)
    assert loss.item() == pytest.approx(total / 2)


def test_every_registered_loss_takes_scores_and_labels_alone():
    scores, labels = torch.rand(4, 3), torch.tensor([0, 1, 2, 0])
    for loss in LOSSES.values():
        assert loss(scores, labels).ndim == 0
    assert LOSSES["spread"](scores, labels) == spread_loss(scores, labels, 0.9)


@each_loss
def test_equal_activations_raise_only_the_right_class(loss):
    activation = torch.full((1, 4), 0.5, requires_grad=True)
    loss(activation, torch.tensor([2])).backward()
    assert (activation.grad > 0).tolist() == [[True, True, False, True]]


@each_loss
def test_labels_are_integers_of_any_width_or_one_hot(loss):
    """One-hot labels [N, C] of as many classes as examples are not N labels each."""
    activation, labels = torch.rand(3, 3), torch.tensor([0, 2, 1])
    expected = loss(activation, labels)
    assert loss(activation, labels.to(torch.uint8)) == expected
    assert loss(activation, labels.to(torch.int32)) == expected
    assert loss(activation, one_hot(labels, 3)) == expected
    message = r"class indices \[N\] are integers, not torch\.float32"
    with pytest.raises(TypeError, match=message):
        loss(activation, labels.float())


@each_loss
@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_that_is_no_class_is_refused(loss, label):
    with pytest.raises(ValueError, match=f"labels go from 0 to 2, and there is {label}$"):
        loss(torch.rand(2, 3), torch.tensor([1, label]))


@each_loss
def test_the_loss_of_each_example_has_the_mean_that_is_the_loss(loss):
    activation, labels = torch.rand(5, 3), torch.tensor([0, 1, 2, 0, 1])
    losses = loss(activation, labels, reduction="none")
    assert losses.shape == (5,)
    assert losses.mean() == loss(activation, labels)


@each_loss
def test_a_loss_of_bfloat16_is_added_in_float32(loss):
    activation = torch.rand(200, 10).bfloat16()
    labels = torch.arange(200) % 10
    result = loss(activation, labels)
    assert result.dtype == torch.float32
    assert result == loss(activation.float(), labels)


@each_loss
def test_a_mask_of_booleans_is_no_list_of_labels(loss):
    with pytest.raises(TypeError, match="integers"):
        loss(torch.rand(2, 3), torch.tensor([True, False]))
