"""The networks of the negation paper: shapes, parameters by hand, and what options switch."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from capslib.layers import squash
from capslib.networks.negation_limitation import CapsuleStack, DeepCapsNet, SignNetwork
from capslib.papers.common import number_of_parameters

SMALL = dict(
    filters=8, kernel=3, primary_types=2, primary_kernel=3, hidden=(4, 6), decoder=(10, 12)
)
ROUTINGS = pytest.mark.parametrize("routing", ["dynamic", "em_vector"])
BIAS = pytest.mark.parametrize("bias", [None, 0.1])


def capsule_parameters(sizes, routing: str, bias: float | None) -> int:
    """Count W [I, J, D, d], and per parent a bias of D numbers and, under EM, two costs."""
    count = 0
    for (children, child_dim), (parents, parent_dim) in itertools.pairwise(sizes):
        count += children * parents * parent_dim * child_dim
        if bias is not None:
            count += parents * parent_dim
        if routing != "dynamic":
            count += 2 * parents
    return count


@ROUTINGS
@BIAS
def test_shapes_and_parameters_of_a_small_capsnet(routing, bias):
    options = dict(depth=4, classes=5, routing=routing, bias=bias, **SMALL)
    network = DeepCapsNet((3, 8, 8), **options)
    count = (3 * 9 + 1) * 8 + (8 * 9 + 1) * 16  # to 6 × 6 maps, then to 2 × 2
    count += capsule_parameters([(8, 8), (4, 6), (4, 6), (5, 16)], routing, bias)
    count += (80 + 1) * 10 + (10 + 1) * 12 + (12 + 1) * 192
    assert number_of_parameters(network) == count
    pose, activation, reconstruction = network(torch.randn(2, 3, 8, 8))
    assert pose.shape == (2, 5, 16)
    torch.testing.assert_close(activation, pose.norm(dim=-1))
    assert reconstruction.shape == (2, 192)
    assert 0 <= reconstruction.min() <= reconstruction.max() <= 1


def test_parameters_at_the_papers_size():
    with torch.device("meta"):
        network = DeepCapsNet((1, 28, 28), depth=3, bias=0.1)
    count = (81 + 1) * 256 + (256 * 81 + 1) * 256
    count += capsule_parameters([(1152, 8), (16, 12), (10, 16)], "dynamic", 0.1)
    count += (160 + 1) * 512 + (512 + 1) * 1024 + (1024 + 1) * 784
    assert number_of_parameters(network) == count


@ROUTINGS
@BIAS
def test_the_sign_network(routing, bias):
    network = SignNetwork(20, routing=routing, bias=bias)
    assert network(torch.randn(7)).shape == (7, 2)
    sizes = [(1, 1), (20, 1), (2, 1)]
    assert number_of_parameters(network) == capsule_parameters(sizes, routing, bias)


@ROUTINGS
def test_an_odd_front_end_passes_negatives_on(routing):
    """With no bias below the decoder −x gives the negated capsules; the paper's does not."""
    images = torch.randn(3, 1, 8, 8, dtype=torch.float64)
    options = dict(depth=3, routing=routing, **SMALL)
    odd = DeepCapsNet((1, 8, 8), odd=True, **options).double()
    torch.testing.assert_close(odd(-images).pose, -odd(images).pose, rtol=1e-9, atol=0)
    paper = DeepCapsNet((1, 8, 8), **options).double()
    pose = paper(images).pose
    assert (paper(-images).pose + pose).abs().max() > 0.1 * pose.abs().max()


def test_near_the_identity_an_odd_stack_of_em_layers_passes_its_signal_on():
    """As drawn, nine layers turn similar inputs into unrelated poses; both starts are odd."""
    features, noise = torch.randn(2, 32, 72, 8, dtype=torch.float64)
    sizes = [(72, 8), *[(16, 10)] * 7, (10, 16)]
    stack = CapsuleStack(sizes, routing="em_vector", beta_std=0.1).double()

    @torch.no_grad()
    def similarity() -> Tensor:
        pose = stack(squash(features))[0]
        noisy = stack(squash(features + 0.05 * noise))[0]
        assert torch.equal(stack(-squash(features))[0], -pose)
        return torch.cosine_similarity(pose, noisy, dim=-1).mean()

    assert similarity() < 0.1
    stack.start_near_identity()
    assert similarity() > 0.9


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
    pose, activation = stack(pose)
    assert torch.equal(pose, expected.pose)
    assert torch.equal(activation, expected.activation)
