"""What PyTorch does with modules works on every network: export, tracing, casts, per-example gradients, inference."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from capslib.networks.em_routing import BaselineCNN, MatrixCapsNet
from capslib.networks.inequality_anomaly import AnomalyCapsNet
from capslib.networks.learned_routing import ConsensusCapsNet
from capslib.networks.negation_limitation import DeepCapsNet
from capslib.networks.sparse_unsupervised import SparseCapsNet

SHAPE = (1, 20, 20)
SMALL = dict(filters=4, kernel=5, primary_types=2)
NETWORKS = {
    "em": lambda: MatrixCapsNet(SHAPE, 5, (4, 2, 3, 3)),
    "em as released": lambda: MatrixCapsNet(SHAPE, 5, (4, 2, 3, 3), normalise="released"),
    "cnn": lambda: BaselineCNN(SHAPE, 5, (2, 3, 4)),
    "dynamic": lambda: DeepCapsNet(SHAPE, depth=3, primary_kernel=5, **SMALL),
    "over children": lambda: AnomalyCapsNet(SHAPE, **SMALL),
    "sparse": lambda: SparseCapsNet(SHAPE, primary_kernel=5, mask="winner", **SMALL),
    "connectionist": lambda: ConsensusCapsNet(SHAPE, sizes=(4, 2, 3, 3)),
    "similarity": lambda: ConsensusCapsNet(SHAPE, sizes=(4, 2, 3, 3), routing="similarity"),
}


class Activations(nn.Module):
    """The class activations of a network, whatever else its output holds."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        output = self.network(images)
        return getattr(output, "activation", output)


@pytest.fixture(params=NETWORKS.values(), ids=NETWORKS)
def network(request) -> nn.Module:
    torch.manual_seed(0)
    return Activations(request.param()).eval()


@pytest.mark.filterwarnings("ignore")  # of the tracer, which is on its way out
def test_an_exported_and_a_traced_network_take_batches_of_any_size(network):
    three, seven = torch.rand(3, *SHAPE), torch.rand(7, *SHAPE)
    dynamic = ({0: torch.export.Dim("N", min=2)},)
    exported = torch.export.export(network, (three,), dynamic_shapes=dynamic).module()
    traced = torch.jit.trace(network, (three,), check_trace=False)
    for other in (exported, traced):
        torch.testing.assert_close(other(seven), network(seven), rtol=1e-4, atol=1e-6)


def test_every_example_has_a_gradient_of_its_own(network):
    images = torch.rand(3, *SHAPE)
    parameters = {name: p.detach() for name, p in network.named_parameters()}

    def loss(parameters: dict[str, torch.Tensor], image: torch.Tensor) -> torch.Tensor:
        return functional_call(network, parameters, (image[None],)).square().sum()

    gradients = vmap(grad(loss), in_dims=(None, 0))(parameters, images)
    network(images[1:2]).square().sum().backward()
    for name, p in network.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(gradients[name][1], p.grad, rtol=1e-3, atol=1e-5)


ONE_PROCESS = """
import torch
from capslib.networks.em_routing import MatrixCapsNet
network, images = MatrixCapsNet((1, 20, 20), 5, (4, 2, 3, 3)), torch.rand(2, 1, 20, 20)
if {export}:
    torch.export.export(network, (images,))
else:
    with torch.inference_mode():
        network(images)
activation = network(images)
assert type(activation) is torch.Tensor, type(activation)
activation.sum().backward()
assert network.capsules1.weight.grad.abs().sum() > 0
"""


@pytest.mark.parametrize("export", [True, False], ids=["export", "inference mode"])
def test_what_came_first_in_a_process_leaves_training_alone(export):
    """A cache kept what it had made: every later call gave a FakeTensor, or could not be trained."""
    subprocess.run([sys.executable, "-c", ONE_PROCESS.format(export=export)], check=True)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-3), (torch.bfloat16, 0.1), (torch.float16, 0.02)],
)
def test_a_calibrated_network_can_be_cast(dtype, tolerance):
    """β_u was a large number times a small one: bfloat16 moved activations by 0.56, and float16 gave NaN."""
    torch.manual_seed(0)
    network, images = MatrixCapsNet((2, 24, 24), 5, (16, 4, 8, 8)), torch.randn(8, 2, 24, 24)
    network.start_at_half(images)
    with torch.no_grad():
        cast = copy.deepcopy(network).to(dtype)(images.to(dtype)).float()
        assert (cast - network(images)).abs().max() < tolerance


def test_saved_weights_of_a_calibrated_network_are_the_same_function():
    torch.manual_seed(0)
    network, images = MatrixCapsNet((2, 24, 24), 5, (16, 4, 8, 8)), torch.randn(8, 2, 24, 24)
    network.start_at_half(images)
    other = MatrixCapsNet((2, 24, 24), 5, (16, 4, 8, 8))
    other.load_state_dict(network.state_dict())
    assert torch.equal(other(images), network(images))


def test_weights_that_were_saved_before_there_was_an_offset_are_the_same_function():
    network, images = MatrixCapsNet(SHAPE, 5, (4, 2, 3, 3)), torch.rand(2, *SHAPE)
    older = network.state_dict()
    for name in [name for name in older if name.endswith("_extra_state")]:
        scale_u, scale_a, _, lamda = older[name].tolist()
        older[name] = torch.tensor([scale_u, scale_a, lamda], dtype=torch.float64)
    other = MatrixCapsNet(SHAPE, 5, (4, 2, 3, 3))
    other.load_state_dict(older)
    assert torch.equal(other(images), network(images))
