"""Hinton, Sabour & Frosst (2018), "Matrix capsules with EM routing": a file for each experiment, and what its claims ask."""

from __future__ import annotations

from capslib.papers.common import SEEDS
from capslib.papers.em_routing import adversarial, energy, novel_views, sizes, table1
from capslib.papers.em_routing.asks import QUERIES
from capslib.papers.flat import FlatExperiment as Experiment

__all__ = ["EXPERIMENTS", "QUERIES", "STEM"]

STEM = "em_routing"
EXPERIMENTS = {
    e.name: e
    for e in (
        Experiment(
            "test_error",
            STEM,
            2,
            table1.TestErrorConfig,
            table1.grid,
            SEEDS,
            table1.run,
            replicates=table1.replicates,
        ),
        Experiment(
            "viewpoint",
            STEM,
            2,
            novel_views.ViewpointConfig,
            novel_views.grid,
            SEEDS,
            novel_views.run,
            novel_views.trainings,
        ),
        Experiment(
            "attacks",
            STEM,
            2,
            adversarial.AttackConfig,
            adversarial.grid,
            SEEDS,
            adversarial.run,
            adversarial.trainings,
        ),
        Experiment(
            "free_energy", STEM, 1, energy.FreeEnergyConfig, energy.grid, SEEDS, energy.run
        ),
        Experiment("sizes", STEM, 1, sizes.SizesConfig, sizes.grid, SEEDS, sizes.run),
    )
}
