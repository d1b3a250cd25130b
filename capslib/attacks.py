"""Attacks on a network through the gradient of its input: FGSM, the basic iterative method, and what they do to accuracy.

``loss(x, target)`` is a network and its loss in one: it takes inputs [N, …] and classes [N] and gives a loss for each example,
[N], or their mean, as those of :mod:`capslib.losses` do. Either way the gradients are those of the sum, so that the size of a
batch changes nothing. The network belongs in ``eval`` mode; its parameters get no gradients.

ε is a distance in the units of x. Networks of this book see standardised images, so there it counts standard deviations.
``bounds``, a pair of numbers or of tensors that broadcast to x, is the range of valid inputs *in these same units*: where
each image has a mean and a deviation of its own, (0 − mean)/deviation and (255 − mean)/deviation, [N, 1, 1, 1].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]
Bounds = tuple[float | Tensor, float | Tensor]


def input_gradient(loss: Loss, x: Tensor, target: Tensor) -> Tensor:
    """The gradient of each example's own loss with respect to it, of the shape of ``x`` [N, …]."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        value = loss(x, target)
        to_value = torch.full_like(value, len(x) if value.ndim == 0 else 1)  # N · mean = sum
        return torch.autograd.grad(value, x, to_value)[0]


def zero_share(gradient: Tensor) -> float:
    """Share of entries that are exactly zero, between 0 and 1: where a gradient is masked, an attack has nothing to follow."""
    return 1 - int(gradient.count_nonzero()) / gradient.numel()


def fgsm(
    loss: Loss, x: Tensor, target: Tensor, epsilon: float, *, targeted: bool = False, bounds: Bounds | None = None
) -> Tensor:
    """One step of ε in every pixel, up the loss of the right class or, ``targeted``, down that of another: like ``x`` [N, …].

    The fast gradient sign method, x ± ε·sign(∇ₓ loss) (Goodfellow et al. 2015). A pixel without a gradient stays as it is.
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
    """The basic iterative method: ``steps`` smaller steps of :func:`fgsm`, none of which leads farther from ``x`` than ε.

    ``step_size`` is 1.25·ε/``steps`` unless given: Kurakin et al. (2016) go one grey level at a time, 1.25·ε times. So a pixel
    can turn round on its way and still get to the edge; and one step is FGSM. Raises ValueError for less than one.
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
    scores: Callable[[Tensor], Tensor], loss: Loss, x: Tensor, y: Tensor, epsilons: Sequence[float], **options: object
) -> list[float]:
    """Accuracy, between 0 and 1, that is left at each of ``epsilons`` after an untargeted attack on ``x`` [N, …] of classes ``y`` [N].

    ``scores(x)`` [N, C] is judged on what goes up ``loss``: that of the same network, or for black-box transfer that of another.
    Options: ``steps`` 1 (FGSM, one gradient for all ε; more is BIM), ``bounds``, and ``batch_size`` 100.
    """
    return _hits(scores, loss, x, y, epsilons, targeted=False, **options).double().mean(dim=1).tolist()


def targeted_success(
    scores: Callable[[Tensor], Tensor],
    loss: Loss,
    x: Tensor,
    targets: Iterable[int],
    epsilons: Sequence[float],
    **options: object,
) -> list[float]:
    """Share of ``x`` [N, …] that is taken for the target at each of ``epsilons``, a mean over ``targets`` (Hinton et al. 2018, §6).

    That counts the images that are of the target's class already, so of C classes a network gives 1/C at ε = 0. The rest is as
    in :func:`robustness`.
    """
    aims = (torch.full((len(x),), target, dtype=torch.long, device=x.device) for target in targets)
    hits = [_hits(scores, loss, x, aim, epsilons, targeted=True, **options) for aim in aims]  # of each target [E, N]
    return torch.cat(hits, dim=1).double().mean(dim=1).tolist()


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
    """Which attacked examples are taken for their target, bool [E, N]."""
    found = []
    with torch.no_grad():
        for start in range(0, len(x), batch_size):
            batch = slice(start, start + batch_size)
            of_batch = bounds and tuple(b[batch] if _by_example(b, x) else b for b in bounds)
            attacked = _attacked(loss, x[batch], target[batch], epsilons, steps, targeted, of_batch)
            found.append(torch.stack([scores(a).argmax(dim=-1) == target[batch] for a in attacked]))
    return torch.cat(found, dim=1)


def _attacked(
    loss: Loss, x: Tensor, target: Tensor, epsilons: Sequence[float], steps: int, targeted: bool, bounds: Bounds | None
) -> Iterator[Tensor]:
    if steps == 1:  # the gradient of x serves all ε
        direction = _direction(loss, x, target, targeted)
        yield from (_clip(x + epsilon * direction, bounds) for epsilon in epsilons)
    else:
        yield from (bim(loss, x, target, e, steps=steps, targeted=targeted, bounds=bounds) for e in epsilons)


def _direction(loss: Loss, x: Tensor, target: Tensor, targeted: bool) -> Tensor:
    sign = input_gradient(loss, x, target).sign()
    return -sign if targeted else sign


def _by_example(bound: float | Tensor, x: Tensor) -> bool:
    return isinstance(bound, Tensor) and bound.ndim == x.ndim and len(bound) == len(x)


def _clip(x: Tensor, bounds: Bounds | None) -> Tensor:
    if bounds is None:
        return x
    low, high = (torch.as_tensor(bound, dtype=x.dtype, device=x.device) for bound in bounds)
    return x.clamp(low, high)
