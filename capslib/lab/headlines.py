"""Headlines: what a paper claims in its abstract and conclusion, and what the verdicts on the rows behind it come to, in words."""

from __future__ import annotations

import csv
import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from capslib.errors import UserError
from capslib.lab.ledger import LEDGER, ledger
from capslib.lab.words import (
    BASELINES,
    CAPSULES,
    ERRATA,
    EXACT,
    IN_PART,
    NOT_RUN,
    OTHER_DATA,
    REDUCED,
    Group,
    Status,
    Verdict,
    tally,
)
from capslib.papers import queries


@dataclass(frozen=True)
class Headline:
    """A claim of a paper's abstract or conclusion, in a sentence that a newcomer understands.

    ``rows`` are ids of the ledger: ``NEG-T1-*`` stands for all that start so, ``LR-W-1[LSTM]`` for the parts of a claim whose
    names have this word. ``verdict`` is empty until :func:`judged` has computed it.
    """

    id: str
    paper: str
    sentence: str
    rows: tuple[str, ...]
    verdict: str = ""


@functools.cache
def headlines() -> tuple[Headline, ...]:
    """Read the headlines of all papers, in their order. Raises :class:`UserError` for a row that names no claim of its paper."""
    path = LEDGER / "headlines.csv"
    found = []
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, strict=True):
            headline = Headline(
                row["id"], row["paper"], row["sentence"], tuple(row["rows"].split("|"))
            )
            for name in headline.rows:
                if not any(
                    _names(name, claim) and _has_part(name, headline.paper, claim)
                    for claim in ledger(headline.paper)
                ):
                    raise UserError(
                        f"{path}: {headline.id} names {name!r}, which is no claim of {headline.paper}."
                    )
            found.append(headline)
    return tuple(found)


def of_claim(claim: str) -> list[str]:
    """Return the ids of the headlines that a claim carries."""
    return [
        headline.id
        for headline in headlines()
        if any(_names(name, claim) for name in headline.rows)
    ]


def judged(verdicts: Iterable[Verdict]) -> list[Headline]:
    """Return the headlines of the papers that these verdicts are on, each with its verdict in words."""
    found = {verdict.claim.id: verdict for verdict in verdicts}
    papers = {verdict.claim.paper for verdict in found.values()}
    return [
        replace(headline, verdict=in_words(rows_of(headline, found)))
        for headline in headlines()
        if headline.paper in papers
    ]


def rows_of(headline: Headline, found: Mapping[str, Verdict]) -> list[Verdict]:
    """Return the verdicts on the rows of a headline; of a row that names some parts, those parts."""
    rows: list[Verdict] = []
    for name in headline.rows:
        for claim, verdict in found.items():
            if not _names(name, claim):
                continue
            word = _part(name)
            rows += [part for part in verdict.parts if word in part.name] if word else [verdict]
    return rows


def _part(row: str) -> str:
    """The word in brackets, that the names of the parts have which a row asks for; empty if it asks for the whole claim."""
    return row.partition("[")[2].removesuffix("]")


def _names(row: str, claim: str) -> bool:
    return fnmatchcase(claim, row.partition("[")[0])


def _has_part(row: str, paper: str, claim: str) -> bool:
    """Whether a claim has parts of the name that a row asks for, if it asks for some."""
    word = _part(row)
    return not word or any(
        word in name for name in getattr(queries(paper).get(claim), "parts", ())
    )


def in_words(rows: Sequence[Verdict]) -> str:
    """Return what verdicts on several rows come to, group by group, the weightiest first.

    >>> in_words([])
    'Not run.'
    """
    by_group: dict[Group, list[Verdict]] = {}
    for verdict in rows:
        by_group.setdefault(verdict.group, []).append(verdict)
    told: list[str] = []
    if CAPSULES in by_group:
        told.append(_at_full_size(by_group[CAPSULES], rows))
    elif any(
        v.status == "waiting" or (v.group == REDUCED and v.scale != "paper") for v in rows
    ):
        told.append("Not yet tested at full size")
    if BASELINES in by_group:
        baselines = by_group[BASELINES]
        told.append(
            f"{'Its baseline' if len(baselines) == 1 else 'Its baselines'} at full size: {_listed(baselines)}"
        )
    if EXACT in by_group:
        told.append(f"By a test: {_listed(by_group[EXACT])}")
    if REDUCED in by_group:
        orders = [verdict for verdict in by_group[REDUCED] if verdict.status != "measured"]
        on_other_data = all(verdict.scale == "paper" for verdict in by_group[REDUCED])
        setting = f"At full size, {OTHER_DATA}" if on_other_data else "In a reduced setting"
        told.append(
            f"{setting}: {_listed(orders) if orders else 'measured, which decides nothing'}"
        )
    if ERRATA in by_group:
        told.append("The paper contradicts itself in one of the numbers")
    if (by_group.keys() == {NOT_RUN} and not told) or not rows:
        told.append("Not run")
    return ". ".join(told) + "."


def _at_full_size(verdicts: Sequence[Verdict], rows: Sequence[Verdict]) -> str:
    """``At full size: all 4 numbers reproduced``; ``At full size, 8 of 24 numbers: 7 reproduced, 1 better``."""
    able = [
        row
        for row in rows
        if row.group not in (BASELINES, ERRATA)
        and row.status not in ("quoted", "not to be had")
    ]
    if all(row.claim.kind == "value" for row in verdicts):
        able = [row for row in able if row.claim.kind == "value"]
    if len(able) == len(verdicts):
        return f"At full size: {_listed(verdicts)}"
    noun = "numbers" if all(row.claim.kind == "value" for row in able) else "claims"
    words = Counter(row.status for row in verdicts).most_common()
    return f"At full size, {len(verdicts)} of {len(able)} {noun}: {', '.join(f'{n} {_plural(word, n)}' for word, n in words)}"


def _listed(verdicts: Sequence[Verdict]) -> str:
    """``44 of 48 numbers reproduced, 3 better``; of one claim, its word, or how many of its parts hold and fail."""
    if len(verdicts) == 1:
        (verdict,) = verdicts
        return tally(verdict.parts) if verdict.status in IN_PART else verdict.word
    (first, number), *others = Counter(verdict.status for verdict in verdicts).most_common()
    total = len(verdicts)
    noun = "numbers " if all(verdict.claim.kind == "value" for verdict in verdicts) else ""
    if not others:
        return f"{'both' if total == 2 else f'all {total}'} {noun}{_plural(first, total)}"
    told = [f"{number} of {total} {noun}{_plural(first, number)}"]
    return ", ".join(told + [f"{n} {_plural(word, n)}" for word, n in others])


def _plural(word: Status, number: int) -> str:
    """``holds in part`` of one, ``hold in part`` of several."""
    verb, _, rest = word.partition(" ")
    takes_a_verb = word in (*IN_PART, "holds", "fails")
    return f"{verb.removesuffix('s')} {rest}".strip() if takes_a_verb and number > 1 else word
