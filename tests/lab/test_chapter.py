"""What a page says of the claims of its paper."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from bs4 import BeautifulSoup, Tag
from helpers import make_record

from capslib import papers
from capslib.errors import UserError
from capslib.lab import claims
from capslib.lab.chapter import Chapter
from capslib.lab.ledger import ledger
from capslib.lab.store import Store
from capslib.lab.words import Verdict
from capslib.papers.negation_limitation import EXPERIMENTS, STEM

BIAS, NO_BIAS, EM = "NEG-T1-rba-bias", "NEG-T1-rba-nobias", "NEG-T1-em-bias"


@pytest.fixture
def chapter(store) -> Chapter:
    """Without a record."""
    return Chapter(STEM, store.root)


def soup(html: str) -> BeautifulSoup:
    return BeautifulSoup(html, "html.parser")


def ids(page: Tag) -> list[str]:
    """Return the ids of claims on a page."""
    return [code.text for code in page.select("code")]


@pytest.fixture
def measured(chapter, monkeypatch):
    """``measured({"NEG-T1-rba-bias": 99.5})``: let the chapter have these values of claims."""

    def answer(values: dict[str, float]) -> dict[str, Verdict]:
        verdicts = chapter.verdicts
        for name, value in values.items():
            verdicts[name] = replace(verdicts[name], ours=value, scale="cpu", status="measured")
        monkeypatch.setattr(Chapter, "verdicts", verdicts)
        return verdicts

    return answer


def test_a_chapter_reads_the_folder_that_the_notebook_names_and_what_was_run_meanwhile(
    chapter, store, add_records
):
    assert chapter.records == []
    assert chapter.verdicts[BIAS].status == "waiting"
    trial = EXPERIMENTS["sign"].trials("cpu")[0]
    config = {**trial.config, "epochs": 2 * papers.fields(trial)["epochs"]}
    doubled = trial.model_copy(update={"config": config})
    store.put(make_record(trial))
    store.put(make_record(doubled))
    assert [record.trial for record in chapter.records] == [trial], "a seed counts once"
    assert len(chapter.all_records) == 2
    add_records(store.root)
    assert chapter.verdicts[BIAS].status == "reproduced"
    (row,) = soup(chapter.table(BIAS).data).tbody.select("tr")
    assert row.select("td")[-1].text.strip() == "✓ reproduced"
    assert Chapter(STEM).store.root == Store().root


def test_a_page_shows_one_row_a_claim_and_folds_what_is_not_run(chapter, measured):
    verdict = measured({BIAS: 99.5})[BIAS]
    page = chapter.table("NEG-W-9", "NEG-T1-", names={BIAS: "a < b"})
    table = soup(page.data)
    fold = table.details.extract()
    assert ids(table) == [BIAS]
    for text in ("a < b", claims.theirs(verdict), claims.ours(verdict)):
        assert text in table.text
    assert table.select_one("a.vq.v-measured.of-reduced")["href"] == f"#claim-{BIAS}"
    waiting = [name for name in ledger(STEM) if name.startswith("NEG-T1-") and name != BIAS]
    assert ids(fold) == ["NEG-W-9", *waiting]
    assert fold.summary.text == f"Not run: {len(waiting)} waiting, 1 not to be had"


def test_what_all_rows_rest_on_stands_in_the_head_and_on_a_phone_in_each(chapter, measured):
    """A head is hidden on a phone, and the basis of each row elsewhere.

    One row, or rows that differ, keep their own.
    """
    verdicts = measured({BIAS: 99.5, NO_BIAS: 98.5})
    pair = soup(chapter.table(BIAS, NO_BIAS).data)
    assert pair.table["class"] == ["claims", "same"]
    assert "Ours (95 % interval)|small networks|" in pair.thead.get_text("|")
    assert pair.thead.small.text == "small networks"
    bases = [basis.text for basis in pair.tbody.select(".basis")]
    assert bases == 2 * ["small networks"]
    verdicts[BIAS] = replace(verdicts[BIAS], n=3)
    assert soup(chapter.table(BIAS, NO_BIAS).data).table["class"] == ["claims"]


@pytest.mark.parametrize("name", ["NEG-T1", "NEG-T7-"])
def test_an_unknown_claim_is_an_error(chapter, name):
    with pytest.raises(UserError, match="Unknown claim"):
        chapter.table(name)


def cells_of(chapter: Chapter, table: pd.DataFrame) -> list[Tag]:
    """Return the cells of a table of the paper with our values in it."""
    page = soup(chapter.side_by_side(table, digits=1).to_html())
    assert not page.select("b")
    return [cell.select_one(".cell") or cell for cell in page.select("tbody td")]


def both_values(cell: Tag) -> tuple[str, str]:
    """Return the paper's value in a cell, and ours without its square."""
    measured = cell.select_one(".measured")
    square = measured.select_one("a.vq")
    return cell.select_one(".printed").text, measured.text.removesuffix(square.text).strip()


def test_a_table_of_the_paper_has_its_value_over_ours(chapter, measured):
    verdicts = measured({BIAS: 99.8, EM: 98.0})
    verdicts[NO_BIAS] = replace(verdicts[NO_BIAS], by_seed=(50.0, 99.85))
    table = pd.DataFrame(
        {"<b>": [BIAS, EM, NO_BIAS, "NEG-T1-em-nobias", "two <layers>", "NEG-W-1"]}
    )
    cells = cells_of(chapter, table)
    first = cells[0]
    assert (first["id"], first["class"]) == (f"at-{BIAS}", ["cell"])
    assert both_values(first) == ("99.7", "99.8")
    assert first.select_one("a.vq.v-measured.of-reduced")["href"] == (
        f"../scorecard.html#claim-{BIAS}"
    )
    assert both_values(cells[1]) == ("99.8", "98.0")
    assert cells[2]["id"] == f"at-{NO_BIAS}"
    assert both_values(cells[2]) == ("49.6", "50.0 / 99.8")
    assert both_values(cells[3])[1] == "", "a square alone"
    assert [cell.text for cell in cells[4:]] == ["two <layers>", "NEG-W-1"], "as they are"
    verdicts[BIAS] = replace(verdicts[BIAS], status="reproduced", scale="paper")
    first = cells_of(chapter, table)[0]
    assert first["class"] == ["cell", "near"]
    assert both_values(first) == ("99.7", "99.8")
