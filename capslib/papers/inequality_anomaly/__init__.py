"""Kirillov and Panov (2022), "Measuring internal inequality in capsule networks for supervised
anomaly detection".
"""

from __future__ import annotations

from capslib.papers.inequality_anomaly.baselines import BASELINES
from capslib.papers.inequality_anomaly.checks import CHECKS
from capslib.papers.inequality_anomaly.counts import COUNTS
from capslib.papers.inequality_anomaly.detection import (
    DETECTION,
    DRAWS,
    LESIONS,
    OFF_TARGETS,
    REPAIRS,
    ROUTINGS,
)

__all__ = ["CHECKS", "EXPERIMENTS", "STEM"]

STEM = "inequality_anomaly"
EXPERIMENTS = {
    e.name: e
    for e in (DETECTION, LESIONS, OFF_TARGETS, REPAIRS, ROUTINGS, DRAWS, COUNTS, BASELINES)
}
