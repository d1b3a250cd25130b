"""A run as a page, the list of runs, what a chapter gives to the front page, and the claims as files."""

from __future__ import annotations

import csv
import json
import os
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup
from capsbook import evidence, notebooks, runs

from capslib import papers
from capslib.lab import claims
from capslib.lab.ledger import ledger
from capslib.papers.experiment import Deviation


@pytest.fixture
def record(make_record):
    query = papers.queries("negation_limitation")["NEG-T1-rba-bias"]
    experiment = papers.experiments("negation_limitation")["sign"]
    trial, *_ = experiment.trials(
        "paper", where=query.select.where or {"arm": query.select.arm}, seeds=[3]
    )
    trial = trial.model_copy(update={"config": {**trial.config, "learning_rate": 1e-5}})
    curves = {
        "epochs": [1, 2, 3],
        "train_accuracy": [0.5, 0.75, 1.0],
        "steps": [1, 9],
        "loss": [0.3, 0.1],
        "lone": [1, 1, 1, 1, 1],
    }
    return make_record(
        trial,
        series=curves,
        deviations=[Deviation(what="epochs", paper="50", ours="5", why="budget")],
    )


def test_a_page_says_all_that_the_record_says(record, tmp_path):
    verdict = evidence.load(tmp_path).verdicts["NEG-T1-rba-bias"]
    page = BeautifulSoup(
        runs.page(record, [verdict], "../../../", f"{record.key}.json"), "html.parser"
    )
    assert page.h1.text == "Sign, seed 3"
    assert (
        page.select_one(".run-claims a")["href"]
        == "../../../book/scorecard.html#claim-NEG-T1-rba-bias"
    )
    assert page.find("a", string="JSON")["href"] == f"{record.key}.json"
    cells = {tuple(td.text for td in tr.select("td")) for tr in page.select("tbody tr")}
    assert ("train accuracy", "0.5", "20", "fraction") in cells
    assert ("learning_rate", "1·10⁻⁵") in cells, "as the tables of a chapter have it"
    assert ("epochs", "50", "5", "budget") in cells
    named = {name for name, *_ in cells}
    assert set(record.config) <= named, "every field, differing or not"
    drawn = {
        figure.figcaption.text: figure.svg["aria-label"] for figure in page.select("figure")
    }
    assert (
        drawn["train accuracy"]
        == "train accuracy over epochs: from 0.5 to 1, between 0.5 and 1"
    )
    assert drawn["loss"].startswith("loss over steps: ")
    assert drawn["lone"].startswith("lone over position: ")


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.write_text("{}")])
def test_pages_have_the_same_evidence_beside_a_file_that_is_no_record(
    tmp_path, add_records, make, caplog
):
    keys = add_records(tmp_path)
    sound = evidence.load(tmp_path)
    path = sound.records[keys[0]].with_name("0123456789abcdef.json")
    make(path)
    found = evidence.load(tmp_path)
    assert path.name in caplog.text
    assert set(found.records) == set(keys)
    assert (found.fingerprint, found.newest()) == (sound.fingerprint, sound.newest())


def test_a_curve_leaves_out_what_is_no_number():
    assert "from 1 to 3, between 1 and 3" in runs.curve(
        "a", [1, 2, 3], [1, float("inf"), 3], "epochs"
    )
    assert runs.curve("a", [1, 2], [float("inf"), 3], "epochs") == "", "one point is no curve"


def test_the_list_has_a_row_for_each_configuration_and_a_link_for_each_seed(
    tmp_path, add_records
):
    keys = add_records(tmp_path)
    found = evidence.load(tmp_path)
    page = BeautifulSoup(
        runs.listing(found.runs, {key: f"records/{key}.html" for key in keys}), "html.parser"
    )
    (row,) = page.select("tbody tr")
    assert [(a.text, a["href"]) for a in row.select("a")] == [
        (str(n), f"records/{key}.html") for n, key in enumerate(keys)
    ]
    assert "3 runs, 4.5 s" in page.summary.text


def test_the_claims_as_files(tmp_path, add_records):
    keys = add_records(tmp_path)
    found = evidence.load(tmp_path).of()
    rows = list(csv.DictReader(runs.claims_csv(found).splitlines()))
    assert [row["Claim"] for row in rows] == list(ledger())
    (row,) = (row for row in rows if row["Claim"] == "NEG-T1-rba-bias")
    assert row["Records"].split() == keys
    assert row["Verdict"] == "reproduced"
    hostile = replace(
        found[0],
        claim=found[0].claim.model_copy(
            update={"value": None, "printed": "", "statement": "=HYPERLINK()"}
        ),
    )
    assert "'=HYPERLINK()" in runs.claims_csv([hostile]), (
        "a spreadsheet runs no formula of a ledger"
    )
    assert json.loads(claims.to_json(found))[0]["id"] == found[0].claim.id


def test_a_chapter_gives_its_sentences_and_pictures_to_the_front_page(tmp_path):
    def cell(tags, **data):
        output = nbformat.v4.new_output(
            "display_data", {k.replace("_", "/"): v for k, v in data.items()}
        )
        about = {"tags": tags, "mystnb": {"image": {"alt": "Dots."}}}
        return nbformat.v4.new_code_cell("x", outputs=[output], metadata=about)

    box = '<div class="verdict-box"><p class="box-claim"><b>They claim.</b> A.</p><p class="box-found"><b>We found.</b> <i>B</i>.</p></div>'
    svg = {"image_svg+xml": "<svg/>"}
    cells = [
        cell([], text_html=box),
        cell(["front-found"], **svg),
        cell(["thumbnail"], **{"image_svg+xml": '<svg width="500pt"/>'}),
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "n.ipynb")
    assert notebooks.front(tmp_path / "n.ipynb") == {
        "found": ("<i>B</i>.", ("Dots.", "<svg/>", "", False)),
        "thumbnail": ("", ("Dots.", '<svg width="500pt"/>', "", True)),
    }
    assert notebooks.front(tmp_path / "gone.ipynb") == {}
