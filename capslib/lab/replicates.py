"""Replicates: the records that may decide a claim, seed by seed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from capslib.lab.records import Exit, Record
from capslib.papers import query as q
from capslib.papers.experiment import Metric, Scale
from capslib.papers.query import Select

FAILED: tuple[Exit, ...] = ("nan", "oom", "error")
"""Ends of a run that failed. An interrupted run is not over yet, so it says nothing."""


class Runs:
    """The records that may decide a claim, by paper and experiment: on real data, at cpu or paper scale, ended well or failed.

    ``budget`` tells a scale's own records (1) from those with twice its epochs (2) and from others (0), such as those of an earlier
    revision, which mean something else. A training that a rule of the paper stopped before its epochs were over is its own with
    twice the epochs. ``left_out`` counts the others, so that a verdict can name their number.
    """

    def __init__(
        self, records: Iterable[Record] = (), budget: Callable[[Record], int] = lambda record: 1
    ):
        found: dict[tuple[str, str, int], dict[str, Record]] = {}
        self.left_out: Counter[tuple[str, str]] = Counter()
        for record in records:
            if record.real and record.trial.scale != "smoke" and record.exit in ("ok", *FAILED):
                place, times = (record.trial.paper, record.trial.experiment), budget(record)
                for counts_as in (
                    (1, 2) if times == 1 and q.stopped_itself(record) else (times,)
                ):
                    found.setdefault((*place, counts_as), {})[record.key] = record
                self.left_out[place] += times == 0
        self._found: dict[tuple[str, str, int], q.Index[Record]] = {}
        for place, runs in found.items():
            kept = sorted(runs.values(), key=lambda r: (r.trial.seed, r.key))
            self._found[place] = q.Index(
                (r.trial.experiment, r.trial.scale, r.config, r) for r in kept
            )

    def pick(self, paper: str, select: Select, *scales: Scale, budget: int = 1) -> list[Run]:
        """The selected runs by seed; those that a selection averages over together, once all of them are there."""
        index = self._found.get((paper, select.experiment, budget), q.Index())
        records = [r for scale in scales for r in index.of(select, scale)]
        if not select.over:
            return [Run((r,)) for r in records]
        groups: dict[tuple, dict[object, Record]] = {}
        for r in records:
            groups.setdefault((r.trial.seed, r.trial.scale), {})[r.config[select.over]] = r
        return [
            Run(tuple(of.values()), select.over)
            for of in groups.values()
            if len(of) == select.cells
        ]


@dataclass(frozen=True)
class Run:
    """What one seed of an arm measured: one record, or several whose mean is one replicate, which differ in the field ``over``."""

    records: tuple[Record, ...]
    over: str = ""

    @property
    def seed(self) -> int:
        return self.records[0].trial.seed

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(r.key for r in self.records)

    @property
    def exit(self) -> Exit:
        return next((r.exit for r in self.records if r.exit != "ok"), "ok")

    def told(self, record: Record) -> str:
        """Which of its records one is: ``, kind 3``."""
        return f", {self.over} {record.config[self.over]}" if self.over else ""

    def config(self) -> dict:
        """The fields of its configuration that all its records share."""
        return {
            name: value for name, value in self.records[0].config.items() if name != self.over
        }

    def read(self, what: str | q.Derived) -> Metric | None:
        """The mean over its records; None where one does not say."""
        found = [q.read(what, r) for r in self.records]
        if None in found:
            return None
        mean = math.fsum(metric.value for metric in found) / len(found)
        return found[0].model_copy(
            update={"value": mean, "n": min(metric.n for metric in found)}
        )
