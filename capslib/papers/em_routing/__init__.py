"""Hinton, Sabour & Frosst (2018), "Matrix capsules with EM routing": one file for each experiment, one for what claims ask of them.

Torch is imported where an experiment runs, not here: configurations and claims are looked at without it.
"""

from __future__ import annotations

from capslib.papers.common import SEEDS
from capslib.papers.em_routing import ablations, attacks, free_energy, sizes, trained, viewpoint
from capslib.papers.em_routing.queries import QUERIES
from capslib.trials import Experiment

__all__ = ["EXPERIMENTS", "QUERIES", "STEM"]

STEM = "em_routing"
EXPERIMENTS = {
    e.name: e
    for e in (
        Experiment("test_error", STEM, 2, "What does each part of the design add?", trained.TrainingConfig,
                   ablations.grid, SEEDS, ablations.run, trained.deviations, ablations.work),
        Experiment("viewpoint", STEM, 2, "Do capsules recognise from viewpoints that they never saw?", viewpoint.ViewpointConfig,
                   viewpoint.grid, SEEDS, viewpoint.run, viewpoint.deviations, viewpoint.work),
        Experiment("attacks", STEM, 2, "Are capsules harder to fool?", attacks.AttackConfig,
                   attacks.grid, SEEDS, attacks.run, attacks.deviations, attacks.work),
        Experiment("free_energy", STEM, 1, "Does every step of EM routing lower a free energy?", free_energy.FreeEnergyConfig,
                   free_energy.grid, SEEDS, free_energy.run, lambda config: [], free_energy.work),
        Experiment("sizes", STEM, 1, "How many parameters have the networks?", sizes.SizesConfig,
                   sizes.grid, SEEDS, sizes.run, lambda config: [], sizes.work),
    )
}  # fmt: skip
