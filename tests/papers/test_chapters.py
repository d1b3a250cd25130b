"""What holds for every chapter: its arms are valid, and its checks fit the ledger."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from helpers import lacking

from capslib.data.registry import SETS
from capslib.lab.judging import fits
from capslib.lab.ledger import ledger
from capslib.lab.provenance import code_hash
from capslib.lab.records import faults
from capslib.lab.store import Store
from capslib.papers import PAPERS, STEMS, WITH_TRIALS, checks_of, experiments
from capslib.papers.check import leaves
from capslib.papers.experiment import SCALES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("stem", STEMS)
def test_checks_and_ledger_agree(stem):
    claims, checks = ledger(stem), checks_of(stem)
    assert set(checks) <= set(claims), "a check has no row in the ledger"
    runnable = {name for name, claim in claims.items() if not claim.not_run}
    assert set(checks) == runnable, "a claim has a check, or a reason why it is not run"
    for name, check in checks.items():
        assert fits(check, claims[name].kind), name


@pytest.mark.parametrize("stem", STEMS)
def test_every_check_finds_its_arms(stem):
    """A name that does not exist would select nothing for ever."""
    for name, check in checks_of(stem).items():
        for leaf in leaves(check):
            for select in leaf.selects:
                experiment = experiments(stem)[select.experiment]
                for scale in ("paper", "cpu"):
                    at_scale = set(select.at(scale).names) <= set(experiment.at(scale))
                    may_lack = leaf.op == "≈" or leaf.paper_scale_only or leaf.test
                    assert at_scale or (scale == "cpu" and may_lack), f"{name}: {select}"


@pytest.mark.parametrize("stem", STEMS)
def test_every_test_that_a_claim_names_exists(stem):
    tests = {leaf.test for check in checks_of(stem).values() for leaf in leaves(check)} - {""}
    assert tests
    for test in tests:
        file, _, function = test.partition("::")
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        assert function in functions, test


EACH_EXPERIMENT = pytest.mark.parametrize(
    ("stem", "name"), [(stem, name) for stem in WITH_TRIALS for name in experiments(stem)]
)
EACH_SCALE = pytest.mark.parametrize("scale", SCALES)


@EACH_SCALE
@EACH_EXPERIMENT
def test_the_configurations_of_a_scale_are_distinct_and_resolve_to_themselves(
    stem, name, scale
):
    experiment = experiments(stem)[name]
    arms = list(experiment.at(scale).values())
    differences = [json.dumps(arm.differences(), sort_keys=True) for arm in arms]
    assert len(arms) == len(set(differences)) > 0
    resolved = [experiment.arm(scale, json.loads(text)) for text in differences]
    assert resolved == arms
    seeds = [experiment.replicates(arm, experiment.seeds[scale]) for arm in arms]
    keys = {trial.key for trial in experiment.trials(scale)}
    assert len(keys) == sum(map(len, seeds))


@pytest.mark.parametrize("scale", ["cpu", "paper"])
@EACH_EXPERIMENT
def test_an_arm_has_three_seeds_but_for_a_pilot_and_a_learning_curve_of_days(stem, name, scale):
    """Which no claim asks for."""
    experiment = experiments(stem)[name]
    for arm in experiment.at(scale).values():
        seeds = experiment.replicates(arm, experiment.seeds[scale])
        is_long = arm.values().get("schedule") == "steps"
        assert len(seeds) >= 3 or name == "pilot" or is_long, arm


@EACH_SCALE
@EACH_EXPERIMENT
def test_data_stand_in_at_smoke_scale_only(stem, name, scale):
    for arm in experiments(stem)[name].at(scale).values():
        data = arm.values().get("data")
        assert not data or SETS[data].stand_in == (scale == "smoke"), arm


@pytest.mark.parametrize(
    ("stem", "name"), [(stem, name) for stem in STEMS for name in experiments(stem)]
)
def test_every_smoke_run_left_a_small_and_sound_record(stem, name):
    """Those that the chapters of the book have trained, or read, with the code at hand."""
    store = Store(ROOT / "_build" / "smoke" / code_hash()[:12])
    for trial in experiments(stem)[name].trials("smoke"):
        record = store.get(trial)
        if record is None:
            lacking(
                f"a smoke run of {stem}/{name} has no record of this code: `make book` first"
            )
        assert record.exit == "ok", record.message
        assert list(faults(record)) == []
        assert store.path(trial).stat().st_size < (
            100_000 if stem == "sparse_unsupervised" else 40_000
        )


@pytest.mark.parametrize("stem", STEMS)
def test_a_chapter_links_its_paper_and_code_that_will_not_move(stem):
    """A branch moves on, and the line that a finding rests on with it; a commit does not."""
    paper, notebook = (
        PAPERS[stem],
        (ROOT / "notebooks" / f"{stem}.py").read_text(encoding="utf-8"),
    )
    bibliography = (ROOT / "book" / "references.bib").read_text(encoding="utf-8")
    assert any(
        re.match(r"https://(doi\.org|arxiv\.org|openreview\.net)/", url)
        for url in paper.links.values()
        if url
    )
    code = [url for url in paper.links.values() if url and "github.com" in url]
    assert code or paper.links["public code"] is None, (
        "a chapter links code, or says that there is none"
    )
    assert all(f"{{{url}}}" in bibliography for url in code)
    lines = re.findall(r"https://github\.com/[^)\s]+", notebook)
    assert lines or not code, "the lines of code that a finding rests on"
    assert all(re.search(r"/(tree|blob)/[0-9a-f]{40}(/|$)", url) for url in [*code, *lines])
    assert all(re.search(r"#L\d+(-L\d+)?$", url) for url in lines)
    entry = re.search(rf"@\w+{{{paper.cite},.*?\n}}", bibliography, re.S)[0]
    assert re.search(r"\n  (url|doi) +=", entry)
