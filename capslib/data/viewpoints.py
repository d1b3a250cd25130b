"""Familiar and novel viewpoints: those of the training images, and all others."""

from __future__ import annotations

import numpy as np

from capslib.data import DataSplit
from capslib.errors import check_name

FAMILIAR = {
    "azimuth": (30, 32, 34, 0, 2, 4),  # tens of degrees: from 60° on one side of the front to 40° on the other
    "elevation": (0, 1, 2),  # the three lowest of nine: 30°, 35° and 40°
}


def familiar(split: DataSplit, factor: str) -> np.ndarray:
    """Mark the examples of ``smallnorb`` or ``toys`` with a familiar "azimuth" or "elevation": bool [N].

    All others are novel (Hinton et al. 2018, section 5.1). Raises :class:`~capslib.errors.UserError` for any other factor, and for
    a split without this factor.

    >>> from capslib import data
    >>> toys = data.load("toys", "train")
    >>> f"{familiar(toys, 'elevation').sum()} of {len(toys)}"
    '8100 of 24300'
    """
    check_name("factor of viewpoint", factor, FAMILIAR)
    return np.isin(split[factor], FAMILIAR[factor])
