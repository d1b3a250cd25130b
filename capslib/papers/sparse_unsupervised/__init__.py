"""Rawlinson, Ahmed & Kowadlo (2018), "Sparse unsupervised capsules generalize better": its experiments."""

from __future__ import annotations

from capslib.papers.common import SEEDS
from capslib.papers.flat import FlatExperiment as Experiment
from capslib.papers.sparse_unsupervised import controls, encodings, sizes
from capslib.papers.sparse_unsupervised.asks import QUERIES
from capslib.papers.sparse_unsupervised.encodings import EncodingConfig

__all__ = ["EXPERIMENTS", "QUERIES", "STEM"]

STEM = "sparse_unsupervised"
EXPERIMENTS = {
    e.name: e
    for e in (
        Experiment("encodings", STEM, 1, EncodingConfig, encodings.grid, SEEDS, encodings.run),
        Experiment(
            "options", STEM, 1, EncodingConfig, encodings.options_grid, SEEDS, encodings.run
        ),
        Experiment(
            "beyond", STEM, 1, EncodingConfig, encodings.beyond_grid, SEEDS, encodings.run
        ),
        Experiment(
            "controls",
            STEM,
            1,
            controls.CodeConfig,
            controls.grid,
            SEEDS,
            controls.run,
            lambda config, seed: [],
        ),
        Experiment(
            "attacks",
            STEM,
            1,
            controls.AttackConfig,
            controls.attack_grid,
            SEEDS,
            controls.attack,
        ),
        Experiment("sizes", STEM, 1, sizes.SizesConfig, sizes.grid, SEEDS, sizes.run),
    )
}
