"""The networks of the negation paper: shapes, parameters counted by hand, and what their options switch."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from capslib.layers import squash
from capslib.networks.negation_limitation import CapsuleStack, DeepCapsNet, SignNetwork
from capslib.training import seeded

SMALL = dict(
    filters=8, kernel=3, primary_types=2, primary_kernel=3, hidden=(4, 6), decoder=(10, 12)
)


def capsule_parameters(sizes, routing: str, bias: bool) -> int:
    """W [I, J, D, d], and per parent a bias of D numbers and, under EM, two costs."""
    return sum(
        I * J * D * d + bias * J * D + (0 if routing == "dynamic" else 2 * J)
        for (I, d), (J, D) in itertools.pairwise(sizes)
    )


def count(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize("routing", ["dynamic", "em_vector"])
@pytest.mark.parametrize("bias", [None, 0.1])
@pytest.mark.parametrize("depth", [2, 3, 5])
def test_parameters_of_a_small_capsnet(routing, bias, depth):
    network = DeepCapsNet(
        (1, 8, 8), depth=depth, classes=10, routing=routing, bias=bias, **SMALL
    )
    places = ((8 - 3 + 1) - 3) // 2 + 1  # 6 × 6 maps, then a kernel of 3 in steps of 2
    sizes = [(2 * places**2, 8), *[(4, 6)] * (depth - 2), (10, 16)]
    convolutions = (1 * 9 + 1) * 8 + (8 * 9 + 1) * 16
    decoder = (160 + 1) * 10 + (10 + 1) * 12 + (12 + 1) * 64
    assert (
        count(network)
        == convolutions + capsule_parameters(sizes, routing, bias is not None) + decoder
    )


@pytest.mark.parametrize("bias", [None, 0.1])
def test_parameters_of_the_capsnet_at_paper_size(bias):
    network = DeepCapsNet((1, 28, 28), depth=3, bias=bias)
    convolutions = (81 + 1) * 256 + (256 * 81 + 1) * 256
    decoder = (160 + 1) * 512 + (512 + 1) * 1024 + (1024 + 1) * 784
    assert (
        count(network)
        == convolutions
        + capsule_parameters([(1152, 8), (16, 12), (10, 16)], "dynamic", bias is not None)
        + decoder
    )


@pytest.mark.parametrize("channels", [1, 3])
def test_shapes_of_its_output(channels):
    network = DeepCapsNet((channels, 8, 8), depth=3, classes=5, **SMALL)
    pose, activation, reconstruction = network(torch.randn(2, channels, 8, 8))
    assert (pose.shape, activation.shape, reconstruction.shape) == (
        (2, 5, 16),
        (2, 5),
        (2, channels * 64),
    )
    assert ((reconstruction >= 0) & (reconstruction <= 1)).all()
    torch.testing.assert_close(activation, pose.norm(dim=-1))


@pytest.mark.parametrize("depth", [1, 0, -3])
def test_a_depth_below_two_is_an_error(depth):
    with pytest.raises(ValueError, match="at least 2"):
        DeepCapsNet((1, 8, 8), depth=depth, **SMALL)


def test_the_bias_option_switches_capsule_layers_only():
    with_it, without = (DeepCapsNet((1, 8, 8), depth=4, bias=b, **SMALL) for b in (0.1, None))
    names = {n for n, _ in with_it.named_parameters()} - {
        n for n, _ in without.named_parameters()
    }
    assert names == {f"capsules.layers.{k}.routing.bias" for k in range(3)}
    assert {"conv.bias", "primary.conv.bias", "decoder.0.bias"} <= {
        n for n, _ in without.named_parameters()
    }


@pytest.mark.parametrize("routing", ["dynamic", "em_vector"])
def test_an_odd_front_end_passes_negatives_on(routing):
    """Without a bias anywhere below the decoder, −x gives the negated class capsules; the front end of the paper does not."""
    x = torch.randn(3, 1, 8, 8, dtype=torch.float64)
    odd, usual = (
        DeepCapsNet((1, 8, 8), depth=3, routing=routing, odd=o, **SMALL).double()
        for o in (True, False)
    )
    torch.testing.assert_close(odd(-x).pose, -odd(x).pose, rtol=1e-9, atol=0)
    assert (usual(-x).pose + usual(x).pose).abs().max() > 0.1 * usual(x).pose.abs().max()


def test_near_the_identity_an_odd_stack_of_em_layers_passes_its_signal_on():
    """As drawn, nine layers turn similar inputs into unrelated poses; both starts are odd to the last bit."""
    with seeded(0):
        features, noise = torch.randn(2, 32, 72, 8, dtype=torch.float64)
    clean, noisy = squash(features), squash(features + 0.05 * noise)
    alike = {}
    for start in ("drawn", "identity"):
        with seeded(0):
            stack = CapsuleStack(
                [(72, 8), *[(16, 10)] * 7, (10, 16)], routing="em_vector", beta_std=0.1
            ).double()
        if start == "identity":
            stack.start_near_identity()
        with torch.no_grad():
            poses = [stack(x)[0] for x in (clean, noisy, -clean)]
        assert torch.equal(poses[2], -poses[0])
        alike[start] = torch.cosine_similarity(poses[0], poses[1], dim=-1).mean()
    assert alike["drawn"] < 0.1 < 0.9 < alike["identity"]


@pytest.mark.parametrize("routing", ["dynamic", "em_vector"])
def test_a_start_at_unit_length(routing):
    network, x = (
        DeepCapsNet((1, 8, 8), depth=5, routing=routing, **SMALL),
        torch.randn(16, 1, 8, 8),
    )
    pose = network.primary_capsules(x)
    network.capsules.start_at_unit_length(pose)
    activation = pose.norm(dim=-1)
    for layer in network.capsules.layers:
        equal = torch.full(
            (16, pose.shape[1], layer.weight.shape[1]), 1 / layer.weight.shape[1]
        )
        s = (equal[..., None] * layer.votes(pose)).sum(dim=1)  # [N, J, D]
        torch.testing.assert_close(s.norm(dim=-1).mean(), torch.tensor(1.0))
        pose, activation, _ = layer(pose, activation)
    assert network(x).activation.mean() > 0.1  # nothing has faded on the way


def test_dense_parts_start_as_in_keras():
    network = DeepCapsNet((1, 8, 8), depth=2, **SMALL)
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            assert not module.bias.any()
            fan_in, fan_out = nn.init._calculate_fan_in_and_fan_out(module.weight)
            bound = (6 / (fan_in + fan_out)) ** 0.5
            assert 0.8 * bound < module.weight.abs().max() <= bound


def test_every_layer_of_a_stack_gets_the_activations_of_the_one_below():
    stack = CapsuleStack([(5, 3), (4, 2), (3, 6)], routing="em", bias=0.1).double()
    pose = torch.randn(2, 5, 3, dtype=torch.float64)
    first, second = stack.layers
    middle = first(pose, pose.norm(dim=-1))
    expected = second(middle.pose, middle.activation)
    ours = stack(pose)
    assert torch.equal(ours[0], expected.pose)
    assert torch.equal(ours[1], expected.activation)


@pytest.mark.parametrize("routing", ["dynamic", "em_vector"])
@pytest.mark.parametrize("bias", [None, 0.5])
def test_the_sign_network(routing, bias):
    network = SignNetwork(20, routing=routing, bias=bias)
    assert network(torch.randn(7)).shape == (7, 2)
    assert count(network) == capsule_parameters(
        [(1, 1), (20, 1), (2, 1)], routing, bias is not None
    )
