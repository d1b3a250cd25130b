"""Networks by name take images of any shape, and say what they cannot do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from capslib.errors import UserError
from capslib.layers import DenseCapsules, convolve_in_bfloat16
from capslib.networks import create_network
from capslib.networks.capsnet import CapsNet
from capslib.networks.sparse_unsupervised import Autoencoder
from capslib.registry import NETWORKS
from capslib.routing import ROUTINGS, Routing

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


def is_bfloat16(tensor):
    """Return whether bfloat16 has all these float32 numbers."""
    return tensor.dtype == torch.float32 and torch.equal(tensor, tensor.bfloat16().float())


@pytest.mark.parametrize("name", IMAGES)
def test_convolutions_of_each_network_compute_in_bfloat16_and_nothing_else_does(name):
    network = create_network(name, (1, 20, 18), classes=2)
    images = torch.rand(4, 1, 20, 18)
    network(images)  # routings start from it
    network.eval()
    expected = network(images).activation
    convolve_in_bfloat16(network)
    features, votes, parents = [], [], []

    def keep_features(_, inputs, output):
        features.append(output)

    def keep_votes_and_parents(_, inputs, result):
        votes.append(getattr(inputs[0], "pose", inputs[0]))  # lazy votes have a dtype by these
        parents.append(result.pose)

    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(keep_features)
        if isinstance(module, Routing):
            module.register_forward_hook(keep_votes_and_parents)
    activation = network(images).activation
    assert all(is_bfloat16(tensor) for tensor in features)
    assert {tensor.dtype for tensor in (*votes, *parents, activation)} == {torch.float32}
    assert not any(is_bfloat16(tensor) for tensor in (*parents, activation))
    assert torch.equal(activation, expected) == (name == "autoencoder")
    torch.testing.assert_close(activation, expected, rtol=0.1, atol=0.02)
    activation.square().sum().backward()
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    assert {gradient.dtype for gradient in gradients} == {torch.float32}
    assert all(gradient.isfinite().all() for gradient in gradients)


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
        (("capsnet", 28, 10), {}, r"a shape \(C, H, W\), not 28"),
        (("capsnet", (1, 28, 28.0), 10), {}, r"a shape \(C, H, W\), not \(1, 28, 28\.0\)"),
        (("capsnet", (28, 28, 1), 10), {}, r"is the least; a shape is \(C, H, W\)"),
        (("capsnet", (1, 28, 28), 0), {}, "classes has to be a whole number .* not 0"),
        (("capsnet", (1, 28, 28), 2.0), {}, r"classes has to be a whole number .* not 2\.0"),
        (("autoencoder", (1, 28, 28), 0), {}, "classes has to be a whole number .* not 0"),
    ],
)
def test_a_mistake_is_answered_with_what_is_right(arguments, options, message):
    with pytest.raises(UserError, match=message):
        create_network(*arguments, **options)


def test_keywords_are_recognised_whatever_they_are_called(monkeypatch):
    class Mine(CapsNet):
        def __init__(self, shape, classes, **kwargs):
            super().__init__(shape, classes=classes, kernel=3, filters=4, **kwargs)

    monkeypatch.setitem(NETWORKS.data, "mine", Mine)
    network = create_network("mine", (1, 12, 12), 3, routing="em", iterations=2)
    assert network(torch.rand(2, 1, 12, 12)).activation.shape == (2, 3)
    with pytest.raises(UserError, match="Did you mean 'iterations'"):
        create_network("mine", (1, 12, 12), 3, iteration=2)


def test_the_autoencoder_takes_no_options_that_it_ignores():
    with pytest.raises(TypeError, match="nonsense"):
        Autoencoder((1, 12, 12), nonsense=3)


@pytest.mark.parametrize(
    "name", ["capsnet", "deep_capsnet", "sparse_capsnet", "anomaly_capsnet"]
)
def test_the_initial_deviation_of_w_is_an_option_of_dense_capsules(name):
    network = create_network(name, (1, 28, 28), 2, weight_std=0.3)
    layers = [module for module in network.modules() if isinstance(module, DenseCapsules)]
    assert layers
    for layer in layers:
        assert layer.weight.std().item() == pytest.approx(0.3, rel=0.05)
