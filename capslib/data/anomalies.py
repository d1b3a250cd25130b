"""Two classes out of several: normal examples and few anomalies (Kirillov & Panov 2022).

A *setup* is "outliers" (diverse outliers: one class is normal, all others are anomalies),
"inliers" (diverse inliers: one class is the anomaly), or one of the lesion setups of HAM10000.
Everything here is numpy on labels; nothing looks at an image.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from capslib.data import DataSplit
from capslib.errors import UserError, check_name
from capslib.registry import Registry

__all__ = [
    "BENIGN",
    "DIVERSE",
    "LESION_SETUPS",
    "LETTERS",
    "MALIGNANT",
    "MISMATCHES",
    "few_anomalies",
    "held_out_groups",
    "lesions",
    "one_against_all",
    "one_hot_pairs",
]

DIVERSE = ("outliers", "inliers")
MALIGNANT, BENIGN = ("mel", "bcc", "akiec"), ("nv", "bkl", "df", "vasc")
LESION_SETUPS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = Registry(
    "setup of lesions",
    {
        "A": (MALIGNANT, BENIGN),
        "B": (("mel",), BENIGN),
        "C": (MALIGNANT, ("nv",)),
        "D": (("mel",), ("nv",)),
    },
)
"""Anomalies and normal lesions, by the released code. Table 4's caption permutes B, C and D."""
MISMATCHES = 6
"""Pairs of guide and site with fewer mismatches are kept.

The paper says "not more than", but its 615 positives are these.
"""


def one_against_all(labels: np.ndarray, kind: int, setup: str) -> np.ndarray:
    """Return 1 for anomalies and 0 for normal examples, int64 [N].

    In "outliers" class ``kind`` is normal, in "inliers" it is the anomaly.
    """
    check_name("setup", setup, DIVERSE)
    classes = np.unique(labels)
    if kind not in classes:
        names = ", ".join(map(str, classes))
        raise UserError(f"There is no example of class {kind}; there are {names}.")
    anomaly = labels != kind if setup == "outliers" else labels == kind
    return anomaly.astype(np.int64)


def few_anomalies(
    anomaly: np.ndarray, percent: float, rng: np.random.Generator, normals: int = 0
) -> np.ndarray:
    """Return the rows of a training set, in order, of which ``percent`` are anomalies.

    At most ``normals`` of its rows are normal (0: all). For n normal rows it has
    round(n·p/(100 − p)) anomalies, or all where there are fewer. Both are drawn by ``rng``, a
    smaller share out of a larger one. Raises UserError where that is no anomaly, and says
    from which percentage on there is one.

    >>> rows = few_anomalies(np.arange(70_000) >= 6000, 10, np.random.default_rng(0))
    >>> int((rows < 6000).sum()), int((rows >= 6000).sum())
    (6000, 667)
    """
    usual, unusual = np.flatnonzero(anomaly == 0), np.flatnonzero(anomaly)
    if normals and normals < len(usual):
        usual = rng.permutation(usual)[:normals]
    count = 0
    if 0 < percent < 100:
        count = min(len(unusual), round(len(usual) * percent / (100 - percent)))
    if count == 0:
        advice = "the data have none"
        if not len(usual):
            advice = "the data have no normal example"
        elif len(unusual):
            smallest = math.ceil(5e5 / (len(usual) + 0.5) + 1e-9) / 1e4  # half of one is none
            advice = f"take at least {smallest:g} % and less than 100 %"
        raise UserError(
            f"{percent:g} % of anomalies beside {len(usual):,} normal examples leaves no "
            f"anomaly to learn from: {advice}."
        )
    return np.sort(np.concatenate([usual, rng.permutation(unusual)[:count]]))


def lesions(split: DataSplit, setup: str) -> np.ndarray:
    """Return 1 for anomalies, 0 for normal lesions and −1 for the remaining images, int64 [N].

    The split is that of HAM10000 or its stand-in.
    """
    unusual, usual = LESION_SETUPS[setup]
    missing = " or ".join(sorted({*unusual, *usual} - set(split.classes)))
    if missing:
        classes = ", ".join(split.classes)
        raise UserError(f"{split.name} has no class {missing}: its manifest names {classes}.")
    names = np.array(split.classes)[split.labels]
    return np.select([np.isin(names, unusual), np.isin(names, usual)], [1, 0], -1)


def held_out_groups(groups: Sequence[int] | np.ndarray, seed: int = 1010) -> np.ndarray:
    """Return a mask of the test examples, bool [N], which are a quarter of the groups.

    So no lesion is in training and in test.
    """
    from sklearn.model_selection import train_test_split

    _, test = train_test_split(np.unique(groups), test_size=0.25, random_state=seed)
    return np.isin(groups, test)


LETTERS = 4


def one_hot_pairs(guide: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return pairs of sequences [N, 23] as uint8 [N, 2, 4, 23] with rows A, G, C, T (§2.1).

    Letters are 0…3 (A, C, G, T). Raises UserError for sequences of another length or with other
    letters.
    """
    pair = np.stack([guide, target], axis=1)
    letters = np.unique(pair)
    wrong = letters[~np.isin(letters, np.arange(LETTERS))]
    if pair.shape[2:] != (23,) or len(wrong):
        example = f", with the letter {wrong[0]}" if len(wrong) else ""
        raise UserError(
            "Guides and sites are 23 letters long, 20 and the PAM, and letters are 0 to 3; "
            f"these are {pair.shape[-1]} long{example}."
        )
    rows = np.array([0, 2, 1, 3])[:, None]  # A, G, C, T among the letters ACGT
    return (pair[:, :, None] == rows).astype(np.uint8)
