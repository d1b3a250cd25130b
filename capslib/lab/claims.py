"""Claims and verdicts: what the papers say, and what the records say about it, as tables and
text.

The ledger (``capslib/lab/ledger/STEM.csv``) holds one row per claim. A chapter's ``CHECKS``
say which records can decide it, and :mod:`capslib.lab.judging` judges it by them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from html import escape

from capslib import papers
from capslib.lab.headlines import of_claim
from capslib.lab.judging import judge
from capslib.lab.ledger import ledger, number, plural, span
from capslib.lab.replicates import Runs
from capslib.lab.store import Store
from capslib.lab.words import ERRATA, GROUPS, NOT_RUN, STATUSES, Status, Verdict, tally


def verdicts(stem: str | None = None, *, store: Store | None = None) -> list[Verdict]:
    """The verdict on every claim of a paper (of all papers), in the order of the ledger.

    Only trials of an experiment's own grid count, and those with twice its budget, which tell
    whether it came to rest. Verdicts that use the same records name each other. Raises
    :class:`UserError` as :func:`ledger` does.
    """
    store = store or Store()
    answers: list[Verdict] = []
    for paper in [stem] if stem else papers.PAPERS:
        claims, asked, records = (
            ledger(paper),
            papers.checks_of(paper),
            list(store.records(paper)),
        )
        runs, waits = (
            Runs(records, lambda r: papers.budget(r.trial)),
            papers.waits(paper, records),
        )
        for claim in claims.values():
            verdict = judge(claim, asked.get(claim.id), runs)
            many = [
                f"{plural(n, 'trial')} at {scale} scale"
                + f", {len(twice)} of them with twice the budget," * bool(twice)
                for scale, (own, twice) in waits.get(claim.id, {}).items()
                if (n := len(own) + len(twice)) and (scale, claim.kind) != ("cpu", "value")
            ]
            said = (
                f" {', or '.join(many)} would decide it."
                if many and verdict.status == "waiting"
                else ""
            )
            answers.append(replace(verdict, reason=verdict.reason + said))
    users = by_record(answers)
    others = (
        dict.fromkeys(u.claim.id for key in v.records for u in users[key] if u is not v)
        for v in answers
    )
    return [replace(v, shares=tuple(names)) for v, names in zip(answers, others, strict=True)]


def by_record(found: Iterable[Verdict]) -> dict[str, list[Verdict]]:
    """The verdicts that use each record, by its key."""
    users: dict[str, list[Verdict]] = {}
    for v in found:
        for key in v.records:
            users.setdefault(key, []).append(v)
    return users


# ----------------------------------------------------------------------------------------------------------
# for readers


def with_unit(text: str, unit: str) -> str:
    """``99.7 %``, ``1.9 points``. Fractions, counts and ratios have no unit to show."""
    bare = not text or unit in (
        "",
        "fraction",
        "difference of fractions",
        "count",
        "ratio",
        "1",
    )
    return text if bare else f"{text}\N{NO-BREAK SPACE}{'%' if unit == 'percent' else unit}"


def theirs(verdict: Verdict) -> str:
    """The paper's value as the paper prints it, with its unit; *in words* where it gives no
    number.
    """
    return (
        with_unit(verdict.claim.printed, verdict.claim.unit)
        if verdict.claim.value is not None
        else "in words"
    )


def our_value(verdict: Verdict) -> str:
    """Our value with its unit, or the values seed by seed; for a count, the tally of its parts;
    empty where there is none. A lead is that of the side that the claim puts first: ``lead −2.5
    points``.
    """
    if verdict.ours == 0 and verdict.status == "holds" and verdict.claim.value is None:
        return "no exception"
    if verdict.ours is not None or verdict.listed:
        values = verdict.listed if verdict.ours is None else [verdict.ours]
        told = with_unit(" · ".join(map(number, values)), verdict.unit)
        return f"lead {told}" if verdict.measures.startswith("lead") else told
    return tally(verdict.parts) if verdict.parts and verdict.group not in UNJUDGED else ""


def our_interval(verdict: Verdict) -> str:
    """``[99.6, 100]``, or ``(all equal)`` where every replicate gave the same value; empty
    where there is no interval.
    """
    if verdict.interval is None:
        return ""
    return (
        "(all equal)" if verdict.interval[0] == verdict.interval[1] else span(verdict.interval)
    )


def ours(verdict: Verdict) -> str:
    """Our value with its 95 % interval, ``99.81 % [99.6, 99.9]``; where there is no value, *not
    run* or *undecided*.
    """
    value = our_value(verdict) or ("not run" if verdict.group in UNJUDGED else "undecided")
    return " ".join(filter(None, (value, our_interval(verdict))))


def basis(verdict: Verdict) -> str:
    """What our value rests on: ``n = 5, paper scale``."""
    words = (
        verdict.n and f"n = {verdict.n}",
        verdict.scale and f"{verdict.scale} scale",
        verdict.derived and "derived data",
    )
    return ", ".join(filter(None, words))


def describe(verdict: Verdict) -> str:
    """Everything about a verdict in one line, for tooltips and screen readers."""
    parts = [f"{verdict.claim.id}: {verdict.word}", verdict.claim.statement]
    if verdict.claim.value is not None:
        parts.append(f"Paper {theirs(verdict)}")
    if our_value(verdict):  # the reason says more than a tally
        parts.append(
            f"here {ours(verdict)}, {basis(verdict)}"
            if not verdict.parts
            else f"{verdict.reason} {basis(verdict)}"
        )
    parts += [verdict.measures] * (verdict.ours is not None and bool(verdict.measures))
    return " · ".join(part.rstrip(".") for part in parts)


UNJUDGED = (ERRATA, NOT_RUN)
"""The groups of claims that no run was held against."""
GLYPHS: dict[Status, str] = dict(
    zip(STATUSES, "✓+≠×◐◑?✓×~↑↓▫!\N{NO-BREAK SPACE}–∅", strict=True)
)
"""A sign per verdict, so that nobody needs to tell the colours apart. Verdicts of the papers'
own size are full squares, those of a reduced setting half-filled, or a dotted edge around a
number that decides nothing, *holds* and *fails* are round, and what was not run is empty.
"""
SHAPES = dict(
    zip(GROUPS, ("own-size", "baseline", "exact", "reduced", "erratum", "not-run"), strict=True)
)
"""The class of a square of each group, for words that several groups have."""


def classes(status: Status, group: str) -> str:
    """Return the CSS classes of the square of a verdict."""
    return f"vq v-{status.replace(' ', '-')} of-{SHAPES[group]}"


def seal(verdict: Verdict, href: str | None = None, *, named: bool = False) -> str:
    """The square of a verdict as HTML: it describes the verdict, and links to ``href``, by
    default the claim's row on its own page. ``named`` puts the claim's id beside it.
    """
    told, kind, name = (
        escape(describe(verdict)),
        classes(verdict.status, verdict.group),
        verdict.claim.id,
    )
    href, sign = escape(href or f"#claim-{name}"), GLYPHS[verdict.status]
    here = f'href="{href}" data-tip="{told}"'
    if named:
        square = f'<span class="{kind}" aria-hidden="true">{sign}</span>'
        return f'<a class="claim-ref" {here} aria-description="{told}">{square}<code>{name}</code></a>'
    return f'<a class="{kind}" {here} aria-label="{told}">{sign}</a>'


COLUMNS = ("Claim", "Paper", "Ours", "95 % interval", "n", "Scale", "Verdict")


def row(verdict: Verdict) -> tuple[str, ...]:
    """A verdict as text, one cell for each of ``COLUMNS``. A verdict on derived data says so."""
    v, derived = (
        verdict,
        " (derived data)" if verdict.derived and verdict.group not in UNJUDGED else "",
    )
    paper = with_unit(v.claim.printed, v.claim.unit) or v.claim.statement
    return (
        v.claim.id,
        paper,
        our_value(v),
        our_interval(v),
        str(v.n or ""),
        v.scale or "",
        v.word + derived,
    )


def to_json(found: Iterable[Verdict]) -> str:
    """Verdicts as a JSON list, for other programs. ``paper_value`` and ``our_value`` are in the
    unit of the claim.
    """
    rows = [
        {
            "id": v.claim.id,
            "paper": v.claim.paper,
            "kind": v.claim.kind,
            "headlines": of_claim(v.claim.id),
            "paper_value": v.claim.value,
            "our_value": v.ours,
            "our_value_is": v.measures,
            "interval": v.interval,
            "seed_by_seed": v.listed,
            "n": v.n,
            "scale": v.scale,
            "verdict": v.word,
            "verdict_is": v.group,
            "reason": v.reason,
            "records": v.records,
            "shares_records_with": v.shares,
            "derived": v.derived,
            "parts": {p.name: p.word for p in v.parts},
        }
        for v in found
    ]
    return json.dumps(rows, indent=1)  # in ASCII, which every terminal and file can take
