"""Wrong shapes and numbers are refused before anything is computed, with the shapes in the message."""

from __future__ import annotations

import pytest
import torch

from capslib import attacks, inequality
from capslib.data import transforms
from capslib.errors import UserError
from capslib.layers import (
    ClassCapsules,
    ConvCapsules,
    DenseCapsules,
    MatrixPrimaryCapsules,
    PrimaryCapsules,
    field_centres,
    grid_size,
    with_coordinates,
)
from capslib.losses import margin_loss, spread_loss
from capslib.networks import sparse_unsupervised as sparse
from capslib.networks.em_routing import BaselineCNN, MatrixCapsNet
from capslib.networks.inequality_anomaly import AnomalyCapsNet
from capslib.networks.learned_routing import ConsensusCapsNet
from capslib.networks.negation_limitation import CapsuleStack, DeepCapsNet, SignNetwork
from capslib.recipes import Recipe
from capslib.routing import ROUTINGS, LazyVotes, dynamic_routing, em_routing, make_routing
from capslib.shapes import check_positive, check_shapes

zeros, rand = torch.zeros, torch.rand
three_classes = rand(7, 3)
labels = torch.arange(7) % 3


def fgsm_of(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return attacks.fgsm(lambda x, target: x.sum(), x, target, 0.1)


REFUSED = {
    # losses
    "a column of labels": (
        lambda: margin_loss(three_classes, labels[:, None]),
        r"C is 3 .* target .* is \[7, 1\]",
    ),
    "one label for seven images": (
        lambda: margin_loss(three_classes, labels[:1]),
        r"N is 7 in activation and 1 in target",
    ),
    "a single label": (lambda: spread_loss(three_classes, labels[0]), r"target has 0 axes"),
    "scores of one image": (
        lambda: spread_loss(three_classes[0], labels[:1]),
        r"activation has 1 axes",
    ),
    "labels as a column of as many classes": (
        lambda: spread_loss(rand(1, 1), zeros(1, 2).long()),
        r"C is 1 .* and 2",
    ),
    "two-hot labels of the spread loss": (
        lambda: spread_loss(rand(1, 3), torch.tensor([[1, 1, 0]])),
        "one right class",
    ),
    "probabilities as labels": (
        lambda: margin_loss(rand(1, 2), torch.tensor([[0.5, 0.5]])),
        "zeros and ones",
    ),
    # routings
    "votes of one child": (
        lambda: dynamic_routing(rand(3, 4)),
        r"votes \[..., I, J, D\] is \[3, 4\]",
    ),
    "costs of other parents": (
        lambda: em_routing(rand(2, 5, 2, 4), rand(2, 5), zeros(3), zeros(3)),
        "J is 2 in votes and 3",
    ),
    "activations of another batch": (
        lambda: em_routing(rand(2, 5, 3, 4), rand(1, 5), zeros(3), zeros(3)),
        r"... is \[2\] in votes and \[1\] in activation",
    ),
    "activations of other children": (
        lambda: em_routing(rand(2, 5, 3, 4), rand(2, 6), zeros(3), zeros(3)),
        "I is 5 .* and 6",
    ),
    "a bias of other parents": (
        lambda: dynamic_routing(rand(2, 5, 3, 4), bias=zeros(1, 4)),
        "J is 3 in votes and 1 in bias",
    ),
    "matrices of other children": (
        lambda: dynamic_routing(LazyVotes(rand(5, 3, 4, 2), rand(7, 6, 2))),
        "I is 5 .* and 6",
    ),
    "poses of another dimension": (
        lambda: LazyVotes(rand(5, 3, 4, 4), rand(7, 5, 4, 3)).shape,
        "k is 4 .* and 3",
    ),
    # layers
    "features without a batch": (
        lambda: PrimaryCapsules(3, 2, 4)(rand(3, 20, 20)),
        "features has 3 axes",
    ),
    "features of other channels": (
        lambda: MatrixPrimaryCapsules(3, 2)(rand(1, 4, 5, 5)),
        "4 in the place of 3",
    ),
    "features smaller than the kernel": (
        lambda: PrimaryCapsules(3, 2, 4)(rand(1, 3, 8, 20)),
        "features of 8 × 20 .* 9 × 9",
    ),
    "capsules of another number": (
        lambda: DenseCapsules(5, 3, 2, 4)(rand(7, 6, 2), rand(7, 6)),
        "6 in the place of 5",
    ),
    "activations that dynamic routing ignores": (
        lambda: DenseCapsules(5, 3, 2, 4)(rand(7, 5, 2), rand(5)),
        "activation has 1 axes",
    ),
    "a grid smaller than the window": (
        lambda: ConvCapsules(2, 3)(rand(1, 2, 2, 2, 4, 4), rand(1, 2, 2, 2)),
        "grids of 2 × 2 .* 3 × 3",
    ),
    "a grid of vectors for matrices": (
        lambda: ConvCapsules(2, 3)(rand(1, 4, 4, 2, 16), rand(1, 4, 4, 2)),
        "pose has 5 axes",
    ),
    "a grid of other types": (
        lambda: ClassCapsules(2, 3)(rand(1, 2, 2, 3, 4, 4), rand(1, 2, 2, 3)),
        "3 in the place of 2",
    ),
    "a grid without coordinates of its own": (
        lambda: ClassCapsules(2, 3, coordinates=field_centres((4, 4), [(2, 2)]))(
            rand(1, 1, 1, 2, 4, 4), rand(1, 1, 1, 2)
        ),
        "1 in the place of 2",
    ),
    "coordinates of vectors": (
        lambda: with_coordinates(rand(1, 2, 2, 3, 16)),
        "pose has 5 axes",
    ),
    "a window of no side": (
        lambda: grid_size((4, 4), [(0, 1)]),
        "kernel has to be a whole number",
    ),
    # networks: images of another size than they were built for, once broadcast in silence
    "images of another size": (
        lambda: MatrixCapsNet((1, 20, 20))(rand(2, 1, 18, 20)),
        "18 in the place of 20",
    ),
    "one image": (lambda: BaselineCNN((1, 8, 8))(rand(1, 8, 8)), "images has 3 axes"),
    "images of another depth": (
        lambda: ConsensusCapsNet((1, 18, 18))(rand(2, 2, 18, 18)),
        "2 in the place of 1",
    ),
    "a batch of images in a row": (
        lambda: DeepCapsNet((1, 20, 20), depth=2)(rand(2, 400)),
        "images has 2 axes",
    ),
    "images too large": (
        lambda: AnomalyCapsNet((1, 20, 20))(rand(2, 1, 24, 24)),
        "24 in the place of 20",
    ),
    "images too small": (
        lambda: sparse.SparseCapsNet((1, 20, 20))(rand(2, 1, 19, 20)),
        "19 in the place of 20",
    ),
    "images of the autoencoder": (
        lambda: sparse.Autoencoder((1, 4, 4))(rand(2, 1, 2, 8)),
        "2 in the place of 4",
    ),
    "scalars in a column": (lambda: SignNetwork()(rand(3, 1)), "x has 2 axes"),
    "poses of one example": (
        lambda: CapsuleStack([(5, 2), (3, 2)])(rand(5, 2)),
        "pose has 2 axes",
    ),
    "labels of another batch": (
        lambda: sparse.SparseCapsNet((1, 20, 20), mask="label", capsules=10)(
            rand(2, 1, 20, 20), labels[:3]
        ),
        "N is 2 in support and 3 in labels",
    ),
    "a 16 × 32 EM network": (
        lambda: MatrixCapsNet((2, 16, 32)),
        "images of 16 × 32 .* 17 × 17 is the least",
    ),
    "an EM network without channels": (
        lambda: MatrixCapsNet((20, 20)),
        "images have a height and a width, not 1 sides",
    ),
    "a 1 × 1 EM network": (
        lambda: ConsensusCapsNet((2, 1, 1)),
        "images of 1 × 1 .* 17 × 17 is the least",
    ),
    "a 3 × 9 CNN": (lambda: BaselineCNN((1, 3, 9)), "images of 3 × 9 .* 4 × 4 is the least"),
    "a 16 × 16 deep network": (
        lambda: DeepCapsNet((1, 16, 16), depth=3),
        "images of 16 × 16 .* 17 × 17 is the least",
    ),
    "a 12 × 12 sparse network": (
        lambda: sparse.SparseCapsNet((1, 12, 12)),
        "images of 12 × 12 .* 17 × 17 is the least",
    ),
    "an 8 × 8 anomaly network": (
        lambda: AnomalyCapsNet((1, 8, 8)),
        "inputs of 8 × 8 .* 17 × 17 is the least",
    ),
    # images
    "one image to standardise": (lambda: transforms.standardise(rand(1, 8, 8)), "x has 3 axes"),
    "a standard of another batch": (
        lambda: transforms.standardise(rand(2, 1, 8, 8), of=rand(1, 1, 8, 8)),
        "N is 2 in x and 1 in of",
    ),
    "blocks of one image": (lambda: transforms.downsample(rand(8, 8), 2), "x has 2 axes"),
    "jitter of one image": (
        lambda: transforms.jitter(rand(1, 8, 8), torch.Generator()),
        "x has 3 axes",
    ),
    "a crop of one image": (lambda: transforms.center_crop(rand(8, 8), 4), "x has 2 axes"),
    "a crop larger than the images": (
        lambda: transforms.random_crop(rand(2, 1, 8, 8), 9, torch.Generator()),
        "no crop of 9 × 9",
    ),
    # measures and attacks
    "no values": (
        lambda: inequality.gini(zeros(3, 0)),
        r"dimension -1 of \[3, 0\] has no values",
    ),
    "no values in relative measures": (
        lambda: inequality.theil(zeros(0, 3), dim=0),
        "dimension 0 of",
    ),
    "couplings of half a grid": (
        lambda: sparse.routing_support(rand(1, 5, 2), 2),
        "5 children are not of 2 types",
    ),
    "ranks of no capsule": (lambda: sparse.ranks(rand(4, 0)), "L is 0 in strength"),
    "targets of another batch": (
        lambda: fgsm_of(rand(3, 4), labels[:2]),
        "N is 3 in x and 2 in target",
    ),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_shape_is_refused_with_both(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.parametrize(
    ("children", "parents", "dim"), [(0, 3, 4), (5, 0, 4), (5, -1, 4), (5, 3, 0)]
)
def test_no_routing_takes_less_than_one_of_anything(name, children, parents, dim):
    """No children ended in four different ways, one of them a NaN."""
    with pytest.raises(ValueError, match=r"is 0 in votes|whole number of at least 1"):
        make_routing(name, parents, dim)(zeros(2, children, parents, dim), zeros(2, children))


@pytest.mark.parametrize(
    "layer",
    [DenseCapsules, PrimaryCapsules, MatrixPrimaryCapsules, ConvCapsules, ClassCapsules],
)
@pytest.mark.parametrize("number", [0, -1, 2.5, float("nan"), float("inf"), "3", None, True])
def test_no_layer_is_built_of_less_than_one_of_anything(layer, number):
    numbers = [3] * {DenseCapsules: 4, PrimaryCapsules: 3}.get(layer, 2)
    for place in range(len(numbers)):
        with pytest.raises(ValueError, match="whole number of at least 1"):
            layer(*numbers[:place], number, *numbers[place + 1 :])


@pytest.mark.parametrize("name", ROUTINGS)
def test_an_empty_batch_has_an_empty_result(name):
    result = make_routing(name, 3, 4)(zeros(0, 5, 3, 4), zeros(0, 5))
    assert [tuple(t.shape) for t in result] == [(0, 3, 4), (0, 3), (0, 5, 3)]


def test_several_digits_in_one_image_are_their_indicators():
    activation = torch.tensor([[0.5, 0.3, 0.05], [0.95, 0.1, 0.6]], dtype=torch.float64)
    several = torch.tensor([[1, 1, 0], [0, 0, 1]])
    by_hand = (0.4**2 + 0.6**2 + 0 + 0.5 * 0.85**2 + 0 + 0.3**2) / 2
    for target in (several, several.bool(), several.float()):
        assert margin_loss(activation, target).item() == pytest.approx(by_hand)


@pytest.mark.parametrize("loss", [margin_loss, spread_loss])
def test_one_hot_classes_have_the_loss_of_their_indices(loss):
    """Integers [N, C] with N = C were once taken for N labels each."""
    activation, target = rand(3, 3), torch.tensor([2, 0, 0])
    assert loss(activation, torch.nn.functional.one_hot(target)) == loss(activation, target)


MISTYPED = {
    "a layer": (lambda: DenseCapsules(5, 3, 2, 4, iteration=3), "iterations"),
    "a network": (lambda: MatrixCapsNet((1, 20, 20), iteration=3), "iterations"),
    "a routing that passes its options on": (
        lambda: make_routing("em_vector", 3, 4, variance_ofset=0),
        "variance_offset",
    ),
    "a recipe": (lambda: Recipe(network="cnn", epoch=3), "epochs"),
}


@pytest.mark.parametrize(("call", "nearest"), MISTYPED.values(), ids=MISTYPED)
def test_a_mistyped_option_is_told_the_nearest(call, nearest):
    with pytest.raises((UserError, ValueError), match=f"Did you mean '{nearest}'"):
        call()


def test_a_single_capsule_keeps_all_under_a_mask_of_ranks():
    assert sparse.rank_mask(zeros(2, 1)).tolist() == [[1.0], [1.0]]  # it was 0/0


def test_a_pattern_names_axes_sizes_and_the_batch():
    check_shapes(
        a=(zeros(2, 3, 4), "... J D"),
        b=(zeros(2, 3), "... J"),
        c=(None, "J"),
        d=(zeros(4, 0), ("D", "N")),
    )
    check_positive(a=1, b=2.0)
    with pytest.raises(
        ValueError, match=r"J is 3 in a and 4 in b: a \[J\] is \[3\], b \[J\] is \[4\]"
    ):
        check_shapes(a=(zeros(3), "J"), b=(zeros(4), "J"))
