"""Claims and verdicts: what the papers say and what the records say, as tables and text.

The ledger (``capslib/lab/ledger/STEM.csv``) holds one row per claim. A chapter's ``CHECKS``
say which records can decide it, and :mod:`capslib.lab.judging` judges it by them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape

from capslib import papers
from capslib.lab.headlines import of_claim
from capslib.lab.judging import judge
from capslib.lab.ledger import Claim, ledger, number, plural, span
from capslib.lab.records import Record
from capslib.lab.replicates import Runs
from capslib.lab.store import Store
from capslib.lab.words import (
    BASELINES,
    CAPSULES,
    ERRATA,
    EXACT,
    NOT_RUN,
    REDUCED,
    SIZES,
    Status,
    Verdict,
    tally,
)
from capslib.papers.experiment import Scale


def verdicts(stem: str | None = None, *, store: Store | None = None) -> list[Verdict]:
    """Return the verdict on every claim of a paper (of all papers), in the ledger's order.

    Only trials that an experiment names count, and those with twice their budget, which tell
    whether they came to rest. Verdicts that use the same records name each other. Raises
    :class:`UserError` as :func:`ledger` does.
    """
    store = store or Store()
    judged: list[Verdict] = []
    for paper in [stem] if stem else papers.PAPERS:
        judged += _verdicts_of(paper, store)
    users = by_record(judged)
    return [replace(verdict, shares=_sharing(verdict, users)) for verdict in judged]


def _verdicts_of(paper: str, store: Store) -> Iterator[Verdict]:
    """Yield the verdict on every claim of a paper."""
    runs = runs_of(store.records(paper))
    waits = papers.waits(paper, runs.done, runs.stopped)
    checks = papers.checks_of(paper)
    for claim in ledger(paper).values():
        verdict = judge(claim, checks.get(claim.id), runs)
        if verdict.status == "waiting" and claim.id in waits:
            reason = verdict.reason + _what_would_decide(claim, waits[claim.id])
            verdict = replace(verdict, reason=reason)
        yield verdict


def waits_after(stem: str, records: Iterable[Record]) -> dict[str, dict[Scale, papers.Waits]]:
    """Return what each claim of a paper still waits for when these records are there."""
    runs = runs_of(records)
    return papers.waits(stem, runs.done, runs.stopped)


def runs_of(records: Iterable[Record]) -> Runs:
    """Return the runs that records make, by the budgets of their experiments."""
    return Runs(records, lambda record: papers.budget(record.trial))


def _what_would_decide(claim: Claim, waits: Mapping[Scale, papers.Waits]) -> str:
    """Return a sentence about the trials that a claim waits for, or nothing."""
    phrases = []
    for scale, (single, double) in waits.items():
        count = len(single) + len(double)
        # A value is not decided at cpu scale.
        if not count or (scale == "cpu" and claim.kind == "value"):
            continue
        phrase = f"{plural(count, 'trial')} at {scale} scale"
        if double:
            phrase += f", {len(double)} of them with twice the budget,"
        phrases.append(phrase)
    return f" {', or '.join(phrases)} would decide it." if phrases else ""


def by_record(verdicts: Iterable[Verdict]) -> dict[str, list[Verdict]]:
    """Return the verdicts that use each record, by its key."""
    users: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        for key in verdict.records:
            users.setdefault(key, []).append(verdict)
    return users


def _sharing(verdict: Verdict, users: Mapping[str, Sequence[Verdict]]) -> tuple[str, ...]:
    """Return the ids of the other claims that use records of a verdict."""
    ids: dict[str, None] = {}
    for key in verdict.records:
        for user in users[key]:
            if user is not verdict:
                ids[user.claim.id] = None
    return tuple(ids)


# ---------------------------------------------------------------------------- for readers


UNJUDGED = (ERRATA, NOT_RUN)
"""The groups of claims that no run was held against."""
BARE_UNITS = ("", "fraction", "difference of fractions", "count", "ratio", "1")
"""Units that are not shown."""


def with_unit(text: str, unit: str) -> str:
    """Return a number with its unit, ``99.7 %``, ``1.9 points``, if that is shown."""
    if not text or unit in BARE_UNITS:
        return text
    sign = "%" if unit == "percent" else unit
    return f"{text}\N{NO-BREAK SPACE}{sign}"


def theirs(verdict: Verdict) -> str:
    """Return the paper's value as the paper prints it, with its unit.

    It is *in words* where the paper gives no number.
    """
    claim = verdict.claim
    return "in words" if claim.value is None else with_unit(claim.printed, claim.unit)


def our_value(verdict: Verdict) -> str:
    """Return our value with its unit, or the values seed by seed.

    For a claim of several parts it is their tally. It is empty where there is no value. A lead
    is that of the side that the claim puts first: ``lead −2.5 points``. A theorem that no
    record violates is *no exception*.
    """
    if verdict.ours == 0 and verdict.status == "holds" and verdict.claim.value is None:
        return "no exception"
    if verdict.ours is not None:
        text = number(verdict.ours)
    elif verdict.by_seed:
        text = " · ".join(map(number, verdict.by_seed))
    elif verdict.parts and verdict.group not in UNJUDGED:
        return tally(verdict.parts)
    else:
        return ""
    text = with_unit(text, verdict.unit)
    return f"lead {text}" if verdict.is_lead else text


def our_interval(verdict: Verdict) -> str:
    """Return our 95 % interval, ``[99.6, 100]``; empty where there is none.

    It is ``(all equal)`` where every replicate gave the same value.
    """
    if verdict.interval is None:
        return ""
    low, high = verdict.interval
    return "(all equal)" if low == high else span(verdict.interval)


def ours(verdict: Verdict) -> str:
    """Return our value with its 95 % interval: ``99.81 % [99.6, 99.9]``.

    Where there is no value, return *not run* or *undecided*.
    """
    value = our_value(verdict)
    if not value:
        value = "not run" if verdict.group in UNJUDGED else "undecided"
    return f"{value} {our_interval(verdict)}".strip()


def basis(verdict: Verdict) -> str:
    """Return what our value rests on: ``n = 5, full size, derived data``.

    A theorem or a count has no ``n`` and no size.
    """
    words = []
    if verdict.n and not verdict.exact:
        words.append(f"n = {verdict.n}")
    if verdict.scale and not verdict.exact:
        words.append(SIZES[verdict.scale])
    if verdict.derived:
        words.append("derived data")
    return ", ".join(words)


def describe(verdict: Verdict) -> str:
    """Return everything about a verdict in one line, for tooltips and screen readers."""
    phrases = [f"{verdict.claim.id}: {verdict.word}", verdict.claim.statement]
    if verdict.claim.value is not None:
        phrases.append(f"Paper {theirs(verdict)}")
    if our_value(verdict) and verdict.parts:  # the reason says more than a tally
        phrases.append(f"{verdict.reason} {basis(verdict)}".strip())
    elif our_value(verdict):
        phrases.append(", ".join(filter(None, (f"here {ours(verdict)}", basis(verdict)))))
    if verdict.ours is not None and verdict.measures:
        phrases.append(verdict.measures)
    return " · ".join(phrase.rstrip(".") for phrase in phrases)


GLYPHS: dict[Status, str] = {
    "reproduced": "✓",
    "better": "+",
    "not reproduced": "≠",
    "contradicted": "×",
    "holds in part": "◐",
    "fails in part": "◑",
    "inconclusive": "?",
    "holds": "✓",
    "fails": "×",
    "undecided": "~",
    "same order": "↑",
    "opposite order": "↓",
    "measured": "▫",
    "erratum": "!",
    "waiting": "\N{NO-BREAK SPACE}",
    "quoted": "–",
    "not to be had": "∅",
}
"""A sign per verdict, so that nobody needs to tell the colours apart.

Verdicts of the papers' own size are full squares. Those of a reduced setting are half-filled,
or a dotted edge around a number that decides nothing. *Holds* and *fails* are round, and what
was not run is empty.
"""
SHAPES = {
    CAPSULES: "own-size",
    BASELINES: "baseline",
    EXACT: "exact",
    REDUCED: "reduced",
    ERRATA: "erratum",
    NOT_RUN: "not-run",
}
"""The CSS class of each group, which tells apart groups that use the same word."""


def classes(status: Status, group: str) -> str:
    """Return the CSS classes that give a verdict its colour and form."""
    return f"v-{status.replace(' ', '-')} of-{SHAPES[group]}"


def seal(verdict: Verdict, href: str | None = None, *, with_id: bool = False) -> str:
    """Return the square of a verdict as HTML, which describes the verdict.

    It links to ``href``, by default the claim's row on its own page. ``with_id`` puts the
    claim's id beside it.
    """
    claim = verdict.claim.id
    description = escape(describe(verdict))
    style = classes(verdict.status, verdict.group)
    glyph = GLYPHS[verdict.status]
    address = escape(href or f"#claim-{claim}")
    link = f'href="{address}" data-tip="{description}"'
    if not with_id:
        return f'<a class="vq {style}" {link} aria-label="{description}">{glyph}</a>'
    square = f'<span class="vq {style}" aria-hidden="true">{glyph}</span>'
    return (
        f'<a class="claim-ref" {link} aria-description="{description}">'
        f"{square}<code>{claim}</code></a>"
    )


COLUMNS = ("Claim", "Paper", "Ours", "95 % interval", "n", "Scale", "Verdict")


def row(verdict: Verdict) -> tuple[str, ...]:
    """Return a verdict as text, one cell for each of ``COLUMNS``.

    A verdict on derived data says so.
    """
    claim = verdict.claim
    word = verdict.word
    if verdict.derived and verdict.group not in UNJUDGED:
        word += " (derived data)"
    return (
        claim.id,
        with_unit(claim.printed, claim.unit) or claim.statement,
        our_value(verdict),
        our_interval(verdict),
        str(verdict.n or ""),
        verdict.scale or "",
        word,
    )


def to_json(verdicts: Iterable[Verdict]) -> str:
    """Return verdicts as a JSON list, for other programs.

    ``paper_value`` is in the claim's unit, and so is ``our_value`` of a value. A comparison
    gives points or the record's unit, a theorem the record's. The text is ASCII, which every
    terminal and file can take.
    """
    rows = []
    for verdict in verdicts:
        claim = verdict.claim
        row = {
            "id": claim.id,
            "paper": claim.paper,
            "kind": claim.kind,
            "headlines": of_claim(claim.id),
            "paper_value": claim.value,
            "our_value": verdict.ours,
            "our_value_is": verdict.measures,
            "interval": verdict.interval,
            "seed_by_seed": verdict.by_seed,
            "n": verdict.n,
            "scale": verdict.scale,
            "verdict": verdict.word,
            "verdict_is": verdict.group,
            "reason": verdict.reason,
            "records": verdict.records,
            "shares_records_with": verdict.shares,
            "derived": "; ".join(verdict.derived),
            "parts": {part.name: part.word for part in verdict.parts},
        }
        rows.append(row)
    return json.dumps(rows, indent=1)
