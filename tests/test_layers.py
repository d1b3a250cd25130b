"""Capsule layers: shapes, and votes against loops that name every index."""

from __future__ import annotations

import pytest
import torch

from capslib.errors import UserError
from capslib.layers import (
    ClassCapsules,
    ConvCapsules,
    DenseCapsules,
    PrimaryCapsules,
    as_capsules,
    squash,
)
from capslib.routing import ROUTINGS, EMRouting


def test_the_activation_of_a_vector_capsule_is_its_length():
    pose = torch.tensor([[[3.0, 4.0], [0.0, 0.0]]])
    same, activation = as_capsules(pose)
    assert same is pose
    assert activation.tolist() == [[5.0, 0.0]]


def test_votes_are_one_matrix_product_for_each_pair():
    layer, pose = DenseCapsules(3, 2, 4, 5).double(), torch.randn(6, 3, 4, dtype=torch.float64)
    votes = layer.votes(pose)
    assert votes.shape == (6, 3, 2, 5)
    for n in range(6):
        for i in range(3):
            for j in range(2):
                torch.testing.assert_close(votes[n, i, j], layer.weight[i, j] @ pose[n, i])


def test_the_vote_of_a_vector_capsule_is_w_u_in_every_layer():
    """In the class layer it was u W."""
    u = torch.randn(2, 4, 4, 3, 16, dtype=torch.float64)
    dense, conv = (
        DenseCapsules(3, 5, 16, 16).double(),
        ConvCapsules(3, 5, kernel=2, pose="vector").double(),
    )
    classes = ClassCapsules(3, 5, pose="vector").double()
    votes = {
        "dense": dense.votes(u[0, 1]),  # the columns of row 1 as examples
        "conv": conv.fields(u, torch.ones(2, 4, 4, 3).double())[0]
        .form()
        .unflatten(0, (2, 3, 3))[0, 1],
        "classes": classes.votes(u).unflatten(1, (4, 4, 3))[0, 1],
    }
    for column, i, j in ((0, 0, 0), (2, 1, 4)):
        pose = u[0, 1, column, i]
        torch.testing.assert_close(votes["dense"][column, i, j], dense.weight[i, j] @ pose)
        torch.testing.assert_close(votes["conv"][column, i, j], conv.weight[0, 0, i, j] @ pose)
        torch.testing.assert_close(votes["classes"][column, i, j], classes.weight[i, j] @ pose)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("bias", [None, 0.1])
def test_dense_capsules_route_their_votes(routing, bias):
    layer = DenseCapsules(3, 2, 4, 5, routing=routing, bias=bias, iterations=2)
    pose, activation = torch.randn(6, 3, 4), torch.rand(6, 3)
    result = layer(pose, activation)
    assert (result.pose.shape, result.activation.shape, result.coupling.shape) == (
        (6, 2, 5),
        (6, 2),
        (6, 3, 2),
    )
    for ours, expected in zip(
        result, layer.routing(layer.votes(pose), activation), strict=True
    ):
        assert torch.equal(ours, expected)
    assert layer.routing.iterations == 2
    assert (layer.routing.bias is None) == (bias is None)
    assert bias is None or (layer.routing.bias == bias).all()


def test_weights_start_with_the_deviation_asked_for():
    torch.manual_seed(0)
    layer = DenseCapsules(50, 10, 8, 16, routing="em", weight_std=0.3, beta_std=2.0)
    assert layer.weight.std().item() == pytest.approx(0.3, rel=0.02)
    assert isinstance(layer.routing, EMRouting)
    assert layer.weight.shape == (50, 10, 16, 8)


def test_primary_capsules_of_the_original_network():
    """256 maps of 20 × 20, as a 9 × 9 convolution leaves of 28 × 28 pixels, become 32 types on 6 × 6 places: 1,152 capsules."""
    pose, activation = PrimaryCapsules(256, 32, 8)(torch.randn(2, 256, 20, 20))
    assert (pose.shape, activation.shape) == ((2, 1152, 8), (2, 1152))
    torch.testing.assert_close(activation, pose.norm(dim=-1))


@pytest.mark.parametrize(
    ("kernel", "stride", "size"), [(9, 2, 9), (9, 2, 12), (3, 1, 7), (3, 2, 8), (5, 3, 11)]
)
def test_the_number_of_primary_capsules(kernel, stride, size):
    side = (size - kernel) // stride + 1
    pose, _ = PrimaryCapsules(2, 3, 4, kernel=kernel, stride=stride)(
        torch.randn(1, 2, size, size)
    )
    assert pose.shape == (1, 3 * side * side, 4)


def test_a_primary_capsule_is_a_group_of_channels_at_one_place():
    layer, features = (
        PrimaryCapsules(2, 3, 4, kernel=3, stride=2).double(),
        torch.randn(2, 2, 7, 9, dtype=torch.float64),
    )
    maps, (pose, _) = layer.conv(features), layer(features)
    _, _, H, W = maps.shape
    for n in range(2):
        for t in range(3):
            for h in range(H):
                for w in range(W):
                    torch.testing.assert_close(
                        pose[n, (t * H + h) * W + w], squash(maps[n, 4 * t : 4 * t + 4, h, w])
                    )


@pytest.mark.parametrize(
    ("option", "nearest"),
    [
        ({"normalise": "types+position"}, "types[+]positions"),
        ({"pose": "matrx"}, "matrix"),
        ({"transform": "bounde"}, "bounded"),
    ],
)
@pytest.mark.parametrize("routing", ["em", "dynamic_over_children"])
def test_a_mistyped_option_of_a_layer_is_told_the_nearest(option, nearest, routing):
    """A normaliser that nobody knows was taken for "types+positions"."""
    with pytest.raises(UserError, match=f"Did you mean '{nearest}'"):
        ConvCapsules(3, 2, routing=routing, **option)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("length", [1e-3, 1.0, 300.0, 60_000.0])
def test_squash_keeps_long_vectors_of_half_precision(dtype, length):
    """In float16 it gave zero for lengths above 256, and NaN at 60,000."""
    x = torch.tensor([length, 0.0], dtype=dtype)
    expected = squash(x.double())
    result = squash(x)
    assert result.dtype == dtype
    torch.testing.assert_close(result.double(), expected, rtol=0.01, atol=1e-7)


def test_squash_refuses_integers():
    with pytest.raises(TypeError, match=r"floating-point numbers, not torch\.int64"):
        squash(torch.tensor([3, 4]))
