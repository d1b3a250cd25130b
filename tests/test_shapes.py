"""Wrong shapes and numbers are refused before anything is computed, with the shapes named."""

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
scores = rand(7, 3)
labels = torch.arange(7) % 3
votes = rand(2, 5, 3, 4)
betas = zeros(2, 3)
generator = torch.Generator()


def fgsm(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return attacks.fgsm(lambda x, target: x.sum(), x, target, 0.1)


def of_grid_two() -> ClassCapsules:
    return ClassCapsules(2, 3, coordinates=field_centres((4, 4), [(2, 2)]))


LOSSES = {
    "a column of labels": (lambda: margin_loss(scores, labels[:, None]), r"is \[7, 1\]"),
    "one label": (lambda: margin_loss(scores, labels[:1]), "N is 7 in activation and 1"),
    "no axis": (lambda: spread_loss(scores, labels[0]), "target has 0 axes"),
    "scores of one image": (lambda: spread_loss(scores[0], labels), "activation has 1 axes"),
    "two-hot labels": (lambda: spread_loss(rand(1, 2), torch.ones(1, 2)), "one right class"),
    "probabilities": (lambda: margin_loss(rand(1, 2), rand(1, 2)), "zeros and ones"),
}
ROUTED = {
    "one child": (lambda: dynamic_routing(rand(3, 4)), r"votes \[..., I, J, D\] is \[3, 4\]"),
    "other costs": (
        lambda: em_routing(votes, rand(2, 5), *zeros(2, 2)),
        "J is 3 in votes and 2",
    ),
    "another batch": (
        lambda: em_routing(votes, rand(1, 5), *betas),
        r"... is \[2\] in votes and \[1\] in activation",
    ),
    "other children": (lambda: em_routing(votes, rand(2, 6), *betas), "I is 5 .* and 6"),
    "another bias": (
        lambda: dynamic_routing(votes, bias=zeros(1, 4)),
        "J is 3 in votes and 1 in bias",
    ),
    "other matrices": (
        lambda: dynamic_routing(LazyVotes(rand(5, 3, 4, 2), rand(7, 6, 2))),
        "I is 5 .* and 6",
    ),
    "another pose": (
        lambda: LazyVotes(rand(5, 3, 4, 4), rand(7, 5, 4, 3)).shape,
        "k is 4 .* and 3",
    ),
}
LAYERS = {
    "no batch": (lambda: PrimaryCapsules(3, 2, 4)(rand(3, 20, 20)), "features has 3 axes"),
    "other channels": (lambda: MatrixPrimaryCapsules(3, 2)(rand(1, 4, 5, 5)), "4 in .* of 3"),
    "too small": (lambda: PrimaryCapsules(3, 2, 4)(rand(1, 3, 8, 20)), "8 × 20 .* 9 × 9"),
    "other capsules": (lambda: DenseCapsules(5, 3, 2, 4)(rand(7, 6, 2), rand(7, 6)), "6 in"),
    "ignored activations": (
        lambda: DenseCapsules(5, 3, 2, 4)(rand(7, 5, 2), rand(5)),
        "activation has 1 axes",
    ),
    "a small grid": (
        lambda: ConvCapsules(2, 3)(rand(1, 2, 2, 2, 4, 4), rand(1, 2, 2, 2)),
        "grids of 2 × 2 .* 3 × 3",
    ),
    "vectors for matrices": (
        lambda: ConvCapsules(2, 3)(rand(1, 4, 4, 2, 16), rand(1, 4, 4, 2)),
        "pose has 5 axes",
    ),
    "another grid": (
        lambda: of_grid_two()(rand(1, 1, 1, 2, 4, 4), rand(1, 1, 1, 2)),
        "1 in the place of 2",
    ),
    "coordinates of vectors": (lambda: with_coordinates(rand(1, 2, 2, 3, 16)), "5 axes"),
    "a window of no side": (lambda: grid_size((4, 4), [(0, 1)]), "kernel has to be a whole"),
}
NETWORKS = {
    "em": (lambda: MatrixCapsNet((1, 20, 20))(rand(2, 1, 18, 20)), "18 in the place of 20"),
    "cnn": (lambda: BaselineCNN((1, 8, 8))(rand(1, 8, 8)), "images has 3 axes"),
    "consensus": (lambda: ConsensusCapsNet((1, 18, 18))(rand(2, 2, 18, 18)), "2 in .* of 1"),
    "deep": (lambda: DeepCapsNet((1, 20, 20), depth=2)(rand(2, 400)), "images has 2 axes"),
    "anomaly": (lambda: AnomalyCapsNet((1, 20, 20))(rand(2, 1, 24, 24)), "24 in .* of 20"),
    "sparse": (lambda: sparse.SparseCapsNet((1, 20, 20))(rand(2, 1, 19, 20)), "19 in .* 20"),
    "autoencoder": (lambda: sparse.Autoencoder((1, 4, 4))(rand(2, 1, 2, 8)), "2 in .* of 4"),
    "sign": (lambda: SignNetwork()(rand(3, 1)), "x has 2 axes"),
    "stack": (lambda: CapsuleStack([(5, 2), (3, 2)])(rand(5, 2)), "pose has 2 axes"),
    "sparse labels": (
        lambda: sparse.SparseCapsNet((1, 20, 20), mask="label", capsules=10)(
            rand(2, 1, 20, 20), labels[:3]
        ),
        "N is 2 in .* and 3 in labels",
    ),
    "em of 16 × 32": (lambda: MatrixCapsNet((2, 16, 32)), "16 × 32 .* 17 × 17 is the least"),
    "em without channels": (lambda: MatrixCapsNet((20, 20)), "a height and a width, not 1"),
    "consensus of 1 × 1": (lambda: ConsensusCapsNet((2, 1, 1)), "1 × 1 .* 17 × 17"),
    "cnn of 3 × 9": (lambda: BaselineCNN((1, 3, 9)), "images of 3 × 9 .* 4 × 4 is the least"),
    "deep of 16 × 16": (lambda: DeepCapsNet((1, 16, 16), depth=3), "16 × 16 .* 17 × 17"),
    "sparse of 12 × 12": (lambda: sparse.SparseCapsNet((1, 12, 12)), "12 × 12 .* 17 × 17"),
    "anomaly of 8 × 8": (lambda: AnomalyCapsNet((1, 8, 8)), "inputs of 8 × 8 .* 17 × 17"),
}
TENSORS = {
    "standardise": (lambda: transforms.standardise(rand(1, 8, 8)), "x has 3 axes"),
    "another standard": (
        lambda: transforms.standardise(rand(2, 1, 8, 8), of=rand(1, 1, 8, 8)),
        "N is 2 in x and 1 in of",
    ),
    "downsample": (lambda: transforms.downsample(rand(8, 8), 2), "x has 2 axes"),
    "jitter": (lambda: transforms.jitter(rand(1, 8, 8), generator), "x has 3 axes"),
    "crop": (lambda: transforms.center_crop(rand(8, 8), 4), "x has 2 axes"),
    "a large crop": (
        lambda: transforms.random_crop(rand(2, 1, 8, 8), 9, generator),
        "no crop of 9 × 9",
    ),
    "no values": (lambda: inequality.gini(zeros(3, 0)), r"-1 of \[3, 0\] has no values"),
    "no rows": (lambda: inequality.theil(zeros(0, 3), dim=0), "dimension 0 of"),
    "half a grid": (
        lambda: sparse.routing_support(rand(1, 5, 2), 2),
        "5 children are not of 2 types",
    ),
    "no capsule": (lambda: sparse.ranks(rand(4, 0)), "L is 0 in strength"),
    "other targets": (lambda: fgsm(rand(3, 4), labels[:2]), "N is 3 in x and 2 in target"),
}
REFUSED = LOSSES | ROUTED | LAYERS | NETWORKS | TENSORS


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_shape_is_refused_with_both(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("name", ROUTINGS)
def test_no_routing_takes_less_than_one_of_anything(name):
    with pytest.raises(ValueError, match="is 0 in votes"):
        make_routing(name, 3, 4)(zeros(2, 0, 3, 4), zeros(2, 0))
    for parents, dim in ((0, 4), (-1, 4), (3, 0)):
        with pytest.raises(ValueError, match="whole number of at least 1"):
            make_routing(name, parents, dim)


@pytest.mark.parametrize("number", [0, -1, 2.5, float("nan"), float("inf"), "3", None, True])
def test_no_layer_is_built_of_less_than_one_of_anything(number):
    with pytest.raises(ValueError, match="sides has to be a whole number of at least 1"):
        check_positive(sides=number)
    layers = (
        DenseCapsules,
        PrimaryCapsules,
        MatrixPrimaryCapsules,
        ConvCapsules,
        ClassCapsules,
    )
    for layer, count in zip(layers, (4, 3, 2, 2, 2), strict=True):
        for position in range(count):
            numbers = [3] * count
            numbers[position] = number
            with pytest.raises(ValueError, match="whole number of at least 1"):
                layer(*numbers)


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
    assert sparse.rank_mask(zeros(2, 1)).tolist() == [[1.0], [1.0]]


def test_a_pattern_names_axes_sizes_and_the_batch():
    check_shapes(
        a=(zeros(2, 3, 4), "... J D"),
        b=(zeros(2, 3), "... J"),
        c=(None, "J"),
        d=(zeros(4, 0), ("D", "N")),
    )
    message = r"J is 3 in a and 4 in b: a \[J\] is \[3\], b \[J\] is \[4\]"
    with pytest.raises(ValueError, match=message):
        check_shapes(a=(zeros(3), "J"), b=(zeros(4), "J"))
