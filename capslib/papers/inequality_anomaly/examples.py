"""Which examples a network of the paper trains and is tested on, with labels 0 (normal) and 1
(anomaly).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from capslib import data
from capslib.data import anomalies
from capslib.data.registry import SETS
from capslib.errors import UserError
from capslib.training import Examples

if TYPE_CHECKING:
    from capslib.papers.inequality_anomaly.recipe import AnomalyRecipe

PAM = 3  # letters, at the end of guide and site


def parts(
    recipe: AnomalyRecipe, draw: int, data_dir: Path | None
) -> tuple[dict[str, Examples], data.DataFingerprint]:
    """``train`` and ``test`` as arrays, and ``stop`` where a part of the training examples is
    held out for early stopping.

    Raises UserError for data that lack what the setup needs, and for a percentage that leaves
    no anomaly.
    """
    rng = np.random.default_rng(draw)
    if "all" in SETS[recipe.data].splits:
        split = data.load(recipe.data, "all", data_dir=data_dir)
        every, test = (
            lesions(split, recipe) if "images" in split.arrays else off_targets(split, recipe)
        )
        train, test = every[~test], every[test]
    else:
        split = data.load(recipe.data, "train", data_dir=data_dir)
        train = against_all(split, recipe, rng)
        test = against_all(data.load(recipe.data, "test", data_dir=data_dir), recipe, None)
    found = {"train": train, "test": test}
    if recipe.stop_on == "held_out":
        held = np.zeros(len(train.labels), bool)
        for label in (0, 1):
            own = rng.permutation(np.flatnonzero(train.labels == label))
            held[own[: max(round(len(own) / 10), min(1, len(own) - 1))]] = True
        found |= {"train": train[~held], "stop": train[held]}
    return found, split.fingerprint


def against_all(
    split: data.DataSplit, recipe: AnomalyRecipe, rng: np.random.Generator | None
) -> Examples:
    """One class against all others: with ``rng`` the few anomalies of a training set, without
    it the whole split.
    """
    labels = anomalies.one_against_all(split.labels, recipe.kind, recipe.setup)
    rows = (
        slice(None)
        if rng is None
        else anomalies.few_anomalies(labels, recipe.percent, rng, recipe.normals)
    )
    return Examples(np.asarray(split.images[rows]), labels[rows])


def lesions(split: data.DataSplit, recipe: AnomalyRecipe) -> tuple[Examples, np.ndarray]:
    """The images of a setup of HAM10000, and which of them to test on: a quarter of the
    lesions.
    """
    test, labels = (
        anomalies.held_out_groups(split["lesion"]),
        anomalies.lesions(split, recipe.setup),
    )
    rows = labels >= 0
    return Examples(split.images[rows], labels[rows]), test[rows]


def off_targets(split: data.DataSplit, recipe: AnomalyRecipe) -> tuple[Examples, np.ndarray]:
    """Pairs of guide and site with few mismatches, and which of them to test on: a quarter of
    each class.
    """
    from sklearn.model_selection import train_test_split

    if recipe.setup != "off_targets":
        raise UserError(f"{split.name} has the one setup off_targets, not {recipe.setup}.")
    few = split["mismatches"] < anomalies.MISMATCHES
    rows = np.flatnonzero(few & split["nrg_pam"] if recipe.nrg_pam else few)
    inputs = anomalies.one_hot_pairs(split["guide"][rows], split["target"][rows])
    if recipe.sees == "pam":
        inputs[..., :-PAM] = 0
    labels = split.labels[rows]
    _, held = train_test_split(np.arange(len(rows)), stratify=labels, random_state=1010)
    test = np.zeros(len(rows), bool)
    test[held] = True
    return Examples(inputs, labels), test
