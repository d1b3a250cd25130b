"""How a run of many trials is shown: bars on a terminal, lines where the output goes to a file."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from capslib import papers
from capslib.batch import Display
from capslib.costs import DEVICES, on
from capslib.planning import Estimate, Plan
from capslib.settings import Settings
from capslib.store import Store
from capslib.trials import Record, Trial

CARD = DEVICES["cuda"]


def display(console: Console) -> Lines:
    """What suits the console."""
    return Bars(console) if console.is_terminal and not console.is_dumb_terminal else Lines(console)


class Lines(Display):
    """A line for each trial that starts and ends, with the time that is left for all: for logs, CI and Slurm."""

    def __init__(self, console: Console):
        self.console, self.lock = console, threading.RLock()
        self.share: dict[str, float] = {}  # how much of each trial is done

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def plan(self, plan: Plan) -> None:
        for line in summary(plan):
            self.say(line)
        seconds = {key: known.seconds for key, known in plan.known.items()}
        alike = None in seconds.values()  # trials count alike unless the time of all of them is known
        self.weight = {key: 1.0 if alike else max(s, 1e-3) for key, s in seconds.items()}
        self.label, self.total, self.started = labels(plan.todo), len(plan.todo), time.monotonic()

    def step(self, trial: Trial, step: int, steps: int, note: str) -> None:
        with self.lock:
            if trial.key not in self.share:
                self.begin(trial)
            if self.share.setdefault(trial.key, 0.0) < 1:  # what a worker said last may come after its record
                self.share[trial.key] = min(step / steps, 0.999) if steps else 0.0
                self.moved(trial, step, steps, note)

    def finish(self, trial: Trial, record: Record | None) -> None:
        with self.lock:
            if record is None:
                self.share.pop(trial.key, None)
                return
            self.share[trial.key] = 1.0
            shown = "  ".join(f"{k}={m.value:.4g}" for k, m in list(record.metrics.items())[:3]) or record.message
            self.say(f"{record.exit:>5}  {self.label(trial)}  {shown}  {duration(record.wall_seconds)}  [{self.state()}]")

    def begin(self, trial: Trial) -> None:
        self.say(f"start  {self.label(trial)}")

    def moved(self, trial: Trial, step: int, steps: int, note: str) -> None:
        """The share of a running trial that is done has changed."""

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def state(self) -> str:
        """``3/30, 4 min left``: from what is done of all trials, running ones included, and the time it took."""
        ended = sum(share == 1 for share in self.share.values())
        done = sum(self.weight[key] * share for key, share in self.share.items())
        left = (time.monotonic() - self.started) * (sum(self.weight.values()) / done - 1) if done else None
        return f"{ended}/{self.total}" + (f", {duration(left)} left" if left and ended < self.total else "")


class Bars(Lines):
    """A bar for all trials and one for each that runs; a line for each that has ended stays above them."""

    def __init__(self, console: Console):
        super().__init__(console)
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(20), TimeElapsedColumn(), TextColumn("{task.fields[note]}"),
            console=console, transient=True,
        )  # fmt: skip
        self.bars: dict[str, TaskID] = {}

    def __enter__(self) -> Bars:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def plan(self, plan: Plan) -> None:
        super().plan(plan)
        self.all = self.progress.add_task("all trials", total=sum(self.weight.values()), note="", visible=bool(plan.todo))

    def begin(self, trial: Trial) -> None:
        self.bars[trial.key] = self.progress.add_task(escape(self.label(trial)), total=None, note="")

    def moved(self, trial: Trial, step: int, steps: int, note: str) -> None:
        if steps:
            self.progress.update(self.bars[trial.key], completed=step, total=steps, note=escape(f"{step}/{steps} {note}"))
        self.update()

    def finish(self, trial: Trial, record: Record | None) -> None:
        super().finish(trial, record)
        if (bar := self.bars.pop(trial.key, None)) is not None:
            self.progress.remove_task(bar)
        self.update()

    def update(self) -> None:
        done = sum(self.weight[key] * share for key, share in self.share.items())
        self.progress.update(self.all, completed=done, note=self.state())


def labels(trials: Sequence[Trial]) -> Callable[[Trial], str]:
    """How to name each of these trials in short: by what tells it from the others."""
    configs = [t.config for t in trials]
    fields = [k for k in dict.fromkeys(k for c in configs for k in c) if len({str(c[k]) for c in configs if k in c}) > 1]

    def label(trial: Trial) -> str:
        arm = " ".join(f"{k}={trial.config[k]}" for k in fields if k in trial.config)
        return " ".join(filter(None, (trial.experiment, arm, f"seed={trial.seed}")))

    return label


def summary(plan: Plan) -> list[str]:
    """What is going to happen, in two sentences: how many trials, and what they will take together."""
    scale = f" at scale {plan.todo[0].scale}" if plan.todo else ""
    failed = len(plan.failed.keys() - plan.known.keys())
    failures = f" (of a failure: {failed}; --retry-failed runs those again)" if failed else ""
    first = f"{plan.total} trials{scale}: {plan.total - len(plan.todo)} have a record{failures}, {len(plan.todo)} to run."
    if not plan.todo:
        return [first]
    workers = 0 if plan.devices is None else len(plan.devices)
    where = f"{workers} worker{'s' * (workers > 1)}" if workers else "the workers of the scheduler"
    seconds = [e.seconds for e in plan.known.values() if e.seconds is not None]
    if not seconds:
        return [first, f"On {where}; nothing tells how long they take."]
    shared = f", {duration(sum(seconds) / workers)} on {where}" if workers else f", shared by {where}"
    missing = f"; {len(plan.todo) - len(seconds)} without an estimate come on top" if len(seconds) < len(plan.todo) else ""
    memory = decimal(max(e.memory or 0 for e in plan.known.values()))
    return [first, f"Expected: {duration(sum(seconds))} in all{shared}, at most {memory} each{missing}."]


def one(known: Estimate) -> str:
    """What one trial will take: ``about 12 min, 340 MB (3 records)``."""
    if known.seconds is None or known.memory is None:
        return known.basis
    return f"about {duration(known.seconds)}, {decimal(known.memory)} ({known.basis})"


def costs(plan: Plan, settings: Settings) -> Iterator[str]:
    """A line for each trial with what it takes and costs, one for each claim that waits for some of them, and one for all of them.

    At paper scale, which is made for a large GPU, each says by the cost model what it takes on one, whatever is here.
    """
    works = {t.key: work for t in plan.todo if (work := papers.work(t))}

    def together(trials: Sequence[Trial]) -> str:
        known = [plan.known[t.key] for t in trials]
        seconds = [e.seconds for e in known if e.seconds is not None]
        here = one(known[0]) if len(known) == 1 else f"about {duration(sum(seconds))}"
        counted = [works[t.key] for t in trials if t.key in works]
        return "; ".join([here, *([on(CARD, counted)] if counted and settings.scale == "paper" else [])])

    for trial in plan.todo:
        yield "; ".join(filter(None, [f"{trial}  {together([trial])}", str(works.get(trial.key, ""))]))
    todo = {t.key for t in plan.todo}
    for stem in sorted({t.paper for t in plan.todo}):
        for claim, trials in papers.needs(stem, settings.scale).items():
            if waits := [t for t in trials if t.key in todo]:
                yield f"{claim}: {len(waits)} trial{'s' * (len(waits) > 1)}, {together(waits)}"
    if plan.todo:
        yield f"all: {len(plan.todo)} trial{'s' * (len(plan.todo) > 1)}, {together(plan.todo)}"


def duration(seconds: float) -> str:
    """``0.4 s``, ``12 s``, ``4 min``, ``3 h 20 min``."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def failures(records: Sequence[Record], store: Store) -> Table:
    """A table of the trials that failed: how, why, and where the log is."""
    label = labels([r.trial for r in records])
    table = Table("trial", "exit", "message", "log", title=f"{len(records)} failures; --retry-failed runs them again")
    table.columns[-1].overflow = "fold"
    for r in records:
        log = store.log(r.trial).resolve()
        shown = log.relative_to(Path.cwd()) if log.is_relative_to(Path.cwd()) else log
        table.add_row(escape(label(r.trial)), r.exit, escape(r.message), escape(str(shown)))
    return table
