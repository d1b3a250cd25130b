"""Peer, Stabinger & Rodríguez-Sánchez (2021), "Limitation of capsule networks": its experiments, and what its claims ask."""

from __future__ import annotations

from capslib.papers.common import SEEDS
from capslib.papers.experiment import Experiment
from capslib.papers.negation_limitation import depth, sign, symmetry
from capslib.papers.negation_limitation.asks import QUERIES

__all__ = ["EXPERIMENTS", "QUERIES", "STEM"]

STEM = "negation_limitation"
FIVE = SEEDS | {"paper": (0, 1, 2, 3, 4)}
EXPERIMENTS = {
    e.name: e
    for e in (
        Experiment(
            "symmetry", STEM, 2, symmetry.SymmetryConfig, symmetry.grid, SEEDS, symmetry.run
        ),
        Experiment("sign", STEM, 1, sign.SignConfig, sign.grid, FIVE, sign.run),
        Experiment("depth", STEM, 1, depth.DepthConfig, depth.grid, SEEDS, depth.run),
        Experiment(
            "negated", STEM, 1, depth.NegatedConfig, depth.negated_grid, SEEDS, depth.run
        ),
    )
}
