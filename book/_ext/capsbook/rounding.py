"""Numbers as prose writes them: three significant digits, with their intervals and units."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from capslib.lab import claims
from capslib.lab.ledger import grouped, raised

if TYPE_CHECKING:
    from capslib.lab.words import Verdict


def rounded(value: float, decimals: int | None = None) -> str:
    """Return a number for prose: three significant digits, zeros kept; a whole number in full.

    With ``decimals``, return it with as many instead.

    >>> rounded(19.632), rounded(0.9), rounded(-60431), rounded(0.00006104)
    ('19.6', '0.900', '−60,431', '6.10·10⁻⁵')
    >>> rounded(-0.04, decimals=1)
    '0.0'
    """
    if decimals is None and 0 < abs(value) < 1e-3:
        text = raised(f"{abs(value):.2e}")
        return f"−{text}" if value < 0 else text
    if decimals is None:
        decimals = decimals_of(value)
    return grouped(f"{value:z.{decimals}f}").replace("-", "−")


def decimals_of(value: float) -> int:
    """Return how many decimals leave a number three significant digits; none to a whole
    number."""
    if value == int(value):
        return 0
    return max(0, 2 - math.floor(math.log10(abs(value))))


def ends(interval: tuple[float, float] | None, value: float) -> str | None:
    """Return an interval, as exact as its value or its wider end; None where there is none."""
    if interval is None:
        return None
    parts = [number for number in (value, *interval) if number != int(number)]
    decimals = min(map(decimals_of, parts), default=0)
    low, high = (rounded(end, decimals) for end in interval)
    return f"[{low}, {high}]"


def our_value(verdict: Verdict) -> str:
    """Return our value with its unit; of several parts a tally; nothing where there is none."""
    if verdict.ours is None:
        return claims.our_value(verdict)
    return claims.with_unit(rounded(verdict.ours), verdict.unit)


def our_interval(verdict: Verdict) -> str | None:
    """Return the interval of our value; None where there is none."""
    return None if verdict.ours is None else ends(verdict.interval, verdict.ours)
