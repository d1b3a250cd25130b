"""The statistics that verdicts rest on."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterable


def interval(values: Iterable[float], level: float = 0.95) -> tuple[float, float] | None:
    """The interval of the mean: of Student's t under ten values, by BCa bootstrap (fixed seed) from ten on.

    The order of the values does not matter. None for fewer than two values: one run says nothing about the spread.
    """
    return _interval(tuple(sorted(float(v) for v in values)), level)


@functools.lru_cache(maxsize=4096)
def _interval(values: tuple[float, ...], level: float) -> tuple[float, float] | None:
    n = len(values)
    if n < 2:
        return None
    if values[0] == values[-1]:  # the bootstrap has no BCa interval of equal values
        return values[0], values[0]
    if n >= 10:
        import numpy as np
        from scipy.stats import bootstrap

        random = np.random.default_rng(0)
        with warnings.catch_warnings(action="ignore"):  # of a spread lost to rounding, which the next line looks after
            found = bootstrap((np.array(values),), np.mean, confidence_level=level, n_resamples=4999, method="BCa", rng=random)
        low, high = map(float, found.confidence_interval)
        if math.isfinite(low) and math.isfinite(high):
            return low, high
    from scipy.special import stdtrit

    mean = math.fsum(values) / n
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    half = float(stdtrit(n - 1, (1 + level) / 2)) * std / math.sqrt(n)
    return mean - half, mean + half
