"""The ledger: complete and unambiguous."""

from __future__ import annotations

from collections import Counter

import pytest

from capslib.errors import UserError
from capslib.lab.ledger import COLUMNS, HIGHER_IS_BETTER, LEDGER, ledger, read_ledger
from capslib.papers import STEMS

NUMBERS = {  # rows with a number of the paper, by the place where the paper has them
    ("em_routing", "Table 1"): 12,
    ("em_routing", "Table 2"): 8,
    ("em_routing", "text"): 21,
    ("negation_limitation", "Table 1"): 4,
    ("negation_limitation", "Table 2"): 16,
    ("negation_limitation", "Table 3"): 20,
    ("negation_limitation", "text"): 2,
    ("sparse_unsupervised", "Table 1"): 12,
    ("sparse_unsupervised", "Table 2"): 10,
    ("sparse_unsupervised", "text"): 4,
    ("learned_routing", "Table 3"): 10,
    ("learned_routing", "text"): 4,
    ("inequality_anomaly", "Table 1"): 7,
    ("inequality_anomaly", "Table 2"): 96,
    ("inequality_anomaly", "Table 3"): 96,
    ("inequality_anomaly", "Table 4"): 32,
    ("inequality_anomaly", "Supplementary Table 1"): 96,
    ("inequality_anomaly", "Supplementary Table 2"): 96,
    ("inequality_anomaly", "Supplementary Table 3"): 32,
    ("inequality_anomaly", "text"): 18,
}
WORDED = {
    "em_routing": 17,
    "negation_limitation": 14,
    "sparse_unsupervised": 9,
    "learned_routing": 5,
    "inequality_anomaly": 10,
}


def worded(name: str) -> bool:
    return name.split("-")[1] == "W"


def test_every_number_and_every_worded_claim_has_a_row():
    claims = ledger()
    places = Counter(
        (c.paper, c.where if "Table" in c.where else "text")
        for c in claims.values()
        if not worded(c.id)
    )  # a table is named alone; all else is text, figures included
    assert places == NUMBERS
    assert sum(places.values()) == 596
    assert Counter(c.paper for c in claims.values() if worded(c.id)) == WORDED


def test_ids_are_unique_and_belong_to_their_paper():
    ids = [name for stem in STEMS for name in ledger(stem)]
    assert len(ids) == len(set(ids)) == len(ledger())
    prefix = dict(zip(STEMS, ("EM", "NEG", "SP", "LR", "INQ"), strict=True))
    assert all(c.id.startswith(prefix[c.paper] + "-") for c in ledger().values())


@pytest.mark.parametrize(
    ("name", "value", "std", "unit", "tolerance"),
    [
        ("EM-T1-iter3", 1.8, None, "percent", 0.3),
        ("EM-T1-iter1", 9.7, None, "percent", 0.5),
        ("EM-T2-ele-novel-caps", 12.3, None, "percent", 0.5),
        ("EM-X-mnist", 0.44, None, "percent", 0.3),
        ("NEG-T1-rba-nobias", 49.61, None, "percent", 1),
        ("NEG-T1-em-bias", 99.81, None, "percent", 0.3),
        ("NEG-T2-fashion-bias-5", 81.2, None, "percent", 0.5),
        ("NEG-T3-mnist-nobias-8", 10.11, None, "percent", 0.5),
        ("SP-T1-affnist-a", 90.12, None, "percent", 0.5),
        ("LR-T3-conn-mnist", 0.53, None, "percent", 0.3),
        ("INQ-T2-kmnist-1pct-npp", 0.9316, 0.0247, "fraction", 0.02),
        ("INQ-T3-mnist-10pct-npp", 0.3073, 0.0997, "fraction", 0.02),
        ("INQ-S3-D-abc", 0.1945, 0.0006, "fraction", 0.02),
        ("INQ-C-ap-palma", 0.6876, 0.0264, "fraction", 0.02),
        ("INQ-T1-nevus", 6705, None, "count", 0),
    ],
)
def test_spot_values(name, value, std, unit, tolerance):
    claim = ledger()[name]
    assert (claim.value, claim.std, claim.unit, claim.tolerance) == (
        value,
        std,
        unit,
        tolerance,
    )


ROUNDED = ("trainable parameters", "parameter reduction factor")  # counts that a paper rounds

EXCEPTIONS = {
    "NEG-T1-rba-nobias": 1,
    "NEG-T1-em-nobias": 1,
}  # running means of an exact 50 %; each says so in its notes


def test_tolerances_follow_the_rule_of_their_metric():
    for claim in ledger().values():
        if claim.id in EXCEPTIONS:
            assert claim.tolerance == EXCEPTIONS[claim.id]
            assert "tolerance" in claim.notes
            continue
        if claim.kind == "value":
            assert claim.tolerance is not None, claim.id
        if claim.value is None:
            continue
        if claim.metric == "test error":
            assert claim.tolerance == (0.3 if claim.value < 3 else 0.5), claim.id
        elif claim.metric.endswith("accuracy") and claim.kind == "value":
            assert claim.tolerance == (0.3 if claim.value > 97 else 0.5), claim.id
        elif claim.metric in ("AUROC", "average precision"):
            assert claim.tolerance == pytest.approx(min(0.02, (1 - claim.value) / 2)), claim.id
        elif claim.kind == "property" and claim.metric not in ROUNDED:
            assert claim.tolerance == 0, claim.id


def test_a_metric_without_a_better_side_is_one_that_has_none():
    neutral = {
        c.metric for c in ledger().values() if c.kind == "value" and not c.not_run
    } - set(HIGHER_IS_BETTER)
    assert neutral == {"orders of magnitude smaller"}


def test_worded_claims_have_a_statement_and_no_number():
    for claim in ledger().values():
        assert claim.statement.endswith("."), claim.id
        if worded(claim.id):
            assert claim.kind in ("order", "property"), claim.id
            assert claim.value is None, claim.id


def test_what_the_papers_quote_is_marked_as_not_run():
    reasons = {c.id: c.not_run for c in ledger().values() if c.not_run}
    assert all(r.endswith(".") for r in reasons.values())
    for name in ("EM-T1-ciresan", "EM-X-sabour", "SP-T2-affnist-zhao", "LR-T3-emorig-norb"):
        assert "Quoted" in reasons[name]
    for claim in (c for c in ledger().values() if c.not_run):
        assert claim.quoted == ("did not measure this number itself" in claim.not_run), claim.id
    assert all(
        c.value is not None for c in ledger().values() if c.kind == "value" and not c.not_run
    )


# ---------------------------------------------------------------------------------------------------------- bad files

GOOD = dict.fromkeys(COLUMNS, "") | {
    "id": "NEG-1",
    "where": "Table 1",
    "kind": "value",
    "statement": "s",
    "value": "1",
    "tolerance": "0",
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "guess"}, "kind"),
        ({"value": "about 3"}, "value"),
        ({"value": "nan"}, "value"),
        ({"tolerance": "-1"}, "tolerance"),
        ({"tolerance": ""}, "needs a tolerance"),
        ({"value": ""}, "needs a value"),
        ({"statement": ""}, "statement"),
        ({"id": "X-1"}, "id"),
        ({"id": "NEG-0"}, "twice"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path, change, says):
    path = tmp_path / "bad.csv"
    rows = [COLUMNS, (GOOD | {"id": "NEG-0"}).values(), (GOOD | change).values()]
    path.write_text("\n".join(",".join(row) for row in rows), encoding="utf-8")
    with pytest.raises(UserError, match=rf"bad\.csv, line 3: .*{says}"):
        read_ledger(path, "negation_limitation")


@pytest.mark.parametrize(
    "text", ["", "id,value\nNEG-1,2\n", ",".join(COLUMNS) + "\nNEG-1,Table 1\n"]
)
def test_a_file_of_another_form_is_refused(tmp_path, text):
    path = tmp_path / "bad.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"bad\.csv, line \d"):
        read_ledger(path, "negation_limitation")


def test_a_file_that_is_not_text_or_not_there_is_refused(tmp_path):
    (tmp_path / "bad.csv").write_bytes(b"\xff\xfe\x00")
    for name in ("bad.csv", "none.csv"):
        with pytest.raises(UserError, match=rf"{name}: the ledger cannot be read"):
            read_ledger(tmp_path / name, "negation_limitation")


def test_an_unknown_paper_is_answered_with_the_nearest():
    with pytest.raises(UserError, match="Did you mean 'em_routing'"):
        ledger("em_routin")


def test_the_files_are_tidy():
    for path in LEDGER.glob("*.csv"):
        text = path.read_bytes()
        assert b"\r" not in text, path.name
        assert text.endswith(b"\n"), path.name
    assert {p.stem for p in LEDGER.glob("*.csv")} == {*STEMS, "headlines"}
