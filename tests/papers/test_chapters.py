"""What holds for every chapter that has moved in: its arms, and its checks in step with the
ledger.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from helpers import lacking

from capslib.config import Config
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


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    ("stem", "name"), [(stem, name) for stem in WITH_TRIALS for name in experiments(stem)]
)
def test_every_configuration_of_every_scale_is_valid_and_there_once(stem, name, scale):
    experiment = experiments(stem)[name]
    configs = list(experiment.at(scale).values())
    differences = [json.dumps(c.differences(), sort_keys=True) for c in configs]
    assert len(configs) == len(set(differences)) > 0
    assert [experiment.arm(scale, json.loads(d)) for d in differences] == configs
    seeds = [experiment.replicates(c, experiment.seeds[scale]) for c in configs]
    assert len({t.key for t in experiment.trials(scale)}) == sum(map(len, seeds))
    few = [c for c, own in zip(configs, seeds, strict=True) if len(own) < 3]
    assert scale == "smoke" or all(c.values()["schedule"] == "steps" for c in few), (
        "but for a learning curve of days, which no claim asks for"
    )
    assert {stands_in(c) for c in configs} <= {None, scale == "smoke"}


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
        for metric, found in record.metrics.items():
            assert (
                found.unit == "count"
                or not metric.startswith(("auroc", "ap"))
                or 0 <= found.value <= 1
            ), metric


def stands_in(config: Config) -> bool | None:
    """Whether a configuration runs on stand-ins, which is what smoke scale does and no other;
    None where it needs no data.
    """
    data = config.values().get("data")
    return SETS[data].stand_in if data else None


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
