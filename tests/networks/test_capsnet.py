"""CapsNet: its parameters as the paper counts them, and the capsule that its decoder sees."""

from __future__ import annotations

import torch

from capslib.networks import create_network
from capslib.networks.capsnet import CapsNet


def test_the_paper_counts_the_parameters_of_capsnet():
    """8.2 million with the decoder (§5), for 28 × 28 pixels and ten classes."""
    network = CapsNet((1, 28, 28))
    assert sum(parameter.numel() for parameter in network.parameters()) == 8_215_568
    assert network.classes.weight.shape == (1152, 10, 16, 8)


def test_the_decoder_of_capsnet_sees_the_capsule_of_the_label_else_the_most_active():
    network = create_network("capsnet", (1, 12, 12), 3).eval()
    images = torch.rand(6, 1, 12, 12)
    free = network(images)
    most_active = free.activation.argmax(dim=1)
    assert torch.equal(network(images, most_active).reconstruction, free.reconstruction)
    others = network(images, (most_active + 1) % 3)
    assert torch.equal(others.activation, free.activation)
    assert not torch.equal(others.reconstruction, free.reconstruction)
    assert create_network("capsnet", (1, 12, 12), 3, decoder=())(images).reconstruction is None
