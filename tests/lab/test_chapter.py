"""What a page says of the claims of its paper."""

from __future__ import annotations

import re
from dataclasses import replace

import pandas as pd
import pytest

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
    chapter, store, make_record, add_records
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
    assert "✓</a> reproduced</td></tr></tbody></table>" in chapter.table(BIAS).data
    assert Chapter(STEM).store.root == Store().root


def test_a_page_shows_one_row_a_claim_and_folds_what_is_not_run(chapter, measured):
    verdict = measured({BIAS: 99.5})[BIAS]
    page = chapter.table("NEG-W-9", "NEG-T1-", names={BIAS: "a < b"}, details={BIAS: "7 & 8"})
    table, fold = page.data.split("<details>")
    assert re.findall(r"<code>(.*?)</code>", table) == [BIAS]
    for text in ("a &lt; b", claims.theirs(verdict), claims.ours(verdict), ">7 &amp; 8<"):
        assert text in table
    assert f'class="vq v-measured of-reduced" href="#claim-{BIAS}"' in table
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
    assert "Ours (95 % interval)<br><small>small networks</small><th>" in pair
    assert pair.count('<small class="basis">small networks</small>') == 2
    verdicts[BIAS] = replace(verdicts[BIAS], n=3)
    assert 'class="claims"' in chapter.table(BIAS, NO_BIAS).data


@pytest.mark.parametrize("name", ["NEG-T1", "NEG-T7-"])
def test_an_unknown_claim_is_an_error(chapter, name):
    with pytest.raises(UserError, match="Unknown claim"):
        chapter.table(name)


def test_a_table_of_the_paper_has_its_value_over_ours(chapter, measured):
    verdicts = measured({BIAS: 99.8, EM: 98.0})
    verdicts[NO_BIAS] = replace(verdicts[NO_BIAS], listed=(50.0, 99.85))
    table = pd.DataFrame({"<b>": [BIAS, EM, NO_BIAS, "NEG-T1-em-nobias", "two <layers>"]})
    html = chapter.side_by_side(table, digits=1).to_html()
    link = '<a class="vq v-measured of-reduced" href="../scorecard.html#claim-'
    printed, below = '<span class="printed">', '</span><span class="measured">'
    assert f'id="at-{BIAS}" class="cell">{printed}99.7{below}99.8 {link}' in html
    assert f'class="cell">{printed}99.8{below}98.0 ' in html
    assert f'id="at-{NO_BIAS}" class="cell">{printed}49.6{below}50.0 / 99.8 <a' in html
    assert f"{below}<a" in html
    assert "two &lt;layers&gt;" in html
    assert "<b>" not in html
    at_full_size = replace(verdicts[BIAS], status="reproduced", scale="paper")
    verdicts[BIAS] = at_full_size
    html = chapter.side_by_side(table, digits=1).to_html()
    assert f'id="at-{BIAS}" class="cell near">{printed}99.7{below}99.8 <a' in html
