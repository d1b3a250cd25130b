"""Two classes out of several: which examples are normal, how many anomalies there are, and what is answered where there are none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capslib import data
from capslib.data import anomalies, prepared
from capslib.errors import UserError

LABELS = np.repeat(np.arange(10), 6000)
"""As many of each class as Fashion-MNIST has; MNIST has about as many."""


def drawn(setup: str, percent: float, **options: int) -> tuple[int, int]:
    """How many normal examples and anomalies there are to train on."""
    labels = anomalies.one_against_all(LABELS, 3, setup)
    rows = anomalies.few_anomalies(labels, percent, np.random.default_rng(0), **options)
    assert (np.diff(rows) > 0).all()
    return int((labels[rows] == 0).sum()), int(labels[rows].sum())


def test_the_papers_counts():
    """§2.4 of the specification: ≈ 667, 61 and 6 outliers; 6000, ≈ 545 and 54 of the one anomalous class."""
    assert [drawn("outliers", p) for p in (10, 1, 0.1)] == [(6000, 667), (6000, 61), (6000, 6)]
    assert [drawn("inliers", p) for p in (10, 1, 0.1)] == [
        (54_000, 6000),
        (54_000, 545),
        (54_000, 54),
    ]


def test_fewer_normal_examples_have_fewer_anomalies():
    assert drawn("inliers", 1, normals=10_000) == (10_000, 101)
    assert drawn("outliers", 1, normals=10_000) == (6000, 61)


@given(seed=st.integers(0, 2**32 - 1))
def test_draws_differ_and_the_few_are_among_the_many(seed):
    labels = anomalies.one_against_all(LABELS, 0, "outliers")
    few, many, other = (
        set(anomalies.few_anomalies(labels, p, np.random.default_rng(s)))
        for p, s in ((0.1, seed), (10, seed), (0.1, seed + 1))
    )
    assert few < many
    assert few != other


def test_what_cannot_be_is_said():
    with pytest.raises(UserError, match="no example of class 11; there are 0, 1"):
        anomalies.one_against_all(LABELS, 11, "outliers")
    with pytest.raises(UserError, match=r"Unknown setup 'inlier'. Did you mean 'inliers'"):
        anomalies.one_against_all(LABELS, 1, "inlier")
    for percent in (0, 0.001, 100, -1):
        with pytest.raises(
            UserError,
            match=r"leaves no anomaly to learn from: take at least 0.0084 % and less than 100 %",
        ):
            drawn("outliers", percent)
    assert drawn("outliers", 0.0084)[1] == 1


def test_setups_of_lesions():
    """C has all malignant lesions against nevi and D melanomas against nevi; the caption of Table 4 permutes them."""
    moles = data.load("moles", "all")
    names = np.array(moles.classes)[moles.labels]
    found = {setup: anomalies.lesions(moles, setup) for setup in "ABCD"}
    assert set(names[found["A"] == 1]) == set(names[found["C"] == 1]) == {"mel", "bcc", "akiec"}
    assert set(names[found["B"] == 1]) == set(names[found["D"] == 1]) == {"mel"}
    assert (
        set(names[found["A"] == 0])
        == set(names[found["B"] == 0])
        == {"nv", "bkl", "df", "vasc"}
    )
    assert set(names[found["C"] == 0]) == set(names[found["D"] == 0]) == {"nv"}
    assert set(names[found["B"] == -1]) == {"bcc", "akiec"}
    with pytest.raises(UserError, match="Unknown setup of lesions 'E'"):
        anomalies.lesions(moles, "E")
    with pytest.raises(UserError, match="digits has no class akiec or bcc"):
        anomalies.lesions(data.load("digits", "train"), "A")


def test_no_lesion_is_trained_and_tested_on():
    lesion = data.load("moles", "all")["lesion"]
    test = anomalies.held_out_groups(lesion)
    assert 0.2 < test.mean() < 0.3
    assert not set(lesion[test]) & set(lesion[~test])


def test_a_folder_without_lesions_is_refused(tmp_path):
    about = {
        "source": "here",
        "licence": "none",
        "complete": False,
        "deviations": [],
        "classes": ["akiec"],
    }
    group = {"images": np.zeros((2, 3, 75, 100), np.uint8), "labels": np.zeros(2, np.int64)}
    prepared.write(tmp_path / "ham10000", about, [("all", group)])
    with pytest.raises(
        UserError,
        match=r"all lacks lesion\. Delete .* prepare the set again.*capslib data fetch ham10000",
    ):
        data.load("ham10000", "all", data_dir=tmp_path)


def test_pairs_of_letters_become_rows_of_one_hot_columns():
    guide, site = np.zeros((1, 23), np.uint8), np.arange(23, dtype=np.uint8)[None] % 4
    pair = anomalies.one_hot_pairs(guide, site)
    assert pair.shape == (1, 2, 4, 23)
    assert (pair.sum(axis=2) == 1).all()
    assert (pair[0, 0, 0] == 1).all()  # A
    assert pair[0, 1, :, :4].argmax(axis=0).tolist() == [
        0,
        2,
        1,
        3,
    ]  # A, C, G, T in rows A, G, C, T
    with pytest.raises(UserError, match=r"23 letters long.*these have 20 letters"):
        anomalies.one_hot_pairs(guide[:, :20], site[:, :20])
    with pytest.raises(UserError, match="up to 4"):
        anomalies.one_hot_pairs(guide + 4, site)


def test_stand_ins_look_like_what_they_stand_for():
    """The same arrays, classes and shapes, but for the size of an image."""
    for name, like in {"tints": "cifar10", "moles": "ham10000", "guides": "crispr"}.items():
        ours, theirs = data.SETS[name], data.SETS[like]
        assert ours.stand_in
        assert not theirs.stand_in
        assert (len(ours.classes), ours.splits.keys()) == (
            len(theirs.classes),
            theirs.splits.keys(),
        )
        for split, shape in ours.splits.items():
            found = data.load(name, split)
            assert len(found) == shape[0]
            assert found.labels.max() == len(ours.classes) - 1
            if "images" in found.arrays:
                assert found.images.shape == shape
                assert shape[1] == theirs.splits[split][1]
    pairs = data.load("guides", "all")
    np.testing.assert_array_equal(
        (pairs["guide"] != pairs["target"]).sum(axis=1), pairs["mismatches"]
    )
    assert 0 < pairs.labels[pairs["mismatches"] < anomalies.MISMATCHES].mean() < 0.3
    ends = np.array(
        ["".join("ACGT"[letter] for letter in site[-2:]) for site in pairs["target"]]
    )  # of the PAM, after its N
    assert set(ends[pairs["nrg_pam"]]) == {"AG", "GG"}  # R is A or G
    assert not {"AG", "GG"} & set(ends[~pairs["nrg_pam"]])
