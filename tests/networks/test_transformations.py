"""What PyTorch does with modules works on every network of images: export, vmap, inference."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from capslib.networks.em_routing import MatrixCapsNet
from capslib.registry import NETWORKS

SHAPE = (1, 20, 20)
SMALL = dict(filters=4, kernel=5, primary_types=2)
SIZES = (4, 2, 3, 3)
OPTIONS = {
    "capsnet": dict(decoder=(6, 7), **SMALL),
    "matrix_capsnet": dict(sizes=SIZES, normalise="released", iterations=2),
    "cnn": dict(sizes=(2, 3, 4)),
    "deep_capsnet": dict(depth=3, primary_kernel=5, **SMALL),
    "anomaly_capsnet": SMALL,
    "sparse_capsnet": dict(primary_kernel=5, mask="winner", **SMALL),
    "consensus_capsnet": dict(sizes=SIZES, iterations=1),
}


class Activations(nn.Module):
    """The class activations of a network, whatever else its output holds."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.network(images).activation


NO_IMAGES = ("sign",)
"""Networks that take single numbers."""


@pytest.fixture(params=[name for name in NETWORKS if name not in NO_IMAGES])
def network(request) -> nn.Module:
    make = NETWORKS[request.param]
    return Activations(make(SHAPE, **OPTIONS.get(request.param, {}))).eval()


@pytest.mark.filterwarnings("ignore")  # of the tracer, which is on its way out
def test_an_exported_and_a_traced_network_take_batches_of_any_size(network):
    three, seven = torch.rand(3, *SHAPE), torch.rand(7, *SHAPE)
    dynamic = ({0: torch.export.Dim("N", min=2)},)
    program = torch.export.export(network, (three,), dynamic_shapes=dynamic)
    traced = torch.jit.trace(network, (three,), check_trace=False)
    expected = network(seven)
    for transformed in (program.module(), traced):
        result = transformed(seven)
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_every_example_has_a_gradient_of_its_own(network):
    network, images = network.double(), torch.rand(3, *SHAPE, dtype=torch.float64)
    parameters = {name: p.detach() for name, p in network.named_parameters()}

    def loss(parameters: dict[str, torch.Tensor], image: torch.Tensor) -> torch.Tensor:
        return functional_call(network, parameters, (image[None],)).square().sum()

    gradients = vmap(grad(loss), in_dims=(None, 0))(parameters, images)
    network(images[1:2]).square().sum().backward()
    for name, p in network.named_parameters():
        if p.grad is not None:
            gradient = gradients[name][1]
            torch.testing.assert_close(gradient, p.grad, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("side", "mode"), [(27, "export"), (29, "inference")])
def test_an_export_or_inference_that_comes_first_leaves_training_alone(side, mode):
    """No cache keeps tensors of an export or of inference.

    No other test has images of these sides, so that nothing is known of them.
    """
    network = MatrixCapsNet((1, side, side), 5, (4, 2, 3, 3), iterations=1)
    images = torch.rand(2, 1, side, side)
    if mode == "export":
        torch.export.export(network, (images,))
    else:
        with torch.inference_mode():
            network(images)
    activation = network(images).activation
    assert type(activation) is torch.Tensor
    activation.sum().backward()
    assert network.capsules1.weight.grad.abs().sum() > 0


def calibrated(images: torch.Tensor) -> MatrixCapsNet:
    torch.manual_seed(0)
    network = MatrixCapsNet((2, 24, 24), 5, (16, 4, 8, 8))
    network.start_at_half(images)
    return network


TOLERANCES = {torch.float64: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_a_calibrated_network_can_be_cast(dtype):
    """β_u was a large number times a small one: float16 gave NaN, bfloat16 was off by 0.56."""
    images = torch.randn(8, 2, 24, 24)
    network = calibrated(images)
    activation = network(images).activation
    cast = network.to(dtype)(images.to(dtype)).activation
    assert (cast - activation).abs().max() < TOLERANCES[dtype]


def test_saved_weights_are_the_same_function():
    images = torch.randn(8, 2, 24, 24)
    network, fresh = calibrated(images), MatrixCapsNet((2, 24, 24), 5, (16, 4, 8, 8))
    fresh.load_state_dict(network.state_dict())
    assert torch.equal(fresh(images).activation, network(images).activation)
