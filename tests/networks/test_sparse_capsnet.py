"""SPARSECAPS: who gets support, what the mask leaves, and how boosting evens out lifetimes."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch

from capslib.networks.sparse_unsupervised import (
    LifetimeBoost,
    Mask,
    ReleasedPrimaryCapsules,
    SparseCapsNet,
    rank_mask,
    ranks,
    routing_support,
)
from capslib.routing import squash

SMALL = dict(
    capsules=6,
    dim=4,
    filters=4,
    kernel=3,
    primary_types=2,
    primary_dim=4,
    primary_kernel=3,
    decoder=(8,),
)


def small(**changes) -> SparseCapsNet:
    torch.manual_seed(0)
    return SparseCapsNet((1, 12, 12), **{**SMALL, **changes})


@pytest.mark.parametrize(
    ("side", "children", "bare", "whole"),
    [(28, 1152, 7_689_216, 9_149_712), (40, 4608, 14_767_104, 17_064_000)],
)
def test_sizes_of_the_paper(side, children, bare, whole):
    with torch.device("meta"):
        network = SparseCapsNet((1, side, side))
        output = network(torch.rand(2, 1, side, side))
    sizes = {name: p.numel() for name, p in network.named_parameters()}
    assert network.layers[0].weight.shape == (children, 16, 16, 8)
    assert sum(sizes.values()) == whole
    assert sum(n for name, n in sizes.items() if "decoder" not in name) == bare
    assert sizes["layers.0.routing.bias"] == 16 * 16, "one for each number of a latent capsule"
    assert output.reconstruction.shape == (2, side * side)


def test_the_mask_of_sixteen_capsules_by_hand():
    mask = rank_mask(-torch.arange(16.0)[None])[0].tolist()
    assert mask[:6] == pytest.approx([math.exp(-12 * r / 15) for r in range(6)])
    assert [round(m, 3) for m in mask[:6]] == [1, 0.449, 0.202, 0.091, 0.041, 0.018]
    assert mask[6:] == [0.0] * 10


def test_ranks_are_a_permutation_and_equal_strengths_go_by_their_place():
    torch.manual_seed(0)
    strength = torch.randn(50, 16)
    found = ranks(strength)
    assert torch.equal(found.sort(dim=1).values, torch.arange(16).expand(50, -1))
    assert (
        strength.gather(1, (found == 0).float().argmax(dim=1, keepdim=True))[:, 0]
        == strength.amax(dim=1)
    ).all()
    assert ranks(torch.zeros(1, 4)).tolist() == [[0, 1, 2, 3]]


def test_support_by_hand_and_as_released():
    """Two types on a 1 × 3 grid, children in the order (type, position); three latent capsules."""
    coupling = torch.tensor(
        [[[5, 1, 0], [2, 2, 0], [1, 0, 3], [4, 0, 1], [3, 1, 1], [0, 6, 2]]]
    ).float()
    by_position = [
        max(5, 4) + max(2, 3) + max(1, 0),
        max(1, 0) + max(2, 1) + max(0, 6),
        max(0, 1) + max(0, 1) + max(3, 2),
    ]
    consecutive = [
        max(5, 2) + max(1, 4) + max(3, 0),
        max(1, 2) + max(0, 0) + max(1, 6),
        max(0, 0) + max(3, 1) + max(1, 2),
    ]
    assert routing_support(coupling, 2).tolist() == [by_position]
    assert routing_support(coupling, 2, "released").tolist() == [consecutive]
    assert by_position != consecutive


def test_support_is_that_of_the_grid_of_primary_capsules():
    """The children of the network stand in the order (type, row, column)."""
    network = small().eval()
    with torch.no_grad():
        images = torch.rand(3, 1, 12, 12)
        pose, activation = network.primary(network.conv(images).relu())
        coupling = network.layers[0](pose, activation).coupling  # [N, I, L]
        grid = network.primary.conv(network.conv(images).relu()).shape[2:]
        of = coupling.reshape(3, 2, *grid, 6)
        torch.testing.assert_close(network(images).support, of.amax(dim=1).sum(dim=(1, 2)))


def test_a_capsule_that_never_wins_is_boosted_until_it_does():
    boost = LifetimeBoost(4).train()
    support = torch.tensor([[1.0, 0.9, 0.5, 0.2]]).expand(8, -1)
    won, gains = set(), []
    for _ in range(4000):
        won.add(int(boost(support)[0].argmax()))
        gains.append(boost.gain.clone())
    assert won == {0, 1, 2, 3}
    assert (torch.stack(gains) >= 1 - 1e-6).all(), "no gain falls below one"
    assert torch.equal(gains[0], torch.ones(4))
    assert torch.equal(gains[48], gains[0]), "gains change every 50 batches"
    assert gains[49].tolist() == pytest.approx([1, 1.1, 1.1, 1.1]), (
        "the winner has nothing to give back"
    )


def test_relative_steps_are_shares_of_a_gain_and_the_smallest_gain_is_one():
    boost = LifetimeBoost(3, relative=True).train()
    support = torch.tensor([[1.0, 0.9, 0.5]]).expand(8, -1)
    for _ in range(50):
        boost(support)
    assert boost.gain.tolist() == pytest.approx([1, 1.1, 1.1]), "one above the band, two below"
    won, before = set(), boost.gain.clone()
    for _ in range(49):
        won.add(int(boost(support)[0].argmax()))
    assert torch.equal(boost.gain, before), "gains change every 50 batches"
    for _ in range(2000):
        won.add(int(boost(support)[0].argmax()))
        assert float(boost.gain.min()) == pytest.approx(1)
    assert won == {0, 1, 2}
    assert float(boost.gain.max()) < 10, "they do not grow together"


def test_frequencies_start_at_those_of_the_first_batch_and_forget_slowly():
    boost = LifetimeBoost(3).train()
    boost(torch.tensor([[3.0, 1, 0], [0, 1, 3], [3, 1, 0], [3, 1, 0]]))
    assert boost.frequency.tolist() == pytest.approx([0.75, 0, 0.25])
    boost(torch.tensor([[0.0, 1, 0]]))
    assert boost.frequency.tolist() == pytest.approx([0.99 * 0.75, 0.01, 0.99 * 0.25])


def test_evaluation_leaves_the_statistics_alone():
    network = small()
    images = torch.rand(5, 1, 12, 12)
    network.train()(images)
    before = {name: b.clone() for name, b in network.boost.named_buffers()}
    assert before["batches"] == 1
    network.eval()(images)
    assert all(torch.equal(b, before[name]) for name, b in network.boost.named_buffers())
    assert "boost.gain" in network.state_dict(), "a checkpoint keeps them"


def test_what_each_mask_leaves():
    images, labels = torch.rand(4, 1, 12, 12), torch.tensor([5, 0, 3, 2])
    assert (small(mask="none")(images).mask == 1).all()
    assert small(mask="label")(images, labels).mask.argmax(dim=1).tolist() == labels.tolist()
    for mask, quantity in (
        ("label", "activation"),
        ("longest", "activation"),
        ("winner", "support"),
    ):
        output = small(mask=mask).eval()(images)
        assert (output.mask.sum(dim=1) == 1).all()
        assert torch.equal(output.mask.argmax(dim=1), getattr(output, quantity).argmax(dim=1))
    output = small(mask="ranks").eval()(images)
    assert torch.equal(output.mask.argmax(dim=1), output.support.argmax(dim=1))


@pytest.mark.parametrize("mask", ["winner", "ranks"])
def test_a_mask_ranks_boosted_support(mask):
    """§2.3: with a gain that is large enough, the capsule with the least support wins."""
    network, images = small(mask=mask).eval(), torch.rand(1, 1, 12, 12)
    support = network(images).support[0]
    least = int(support.argmin())
    network.boost.gain[least] = 2 * support.max() / support.min()
    assert int(network(images).mask.argmax()) == least
    assert torch.equal(network(images).support[0], support), (
        "the support itself stays what it was"
    )


@pytest.mark.parametrize("mask", get_args(Mask))
def test_a_network_cast_to_bfloat16_learns_and_goes_on_counting(mask):
    """The mask stayed float32, and a counter of batches in bfloat16 stops at 256."""
    network, images = (
        small(mask=mask).bfloat16(),
        torch.rand(3, 1, 12, 12, dtype=torch.bfloat16),
    )
    labels = torch.arange(3) if mask == "label" else None
    network(images, labels).reconstruction.sum().backward()
    assert all(p.grad.isfinite().all() for p in network.parameters())
    if network.boost is not None:
        network.boost.batches.fill_(256)
        network(images)
        assert network.boost.batches == 257


def test_no_gradient_flows_through_the_mask_and_some_through_all_else():
    network = small()
    _, activation, support = network.latent(torch.rand(4, 1, 12, 12))
    assert support.requires_grad
    assert not network.masked(activation, support, None).requires_grad
    network(torch.rand(4, 1, 12, 12)).reconstruction.sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


def test_released_primary_capsules_divide_the_convolution_and_not_its_bias():
    torch.manual_seed(0)
    layer, features = ReleasedPrimaryCapsules(3, 4, 5, kernel=3), torch.randn(2, 3, 9, 9)
    with torch.no_grad():
        bias = layer.conv.bias.reshape(1, 4, 5, 1, 1)
        summed = layer.conv(features).reshape(2, 4, 5, 4, 4) - bias
        expected = squash((summed / 4 + bias).movedim(2, -1)).reshape(2, 64, 5)
        torch.testing.assert_close(layer(features)[0], expected)
