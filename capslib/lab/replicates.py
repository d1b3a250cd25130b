"""Replicates: the records that may decide a claim, seed by seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from capslib.lab.records import Exit, Record
from capslib.papers.check import Quantity, Select, read, stopped_itself
from capslib.papers.experiment import TWICE, Metric, Scale

FAILED: tuple[Exit, ...] = ("nan", "oom", "error")
"""Ends of a run that failed. An interrupted run is not over yet, so it says nothing."""


class Runs:
    """The records that may decide a claim: on real data, at cpu or paper scale.

    ``budget(record)`` is 1 for a scale's own records, and 2 for those with twice its epochs. It
    is 0 for others, such as those of an earlier revision. A training that stopped early would
    be the same with twice the epochs, so its record counts as both. ``left_out`` counts the
    others, by paper and experiment.

    ``done`` has the keys of all records, and ``stopped`` those of trainings that stopped early.
    """

    def __init__(self, records: Iterable[Record], budget: Callable[[Record], int]):
        self.done: set[str] = set()
        self.stopped: set[str] = set()
        self.left_out: Counter[tuple[str, str]] = Counter()
        self._arms: dict[tuple, dict[str, Record]] = {}
        for record in records:
            self.done.add(record.key)
            if stopped_itself(record):
                self.stopped.add(record.key)
            if not record.real or record.trial.scale == "smoke":
                continue
            if record.exit not in ("ok", *FAILED):
                continue
            trial = record.trial
            times = budget(record)
            if times == 0:
                self.left_out[trial.paper, trial.experiment] += 1
                continue
            budgets = (1, 2) if times == 1 and stopped_itself(record) else (times,)
            for number in budgets:
                arm = trial.paper, trial.experiment, trial.scale, arm_of(record), number
                self._arms.setdefault(arm, {})[record.key] = record

    def pick(
        self, paper: str, select: Select, *scales: Scale, budget: int = 1, single: bool = False
    ) -> list[Run]:
        """Return the selected runs by seed.

        Of several arms, a run holds one record of each with the same seed; a seed that lacks an
        arm is left out. With ``single`` each record is a run of its own.
        """
        runs: list[Run] = []
        for scale in scales:
            arms = select.at(scale).names
            records: list[Record] = []
            for arm in arms:
                address = paper, select.experiment, scale, arm, budget
                records += self._arms.get(address, {}).values()
            records.sort(key=lambda record: (record.trial.seed, record.key))
            if single or len(arms) == 1:
                runs += [Run((record,)) for record in records]
            else:
                runs += _run_of_each_seed(records, len(arms))
        return runs


def _run_of_each_seed(records: Sequence[Record], arm_count: int) -> list[Run]:
    """Return a run for each seed that has records of ``arm_count`` arms."""
    by_seed: dict[int, dict[str, Record]] = {}
    for record in records:
        by_seed.setdefault(record.trial.seed, {})[arm_of(record)] = record
    runs = []
    for by_arm in by_seed.values():
        if len(by_arm) == arm_count:
            runs.append(Run(tuple(by_arm.values())))
    return runs


def arm_of(record: Record) -> str:
    """Return the name of a record's arm; one with twice the budget has the same."""
    return str(record.config.get("arm", "")).removesuffix(TWICE)


@dataclass(frozen=True)
class Run:
    """What one seed of a selection measured: one record, or one of each of its arms."""

    records: tuple[Record, ...]

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
        """Return what tells a record from the others of the run: ``, arm mnist/bias``."""
        return f", arm {arm_of(record)}" if len(self.records) > 1 else ""

    def read(self, quantity: str | Quantity) -> Metric | None:
        """Return the mean of a quantity over its records; None where one of them lacks it."""
        metrics: Sequence[Metric | None] = [read(quantity, r) for r in self.records]
        if None in metrics:
            return None
        mean = fmean(metric.value for metric in metrics)
        fewest = min(metric.n for metric in metrics)
        return metrics[0].model_copy(update={"value": mean, "n": fewest})
