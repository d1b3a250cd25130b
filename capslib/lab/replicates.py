"""Replicates: the records that may decide a claim, seed by seed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from capslib.lab.records import Exit, Record
from capslib.papers import query as q
from capslib.papers.experiment import TWICE, Metric, Scale
from capslib.papers.query import Select

FAILED: tuple[Exit, ...] = ("nan", "oom", "error")
"""Ends of a run that failed. An interrupted run is not over yet, so it says nothing."""


def one_budget(record: Record) -> int:
    """Return 1: every record is one of its scale's own."""
    return 1


class Runs:
    """The records that may decide a claim: on real data, at cpu or paper scale.

    ``budget(record)`` is 1 for a scale's own records, 2 for those with twice its epochs, and 0
    for others, such as those of an earlier revision. A training that stopped early would be the
    same with twice the epochs, so its record counts as both. ``left_out`` counts the others, by
    paper and experiment.
    """

    def __init__(
        self, records: Iterable[Record] = (), budget: Callable[[Record], int] = one_budget
    ):
        self.left_out: Counter[tuple[str, str]] = Counter()
        by_place: dict[tuple[str, str, int], dict[str, Record]] = {}
        for record in records:
            if not record.real or record.trial.scale == "smoke":
                continue
            if record.exit not in ("ok", *FAILED):
                continue
            paper, experiment = record.trial.paper, record.trial.experiment
            budgets = [budget(record)]
            if budgets == [0]:
                self.left_out[paper, experiment] += 1
            if budgets == [1] and q.stopped_itself(record):
                budgets = [1, 2]
            for number in budgets:
                by_place.setdefault((paper, experiment, number), {})[record.key] = record
        self._indices: dict[tuple[str, str, int], q.Index[Record]] = {}
        for place, place_records in by_place.items():
            self._indices[place] = q.Index(map(_place_in_index, place_records.values()))

    def pick(
        self,
        paper: str,
        select: Select,
        *scales: Scale,
        budget: int = 1,
        single: bool = False,
    ) -> list[Run]:
        """Return the selected runs by seed.

        Records that a selection averages over are one run, once all of them are there. With
        ``single`` each record is a run of its own.
        """
        index = self._indices.get((paper, select.experiment, budget), q.Index())
        records: list[Record] = []
        for scale in scales:
            records += sorted(index.of(select, scale), key=lambda r: (r.trial.seed, r.key))
        field, size = select.over, select.cells
        if len(select.arms) > 1:
            field, size = "arm", len(select.arms)
        if single or not field:
            return [Run((record,)) for record in records]
        groups: dict[tuple, dict[object, Record]] = {}
        for record in records:
            group = groups.setdefault((record.trial.seed, record.trial.scale), {})
            group[_fields(record)[field]] = record
        return [Run(tuple(g.values()), field) for g in groups.values() if len(g) == size]


def _place_in_index(record: Record) -> tuple:
    """Return experiment, scale, fields and record."""
    return record.trial.experiment, record.trial.scale, _fields(record), record


def _fields(record: Record) -> dict:
    """Return the fields of a record; one with twice the budget has the name of its arm."""
    fields = dict(record.config)
    if "arm" in fields:
        fields["arm"] = str(fields["arm"]).removesuffix(TWICE)
    return fields


@dataclass(frozen=True)
class Run:
    """What one seed of an arm measured: one record, or several whose mean is one replicate.

    The records differ in the field ``over``.
    """

    records: tuple[Record, ...]
    over: str = ""

    @property
    def seed(self) -> int:
        """The seed of its records."""
        return self.records[0].trial.seed

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of its records."""
        return tuple(record.key for record in self.records)

    @property
    def exit(self) -> Exit:
        """How its records ended: well, if all of them did."""
        ends = [record.exit for record in self.records if record.exit != "ok"]
        return ends[0] if ends else "ok"

    def label(self, record: Record) -> str:
        """Return what tells a record from the others of the run: ``, kind 3``."""
        return f", {self.over} {record.config[self.over]}" if self.over else ""

    def config(self) -> dict:
        """Return the fields of its configuration that all its records share."""
        first = self.records[0].config
        return {name: value for name, value in first.items() if name != self.over}

    def read(self, quantity: str | q.Derived) -> Metric | None:
        """Return the mean of a quantity over its records; None where one of them lacks it."""
        metrics: Sequence[Metric | None] = [q.read(quantity, r) for r in self.records]
        if None in metrics:
            return None
        mean = math.fsum(metric.value for metric in metrics) / len(metrics)
        least = min(metric.n for metric in metrics)
        return metrics[0].model_copy(update={"value": mean, "n": least})
