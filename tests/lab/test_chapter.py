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

TEXTS = {name: f"{label}." for name, label in BOX.items()}
NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.py"))
EACH_NOTEBOOK = pytest.mark.parametrize("path", NOTEBOOKS, ids=[p.stem for p in NOTEBOOKS])
BIAS, NO_BIAS, EM = "NEG-T1-rba-bias", "NEG-T1-rba-nobias", "NEG-T1-em-bias"


@pytest.fixture
def chapter(store) -> Chapter:
    """Without a record."""
    return Chapter(STEM, store.root)


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
    store, make_record
):
    chapter, sign = Chapter(STEM, store.root), EXPERIMENTS["sign"]
    assert chapter.records == chapter.all_records == []
    assert {verdict.status for verdict in chapter.verdicts.values()} == {
        "waiting",
        "not to be had",
    }
    trial = sign.trials("cpu")[0]
    epochs = 2 * papers.fields(trial)["epochs"]
    doubled = trial.model_copy(update={"config": {**trial.config, "epochs": epochs}})
    for run in (trial, doubled):
        store.put(make_record(run))
    assert [record.trial for record in chapter.records] == [trial], "no run of twice the budget"
    assert len(chapter.all_records) == 2
    name, _ = answered(store)
    assert chapter.verdicts[name].status == "reproduced"
    text = f"{{{name}:said}}, {{NEG-W-4:said}}."
    assert "reproduced, not decided yet" in chapter.verdict_box(**{**TEXTS, "found": text}).data
    assert "✓</a> reproduced</td></tr></tbody></table>" in chapter.table(name).data
    assert Chapter(STEM).store.root == Store().root != store.root


def test_a_page_shows_one_row_a_claim_and_folds_what_is_not_run(chapter, measured):
    verdict = measured({BIAS: 99.5})[BIAS]
    html = chapter.table(
        "NEG-W-9", "NEG-T1-", names={BIAS: "a < b"}, details={BIAS: "7 & more"}
    )
    table, fold = html.data.split("<details>")
    assert re.findall(r"<code>(.*?)</code>", table) == [BIAS]
    assert "a &lt; b" in table
    assert claims.theirs(verdict) in table
    assert claims.ours(verdict) in table
    assert f">{claims.basis(verdict)}<" in table
    assert ">7 &amp; more<" in table
    assert f'class="vq v-measured of-reduced" href="#claim-{BIAS}"' in table
    assert "▫</a> measured</td></tr></tbody></table>" in table
    waiting = [name for name in ledger(STEM) if name.startswith("NEG-T1-") and name != BIAS]
    assert re.findall(r"<code>(.*?)</code>", fold) == ["NEG-W-9", *waiting]
    assert f"Not run: {len(waiting)} waiting, 1 not to be had</summary>" in fold


def test_what_all_rows_rest_on_stands_in_the_head_and_on_a_phone_in_each(chapter, measured):
    """A head is hidden on a phone, and the basis of each row elsewhere.

    One row, or rows that differ, keep their own.
    """
    verdicts = measured({BIAS: 99.5, NO_BIAS: 98.5})
    pair = chapter.table(BIAS, NO_BIAS).data
    assert 'class="claims same"' in pair
    assert "Ours (95 % interval)<br><small>cpu scale</small><th>" in pair
    assert pair.count('<small class="basis">cpu scale</small>') == 2
    assert 'class="claims"' in chapter.table(BIAS).data
    verdicts[BIAS] = replace(verdicts[BIAS], n=3)
    assert 'class="claims"' in chapter.table(BIAS, NO_BIAS).data


def test_a_page_of_claims_that_are_not_run_is_one_line_and_an_unknown_id_an_error(chapter):
    assert "<table" not in chapter.table("NEG-W-4").data
    for wrong in ("NEG-T1", "NEG-T7-"):
        with pytest.raises(UserError, match="Unknown claim"):
            chapter.table(wrong)


def test_a_table_side_by_side_says_which_value_is_larger(chapter, measured):
    verdicts = measured({BIAS: 99.8, EM: 98.0})
    verdicts[NO_BIAS] = replace(verdicts[NO_BIAS], listed=(50.0, 99.85))
    ids = pd.DataFrame({"<b>": [BIAS, EM, NO_BIAS, "NEG-T1-em-nobias"]})
    html = chapter.side_by_side(ids, digits=1).to_html()
    link = '<a class="vq v-measured of-reduced" href="../scorecard.html#claim-'
    assert f'id="at-{BIAS}" class="cell-near">99.7 = 99.8 {link}' in html
    assert 'class="cell-below">99.8 &gt; 98.0 ' in html
    assert f'id="at-{NO_BIAS}">49.6 · 50.0 / 99.8 <a class="vq' in html
    assert re.search(r'id="at-NEG-T1-em-nobias">[\d.]+ <a class="vq v-waiting', html)
    assert "<b>" not in html


def test_a_verdict_box_takes_its_numbers_and_words_from_the_ledger_and_the_records(chapter):
    text = (
        "{NEG-W-1} {NEG-T1-rba-bias:theirs} is {NEG-T1-rba-bias:verdict}; {waiting} wait & {x}."
    )
    html = chapter.verdict_box({"x": "<b>"}, **{**TEXTS, "settles": text}).data
    assert re.findall(r'<p class="box-\w+"><b>(.*?)\.</b>', html) == list(BOX.values())
    waiting = sum(not claim.not_run for claim in ledger(STEM).values())
    assert f"99.70\N{NO-BREAK SPACE}% is waiting; {waiting} wait &amp; &lt;b&gt;." in html
    square = '<span class="vq v-waiting of-not-run"'
    assert re.search(f'<a class="claim-ref" href="#claim-NEG-W-1"[^>]*>{square}', html)
    with pytest.raises(UserError, match="NEG-W-1"):
        chapter.verdict_box(**{**TEXTS, "found": "{NEG-W-l}"})
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
    numbers = dict(none=None, empty="", mean=frames.mean([]), share="0 of 0", count=7)
    text = (
        f"There are {{count}}. We have ({missing}). The paper has {{NEG-T1-rba-bias:theirs}}."
    )
    texts = {**TEXTS, "found": text, "size": f"It is {missing}."}
    html = chapter.verdict_box(numbers, **texts).data
    assert "We found.</b> There are 7. The paper has 99.70\N{NO-BREAK SPACE}%.</p>" in html
    assert "Size and data.</b> No record here tells.</p>" in html


@EACH_NOTEBOOK
def test_the_box_of_a_chapter_without_records_says_nothing_that_nobody_measured(path, tmp_path):
    """Run the first code cells of a notebook, up to the one with its box."""
    names: dict[str, object] = {}
    for cell in jupytext.read(path).cells:
        if cell.cell_type == "code" and "box" not in names:
            code = cell.source.replace("chapter.verdict_box(", "box = chapter.verdict_box(")
            exec(code, names)
            names["results_dir"] = str(tmp_path)
    text = html.unescape(re.sub(r"<[^>]*>", "", names["box"].data))
    assert not re.search(r"\(\)|\bnan\b|None|–|not run|0 of 0|\s[,.;:)]|  ", text), text
    assert "We found. No record here tells." in text


def test_the_box_of_a_paper_without_public_code_says_so(chapter, monkeypatch):
    links = {"arXiv": "https://arxiv.org/abs/1", "public code": None}
    monkeypatch.setitem(PAPERS, STEM, replace(PAPERS[STEM], links=links))
    assert (
        '<small><a href="https://arxiv.org/abs/1">arXiv</a> · no public code</small>'
        in chapter.verdict_box(**TEXTS).data
    )


@EACH_NOTEBOOK
def test_a_chapter_opens_with_a_verdict_box_that_types_no_number(path):
    calls = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and "verdict_box" in ast.dump(node.func):
            calls.append(node)
    (call,) = calls
    texts = {k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg in BOX}
    assert list(texts) == list(BOX)
    for text in texts.values():
        assert not re.search(r"\d", re.sub(r"\{.*?\}", "", text)), text
        sentences = re.sub(r"\{.*?\}", "X", text).split(". ")
        assert text.endswith(".")
        assert len(sentences) <= 4
        assert max(len(sentence.split()) for sentence in sentences) <= 45, text
