"""The evidence that pages show: every claim with its verdict, and the record files behind it. Does not use Sphinx."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from capslib.lab import claims, planning
from capslib.lab.store import Store, read_record
from capslib.papers import PAPERS, needs

if TYPE_CHECKING:
    from capslib.lab.records import Record
    from capslib.lab.words import Verdict


@dataclass(frozen=True)
class Evidence:
    """All verdicts by claim id, in the ledger's order, and the files of all records that count by key."""

    verdicts: dict[str, Verdict]
    records: dict[str, Path]
    root: Path
    """The folder of records."""
    hours: dict[str, float]
    """By claim: the core-hours that its trials at paper scale would take, where it waits for them and records tell."""

    def of(self, stem: str | None = None) -> list[Verdict]:
        """The verdicts of one paper, or of all."""
        return [v for v in self.verdicts.values() if stem in (None, v.claim.paper)]

    def cited(self, stem: str | None = None) -> list[Path]:
        """The record files that the verdicts use, each once."""
        return [
            self.records[key]
            for key in dict.fromkeys(k for v in self.of(stem) for k in v.records)
            if key in self.records
        ]

    def newest(self, stem: str | None = None) -> datetime | None:
        """The time at which the newest cited record was finished."""
        return max((read_record(path).finished for path in self.cited(stem)), default=None)

    @functools.cached_property
    def runs(self) -> dict[str, list[Record]]:
        """The records of every paper that has some, smoke-scale ones left out."""
        found = {stem: Store(self.root).records(stem) for stem in PAPERS}
        return {
            stem: [r for r in records if r.trial.scale != "smoke"]
            for stem, records in found.items()
            if records
        }

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of all the evidence that a page can show."""
        digest = hashlib.sha256(repr((list(self.verdicts.values()), self.hours)).encode())
        for path in self.records.values():
            digest.update(path.name.encode() + path.read_bytes())
        return digest.hexdigest()


def load(results: Path) -> Evidence:
    """Judge every claim by the records in ``results``."""
    store = Store(results)
    judged = {v.claim.id: v for v in claims.verdicts(store=store)}
    files = {record.key: store.path(record.trial) for record in store.records()}
    return Evidence(judged, files, results, _hours(judged, store))


def _hours(judged: dict[str, Verdict], store: Store) -> dict[str, float]:
    """The core-hours of one CPU that each waiting claim waits for."""
    found: dict[str, float] = {}
    for stem in PAPERS:
        wanted = {
            name: trials
            for name, trials in needs(stem, "paper").items()
            if judged[name].status == "waiting" and trials
        }
        records = {r.key: r for r in store.records(stem)} if wanted else {}
        experience = planning.Experience(records.values(), "cpu")
        trials = {t.key: t for of in wanted.values() for t in of if t.key not in records}
        seconds = {key: experience.estimate(t).seconds for key, t in trials.items()}
        for name, of in wanted.items():
            known = [seconds[t.key] for t in of if t.key in seconds]
            if known and None not in known:
                found[name] = sum(known) / 3600
    return found
