"""Every routing in ``ROUTINGS`` does what ``conformance.py`` asks, with and without a bias.

By its name alone, each learns to classify digits.
"""

from __future__ import annotations

import pytest
import torch
from conformance import BIASES, CHECKS
from torch import nn

from capslib import data
from capslib.losses import margin_loss
from capslib.networks import create_network
from capslib.routing import ROUTINGS
from capslib.training import Context, Examples, accuracy, fit


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("name", ROUTINGS)
def test_a_routing_conforms(name, bias, check):
    CHECKS[check](name, BIASES[bias])


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.usefixtures("every_core_is_fast")
def test_the_core_of_similarity_routing_conforms(bias, check):
    """Uncompiled, where the fast path would take the definition."""
    CHECKS[check]("similarity", BIASES[bias])


def digits(split: str) -> Examples:
    arrays = data.load("digits", split)
    return Examples(torch.tensor(arrays.images) / 255, torch.tensor(arrays.labels))


def margin(network: nn.Module, batch: Examples) -> dict[str, torch.Tensor]:
    return {"loss": margin_loss(network(batch.inputs).activation, batch.labels)}


@pytest.mark.parametrize("name", ROUTINGS)
def test_a_routing_learns_digits_by_its_name_alone(name):
    """In a small CapsNet of the factory, in 15 passes over 1,433 images."""
    network = create_network("capsnet", (1, 8, 8), 10, routing=name, decoder=())
    fit(
        network,
        digits("train"),
        loss=margin,
        optimizer=torch.optim.Adam(network.parameters(), 1e-3),
        epochs=15,
        batch_size=64,
        context=Context(seed=0),
    )
    network.eval()
    assert accuracy(lambda images: network(images).activation, digits("test")) > 0.9
