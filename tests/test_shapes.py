"""Wrong shapes and numbers are refused before anything is computed, with the shapes named."""

from __future__ import annotations

import math

import numpy as np
import pytest
from torch import Generator, arange, device, ones, rand, uint8, zeros

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
from capslib.networks import create_network
from capslib.networks import sparse_unsupervised as sparse
from capslib.networks.learned_routing import FlatCapsules
from capslib.networks.negation_limitation import CapsuleStack
from capslib.recipes import Recipe
from capslib.registry import NETWORKS
from capslib.routing import ROUTINGS, LazyVotes, dynamic_routing, em_routing, make_routing
from capslib.shapes import check_positive, check_shapes


def refused(message):
    return pytest.raises(ValueError, match=message)


def test_scores_and_labels():
    scores, labels = rand(7, 3), arange(7) % 3
    with refused(r"is \[7, 1\]"):
        margin_loss(scores, labels[:, None])
    with refused("N is 7 in activation and 1"):
        margin_loss(scores, labels[:1])
    with refused("target has 0 axes"):
        spread_loss(scores, labels[0])
    with refused("activation has 1 axes"):
        spread_loss(scores[0], labels)
    with refused("one right class"):
        spread_loss(rand(1, 2), ones(1, 2))
    with refused("zeros and ones"):
        margin_loss(rand(1, 2), rand(1, 2))
    with refused("N is 7 in x and 2 in target"):
        attacks.fgsm(spread_loss, scores, labels[:2], 0.1)
    with refused("at least one step, not 0"):
        attacks.bim(spread_loss, scores, labels, 0.1, steps=0)
    network = sparse.SparseCapsNet((1, 20, 20), mask="label", capsules=10)
    with refused("N is 2 in .* and 3 in labels"):
        network(rand(2, 1, 20, 20), labels[:3])


def test_votes_activations_and_parameters_of_routings():
    votes, betas = rand(2, 5, 3, 4), zeros(2, 3)
    with refused(r"votes \[..., I, J, D\] is \[7, 3\]"):
        dynamic_routing(rand(7, 3))
    with refused("J is 3 in votes and 1 in bias"):
        dynamic_routing(votes, bias=zeros(1, 4))
    with refused("J is 3 in votes and 2"):
        em_routing(votes, rand(2, 5), *zeros(2, 2))
    with refused("I is 5 .* and 6"):
        em_routing(votes, rand(2, 6), *betas)
    with refused(r"... is \[2\] in votes and \[1\] in activation"):
        em_routing(votes, rand(1, 5), *betas)
    with refused("I is 5 .* and 6"):
        dynamic_routing(LazyVotes(rand(5, 3, 4, 2), rand(7, 6, 2)))
    with refused("k is 4 .* and 3"):
        assert LazyVotes(rand(5, 3, 4, 4), rand(7, 5, 4, 3)).shape


@pytest.mark.parametrize("name", ROUTINGS)
def test_no_routing_takes_less_than_one_of_anything(name):
    with refused("is 0 in votes"):
        make_routing(name, 3, 4)(zeros(2, 0, 3, 4), zeros(2, 0))
    with refused("whole number of at least 1"):
        make_routing(name, 0, 4)
    with refused("whole number of at least 1"):
        make_routing(name, 3, 0)


def test_features_poses_and_grids_of_layers():
    with refused("features has 3 axes"):
        PrimaryCapsules(3, 2, 4)(rand(3, 20, 20))
    with refused("8 × 20 .* 9 × 9"):
        PrimaryCapsules(3, 2, 4)(rand(1, 3, 8, 20))
    with refused("4 in .* of 3"):
        MatrixPrimaryCapsules(3, 2)(rand(1, 4, 5, 5))
    with refused("6 in"):
        DenseCapsules(5, 3, 2, 4)(rand(7, 6, 2), rand(7, 6))
    with refused("activation has 1 axes"):
        DenseCapsules(5, 3, 2, 4)(rand(7, 5, 2), rand(5))
    with refused("2 × 2 .* 3 × 3"):
        ConvCapsules(2, 3)(rand(1, 2, 2, 2, 4, 4), rand(1, 2, 2, 2))
    with refused("pose has 5 axes"):
        ConvCapsules(2, 3)(rand(1, 4, 4, 2, 16), rand(1, 4, 4, 2))
    with refused("types is 2 in pose and 3 in activation"):
        FlatCapsules(8, 3, routing="em")(rand(1, 2, 2, 2, 4, 4), rand(1, 2, 2, 3))
    with refused("activation has 3 axes"):
        FlatCapsules(8, 3, routing="em")(rand(1, 2, 2, 2, 4, 4), rand(1, 4, 2))
    classes = ClassCapsules(2, 3, coordinates=field_centres((4, 4), [(2, 2)]))
    with refused("1 in the place of 2"):
        classes(rand(1, 1, 1, 2, 4, 4), rand(1, 1, 1, 2))
    with refused("is for matrix capsules"):
        ConvCapsules(2, 3, pose="vector", transform="bounded")
    with refused("5 axes"):
        with_coordinates(rand(1, 2, 2, 3, 16))
    with refused("kernel has to be a whole"):
        grid_size((4, 4), [(0, 1)])


def test_inputs_of_networks():
    with refused("a height and a width, not 1"):
        NETWORKS["matrix_capsnet"]((20, 20))
    with refused("at least 2"):
        NETWORKS["deep_capsnet"]((1, 20, 20), depth=1)
    with refused("2 in .* of 4"):
        NETWORKS["autoencoder"]((1, 4, 4))(rand(2, 1, 2, 8))
    with refused("x has 2 axes"):
        NETWORKS["sign"]()(rand(3, 1))
    with refused("pose has 2 axes"):
        CapsuleStack([(5, 2), (3, 2)])(rand(5, 2))
    with refused("5 children are not of 2 types"):
        sparse.routing_support(rand(1, 5, 2), 2)
    with refused("L is 0 in strength"):
        sparse.ranks(rand(4, 0))


OF_IMAGES = ("cnn", "matrix_capsnet", "consensus_capsnet", "anomaly_capsnet", "sparse_capsnet")


@pytest.mark.parametrize("name", [*OF_IMAGES, "deep_capsnet"])
def test_a_network_refuses_images_of_another_size_and_to_be_built_for_small_ones(name):
    options = {"depth": 2} if name == "deep_capsnet" else {}
    with device("meta"):
        network = NETWORKS[name]((1, 20, 20), **options)
        with refused("19 in .* of 20"):
            network(rand(2, 1, 19, 20))
        with refused("has 2 axes"):
            network(rand(20, 20))
    with refused(r"3 × 30 .* (4 × 4|17 × 17) is the least"):
        NETWORKS[name]((1, 3, 30), **options)


@pytest.mark.parametrize("name", [*OF_IMAGES, "deep_capsnet", "capsnet", "autoencoder"])
def test_a_network_refuses_images_of_integers(name):
    network = create_network(name, (1, 20, 20), 2)
    message = "images have to be floats, such as pixels / 255, not torch.uint8"
    with pytest.raises(TypeError, match=message):
        network(zeros(2, 1, 20, 20, dtype=uint8))


@pytest.mark.parametrize(
    ("name", "options"), [("capsnet", {}), ("sparse_capsnet", {"mask": "label"})]
)
def test_a_decoder_refuses_labels_that_are_no_classes(name, options):
    network, images = create_network(name, (1, 20, 20), 3, **options), rand(2, 1, 20, 20)
    with pytest.raises(TypeError, match=r"are integers, not torch\.float32"):
        network(images, ones(2))
    with refused("labels go from 0 to 2, and there is 3"):
        network(images, arange(2, 4))


def test_images_that_are_transformed():
    image, images, generator = rand(8, 8), rand(2, 1, 8, 8), Generator()
    with refused("x has 2 axes"):
        transforms.standardise(image)
    with refused("N is 2 in x and 1 in of"):
        transforms.standardise(images, of=images[:1])
    with refused("x has 2 axes"):
        transforms.downsample(image, 2)
    with refused("x has 2 axes"):
        transforms.jitter(image, generator)
    with refused("x has 2 axes"):
        transforms.center_crop(image, 4)
    with refused("no crop of 9 × 9"):
        transforms.random_crop(images, 9, generator)


def test_values_whose_inequality_is_measured():
    with refused(r"-1 of \[3, 0\] has no values"):
        inequality.gini(zeros(3, 0))
    with refused("dimension 0 of"):
        inequality.theil(zeros(0, 3), dim=0)


@pytest.mark.parametrize("number", [0, -1, 2.5, 3.0, math.nan, math.inf, "3", None, True])
def test_a_size_is_a_whole_number_of_at_least_one(number):
    with refused("sides has to be a whole number of at least 1"):
        check_positive(sides=number)
    with refused("parents has to be a whole number of at least 1"):
        DenseCapsules(5, number, 2, 4)
    with refused("iterations has to be a whole number of at least 1"):
        dynamic_routing(rand(2, 5, 3, 4), iterations=number)


def test_a_size_may_be_an_integer_of_numpy():
    five, three = np.int64(5), np.int64(3)
    layer = DenseCapsules(five, three, 2, 4, iterations=three)
    assert layer(rand(7, 5, 2), rand(7, 5)).pose.shape == (7, 3, 4)


SIZES = {
    DenseCapsules: 4,
    PrimaryCapsules: 3,
    MatrixPrimaryCapsules: 2,
    ConvCapsules: 2,
    ClassCapsules: 2,
}
"""How many sizes a layer takes."""


@pytest.mark.parametrize("layer", SIZES)
def test_no_layer_is_built_of_less_than_one_of_anything(layer):
    for position in range(SIZES[layer]):
        sizes = [3] * SIZES[layer]
        sizes[position] = 0
        with refused("whole number of at least 1"):
            layer(*sizes)


def nearest(name):
    return pytest.raises((UserError, ValueError), match=f"Did you mean '{name}'")


def test_a_mistyped_option_is_told_the_nearest():
    with nearest("iterations"):
        DenseCapsules(5, 3, 2, 4, iteration=3)
    with nearest("iterations"):
        NETWORKS["matrix_capsnet"]((1, 20, 20), iteration=3)
    with nearest("variance_offset"):
        make_routing("em_vector", 3, 4, variance_ofset=0)
    with nearest("epochs"):
        Recipe(network="cnn", epoch=3)


@pytest.mark.parametrize("routing", ["em", "dynamic_over_children"])
def test_a_mistyped_value_is_told_the_nearest_whatever_the_routing(routing):
    with nearest("types[+]positions"):
        ConvCapsules(3, 2, routing=routing, normalise="types+position")
    with nearest("matrix"):
        ConvCapsules(3, 2, routing=routing, pose="matrx")
    with nearest("bounded"):
        ConvCapsules(3, 2, routing=routing, transform="bounde")


def test_a_pattern_names_axes_sizes_and_the_batch():
    check_shapes(
        a=(zeros(2, 3, 4), "... J D"),
        b=(zeros(2, 3), "... J"),
        c=(None, "J"),
        d=(zeros(4, 0), ("D", "N")),
    )
    with refused(r"J is 3 in a and 4 in b: a \[J\] is \[3\], b \[J\] is \[4\]"):
        check_shapes(a=(zeros(3), "J"), b=(zeros(4), "J"))
