"""Headlines: what an abstract claims has a verdict in words, computed from those on its rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capslib.errors import UserError
from capslib.lab import headlines
from capslib.lab.headlines import Headline, in_words, judged, of_claim, rows_of
from capslib.lab.ledger import ledger
from capslib.lab.words import BASELINES, CAPSULES, GROUPS, IN_PART, REDUCED, Verdict
from capslib.papers import STEMS

CLAIM, NUMBER = ledger()["NEG-W-4"], ledger()["NEG-T1-rba-bias"]


def verdict(status: str, *, parts: tuple[str, ...] = (), **more) -> Verdict:
    scale = {"scale": "cpu"} if status in GROUPS[REDUCED] else {"scale": "paper"}
    inside = tuple(
        Verdict(CLAIM, part, "", name=f"part {k}", **scale) for k, part in enumerate(parts)
    )
    return Verdict(
        **{"claim": CLAIM, "status": status, "reason": "", "parts": inside, **scale, **more}
    )


def test_each_paper_has_three_to_six_headlines_with_rows_of_its_own():
    for stem in STEMS:
        found = [headline for headline in headlines.headlines() if headline.paper == stem]
        assert 3 <= len(found) <= 6, stem
        for headline in found:
            assert headline.sentence.endswith("."), headline.id
            assert len(headline.sentence.split()) <= 25, headline.id
    ids = [headline.id for headline in headlines.headlines()]
    assert len(ids) == len(set(ids))


def test_a_claim_knows_the_headlines_that_it_carries():
    assert of_claim("SP-W-2") == ["SP-H-dense", "SP-H-sparse"]
    assert of_claim("NEG-T1-rba-bias") == ["NEG-H-sign"]
    assert of_claim("EM-T1-margin") == []


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([verdict("reproduced")], "At full size: reproduced."),
        ([verdict("reproduced")] * 4, "At full size: all 4 reproduced."),
        (
            [verdict("reproduced")] * 3 + [verdict("better")],
            "At full size: 3 of 4 reproduced, 1 better.",
        ),
        (
            [verdict("same order")],
            "Not yet tested at full size. In a reduced setting: same order.",
        ),
        (
            [verdict("measured")] * 3,
            "Not yet tested at full size. In a reduced setting: measured, which decides nothing.",
        ),
        (
            [verdict("measured"), verdict("undecided")],
            "Not yet tested at full size. In a reduced setting: undecided.",
        ),
        (
            [verdict("holds in part", parts=("same order", "undecided"), scale="cpu")],
            "Not yet tested at full size. In a reduced setting: 1 of 2 parts holds, 1 is undecided.",
        ),
        ([verdict("holds", exact=True)] * 2, "By a test: both hold."),
        (
            [verdict("reproduced", claim=NUMBER)] * 3 + [verdict("better", claim=NUMBER)],
            "At full size: 3 of 4 numbers reproduced, 1 better.",
        ),
        ([verdict("inconclusive", baseline=True)], "Its baseline at full size: inconclusive."),
        (
            [verdict("same order", scale="paper", partial=True)],
            "At full size, on data that are a part of the paper's or stand in for them: same order.",
        ),
        (
            [verdict("reproduced", claim=NUMBER)] * 2 + [verdict("measured", claim=NUMBER)] * 4,
            "At full size, 2 of 6 numbers: 2 reproduced. In a reduced setting: measured, which decides nothing.",
        ),
        (
            [verdict("reproduced"), verdict("waiting", scale=None)],
            "At full size, 1 of 2 claims: 1 reproduced.",
        ),
        (
            [verdict("erratum", scale=None)],
            "The paper contradicts itself in one of the numbers.",
        ),
        ([verdict("waiting", scale=None)], "Not yet tested at full size."),
        ([verdict("quoted", scale=None)], "Not run."),
    ],
)
def test_the_words_of_a_headline(rows, words):
    assert in_words(rows) == words


every_verdict = st.one_of(
    st.sampled_from([s for s in GROUPS[CAPSULES] if s not in IN_PART]).map(verdict),
    st.sampled_from([s for s in GROUPS[BASELINES] if s not in IN_PART]).map(
        lambda s: verdict(s, baseline=True)
    ),
    st.sampled_from([s for s in GROUPS[REDUCED] if s not in IN_PART]).map(verdict),
)


@given(st.lists(every_verdict, min_size=1))
def test_no_headline_speaks_of_full_size_without_a_capsule_network_of_that_size(rows):
    words = in_words(rows)
    assert words.startswith(("At full size:", "At full size, ")) == any(
        row.group == CAPSULES for row in rows
    )
    assert ("Not yet tested at full size" in words) == (
        not any(row.group == CAPSULES for row in rows)
        and any(row.group == REDUCED for row in rows)
    )


def test_a_row_may_be_some_parts_of_a_claim():
    whole = replace(
        verdict("undecided"),
        parts=(replace(verdict("same order"), name="the LSTM"), verdict("undecided")),
    )
    headline = Headline("X", CLAIM.paper, "It is so.", (f"{CLAIM.id}[LSTM]",))
    assert [part.name for part in rows_of(headline, {CLAIM.id: whole})] == ["the LSTM"]


def test_headlines_are_judged_for_the_papers_that_are_asked_for():
    (first, *_) = judged([verdict("same order")])
    assert first.paper == CLAIM.paper
    assert {headline.paper for headline in judged([verdict("same order")])} == {CLAIM.paper}


def test_a_row_that_names_no_claim_is_answered(tmp_path, monkeypatch):
    (tmp_path / "headlines.csv").write_text(
        "id,paper,sentence,rows\nX,em_routing,It is so.,EM-T1-iter3|EM-T9-*\n", encoding="utf-8"
    )
    monkeypatch.setattr(headlines, "LEDGER", tmp_path)
    with pytest.raises(UserError, match="X names 'EM-T9-\\*', which is no claim of em_routing"):
        headlines.headlines.__wrapped__()
    (tmp_path / "headlines.csv").write_text(
        "id,paper,sentence,rows\nX,learned_routing,It is so.,LR-W-1[LTSM]\n", encoding="utf-8"
    )
    with pytest.raises(UserError, match=r"X names 'LR-W-1\[LTSM\]'"):
        headlines.headlines.__wrapped__()
