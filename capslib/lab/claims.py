"""Claims and verdicts: what the papers say, and what the records say about it, as tables and text.

The ledger (``capslib/lab/ledger/STEM.csv``) holds one row per claim. A chapter's ``QUERIES`` say which records can decide it, and
:mod:`capslib.lab.judging` judges it by them.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from capslib.errors import unknown
from capslib.lab.judging import (
    FAILED,
    HIGHER_IS_BETTER,
    QUERIES_OF_KIND,
    SEEDS,
    STATUSES,
    Runs,
    Status,
    Verdict,
    judge,
    kept,
    number,
    span,
)
from capslib.lab.ledger import Claim, ledger
from capslib.lab.records import Record
from capslib.lab.store import Store
from capslib.papers import PAPERS, experiments, queries
from capslib.papers.experiment import Scale
from capslib.recipes import hash_of

if TYPE_CHECKING:
    import pandas as pd
    from pandas.io.formats.style import Styler

__all__ = [
    "COLUMNS", "FAILED", "HIGHER_IS_BETTER", "QUERIES_OF_KIND", "SEEDS", "STATUSES", "Claim", "Runs", "Status", "Verdict", "basis",
    "counts", "describe", "judge", "ledger", "number", "our_interval", "our_value", "ours", "page_table", "row", "table", "theirs",
    "to_json", "verdicts", "with_unit",
]  # fmt: skip


def verdicts(stem: str | None = None, *, store: Store | None = None) -> list[Verdict]:
    """The verdict on every claim of a paper (of all papers), in the order of the ledger.

    Only trials of an experiment's own grid count. A run with another configuration makes a good record, but not one of that
    scale. Raises :class:`UserError` as :func:`ledger` does.
    """
    store = store or Store()
    answers: list[Verdict] = []
    for paper in [stem] if stem else PAPERS:
        claims, asked = ledger(paper), queries(paper)
        runs = Runs(store.records(paper), _own(paper)) if asked else Runs()
        for claim in claims.values():
            if asked or claim.not_run:
                answers.append(judge(claim, asked.get(claim.id), runs))
            else:
                answers.append(Verdict(claim, "not run", "The chapter of this paper is not written yet."))
    return answers


def _own(paper: str) -> Callable[[Record], bool]:
    """Make a test whether a record's trial is one of the chapter's own, at the current revision."""

    @functools.cache
    def grid(experiment: str, scale: Scale) -> set[str]:
        return {hash_of(c.differences()) for c in experiments(paper)[experiment].grid(scale)}

    def own(record: Record) -> bool:
        trial, experiment = record.trial, experiments(paper).get(record.trial.experiment)
        known = experiment is not None and trial.revision == experiment.revision
        return known and hash_of(trial.config) in grid(trial.experiment, trial.scale)

    return own


# ---------------------------------------------------------------------------------------------------------- for readers


def with_unit(text: str, unit: str) -> str:
    """``99.7 %``, ``1.9 points``. Fractions, counts and ratios have no unit to show."""
    bare = not text or unit in ("", "fraction", "difference of fractions", "count", "ratio", "1")
    return text if bare else f"{text}\N{NO-BREAK SPACE}{'%' if unit == 'percent' else unit}"


def theirs(verdict: Verdict) -> str:
    """The paper's value as the paper prints it, with its unit; *in words* where it gives no number."""
    return with_unit(verdict.claim.printed, verdict.claim.unit) if verdict.claim.value is not None else "in words"


def our_value(verdict: Verdict) -> str:
    """Our value with its unit; for a count, how many of its parts hold; empty where there is neither."""
    if verdict.ours is not None:
        return with_unit(number(verdict.ours), verdict.unit)
    return f"{kept(verdict.parts)} of {len(verdict.parts)} parts" if verdict.parts and verdict.status != "not run" else ""


def our_interval(verdict: Verdict) -> str:
    """``[99.6, 100]``, or ``(all equal)`` where every replicate gave the same value; empty where there is no interval."""
    if verdict.interval is None:
        return ""
    return "(all equal)" if verdict.interval[0] == verdict.interval[1] else span(verdict.interval)


def ours(verdict: Verdict) -> str:
    """Our value with its 95 % interval, ``99.81 % [99.6, 100]``; where there is no value, *not run* or *undecided*."""
    value = our_value(verdict) or ("not run" if verdict.status == "not run" else "undecided")
    return " ".join(filter(None, (value, our_interval(verdict))))


def basis(verdict: Verdict) -> str:
    """What our value rests on: ``n = 5, paper scale``."""
    words = (verdict.n and f"n = {verdict.n}", verdict.scale and f"{verdict.scale} scale", verdict.partial and "partial data")
    return ", ".join(filter(None, words))


def describe(verdict: Verdict) -> str:
    """Everything about a verdict in one line, for tooltips and screen readers."""
    parts = [f"{verdict.claim.id}: {verdict.status}", verdict.claim.statement]
    if verdict.claim.value is not None:
        parts.append(f"Paper {theirs(verdict)}")
    if our_value(verdict):
        parts.append(f"here {ours(verdict)}, {basis(verdict)}")
    return " · ".join(part.rstrip(".") for part in parts)


COLUMNS = ("Claim", "Paper", "Ours", "95 % interval", "n", "Scale", "Verdict")


def row(verdict: Verdict) -> tuple[str, ...]:
    """A verdict as text, one cell for each of ``COLUMNS``. A verdict on partial or altered data says so."""
    v, partial = verdict, " (on partial data)" if verdict.partial and verdict.status != "not run" else ""
    paper = with_unit(v.claim.printed, v.claim.unit) or v.claim.statement
    return v.claim.id, paper, our_value(v), our_interval(v), str(v.n or ""), v.scale or "", v.status + partial


def table(stem: str, ids: Iterable[str] | None = None, store: Store | None = None) -> pd.DataFrame:
    """The verdicts on a paper's claims as text, a column for each of ``COLUMNS``.

    ``ids`` chooses the claims and their order (all of the paper by default). Numbers are in the paper's unit; ``n`` counts
    replicates. Raises :class:`UserError` for an id that is not in the ledger.
    """
    import pandas as pd

    found = {v.claim.id: v for v in verdicts(stem, store=store)}
    ids = list(found if ids is None else ids)
    for name in ids:
        if name not in found:
            raise unknown("claim", name, found)
    return pd.DataFrame([row(found[name]) for name in ids], columns=COLUMNS)


def page_table(stem: str, *ids: str, store: Store | None = None) -> Styler:
    """:func:`table` narrow enough for a page: intervals stand under values, the scale beside n, and empty columns are left out.

    An id that ends in a dash stands for all claims of the paper that start with it.
    """
    groups = {of: [name for name in ledger(stem) if of.endswith("-") and name.startswith(of)] or [of] for of in ids}
    found = table(stem, [name for group in groups.values() for name in group], store)
    width = "10rem" if found["Paper"].str.len().max() > 20 else "4rem"  # a sentence of the paper, or a number
    ours = "Ours (95\N{NO-BREAK SPACE}% interval)"
    for name, between, one, other in ((ours, "<br>", "Ours", "95 % interval"), ("n", ", ", "n", "Scale")):
        found[one] = [between.join(filter(None, pair)) for pair in zip(found[one], found.pop(other), strict=True)]
        found = found.rename(columns={one: name})
    found = found.loc[:, (found != "").any()]
    style = found.style.hide(axis="index").set_properties(subset=["Paper"], **{"min-width": width})
    narrow = found.columns.intersection(["Claim", ours, "n"])
    return style.set_properties(subset=narrow, **{"white-space": "nowrap"})


def counts(found: Iterable[Verdict]) -> dict[Status, int]:
    """Count the verdicts of each status, all statuses in their fixed order."""
    statuses = Counter(v.status for v in found)
    return {status: statuses[status] for status in STATUSES}


def to_json(found: Iterable[Verdict]) -> str:
    """Verdicts as a JSON list, for other programs. ``paper_value`` and ``our_value`` are in the unit of the claim."""
    rows = [
        {
            "id": v.claim.id,
            "paper": v.claim.paper,
            "kind": v.claim.kind,
            "paper_value": v.claim.value,
            "our_value": v.ours,
            "interval": v.interval,
            "n": v.n,
            "scale": v.scale,
            "verdict": v.status,
            "reason": v.reason,
            "records": v.records,
            "partial": v.partial,
        }
        for v in found
    ]
    return json.dumps(rows, indent=1, ensure_ascii=False)
