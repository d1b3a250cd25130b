"""The ledger: complete and unambiguous."""

from __future__ import annotations

from collections import Counter

import pytest

from capslib.errors import UserError
from capslib.lab.ledger import (
    COLUMNS,
    HIGHER_IS_BETTER,
    LEDGER,
    Claim,
    ledger,
    read_ledger,
)
from capslib.papers import STEMS
from capslib.papers.inequality_anomaly.checks import ALIKE

CLAIMS = ledger().values()
NUMBERS = {
    "em_routing": {"Table 1": 12, "Table 2": 8},
    "negation_limitation": {"Table 1": 4, "Table 2": 16, "Table 3": 20},
    "sparse_unsupervised": {"Table 1": 12, "Table 2": 10},
    "learned_routing": {"Table 3": 10},
    "inequality_anomaly": {
        "Table 1": 7,
        "Table 2": 96,
        "Table 3": 96,
        "Table 4": 32,
        "Supplementary Table 1": 96,
        "Supplementary Table 2": 96,
        "Supplementary Table 3": 32,
    },
}
"""How many numbers a table has in print."""


def is_worded(name: str) -> bool:
    return name.split("-")[1] == "W"


@pytest.mark.parametrize("stem", NUMBERS)
def test_every_number_of_a_table_has_a_row(stem):
    tables = Counter()
    for claim in ledger(stem).values():
        if "Table" in claim.where and not is_worded(claim.id):
            tables[claim.where] += 1
    assert tables == NUMBERS[stem]


@pytest.mark.parametrize("stem", STEMS)
def test_a_paper_has_claims_and_letters_of_its_own(stem):
    """Two claims of one id would be a single one."""
    prefix = next(iter(ledger(stem))).partition("-")[0]
    assert {c.paper for c in CLAIMS if c.id.startswith(f"{prefix}-")} == {stem}


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("EM-T1-iter3", "1.8"),
        ("EM-T2-ele-novel-caps", "12.3"),
        ("NEG-T2-fashion-bias-5", "81.2"),
        ("SP-T1-affnist-a", "90.12"),
        ("LR-T3-conn-mnist", "0.53"),
        ("INQ-T2-kmnist-1pct-npp", "0.9316 ± 0.0247"),
        ("INQ-T1-nevus", "6,705"),
    ],
)
def test_spot_values(name, printed):
    assert ledger()[name].printed == printed


ROUNDED = ("trainable parameters", "parameter reduction factor")
"""Counts that a paper rounds."""
EXCEPTIONS = ("NEG-T1-rba-nobias", "NEG-T1-em-nobias")
"""Running means of an exact 50 %, with a tolerance of 1."""


def tolerance_by_rule(claim: Claim) -> float | None:
    """Return the tolerance that the metric of a claim asks for; None where no rule has one."""
    if claim.value is None:
        return None
    if claim.id in EXCEPTIONS:
        return 1
    if claim.metric == "test error":
        return 0.3 if claim.value < 3 else 0.5
    if claim.metric.endswith("accuracy") and claim.kind == "value":
        return 0.3 if claim.value > 97 else 0.5
    if claim.metric in ("AUROC", "average precision"):
        return min(ALIKE, (1 - claim.value) / 2)
    if claim.kind == "property" and claim.metric not in ROUNDED:
        return 0
    return None


def test_tolerances_follow_the_rule_of_their_metric():
    for claim in CLAIMS:
        expected = tolerance_by_rule(claim)
        if expected is not None:
            assert claim.tolerance == pytest.approx(expected), claim.id


def test_a_metric_without_a_better_side_is_one_that_has_none():
    metrics = {claim.metric for claim in CLAIMS if claim.kind == "value" and not claim.not_run}
    assert metrics - HIGHER_IS_BETTER.keys() == {"orders of magnitude smaller"}


def test_worded_claims_have_no_number():
    for claim in CLAIMS:
        if is_worded(claim.id):
            assert claim.kind in ("order", "property"), claim.id
            assert claim.value is None, claim.id


def test_what_the_papers_quote_is_marked_as_not_run():
    quoted = {claim.id for claim in CLAIMS if claim.quoted}
    assert {"EM-T1-ciresan", "EM-X-sabour", "SP-T2-affnist-zhao"} < quoted


# ----------------------------------------------------------------------------------- bad files

GOOD = dict.fromkeys(COLUMNS, "") | {
    "id": "NEG-1",
    "where": "Table 1",
    "kind": "value",
    "statement": "s",
    "value": "1",
    "tolerance": "0",
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "guess"}, "kind"),
        ({"value": "about 3"}, "value"),
        ({"tolerance": ""}, "needs a tolerance"),
        ({"value": ""}, "needs a value"),
        ({"id": "X-1"}, "has to begin with NEG-"),
        ({"id": "neg-1"}, "id"),
        ({"id": "NEG-0"}, "twice"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path, change, message):
    path = tmp_path / "bad.csv"
    rows = [COLUMNS, (GOOD | {"id": "NEG-0"}).values(), (GOOD | change).values()]
    path.write_text("\n".join(map(",".join, rows)), encoding="utf-8")
    with pytest.raises(UserError, match=rf"bad\.csv, line 3: .*{message}"):
        read_ledger(path, "negation_limitation")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"id,value\nNEG-1,2\n", "line 1: the columns must be"),
        (",".join(COLUMNS).encode() + b"\nNEG-1,Table 1\n", "line 2: a row needs"),
        (b"\xff\xfe\x00", "the ledger cannot be read"),
    ],
)
def test_a_file_that_is_no_ledger_is_refused(tmp_path, content, message):
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"bad\.csv.*{message}"):
        read_ledger(path, "negation_limitation")


def test_an_unknown_paper_is_answered_with_the_nearest():
    with pytest.raises(UserError, match="Did you mean 'em_routing'"):
        ledger("em_routin")


def test_each_file_belongs_to_a_paper():
    assert {path.stem for path in LEDGER.glob("*.csv")} == {*STEMS, "headlines"}
