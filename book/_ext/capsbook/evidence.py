"""The evidence that pages show: every claim with its verdict, and the records behind it.

Hold plain data and import no Sphinx: its environment pickles an :class:`Evidence` between
builds.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import capslib
from capslib import papers
from capslib.errors import check_name
from capslib.lab import claims, frames
from capslib.lab.estimates import Comparison, Experience, Outlook, outlook
from capslib.lab.statistics import interval
from capslib.lab.store import Store
from capslib.lab.study import Study
from capslib.papers import which_routing
from capslib.papers.check import BOUNDS, DIFFERENCES, Select
from capslib.papers.experiment import SCALES, TWICE

if TYPE_CHECKING:
    from capslib.lab.records import Record
    from capslib.lab.replicates import Runs
    from capslib.lab.words import Verdict
    from capslib.papers.experiment import Exit, Metric, Scale, Trial


class Run(NamedTuple):
    """What tables of runs say of a record, and the file that has the rest."""

    trial: Trial
    arm: str
    exit: Exit
    metrics: Mapping[str, float]
    wall_seconds: float
    finished: datetime
    device: str
    revision: str | None
    path: Path


class Measured(NamedTuple):
    """The mean of a metric over seeds, and its 95 % interval; of a single seed, None."""

    value: float
    interval: tuple[float, float] | None
    unit: str
    n: int


@dataclass
class Evidence:
    """All verdicts by claim, in the ledger's order, and all runs above smoke scale by key."""

    root: Path
    """The folder of records."""
    verdicts: dict[str, Verdict]
    runs: dict[str, Run]
    _runs_by_paper: dict[str, Runs] = field(default_factory=dict, repr=False)

    def verdicts_of(self, stem: str | None = None) -> list[Verdict]:
        """Return the verdicts of one paper, or of all."""
        verdicts = self.verdicts.values()
        return [verdict for verdict in verdicts if stem in (None, verdict.claim.paper)]

    def runs_of(self, stem: str) -> list[Run]:
        """Return the runs of one paper."""
        return [run for run in self.runs.values() if run.trial.paper == stem]

    def cited(self, stem: str | None = None) -> list[Run]:
        """Return the runs that the verdicts of a paper use, each once."""
        cited: dict[str, Run] = {}
        for verdict in self.verdicts_of(stem):
            cited |= {key: self.runs[key] for key in verdict.records if key in self.runs}
        return list(cited.values())

    @functools.cached_property
    def hours(self) -> dict[str, float]:
        """The core-hours of the trials at paper scale that each claim waits for.

        A claim is left out if no estimate exists for one of its trials.
        """
        hours: dict[str, float] = {}
        for stem in papers.PAPERS:
            hours |= self._hours(stem)
        return hours

    def _hours(self, stem: str) -> dict[str, float]:
        records = list(Store(self.root).records(stem))
        experience = Experience(records, "cpu")
        estimates: dict[str, float | None] = {}
        hours = {}
        for claim, waits in claims.waits_after(stem, records).items():
            if self.verdicts[claim].status != "waiting":
                continue
            missing = waits.get("paper")
            if missing is None:
                continue
            seconds = []
            for trial in (*missing.trials, *missing.doubles):
                if trial.key not in estimates:
                    estimates[trial.key] = experience.estimate(trial).seconds
                seconds.append(estimates[trial.key])
            if seconds and None not in seconds:
                hours[claim] = sum(seconds) / 3600
        return hours

    @functools.cached_property
    def outlooks(self) -> dict[str, list[Outlook]]:
        """What the experiments of each paper will take at its own size."""
        store = Store(self.root)
        outlooks = {}
        for stem in papers.PAPERS:
            lines = list(outlook(stem, "paper", store))
            if lines:
                outlooks[stem] = lines
        return outlooks

    @functools.cached_property
    def comparisons(self) -> dict[tuple[str, str, str], list[Comparison]]:
        """Measured steps against their estimates, by device, paper and networks."""
        rows: dict[tuple[str, str, str], list[Comparison]] = {}
        for device in ("cuda", "cpu"):
            for stem in papers.PAPERS:
                experience = Experience(Store(self.root).records(stem), device)
                for row in experience.comparisons():
                    rows.setdefault((device, stem, row.networks), []).append(row)
        return rows

    @functools.cached_property
    def study(self) -> Study:
        """The study that asks which routing to use."""
        return Study(Store(self.root).records(which_routing.STEM))

    def measured(
        self, paper: str, experiment: str, arm: str, scale: Scale, metric: str
    ) -> Measured | None:
        """Return the mean of a metric over the seeds of an arm.

        Return None where none has run, and where one failed or lacks the metric. ``ARM - ARM``
        is the difference of two arms, over the seeds that both have. Raises :class:`UserError`
        for a name that is not there.
        """
        check_name("scale", scale, SCALES)
        first, minus, second = arm.partition(" - ")
        metrics = self._by_seed(paper, experiment, first, scale, metric)
        values = {seed: metrics[seed].value for seed in metrics}
        if minus:
            subtrahends = self._by_seed(paper, experiment, second, scale, metric)
            values = {s: values[s] - subtrahends[s].value for s in values if s in subtrahends}
        if not values:
            return None
        unit = next(iter(metrics.values())).unit
        if minus:
            unit = DIFFERENCES.get(unit, unit)
        mean = fmean(values.values())
        ends = interval(list(values.values()), BOUNDS.get(unit))
        return Measured(mean, ends, unit, len(values))

    def _by_seed(
        self, paper: str, experiment: str, arm: str, scale: Scale, metric: str
    ) -> dict[int, Metric]:
        """Return a metric of an arm by seed; nothing if a run of the arm failed or lacks it.

        To leave such a seed out would select runs by their outcome. Raises :class:`UserError`
        if all of them lack it, and for an unknown name.
        """
        # Raises for an unknown experiment or arm.
        papers.experiments(paper)[experiment].trials(scale, where={"arm": arm})
        select = Select(experiment, arm.removesuffix(TWICE))
        budget = 2 if arm.endswith(TWICE) else 1
        runs = self._runs_of_paper(paper).pick(paper, select, scale, budget=budget)
        if any(run.exit != "ok" for run in runs):
            return {}
        metrics = {run.seed: run.read(metric) for run in runs}
        if set(metrics.values()) == {None}:
            names = {name for run in runs for name in run.records[0].metrics}
            check_name(f"metric of {experiment}", metric, names)
        return {} if None in metrics.values() else metrics

    def _runs_of_paper(self, paper: str) -> Runs:
        """Return the runs of a paper, read once a build."""
        if paper not in self._runs_by_paper:
            records = Store(self.root).records(paper)
            self._runs_by_paper[paper] = claims.runs_of(records)
        return self._runs_by_paper[paper]

    def __getstate__(self) -> dict[str, object]:
        """Return what Sphinx keeps between builds: no records."""
        state = {name: value for name, value in self.__dict__.items() if name != "study"}
        return {**state, "_runs_by_paper": {}}


def load(results: Path) -> Evidence:
    """Judge every claim by the records in ``results``."""
    store = Store(results)
    verdicts = {verdict.claim.id: verdict for verdict in claims.verdicts(store=store)}
    runs = {}
    for record in store.records():
        if record.trial.scale != "smoke":
            runs[record.key] = _run(record, store.path(record.trial))
    return Evidence(results, verdicts, runs)


def _run(record: Record, path: Path) -> Run:
    trial = record.trial
    arm = papers.arm(trial).name if papers.known(trial) else ""
    return Run(
        trial=trial,
        arm=arm or _fields(trial),
        exit=record.exit,
        metrics={name: metric.value for name, metric in record.metrics.items()},
        wall_seconds=record.wall_seconds,
        finished=record.finished,
        device=record.environment.device,
        revision=record.code.revision,
        path=path,
    )


def _fields(trial: Trial) -> str:
    """Return the fields in which a configuration that no arm has differs from the defaults."""
    fields = sorted(trial.config.items())
    return ", ".join(f"{name} = {frames.text(value)}" for name, value in fields)


def stamp(results: Path) -> str:
    """Return a hash of all that evidence depends on: the records and the code of ``capslib``.

    Of a file its name, time and size tell whether it has changed.
    """
    package = Path(capslib.__file__).parent
    return state([*Store(results).paths(), *package.rglob("*.py"), *package.rglob("*.csv")])


def state(files: Iterable[Path]) -> str:
    """Return a hash of the names, times and sizes of files."""
    digest = hashlib.sha256()
    for path in sorted(files):
        status = path.stat()
        digest.update(f"{path} {status.st_mtime_ns} {status.st_size}\n".encode())
    return digest.hexdigest()
