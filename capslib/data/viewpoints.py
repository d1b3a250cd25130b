"""Familiar and novel viewpoints of smallNORB (Hinton et al. 2018, §5.1)."""

from __future__ import annotations

import numpy as np

from capslib.data import DataSplit
from capslib.errors import check_name

__all__ = ["FAMILIAR", "familiar"]

FAMILIAR = {
    "azimuth": (30, 32, 34, 0, 2, 4),
    "elevation": (0, 1, 2),
}
"""The viewpoints that are trained on (§5.1).

Azimuths are in tens of degrees: from 60° on one side of the front to 40° on the other.
Elevations are the three lowest of nine: 30°, 35° and 40°.
"""


def familiar(split: DataSplit, factor: str) -> np.ndarray:
    """Mark the examples of ``smallnorb`` or ``toys`` with a familiar viewpoint: bool [N].

    ``factor`` is "azimuth" or "elevation". All other examples are novel (§5.1). Raise
    :class:`~capslib.errors.UserError` for any other factor, and for a split without this
    factor.

    >>> from capslib import data
    >>> toys = data.load("toys", "train")
    >>> f"{familiar(toys, 'elevation').sum()} of {len(toys)}"
    '8100 of 24300'
    """
    check_name("factor of viewpoint", factor, FAMILIAR)
    return np.isin(split[factor], FAMILIAR[factor])
