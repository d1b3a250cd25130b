"""SPARSECAPS: who gets support, what the mask leaves, how boosting evens out lifetimes."""

from __future__ import annotations

import math
from collections import Counter
from copy import deepcopy

import pytest
import torch
from torch.nn.functional import conv2d, one_hot

from capslib.networks.sparse_unsupervised import (
    LifetimeBoost,
    ReleasedPrimaryCapsules,
    SparseCapsNet,
    rank_mask,
    ranks,
    routing_support,
)
from capslib.routing import squash


def small(**options) -> SparseCapsNet:
    sizes = dict(capsules=6, dim=4, decoder=(8,), filters=4, kernel=3)
    sizes |= dict(primary_types=2, primary_dim=4, primary_kernel=3)
    return SparseCapsNet((1, 12, 12), **sizes, **options)


@pytest.mark.parametrize(
    ("side", "children", "encoder", "parameters"),
    [(28, 1152, 7_689_216, 9_149_712), (40, 4608, 14_767_104, 17_064_000)],
)
def test_sizes_of_the_paper(side, children, encoder, parameters):
    with torch.device("meta"):
        network = SparseCapsNet((1, side, side))
        output = network(torch.rand(2, 1, side, side))
    sizes = Counter()
    for name, parameter in network.named_parameters():
        part = "decoder" if "decoder" in name else "encoder"
        sizes[part] += parameter.numel()
    assert sizes["encoder"] == encoder
    assert sizes.total() == parameters
    layer = network.layers[0]
    assert layer.weight.shape == (children, 16, 16, 8)
    assert layer.routing.bias.numel() == 16 * 16  # one for each number of a latent capsule
    assert output.reconstruction.shape == (2, side * side)


def test_the_mask_of_sixteen_capsules_by_hand():
    mask = rank_mask(-torch.arange(16.0)).tolist()
    assert mask[:6] == pytest.approx([math.exp(-12 * rank / 15) for rank in range(6)])
    assert mask[6:] == [0.0] * 10
    assert rank_mask(torch.zeros(1)).item() == 1, "a single capsule keeps all"


def test_ranks_go_by_strength_and_equal_strengths_by_their_order():
    assert ranks(torch.tensor([0.1, 0.9, 0.5])).tolist() == [2, 0, 1]
    assert ranks(torch.tensor([7.0, -1.0, 7.0])).tolist() == [0, 2, 1]
    assert ranks(torch.zeros(3)).tolist() == [0, 1, 2]


def test_support_by_hand_and_as_released():
    """Two types on a 1 × 3 grid, children ordered (type, position), and two latent capsules."""
    first_type = [[5, 1], [2, 2], [1, 0]]
    second_type = [[4, 0], [3, 1], [0, 6]]
    coupling = torch.tensor([first_type + second_type]).float()
    assert routing_support(coupling, 2).tolist() == [[5 + 3 + 1, 1 + 2 + 6]]
    assert routing_support(coupling, 2, "released").tolist() == [[5 + 4 + 3, 2 + 0 + 6]]


def test_support_is_that_of_the_grid_of_primary_capsules():
    """The children of the network stand in the order (type, row, column)."""
    network, images = small().eval(), torch.rand(3, 1, 12, 12)
    features = network.conv(images).relu()
    coupling = network.layers[0](*network.primary(features)).coupling  # [N, I, L]
    rows, columns = network.primary.conv(features).shape[2:]
    best = coupling.reshape(3, 2, rows, columns, 6).amax(dim=1)
    torch.testing.assert_close(network(images).support, best.sum(dim=(1, 2)))


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


def test_frequencies_start_at_those_of_the_first_batch_and_forget_slowly():
    boost = LifetimeBoost(3).train()
    first, second, third = torch.eye(3)
    boost(torch.stack([first, third, first, first]))
    assert boost.frequency.tolist() == pytest.approx([0.75, 0, 0.25])
    boost(second[None])
    assert boost.frequency.tolist() == pytest.approx([0.7425, 0.01, 0.2475])


def test_evaluation_leaves_the_statistics_alone():
    network, images = small(), torch.rand(5, 1, 12, 12)
    network.train()(images)
    state = deepcopy(network.state_dict())
    assert state["boost.batches"] == 1
    network.eval()(images)
    torch.testing.assert_close(network.state_dict(), state, rtol=0, atol=0)


def test_a_mask_leaves_the_strongest_capsule_or_that_of_the_label_or_all():
    images, labels = torch.rand(4, 1, 12, 12), torch.tensor([5, 0, 3, 2])

    def masked(mask, *labels):
        output = small(mask=mask).eval()(images, *labels)
        strongest = output.support if mask == "winner" else output.activation
        return output.mask.long(), one_hot(strongest.argmax(dim=1), 6)

    for mask in ("label", "longest", "winner"):
        assert torch.equal(*masked(mask))
    assert torch.equal(masked("label", labels)[0], one_hot(labels, 6))
    assert (masked("none")[0] == 1).all()


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


@pytest.mark.parametrize("mask", ["label", "ranks"])
def test_a_network_cast_to_bfloat16_learns(mask):
    """Its mask has the dtype of its poses."""
    network = small(mask=mask).bfloat16()
    images = torch.rand(3, 1, 12, 12, dtype=torch.bfloat16)
    network(images, torch.arange(3)).reconstruction.sum().backward()
    for parameter in network.parameters():
        assert parameter.grad.isfinite().all()


def test_batches_are_counted_in_bfloat16_too():
    """A counter in bfloat16 stops at 256."""
    boost = LifetimeBoost(3).bfloat16().train()
    boost.batches.fill_(256)
    boost(torch.rand(2, 3))
    assert int(boost.batches) == 257


def test_no_gradient_flows_through_the_mask_and_some_through_all_else():
    network = small()
    output = network(torch.rand(4, 1, 12, 12))
    assert output.support.requires_grad
    assert not output.mask.requires_grad
    output.reconstruction.sum().backward()
    for parameter in network.parameters():
        assert parameter.grad.abs().sum() > 0


def test_released_primary_capsules_divide_the_convolution_and_not_its_bias():
    layer, features = ReleasedPrimaryCapsules(3, 4, 5, kernel=3), torch.randn(2, 3, 9, 9)
    divided = conv2d(features, layer.conv.weight, stride=2) / 4 + layer.conv.bias[:, None, None]
    expected = squash(divided.unflatten(1, (4, 5)), dim=2).movedim(2, -1)
    torch.testing.assert_close(layer(features)[0], expected.flatten(1, 3))
