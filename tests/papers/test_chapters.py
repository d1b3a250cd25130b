"""What holds for every chapter that has moved in: its grids, and its queries in step with the
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
from capslib.lab.judging import QUERIES_OF_KIND
from capslib.lab.ledger import ledger
from capslib.lab.records import faults
from capslib.lab.runs import code_hash
from capslib.lab.store import Store
from capslib.papers import PAPERS, STEMS, experiments, queries
from capslib.papers import query as q
from capslib.papers.experiment import SCALES

ROOT = Path(__file__).parents[2]


def selects(query: q.Query) -> list[tuple[q.Select, q.Query]]:
    """Every selection in a query, with the plain query that it belongs to."""
    return [(select, leaf) for leaf in q.leaves(query) for select in leaf.arms]


@pytest.mark.parametrize("stem", STEMS)
def test_queries_and_ledger_agree(stem):
    claims, asked = ledger(stem), queries(stem)
    assert set(asked) <= set(claims), "a query has no row in the ledger"
    assert not [n for n, c in claims.items() if not c.not_run and n not in asked], (
        "a runnable claim has neither query nor reason"
    )
    assert not [n for n in asked if claims[n].not_run], (
        "a claim that is said to be not run has a query"
    )
    for name, query in asked.items():
        assert isinstance(query, QUERIES_OF_KIND[claims[name].kind]), name


@pytest.mark.parametrize("stem", STEMS)
def test_every_selection_finds_one_configuration_in_the_chapter(stem):
    """A field that does not exist selects nothing for ever; one that is left open would mix
    configurations.
    """
    index = q.Index(
        (name, scale, fields, fields)
        for name, experiment in experiments(stem).items()
        for scale in ("paper", "cpu")
        for fields in (arm.fields() for arm in experiment.at(scale).values())
    )
    for name, query in queries(stem).items():
        for select, plain in selects(query):
            experiment = experiments(stem)[select.experiment]
            assert set(select.where) <= set(experiment.fields), f"{name}: {select}"
            may_lack = isinstance(plain, q.Value) or plain.paper_scale_only  # at cpu scale
            for scale in ("paper", "cpu"):
                found = index.of(select, scale)
                enough = (
                    len(found) == (len(select.arms) or select.cells)
                    or (isinstance(plain, q.Property) and found)
                    or (scale == "cpu" and may_lack and not found)
                )
                assert enough, f"{name} at {scale} scale: {select}"
                if select.over:
                    assert len({c[select.over] for c in found}) == len(found), (
                        f"{name}: {select.over} repeats"
                    )
                    rest = [{k: v for k, v in c.items() if k != select.over} for c in found]
                    assert all(c == rest[0] for c in rest), f"{name}: {select}"


@pytest.mark.parametrize("stem", STEMS)
def test_every_test_that_a_claim_names_exists(stem):
    asked = [plain for query in queries(stem).values() for _, plain in selects(query)]
    named = {plain.test for plain in asked if isinstance(plain, q.Property)}
    assert named
    for test in named:
        file, _, function = test.partition("::")
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert function in [
            node.name for node in tree.body if isinstance(node, ast.FunctionDef)
        ], test


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    ("stem", "name"), [(stem, name) for stem in STEMS for name in experiments(stem)]
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
                f"not every smoke run of {stem}/{name} has a record of this code: run `make book` first"
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


CHAPTERS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.py"))


@pytest.mark.parametrize("stem", CHAPTERS)
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
