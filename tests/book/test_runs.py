"""Tables of runs, the front page, and runs and claims as CSV."""

from __future__ import annotations

import csv
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from bs4 import BeautifulSoup
from capsbook import evidence, notebooks, render, runs, templating
from capsbook.book import Book
from helpers import make_record

from capslib import papers
from capslib.lab.ledger import ledger
from capslib.lab.store import Store


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.write_text("{}")])
def test_pages_have_the_same_evidence_beside_a_file_that_is_no_record(
    tmp_path, add_records, make, caplog
):
    keys = add_records(tmp_path)
    sound = evidence.load(tmp_path)
    path = sound.runs[keys[0]].path.with_name("0123456789abcdef.json")
    make(path)
    assert evidence.load(tmp_path) == sound
    assert path.name in caplog.text


def test_evidence_follows_the_records(tmp_path, add_records):
    empty = evidence.stamp(tmp_path)
    keys = add_records(tmp_path)
    assert evidence.stamp(tmp_path) != empty
    loaded = evidence.load(tmp_path)
    assert loaded.verdicts["NEG-T1-rba-bias"].status == "reproduced"
    assert [run.path.stem for run in loaded.cited("negation_limitation")] == keys
    assert "3 records" in render.what_verdicts_rest_on(loaded, "negation_limitation")


@pytest.mark.parametrize("change", ["new", "changed", "gone"])
def test_pages_follow_the_tables_of_benchmarks(tmp_path, change):
    book = Book()
    book.root, book.results = tmp_path, tmp_path / "results"
    tables = tmp_path / "benchmarks" / "results"
    tables.mkdir(parents=True)
    (tables / "old.csv").write_text("name,seconds\n")
    assert book.renew(tmp_path)
    assert not book.renew(tmp_path)
    match change:
        case "new":
            (tables / "new.csv").write_text("name,seconds\n")
        case "changed":
            (tables / "old.csv").write_text("name,seconds\nem,1\n")
        case "gone":
            (tables / "old.csv").unlink()
    assert book.renew(tmp_path)


def test_a_row_of_runs_has_the_value_of_each_seed_and_leads_to_its_record(
    tmp_path, add_records
):
    keys = add_records(tmp_path)
    loaded = evidence.load(tmp_path)
    links = SimpleNamespace(file=str, record=lambda run: run.path.name)
    page = BeautifulSoup(templating.draw("runs", evidence=loaded, links=links), "html.parser")
    assert page.details["id"] == "runs-negation_limitation-sign-paper"
    assert "3 runs, 4.5 s" in " ".join(page.summary.text.split())
    (row,) = page.select("tbody tr")
    assert row.td.text == "dynamic/bias"
    assert {link["href"] for link in row.select("a")} == {f"{key}.json" for key in keys}
    verdict = loaded.verdicts["NEG-T1-rba-bias"]
    (cited,) = runs.cited_runs(verdict, loaded)
    line = "3 runs of sign at paper scale: dynamic/bias; seeds 0 to 2"
    assert cited == (page.details["id"], line)


def test_a_configuration_of_ones_own_has_a_row_that_says_how_it_differs(tmp_path):
    experiment = papers.experiments("negation_limitation")["sign"]
    trial, *_ = experiment.trials("paper", where={"arm": "dynamic/bias"}, seeds=[3])
    for rate in (1e-5, 2e-5):
        config = {**trial.config, "learning_rate": rate}
        record = make_record(trial.model_copy(update={"config": config}))
        Store(tmp_path).put(record)
    (table,) = runs.table_of_runs("negation_limitation", evidence.load(tmp_path))
    first, second = (row.arm for row in table.arms)
    assert "learning_rate = 1·10⁻⁵" in first
    assert "learning_rate = 2·10⁻⁵" in second


def test_runs_as_csv_have_every_metric(tmp_path, add_records):
    keys = add_records(tmp_path)
    loaded = evidence.load(tmp_path)
    rows = list(csv.DictReader(runs.runs_csv(loaded.runs.values()).splitlines()))
    assert sorted(row["key"] for row in rows) == sorted(keys)
    assert {row["arm"] for row in rows} == {"dynamic/bias"}
    metrics = loaded.runs[keys[0]].metrics
    assert {name: float(rows[0][name]) for name in metrics} == metrics


def test_the_claims_as_csv(tmp_path, add_records):
    keys = add_records(tmp_path)
    verdicts = evidence.load(tmp_path).verdicts_of()
    rows = {row["Claim"]: row for row in csv.DictReader(runs.claims_csv(verdicts).splitlines())}
    assert list(rows) == list(ledger())
    assert rows["NEG-T1-rba-bias"]["Records"].split() == keys
    assert rows["NEG-T1-rba-bias"]["Verdict"] == "reproduced"
    formula = {"value": None, "printed": "", "statement": "=HYPERLINK()"}
    hostile = replace(verdicts[0], claim=verdicts[0].claim.model_copy(update=formula))
    assert "'=HYPERLINK()" in runs.claims_csv([hostile]), "a spreadsheet runs no formula"


@pytest.mark.parametrize("text", ["=1+1", "-2+3+cmd|' /C calc'!A0", "+1+1", "@SUM(1)", "\t=1"])
def test_a_text_that_a_spreadsheet_would_compute_is_quoted(tmp_path, add_records, text):
    add_records(tmp_path)
    run, *_ = evidence.load(tmp_path).runs.values()
    (row,) = csv.DictReader(runs.runs_csv([run._replace(device=text)]).splitlines())
    assert row["device"] == f"'{text}"
    (row,) = csv.DictReader(runs.runs_csv([run._replace(device="-1.5e-05")]).splitlines())
    assert row["device"] == "-1.5e-05", "a number"


def test_a_record_of_an_earlier_revision_does_not_stop_the_build(tmp_path):
    """Its configuration may have a field that is gone; it counts for no claim."""
    symmetry = papers.experiments("negation_limitation")["symmetry"]
    changes = {"revision": symmetry.revision - 1, "config": {"gone": 3}}
    trial = symmetry.trials("cpu")[0].model_copy(update=changes)
    Store(tmp_path).put(make_record(trial))
    assert evidence.load(tmp_path).runs[trial.key].arm == "gone = 3"


def test_a_mean_is_shown_only_where_all_seeds_have_ended_well(tmp_path, add_records):
    """To leave out one that failed would select runs by their outcome."""
    add_records(tmp_path)
    where = ("negation_limitation", "sign", "dynamic/bias", "paper", "train_accuracy")
    assert evidence.load(tmp_path).measured(*where).n == 3
    store = Store(tmp_path)
    (record, *_) = store.records()
    changes = {"exit": "nan", "message": "step 3", "metrics": {}, "series": {}}
    failed = record.model_copy(update=changes)
    store.path(record.trial).unlink()
    store.put(failed)
    assert evidence.load(tmp_path).measured(*where) is None


def test_a_chapter_gives_its_answer_and_a_picture_to_the_front_page(tmp_path):
    def cell(tags, svg):
        output = nbformat.v4.new_output("display_data", {"image/svg+xml": svg})
        metadata = {"tags": tags, "mystnb": {"image": {"alt": "Dots."}}}
        return nbformat.v4.new_code_cell("x", outputs=[output], metadata=metadata)

    top = nbformat.v4.new_markdown_cell("# T\n\n:::{div} answer\nIt *holds*.\n:::\n\nMore.")
    cells = [top, cell([], "<svg/>"), cell(["front"], "<svg>1</svg>")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "n.ipynb")
    front = notebooks.front(tmp_path / "n.ipynb")
    assert front == ("It *holds*.", ("Dots.", "<svg>1</svg>", ""))
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / "empty.ipynb")
    assert notebooks.front(tmp_path / "empty.ipynb") == ("", None)
