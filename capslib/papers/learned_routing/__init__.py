"""Faria (2019), "Learning to compute inner consensus": a file for each experiment, and what its claims ask."""

from __future__ import annotations

from capslib.papers.common import SEEDS
from capslib.papers.flat import FlatExperiment as Experiment
from capslib.papers.learned_routing import costs, limits, table3
from capslib.papers.learned_routing.asks import QUERIES
from capslib.papers.learned_routing.recipe import ConsensusRecipe

__all__ = ["EXPERIMENTS", "QUERIES", "STEM"]

STEM = "learned_routing"

EXPERIMENTS = {
    e.name: e
    for e in (
        Experiment("errors", STEM, 1, ConsensusRecipe, table3.grid, SEEDS, table3.run),
        Experiment(
            "variants", STEM, 1, ConsensusRecipe, table3.variants_grid, SEEDS, table3.run
        ),
        Experiment(
            "pilot", STEM, 1, ConsensusRecipe, table3.pilot_grid, SEEDS, table3.rehearse
        ),
        Experiment("toys", STEM, 1, limits.ToyConfig, limits.grid, SEEDS, limits.run),
        Experiment(
            "negation",
            STEM,
            1,
            limits.NegationConfig,
            limits.negation_grid,
            SEEDS,
            limits.negate,
        ),
        Experiment("costs", STEM, 2, costs.CostsConfig, costs.grid, SEEDS, costs.run),
    )
}
