"""The interval that verdicts rest on."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterable

Bounds = tuple[float, float]


def interval(
    values: Iterable[float], bounds: Bounds | None = None, level: float = 0.95
) -> tuple[float, float] | None:
    """The confidence interval of the mean: Student's t for fewer than ten values, BCa bootstrap (fixed seed) from ten on.

    Inside ``bounds`` the t interval is that of the logit of the mean, taken back (Korn and Graubard 1998): with x the mean and s its
    standard error on the scale from 0 to 1, logit(x) ± t·s/(x(1 − x)). It cannot leave the bounds, and far from them it is the plain
    one. A bootstrapped mean never leaves them. Bounds that a value has left are none. The order of the values does not matter. Fewer
    than two values have no interval: one run says nothing about the spread.
    """
    return _interval(tuple(sorted(map(float, values))), bounds, level)


@functools.lru_cache(maxsize=4096)
def _interval(
    values: tuple[float, ...], bounds: Bounds | None, level: float
) -> tuple[float, float] | None:
    n = len(values)
    if n < 2:
        return None
    if values[0] == values[-1]:  # neither has an interval of equal values
        return values[0], values[0]
    import numpy as np
    from scipy import special, stats

    if n >= 10:
        random = np.random.default_rng(0)
        with warnings.catch_warnings(
            action="ignore"
        ):  # where rounding removes the spread; the check below catches that
            found = stats.bootstrap(
                (np.array(values),),
                np.mean,
                confidence_level=level,
                n_resamples=4999,
                method="BCa",
                rng=random,
            )
        low, high = map(float, found.confidence_interval)
        if math.isfinite(low) and math.isfinite(high):
            return low, high
    mean, half = (
        math.fsum(values) / n,
        float(special.stdtrit(n - 1, (1 + level) / 2) * stats.sem(values)),
    )
    if bounds is None or not bounds[0] <= values[0] <= values[-1] <= bounds[1]:
        return mean - half, mean + half
    low, high = bounds
    share, wide = (mean - low) / (high - low), half / (high - low)
    if not 0 < share < 1:  # rounding has taken the mean to a bound
        return max(low, mean - half), min(high, mean + half)
    left, right = (
        special.expit(special.logit(share) + sign * wide / (share * (1 - share)))
        for sign in (-1, 1)
    )
    return low + (high - low) * float(left), low + (high - low) * float(right)
