"""Headlines: what a paper claims in its abstract and conclusion, and our verdict in words."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from capslib.errors import UserError
from capslib.lab.ledger import LEDGER, ledger, read_rows
from capslib.lab.words import (
    BASELINES,
    CAPSULES,
    ERRATA,
    EXACT,
    IN_PART,
    OTHER_DATA,
    REDUCED,
    Status,
    Verdict,
    tally,
)
from capslib.papers import checks_of
from capslib.papers.check import AtLeast


@dataclass(frozen=True)
class Headline:
    """A claim of a paper's abstract or conclusion, in a sentence that a newcomer understands.

    ``rows`` names rows of the ledger: ``NEG-T1-*`` stands for all ids that start so, and
    ``LR-W-1[LSTM]`` for the parts of a claim whose names contain this word. ``verdict`` is
    empty until :func:`judged` has computed it.
    """

    id: str
    paper: str
    sentence: str
    rows: tuple[str, ...]
    verdict: str = ""


@functools.cache
def headlines() -> tuple[Headline, ...]:
    """Read the headlines of all papers, in their order.

    Raises :class:`UserError` for a row that names no claim of its paper.
    """
    path = LEDGER / "headlines.csv"
    result = []
    for line, fields in read_rows(path, ("id", "paper", "sentence", "rows")):
        paper = fields["paper"]
        rows = tuple(fields["rows"].split("|"))
        for row in rows:
            if not _names_a_claim(row, paper):
                raise UserError(
                    f"{line}: {fields['id']} names {row!r}, which is no claim of {paper}."
                )
        result.append(Headline(fields["id"], paper, fields["sentence"], rows))
    return tuple(result)


def of_claim(claim: str) -> list[str]:
    """Return the ids of the headlines that rest on a claim."""
    ids = []
    for headline in headlines():
        if any(_names(row, claim) for row in headline.rows):
            ids.append(headline.id)
    return ids


def judged(verdicts: Iterable[Verdict]) -> list[Headline]:
    """Return the headlines of the papers that these verdicts are on, each with its verdict."""
    by_claim = {verdict.claim.id: verdict for verdict in verdicts}
    papers = {verdict.claim.paper for verdict in by_claim.values()}
    return [
        replace(headline, verdict=in_words(rows_of(headline, by_claim)))
        for headline in headlines()
        if headline.paper in papers
    ]


def rows_of(headline: Headline, verdicts: Mapping[str, Verdict]) -> list[Verdict]:
    """Return the verdicts on the rows of a headline; of a row that names parts, those parts.

    ``verdicts`` maps the ids of claims to the verdicts on them.
    """
    rows = []
    for row in headline.rows:
        word = _word_of_parts(row)
        for claim, verdict in verdicts.items():
            if _names(row, claim):
                rows += [p for p in verdict.parts if word in p.name] if word else [verdict]
    return rows


def _names(row: str, claim: str) -> bool:
    """Whether a row of a headline stands for a claim."""
    return fnmatchcase(claim, row.partition("[")[0])


def _word_of_parts(row: str) -> str:
    """Return the word in brackets behind a row, or nothing if it stands for whole claims."""
    return row.partition("[")[2].removesuffix("]")


def _names_a_claim(row: str, paper: str) -> bool:
    """Whether a row stands for a claim of a paper that has the parts which the row names."""
    word = _word_of_parts(row)
    for claim in ledger(paper):
        if not _names(row, claim):
            continue
        check = checks_of(paper).get(claim)
        parts = check.parts if isinstance(check, AtLeast) else ()
        if not word or any(word in part for part in parts):
            return True
    return False


def in_words(rows: Sequence[Verdict]) -> str:
    """Return what verdicts on several rows come to, group by group, the weightiest first.

    >>> in_words([])
    'Not run.'
    """
    by_group = {}
    for verdict in rows:
        by_group.setdefault(verdict.group, []).append(verdict)
    testable = list(filter(_is_testable, rows))
    statements = sum(row.claim.kind != "value" for row in testable)
    sentences = []
    if CAPSULES in by_group:
        sentences.append(_at_full_size(by_group[CAPSULES], testable))
    elif any(map(_lacks_full_size, rows)):
        sentences.append("Not yet tested at full size")
    if BASELINES in by_group:
        baselines = by_group[BASELINES]
        subject = "Its baseline" if len(baselines) == 1 else "Its baselines"
        sentences.append(f"{subject} at full size: {_listed(baselines)}")
    if EXACT in by_group:
        sentences.append(f"By a test of the code: {_listed(by_group[EXACT], statements)}")
    if REDUCED in by_group:
        sentences.append(_reduced(by_group[REDUCED], statements))
    if ERRATA in by_group:
        sentences.append("The paper contradicts itself in one of the numbers")
    return ". ".join(sentences or ["Not run"]) + "."


def _lacks_full_size(verdict: Verdict) -> bool:
    """Whether a claim could be tested at the paper's scale, and is not yet."""
    return verdict.status == "waiting" or (
        verdict.group == REDUCED and verdict.scale != "paper"
    )


def _is_testable(verdict: Verdict) -> bool:
    """Whether capsule networks were held against a claim, or could be."""
    never_run = verdict.status in ("quoted", "not to be had")
    return verdict.group not in (BASELINES, ERRATA) and not never_run


def _at_full_size(verdicts: Sequence[Verdict], testable: Sequence[Verdict]) -> str:
    """Return what capsule networks at full size decide of the rows that can be tested.

    ``At full size: all 4 numbers are reproduced``, or, where other rows wait,
    ``At full size, 8 of its 24 numbers are tested: 7 are reproduced, 1 is better``.
    """
    if _are_numbers(verdicts):
        testable = [row for row in testable if row.claim.kind == "value"]
    if len(testable) == len(verdicts):
        return f"At full size: {_listed(verdicts)}"
    noun = "numbers" if _are_numbers(testable) else "claims"
    verb = "is" if len(verdicts) == 1 else "are"
    counts = Counter(verdict.status for verdict in verdicts).most_common()
    phrases = ", ".join(f"{number} {_verb(word, number)}" for word, number in counts)
    tested = f"{len(verdicts)} of its {len(testable)} {noun} {verb} tested"
    return f"At full size, {tested}: {phrases}"


def _reduced(verdicts: Sequence[Verdict], statements: int) -> str:
    """Return what runs in a reduced setting come to: ``In small networks: same order``.

    They decide no numbers. ``statements`` counts the headline's claims that are no numbers.
    """
    orders = [verdict for verdict in verdicts if verdict.status != "measured"]
    of_full_size = all(verdict.scale == "paper" for verdict in verdicts)
    if not orders:
        setting = f"at full size, but {OTHER_DATA}" if of_full_size else "in small networks"
        return f"Measured {setting}, which decides no numbers"
    setting = f"At full size, but {OTHER_DATA}" if of_full_size else "In small networks"
    return f"{setting}: {_listed(orders, statements)}"


def _listed(verdicts: Sequence[Verdict], total: int = 0) -> str:
    """Return how many of ``total`` verdicts, by default of these, have each word.

    For example ``44 of 48 numbers are reproduced, 3 are better``. A single verdict gives its
    word, or how many of its parts hold and fail.
    """
    possessive = " its" if total > len(verdicts) else ""
    total = max(total, len(verdicts))
    if total == 1:
        (verdict,) = verdicts
        return tally(verdict.parts) if verdict.status in IN_PART else verdict.word
    noun = "claims"
    if all(verdict.name for verdict in verdicts):
        noun = "parts"
    elif _are_numbers(verdicts):
        noun = "numbers"
    counts = Counter(verdict.status for verdict in verdicts).most_common()
    first, number = counts[0]
    if number == total:
        amount = "both" if total == 2 else f"all {total}"
        return f"{amount} {noun} {_verb(first, total)}"
    phrases = [f"{number} of{possessive} {total} {noun} {_verb(first, number)}"]
    phrases += [f"{number} {_verb(word, number)}" for word, number in counts[1:]]
    return ", ".join(phrases)


def _are_numbers(verdicts: Iterable[Verdict]) -> bool:
    return all(verdict.claim.kind == "value" for verdict in verdicts)


def _verb(word: Status, number: int) -> str:
    """Return what so many claims do: ``holds in part``, ``hold in part``, ``are better``."""
    if word in (*IN_PART, "holds", "fails"):
        verb, blank, phrase = word.partition(" ")
        return word if number == 1 else verb.removesuffix("s") + blank + phrase
    if word.endswith(" order"):
        return f"{'has' if number == 1 else 'have'} the {word}"
    return f"{'is' if number == 1 else 'are'} {word}"
