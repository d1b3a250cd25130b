"""Attacks on a network through the gradient of its input (FGSM, the basic iterative method) and the accuracy they leave.

``loss(x, target)`` combines a network, in ``eval`` mode, and its loss: it takes inputs [N, …] and classes [N] and returns one loss
for each example, [N], or their mean. The gradients are always those of the sum, so the batch size does not matter.

ε and ``bounds``, the range of valid inputs, are in the units of x; bounds are a pair of numbers, or of tensors that broadcast to x.
For standardised images take black and white of :func:`capslib.data.transforms.standardise`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from capslib.shapes import check_shapes

__all__ = [
    "Bounds",
    "Loss",
    "bim",
    "fgsm",
    "input_gradient",
    "robustness",
    "targeted_success",
    "zero_share",
]

Loss = Callable[[Tensor, Tensor], Tensor]
Bounds = tuple[float | Tensor, float | Tensor]


def input_gradient(loss: Loss, x: Tensor, target: Tensor) -> Tensor:
    """Gradient of each example's own loss with respect to that example, in the shape of ``x`` [N, …].

    >>> input_gradient(lambda x, target: (x.flatten(1).sum(dim=1) - target).square(), torch.ones(2, 3), torch.tensor([3, 2]))
    tensor([[0., 0., 0.],
            [2., 2., 2.]])
    """
    check_shapes(x=(x, "N ..."), target=(target, "N"))
    with torch.inference_mode(False), torch.enable_grad():
        x, target = (
            x.detach().clone().requires_grad_(),
            target.clone(),
        )  # what inference made can have no gradient
        value = loss(x, target)
        to_value = torch.full_like(value, len(x) if value.ndim == 0 else 1)  # N · mean = sum
        return torch.autograd.grad(value, x, to_value)[0]


def zero_share(gradient: Tensor) -> float:
    """Share of entries that are exactly zero, between 0 and 1. An attack cannot follow a gradient of zero.

    >>> zero_share(torch.tensor([0.0, 0.5, -0.0, 2.0]))
    0.5
    """
    return 1 - int(gradient.count_nonzero()) / gradient.numel()


def fgsm(
    loss: Loss,
    x: Tensor,
    target: Tensor,
    epsilon: float,
    *,
    targeted: bool = False,
    bounds: Bounds | None = None,
) -> Tensor:
    """Fast gradient sign method: x + ε·sign(∇ₓ loss) (Goodfellow et al. 2015), in the shape of ``x`` [N, …].

    It raises the loss of the right class ``target``. A ``targeted`` attack lowers the loss of another class, with − for +.

    >>> square = lambda x, target: x.square().sum()
    >>> fgsm(square, torch.tensor([[1.0, -2.0, 0.0]]), torch.tensor([0]), 0.5)
    tensor([[ 1.5000, -2.5000,  0.0000]])
    """
    return _clip(x + epsilon * _direction(loss, x, target, targeted), bounds)


def bim(
    loss: Loss,
    x: Tensor,
    target: Tensor,
    epsilon: float,
    *,
    steps: int,
    step_size: float | None = None,
    targeted: bool = False,
    bounds: Bounds | None = None,
) -> Tensor:
    """Basic iterative method: ``steps`` smaller steps of :func:`fgsm`, clipped so that no pixel moves farther than ε from ``x``.

    ``step_size`` is 1.25·ε/``steps`` by default, after Kurakin et al. (2016). Raises ValueError if ``steps`` is below 1.

    >>> valley = lambda x, target: -(x - 1.2).square().sum()  # its maximum lies within the reach of ε
    >>> bim(valley, torch.tensor([[1.0]]), torch.tensor([0]), 0.4, steps=5)
    tensor([[1.2000]])
    """
    if steps < 1:
        raise ValueError(f"an attack needs at least one step, not {steps}")
    step_size = 1.25 * epsilon / steps if step_size is None else step_size
    attacked = x
    for _ in range(steps):
        attacked = attacked + step_size * _direction(loss, attacked, target, targeted)
        attacked = _clip(attacked.clamp(x - epsilon, x + epsilon), bounds)
    return attacked


def robustness(
    scores: Callable[[Tensor], Tensor],
    loss: Loss,
    x: Tensor,
    y: Tensor,
    epsilons: Sequence[float],
    **options: object,
) -> list[float]:
    """Accuracy, between 0 and 1, after an untargeted attack on ``x`` [N, …] of classes ``y`` [N], for each of ``epsilons``.

    The attack raises ``loss``; ``scores(x)`` [N, C] classifies the result. For a black-box attack, take the loss of another network.
    Options: ``steps`` (1, the default, is FGSM; more is BIM), ``bounds``, ``batch_size`` (100).

    >>> scores = lambda x: torch.stack([x[:, 0], -x[:, 0]], dim=1)  # class 0 if the pixel is positive
    >>> loss = lambda x, y: torch.nn.functional.cross_entropy(scores(x), y)
    >>> robustness(scores, loss, torch.tensor([[0.1], [0.3]]), torch.tensor([0, 0]), [0.0, 0.2, 0.4])
    [1.0, 0.5, 0.0]
    """
    return (
        _hits(scores, loss, x, y, epsilons, targeted=False, **options)
        .double()
        .mean(dim=1)
        .tolist()
    )


def targeted_success(
    scores: Callable[[Tensor], Tensor],
    loss: Loss,
    x: Tensor,
    targets: Iterable[int],
    epsilons: Sequence[float],
    **options: object,
) -> list[float]:
    """Share of ``x`` [N, …] classified as the target, averaged over ``targets``, for each of ``epsilons`` (Hinton et al. 2018, §6).

    Images that belong to the target class count too, so with all C classes as targets the share at ε = 0 is 1/C. The other
    arguments are those of :func:`robustness`.

    >>> scores = torch.nn.Linear(4, 3)
    >>> loss = lambda x, target: torch.nn.functional.cross_entropy(scores(x), target, reduction="none")
    >>> [round(share, 2) for share in targeted_success(scores, loss, torch.rand(6, 4), range(3), [0.0])]
    [0.33]
    """
    wanted = (
        torch.full((len(x),), target, dtype=torch.long, device=x.device) for target in targets
    )
    hits = [
        _hits(scores, loss, x, t, epsilons, targeted=True, **options) for t in wanted
    ]  # [E, N] each
    return torch.cat(hits, dim=1).double().mean(dim=1).tolist()


@torch.no_grad()
def _hits(
    scores: Callable[[Tensor], Tensor],
    loss: Loss,
    x: Tensor,
    target: Tensor,
    epsilons: Sequence[float],
    *,
    targeted: bool,
    steps: int = 1,
    bounds: Bounds | None = None,
    batch_size: int = 100,
) -> Tensor:
    """Which attacked examples are classified as their target, bool [E, N]."""
    limits = [
        torch.as_tensor(b, dtype=x.dtype, device=x.device).expand_as(x) for b in bounds or ()
    ]
    found = []
    for some, wanted, *of_some in zip(
        *(t.split(batch_size) for t in (x, target, *limits)), strict=True
    ):
        if steps == 1:  # all ε share the gradient at x
            direction = _direction(loss, some, wanted, targeted)
            attacked = (_clip(some + epsilon * direction, of_some) for epsilon in epsilons)
        else:
            options = dict(steps=steps, targeted=targeted, bounds=of_some)
            attacked = (bim(loss, some, wanted, epsilon, **options) for epsilon in epsilons)
        found.append(torch.stack([scores(a).argmax(dim=-1) == wanted for a in attacked]))
    return torch.cat(found, dim=1)


def _direction(loss: Loss, x: Tensor, target: Tensor, targeted: bool) -> Tensor:
    sign = input_gradient(loss, x, target).sign()
    return -sign if targeted else sign


def _clip(x: Tensor, bounds: Bounds | None) -> Tensor:
    return (
        x.clamp(*(torch.as_tensor(bound, dtype=x.dtype, device=x.device) for bound in bounds))
        if bounds
        else x
    )
