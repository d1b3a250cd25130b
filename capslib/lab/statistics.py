"""The interval that verdicts rest on."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterable


def interval(values: Iterable[float], level: float = 0.95) -> tuple[float, float] | None:
    """The confidence interval of the mean: Student's t for fewer than ten values, BCa bootstrap (fixed seed) from ten on.

    The order of the values does not matter. Fewer than two values have no interval: one run says nothing about the spread.
    """
    return _interval(tuple(sorted(float(v) for v in values)), level)


@functools.lru_cache(maxsize=4096)
def _interval(values: tuple[float, ...], level: float) -> tuple[float, float] | None:
    n = len(values)
    if n < 2:
        return None
    if values[0] == values[-1]:  # BCa has no interval of equal values
        return values[0], values[0]
    if n >= 10:
        import numpy as np
        from scipy.stats import bootstrap

        random = np.random.default_rng(0)
        with warnings.catch_warnings(action="ignore"):  # where rounding removes the spread; the check below catches that
            found = bootstrap((np.array(values),), np.mean, confidence_level=level, n_resamples=4999, method="BCa", rng=random)
        low, high = map(float, found.confidence_interval)
        if math.isfinite(low) and math.isfinite(high):
            return low, high
    from scipy.special import stdtrit

    mean = math.fsum(values) / n
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    half = float(stdtrit(n - 1, (1 + level) / 2)) * std / math.sqrt(n)
    return mean - half, mean + half
