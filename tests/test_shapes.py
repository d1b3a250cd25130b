"""Wrong shapes and numbers are refused before anything is computed, with the shapes named."""

from __future__ import annotations

import math

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
    with_coordinates,
)
from capslib.losses import margin_loss, spread_loss
from capslib.networks import sparse_unsupervised as sparse
from capslib.networks.negation_limitation import CapsuleStack
from capslib.recipes import Recipe
from capslib.registry import NETWORKS
from capslib.routing import LazyVotes, dynamic_routing, em_routing, make_routing
from capslib.shapes import check_positive, check_shapes

zeros, rand = torch.zeros, torch.rand
image, scores, votes, betas = rand(8, 8), rand(7, 3), rand(2, 5, 3, 4), zeros(2, 3)
labels = torch.arange(7) % 3
generator = torch.Generator()
REFUSED = [
    (lambda: margin_loss(scores, labels[:1]), "N is 7 in activation and 1"),
    (lambda: spread_loss(scores, labels[0]), "target has 0 axes"),
    (lambda: spread_loss(rand(1, 2), torch.ones(1, 2)), "one right class"),
    (lambda: margin_loss(rand(1, 2), rand(1, 2)), "zeros and ones"),
    (lambda: dynamic_routing(scores), r"votes \[..., I, J, D\] is \[7, 3\]"),
    (lambda: dynamic_routing(votes, bias=zeros(1, 4)), "J is 3 in votes and 1 in bias"),
    (lambda: dynamic_routing(zeros(2, 0, 3, 4)), "is 0 in votes"),
    (lambda: em_routing(votes, rand(2, 6), *betas), "I is 5 .* and 6"),
    (lambda: em_routing(votes, rand(1, 5), *betas), r"\[2\] in votes and \[1\] in activation"),
    (lambda: LazyVotes(rand(5, 3, 4, 4), rand(7, 5, 4, 3)).shape, "k is 4 .* and 3"),
    (lambda: PrimaryCapsules(3, 2, 4)(rand(1, 3, 8, 20)), "8 × 20 .* 9 × 9"),
    (lambda: MatrixPrimaryCapsules(3, 2)(rand(1, 4, 5, 5)), "4 in .* of 3"),
    (lambda: DenseCapsules(5, 3, 2, 4)(rand(7, 6, 2), rand(7, 6)), "6 in"),
    (lambda: ConvCapsules(2, 3)(rand(1, 2, 2, 2, 4, 4), rand(1, 2, 2, 2)), "2 × 2 .* 3 × 3"),
    (lambda: ConvCapsules(2, 3, pose="vector", transform="bounded"), "is for matrix capsules"),
    (lambda: with_coordinates(rand(1, 2, 2, 3, 16)), "5 axes"),
    (lambda: NETWORKS["sign"]()(rand(3, 1)), "x has 2 axes"),
    (lambda: CapsuleStack([(5, 2), (3, 2)])(rand(5, 2)), "pose has 2 axes"),
    (lambda: NETWORKS["deep_capsnet"]((1, 20, 20), depth=1), "at least 2"),
    (lambda: sparse.routing_support(rand(1, 5, 2), 2), "5 children are not of 2 types"),
    (lambda: transforms.standardise(image), "x has 2 axes"),
    (lambda: transforms.random_crop(rand(2, 1, 8, 8), 9, generator), "no crop of 9 × 9"),
    (lambda: attacks.fgsm(spread_loss, scores, labels[:2], 0.1), "N is 7 in x and 2 in target"),
    (lambda: attacks.bim(spread_loss, scores, labels, 0.1, steps=0), "at least one step"),
    (lambda: inequality.gini(zeros(3, 0)), r"-1 of \[3, 0\] has no values"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_a_wrong_shape_is_refused_with_both(call, message):
    with pytest.raises(ValueError, match=message):
        call()


OF_IMAGES = ("cnn", "matrix_capsnet", "consensus_capsnet", "anomaly_capsnet", "sparse_capsnet")


@pytest.mark.parametrize("name", [*OF_IMAGES, "deep_capsnet"])
def test_a_network_refuses_images_of_another_size_and_to_be_built_for_small_ones(name):
    options = {"depth": 2} if name == "deep_capsnet" else {}
    with torch.device("meta"):
        network = NETWORKS[name]((1, 20, 20), **options)
        for size, message in (((2, 1, 19, 20), "19 in .* of 20"), ((20, 20), "has 2 axes")):
            with pytest.raises(ValueError, match=message):
                network(rand(size))
    with pytest.raises(ValueError, match=r"3 × 30 .* (4 × 4|17 × 17) is the least"):
        NETWORKS[name]((1, 3, 30), **options)


@pytest.mark.parametrize("number", [0, -1, 2.5, math.nan, math.inf, "3", None, True])
def test_a_size_is_a_whole_number_of_at_least_one(number):
    with pytest.raises(ValueError, match="sides has to be a whole number of at least 1"):
        check_positive(sides=number)


@pytest.mark.parametrize(
    ("layer", "count"),
    [
        (DenseCapsules, 4),
        (PrimaryCapsules, 3),
        (MatrixPrimaryCapsules, 2),
        (ConvCapsules, 2),
        (ClassCapsules, 2),
    ],
)
def test_no_layer_is_built_of_less_than_one_of_anything(layer, count):
    for position in range(count):
        sizes = [3] * count
        sizes[position] = 0
        with pytest.raises(ValueError, match="whole number of at least 1"):
            layer(*sizes)


@pytest.mark.parametrize(
    ("make", "nearest"),
    [
        (lambda: DenseCapsules(5, 3, 2, 4, iteration=3), "iterations"),
        (lambda: NETWORKS["matrix_capsnet"]((1, 20, 20), iteration=3), "iterations"),
        (lambda: make_routing("em_vector", 3, 4, variance_ofset=0), "variance_offset"),
        (lambda: Recipe(network="cnn", epoch=3), "epochs"),
        (lambda: ConvCapsules(3, 2, pose="matrx"), "matrix"),
        (lambda: ConvCapsules(3, 2, normalise="types+position"), "types[+]positions"),
    ],
)
def test_a_mistyped_option_is_told_the_nearest(make, nearest):
    with pytest.raises((UserError, ValueError), match=f"Did you mean '{nearest}'"):
        make()


def test_a_pattern_names_axes_sizes_and_the_batch():
    tensors = {"b": (zeros(2, 3), "... J"), "c": (None, "J"), "d": (zeros(4, 0), ("D", "N"))}
    check_shapes(a=(zeros(2, 3, 4), "... J D"), **tensors)
    message = r"J is 3 in a and 4 in b: a \[J\] is \[3\], b \[J\] is \[4\]"
    with pytest.raises(ValueError, match=message):
        check_shapes(a=(zeros(3), "J"), b=(zeros(4), "J"))
