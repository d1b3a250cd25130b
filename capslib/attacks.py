"""Attacks on a network through the gradient of its input, and the accuracy that they leave.

The attacks are FGSM, the basic iterative method (BIM), and PGD, which is BIM from a random
point within ε of x.

``loss(x, target)`` combines a network, in ``eval`` mode, and its loss: it takes inputs [N, …]
and classes [N], and returns one loss for each example, [N], or their mean. Gradients are those
of the sum, so the size of a batch does not matter.

ε and ``bounds``, the range of valid inputs, are in the units of x; bounds are a pair of
numbers, or of tensors that broadcast to x. For images that are standardised,
:func:`capslib.data.transforms.black_and_white` returns them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from capslib.shapes import check_shapes, values_can_be_read

__all__ = [
    "Bounds",
    "Loss",
    "bim",
    "fgsm",
    "input_gradient",
    "pgd",
    "robustness",
    "targeted_success",
    "zero_share",
]

Loss = Callable[[Tensor, Tensor], Tensor]
Bounds = tuple[float | Tensor, float | Tensor]


def input_gradient(loss: Loss, x: Tensor, target: Tensor) -> Tensor:
    """Return the gradient of each example's own loss, in the shape of ``x`` [N, …].

    Raises ValueError for a loss that is neither [N] nor a scalar.

    >>> square = lambda x, target: (x.sum(dim=1) - target).square()
    >>> input_gradient(square, torch.ones(2, 3), torch.tensor([3, 2]))
    tensor([[0., 0., 0.],
            [2., 2., 2.]])
    """
    check_shapes(x=(x, "N ..."), target=(target, "N"))
    with torch.inference_mode(False), torch.enable_grad():
        # Tensors that were made in inference mode have no gradient, but their copies do.
        x = x.detach().clone().requires_grad_()
        value = loss(x, target.clone())
        if value.shape not in ((), (len(x),)):
            raise ValueError(
                f"an attack needs a loss for each of {len(x)} examples, or their mean, "
                f"not one of shape {[*value.shape]}"
            )
        to_value = torch.full_like(value, len(x) if value.ndim == 0 else 1)  # N · mean = sum
        return torch.autograd.grad(value, x, to_value)[0]


def zero_share(gradient: Tensor) -> float:
    """Return the share of entries that are exactly zero, in [0, 1]: no attack can follow them.

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
    """Return x + ε·sign(∇ₓ loss), the fast gradient sign method (Goodfellow et al. 2015).

    It raises the loss of the right class ``target``. A ``targeted`` attack subtracts, and so
    lowers the loss of another class. The result has the shape of ``x`` [N, …]. Raises
    ValueError for an ε below 0, and for bounds whose lower one lies above the upper one.

    >>> square = lambda x, target: x.square().sum(dim=1)
    >>> fgsm(square, torch.tensor([[1.0, -2.0, 0.0]]), torch.tensor([0]), 0.5)
    tensor([[ 1.5000, -2.5000,  0.0000]])
    """
    _check_range(epsilon, bounds)
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
    """Return ``x`` after the basic iterative method (Kurakin et al. 2016).

    It takes ``steps`` smaller steps of :func:`fgsm`, and after each brings every pixel back to
    within ε of ``x``. ``step_size`` is 1.25·ε/``steps`` by default. Raises ValueError if
    ``steps`` is below 1, and where :func:`fgsm` does.

    >>> hill = lambda x, target: -(x - 1.2).square().sum(dim=1)  # its maximum is within reach
    >>> bim(hill, torch.tensor([[1.0]]), torch.tensor([0]), 0.4, steps=5)
    tensor([[1.2000]])
    """
    _check_range(epsilon, bounds)
    options = {"steps": steps, "step_size": step_size, "targeted": targeted, "bounds": bounds}
    return _ascend(loss, x, x, target, epsilon, reach=1.25, **options)


def pgd(
    loss: Loss,
    x: Tensor,
    target: Tensor,
    epsilon: float,
    *,
    steps: int = 40,
    step_size: float | None = None,
    generator: torch.Generator | None = None,
    targeted: bool = False,
    bounds: Bounds | None = None,
) -> Tensor:
    """Return ``x`` after projected gradient descent in the ∞-norm (Madry et al. 2018).

    It is :func:`bim` from a point drawn uniformly within ε of ``x``, and within ``bounds``. The
    ``generator``, on the device of ``x``, makes the draw; None is torch's own. Several draws
    attack harder than one. ``step_size`` is 2.5·ε/``steps`` by default, so that every point
    of the ball can be reached. Raises ValueError if ``steps`` is below 1, and where
    :func:`fgsm` does.

    >>> hill = lambda x, target: -(x - 1.2).square().sum(dim=1)  # its maximum is within reach
    >>> seed = torch.Generator().manual_seed(0)
    >>> attacked = pgd(hill, torch.ones(1, 1), torch.tensor([0]), 0.4, generator=seed)
    >>> bool((attacked - 1.2).abs() < 0.03)  # a step is 0.025
    True
    """
    _check_range(epsilon, bounds)
    share = torch.rand(x.shape, dtype=x.dtype, device=x.device, generator=generator)
    start = _clip(x + epsilon * (2 * share - 1), bounds)
    options = {"steps": steps, "step_size": step_size, "targeted": targeted, "bounds": bounds}
    return _ascend(loss, start, x, target, epsilon, reach=2.5, **options)


def _ascend(
    loss: Loss,
    start: Tensor,
    x: Tensor,
    target: Tensor,
    epsilon: float,
    *,
    reach: float,
    steps: int,
    step_size: float | None,
    targeted: bool,
    bounds: Bounds | None,
) -> Tensor:
    """Return ``start`` after steps of signs, each brought back to within ε of ``x``.

    All steps together are ``reach``·ε long, unless there is a ``step_size``.
    """
    if steps < 1:
        raise ValueError(f"an attack needs at least one step, not {steps}")
    if step_size is None:
        step_size = reach * epsilon / steps
    attacked = start
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
    *,
    steps: int = 1,
    bounds: Bounds | None = None,
    batch_size: int = 100,
) -> list[float]:
    """Return the accuracy, in [0, 1], that an untargeted attack leaves at each ε.

    The attack raises the ``loss`` of ``x`` [N, …] with classes ``y`` [N]; ``scores(x)`` [N, C]
    classifies the result. For a black-box attack, take the loss of another network. The attack
    is :func:`fgsm`, or :func:`bim` if ``steps`` is above 1. Put the network into ``eval`` mode
    first. Raises ValueError where these do.

    >>> scores = lambda x: torch.cat([x, -x], dim=1)  # class 0 if the pixel is positive
    >>> loss = lambda x, y: torch.nn.functional.cross_entropy(scores(x), y)
    >>> x, y = torch.tensor([[0.1], [0.3]]), torch.tensor([0, 0])
    >>> robustness(scores, loss, x, y, [0.0, 0.2, 0.4])
    [1.0, 0.5, 0.0]
    """
    options = {"steps": steps, "bounds": bounds, "batch_size": batch_size}
    hits = _hits(scores, loss, x, y, epsilons, targeted=False, **options)
    return hits.double().mean(dim=1).tolist()


def targeted_success(
    scores: Callable[[Tensor], Tensor],
    loss: Loss,
    x: Tensor,
    targets: Iterable[int],
    epsilons: Sequence[float],
    *,
    steps: int = 1,
    bounds: Bounds | None = None,
    batch_size: int = 100,
) -> list[float]:
    """Return the share of ``x`` that is classified as the target at each ε.

    The share is averaged over ``targets`` (Hinton et al. 2018, §6). Images that belong to the
    target class count too, so with all C classes as targets the share at ε = 0 is 1/C. The
    other arguments are those of :func:`robustness`.

    >>> scores = torch.nn.Linear(4, 3)
    >>> loss = lambda x, target: torch.nn.functional.cross_entropy(scores(x), target)
    >>> shares = targeted_success(scores, loss, torch.rand(6, 4), range(3), [0.0])
    >>> [round(share, 2) for share in shares]
    [0.33]
    """
    options = {"steps": steps, "bounds": bounds, "batch_size": batch_size}
    hits = []
    for target in targets:
        classes = torch.full((len(x),), target, dtype=torch.long, device=x.device)
        hits.append(_hits(scores, loss, x, classes, epsilons, targeted=True, **options))
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
    steps: int,
    bounds: Bounds | None,
    batch_size: int,
) -> Tensor:
    """Return which attacked examples are classified as their target, bool [E, N]."""
    tensors = [x, target]
    for bound in bounds or ():
        bound = torch.as_tensor(bound, dtype=x.dtype, device=x.device)
        tensors.append(bound.expand_as(x))
    batches = zip(*(tensor.split(batch_size) for tensor in tensors), strict=True)
    hits = []
    for images, classes, *limits in batches:
        options = {"steps": steps, "targeted": targeted, "bounds": limits}
        attacked = _attack_each(loss, images, classes, epsilons, **options)
        hits.append(
            torch.stack([scores(image).argmax(dim=-1) == classes for image in attacked])
        )
    return torch.cat(hits, dim=1)


def _attack_each(
    loss: Loss,
    x: Tensor,
    target: Tensor,
    epsilons: Sequence[float],
    *,
    steps: int,
    targeted: bool,
    bounds: Bounds | None,
) -> Iterator[Tensor]:
    """Yield the attacked ``x`` for each ε. A single step takes one gradient for all of them."""
    if steps == 1:
        for epsilon in epsilons:
            _check_range(epsilon, bounds)
        direction = _direction(loss, x, target, targeted)
        for epsilon in epsilons:
            yield _clip(x + epsilon * direction, bounds)
    else:
        options = {"steps": steps, "targeted": targeted, "bounds": bounds}
        for epsilon in epsilons:
            yield bim(loss, x, target, epsilon, **options)


def _direction(loss: Loss, x: Tensor, target: Tensor, targeted: bool) -> Tensor:
    """Return the signs of the changes of ``x`` that an attack makes."""
    sign = input_gradient(loss, x, target).sign()
    return -sign if targeted else sign


def _check_range(epsilon: float, bounds: Bounds | None) -> None:
    """Raise ValueError for an ε below 0, and for a lower bound above the upper one."""
    if not values_can_be_read():
        return
    if not bool((torch.as_tensor(epsilon) >= 0).all()):
        raise ValueError(f"the ε of an attack is at least 0, not {epsilon}")
    if bounds:
        on_cpu = (torch.as_tensor(bound, device="cpu") for bound in bounds)
        low, high = torch.broadcast_tensors(*on_cpu)
        wrong = ~(low <= high)
        if bool(wrong.any()):
            pair = low[wrong][0].item(), high[wrong][0].item()
            raise ValueError(f"bounds are a lower and an upper one, not {pair}")


def _clip(x: Tensor, bounds: Bounds | None) -> Tensor:
    """Return ``x`` within its bounds."""
    if not bounds:
        return x
    low, high = (torch.as_tensor(bound, dtype=x.dtype, device=x.device) for bound in bounds)
    return x.clamp(low, high)
