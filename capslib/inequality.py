"""How unequally a quantity is spread: Gini, Palma and other measures of inequality.

All take values of at least zero along a dimension and measure their shares: multiplying all
values by a positive number changes nothing, and neither does their order. Integers and half
precision are measured, and returned, in float32. Equal values are 0 (the Palma ratio: 1), all
zeros among them; a dimension without values is a ValueError. See Cowell (2011), *Measuring
Inequality*, chapters 2, 3.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["MEASURES", "atkinson", "gini", "hoover", "palma", "theil"]


def gini(x: Tensor, dim: int = -1) -> Tensor:
    """The Gini coefficient, in [0, (n−1)/n]: half the mean difference of two values, over the mean.

    G = Σ_i Σ_j |x_i − x_j| / (2n² x̄), computed from sorted values as Σ_k (2k − n − 1) x_(k) / (n Σ x)
    (Kirillov & Panov 2022, eq. 3, which leaves out the sorting). Returns ``x`` without ``dim``.

    >>> gini(torch.tensor([0.0, 0.0, 0.0, 1.0])), gini(torch.tensor([5.0, 5.0]))
    (tensor(0.7500), tensor(0.))
    """
    n, ordered = x.shape[dim], _sorted(x, dim)
    rank = 2 * torch.arange(1, n + 1, device=x.device) - n - 1
    apart = ordered - ordered.mean(dim=-1, keepdim=True)  # ranks sum to zero; this keeps digits
    return _over((rank * apart).sum(dim=-1), n * ordered.sum(dim=-1))


def palma(x: Tensor, dim: int = -1) -> Tensor:
    """The ratio of the ninth decile to the fourth, at least 1: what is large over what is common.

    Q_0.9/Q_0.4 with quantiles interpolated linearly, as the released code of Kirillov & Panov
    (2022) has it; economists divide the shares of the upper tenth and the lower four (Palma 2011).
    Where the fourth decile is zero but not the ninth, the ratio is infinite.

    >>> palma(torch.arange(11.0))
    tensor(2.2500)
    """
    ordered = _sorted(x, dim)
    return _over(_quantile(ordered, 0.9), _quantile(ordered, 0.4), nothing=1.0)


def theil(x: Tensor, dim: int = -1) -> Tensor:
    """Theil's index T = Σ_i p_i ln(n p_i) of shares p, in [0, ln n]: ln n minus their entropy (Theil 1967).

    >>> theil(torch.tensor([0.0, 1.0]))  # ln 2
    tensor(0.6931)
    """
    return _of_relative(x, dim, lambda r: torch.xlogy(r, r).mean(dim=dim))


def atkinson(x: Tensor, dim: int = -1) -> Tensor:
    """Atkinson's index, in [0, (n−1)/n]: what share of the total could go for the same welfare.

    1 − (mean √(x/x̄))², that of an aversion to inequality of 1/2 (Atkinson 1970).

    >>> atkinson(torch.tensor([0.0, 1.0]))
    tensor(0.5000)
    """
    return _of_relative(x, dim, lambda r: 1 - r.sqrt().mean(dim=dim).square())


def hoover(x: Tensor, dim: int = -1) -> Tensor:
    """Hoover's index, in [0, (n−1)/n]: the share of the total that would have to change hands.

    ½ Σ |x_i − x̄| / Σ x_i, the greatest distance of the Lorenz curve from the diagonal (Hoover 1936).

    >>> hoover(torch.tensor([0.0, 0.0, 0.0, 1.0]))
    tensor(0.7500)
    """
    x = _wide(x, dim)
    return _over((x - x.mean(dim=dim, keepdim=True)).abs().sum(dim=dim) / 2, x.sum(dim=dim))


MEASURES = {f.__name__: f for f in (gini, palma, theil, atkinson, hoover)}
"""All measures by name."""


def _wide(x: Tensor, dim: int) -> Tensor:
    """Return ``x`` in at least float32. Raises ValueError if ``dim`` has no values to measure.

    Sums of many values pass the largest float16, and integers have no mean.
    """
    if x.shape[dim] == 0:
        raise ValueError(f"dimension {dim} of {[*x.shape]} has no values to measure")
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _sorted(x: Tensor, dim: int) -> Tensor:
    return _wide(x, dim).movedim(dim, -1).sort(dim=-1).values


def _over(part: Tensor, whole: Tensor, nothing: float = 0.0) -> Tensor:
    """``part``/``whole``, and ``nothing`` where both are zero."""
    return torch.where((part == 0) & (whole == 0), nothing, part / whole)


def _of_relative(x: Tensor, dim: int, index: Callable[[Tensor], Tensor]) -> Tensor:
    """An ``index`` of x/x̄, in double precision: in single, sums over nearly equal values cancel. On the CPU, for mps has none."""
    wide = _wide(x, dim).to("cpu", torch.float64)
    found = index(_over(wide, wide.mean(dim=dim, keepdim=True), nothing=1.0))
    return found.clamp_min(0).to(x.device, torch.promote_types(x.dtype, torch.float32))


def _quantile(ordered: Tensor, q: float) -> Tensor:
    """The quantile of sorted values [..., n]; torch's own takes at most 2^24 numbers."""
    place = q * (ordered.shape[-1] - 1)
    low = int(place)
    high = min(low + 1, ordered.shape[-1] - 1)
    return ordered[..., low].lerp(ordered[..., high], place - low)
