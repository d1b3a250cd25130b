"""Deviations from the papers: each row tells of a trial, and a budget names what it changes."""

from __future__ import annotations

import functools
import string
from pathlib import Path

import pytest

from capslib import papers
from capslib.errors import UserError
from capslib.lab.ledger import deviations as module
from capslib.lab.ledger import read_rows
from capslib.lab.ledger.deviations import COLUMNS, deviations
from capslib.lab.store import Store
from capslib.papers.experiment import SCALES, Arm

STORE = Store(Path(__file__).parents[2] / "results")
EACH_PAPER = pytest.mark.parametrize("stem", papers.STEMS)


@functools.cache
def every_arm(stem: str) -> list[tuple[str, Arm]]:
    """Return the arms of all scales of a chapter, with the names of their experiments."""
    arms = []
    for name, experiment in papers.experiments(stem).items():
        for scale in SCALES:
            arms += [(name, arm) for arm in experiment.at(scale).values()]
    return arms


@EACH_PAPER
def test_a_row_names_what_there_is_and_applies_to_some_trial(stem):
    """Or it has former words, which some record has."""
    arms = [(name, arm.values()) for name, arm in every_arm(stem)]
    recorded = set()
    for record in STORE.records(stem):
        recorded |= {deviation.paper for deviation in record.deviations}
    for row in module._rows(stem):
        assert all(row[column] for column in COLUMNS[2:]), row
        fields = {name for _, name, _, _ in string.Formatter().parse(row["ours"]) if name}
        for name in filter(None, row["experiments"].split("|")):
            assert fields <= set(papers.experiments(stem)[name].fields), row
        holds = any(module._holds(row, name, values) for name, values in arms)
        is_former = row["where"].endswith("=")
        assert holds is not is_former, row
        assert holds or row["paper"] in recorded, row


CUT_AT_PAPER_SCALE = {
    ("negated", "epochs"),
    ("pilot", "epochs"),
    ("pilot", "Adam learning rate"),
}
"""Fields of experiments that are ours and not the paper's."""


@EACH_PAPER
def test_no_trial_has_a_deviation_twice_and_paper_scale_cuts_no_field_to_a_budget(stem):
    for name, experiment in papers.experiments(stem).items():
        for arm in experiment.at("paper").values():
            for deviation in deviations(stem, name, arm):
                is_cut = deviation.why == module.SMALLER
                assert not is_cut or (name, deviation.what) in CUT_AT_PAPER_SCALE
    for name, arm in every_arm(stem):
        subjects = [deviation.what for deviation in deviations(stem, name, arm)]
        assert len(subjects) == len(set(subjects)), (name, subjects)


def test_a_field_that_the_budget_changes_is_a_deviation_in_the_words_of_its_title():
    sign = papers.experiments("negation_limitation")["sign"]
    arm = sign.at("paper")["dynamic/bias"].changed({"points": 20})
    first, *_ = deviations("negation_limitation", "sign", arm)
    assert (first.what, first.paper, first.ours) == ("points", "20000", "20")


@EACH_PAPER
def test_deviations_name_exactly_the_fields_that_a_budget_changes(stem):
    for name, arm in every_arm(stem):
        budget = {}
        for deviation in deviations(stem, name, arm):
            if deviation.why == module.SMALLER:
                budget[deviation.what] = (deviation.paper, deviation.ours)
        values, paper_values = arm.values(), arm.paper_size.values()
        expected = {}
        for field, title in arm.titles().items():
            if values[field] != paper_values[field]:
                expected[title] = (str(paper_values[field]), str(values[field]))
        assert budget == expected, (name, arm.name)


@pytest.mark.parametrize(
    ("experiments", "where", "holds"),
    [
        ("", "", True),
        ("depth|sign", "routing=em|dynamic", True),
        ("depth", "", False),
        ("", "routing=em", False),
        ("", "routing!=em|dynamic", False),
        ("", "routing!=em", True),
        ("", "bias=True routing=em", False),
    ],
)
def test_all_conditions_of_a_row_have_to_hold(experiments, where, holds):
    row = {"experiments": experiments, "where": where}
    assert module._holds(row, "sign", {"routing": "dynamic", "bias": True}) is holds


@pytest.mark.parametrize("reason", ["190,000 steps", "fast,"])
def test_a_text_with_a_comma_and_no_quotation_marks_is_refused(tmp_path, reason):
    path = tmp_path / "paper.csv"
    row = ["depth", "routing=em", "epochs", "50", "4", reason]
    path.write_text(f"{','.join(COLUMNS)}\n{','.join(row)}\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"paper\.csv, line 2: a row needs 6 fields"):
        list(read_rows(path, COLUMNS))
    path.write_text(f"{','.join(COLUMNS)}\n{','.join(row[:5])},fast\n", encoding="utf-8")
    ((_, read),) = read_rows(path, COLUMNS)
    assert read == dict(zip(COLUMNS, [*row[:5], "fast"], strict=True))
