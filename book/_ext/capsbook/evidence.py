"""What the pages show as evidence: every claim with its verdict, and the record files behind them. Knows nothing of Sphinx."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from capslib import claims
from capslib.papers import PAPERS
from capslib.store import Store
from capslib.trials import Record

if TYPE_CHECKING:
    from capslib.claims import Verdict

STATUSES = ("reproduced", "better", "holds", "inconclusive", "not reproduced", "contradicted", "fails", "not run")
"""All verdicts, best news first: the order of every bar, legend and menu in the book."""

GLYPHS = dict(zip(STATUSES, "✓+✓?≠×× ", strict=True))
"""One sign per verdict, so that no square is told by its colour alone. *Holds* and *fails* are round, the others square."""


@dataclass(frozen=True)
class Evidence:
    """All verdicts by claim id, in the ledger's order, and the cited record files by key."""

    verdicts: dict[str, Verdict]
    records: dict[str, Path]
    root: Path
    """The folder of records."""

    def of(self, stem: str | None = None) -> list[Verdict]:
        """The verdicts of one paper, or of all."""
        return [v for v in self.verdicts.values() if stem in (None, v.claim.paper)]

    def counts(self, stem: str | None = None) -> Counter[str]:
        """How many claims have each verdict."""
        return Counter(v.status for v in self.of(stem))

    def cited(self, stem: str | None = None) -> list[Path]:
        """The record files that the verdicts rest on, each once."""
        return [self.records[key] for key in dict.fromkeys(k for v in self.of(stem) for k in v.records) if key in self.records]

    def newest(self, stem: str | None = None) -> datetime | None:
        """When the newest cited record was finished."""
        return max((Record.model_validate_json(p.read_bytes()).finished for p in self.cited(stem)), default=None)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Changes whenever anything that a page shows of the evidence changes."""
        digest = hashlib.sha256(repr(list(self.verdicts.values())).encode())
        for path in self.cited():
            digest.update(path.name.encode() + path.read_bytes())
        return digest.hexdigest()


def load(results: Path) -> Evidence:
    """Judge every claim by the records in ``results``."""
    judged = {v.claim.id: v for stem in PAPERS for v in claims.verdicts(stem, store=Store(results))}
    files = {path.stem: path for path in sorted(results.glob("*/*/*.json"))}
    return Evidence(judged, {k: files[k] for v in judged.values() for k in v.records if k in files}, results)


# ----------------------------------------------------------------------------------------------------------- numbers as text


def theirs(verdict: Verdict) -> str:
    """The paper's value as the paper prints it, with its unit; *in words* where it gives no number."""
    claim = verdict.claim
    return claims.with_unit(claim.printed, claim.unit) if claim.value is not None else "in words"


def ours(verdict: Verdict) -> str:
    """Our value with its 95 % interval: ``99.81 % [99.6, 100]``; *not run* where there is none."""
    text = claims.our_value(verdict) or ("not run" if verdict.status == "not run" else "undecided")
    return text if verdict.interval is None else f"{text} [{', '.join(map(claims.number, verdict.interval))}]"


def basis(verdict: Verdict) -> str:
    """What our value rests on: ``n = 5, paper scale``."""
    words = [f"n = {verdict.n}"] if verdict.n else []
    words += [f"{verdict.scale} scale"] if verdict.scale else []
    words += ["partial data"] if verdict.partial else []
    return ", ".join(words)


def describe(verdict: Verdict) -> str:
    """One line that says all: for tooltips and screen readers."""
    parts = [f"{verdict.claim.id}: {verdict.status}", verdict.claim.statement]
    if verdict.claim.value is not None:
        parts.append(f"Paper {theirs(verdict)}")
    if claims.our_value(verdict):
        parts.append(f"here {ours(verdict)}, {basis(verdict)}")
    return " · ".join(p.rstrip(".") for p in parts)
