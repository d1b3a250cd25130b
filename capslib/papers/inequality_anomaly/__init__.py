"""Kirillov & Panov (2022), "Measuring internal inequality in capsule networks for supervised
anomaly detection": its experiments.
"""

from __future__ import annotations

from capslib.papers.common import SEEDS
from capslib.papers.flat import FlatExperiment as Experiment
from capslib.papers.inequality_anomaly import baselines, counts, detection
from capslib.papers.inequality_anomaly.asks import QUERIES
from capslib.papers.inequality_anomaly.recipe import AnomalyRecipe

__all__ = ["EXPERIMENTS", "QUERIES", "STEM"]

STEM = "inequality_anomaly"
TEN = SEEDS | {"paper": tuple(range(10))}
EXPERIMENTS = {
    e.name: e
    for e in (
        Experiment("detection", STEM, 1, AnomalyRecipe, detection.cells, SEEDS, detection.run),
        Experiment(
            "lesions", STEM, 1, AnomalyRecipe, detection.lesion_grid, TEN, detection.run
        ),
        Experiment(
            "off_targets", STEM, 1, AnomalyRecipe, detection.off_target_grid, TEN, detection.run
        ),
        Experiment(
            "repairs",
            STEM,
            1,
            AnomalyRecipe,
            detection.repairs_grid,
            TEN,
            detection.run,
            replicates=detection.replicates,
        ),
        Experiment(
            "routings", STEM, 1, AnomalyRecipe, detection.routings_grid, SEEDS, detection.run
        ),
        Experiment("draws", STEM, 1, AnomalyRecipe, detection.draws_grid, SEEDS, detection.run),
        Experiment("counts", STEM, 1, counts.CountsConfig, counts.grid, SEEDS, counts.run),
        Experiment(
            "baselines",
            STEM,
            1,
            baselines.BaselineConfig,
            baselines.grid,
            TEN,
            baselines.run,
            lambda *_: [],
            detection.replicates,
        ),
    )
}
