"""Which examples a network of the paper trains and is tested on.

Labels are 0 (normal) and 1 (anomaly).
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
    """Return ``train`` and ``test`` as arrays, and the fingerprint of the data.

    ``stop`` is there where a part of the training examples is held out for early stopping.
    Raise UserError for data that lack what the setup needs, and for a percentage that leaves
    no anomaly.
    """
    rng = np.random.default_rng(draw)
    if "all" in SETS[recipe.data].splits:
        split = data.load(recipe.data, "all", data_dir=data_dir)
        choose = lesions if "images" in split.arrays else off_targets
        examples, is_test = choose(split, recipe)
        train, test = examples.rows(~is_test), examples.rows(is_test)
    else:
        split = data.load(recipe.data, "train", data_dir=data_dir)
        train = against_all(split, recipe, rng)
        test = against_all(data.load(recipe.data, "test", data_dir=data_dir), recipe, None)
    if recipe.stop_on == "test":
        return {"train": train, "test": test}, split.fingerprint
    is_held = held_out(train.labels, rng)
    splits = {"train": train.rows(~is_held), "test": test, "stop": train.rows(is_held)}
    return splits, split.fingerprint


def held_out(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a bool mask [N] of a tenth of each class, but never of its last example."""
    mask = np.zeros(len(labels), bool)
    for label in (0, 1):
        rows = rng.permutation(np.flatnonzero(labels == label))
        tenth = max(round(len(rows) / 10), min(1, len(rows) - 1))
        mask[rows[:tenth]] = True
    return mask


def against_all(
    split: data.DataSplit, recipe: AnomalyRecipe, rng: np.random.Generator | None
) -> Examples:
    """Return one class against all others.

    With ``rng`` there are the few anomalies of a training set, without it the whole split.
    """
    labels = anomalies.one_against_all(split.labels, recipe.kind, recipe.setup)
    rows = slice(None)
    if rng is not None:
        rows = anomalies.few_anomalies(labels, recipe.percent, rng, recipe.normals)
    return Examples(np.asarray(split.images[rows]), labels[rows])


def lesions(split: data.DataSplit, recipe: AnomalyRecipe) -> tuple[Examples, np.ndarray]:
    """Return the images of a setup of HAM10000, and a bool mask of those to test on.

    These are the images of a quarter of the lesions.
    """
    is_test = anomalies.held_out_groups(split["lesion"])
    labels = anomalies.lesions(split, recipe.setup)
    rows = labels >= 0
    return Examples(split.images[rows], labels[rows]), is_test[rows]


def off_targets(split: data.DataSplit, recipe: AnomalyRecipe) -> tuple[Examples, np.ndarray]:
    """Return pairs of guide and site with few mismatches, and a bool mask of those to test on.

    These are a quarter of each class.
    """
    from sklearn.model_selection import train_test_split

    if recipe.setup != "off_targets":
        raise UserError(f"{split.name} has the one setup off_targets, not {recipe.setup}.")
    mask = split["mismatches"] < anomalies.MISMATCHES
    if recipe.nrg_pam:
        mask = mask & split["nrg_pam"]
    rows = np.flatnonzero(mask)
    inputs = anomalies.one_hot_pairs(split["guide"][rows], split["target"][rows])
    if recipe.sees == "pam":
        inputs[..., :-PAM] = 0
    labels = split.labels[rows]
    _, test_rows = train_test_split(np.arange(len(rows)), stratify=labels, random_state=1010)
    is_test = np.zeros(len(rows), bool)
    is_test[test_rows] = True
    return Examples(inputs, labels), is_test
