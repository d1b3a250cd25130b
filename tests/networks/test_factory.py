"""Networks by name take images of any shape, and say what they cannot do."""

from __future__ import annotations

import pytest
import torch

from capslib.errors import UserError
from capslib.networks import create_network
from capslib.networks.capsnet import CapsNet
from capslib.registry import NETWORKS
from capslib.routing import ROUTINGS

IMAGES = [name for name in NETWORKS if name != "sign"]
LEAST = {
    "capsnet": 5,
    "deep_capsnet": 5,
    "anomaly_capsnet": 5,
    "sparse_capsnet": 5,
    "matrix_capsnet": 17,
    "consensus_capsnet": 17,
    "cnn": 4,
}
"""The least sides of images, where there is one."""
ROUTED = [name for name in IMAGES if name not in ("cnn", "autoencoder")]


@pytest.mark.parametrize("size", ["small", "paper"])
@pytest.mark.parametrize("name", IMAGES)
def test_each_network_takes_images_of_an_odd_shape_and_learns(name, size):
    if size == "paper" and name == "sparse_capsnet":
        pytest.skip("too slow")
    network = create_network(name, (3, 40, 28), classes=2, size=size)
    activation = network(torch.rand(2, 3, 40, 28)).activation
    assert activation.shape == (2, 2)
    activation.square().sum().backward()
    gradients = [p.grad.abs().max() for p in network.parameters() if p.grad is not None]
    assert max(gradients) > 0


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("name", ROUTED)
def test_a_network_takes_each_routing_by_name(name, routing):
    network = create_network(name, (1, 20, 18), classes=2, routing=routing, iterations=2)
    activation = network(torch.rand(2, 1, 20, 18)).activation
    assert activation.shape == (2, 2)
    assert activation.isfinite().all()


@pytest.mark.parametrize("name", LEAST)
def test_a_shape_that_is_too_small_is_refused_with_the_smallest_that_works(name):
    least = LEAST[name]
    create_network(name, (2, least, least + 9), classes=2)
    with pytest.raises(UserError, match=f"{name}: .*{least} × {least} is the least"):
        create_network(name, (2, least + 9, least - 1), classes=2)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("capsnett", (1, 28, 28), 10), {}, "Did you mean 'capsnet'"),
        (("capsnet", (1, 28, 28), 10, "tiny"), {}, "Unknown size 'tiny'"),
        (("capsnet", (1, 28, 28), 10), {"routing": "emm"}, "Did you mean 'em'"),
        (("capsnet", (1, 28, 28), 10), {"filter": 3}, "Did you mean 'filters'"),
        (("capsnet", (1, 28, 28), 10), {"iteration": 3}, "Did you mean 'iterations'"),
        (("capsnet", (28, 28), 10), {}, r"a shape \(C, H, W\), not \(28, 28\)"),
        (("cnn", (1, 28, 28), 10), {"routing": "em"}, "cnn has no routing"),
        (("sign", (1, 28, 28), 2), {}, "sign takes no images"),
        (("anomaly_capsnet", (1, 28, 28), 10), {}, "two classes"),
    ],
)
def test_a_mistake_is_answered_with_what_is_right(arguments, options, message):
    with pytest.raises(UserError, match=message):
        create_network(*arguments, **options)


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
