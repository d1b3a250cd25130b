"""Attacks against a closed form, their guarantees, and the Adversarial Robustness Toolbox."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capslib.attacks import (
    Loss,
    bim,
    fgsm,
    input_gradient,
    pgd,
    robustness,
    targeted_success,
    zero_share,
)
from capslib.layers import DenseCapsules, PrimaryCapsules
from capslib.losses import margin_loss
from capslib.routing import ROUTINGS

WEIGHT = torch.tensor([[1.0, -2.0, 0.0, 0.5], [-1.0, 1.0, 0.0, 0.25]])
"""Of two classes; both ignore the third pixel."""
PIXELS = torch.tensor([[0.2, 0.1, 0.9, 0.4], [0.7, 0.8, 0.3, 0.6], [0.5] * 4])
CLASSES = torch.tensor([0, 1, 0])
BOUNDS = (0.0, 1.0)
each_direction = pytest.mark.parametrize("targeted", [False, True])
each_routing = pytest.mark.parametrize("routing", ROUTINGS)


def scores(x: Tensor) -> Tensor:
    return x @ WEIGHT.T


def loss(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(scores(x), target)


class Capsules(nn.Module):
    """Activations [N, 3] of three class capsules on images [N, 1, 8, 8]."""

    def __init__(self, routing: str):
        super().__init__()
        self.primary = PrimaryCapsules(1, types=4, dim=4, kernel=3, stride=2)
        self.classes = DenseCapsules(4 * 3 * 3, 3, 4, 4, routing=routing, weight_std=0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.classes(*self.primary(x)).activation


def capsules(routing: str, dtype=torch.float64) -> tuple[Capsules, Loss, Tensor, Tensor]:
    """Return a network, its loss, five images and their classes."""
    network = Capsules(routing).eval().to(dtype)
    images = torch.rand(5, 1, 8, 8, dtype=dtype)

    def of_network(x: Tensor, target: Tensor) -> Tensor:
        return margin_loss(network(x), target)

    return network, of_network, images, torch.tensor([0, 1, 2, 0, 1])


def share(hits: Tensor) -> float:
    return hits.double().mean().item()


def test_a_linear_model_is_attacked_along_its_weights():
    """With two classes, ∇ₓ of the loss of class 0 is −p₁·(w₀ − w₁)."""
    difference = WEIGHT[1] - WEIGHT[0]
    direction = torch.stack([difference, -difference, difference])
    step = 0.25 * direction.sign()
    attacked = fgsm(loss, PIXELS, CLASSES, 0.25)
    torch.testing.assert_close(attacked, PIXELS + step)
    targeted = fgsm(loss, PIXELS, CLASSES, 0.25, targeted=True)
    torch.testing.assert_close(targeted, PIXELS - step)
    probabilities = scores(PIXELS).softmax(dim=-1)
    p_wrong = probabilities.gather(-1, 1 - CLASSES[:, None])
    gradient = input_gradient(loss, PIXELS, CLASSES)
    torch.testing.assert_close(gradient, p_wrong * direction)


@pytest.mark.parametrize("attack", [fgsm, partial(bim, steps=2), partial(pgd, steps=2)])
def test_a_distance_is_not_negative_and_bounds_are_in_order(attack):
    with pytest.raises(ValueError, match=r"at least 0, not -0\.1"):
        attack(loss, PIXELS, CLASSES, -0.1)
    for bounds in ((1, 0), (torch.tensor([0.0, 1.0]), torch.tensor([[1.0], [0.0]]))):
        with pytest.raises(ValueError, match=r"lower and an upper one, not \(1.*, 0.*\)"):
            attack(loss, PIXELS[:, :2], CLASSES, 0.1, bounds=bounds)


@pytest.mark.parametrize("steps", [1, 2])
def test_curves_refuse_what_attacks_refuse(steps):
    for epsilons, bounds in (([0.0, -0.1], BOUNDS), ([0.1], (1, 0))):
        with pytest.raises(ValueError, match=r"at least 0|a lower and an upper one"):
            robustness(scores, loss, PIXELS, CLASSES, epsilons, steps=steps, bounds=bounds)


def test_no_gradient_no_step():
    def constant(x: Tensor, target: Tensor) -> Tensor:
        return 0 * x.sum()

    assert zero_share(input_gradient(constant, PIXELS, CLASSES)) == 1
    assert torch.equal(bim(constant, PIXELS, CLASSES, 0.3, steps=3), PIXELS)
    assert zero_share(input_gradient(loss, PIXELS, CLASSES)) == 0.25
    assert torch.equal(fgsm(loss, PIXELS, CLASSES, 0.3)[:, 2], PIXELS[:, 2])


@pytest.mark.parametrize(("steps", "step_size"), [(1, None), (9, None), (4, 0.2)])
def test_no_pixel_leaves_the_ball_or_the_bounds(steps, step_size):
    low, high = torch.tensor([0.1, 0.0, 0.0, 0.35]), torch.full((3, 1), 0.85)
    options = {"steps": steps, "step_size": step_size, "bounds": (low, high)}
    attacked = bim(loss, PIXELS, CLASSES, 0.3, **options)
    assert torch.equal(attacked, attacked.clamp(low, high))
    distance = attacked - PIXELS.clamp(low, high)
    assert distance.abs().max() <= 0.3 + 1e-6


@each_direction
def test_one_step_of_the_iterative_method_is_fgsm(targeted):
    _, of_network, x, y = capsules("em")
    options = {"targeted": targeted, "bounds": BOUNDS}
    expected = fgsm(of_network, x, y, 0.1, **options)
    assert torch.equal(expected, expected.clamp(0, 1))
    attack = partial(bim, of_network, x, y, 0.1, **options)
    assert torch.equal(attack(steps=1), expected)
    assert torch.equal(attack(steps=1, step_size=0.1), expected)
    assert not torch.equal(attack(steps=4), expected)


def test_pgd_starts_anywhere_within_the_ball_and_the_bounds():
    """Without a gradient it stays where it starts."""

    def constant(x: Tensor, target: Tensor) -> Tensor:
        return 0 * x.sum()

    def start(seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return pgd(constant, x, y, 0.2, steps=2, generator=generator, bounds=BOUNDS)

    x, y = torch.linspace(0, 1, 4000).view(1000, 4), torch.zeros(1000).long()
    torch.manual_seed(0)
    assert torch.equal(start(3), start(3))
    assert not torch.equal(start(3), start(4))
    distance = start(3) - x
    assert start(3).min() >= 0
    assert start(3).max() <= 1
    assert distance.abs().max() <= 0.2 + 1e-6
    inside = distance[(x > 0.2) & (x < 0.8)]
    assert abs(inside.mean()) < 0.01
    assert inside.std() == pytest.approx(0.4 / 12**0.5, rel=0.03)


@each_routing
def test_an_example_has_its_own_gradient_whoever_is_in_its_batch(routing):
    """Also of a loss that is given for each example."""
    _, of_network, x, y = capsules(routing)

    def losses(x: Tensor, y: Tensor) -> Tensor:
        pairs = zip(x.split(1), y.split(1), strict=True)
        return torch.stack([of_network(*pair) for pair in pairs])

    gradient = input_gradient(of_network, x, y)
    rows = []
    for pair in zip(x.split(1), y.split(1), strict=True):
        rows.append(input_gradient(of_network, *pair))
    assert gradient.abs().max() > 0
    torch.testing.assert_close(gradient, torch.cat(rows), rtol=1e-9, atol=0)
    gradient_of_each = input_gradient(losses, x, y)
    torch.testing.assert_close(gradient, gradient_of_each, rtol=1e-9, atol=0)


@each_routing
def test_an_attack_leaves_nothing_behind_wherever_it_is_called(routing):
    network, of_network, x, y = capsules(routing, torch.float32)
    images, copy = x.clone(), deepcopy(network.state_dict())
    attack = partial(bim, of_network, epsilon=0.1, steps=3, bounds=BOUNDS)
    expected = attack(x, y)
    assert expected.dtype == torch.float32
    assert not expected.requires_grad
    with torch.no_grad():
        assert torch.equal(attack(x, y), expected)
    with torch.inference_mode():
        assert torch.equal(attack(x.clone(), y.clone()), expected)
    assert torch.equal(x, images)
    assert not x.requires_grad
    assert all(parameter.grad is None for parameter in network.parameters())
    torch.testing.assert_close(network.state_dict(), copy, rtol=0, atol=0)


@pytest.mark.parametrize(("steps", "batch_size"), [(1, 2), (3, 2), (3, 100)])
def test_curves_are_their_points(steps, batch_size):
    network, of_network, x, y = capsules("dynamic")
    epsilons = [0.0, 0.1, 0.4]
    darkest = x.amin(dim=(1, 2, 3), keepdim=True)
    options = {"steps": steps, "bounds": (darkest, 1.0)}
    sized = {**options, "batch_size": batch_size}
    accuracy = robustness(network, of_network, x, y, epsilons, **sized)
    success = targeted_success(network, of_network, x, [0, 2], epsilons, **sized)
    for point, epsilon in enumerate(epsilons):
        attack = partial(bim, of_network, x, epsilon=epsilon, **options)
        predicted = network(attack(y)).argmax(-1)
        assert accuracy[point] == pytest.approx(share(predicted == y))
        hits = []
        for target in (0, 2):
            attacked = attack(torch.full((5,), target), targeted=True)
            hits.append(network(attacked).argmax(-1) == target)
        assert success[point] == pytest.approx(share(torch.stack(hits)))
    assert len({*accuracy, *success}) > 2  # the curves are not flat


def test_all_epsilons_of_fgsm_share_one_gradient():
    sizes = []

    def counted(x: Tensor, y: Tensor) -> Tensor:
        sizes.append(len(x))
        return loss(x, y)

    robustness(scores, counted, PIXELS, CLASSES, [0.1, 0.2, 0.3, 0.4], batch_size=2)
    assert sizes == [2, 1]


def test_a_black_box_attack_uses_the_gradient_of_another_network():
    """A victim that uses only the pixel without gradient in the source network is safe."""

    def blind(x: Tensor) -> Tensor:
        return torch.stack([x[:, 2], 0.6 - x[:, 2]], dim=1)

    def accuracy(victim: Callable[[Tensor], Tensor]) -> list[float]:
        return robustness(victim, loss, PIXELS, victim(PIXELS).argmax(-1), [0.0, 5.0])

    assert accuracy(blind) == [1, 1]
    assert accuracy(scores) == [1, 0]
    assert targeted_success(scores, loss, PIXELS, [0, 1], [0.0, 5.0]) == [0.5, 1]


@pytest.fixture
def toolbox(monkeypatch, tmp_path):
    """The Adversarial Robustness Toolbox, which takes seconds to import and writes ~/.art."""
    monkeypatch.setenv("HOME", str(tmp_path))
    evasion = importlib.import_module("art.attacks.evasion")
    classification = importlib.import_module("art.estimators.classification")
    return evasion, classification


@each_direction
def test_the_adversarial_robustness_toolbox_makes_the_same_images(toolbox, targeted):
    evasion, classification = toolbox
    layers = nn.Conv2d(1, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(54, 3)
    network = nn.Sequential(*layers).eval()
    x, y = torch.rand(40, 1, 8, 8), torch.randint(3, (40,))
    sizes = {"input_shape": (1, 8, 8), "nb_classes": 3}
    sizes |= {"clip_values": BOUNDS, "device_type": "cpu"}
    loss = nn.CrossEntropyLoss()
    classifier = classification.PyTorchClassifier(network, loss, **sizes)
    once = evasion.FastGradientMethod(classifier, eps=0.1, targeted=targeted)
    steps = {"eps": 0.1, "eps_step": 0.03, "max_iter": 6, "verbose": False}
    iterated = evasion.BasicIterativeMethod(classifier, targeted=targeted, **steps)

    def of_network(x: Tensor, target: Tensor) -> Tensor:
        return loss(network(x), target)

    options = {"targeted": targeted, "bounds": BOUNDS}
    single = fgsm(of_network, x, y, 0.1, **options)
    smaller = bim(of_network, x, y, 0.1, steps=6, step_size=0.03, **options)
    projected = evasion.ProjectedGradientDescent(classifier, targeted=targeted, **steps)
    for images, attack in ((single, once), (smaller, iterated), (smaller, projected)):
        expected = torch.from_numpy(attack.generate(x.numpy(), y.numpy()))
        torch.testing.assert_close(images, expected)
    assert (smaller - single).abs().max() > 0.05
    # With a random start, which the toolbox draws elsewhere, both gain as much.
    restarted = evasion.ProjectedGradientDescent(
        classifier, targeted=targeted, num_random_init=1, **steps
    )
    plain = {**options, "steps": 6, "step_size": 0.03}
    losses = []
    for images in (
        pgd(of_network, x, y, 0.1, **plain),
        torch.from_numpy(restarted.generate(x.numpy(), y.numpy())),
    ):
        assert (images - x).abs().max() <= 0.1 + 1e-6
        losses.append(of_network(images, y).item())
    before = of_network(x, y).item()
    assert losses[0] - before == pytest.approx(losses[1] - before, rel=0.1)


def test_a_loss_that_is_neither_a_mean_nor_one_for_each_example_is_refused():
    for shape in ((2,), (3, 2)):
        with pytest.raises(ValueError, match="a loss for each of 3 examples, or their mean"):
            fgsm(lambda x, y, n=shape: x.sum().expand(n), PIXELS, CLASSES, 0.1)
