"""Headlines: what an abstract claims has a verdict in words, computed from its rows."""

from __future__ import annotations

from collections import Counter
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


def verdict(status: str, **fields: object) -> Verdict:
    """A verdict at the papers' own size if it has such words, else at cpu scale."""
    scale = "cpu" if status in GROUPS[REDUCED] else "paper"
    return Verdict(**{"claim": CLAIM, "status": status, "reason": "", "scale": scale, **fields})


def test_each_paper_has_three_to_six_headlines_in_sentences_of_their_own():
    all_headlines = headlines.headlines()
    assert set(Counter(headline.paper for headline in all_headlines)) == set(STEMS)
    assert set(Counter(headline.paper for headline in all_headlines).values()) <= {3, 4, 5, 6}
    assert len({headline.id for headline in all_headlines}) == len(all_headlines)
    for headline in all_headlines:
        assert headline.sentence.endswith("."), headline.id
        assert len(headline.sentence.split()) <= 25, headline.id


def test_a_claim_knows_the_headlines_that_it_carries():
    assert of_claim("SP-W-2") == ["SP-H-dense", "SP-H-sparse"]
    assert of_claim("NEG-T1-rba-bias") == ["NEG-H-sign"]
    assert of_claim("EM-T1-margin") == []


PARTS = (verdict("same order"), verdict("undecided"))
REPRODUCED = verdict("reproduced", claim=NUMBER)
MEASURED = verdict("measured", claim=NUMBER)
NO_TEST = "Not yet tested at full size."
WORDS = {
    "At full size: reproduced.": [verdict("reproduced")],
    "At full size: all 4 reproduced.": [verdict("reproduced")] * 4,
    "At full size: 3 of 4 numbers reproduced, 1 better.": [
        *[REPRODUCED] * 3,
        verdict("better", claim=NUMBER),
    ],
    f"{NO_TEST} In a reduced setting: same order.": [verdict("same order")],
    f"{NO_TEST} In a reduced setting: measured, which decides nothing.": [MEASURED] * 3,
    f"{NO_TEST} In a reduced setting: undecided.": [MEASURED, verdict("undecided")],
    f"{NO_TEST} In a reduced setting: 1 of 2 parts holds, 1 is undecided.": [
        verdict("holds in part", parts=PARTS, scale="cpu")
    ],
    "By a test: both hold.": [verdict("holds", exact=True)] * 2,
    "Its baseline at full size: inconclusive.": [verdict("inconclusive", baseline=True)],
    "At full size, on data that are a part of the paper's or stand in for them: same order.": [
        verdict("same order", scale="paper", partial=True)
    ],
    "At full size, 2 of 6 numbers: 2 reproduced. In a reduced setting: measured, which decides "
    "nothing.": [*[REPRODUCED] * 2, *[MEASURED] * 4],
    "At full size, 1 of 2 claims: 1 reproduced.": [verdict("reproduced"), verdict("waiting")],
    "The paper contradicts itself in one of the numbers.": [verdict("erratum")],
    NO_TEST: [verdict("waiting")],
    "Not run.": [verdict("quoted")],
}


@pytest.mark.parametrize("words", WORDS)
def test_the_words_of_a_headline(words):
    assert in_words(WORDS[words]) == words


def whole(group: str, **fields: object) -> st.SearchStrategy[Verdict]:
    words = [word for word in GROUPS[group] if word not in IN_PART]
    return st.sampled_from([verdict(word, **fields) for word in words])


@given(st.lists(whole(CAPSULES) | whole(BASELINES, baseline=True) | whole(REDUCED), min_size=1))
def test_no_headline_speaks_of_full_size_without_a_capsule_network_of_that_size(rows):
    words, groups = in_words(rows), {row.group for row in rows}
    assert words.startswith(("At full size:", "At full size, ")) == (CAPSULES in groups)
    untested = REDUCED in groups and CAPSULES not in groups
    assert ("Not yet tested at full size" in words) == untested


def test_a_row_may_be_some_parts_of_a_claim():
    lstm = replace(PARTS[0], name="the LSTM")
    headline = Headline("X", CLAIM.paper, "It is so.", (f"{CLAIM.id}[LSTM]",))
    verdicts = {CLAIM.id: verdict("undecided", parts=(lstm, PARTS[1]))}
    assert rows_of(headline, verdicts) == [lstm]


def test_headlines_are_judged_for_the_papers_that_are_asked_for():
    assert {headline.paper for headline in judged([verdict("same order")])} == {CLAIM.paper}


@pytest.mark.parametrize(
    ("paper", "rows", "wrong"),
    [
        ("em_routing", "EM-T1-iter3|EM-T9-*", r"EM-T9-\*"),
        ("learned_routing", "LR-W-1[LTSM]", r"LR-W-1\[LTSM\]"),
    ],
)
def test_a_row_that_names_no_claim_is_answered(tmp_path, monkeypatch, paper, rows, wrong):
    table = f"id,paper,sentence,rows\nX,{paper},It is so.,{rows}\n"
    (tmp_path / "headlines.csv").write_text(table, encoding="utf-8")
    monkeypatch.setattr(headlines, "LEDGER", tmp_path)
    with pytest.raises(UserError, match=f"X names '{wrong}', which is no claim of {paper}"):
        headlines.headlines.__wrapped__()
