"""Capsule layers: shapes, and votes against products that name every index."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from capslib import layers
from capslib.layers import ConvCapsules, DenseCapsules, PrimaryCapsules
from capslib.routing import ROUTINGS


def test_the_activation_of_a_vector_capsule_is_its_length():
    pose = torch.tensor([[[3.0, 4.0], [0.0, 0.0]]])
    capsules, activation = layers.as_capsules(pose)
    assert capsules is pose
    assert activation.tolist() == [[5.0, 0.0]]


def test_the_vote_of_a_vector_capsule_is_w_u_in_every_layer():
    u = torch.randn(2, 4, 4, 3, 16)
    row = u[0, 1]  # four columns of three capsules
    dense = DenseCapsules(3, 5, 16, 16)
    conv = ConvCapsules(3, 5, kernel=2, pose="vector")
    classes = layers.ClassCapsules(3, 5, pose="vector")
    windows, _, _ = conv.fields(u, torch.ones(2, 4, 4, 3))
    votes = {
        dense.weight: dense.votes(row),
        conv.weight[0, 0]: windows.form().unflatten(0, (2, 3, 3))[0, 1],
        classes.weight: classes.votes(u).unflatten(1, (4, 4, 3))[0, 1],
    }
    for weight, votes_of_row in votes.items():
        for column, i, j in product((0, 2), range(3), range(5)):
            vote = weight[i, j] @ row[column, i]
            torch.testing.assert_close(votes_of_row[column, i, j], vote)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_dense_capsules_route_their_votes(routing):
    pose, activation = torch.randn(6, 3, 4), torch.rand(6, 3)
    sizes = {"children": 3, "parents": 2, "child_dim": 4, "parent_dim": 5}
    for bias in (None, 0.1):
        layer = DenseCapsules(**sizes, routing=routing, bias=bias, iterations=2)
        assert isinstance(layer.routing, ROUTINGS[routing])
        assert layer.routing.iterations == 2
        routed = layer.routing(layer.votes(pose), activation)
        torch.testing.assert_close(layer(pose, activation), routed)
        if bias is None:
            assert layer.routing.bias is None
        else:
            assert (layer.routing.bias == bias).all()


def test_weights_start_with_the_deviation_asked_for():
    layer = DenseCapsules(50, 10, 8, 16, routing="em", weight_std=0.3, beta_std=2.0)
    assert layer.weight.std().item() == pytest.approx(0.3, rel=0.02)
    assert layer.weight.shape == (50, 10, 16, 8)
    assert layer.routing.beta_u.std() > 1


@pytest.mark.parametrize(("kernel", "stride"), [(3, 2), (5, 1), (7, 3)])
def test_a_primary_capsule_is_a_group_of_channels_at_one_place(kernel, stride):
    layer = PrimaryCapsules(2, 3, 4, kernel=kernel, stride=stride)
    features = torch.randn(2, 2, 7, 9)
    pose, activation = layer(features)
    maps = layer.conv(features).unflatten(1, (3, 4))  # [N, types, dim, H, W]
    expected = layers.squash(maps, dim=2).movedim(2, -1).flatten(1, 3)
    torch.testing.assert_close(pose, expected)
    torch.testing.assert_close(activation, pose.norm(dim=-1))


def test_a_compiler_takes_convolutions_in_bfloat16():
    layer = PrimaryCapsules(3, 2, 4, kernel=3)
    layers.convolve_in_bfloat16(layer)
    features = torch.randn(2, 3, 8, 8)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for result, expected in zip(compiled(features), layer(features), strict=True):
        torch.testing.assert_close(result, expected)


def test_coordinates_are_for_matrices_and_have_a_row_and_a_column():
    with pytest.raises(ValueError, match="matrix capsules only"):
        ConvCapsules(2, 3, pose="vector", coordinates=True)
    with pytest.raises(ValueError, match=r"coordinates \[H, W, 2\] is \[4, 4, 3\]"):
        layers.ClassCapsules(2, 3, coordinates=torch.zeros(4, 4, 3))


def test_the_label_of_a_capsule_is_an_integer_of_any_width():
    activation, labels = torch.rand(2, 3), torch.tensor([2, 0])
    mask = layers.mask_of_one(activation, labels.to(torch.uint8))
    assert torch.equal(mask, layers.mask_of_one(activation, labels))


def test_a_layer_in_float64_computes_in_float64():
    layer = DenseCapsules(6, 3, 4, 5).double()
    pose, activation = torch.randn(2, 6, 4), torch.rand(2, 6)
    expected = layer(pose.double(), activation.double()).pose.float()
    assert torch.equal(layer(pose, activation).pose, expected)
