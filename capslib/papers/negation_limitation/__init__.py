"""Peer, Stabinger & Rodríguez-Sánchez (2021), "Limitation of capsule networks": one file for each experiment, one for the claims.

Torch is imported where an experiment runs, not here: configurations and claims are looked at without it.
"""

from __future__ import annotations

from capslib.papers.common import SEEDS
from capslib.papers.negation_limitation import depth, negated, sign, symmetry
from capslib.papers.negation_limitation.queries import QUERIES
from capslib.trials import Experiment

__all__ = ["EXPERIMENTS", "QUERIES", "STEM"]

STEM = "negation_limitation"
EXPERIMENTS = {
    e.name: e
    for e in (
        Experiment("symmetry", STEM, 2, "Is a stack of capsule layers odd without a bias, and not with one?", symmetry.SymmetryConfig,
                   symmetry.grid, SEEDS, symmetry.run, symmetry.deviations, symmetry.work),
        Experiment("sign", STEM, 1, "Can a capsule network tell a number from its negative?", sign.SignConfig,
                   sign.grid, SEEDS | {"paper": (0, 1, 2, 3, 4)}, sign.run, sign.deviations, sign.work),
        Experiment("depth", STEM, 1, "How deep can a CapsNet be and still train?", depth.DepthConfig,
                   depth.grid, SEEDS, depth.run, depth.deviations, depth.work),
        Experiment("negated", STEM, 1, "Can a CapsNet tell an image from its negative?", negated.NegatedConfig,
                   negated.grid, SEEDS, negated.run, negated.deviations, negated.work),
    )
}  # fmt: skip
