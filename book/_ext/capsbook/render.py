"""What templates call to show evidence: verdicts in groups, counts of comparisons, numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from capsbook.rounding import our_interval, our_value
from capslib.lab import claims
from capslib.lab.headlines import Headline, rows_of
from capslib.lab.ledger import number, plural
from capslib.lab.records import Record
from capslib.lab.words import (
    BASELINES,
    CAPSULES,
    EXACT,
    GROUPS,
    OPEN,
    REDUCED,
    Verdict,
    counts,
    tally,
)

if TYPE_CHECKING:
    from capsbook.evidence import Evidence

MOST_SQUARES = 200
"""A paper with more claims than this has a tile per table, instead of a square per claim."""
TILE = 10
"""The fewest claims of a table that become a tile; the others keep their squares."""


def counted(verdicts: Sequence[Verdict]) -> list[tuple[str, str, int]]:
    """Return group, word and count of the verdicts that occur."""
    rows = []
    for group, words in counts(verdicts).items():
        rows += [(group, word, count) for word, count in words.items() if count]
    return rows


def ranked(verdicts: Iterable[Verdict]) -> list[list[Verdict]]:
    """Return verdicts by group, the weightiest first, each in the order of its words."""
    verdicts = list(verdicts)
    groups = []
    for group, words in GROUPS.items():
        members = [verdict for verdict in verdicts if verdict.group == group]
        if members:
            members.sort(key=lambda verdict: words.index(verdict.status))
            groups.append(members)
    return groups


def tables(verdicts: Iterable[Verdict]) -> tuple[dict[str, list[Verdict]], list[Verdict]]:
    """Return the verdicts of each table that has many, and the other verdicts."""
    large: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        large.setdefault(verdict.claim.where, []).append(verdict)
    singles: list[Verdict] = []
    for where, members in list(large.items()):
        if len(members) < TILE:
            singles += large.pop(where)
    return large, singles


def core_hours(hours: float) -> str:
    """Return a time of one CPU core: ``about 3 hours``; tenths below one hour."""
    if hours < 0.05:
        return "less than 0.1 hours"
    if hours < 0.95:
        return f"about {hours:.1f} hours"
    return f"about {plural(round(hours), 'hour')}"


def what_verdicts_rest_on(evidence: Evidence, stem: str) -> str:
    """Say what the verdicts of a chapter rest on."""
    runs = evidence.cited(stem)
    if not runs:
        return "No record decides a claim of this chapter yet."
    newest = max(run.finished for run in runs)
    date = f"{newest.day} {newest:%B %Y}"
    count = plural(len(runs), "record")
    comparison = comparisons(evidence.verdicts_of(stem))
    return f"Verdicts rest on {count}, the newest of {date}. {comparison}"


def comparisons(verdicts: Iterable[Verdict]) -> str:
    """Say how many distinct comparisons these verdicts rest on, and how many are decided."""
    decided: dict[str, dict[tuple, bool]] = {}
    for verdict in _with_parts(verdicts):
        # A number that is only measured is compared with nothing, and a count has no interval.
        is_compared = verdict.interval is not None and verdict.status != "measured"
        if not is_compared or verdict.setting == EXACT:
            continue
        by_comparison = decided.setdefault(PLACES[verdict.setting], {})
        comparison = verdict.records, verdict.ours, verdict.interval
        is_decided = verdict.status not in OPEN
        by_comparison[comparison] = by_comparison.get(comparison, False) or is_decided
    if not decided:
        return "No run is compared with anything yet."
    counts_by_place = []
    for place in dict.fromkeys(PLACES.values()):
        if place in decided:
            outcomes = decided[place].values()
            counts_by_place.append(
                f"{number(sum(outcomes))} of {number(len(outcomes))} {place}"
            )
    return (
        f"Comparisons decided, for or against: {', '.join(counts_by_place)}. "
        "About one 95 % interval in twenty misses the true mean by chance. "
        "Small networks decide orders at most, never values. Tests decide theorems and counts."
    )


def _with_parts(verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
    for verdict in verdicts:
        yield verdict
        yield from _with_parts(verdict.parts)


KINDS = {
    CAPSULES: "networks of full size",
    BASELINES: "baselines of full size",
    REDUCED: "small networks",
    EXACT: "theorems or exact counts",
}
"""What evidence of each group is, in a few words."""
PLACES = {
    CAPSULES: "at full size",
    BASELINES: "at full size",
    REDUCED: "in small networks or on other data",
}
"""Where a comparison of each group was made."""
LABELS = {REDUCED: "small networks, or other data"}
"""How pages name a group, where not by itself."""


def kinds(verdicts: Sequence[Verdict]) -> str:
    """Return what evidence there is, the weightiest first."""
    groups = {verdict.group for verdict in verdicts}
    words = [kind for group, kind in KINDS.items() if group in groups]
    return ", ".join(words).capitalize() or "None yet"


def brief(verdict: Verdict) -> str:
    """Return our value and its interval with three digits; a tally where there is no value.

    Of a comparison, say first what it is of: ``lead in accuracy on MNIST (sparse − supcaps)``.
    """
    if verdict.ours is None:
        return claims.ours(verdict)
    value = f"{our_value(verdict)} {our_interval(verdict) or ''}"
    return f"{verdict.quantity}: {value}" if verdict.quantity else value


def main_row(headline: Headline, verdicts: Mapping[str, Verdict]) -> Verdict:
    """Return the verdict whose numbers stand for a headline: the first that was run."""
    rows = rows_of(headline, verdicts)
    ran = [row for row in rows if row.group not in claims.UNJUDGED]
    return [*ran, *rows][0]


def all_parts(headline: Headline, verdicts: Mapping[str, Verdict]) -> str:
    """Return a tally of the parts of all claims of a headline; nothing if it has a number.

    A claim in words without parts counts as one. Two claims may ask the same of the same runs.
    Such a part counts once.
    """
    if main_row(headline, verdicts).ours is not None:
        return ""
    parts: list[Verdict] = []
    asked: set[tuple] = set()
    for row in rows_of(headline, verdicts):
        if row.group in claims.UNJUDGED:
            continue
        parts_of_row = row.parts
        if not parts_of_row and row.claim.kind != "value":
            parts_of_row = (row,)
        for part in parts_of_row:
            question = part.name or row.claim.id, part.records
            if question not in asked or not part.records:
                parts.append(part)
            asked.add(question)
    return tally(parts) if parts else ""


def schema_parts() -> dict[str, Mapping]:
    """Return the objects of a record's JSON Schema by name, the record first."""
    schema = Record.model_json_schema()
    return {schema["title"]: schema, **schema["$defs"]}


def without_markup(docstring: str | None) -> str:
    """Return a docstring as plain text."""
    return " ".join(re.sub(r":\w+:`|`", "", docstring or "").split())


def two_digits(value: float) -> str:
    """Return a number with two digits, or in full from ten on.

    >>> two_digits(0.5), two_digits(1.96), two_digits(1234.5)
    ('0.50', '2.0', '1,234')
    """
    return f"{value:#.2g}" if value < 9.95 else number(round(value))
