"""The networks of the EM paper: parameters counted by hand, shapes, the constants of the release, and a start at half."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from capslib.losses import spread_loss
from capslib.networks.em_routing import BaselineCNN, MatrixCapsNet

LEAST = (1, 17, 17)
A, B, C, D = SIZES = (6, 3, 4, 5)


def count(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def images(n: int, shape: tuple[int, int, int] = (2, 24, 24), seed: int = 0) -> Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed))


def network(
    shape: tuple[int, int, int] = (2, 24, 24), seed: int = 0, **options: object
) -> MatrixCapsNet:
    torch.manual_seed(seed)
    return MatrixCapsNet(shape, 5, SIZES, **options)


# -------------------------------------------------------------------------------------------------------- parameters, shapes


def test_the_network_for_cifar10():
    """Three channels, ten classes, 256 filters (§5): 75·256 + 256, 256·17·32, twice 9·32·32·16 + 64, 32·10·16 + 20."""
    cifar = MatrixCapsNet((3, 24, 24), 10, (256, 32, 32, 32))
    assert count(cifar) == 19_456 + 139_264 + 2 * 147_520 + 5_140
    assert cifar(images(1, (3, 24, 24))).shape == (1, 10)


@pytest.mark.parametrize(("pose", "matrix"), [("matrix", 16), ("vector", 256)])
@pytest.mark.parametrize(
    "options", [{}, {"coordinates": False}, {"mixing": True}, {"preset": "released"}], ids=str
)
def test_parameters_of_a_small_network(pose, matrix, options):
    """A pose has 16 numbers and an activation; a layer a matrix for each pair of types and place in its window, and two biases."""
    convolutions = (2 * 5 * 5 + 1) * A + A * 17 * B
    capsules = 9 * B * C * matrix + 2 * C + 9 * C * D * matrix + 2 * D + D * 5 * matrix + 2 * 5
    assert count(network(pose=pose, **options)) == convolutions + capsules


def test_parameters_of_a_small_cnn():
    convolutions, maps = (3 * 25 + 1) * 4 + (4 * 25 + 1) * 6, 6 * 5 * 5  # 21 → 10 → 5
    assert (
        count(BaselineCNN((3, 21, 23), 7, (4, 6, 8)))
        == convolutions + (maps + 1) * 8 + (8 + 1) * 7
    )


@pytest.mark.parametrize(("pose", "of_pose"), [("matrix", (4, 4)), ("vector", (16,))])
@pytest.mark.parametrize(
    ("shape", "grids"), [((1, 24, 28), [(4, 5), (2, 3)]), (LEAST, [(3, 3), (1, 1)])]
)
def test_shapes_of_its_layers(pose, of_pose, shape, grids):
    capsnet = network(shape, pose=pose)
    poses, activation = capsnet.primary_capsules(images(3, shape))
    assert poses.shape[:1] + poses.shape[3:] == (3, B, *of_pose)
    assert activation.shape == poses.shape[:4]
    layers = capsnet.layers(images(3, shape))
    assert list(layers) == ["capsules1", "capsules2", "classes"]
    first, second, classes = layers.values()
    for layer, grid, children, parents in zip(
        (first, second), grids, (B, C), (C, D), strict=True
    ):
        assert layer.pose.shape == (3, *grid, parents, *of_pose)
        assert layer.activation.shape == (3, *grid, parents)
        assert layer.coupling.shape == (3, *grid, 3, 3, children, parents)
    children = grids[1][0] * grids[1][1] * D
    assert [tuple(t.shape) for t in classes] == [(3, 5, 16), (3, 5), (3, children, 5)]
    torch.testing.assert_close(capsnet(images(3, shape)), classes.activation)


def test_the_cnn_drops_units_in_training_only():
    torch.manual_seed(0)
    cnn, x = BaselineCNN((2, 24, 24), 5, (4, 6, 32)), images(4)
    assert cnn(x).shape == (4, 5)
    assert not torch.equal(cnn(x), cnn(x))
    assert torch.equal(cnn.eval()(x), cnn(x))


# --------------------------------------------------------------------------------------------------------- constants, the start


def released(
    V: Tensor, a: Tensor, b_u: float, b_a: float, final: float, T: int
) -> tuple[Tensor, Tensor]:
    """The released code on votes [I, J, 16] of one example, in its own symbols: means [J, 16] and logits [J]."""
    R = torch.full(V.shape[:2], 1 / V.shape[1], dtype=V.dtype)
    mu = torch.zeros(V.shape[1:], dtype=V.dtype)
    for t in range(T):
        r = R * a[:, None]
        m = r.sum(dim=0)
        mu = 0.9 * (r[..., None] * V).sum(dim=0) / m[:, None] + 0.1 * mu
        var = 0.0005 + (r[..., None] * (V - mu) ** 2).sum(dim=0) / m[:, None]
        lam = final * (1 - 0.95 ** (t + 1))
        logit = lam * (
            m * (-var.log().sum(dim=-1) - 16 * b_u * (1 + math.log(2 * math.pi))) - 5000 * b_a
        )
        log_p = -0.5 * (16 * math.log(2 * math.pi) + var.log().sum(dim=-1)) - (
            (V - mu) ** 2 / (2 * var)
        ).sum(dim=-1)
        R = torch.softmax(nn.functional.logsigmoid(logit) + log_p, dim=1)
    return mu, logit


@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize(
    ("layer", "b_u", "b_a", "final"),
    [("capsules1", 0.5, 0.5, 0.01), ("capsules2", 0.5, 0.5, 0.01), ("classes", 2, 1, 0.0025)],
)
def test_the_released_constants_are_the_numbers_of_the_code(layer, b_u, b_a, final, iterations):
    routing = getattr(network(preset="released", iterations=iterations).double(), layer).routing
    generator = torch.Generator().manual_seed(1)
    for spread in (0.03, 1.0):
        V = spread * torch.randn(
            40, routing.beta_u.numel(), 16, generator=generator, dtype=torch.float64
        )
        a = torch.rand(40, generator=generator, dtype=torch.float64)
        mu, logit = released(V, a, b_u, b_a, final, iterations)
        result = routing(V[None], a[None])
        torch.testing.assert_close(result.pose[0], mu, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(result.activation[0].logit(), logit, rtol=1e-9, atol=1e-9)


def test_printed_constants_have_no_floor_and_all_presets_learn_two_numbers_a_parent():
    offsets = {
        preset: network(preset=preset).capsules1.routing.options["variance_offset"]
        for preset in ("printed", "calibrated")
    }
    assert offsets == {"printed": 0.0, "calibrated": 5e-4}
    for preset in ("printed", "released", "calibrated"):
        assert all(
            p.requires_grad and p.shape == (C,)
            for p in network(preset=preset).capsules1.routing.parameters()
        )


@pytest.mark.parametrize(
    "options",
    [{}, {"iterations": 1}, {"pose": "vector"}, {"normalise": "positions-per-type"}],
    ids=str,
)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_start_at_half_leaves_every_layer_half_active_and_gives_the_first_one_a_gradient(
    options, seed
):
    capsnet, x = network(seed=seed, **options), images(16, seed=seed)
    capsnet.start_at_half(x)
    for name, result in capsnet.layers(x).items():
        assert 0.35 < result.activation.mean().item() < 0.65, name
        assert result.activation.std().item() > 0.01, name
    spread_loss(capsnet(x), torch.arange(16) % 5, 0.2).backward()
    assert capsnet.conv.weight.grad.abs().max() > 1e-6


def test_a_start_at_half_is_a_function_of_weights_and_images():
    one, two = network(), network()
    for seed, capsnet in enumerate((one, two)):
        torch.manual_seed(seed)
        capsnet.start_at_half(images(8))
    assert torch.equal(one(images(4)), two(images(4)))
    before = one.state_dict()["classes.routing.beta_u"].clone()
    one.start_at_half(images(8, seed=5))
    assert not torch.equal(one.classes.routing.beta_u, before)
    one.start_at_half(images(8))  # nothing is left of other images
    assert torch.equal(one(images(4)), two(images(4)))


def test_saved_weights_are_the_whole_network():
    one, two = network(), network(seed=1)
    one.start_at_half(images(8))
    two.load_state_dict(one.state_dict())
    assert torch.equal(one(images(4)), two(images(4)))


@pytest.mark.parametrize("side", [17, 24, 32])
def test_reach_is_how_far_the_gradients_go(side):
    torch.manual_seed(0)
    network = MatrixCapsNet((2, side, side), sizes=(4, 2, 2, 2), iterations=1).double()
    images = torch.randn(4, 2, side, side, dtype=torch.float64)
    network.start_at_half(images)
    images.requires_grad_()
    (network(images) * torch.arange(5)).sum().backward()
    rows, columns = (
        images.grad.abs().amax(dim=dims).nonzero().max().item() + 1
        for dims in ((0, 1, 3), (0, 1, 2))
    )
    assert rows == columns == MatrixCapsNet.reach(side)
