"""The networks of the EM paper: parameters by hand, shapes, released constants, the start."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from capslib.losses import spread_loss
from capslib.networks.em_routing import BaselineCNN, MatrixCapsNet
from capslib.papers.common import number_of_parameters
from capslib.routing import start_on_first_batch

SIZES = A, B, C, D = (6, 3, 4, 5)


def small(shape: tuple[int, int, int] = (2, 24, 24), **options) -> MatrixCapsNet:
    torch.manual_seed(0)
    return MatrixCapsNet(shape, 5, SIZES, **options)


# ------------------------------------------------------------------------- parameters, shapes


def test_parameters_of_the_network_for_cifar10():
    """Three channels, ten classes, 256 filters (§5).

    75·256 + 256, 256·17·32, twice 9·32·32·16 + 64, 32·10·16 + 20.
    """
    with torch.device("meta"):
        network = MatrixCapsNet((3, 24, 24), 10, (256, 32, 32, 32))
    assert number_of_parameters(network) == 19_456 + 139_264 + 2 * 147_520 + 5_140


@pytest.mark.parametrize(("pose", "matrix"), [("matrix", 16), ("vector", 256)])
def test_parameters_of_a_small_network(pose, matrix):
    """A matrix for each pair of types and place in a window, two biases for each parent."""
    count = (2 * 5 * 5 + 1) * A + A * 17 * B
    count += 9 * B * C * matrix + 2 * C
    count += 9 * C * D * matrix + 2 * D
    count += D * 5 * matrix + 2 * 5
    assert number_of_parameters(small(pose=pose)) == count
    options = {"coordinates": False, "mixing": True, "preset": "released"}
    assert number_of_parameters(small(pose=pose, **options)) == count


def test_the_cnn_has_the_papers_form_and_drops_units_in_training_only():
    cnn = BaselineCNN((3, 21, 23), 7, (4, 6, 8))
    maps = 6 * 5 * 5  # 21 → 10 → 5
    count = (3 * 25 + 1) * 4 + (4 * 25 + 1) * 6
    count += (maps + 1) * 8 + (8 + 1) * 7
    assert number_of_parameters(cnn) == count
    x = torch.randn(4, 3, 21, 23)
    assert not torch.equal(cnn(x).activation, cnn(x).activation)
    assert torch.equal(cnn.eval()(x).activation, cnn(x).activation)


@pytest.mark.parametrize(
    ("pose", "shape", "numbers", "grids"),
    [
        ("matrix", (1, 24, 28), (4, 4), [(4, 5), (2, 3)]),
        ("vector", (1, 17, 17), (16,), [(3, 3), (1, 1)]),
    ],
)
def test_shapes_of_layers(pose, shape, numbers, grids):
    network, x = small(shape, pose=pose), torch.randn(3, *shape)
    *convolutional, classes = network.layers(x).items()
    children = B
    for result, grid, parents in zip(convolutional, grids, (C, D), strict=True):
        name, (poses, activation, coupling) = result
        assert poses.shape == (3, *grid, parents, *numbers), name
        assert activation.shape == (3, *grid, parents), name
        assert coupling.shape == (3, *grid, 3, 3, children, parents), name
        children = parents
    name, (poses, activation, coupling) = classes
    assert name == "classes"
    assert poses.shape == (3, 5, 16)
    assert coupling.shape == (3, math.prod(grids[-1]) * D, 5)
    torch.testing.assert_close(network(x).activation, activation)


# ------------------------------------------------------------------------ constants, the start


def released(V: Tensor, a: Tensor, constants: tuple) -> tuple[Tensor, Tensor]:
    """Return means [J, 16] and logits [J] of the released code, from votes [I, J, 16]."""
    b_u, b_a, final_lambda = constants
    R = torch.full_like(V[..., 0], 1 / V.shape[1])
    mu = torch.zeros_like(V[0])
    for t in range(3):
        r = R * a[:, None]
        m = r.sum(dim=0)
        mean = (r[..., None] * V).sum(dim=0) / m[:, None]
        mu = 0.9 * mean + 0.1 * mu
        square = (V - mu) ** 2
        var = 0.0005 + (r[..., None] * square).sum(dim=0) / m[:, None]
        log_var = var.log().sum(dim=-1)
        lam = final_lambda * (1 - 0.95 ** (t + 1))
        cost = -log_var - 16 * b_u * (1 + math.log(2 * math.pi))
        logit = lam * (m * cost - 5000 * b_a)
        distance = (square / var).sum(dim=-1)
        log_p = -0.5 * (16 * math.log(2 * math.pi) + log_var + distance)
        R = torch.softmax(nn.functional.logsigmoid(logit) + log_p, dim=1)
    return mu, logit


RELEASED = {
    "capsules1": (0.5, 0.5, 0.01),
    "capsules2": (0.5, 0.5, 0.01),
    "classes": (2, 1, 0.0025),
}
"""β_u, β_a and the last λ of each layer."""


@pytest.mark.parametrize("layer", RELEASED)
@pytest.mark.parametrize("spread", [0.03, 1.0])
def test_the_released_constants_are_the_numbers_of_the_code(layer, spread):
    routing = small(preset="released").double().get_submodule(layer).routing
    V = spread * torch.randn(40, routing.beta_u.numel(), 16, dtype=torch.float64)
    a = torch.rand(40, dtype=torch.float64)
    mu, logit = released(V, a, RELEASED[layer])
    pose, activation, _ = routing(V[None], a[None])
    torch.testing.assert_close(pose[0], mu, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(activation[0].logit(), logit, rtol=1e-9, atol=1e-9)


def test_printed_constants_have_no_floor():
    for preset, offset in (("printed", 0.0), ("calibrated", 5e-4)):
        options = small(preset=preset).capsules1.routing.options
        assert options["variance_offset"] == offset


STARTS = [{}, {"iterations": 1}, {"pose": "vector"}, {"normalise": "positions-per-type"}]


@pytest.mark.parametrize("options", STARTS, ids=str)
def test_a_start_at_half_leaves_layers_half_active_and_gives_the_first_a_gradient(options):
    network, x = small(**options), torch.randn(16, 2, 24, 24)
    network.start_at_half(x)
    for name, result in network.layers(x).items():
        assert 0.35 < result.activation.mean().item() < 0.65, name
        assert result.activation.std().item() > 0.01, name
    spread_loss(network(x).activation, torch.arange(16) % 5, 0.2).backward()
    assert network.conv.weight.grad.abs().max() > 1e-6


def test_a_start_at_half_takes_the_place_of_that_from_the_first_batch():
    network = start_on_first_batch(MatrixCapsNet((1, 32, 32), sizes=(4, 2, 2, 2)))
    images = torch.rand(4, 1, 32, 32)
    network.start_at_half(images)
    before = network.classes.routing.beta_u.clone()
    network.train()(images.flip(0) * 2)
    assert torch.equal(network.classes.routing.beta_u, before)


def test_a_start_at_half_is_a_function_of_weights_and_images():
    x, second = torch.randn(2, 8, 2, 24, 24)
    network, started_twice = small(), small()
    network.start_at_half(x)
    started_twice.start_at_half(second)
    assert not torch.equal(network(x).activation, started_twice(x).activation)
    started_twice.start_at_half(x)  # nothing is left of other images
    assert torch.equal(network(x).activation, started_twice(x).activation)


@pytest.mark.parametrize("side", [17, 24])
def test_reach_is_how_far_the_gradients_go(side):
    network = MatrixCapsNet((2, side, side), sizes=(4, 2, 2, 2), iterations=1).double()
    x = torch.randn(4, 2, side, side, dtype=torch.float64)
    network.start_at_half(x)
    x.requires_grad_()
    (network(x).activation * torch.arange(5)).sum().backward()
    _, _, rows, columns = x.grad.nonzero(as_tuple=True)
    assert rows.max() + 1 == columns.max() + 1 == MatrixCapsNet.reach(side)
