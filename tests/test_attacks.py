"""Attacks against a closed form, against their guarantees, and against the Adversarial Robustness Toolbox."""

from __future__ import annotations

import tempfile

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capslib.attacks import (
    Loss,
    bim,
    fgsm,
    input_gradient,
    robustness,
    targeted_success,
    zero_share,
)
from capslib.layers import DenseCapsules, PrimaryCapsules
from capslib.losses import margin_loss, spread_loss
from capslib.routing import ROUTINGS

with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as home:
    patch.setenv(
        "HOME", home
    )  # the toolbox writes ~/.art when it is imported, and fails where two processes do so at once
    from art.attacks.evasion import BasicIterativeMethod, FastGradientMethod
    from art.estimators.classification import PyTorchClassifier

WEIGHT = torch.tensor(
    [[1.0, -2.0, 0.0, 0.5], [-1.0, 1.0, 0.0, 0.25]]
)  # of two classes; both ignore the third pixel
PIXELS = torch.tensor([[0.2, 0.1, 0.9, 0.4], [0.7, 0.8, 0.3, 0.6], [0.5, 0.5, 0.5, 0.5]])
CLASSES = torch.tensor([0, 1, 0])


def scores(x: Tensor) -> Tensor:
    return x @ WEIGHT.to(x).T


def loss(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(scores(x), target)


def each_loss(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(scores(x), target, reduction="none")


class Capsules(nn.Module):
    """Activations [N, 3] of three class capsules on images [N, 1, 8, 8]."""

    def __init__(self, routing: str):
        super().__init__()
        self.primary = PrimaryCapsules(1, types=4, dim=4, kernel=3, stride=2)
        self.classes = DenseCapsules(4 * 3 * 3, 3, 4, 4, routing=routing, weight_std=0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.classes(*self.primary(x)).activation


def capsules(routing: str) -> tuple[Capsules, Tensor, Tensor]:
    torch.manual_seed(0)
    return Capsules(routing).eval(), torch.rand(5, 1, 8, 8), torch.tensor([0, 1, 2, 0, 1])


def margin(net: nn.Module) -> Loss:
    return lambda x, target: margin_loss(net(x), target)


# --------------------------------------------------------------------------------------------------------- what is known


def test_a_linear_model_is_attacked_along_its_weights():
    """With two classes, ∇ₓ of the loss of class 0 is −p₁·(w₀ − w₁), so its sign is that of w₁ − w₀ for every image."""
    toward_1 = (WEIGHT[1] - WEIGHT[0]).sign()  # −, +, 0, −
    step = torch.stack([toward_1, -toward_1, toward_1])
    torch.testing.assert_close(fgsm(loss, PIXELS, CLASSES, 0.25), PIXELS + 0.25 * step)
    torch.testing.assert_close(
        fgsm(loss, PIXELS, CLASSES, 0.25, targeted=True), PIXELS - 0.25 * step
    )
    p_wrong = scores(PIXELS).softmax(dim=-1).gather(-1, 1 - CLASSES[:, None])
    torch.testing.assert_close(
        input_gradient(loss, PIXELS, CLASSES), p_wrong * step * (WEIGHT[1] - WEIGHT[0]).abs()
    )


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("targeted", [False, True])
def test_an_attack_moves_a_convex_loss_in_its_direction(targeted, steps):
    """The first-order change of a convex loss bounds its rise from below. A targeted attack needs small steps."""
    attacked = bim(loss, PIXELS, CLASSES, 0.05, steps=steps, targeted=targeted)
    change = each_loss(attacked, CLASSES) - each_loss(PIXELS, CLASSES)
    assert (change < 0).all() if targeted else (change > 0).all()


def test_no_gradient_no_step():
    def met(x: Tensor, target: Tensor) -> Tensor:
        return spread_loss(scores(x), target, margin=-100.0)

    gradient = input_gradient(met, PIXELS, CLASSES)
    assert zero_share(gradient) == 1
    assert torch.equal(fgsm(met, PIXELS, CLASSES, 0.3), PIXELS)
    assert torch.equal(bim(met, PIXELS, CLASSES, 0.3, steps=3), PIXELS)
    assert zero_share(input_gradient(loss, PIXELS, CLASSES)) == 0.25  # the third of four pixels
    assert torch.equal(fgsm(loss, PIXELS, CLASSES, 0.3)[:, 2], PIXELS[:, 2])


# ------------------------------------------------------------------------------------------------------ what is promised


@pytest.mark.parametrize("steps", [1, 4, 9])
@pytest.mark.parametrize("step_size", [None, 0.2])
def test_no_pixel_leaves_the_ball_or_the_bounds(steps, step_size):
    low, high = torch.tensor([0.1, 0.0, 0.0, 0.35]), torch.full((3, 1), 0.85)
    attacked = bim(
        loss, PIXELS, CLASSES, 0.3, steps=steps, step_size=step_size, bounds=(low, high)
    )
    inside = PIXELS.clamp(low, high)
    assert (attacked >= low).all()
    assert (attacked <= high).all()
    assert ((attacked - inside).abs() <= 0.3 + 1e-6).all()
    assert torch.equal(
        fgsm(loss, PIXELS, CLASSES, 0.3, bounds=(0.0, 1.0)),
        fgsm(loss, PIXELS, CLASSES, 0.3).clamp(0, 1),
    )


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("targeted", [False, True])
def test_one_step_of_the_iterative_method_is_fgsm(routing, targeted):
    net, x, y = capsules(routing)
    of_net = margin(net)
    once = fgsm(of_net, x, y, 0.1, targeted=targeted, bounds=(0, 1))
    assert torch.equal(bim(of_net, x, y, 0.1, steps=1, targeted=targeted, bounds=(0, 1)), once)
    assert torch.equal(
        bim(of_net, x, y, 0.1, steps=1, step_size=0.1, targeted=targeted, bounds=(0, 1)), once
    )
    assert not torch.equal(
        bim(of_net, x, y, 0.1, steps=4, targeted=targeted, bounds=(0, 1)), once
    )


def test_an_attack_needs_a_step():
    with pytest.raises(ValueError, match="at least one step, not 0"):
        bim(loss, PIXELS, CLASSES, 0.1, steps=0)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_an_example_has_its_own_gradient_whoever_is_in_its_batch(routing):
    net, x, y = capsules(routing)
    net, x = net.double(), x.double()
    ones = [slice(i, i + 1) for i in range(5)]
    together = input_gradient(margin(net), x, y)
    alone = torch.cat([input_gradient(margin(net), x[i], y[i]) for i in ones])
    summed = input_gradient(
        lambda x, y: torch.stack([margin_loss(net(x[i]), y[i]) for i in ones]), x, y
    )
    assert together.abs().max() > 0
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=0)
    torch.testing.assert_close(together, summed, rtol=1e-9, atol=0)


def test_an_attack_works_where_inference_has_made_its_images():
    net, x, y = capsules("dynamic")
    expected = bim(margin(net), x, y, 0.1, steps=2)
    with torch.inference_mode():
        assert torch.equal(bim(margin(net), x.clone(), y.clone(), 0.1, steps=2), expected)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_attack_leaves_nothing_behind(routing, dtype):
    """It also works under ``no_grad``, and gives the same result twice."""
    net, x, y = capsules(routing)
    net, x = net.to(dtype), x.to(dtype)
    before, states = x.clone(), {k: v.clone() for k, v in net.state_dict().items()}
    with torch.no_grad():
        attacked = [bim(margin(net), x, y, 0.1, steps=3, bounds=(0.0, 1.0)) for _ in range(2)]
    assert torch.equal(*attacked)
    assert attacked[0].dtype == dtype
    assert not attacked[0].requires_grad
    assert torch.equal(x, before)
    assert not x.requires_grad
    assert all(p.grad is None for p in net.parameters())
    assert all(torch.equal(v, states[k]) for k, v in net.state_dict().items())


# ------------------------------------------------------------------------------------------------------------ whole curves


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("batch_size", [2, 100])
def test_curves_are_their_points(steps, batch_size):
    net, x, y = capsules("dynamic")
    epsilons, bounds = [0.0, 0.1, 0.4], (x.flatten(1).amin(1).view(-1, 1, 1, 1), 1.0)
    of_net = margin(net)
    options = dict(steps=steps, batch_size=batch_size, bounds=bounds)
    left = robustness(net, of_net, x, y, epsilons, **options)
    success = targeted_success(net, of_net, x, range(3), epsilons, **options)
    for e, epsilon in enumerate(epsilons):
        attack = dict(epsilon=epsilon, steps=steps, bounds=bounds)
        assert left[e] == pytest.approx(
            (net(bim(of_net, x, y, **attack)).argmax(-1) == y).double().mean().item()
        )
        hits = [
            net(bim(of_net, x, torch.full((5,), t), targeted=True, **attack)).argmax(-1) == t
            for t in range(3)
        ]
        assert success[e] == pytest.approx(torch.stack(hits).double().mean().item())
    assert len({*left, *success}) > 2  # the curves are not flat


def test_all_epsilons_of_fgsm_share_one_gradient():
    calls = []

    def counted(x: Tensor, y: Tensor) -> Tensor:
        calls.append(len(x))
        return loss(x, y)

    robustness(scores, counted, PIXELS, CLASSES, [0.1, 0.2, 0.3, 0.4], batch_size=2)
    assert calls == [2, 1]


def test_a_black_box_attack_uses_the_gradient_of_another_network():
    """A victim that uses only the pixel without gradient in the source network is safe from its attacks."""

    def blind(x: Tensor) -> Tensor:
        return torch.stack([x[:, 2], 0.6 - x[:, 2]], dim=1)

    y = blind(PIXELS).argmax(-1)
    assert robustness(blind, loss, PIXELS, y, [0.0, 5.0]) == [1, 1]
    right = scores(PIXELS).argmax(-1)
    assert robustness(scores, loss, PIXELS, right, [0.0, 5.0]) == [1, 0]
    assert targeted_success(scores, loss, PIXELS, [0, 1], [5.0]) == [1]
    assert targeted_success(scores, loss, PIXELS, [0, 1], [0.0]) == [0.5]


# ------------------------------------------------------------------------------------------------------ another library


@pytest.mark.parametrize("targeted", [False, True])
def test_the_adversarial_robustness_toolbox_makes_the_same_images(targeted):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(54, 3)
    ).eval()
    x, y = torch.rand(40, 1, 8, 8), torch.randint(3, (40,))
    theirs = PyTorchClassifier(
        net, nn.CrossEntropyLoss(), (1, 8, 8), 3, clip_values=(0.0, 1.0), device_type="cpu"
    )

    def of_net(x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(net(x), target)

    options = dict(targeted=targeted, bounds=(0.0, 1.0))

    made = FastGradientMethod(theirs, eps=0.1, targeted=targeted).generate(x.numpy(), y.numpy())
    torch.testing.assert_close(fgsm(of_net, x, y, 0.1, **options), torch.from_numpy(made))

    many = BasicIterativeMethod(
        theirs, eps=0.1, eps_step=0.03, max_iter=6, targeted=targeted, verbose=False
    )
    made = many.generate(x.numpy(), y.numpy())
    ours = bim(of_net, x, y, 0.1, steps=6, step_size=0.03, **options)
    torch.testing.assert_close(ours, torch.from_numpy(made))
    assert (ours - fgsm(of_net, x, y, 0.1, **options)).abs().max() > 0.05
