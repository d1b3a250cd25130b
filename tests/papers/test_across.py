"""The page on what the papers have in common: what it says of claims and networks, against
verdicts and records.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from capslib.lab import frames
from capslib.lab.claims import verdicts
from capslib.lab.records import Record
from capslib.lab.statistics import interval
from capslib.lab.store import Store
from capslib.lab.words import CAPSULES, REDUCED, Verdict
from capslib.papers.check import training_accuracy
from capslib.papers.em_routing.checks import LEARNED, MATCHED_BELOW

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def told() -> str:
    return " ".join((ROOT / "book/across.md").read_text(encoding="utf-8").split())


@pytest.fixture(scope="module")
def judged() -> dict[str, Verdict]:
    return {v.claim.id: v for v in verdicts(store=Store(ROOT / "results"))}


def of(stem: str, *arm: str, **fields: object) -> list[Record]:
    return frames.select(Store(ROOT / "results").records(stem), *arm, **fields)


def errors(records: list[Record]) -> list[float]:
    return frames.values(records, "test_error")


def test_fewer_iterations_and_a_cnn_make_fewer_errors_in_the_smaller_copy(told, judged):
    one, three = (
        errors(of("em_routing", "test_error", "cpu", arm=f"copy/{name}"))
        for name in ("iterations_1", "main")
    )
    assert "fewer errors with one iteration than with three" in told
    assert max(one) < min(three)
    assert (
        "makes fewer errors on small pictures of smallNORB than capsules with three iterations"
        in told
    )
    assert judged["EM-W-14"].status == "undecided"
    assert "they are right on too few training images to decide it" in told
    assert (
        "That decides nothing: both are right on fewer than nine of ten training images" in told
    )
    for name in ("main", "small_cnn"):
        records = of("em_routing", "test_error", "cpu", arm=f"copy/{name}")
        assert all(training_accuracy(record) < LEARNED for record in records)
    assert (
        "Reduced capsules err too often on familiar viewpoints to be compared on new ones"
        in told
    )
    assert (
        min(frames.values(of("em_routing", "viewpoint", "cpu"), "capsules_familiar"))
        > MATCHED_BELOW
    )
    assert "whether they withstand attacks better, three seeds do not decide" in told
    assert {judged[name].status for name in ("EM-W-16", "EM-W-2", "EM-W-5")} == {"undecided"}


def test_four_layers_without_a_bias_learn_from_another_start(told):
    shallow = dict(data="mnist", routing="dynamic", bias=False, depth=4, bias_start=0.1)
    fades, unit = (
        frames.values(
            of("negation_limitation", "depth", "cpu", weight_std=start, **shallow),
            "test_accuracy",
        )
        for start in (0.1, "unit")
    )
    assert "Reduced RBA networks of four layers without a bias learn" in told
    assert max(fades) < 0.3 < 0.9 < min(unit)


def test_the_row_of_inequality(told, judged):
    assert (
        "the lengths rank better <inq-lengths>` in each of ten networks on CRISPR, and in all but one of 120 on images"
        in told
    )
    ahead = {}
    for name, arms in (("detection", {}), ("off_targets", {"arm": "as_prepared"})):
        table = frames.metrics(of("inequality_anomaly", name, "paper", **arms))
        leads = table["auroc_length"] - table["auroc_gini"]
        ahead[name] = (sum(leads > 0), len(leads))
    assert ahead == {"detection": (119, 120), "off_targets": (10, 10)}
    assert "in the fifth, on images, Gini has the AUROC of the paper" in told
    for name, verdict in judged.items():
        if name.startswith("INQ-T2") and name.endswith("-gini") and verdict.scale == "paper":
            assert verdict.status == "reproduced"


def test_which_theorems_fail(told, judged):
    assert "One of these fails" in told
    assert "One holds in part" in told
    theorems = ("EM-W-7", "EM-W-8", "NEG-W-1", "NEG-W-2", "NEG-W-3", "SP-W-3", "LR-W-3")
    assert " ".join(theorems) in told
    assert [name for name in theorems if judged[name].status == "fails"] == ["EM-W-8"]
    assert [name for name in theorems if judged[name].word == "holds in part (5 of 6)"] == [
        "NEG-W-3"
    ]
    assert sum(judged[name].status == "holds" for name in theorems) == len(theorems) - 2
    assert "of six statements about a bias one is wrong for EM layers; the others hold" in told
    (wrong,) = (p for p in judged["NEG-W-3"].parts if p.status == "fails")
    assert len(judged["NEG-W-3"].parts) == 6
    assert wrong.name.startswith("EM")


def test_what_the_papers_leave_out(told, judged):
    said = re.search(
        r"CNN: ([\d.]+) % after 24 epochs, ([\d.]+) % after 100, ([\d.]+) % after 200 with the one",
        told,
    )
    for error, (scale, arm, epochs, seeds) in zip(
        map(float, said.groups()),
        (
            ("cpu", "copy/cnn", 24, 3),
            ("paper", "cnn", 100, 3),
            ("paper", "cnn/twice", 200, 1),
        ),
        strict=True,
    ):
        of_length = errors(of("em_routing", "test_error", scale, arm=arm, epochs=epochs))
        assert round(np.mean(of_length), 1) == error
        assert len(of_length) == seeds
    assert "INQ-W-7" in told
    assert (judged["INQ-W-7"].status, judged["INQ-W-7"].group) == ("same order", REDUCED)
    assert "among negatives that stand in for the paper's" in told
    own_size = {v.claim.paper for v in judged.values() if v.group == CAPSULES}
    assert own_size == {"negation_limitation", "inequality_anomaly"}
    assert (
        "No such network of EM routing, of sparse capsules or of learned routing has been trained"
        in told
    )
    so = "less than 0.01 of the AUROC of Gini with each of three seeds of reduced networks on KMNIST; on average over ten networks"
    assert (
        f"the loss of the test set | {{doc}}`Inequality <papers/inequality_anomaly>` | {so} of the paper's size on CRISPR, "
        "too, though the interval reaches 0.012 |" in told
    )
    repairs = frames.metrics(
        frames.select(
            of("inequality_anomaly", "repairs", "cpu"), "repairs", data="kmnist", keep="last"
        )
    )
    means = (
        repairs[repairs["divisor"] == "normals"]
        .groupby(["stop_on", "seed"])["auroc_gini"]
        .mean()
    )
    assert len(means["test"]) == len(means["held_out"]) == 3
    assert (means["test"] - means["held_out"]).between(0, 0.01).all()
    held_out = of(
        "inequality_anomaly",
        "repairs",
        "paper",
        data="crispr",
        stop_on="held_out",
        keep="last",
        divisor="normals",
    )
    on_test = of("inequality_anomaly", "off_targets", "paper", nrg_pam=False, sees="all")
    ones, others = (
        {r.trial.seed: r.metrics["auroc_gini"].value for r in records}
        for records in (held_out, on_test)
    )
    apart = [ones[seed] - others[seed] for seed in range(10)]
    assert abs(np.mean(apart)) < 0.01
    assert round(max(map(abs, interval(apart))), 3) == 0.012
