"""Gini, Palma and other measures of how unequally a quantity is spread; anomaly scores.

:func:`scores` measures the couplings of a capsule network as Kirillov & Panov (2022) do.

Every measure takes values of at least zero along a dimension ``dim``, and returns a tensor
without that dimension. Multiplying all values by a positive number changes nothing, and neither
does their order. Equal values measure 0 (the Palma ratio 1; Hoover's index up to rounding),
also where all are zero. Integers and half precision are measured, and returned, in float32.
Values below zero and a dimension without values raise ValueError. See Cowell (2011), *Measuring
Inequality*, chapters 2 and 3.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from capslib.errors import check_name
from capslib.shapes import check_shapes, values_can_be_read

__all__ = ["MEASURES", "atkinson", "gini", "hoover", "palma", "scores", "theil"]


@torch.no_grad()
def scores(
    network: nn.Module,
    images: Tensor,
    *,
    measures: Iterable[str] = ("gini", "palma"),
    capsule: int = 1,
    batch_size: int = 250,
) -> dict[str, Tensor]:
    """Return anomaly scores [N] of images [N, C, H, W], by measure; higher is more anomalous.

    A score (Kirillov & Panov 2022, §3.3) is the inequality of the couplings c_ij of all
    children i with the one parent j = ``capsule``: that of the class "anomalous", which is
    class 1 of ``anomaly_capsnet``. The more unequal they are, the more anomalous is the image.
    ``measures`` are names of ``MEASURES``.

    ``network(images)`` has to return an output with the last couplings [N, I, J] as
    ``coupling``, and has to be trained with examples of both classes. The network is put into
    ``eval`` mode for the call.

    Raises UserError for an unknown measure; ValueError for an output without couplings, and for
    couplings that do not sum to one over the children, as those of "dynamic" and EM routing:
    the paper's scores are not defined for them. ``routing="dynamic_over_children"`` is the
    paper's.

    >>> from capslib.networks import create_network
    >>> network = create_network("anomaly_capsnet", (1, 12, 12), classes=2)
    >>> anomaly_scores = scores(network, torch.rand(5, 1, 12, 12))
    >>> sorted(anomaly_scores), anomaly_scores["gini"].shape
    (['gini', 'palma'], torch.Size([5]))
    """
    measures = list(measures)
    for name in measures:
        check_name("measure", name, MEASURES)
    parts: dict[str, list[Tensor]] = {name: [] for name in measures}
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        for batch in images.split(batch_size):
            coupling = _couplings_over_children(network(batch), capsule)  # [n, I]
            for name in measures:
                parts[name].append(MEASURES[name](coupling, dim=-1))
    finally:
        for module, is_training in modes:
            module.training = is_training
    return {name: torch.cat(values) for name, values in parts.items()}


def _couplings_over_children(output: object, capsule: int) -> Tensor:
    """Return the couplings [N, I] of all children with one capsule, which sum to one."""
    coupling = getattr(output, "coupling", None)
    if coupling is None:
        raise ValueError("the network returns no output with couplings as `coupling`")
    check_shapes(coupling=(coupling, "N I J"))
    parents = coupling.shape[-1]
    if not 0 <= capsule < parents:
        raise ValueError(
            f"there is no capsule {capsule}: the network has {parents}, numbered from 0"
        )
    column = coupling[..., capsule]
    total = column.float().sum(dim=-1)
    if not torch.allclose(total, torch.ones_like(total), atol=0.02):
        raise ValueError(
            "the couplings do not sum to one over the children, so their inequality is no "
            'anomaly score: take routing="dynamic_over_children"'
        )
    return column


def gini(x: Tensor, dim: int = -1) -> Tensor:
    """Return the Gini coefficient, in [0, (n−1)/n]: half the mean difference, over the mean.

    G = Σ_i Σ_j |x_i − x_j| / (2n² x̄), computed as Σ_k (2k − n − 1) x_(k) / (n Σ x) from sorted
    values (Kirillov & Panov 2022, eq. 3, which leaves out the sorting). For couplings [N, I, J]
    the paper's measure is that of one parent over the children, ``gini(coupling[..., j])`` or
    ``dim=1``; over the parents, ``dim=-1``, it says something else. See :func:`scores`.

    >>> gini(torch.tensor([0.0, 0.0, 0.0, 1.0])), gini(torch.tensor([5.0, 5.0]))
    (tensor(0.7500), tensor(0.))
    """
    n = x.shape[dim]
    ordered = _sorted(x, dim)  # [..., n]
    rank = 2 * torch.arange(1, n + 1, device=x.device) - n - 1
    # Ranks sum to zero, so the mean can be subtracted first, which keeps digits.
    deviation = ordered - ordered.mean(dim=-1, keepdim=True)
    return _ratio((rank * deviation).sum(dim=-1), n * ordered.sum(dim=-1))


def palma(x: Tensor, dim: int = -1) -> Tensor:
    """Return the ratio of the ninth decile to the fourth, at least 1.

    Q_0.9/Q_0.4 with quantiles interpolated linearly, as in the released code of Kirillov &
    Panov (2022); economists divide the share of the upper tenth by that of the lower four
    (Palma 2011). Where the fourth decile is zero and the ninth is not, the ratio is infinite.
    Couplings [N, I, J] are measured over the children, ``palma(coupling[..., j])``, or
    ``dim=1``; see :func:`scores`.

    >>> palma(torch.arange(11.0))
    tensor(2.2500)
    """
    ordered = _sorted(x, dim)
    return _ratio(_quantile(ordered, 0.9), _quantile(ordered, 0.4), empty=1.0)


def theil(x: Tensor, dim: int = -1) -> Tensor:
    """Return Theil's index, in [0, ln n]: ln n minus the entropy of the shares (Theil 1967).

    T = Σ_i p_i ln(n p_i) of shares p_i = x_i/Σ x.

    >>> theil(torch.tensor([0.0, 1.0]))  # ln 2
    tensor(0.6931)
    """
    relative = _relative(x, dim)
    return _nonnegative(torch.xlogy(relative, relative).mean(dim=dim), x)


def atkinson(x: Tensor, dim: int = -1) -> Tensor:
    """Return Atkinson's index, in [0, (n−1)/n].

    It is the share of the total that could go at the same welfare, were the rest spread
    equally: 1 − (mean √(x/x̄))², for an aversion to inequality of 1/2 (Atkinson 1970).

    >>> atkinson(torch.tensor([0.0, 1.0]))
    tensor(0.5000)
    """
    return _nonnegative(1 - _relative(x, dim).sqrt().mean(dim=dim).square(), x)


def hoover(x: Tensor, dim: int = -1) -> Tensor:
    """Return Hoover's index, in [0, (n−1)/n]: the share that has to move to make all equal.

    ½ Σ |x_i − x̄| / Σ x_i, the greatest distance of the Lorenz curve from the diagonal (Hoover
    1936).

    >>> hoover(torch.tensor([0.0, 0.0, 0.0, 1.0]))
    tensor(0.7500)
    """
    x = _wide(x, dim)
    surplus = (x - x.mean(dim=dim, keepdim=True)).abs().sum(dim=dim) / 2
    return _ratio(surplus, x.sum(dim=dim))


MEASURES = {
    "gini": gini,
    "palma": palma,
    "theil": theil,
    "atkinson": atkinson,
    "hoover": hoover,
}
"""Measures by name: gini, palma, theil, atkinson and hoover."""


def _wide(x: Tensor, dim: int) -> Tensor:
    """Return ``x`` in at least float32, since float16 overflows and integers have no mean.

    Raises ValueError if ``dim`` has no values to measure, and for values below zero.
    """
    if x.shape[dim] == 0:
        raise ValueError(f"dimension {dim} of {[*x.shape]} has no values to measure")
    if values_can_be_read() and bool((x < 0).any()):
        raise ValueError("inequality is measured of values of at least zero")
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _sorted(x: Tensor, dim: int) -> Tensor:
    """Return the values of ``x`` in ascending order along the last dimension."""
    return _wide(x, dim).movedim(dim, -1).sort(dim=-1).values


def _ratio(part: Tensor, total: Tensor, empty: float = 0.0) -> Tensor:
    """Return ``part``/``total``, and ``empty`` without a gradient where both are zero."""
    both_zero = (part == 0) & (total == 0)
    return torch.where(both_zero, empty, part / torch.where(both_zero, 1.0, total))


def _relative(x: Tensor, dim: int) -> Tensor:
    """Return x/x̄ in float64: in float32, sums over nearly equal values cancel.

    The result lies on the CPU, since mps has no float64.
    """
    wide = _wide(x, dim).to("cpu", torch.float64)
    return _ratio(wide, wide.mean(dim=dim, keepdim=True), empty=1.0)


def _nonnegative(index: Tensor, x: Tensor) -> Tensor:
    """Return ``index`` of at least zero, on the device of ``x`` and in its dtype or float32."""
    return index.clamp_min(0).to(x.device, torch.promote_types(x.dtype, torch.float32))


def _quantile(ordered: Tensor, q: float) -> Tensor:
    """Return a quantile of sorted values [..., n]; torch.quantile takes at most 2^24."""
    rank = q * (ordered.shape[-1] - 1)
    low = int(rank)
    high = min(low + 1, ordered.shape[-1] - 1)
    return ordered[..., low].lerp(ordered[..., high], rank - low)
