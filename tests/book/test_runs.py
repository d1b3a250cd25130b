"""A run as a page, the list of runs, the front page, and the claims as CSV."""

from __future__ import annotations

import csv
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from bs4 import BeautifulSoup
from capsbook import evidence, notebooks, render, runs

from capslib import papers
from capslib.lab.ledger import ledger
from capslib.papers.experiment import Deviation


@pytest.fixture
def record(make_record):
    check = papers.checks_of("negation_limitation")["NEG-T1-rba-bias"]
    experiment = papers.experiments("negation_limitation")["sign"]
    trial, *_ = experiment.trials("paper", where={"arm": check.selects[0].arms[0]}, seeds=[3])
    trial = trial.model_copy(update={"config": {**trial.config, "learning_rate": 1e-5}})
    series = {
        "epochs": [1, 2, 3],
        "train_accuracy": [0.5, 0.75, 1.0],
        "steps": [1, 9],
        "loss": [0.3, 0.1],
        "lone": [1, 1, 1, 1, 1],
    }
    deviation = Deviation(what="epochs", paper="50", ours="5", why="budget")
    return make_record(trial, series=series, deviations=[deviation])


def test_a_page_says_all_that_the_record_says(record, tmp_path):
    verdict = evidence.load(tmp_path).verdicts["NEG-T1-rba-bias"]
    html = runs.page(record, [verdict], "../../../", f"{record.key}.json")
    page = BeautifulSoup(html, "html.parser")
    assert page.h1.text == "Sign, seed 3"
    score = "../../../book/scorecard.html#claim-NEG-T1-rba-bias"
    assert page.select_one(".run-claims a")["href"] == score
    assert page.find("a", string="JSON")["href"] == f"{record.key}.json"
    cells = set()
    for row in page.select("tbody tr"):
        cells.add(tuple(cell.text for cell in row.select("td")))
    assert ("train accuracy", "0.5", "20", "fraction") in cells
    assert ("learning_rate", "1·10⁻⁵") in cells, "as the tables of a chapter have it"
    assert ("epochs", "50", "5", "budget") in cells
    assert set(record.config) <= {name for name, *_ in cells}, "every field, differing or not"
    figures = page.select("figure")
    drawn = {figure.figcaption.text: figure.svg["aria-label"] for figure in figures}
    label = "train accuracy over epochs: from 0.5 to 1, between 0.5 and 1"
    assert drawn["train accuracy"] == label
    assert drawn["loss"].startswith("loss over steps: ")
    assert drawn["lone"].startswith("lone over position: ")


def test_a_curve_leaves_out_what_is_no_number():
    infinity = float("inf")
    curve = runs.curve("a", [1, 2, 3], [1, infinity, 3], "epochs")
    assert "from 1 to 3, between 1 and 3" in curve.label
    assert runs.curve("a", [1, 2], [infinity, 3], "epochs") is None, "one point is no curve"


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
    assert "3 records" in render.standing(loaded, "negation_limitation")
    links = SimpleNamespace(file=lambda path: path)
    page = BeautifulSoup(render.draw("runs", evidence=loaded, links=links), "html.parser")
    (row,) = page.select("tbody tr")
    seeds = {link.text: link["href"] for link in row.select("a")}
    folder = "records/negation_limitation/sign"
    assert seeds == {str(seed): f"{folder}/{key}.html" for seed, key in enumerate(keys)}
    assert "3 runs, 4.5 s" in " ".join(page.summary.text.split())


def test_the_claims_as_csv(tmp_path, add_records):
    keys = add_records(tmp_path)
    verdicts = evidence.load(tmp_path).of()
    rows = {row["Claim"]: row for row in csv.DictReader(runs.claims_csv(verdicts).splitlines())}
    assert list(rows) == list(ledger())
    assert rows["NEG-T1-rba-bias"]["Records"].split() == keys
    assert rows["NEG-T1-rba-bias"]["Verdict"] == "reproduced"
    formula = {"value": None, "printed": "", "statement": "=HYPERLINK()"}
    hostile = replace(verdicts[0], claim=verdicts[0].claim.model_copy(update=formula))
    assert "'=HYPERLINK()" in runs.claims_csv([hostile]), "a spreadsheet runs no formula"


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
