"""Records: the one JSON file that a trial leaves behind.

Claims are judged from records alone, so a record says everything that a doubting reader would
ask: what was run, on which data, by which code, on which machine, and how it differs from the
paper.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from pydantic import AwareDatetime, Field

from capslib.config import Model
from capslib.papers.experiment import (
    LARGEST,
    Count,
    DataFingerprint,
    Deviation,
    Fields,
    Metric,
    Number,
    Trial,
)

Exit = Literal["ok", "nan", "oom", "interrupted", "error", "cut"]
UNFINISHED: tuple[Exit, ...] = ("interrupted", "cut")
"""Exits after which the trial still has to run."""
RoutingPath = Literal["eager", "fast", "compiled", "none"]
"""Which implementation of a routing ran: the definition, the fast one, or that compiled."""
ABSCISSAS = (
    "epochs",
    "steps",
    "distances",
    "epsilons",
    "depths",
    "half_steps",
    "quantiles",
    "log_shares",
    "ranks",
)
"""Series that curves are drawn over.

In a record that has any of them, every curve is as long as one, and belongs to the first that
fits.
"""
NOT_CURVES = ("picture", "turned", "rank_shares", "by_", "lambda", "width", "theta")
"""Prefixes of the names of series that are not curves.

They are pictures and grids, row by row; the parameters of each parent; and means over each
tenth of the children.
"""

RANGES = {
    "fraction": (0, 1),
    "steps": (0, LARGEST),
    "epochs": (0, LARGEST),
    "operations": (0, LARGEST),
    "bytes of an image": (0, LARGEST),
    "seconds of one core": (0, LARGEST),
}
"""The lowest and the highest value of a metric, by its unit.

Other units have no known range: a count may even be one of orders of magnitude.
"""


class Code(Model):
    """The code that ran.

    A known revision without uncommitted changes proves which code it was.
    """

    revision: str | None = Field(
        pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$",
        description="git's revision of this project; null where git knows none",
    )
    dirty: bool | None = Field(
        description="whether there were uncommitted changes; null where git cannot tell",
    )
    capslib: str = Field(
        pattern=r"^[0-9a-f]{64}$",
        description="hash of the code that names its checkpoints; it proves nothing",
    )


class Environment(Model):
    """The software and the machine that ran a trial."""

    python: str
    torch: str
    device: str
    threads: Count
    deterministic: bool


class Record(Model):
    """What one trial leaves behind: ``results/PAPER/EXPERIMENT/KEY.json``."""

    schema_version: Literal[2] = 2
    key: str
    trial: Trial
    config: Fields = Field(description="every field that the trial ran with, defaults included")
    deviations: list[Deviation]
    metrics: dict[str, Metric]
    series: dict[str, list[Number]] = Field(
        description="curves, pictures and grids, by name; "
        "`steps`, `epochs` or another of the abscissas has the places of curves"
    )
    data: list[DataFingerprint]
    code: Code
    environment: Environment
    routing_path: RoutingPath = Field(description="which implementation of the routing ran")
    parameters: Count = Field(
        description="parameters of the network, frozen ones too; 0 where there is none"
    )
    wall_seconds: float = Field(ge=0, le=1e9)  # thirty years
    peak_memory_bytes: Count
    started: AwareDatetime
    finished: AwareDatetime
    exit: Exit = Field(
        description="how it ended; `cut` is by --max-steps: "
        "a rehearsal, whatever came of it, and no result"
    )
    message: str = ""
    resumed_from: list[Count] = Field(
        default=[], description="the steps at which the run was taken up again"
    )

    @property
    def real(self) -> bool:
        """Whether no data set that the trial saw is a stand-in."""
        return not any(data.stand_in for data in self.data)

    @property
    def failed(self) -> bool:
        """Whether it did not come to its end; a rehearsal that failed has a message."""
        if self.exit == "cut":
            return bool(self.message)
        return self.exit != "ok"


def key_count(record: Record) -> int:
    """Return the number of keys in the file of a record, those of all objects together."""
    models = [
        record,
        record.trial,
        record.code,
        record.environment,
        *record.deviations,
        *record.metrics.values(),
        *record.data,
    ]
    mappings = [record.trial.config, record.config, record.metrics, record.series]
    return sum(len(m.model_fields_set) for m in models) + sum(map(len, mappings))


def faults(record: Record) -> Iterator[str]:
    """Yield what is wrong with the record of a run, as far as the record alone can tell.

    A rehearsal has no results to look at.
    """
    if record.exit == "cut":
        return
    if record.finished < record.started:
        yield (
            "finished before it started: "
            "set the clock, delete the file, and run its trial again"
        )
    if record.exit == "ok" and not record.metrics:
        yield "ended well but holds no metric: delete the file, and run its trial again"
    if record.exit != "ok" and (record.metrics or not record.message):
        yield (
            f"ended in {record.exit}, so it needs a message and no metric: "
            "delete the file, and run its trial again"
        )
    for name, metric in record.metrics.items():
        if metric.n < 1:
            yield f"metric {name} was measured on nothing: fix the experiment"
        low, high = RANGES.get(metric.unit, (-LARGEST, LARGEST))
        if not low <= metric.value <= high:
            yield (
                f"metric {name} = {metric.value:g} is out of the range of its unit, "
                f"{metric.unit}: fix the experiment"
            )
    yield from _faults_of_series(record.series)


def _faults_of_series(series: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """Yield which curves do not fit their abscissas, and which abscissas do not rise."""
    lengths = {name: len(series[name]) for name in ABSCISSAS if name in series}
    for name, values in series.items():
        is_curve = not name.startswith(NOT_CURVES)
        if is_curve and lengths and len(values) not in lengths.values():
            axes = " and ".join(f"{length} {axis}" for axis, length in lengths.items())
            yield f"curve {name} has {len(values)} points over {axes}: fix the experiment"
        if name in lengths and any(a >= b for a, b in itertools.pairwise(values)):
            yield f"{name} do not rise: fix the experiment"
