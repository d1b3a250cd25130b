"""Records: the one JSON file that a trial leaves behind.

Claims are judged from records alone, so a record says everything that a doubting reader would ask: what was run, on which data,
by which code, on which machine, and how it differs from the paper.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import AwareDatetime, Field

from capslib.config import Model
from capslib.papers.experiment import DataFingerprint, Deviation, Metric, Trial

Exit = Literal["ok", "nan", "oom", "interrupted", "error", "cut"]
UNFINISHED: tuple[Exit, ...] = ("interrupted", "cut")
"""Ends that count for nothing: the trial still has to run."""
RoutingPath = Literal["eager", "fast", "compiled", "none"]
"""Which implementation of a routing ran: its definition, the fast path, the fast path compiled, or there was none."""
ABSCISSAS = ("epochs", "steps", "distances", "epsilons", "depths", "half_steps", "quantiles", "log_shares", "ranks")
"""Series that curves are drawn over: every curve of a record is as long as one of them, and belongs to the first that fits."""
LISTS = ("picture", "turned", "rank_shares", "by_", "lambda", "width", "theta")
"""How the names of series begin that are no curves: grids of numbers, row by row, or one number for each tenth of the children or for each parent."""


class Code(Model):
    """The code that ran. A known revision without changes proves it."""

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
    python: str
    torch: str
    device: str
    threads: int
    deterministic: bool


class Record(Model):
    """What one trial leaves behind: ``results/PAPER/EXPERIMENT/KEY.json``."""

    schema_version: Literal[2] = 2
    key: str
    trial: Trial
    config: dict[str, Any] = Field(description="every field that the trial ran with, defaults included")
    deviations: list[Deviation]
    metrics: dict[str, Metric]
    series: dict[str, list[float]] = Field(
        description="curves, by name; `steps`, `epochs` or another of the abscissas has their places"
    )
    data: list[DataFingerprint]
    code: Code
    environment: Environment
    routing_path: RoutingPath = Field(description="which implementation of the routing ran")
    parameters: int = Field(ge=0, description="parameters of the network, frozen ones too; 0 where there is none")
    wall_seconds: float = Field(ge=0)
    peak_memory_bytes: int = Field(ge=0)
    started: AwareDatetime
    finished: AwareDatetime
    exit: Exit = Field(description="how it ended; `cut` is by --max-steps: a rehearsal, whatever came of it, and no result")
    message: str = ""
    resumed_from: list[int] = Field(default=[], description="the steps at which the run was taken up again")

    @property
    def real(self) -> bool:
        """Whether every data set that the trial saw was a real one. A trial that needs no data is real too."""
        return not any(d.stand_in for d in self.data)

    @property
    def failed(self) -> bool:
        """Whether it did not come to its end. A rehearsal that failed says so in its message."""
        return self.exit != "ok" and not (self.exit == "cut" and not self.message)
