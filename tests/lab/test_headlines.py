"""Headlines: what an abstract claims has a verdict in words, computed from its rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up import ORDER, number

from capslib.errors import UserError
from capslib.lab import headlines
from capslib.lab.headlines import Headline, in_words, judged, of_claim, rows_of
from capslib.lab.words import BASELINES, CAPSULES, GROUPS, IN_PART, REDUCED, Verdict
from capslib.papers import STEMS


def verdict(status: str, **fields: object) -> Verdict:
    """Return a verdict at the papers' own size if it has such words, else at cpu scale."""
    scale = "cpu" if status in GROUPS[REDUCED] else "paper"
    return Verdict(**{"claim": ORDER, "status": status, "reason": "", "scale": scale, **fields})


def test_each_paper_has_three_to_six_headlines_of_a_sentence():
    all_headlines = headlines.headlines()
    counts = Counter(headline.paper for headline in all_headlines)
    assert set(counts) == set(STEMS)
    assert set(counts.values()) <= {3, 4, 5, 6}
    for headline in all_headlines:
        assert headline.sentence.endswith("."), headline.id
        assert len(headline.sentence.split()) <= 25, headline.id


def test_a_claim_knows_the_headlines_that_it_carries():
    assert of_claim("SP-W-2") == ["SP-H-dense", "SP-H-sparse"]
    assert of_claim("EM-T1-margin") == []


PARTS = (verdict("same order"), verdict("undecided"))
REPRODUCED = verdict("reproduced", claim=number(1))
BETTER = verdict("better", claim=number(1))
MEASURED = verdict("measured", claim=number(1))
NO_TEST = "Not yet tested at full size."
WORDS = {
    "At full size: all 4 numbers are reproduced.": [REPRODUCED] * 4,
    "At full size: 3 of 4 numbers are reproduced, 1 is better.": [*[REPRODUCED] * 3, BETTER],
    f"{NO_TEST} Measured in small networks, which decides no numbers.": [MEASURED] * 3,
    f"{NO_TEST} In small networks: undecided.": [MEASURED, verdict("undecided")],
    f"{NO_TEST} In small networks: 1 of 2 parts holds, 1 is undecided.": [
        verdict("holds in part", parts=PARTS, scale="cpu")
    ],
    f"{NO_TEST} In small networks: both parts are undecided.": [
        verdict("undecided", name=side, scale="cpu") for side in ("left", "right")
    ],
    f"{NO_TEST} In small networks: 2 of 3 claims have the same order, 1 is undecided.": [
        *[verdict("same order")] * 2,
        verdict("undecided"),
    ],
    f"{NO_TEST} By a test of the code: 1 of its 2 claims holds. In small networks: "
    "1 of its 2 claims is undecided.": [verdict("holds", exact=True), verdict("undecided")],
    "By a test of the code: both claims hold.": [verdict("holds", exact=True)] * 2,
    "Its baseline at full size: inconclusive.": [verdict("inconclusive", baseline=True)],
    "At full size, but on other data than the paper's: same order.": [
        verdict("same order", scale="paper", partial=True)
    ],
    "At full size, 1 of its 2 claims is tested: 1 is reproduced.": [
        verdict("reproduced"),
        verdict("waiting"),
    ],
    "The paper contradicts itself in one of the numbers.": [verdict("erratum")],
    "Not run.": [verdict("quoted")],
}


@pytest.mark.parametrize("words", WORDS)
def test_the_words_of_a_headline(words):
    assert in_words(WORDS[words]) == words


def verdicts_of(group: str, **fields: object) -> st.SearchStrategy[Verdict]:
    words = [word for word in GROUPS[group] if word not in IN_PART]
    return st.sampled_from([verdict(word, **fields) for word in words])


EVERY_SIZE = (
    verdicts_of(CAPSULES) | verdicts_of(BASELINES, baseline=True) | verdicts_of(REDUCED)
)


@given(st.lists(EVERY_SIZE, min_size=1))
def test_no_headline_speaks_of_full_size_without_a_capsule_network_of_that_size(rows):
    groups = {row.group for row in rows}
    assert in_words(rows).startswith("At full size") == (CAPSULES in groups)
    if REDUCED in groups:
        assert (NO_TEST in in_words(rows)) == (CAPSULES not in groups)


def test_a_row_may_be_some_parts_of_a_claim():
    lstm = replace(PARTS[0], name="the LSTM")
    headline = Headline("X", ORDER.paper, "It is so.", (f"{ORDER.id}[LSTM]",))
    verdicts = {ORDER.id: verdict("undecided", parts=(lstm, PARTS[1]))}
    assert rows_of(headline, verdicts) == [lstm]


def test_headlines_are_judged_for_the_papers_that_are_asked_for():
    assert {headline.paper for headline in judged([verdict("same order")])} == {ORDER.paper}


@pytest.mark.parametrize("row", ["LR-T9-*", "LR-W-1[LTSM]"])
def test_a_row_that_names_no_claim_is_answered(tmp_path, monkeypatch, row):
    table = f"id,paper,sentence,rows\nX,learned_routing,It is so.,LR-W-1|{row}\n"
    (tmp_path / "headlines.csv").write_text(table)
    monkeypatch.setattr(headlines, "LEDGER", tmp_path)
    with pytest.raises(UserError, match=r"X names 'LR.*', which is no claim"):
        headlines.headlines.__wrapped__()
