"""Deviations from the papers: every row says something of a trial, and records say the rows."""

from __future__ import annotations

import functools
import string
from pathlib import Path

import pytest

from capslib import papers
from capslib.lab.ledger import deviations as module
from capslib.lab.ledger.deviations import deviations
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
    experiments = papers.experiments(stem)
    arms = [(name, arm.values()) for name, arm in every_arm(stem)]
    recorded = set()
    for record in STORE.records(stem):
        recorded |= {deviation.paper for deviation in record.deviations}
    for row in module._rows(stem):
        assert all(row[column] for column in ("what", "paper", "ours", "why")), row
        names = row["experiments"].split("|") if row["experiments"] else list(experiments)
        fields = {condition.partition("=")[0].rstrip("!") for condition in row["where"].split()}
        fields |= {name for _, name, _, _ in string.Formatter().parse(row["ours"]) if name}
        for name in names:
            assert fields <= set(experiments[name].fields), row
        holds = any(module._holds(row, name, values) for name, values in arms)
        is_former = row["where"].endswith("=")
        assert holds is not is_former, row
        assert holds or row["paper"] in recorded, row


def test_each_file_belongs_to_a_chapter():
    files = Path(module.__file__).parent.glob("*.csv")
    assert {path.stem for path in files} == set(papers.STEMS)


REDUCED_AT_PAPER_SCALE = {
    ("negation_limitation", "negated", "epochs"),
    ("learned_routing", "pilot", "epochs"),
    ("learned_routing", "pilot", "Adam learning rate"),
}
"""Experiments that are ours and not the paper's."""


@EACH_PAPER
def test_no_trial_has_a_deviation_twice_and_paper_scale_cuts_no_field_to_a_budget(stem):
    cut = set()
    for name, experiment in papers.experiments(stem).items():
        for arm in experiment.at("paper").values():
            for deviation in deviations(stem, name, arm):
                if deviation.why == "budget of this scale":
                    cut.add((stem, name, deviation.what))
    assert cut == {address for address in REDUCED_AT_PAPER_SCALE if address[0] == stem}
    for name, arm in every_arm(stem):
        subjects = [deviation.what for deviation in deviations(stem, name, arm)]
        assert len(subjects) == len(set(subjects)), (name, subjects)


def test_a_field_that_the_budget_changes_is_a_deviation_in_the_words_of_its_title():
    sign = papers.experiments("negation_limitation")["sign"]
    arm = sign.at("paper")["dynamic/bias"].changed({"points": 20})
    first, *_ = deviations("negation_limitation", "sign", arm)
    assert first.model_dump() == {
        "what": "points",
        "paper": "20000",
        "ours": "20",
        "why": "budget of this scale",
    }


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ("routing=em", False),
        ("routing=em|dynamic", True),
        ("routing!=em|dynamic", False),
        ("routing!=em", True),
        ("bias=True routing=dynamic", True),
        ("bias=True routing=em", False),
        ("", True),
    ],
)
def test_all_conditions_of_a_row_have_to_hold(where, holds):
    fields = {"routing": "dynamic", "bias": True}
    for experiments, names_it in (("", True), ("depth|sign", True), ("depth", False)):
        row = {"experiments": experiments, "where": where}
        assert module._holds(row, "sign", fields) is (holds and names_it)


REWORDED = {
    ("sparse_unsupervised", "the CNN of Table 1"),
    ("negation_limitation", "direction of EM vector capsules"),
    ("inequality_anomaly", "loss that early stopping looks at"),
    ("inequality_anomaly", "weights of the evaluated Boltzmann machine"),
}
"""Rows that were said in other words when some records were made."""
ADDED = {
    ("em_routing", "windows that step by two"),
    ("em_routing", "a parent with next to no mass"),
    ("em_routing", "brightness and contrast"),
    ("em_routing", "schedule of the margin"),
    ("em_routing", "smoothing of the means"),
    ("em_routing", "scale of the coordinates"),
    ("em_routing", "hyperparameters of the CNN"),
    ("em_routing", "size of the CNN"),
    ("em_routing", "what a child gives that no parent explains"),
    ("em_routing", "sum of the mixing proportions"),
    ("em_routing", "start of the primary activations"),
    ("negation_limitation", "E-step of EM"),
    ("negation_limitation", "ε of Adam"),
    ("negation_limitation", "activation of EM vector capsules"),
    ("sparse_unsupervised", "start of the weights of votes"),
}
"""Rows that came after some records."""
NARROWED = {
    ("em_routing", "size of the CNN"),
    ("learned_routing", "bias"),
    ("negation_limitation", "E-step of EM"),
}
"""Rows that once held for more configurations."""


@EACH_PAPER
def test_the_committed_records_say_what_the_files_say_today(stem):
    """In the same words. What has changed since is listed above."""
    count = 0
    for record in STORE.records(stem):
        trial = record.trial
        if trial.revision != papers.experiments(stem)[trial.experiment].revision:
            continue
        then = set(record.deviations)
        today = set(deviations(stem, trial.experiment, papers.arm(trial)))
        added = {(stem, deviation.what) for deviation in today - then}
        removed = {(stem, deviation.what) for deviation in then - today}
        assert added <= ADDED | REWORDED, record.key
        assert removed <= NARROWED | REWORDED, record.key
        count += 1
    assert count > 10
