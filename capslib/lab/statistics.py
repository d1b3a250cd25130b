"""Intervals of means: what verdicts rest on, and what is told apart."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Literal

Bounds = tuple[float, float]
"""The lowest and the highest value that a metric can have."""
Interval = tuple[float, float]


def interval(values: Iterable[float], bounds: Bounds | None = None) -> Interval | None:
    """Return the 95 % confidence interval of the mean, or None for fewer than two values.

    One run says nothing about the spread. Fewer than ten values have the interval of Student's
    t, ten and more that of a BCa bootstrap with a fixed seed. The order of the values does not
    matter.

    ``bounds`` are limits that the mean cannot leave; bounds that some value lies outside are
    ignored. Inside them the t interval is that of the logit of the mean, taken back (Korn and
    Graubard 1998): with x the mean and s its standard error on the scale from 0 to 1, logit(x)
    ± t·s/(x(1 − x)). It cannot leave the bounds, and far from them it is the plain one. A
    bootstrapped mean never leaves them.
    """
    return _interval(tuple(sorted(map(float, values))), bounds)


@functools.lru_cache(maxsize=4096)
def _interval(values: tuple[float, ...], bounds: Bounds | None) -> Interval | None:
    """Return the interval of values in ascending order."""
    if len(values) < 2:
        return None
    if values[0] == values[-1]:  # neither method has an interval of equal values
        return values[0], values[0]
    if len(values) >= 10:
        low, high = _bootstrap(values)
        if math.isfinite(low) and math.isfinite(high):
            return low, high
    mean, half = _student(values)
    if bounds is None or values[0] < bounds[0] or values[-1] > bounds[1]:
        return mean - half, mean + half
    return _bounded(mean, half, bounds)


def _bootstrap(values: Sequence[float]) -> Interval:
    """Return the BCa bootstrap interval. Its ends are not finite if the spread rounds to 0."""
    import numpy as np
    from scipy import stats

    with warnings.catch_warnings(action="ignore"):
        result = stats.bootstrap(
            (np.array(values),),
            np.mean,
            confidence_level=0.95,
            n_resamples=4999,
            method="BCa",
            rng=np.random.default_rng(0),
        )
    low, high = result.confidence_interval
    return float(low), float(high)


def _student(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half the width of Student's t interval."""
    import numpy as np
    from scipy import special

    n = len(values)
    quantile = special.stdtrit(n - 1, 0.975)
    standard_error = np.std(values, ddof=1) / np.sqrt(n)
    return math.fsum(values) / n, float(quantile * standard_error)


def _bounded(mean: float, half: float, bounds: Bounds) -> Interval:
    """Return the interval of the logit of the mean, taken back to the scale of ``bounds``."""
    from scipy import special

    low, high = bounds
    share = (mean - low) / (high - low)
    if not 0 < share < 1:  # rounding has taken the mean to a bound
        return max(low, mean - half), min(high, mean + half)
    logit = special.logit(share)
    half_of_logit = half / (high - low) / (share * (1 - share))
    lower, upper = special.expit([logit - half_of_logit, logit + half_of_logit])
    return low + (high - low) * float(lower), low + (high - low) * float(upper)


Standing = Literal["better", "worse", "undecided"]
"""How the values of one name compare with those of another."""


def compared(values_of: Mapping[str, Sequence[float]], yardstick: str) -> dict[str, Standing]:
    """Return how the values of each other name compare with those of a yardstick.

    Values are paired by seed. A name is better or worse if the 95 % interval of the mean
    difference leaves out zero. Fewer than two seeds tell nothing.

    >>> compared({"em": [97.0, 98.0], "dynamic": [90.0, 91.0]}, "dynamic")
    {'em': 'better'}
    """
    standings: dict[str, Standing] = {}
    if yardstick not in values_of:
        return standings
    for name, values in values_of.items():
        if name == yardstick:
            continue
        pairs = zip(values, values_of[yardstick], strict=True)
        ends = interval([value - baseline for value, baseline in pairs])
        if ends is None or ends[0] <= 0 <= ends[1]:
            standings[name] = "undecided"
        else:
            standings[name] = "better" if ends[0] > 0 else "worse"
    return standings


def leaders(values_of: Mapping[str, Sequence[float]]) -> set[str]:
    """Return the name with the largest mean, and those that its seeds do not tell from it.

    Each name has its values in the same order of seeds; :func:`compared` tells them apart.
    """
    if not values_of:
        return set()
    best = max(values_of, key=lambda name: fmean(values_of[name]))
    standings = compared(values_of, best)
    return {best} | {name for name, standing in standings.items() if standing == "undecided"}
