"""Deviations from the papers, as data: every row says something of some trial, and the records say what the rows say."""

from __future__ import annotations

import string
from pathlib import Path

import pytest

from capslib import papers
from capslib.config import Config
from capslib.lab.ledger import deviations as module
from capslib.lab.ledger.deviations import deviations
from capslib.lab.store import Store
from capslib.papers.experiment import SCALES

RESULTS = Path(__file__).parents[2] / "results"
ROWS = [(stem, row) for stem in papers.STEMS for row in module._rows(stem)]


def everything(stem: str) -> list[tuple[str, Config]]:
    """The configurations of all grids of a chapter, with the names of their experiments."""
    return [
        (name, c)
        for name, e in papers.experiments(stem).items()
        for scale in SCALES
        for c in e.at(scale).values()
    ]


@pytest.mark.parametrize(
    ("stem", "row"), ROWS, ids=[f"{stem}: {row['what']}" for stem, row in ROWS]
)
def test_a_row_names_what_there_is_and_applies_to_some_trial(stem, row):
    experiments = papers.experiments(stem)
    named = row["experiments"].split("|") if row["experiments"] else list(experiments)
    assert set(named) <= set(experiments)
    fields = {condition.partition("=")[0].rstrip("!") for condition in row["where"].split()}
    fields |= {name for _, name, _, _ in string.Formatter().parse(row["ours"]) if name}
    for name in named:
        assert fields <= set(experiments[name].fields)
    holds = any(module._holds(row, name, config.values()) for name, config in everything(stem))
    assert holds is not row["where"].endswith("="), (
        "of no trial of any scale, or former words that are today's"
    )
    assert holds or row["paper"] in {
        d.paper for r in Store(RESULTS).records(stem) for d in r.deviations
    }, "of no record either"
    assert all(row[column] for column in ("what", "paper", "ours", "why"))


def test_each_file_belongs_to_a_chapter():
    assert {path.stem for path in Path(module.__file__).parent.glob("*.csv")} == set(
        papers.STEMS
    )


def test_no_trial_has_the_same_deviation_twice():
    for stem in papers.STEMS:
        for name, config in everything(stem):
            found = [d.what for d in deviations(stem, name, config)]
            assert len(found) == len(set(found)), (name, found)


CUT = {
    ("negation_limitation", "negated"): {"epochs"},
    ("learned_routing", "pilot"): {"epochs", "Adam learning rate"},
}
"""What even runs of the paper's scale have less of, or other: experiments that are ours and not the paper's."""


@pytest.mark.parametrize(
    ("stem", "name"),
    [(stem, name) for stem in papers.STEMS for name in papers.experiments(stem)],
)
def test_at_paper_scale_no_field_is_cut_to_a_budget(stem, name):
    told = [
        d
        for c in papers.experiments(stem)[name].at("paper").values()
        for d in deviations(stem, name, c)
    ]
    assert {d.what for d in told if d.why == "budget of this scale"} == CUT.get(
        (stem, name), set()
    )


def test_a_field_that_the_budget_changes_is_a_deviation_in_the_words_of_its_title():
    sign = papers.experiments("negation_limitation")["sign"]
    arm = sign.at("paper")["dynamic/bias"]
    first, *_ = deviations("negation_limitation", "sign", arm.changed({"points": 20}))
    assert first.model_dump() == {
        "what": "points",
        "paper": "20000",
        "ours": "20",
        "why": "budget of this scale",
    }


@pytest.mark.parametrize(
    ("condition", "holds"),
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
def test_all_conditions_of_a_row_have_to_hold(condition, holds):
    fields = {"routing": "dynamic", "bias": True}
    assert module._holds({"experiments": "", "where": condition}, "sign", fields) is holds
    assert (
        module._holds({"experiments": "depth|sign", "where": condition}, "sign", fields)
        is holds
    )
    assert not module._holds({"experiments": "depth", "where": condition}, "sign", fields)


LATER = {
    ("em_routing", "test_error", what)
    for what in ("windows that step by two", "a parent with next to no mass")
} | {
    ("em_routing", experiment, what)
    for experiment in ("test_error", "viewpoint", "attacks")
    for what in (
        "brightness and contrast",
        "schedule of the margin",
        "smoothing of the means",
        "scale of the coordinates",
        "hyperparameters of the CNN",
        "size of the CNN",
        "what a child gives that no parent explains",
        "sum of the mixing proportions",
        "start of the primary activations",
    )
}
LATER |= {
    ("negation_limitation", experiment, "E-step of EM")
    for experiment in ("symmetry", "sign", "depth", "negated")
}
LATER |= {
    ("negation_limitation", experiment, "ε of Adam")
    for experiment in ("sign", "depth", "negated")
}
LATER |= {
    ("negation_limitation", experiment, "activation of EM vector capsules")
    for experiment in ("symmetry", "sign", "depth", "negated")
}
LATER |= {
    ("sparse_unsupervised", experiment, "start of the weights of votes")
    for experiment in ("encodings", "options", "beyond", "attacks")
}
SAID_ANEW = {
    *(
        ("sparse_unsupervised", experiment, "the CNN of Table 1")
        for experiment in ("encodings", "attacks")
    ),
    *(
        ("negation_limitation", experiment, "direction of EM vector capsules")
        for experiment in ("symmetry", "sign", "depth", "negated")
    ),
    *(
        ("inequality_anomaly", experiment, "loss that early stopping looks at")
        for experiment in (
            "detection",
            "lesions",
            "off_targets",
            "repairs",
            "routings",
            "draws",
            "baselines",
        )
    ),
    ("inequality_anomaly", "baselines", "weights of the evaluated Boltzmann machine"),
}
LATER |= SAID_ANEW
"""Rows that were added, or said in other words, after some records had been made."""
NARROWED = {
    ("em_routing", "test_error", "size of the CNN"),
    ("learned_routing", "negation", "bias"),
}
NARROWED |= {
    ("negation_limitation", experiment, "E-step of EM")
    for experiment in ("symmetry", "sign", "depth", "negated")
}
NARROWED |= SAID_ANEW
"""Rows that once were said of a CNN of the paper's size, too, or in other words."""


def test_the_committed_records_say_what_the_files_say_today():
    """In the same words. What has changed since is listed above."""
    count = 0
    for record in Store(RESULTS).records():
        trial = record.trial
        if trial.revision != papers.experiments(trial.paper)[trial.experiment].revision:
            continue
        place, then = (trial.paper, trial.experiment), record.deviations
        today = deviations(*place, papers.arm(trial))
        assert {(*place, d.what) for d in today if d not in then} <= LATER, record.key
        assert {(*place, d.what) for d in then if d not in today} <= NARROWED, record.key
        count += 1
    assert count > 400
