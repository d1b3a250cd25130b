"""What a page says of the claims of its paper."""

from __future__ import annotations

import ast
import html
import re
from dataclasses import replace
from pathlib import Path

import jupytext
import pandas as pd
import pytest
from test_claims import answered

from capslib import papers
from capslib.errors import UserError
from capslib.lab import claims, frames
from capslib.lab.chapter import BOX, Chapter
from capslib.lab.ledger import ledger
from capslib.lab.store import Store
from capslib.lab.words import Verdict
from capslib.papers import PAPERS
from capslib.papers.negation_limitation import EXPERIMENTS, STEM

SAID = {name: f"{label}." for name, label in BOX.items()}
NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.py"))


@pytest.fixture
def chapter(store) -> Chapter:
    """Without a record."""
    return Chapter(STEM, store.root)


def answer(chapter: Chapter, monkeypatch, **ours: float) -> dict[str, Verdict]:
    """Let the chapter have these values of claims, whose names have underscores here."""
    found = chapter.told
    for name, value in ((k.replace("_", "-"), v) for k, v in ours.items()):
        found[name] = replace(found[name], ours=value, scale="cpu", status="measured")
    monkeypatch.setattr(Chapter, "told", found)
    return found


def test_a_chapter_reads_the_folder_that_the_notebook_names_and_what_was_run_meanwhile(
    store, make_record
):
    chapter, trial = Chapter(STEM, store.root), EXPERIMENTS["sign"].trials("cpu")[0]
    assert (chapter.records, chapter.every, {v.status for v in chapter.told.values()}) == (
        [],
        [],
        {"waiting", "not to be had"},
    )
    store.put(make_record(trial))
    longer = {**trial.config, "epochs": 2 * papers.fields(trial)["epochs"]}
    store.put(make_record(trial.model_copy(update={"config": longer})))
    assert [r.trial for r in chapter.records] == [trial], "and no run of twice the budget"
    assert len(chapter.every) == 2
    name, _ = answered(store)
    assert chapter.told[name].status == "reproduced"
    said = f"{{{name}:said}}, {{NEG-W-4:said}}."
    assert "reproduced, not decided yet" in chapter.verdict_box(**{**SAID, "found": said}).data
    assert "✓</a> reproduced</td></tr></tbody></table>" in chapter.table(name).data
    assert Chapter(STEM).store.root == Store().root != store.root


def test_a_page_shows_one_row_a_claim_and_folds_what_is_not_run(chapter, monkeypatch):
    name = "NEG-T1-rba-bias"
    verdict = answer(chapter, monkeypatch, NEG_T1_rba_bias=99.5)[name]
    shown = chapter.table(
        "NEG-W-9", "NEG-T1-", names={name: "a < b"}, beside={name: "7 & more"}
    ).data
    table, fold = shown.split("<details>")
    assert re.findall(r"<code>(.*?)</code>", table) == [name]
    for text in (
        "a &lt; b",
        claims.theirs(verdict),
        claims.ours(verdict),
        f">{claims.basis(verdict)}<",
        ">7 &amp; more<",
    ):
        assert text in table
    assert f'class="vq v-measured of-reduced" href="#claim-{name}"' in table
    assert "▫</a> measured</td></tr></tbody></table>" in table
    waiting = [i for i in ledger(STEM) if i.startswith("NEG-T1-") and i != name]
    assert re.findall(r"<code>(.*?)</code>", fold) == ["NEG-W-9", *waiting]
    assert f"Not run: {len(waiting)} waiting, 1 not to be had</summary>" in fold


def test_what_all_rows_rest_on_stands_in_the_head_and_on_a_phone_in_each(chapter, monkeypatch):
    """A head is hidden on a phone, and the basis of each row elsewhere; one row, or rows that differ, keep their own."""
    found = answer(chapter, monkeypatch, NEG_T1_rba_bias=99.5, NEG_T1_rba_nobias=98.5)
    pair = chapter.table("NEG-T1-rba-bias", "NEG-T1-rba-nobias").data
    assert 'class="claims same"' in pair
    assert "Ours (95 % interval)<br><small>cpu scale</small><th>" in pair
    assert pair.count('<small class="basis">cpu scale</small>') == 2
    assert 'class="claims"' in chapter.table("NEG-T1-rba-bias").data
    found["NEG-T1-rba-bias"] = replace(found["NEG-T1-rba-bias"], n=3)
    assert 'class="claims"' in chapter.table("NEG-T1-rba-bias", "NEG-T1-rba-nobias").data


def test_a_page_of_claims_that_are_not_run_is_one_line_and_an_unknown_id_an_error(chapter):
    assert "<table" not in chapter.table("NEG-W-4").data
    for wrong in ("NEG-T1", "NEG-T7-"):
        with pytest.raises(UserError, match="Unknown claim"):
            chapter.table(wrong)


def test_a_table_side_by_side_says_which_value_is_larger(chapter, monkeypatch):
    answer(chapter, monkeypatch, NEG_T1_rba_bias=99.8, NEG_T1_em_bias=98.0)
    ids = pd.DataFrame(
        {"<b>": ["NEG-T1-rba-bias", "NEG-T1-em-bias", "NEG-T1-rba-nobias"]},
        index=["rba", "em", "none"],
    )
    html = chapter.side_by_side(ids, digits=1).to_html()
    near = 'id="at-NEG-T1-rba-bias" class="cell-near">99.7 = 99.8 <a class="vq v-measured of-reduced" href="../scorecard.html#claim-'
    assert near in html
    assert 'class="cell-below">99.8 &gt; 98.0 ' in html
    assert 'id="at-NEG-T1-rba-nobias">49.6 <a class="vq v-waiting of-not-run"' in html
    assert "<b>" not in html


def test_a_table_side_by_side_has_each_seed_where_there_is_no_mean(chapter, monkeypatch):
    found = answer(chapter, monkeypatch, NEG_T1_rba_bias=99.8)
    found["NEG-T1-rba-bias"] = replace(
        found["NEG-T1-rba-bias"], ours=None, listed=(50.0, 99.85)
    )
    html = chapter.side_by_side(pd.DataFrame({"bias": ["NEG-T1-rba-bias"]}), digits=1).to_html()
    assert 'id="at-NEG-T1-rba-bias">99.7 · 50.0 / 99.8 <a class="vq' in html


def test_a_verdict_box_takes_its_numbers_and_words_from_the_ledger_and_the_records(chapter):
    told = (
        "{NEG-W-1} {NEG-T1-rba-bias:theirs} is {NEG-T1-rba-bias:verdict}; {waiting} wait & {x}."
    )
    shown = chapter.verdict_box({"x": "<b>"}, **{**SAID, "settles": told}).data
    assert re.findall(r'<p class="box-\w+"><b>(.*?)\.</b>', shown) == list(BOX.values())
    waiting = sum(not c.not_run for c in ledger(STEM).values())
    assert f"99.70\N{NO-BREAK SPACE}% is waiting; {waiting} wait &amp; &lt;b&gt;." in shown
    assert re.search(
        '<a class="claim-ref" href="#claim-NEG-W-1"[^>]*><span class="vq v-waiting of-not-run"',
        shown,
    )
    with pytest.raises(UserError, match="NEG-W-1"):
        chapter.verdict_box(**{**SAID, "found": "{NEG-W-l}"})
    with pytest.raises(TypeError, match="surprise"):
        chapter.verdict_box(found="")


@pytest.mark.parametrize(
    "missing",
    [
        "{NEG-T1-rba-bias:ours}",
        "{NEG-T1-rba-bias:basis}",
        "{NEG-W-1}",
        "{NEG-W-1:verdict}",
        "{none}",
        "{empty}",
        "{mean}",
        "{share}",
    ],
)
def test_a_sentence_of_the_box_whose_number_is_missing_is_left_out(chapter, missing):
    numbers = {
        "none": None,
        "empty": "",
        "mean": frames.mean([]),
        "share": "0 of 0",
        "there": 7,
    }
    told = f"There are {{there}}. We have ({missing}), and more. The paper has {{NEG-T1-rba-bias:theirs}}."
    shown = chapter.verdict_box(
        numbers, **{**SAID, "found": told, "size": f"It is {missing}."}
    ).data
    assert "We found.</b> There are 7. The paper has 99.70\N{NO-BREAK SPACE}%.</p>" in shown
    assert "Size and data.</b> No record here tells.</p>" in shown


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[p.stem for p in NOTEBOOKS])
def test_the_box_of_a_chapter_without_records_says_nothing_that_nobody_measured(path, tmp_path):
    names: dict[str, object] = {}
    for cell in jupytext.read(path).cells:
        if cell.cell_type == "code" and "box" not in names:
            exec(
                cell.source.replace("chapter.verdict_box(", "box = chapter.verdict_box("), names
            )
            names["results_dir"] = str(tmp_path)
    text = html.unescape(re.sub(r"<[^>]*>", "", names["box"].data))
    assert not re.search(r"\(\)|\bnan\b|None|–|not run|0 of 0|\s[,.;:)]|  ", text), text
    assert "We found. No record here tells." in text


def test_the_box_of_a_paper_without_public_code_says_so(chapter, monkeypatch):
    links = {"arXiv": "https://arxiv.org/abs/1", "public code": None}
    monkeypatch.setitem(PAPERS, STEM, replace(PAPERS[STEM], links=links))
    assert (
        '<small><a href="https://arxiv.org/abs/1">arXiv</a> · no public code</small>'
        in chapter.verdict_box(**SAID).data
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[p.stem for p in NOTEBOOKS])
def test_a_chapter_opens_with_a_verdict_box_that_types_no_number(path):
    calls = [
        n
        for n in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(n, ast.Call) and "verdict_box" in ast.dump(n.func)
    ]
    assert len(calls) == 1
    said = {k.arg: ast.literal_eval(k.value) for k in calls[0].keywords if k.arg in BOX}
    assert list(said) == list(BOX)
    for text in said.values():
        assert not re.search(r"\d", re.sub(r"\{.*?\}", "", text)), text
        sentences = re.sub(r"\{.*?\}", "X", text).split(". ")
        assert text.endswith(".")
        assert len(sentences) <= 4
        assert max(len(sentence.split()) for sentence in sentences) <= 45, text
