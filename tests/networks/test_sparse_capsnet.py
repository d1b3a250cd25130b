"""SPARSECAPS: who gets support, what the mask leaves, how boosting evens out lifetimes."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import one_hot

from capslib.networks.sparse_unsupervised import (
    LifetimeBoost,
    ReleasedPrimaryCapsules,
    SparseCapsNet,
    rank_mask,
    routing_support,
)
from capslib.routing import squash


def small(**options) -> SparseCapsNet:
    convolutions = dict(filters=4, kernel=3, primary_types=2, primary_dim=4, primary_kernel=3)
    return SparseCapsNet(
        (1, 12, 12), capsules=6, dim=4, decoder=(8,), **convolutions, **options
    )


@pytest.mark.parametrize(
    ("side", "children", "encoder", "parameters"),
    [(28, 1152, 7_689_216, 9_149_712), (40, 4608, 14_767_104, 17_064_000)],
)
def test_sizes_of_the_paper(side, children, encoder, parameters):
    with torch.device("meta"):
        network = SparseCapsNet((1, side, side))
        output = network(torch.rand(2, 1, side, side))
    sizes = {name: p.numel() for name, p in network.named_parameters()}
    assert network.layers[0].weight.shape == (children, 16, 16, 8)
    assert sizes["layers.0.routing.bias"] == 16 * 16  # one for each number of a latent capsule
    assert sum(sizes.values()) == parameters
    assert sum(n for name, n in sizes.items() if "decoder" not in name) == encoder
    assert output.reconstruction.shape == (2, side * side)


def test_the_mask_of_sixteen_capsules_by_hand():
    mask = rank_mask(-torch.arange(16.0)).tolist()
    assert mask[:6] == pytest.approx([math.exp(-12 * rank / 15) for rank in range(6)])
    assert mask[6:] == [0.0] * 10


def test_support_by_hand_and_as_released():
    """Two types on a 1 × 3 grid, children ordered (type, position), and two latent capsules."""
    types = [[[5, 1], [2, 2], [1, 0]], [[4, 0], [3, 1], [0, 6]]]
    coupling = torch.tensor(types).float().reshape(1, 6, 2)
    assert routing_support(coupling, 2).tolist() == [[5 + 3 + 1, 1 + 2 + 6]]
    assert routing_support(coupling, 2, "released").tolist() == [[5 + 4 + 3, 2 + 0 + 6]]


@pytest.mark.parametrize("relative", [False, True])
def test_a_capsule_that_never_wins_is_boosted_until_it_does(relative):
    boost = LifetimeBoost(3, relative=relative).train()
    support = torch.tensor([[1.0, 0.9, 0.5]]).expand(8, -1)
    winners, gains = set(), []
    for _ in range(2000):
        winners.add(int(boost(support)[0].argmax()))
        gains.append(boost.gain.clone())
    assert winners == {0, 1, 2}
    # Gains change every 50 batches; the winner has nothing to give back.
    assert torch.equal(gains[48], torch.ones(3))
    assert gains[49].tolist() == pytest.approx([1, 1.1, 1.1])
    assert torch.equal(gains[98], gains[49])
    smallest = torch.stack(gains).amin(dim=1)
    assert smallest.min() >= 1 - 1e-6
    if relative:  # the smallest gain is one, and they do not grow together
        assert smallest.max() <= 1 + 1e-6
        assert gains[-1].max() < 10


def test_a_mask_leaves_the_strongest_capsule_or_that_of_the_label_or_all():
    images, labels = torch.rand(4, 1, 12, 12), torch.tensor([5, 0, 3, 2])
    for mask, quantity in (
        ("label", "activation"),
        ("longest", "activation"),
        ("winner", "support"),
    ):
        output = small(mask=mask).eval()(images)
        expected = one_hot(getattr(output, quantity).argmax(dim=1), 6)
        assert torch.equal(output.mask, expected.to(output.mask))
    assert torch.equal(small(mask="label")(images, labels).mask.argmax(dim=1), labels)
    assert (small(mask="none")(images).mask == 1).all()


@pytest.mark.parametrize("mask", ["winner", "ranks"])
def test_a_mask_ranks_boosted_support(mask):
    """§2.3: with a gain that is large enough, the capsule with the least support wins."""
    network, images = small(mask=mask).eval(), torch.rand(1, 1, 12, 12)
    support = network(images).support[0]
    weakest = int(support.argmin())
    network.boost.gain[weakest] = 2 * support.max() / support.min()
    output = network(images)
    assert int(output.mask.argmax()) == weakest
    assert torch.equal(output.support[0], support)


def test_no_gradient_flows_through_the_mask_and_some_through_the_network():
    network = small()
    output = network(torch.rand(4, 1, 12, 12))
    assert output.support.requires_grad
    assert not output.mask.requires_grad
    output.reconstruction.sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


def test_released_primary_capsules_divide_the_convolution_and_not_its_bias():
    layer, features = ReleasedPrimaryCapsules(3, 4, 5, kernel=3), torch.randn(2, 3, 9, 9)
    bias = layer.conv.bias.reshape(1, 4, 5, 1, 1)
    maps = layer.conv(features).reshape(2, 4, 5, 4, 4) - bias
    expected = squash((maps / 4 + bias).movedim(2, -1)).reshape(2, 64, 5)
    torch.testing.assert_close(layer(features)[0], expected)
