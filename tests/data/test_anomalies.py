"""Two classes out of several: which examples are normal, and how many anomalies there are."""

from __future__ import annotations

import numpy as np
import pytest

from capslib import data
from capslib.data import anomalies
from capslib.errors import UserError

LABELS = np.repeat(np.arange(10), 6000)
"""As many of each class as Fashion-MNIST has; MNIST has about as many."""


def counts(setup: str, percent: float, **options: int) -> tuple[int, int]:
    """Return how many normal examples and anomalies there are to train on."""
    labels = anomalies.one_against_all(LABELS, 3, setup)
    rows = anomalies.few_anomalies(labels, percent, np.random.default_rng(0), **options)
    assert (np.diff(rows) > 0).all()
    normal, anomaly = np.bincount(labels[rows])
    return int(normal), int(anomaly)


@pytest.mark.parametrize(
    ("percent", "outliers", "inliers"), [(10, 667, 6000), (1, 61, 545), (0.1, 6, 54)]
)
def test_the_papers_counts(percent, outliers, inliers):
    """§2.4 of the specification."""
    assert counts("outliers", percent) == (6000, outliers)
    assert counts("inliers", percent) == (54_000, inliers)


def test_fewer_normal_examples_have_fewer_anomalies():
    assert counts("inliers", 1, normals=10_000) == (10_000, 101)
    assert counts("outliers", 1, normals=10_000) == (6000, 61)


def test_draws_differ_and_a_smaller_share_is_out_of_a_larger_one():
    labels = anomalies.one_against_all(LABELS, 0, "outliers")

    def draw(percent: float, seed: int) -> set[int]:
        rng = np.random.default_rng(seed)
        return set(anomalies.few_anomalies(labels, percent, rng).tolist())

    assert draw(0.1, 1) < draw(10, 1)
    assert draw(0.1, 1) != draw(0.1, 2)


@pytest.mark.parametrize(
    ("setup", "anomaly", "normal"),
    [
        ("A", {"mel", "bcc", "akiec"}, {"nv", "bkl", "df", "vasc"}),
        ("B", {"mel"}, {"nv", "bkl", "df", "vasc"}),
        ("C", {"mel", "bcc", "akiec"}, {"nv"}),
        ("D", {"mel"}, {"nv"}),
    ],
)
def test_setups_of_lesions(setup, anomaly, normal):
    """By the released code; the caption of Table 4 permutes B, C and D."""
    moles = data.load("moles", "all")
    names = np.array(moles.classes)[moles.labels]
    labels = anomalies.lesions(moles, setup)
    assert set(names[labels == 1]) == anomaly
    assert set(names[labels == 0]) == normal
    assert set(names[labels == -1]) == set(moles.classes) - anomaly - normal


def test_no_lesion_is_trained_and_tested_on():
    lesion = data.load("moles", "all")["lesion"]
    test = anomalies.held_out_groups(lesion)
    assert 0.2 < test.mean() < 0.3
    assert not set(lesion[test]) & set(lesion[~test])


def test_pairs_of_letters_become_rows_of_one_hot_columns():
    guide, site = np.zeros((1, 23), np.uint8), np.arange(23, dtype=np.uint8)[None] % 4
    pair = anomalies.one_hot_pairs(guide, site)
    assert pair.shape == (1, 2, 4, 23)
    assert (pair.sum(axis=2) == 1).all()
    assert (pair[0, 0, 0] == 1).all()  # A
    rows = pair[0, 1, :, :4].argmax(axis=0)
    assert rows.tolist() == [0, 2, 1, 3]  # A, C, G, T in rows A, G, C, T


def test_guides_have_the_mismatches_and_the_pam_that_they_say():
    pairs = data.load("guides", "all")
    mismatches = (pairs["guide"] != pairs["target"]).sum(axis=1)
    np.testing.assert_array_equal(mismatches, pairs["mismatches"])
    assert 0 < pairs.labels[mismatches < anomalies.MISMATCHES].mean() < 0.3
    g, a_or_g = 2, (0, 2)
    pam = (pairs["target"][:, -1] == g) & np.isin(pairs["target"][:, -2], a_or_g)
    np.testing.assert_array_equal(pairs["nrg_pam"], pam)


def test_classes_and_setups_that_are_not_there_are_refused():
    with pytest.raises(UserError, match="no example of class 11; there are 0, 1"):
        anomalies.one_against_all(LABELS, 11, "outliers")
    with pytest.raises(UserError, match=r"Unknown setup 'inlier'. Did you mean 'inliers'"):
        anomalies.one_against_all(LABELS, 1, "inlier")
    with pytest.raises(UserError, match="Unknown setup of lesions 'E'"):
        anomalies.lesions(data.load("moles", "all"), "E")
    with pytest.raises(UserError, match="digits has no class akiec or bcc"):
        anomalies.lesions(data.load("digits", "train"), "A")


@pytest.mark.parametrize("percent", [0, 0.001, 100, -1])
def test_a_share_that_leaves_no_anomaly_is_refused(percent):
    with pytest.raises(UserError, match=r"take at least 0.0084 % and less than 100 %"):
        counts("outliers", percent)
    assert counts("outliers", 0.0084)[1] == 1
    all_anomalies, none = np.ones(5, np.int64), np.zeros(5, np.int64)
    rng = np.random.default_rng(0)
    with pytest.raises(UserError, match="the data have no normal example"):
        anomalies.few_anomalies(all_anomalies, 10, rng)
    with pytest.raises(UserError, match="the data have none"):
        anomalies.few_anomalies(none, 10, rng)


def test_letters_of_another_length_or_alphabet_are_refused():
    short = np.zeros((1, 20), np.uint8)
    with pytest.raises(UserError, match=r"23 letters long.*these are 20 long"):
        anomalies.one_hot_pairs(short, short)
    sound = np.zeros((1, 23), np.int8)
    for letter in (4, -1):
        with pytest.raises(UserError, match=rf"with the letter {letter}"):
            anomalies.one_hot_pairs(sound, np.full((1, 23), letter, np.int8))


ORIGINALS = {"tints": "cifar10", "moles": "ham10000", "guides": "crispr"}


@pytest.mark.parametrize("name", ORIGINALS)
def test_a_stand_in_has_the_splits_classes_and_channels_of_its_original(name):
    spec, original = data.SETS[name], data.SETS[ORIGINALS[name]]
    assert (spec.stand_in, original.stand_in) == (True, False)
    assert len(spec.classes) == len(original.classes)
    assert spec.splits.keys() == original.splits.keys()
    for split, (count, channels, *_) in spec.splits.items():
        assert channels == original.splits[split][1]
        loaded = data.load(name, split)
        assert loaded.labels.max() == len(spec.classes) - 1
        assert len(loaded) == count
        if name != "guides":
            assert loaded.images.shape == spec.splits[split]
