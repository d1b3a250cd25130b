"""Show a run of many trials: bars on a terminal, lines in a file, one line under a cell."""

from __future__ import annotations

import math
import re
import sys
import threading
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from capslib import papers
from capslib.lab.claims import verdicts
from capslib.lab.estimates import CARD, Estimate, Work, work
from capslib.lab.ledger import ledger, plural
from capslib.lab.planning import Plan
from capslib.lab.records import Record
from capslib.lab.settings import Settings
from capslib.lab.store import Store
from capslib.lab.workers import Display
from capslib.papers.experiment import Trial


def printable(text: str) -> str:
    """Return a text with its control characters as escapes, ``\\x1b``, except ``\\n`` and tabs.

    Records, folders and data sets come from strangers: a character of theirs could move the
    cursor or rename the window.
    """
    characters = []
    for character in text:
        if unicodedata.category(character).startswith("C") and character not in "\n\t":
            character = character.encode("unicode_escape").decode()
        characters.append(character)
    return "".join(characters)


class Terminal(Console):
    """A console without markup that shows the control characters of whatever it prints."""

    def __init__(self, **options: Any):
        super().__init__(markup=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


class RunDisplay(Display):
    """A line for each trial that ends; on a terminal a bar for each that runs, and for all.

    Elsewhere (a log, CI, Slurm) each trial that starts has a line, too. Where nothing was said
    for ``QUIET`` seconds, so has the next trial that gets further.
    """

    QUIET = 600.0

    def __init__(self, console: Console):
        self.console = console
        self.live = console.is_terminal and not console.is_dumb_terminal
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(20),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            transient=True,
            disable=not self.live,
            speed_estimate_period=math.inf,  # trials take hours: every sample counts
        )
        self.lock = threading.RLock()
        self.bars: dict[str, TaskID] = {}
        self.shares: dict[str, float] = {}  # how much of each trial is done
        self.ended: set[str] = set()
        self.last_line = 0.0  # when it was printed

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:  # else rich prints an empty line
            self.progress.stop()

    def plan(self, plan: Plan) -> None:
        self.say(" ".join(summary(plan)))
        self.labels = labels(plan.todo)
        seconds = [plan.estimates[trial.key].seconds for trial in plan.todo]
        if None in seconds:
            seconds = [1.0] * len(seconds)
        # By trial, its share in the time that all take.
        self.weights = dict(zip(self.labels, seconds, strict=True))
        self.total = self.progress.add_task("all trials", total=sum(seconds), note="")
        self.progress.update(self.total, visible=bool(plan.todo))

    def step(self, trial: Trial, step: int, steps: int, note: str) -> None:
        key, label = trial.key, self.labels[trial.key]
        with self.lock:
            if key in self.ended:
                return  # a worker's last message may arrive after its record
            if key not in self.bars:
                self.bars[key] = self.progress.add_task(label, total=None, note="")
                if not self.live:
                    self.say(f"start  {label}  [{self.state()}]")
            if not steps:
                return
            note = f"{step}/{steps} {note}"
            self.progress.update(self.bars[key], completed=step, total=steps, note=note)
            self._update(key, step / steps)
            quiet = self.console.get_time() - self.last_line
            if not self.live and quiet >= self.QUIET:
                self.say(f"   at  {label}  {note}  [{self.state()}]")

    def finish(self, trial: Trial, record: Record | None) -> None:
        with self.lock:
            bar = self.bars.pop(trial.key, None)
            if bar is not None:
                self.progress.remove_task(bar)
            if record is None:
                self._update(trial.key, 0.0)
                return
            self.ended.add(trial.key)
            self._update(trial.key, 1.0)
            metrics = list(record.metrics.items())[:3]
            result = "  ".join(f"{name}={metric.value:.4g}" for name, metric in metrics)
            seconds = duration(record.wall_seconds)
            line = f"{self.labels[trial.key]}  {result or record.message}  {seconds}"
            self.say(f"{record.exit:>5}  {line}  [{self.state()}]")

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)
        self.last_line = self.console.get_time()

    def state(self) -> str:
        """Return how many trials have ended, and the time left: ``3/30, 4 min left``."""
        state = f"{len(self.ended)}/{len(self.labels)}"
        seconds = self.progress.tasks[0].time_remaining
        if seconds and len(self.ended) < len(self.labels):
            state += f", {duration(seconds)} left"
        return state

    def _update(self, key: str, share: float) -> None:
        self.shares[key] = share
        done = sum(self.weights[key] * share for key, share in self.shares.items())
        note = f"{len(self.ended)}/{len(self.labels)}"
        self.progress.update(self.total, completed=done, note=note)


OVERWRITTEN = re.compile(r"([^\n\r]*)\r(?!\n)")
"""What a terminal, or a notebook, writes the next line over."""


class CellLine(RunDisplay):
    """The lines of a log under the cell of a notebook, each written over the one before.

    The last one is blank.
    """

    QUIET = 60.0

    def __init__(self) -> None:
        super().__init__(Terminal(force_terminal=False))
        self.width = 0  # of the longest line, which the next one has to cover

    def __exit__(self, *_: object) -> None:
        if self.width:
            self.say("")

    def plan(self, plan: Plan) -> None:
        if plan.todo:
            super().plan(plan)

    def say(self, text: str) -> None:
        text = printable(text)
        self.width = max(self.width, len(text))
        sys.stdout.write(f"{text:{self.width}}\r")
        self.last_line = self.console.get_time()


def labels(trials: Sequence[Trial]) -> dict[str, str]:
    """Return a label for each trial, by its key: its arm, else the fields that differ."""
    fields = {trial.key: _fields(trial) for trial in trials}
    common = set.intersection(*map(set, fields.values())) if fields else set()
    result: dict[str, str] = {}
    for trial in trials:
        name = papers.fields(trial).get("arm")
        arm = [name] if name else [f for f in fields[trial.key] if f not in common]
        result[trial.key] = " ".join([trial.experiment, *arm, f"seed={trial.seed}"])
    return result


def _fields(trial: Trial) -> list[str]:
    return [f"{name}={value}" for name, value in papers.fields(trial).items()]


def summary(plan: Plan) -> list[str]:
    """Return a plan in two sentences: how many trials will run, and what they will take."""
    scale = f" at scale {plan.todo[0].scale}" if plan.todo else ""
    failed = len(plan.failed.keys() - plan.estimates.keys())
    failures = ""
    if failed:
        failures = f" ({failed} of a failure; --retry-failed runs those again)"
    ready = plan.total - len(plan.todo)
    records = f"{ready} have a record{failures}, {len(plan.todo)} to run."
    sentences = [f"{plan.total} trials{scale}: {records}"]
    if plan.todo:
        sentences.append(_expected(plan))
    return sentences


def _expected(plan: Plan) -> str:
    """Return a sentence about the time and the memory that a plan will take."""
    crew = "the workers elsewhere"
    if plan.devices is not None:
        crew = plural(len(plan.devices), "worker")
    seconds = [e.seconds for e in plan.estimates.values() if e.seconds is not None]
    if not seconds:
        return f"On {crew}; no record tells how long they take."
    sentence = f"Expected: {duration(sum(seconds))} in all, "
    if plan.devices is None:
        sentence += f"shared by {crew}"
    else:
        sentence += f"{duration(sum(seconds) / len(plan.devices))} on {crew}"
    memory = max(e.memory or 0 for e in plan.estimates.values())
    if memory:
        sentence += f", at most {decimal(memory)} each"
    missing = len(plan.todo) - len(seconds)
    if missing:
        sentence += f"; {missing} without an estimate come on top"
    return f"{sentence}."


def describe(estimate: Estimate) -> str:
    """Return what one trial will take: ``about 12 min, 340 MB (3 records)``."""
    if estimate.seconds is None:
        return estimate.basis
    memory = f", {decimal(estimate.memory)}" if estimate.memory else ""
    return f"about {duration(estimate.seconds)}{memory} ({estimate.basis})"


def costs(plan: Plan, settings: Settings, store: Store) -> Iterator[str]:
    """Yield what a run will take: each trial, each claim or table that waits for some, all.

    At cpu scale a line says which claims the paper's own scale has judged already.
    """
    works = {trial.key: work(trial) for trial in plan.todo}
    for trial in plan.todo:
        yield f"{trial}  {_cost([trial.key], plan, works)}"
    claims: dict[str, list[str]] = {}
    tables: dict[str, dict[str, None]] = {}
    judged: set[str] = set()
    for stem in sorted({trial.paper for trial in plan.todo}):
        if settings.scale == "cpu":
            judged |= {v.claim.id for v in verdicts(stem, store=store) if v.scale == "paper"}
        for claim, trials in papers.needs(stem, settings.scale).items():
            claims[claim] = [trial.key for trial in trials if trial.key in works]
            row = ledger(stem)[claim]
            if row.kind == "value":
                table = tables.setdefault(f"{stem}, {row.where}", {})
                table.update(dict.fromkeys(claims[claim]))
    for name, keys in {**claims, **tables, "all": works}.items():
        if keys:
            line = f"{name}: {plural(len(keys), 'trial')}, {_cost(keys, plan, works)}"
            yield f"{line}; judged at paper scale already" if name in judged else line


def _cost(keys: Iterable[str], plan: Plan, works: Mapping[str, Work]) -> str:
    """Return the time that trials take, their training steps and FLOPs."""
    estimates = [plan.estimates[key] for key in keys]
    seconds = [e.seconds for e in estimates if e.seconds is not None]
    missing = len(estimates) - len(seconds)
    if len(estimates) == 1:
        text = describe(estimates[0])
    elif not seconds:
        text = "time not known"
    else:
        text = f"about {duration(sum(seconds))}"
        if missing:
            text += f" and {missing} trials whose time is not known"
    steps = sum(works[key].steps for key in keys)
    flops = sum(works[key].flops for key in keys)
    if flops:
        minutes = _digits(flops / CARD / 60)
        text += f"; {steps} steps, {_digits(flops / 1e12)} TFLOP: {minutes} card-minutes"
        text += f" at an assumed {CARD / 1e12:g} TFLOP/s"
    return text


def _digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def duration(seconds: float) -> str:
    """Return a time in words: ``0.4 s``, ``12 s``, ``4 min``, ``3 h 20 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def failures(records: Sequence[Record], store: Store) -> Table:
    """Return a table of trials that failed: how they ended, why, and where their logs are."""
    title = f"{len(records)} failures; --retry-failed runs them again"
    table = Table("trial", "exit", "message", "log", title=title)
    table.columns[-1].overflow = "fold"
    label = labels([record.trial for record in records])
    for record in records:
        log = store.log(record.trial).resolve()
        if log.is_relative_to(Path.cwd()):
            log = log.relative_to(Path.cwd())
        table.add_row(label[record.key], record.exit, record.message, str(log))
    return table
