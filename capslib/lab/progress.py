"""How a run of many trials is shown: bars on a terminal, lines in a file, one line under a cell of a notebook."""

from __future__ import annotations

import math
import re
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
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
from capslib.lab import estimates
from capslib.lab.claims import verdicts
from capslib.lab.estimates import Estimate
from capslib.lab.ledger import ledger, plural
from capslib.lab.planning import Plan
from capslib.lab.records import Record
from capslib.lab.settings import Settings
from capslib.lab.store import Store
from capslib.lab.workers import Display
from capslib.papers.experiment import Trial


def printable(text: str) -> str:
    """Return a text with its control characters as escapes, ``\\x1b``, except line feeds and tabs.

    Records, folders and data sets come from strangers: a character of theirs could move the cursor or rename the window.
    """
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if character in "\n\t" or not unicodedata.category(character).startswith("C"):
        return character
    return character.encode("unicode_escape").decode()


class Terminal(Console):
    """A console that shows the control characters of whatever it prints."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


class Shown(Display):
    """A line for each trial that ends, and the time left for all. On a terminal also bars: one for all trials, one per running trial.

    Elsewhere (a log, CI, Slurm) each trial that starts has a line too, and where nothing was said for ``QUIET`` seconds, the next
    trial to get further has one. The time left is rich's estimate on both.
    """

    QUIET = 600.0

    def __init__(self, console: Console):
        self.console, self.lock = console, threading.RLock()
        self.live = console.is_terminal and not console.is_dumb_terminal
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(20),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
            disable=not self.live,
            speed_estimate_period=math.inf,  # trials take hours: every sample counts
        )
        self.bars: dict[str, TaskID] = {}
        self.share: dict[str, float] = {}  # how much of each trial is done
        self.ended: set[str] = set()
        self.said = 0.0

    def __enter__(self) -> Shown:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:  # rich ends its bars with an empty line where there are none
            self.progress.stop()

    def plan(self, plan: Plan) -> None:
        self.say(" ".join(summary(plan)))
        seconds = {key: known.seconds for key, known in plan.known.items()}
        alike = (
            None in seconds.values()
        )  # unless the time of every trial is known, all trials weigh the same
        self.weight = {key: 1.0 if alike else max(s, 1e-3) for key, s in seconds.items()}
        self.label, self.total = labels(plan.todo), len(plan.todo)
        self.all = self.progress.add_task(
            "all trials", total=sum(self.weight.values()), note="", visible=bool(plan.todo)
        )

    def step(self, trial: Trial, step: int, steps: int, note: str) -> None:
        with self.lock:
            if trial.key not in self.share:
                self.share[trial.key] = 0.0
                self.bars[trial.key] = self.progress.add_task(
                    escape(self.label(trial)), total=None, note=""
                )
                if not self.live:
                    self.say(f"start  {self.label(trial)}  [{self.state()}]")
            told = (
                steps and trial.key not in self.ended
            )  # a worker's last message may arrive after its record
            if told:
                self.share[trial.key] = step / steps
                self.progress.update(
                    self.bars[trial.key],
                    completed=step,
                    total=steps,
                    note=escape(f"{step}/{steps} {note}"),
                )
            self._update()
            if told and not self.live and self.console.get_time() - self.said >= self.QUIET:
                self.say(f"   at  {self.label(trial)}  {step}/{steps} {note}  [{self.state()}]")

    def finish(self, trial: Trial, record: Record | None) -> None:
        with self.lock:
            if (bar := self.bars.pop(trial.key, None)) is not None:
                self.progress.remove_task(bar)
            if record is None:
                self.share.pop(trial.key, None)
                return
            self.share[trial.key] = 1.0
            self.ended.add(trial.key)
            self._update()
            shown = (
                "  ".join(f"{k}={m.value:.4g}" for k, m in list(record.metrics.items())[:3])
                or record.message
            )
            self.say(
                f"{record.exit:>5}  {self.label(trial)}  {shown}  {duration(record.wall_seconds)}  [{self.state()}]"
            )

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)
        self.said = self.console.get_time()

    def state(self) -> str:
        """``3/30, 4 min left``: how many trials have ended, and the time left for all, as soon as there is an estimate."""
        ended, left = len(self.ended), self.progress.tasks[0].time_remaining
        return f"{ended}/{self.total}" + (
            f", {duration(left)} left" if left and ended < self.total else ""
        )

    def _update(self) -> None:
        done = sum(self.weight[key] * share for key, share in self.share.items())
        self.progress.update(self.all, completed=done, note=f"{len(self.ended)}/{self.total}")


PASSING = re.compile(r"([^\n\r]*)\r(?!\n)")
"""What a terminal, or a notebook, writes the next line over."""


class Passing(Shown):
    """The lines of a log under the cell of a notebook, each written over the one before, and the last one blank."""

    QUIET = 60.0
    width = 0  # of the longest, which the next one has to cover

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
        self.said = self.console.get_time()


def labels(trials: Sequence[Trial]) -> Callable[[Trial], str]:
    """Return a function that names each of these trials: by its arm, else by the fields that differ."""
    configs = {t.key: papers.fields(t) for t in trials}
    names = dict.fromkeys(k for c in configs.values() for k in c)
    fields = [k for k in names if len({str(c.get(k)) for c in configs.values()}) > 1]

    def label(trial: Trial) -> str:
        config = configs[trial.key]
        if config.get("arm"):
            return f"{trial.experiment} {config['arm']} seed={trial.seed}"
        arm = " ".join(f"{k}={config[k]}" for k in fields if k in config)
        return " ".join(filter(None, (trial.experiment, arm, f"seed={trial.seed}")))

    return label


def summary(plan: Plan) -> list[str]:
    """The plan in two sentences: how many trials will run, and how much time and memory they need."""
    scale = f" at scale {plan.todo[0].scale}" if plan.todo else ""
    failed = len(plan.failed.keys() - plan.known.keys())
    failures = f" ({failed} of a failure; --retry-failed runs those again)" if failed else ""
    first = f"{plan.total} trials{scale}: {plan.total - len(plan.todo)} have a record{failures}, {len(plan.todo)} to run."
    if not plan.todo:
        return [first]
    workers = 0 if plan.devices is None else len(plan.devices)
    where = plural(workers, "worker") if workers else "the workers elsewhere"
    seconds = [e.seconds for e in plan.known.values() if e.seconds is not None]
    if not seconds:
        return [first, f"On {where}; no record tells how long they take."]
    shared = (
        f", {duration(sum(seconds) / workers)} on {where}"
        if workers
        else f", shared by {where}"
    )
    missing = (
        f"; {len(plan.todo) - len(seconds)} without an estimate come on top"
        if len(seconds) < len(plan.todo)
        else ""
    )
    memory = (
        f", at most {decimal(most)} each"
        if (most := max(e.memory or 0 for e in plan.known.values()))
        else ""
    )
    return [first, f"Expected: {duration(sum(seconds))} in all{shared}{memory}{missing}."]


def one(known: Estimate) -> str:
    """What one trial will take: ``about 12 min, 340 MB (3 records)``."""
    if known.seconds is None:
        return known.basis
    return f"about {duration(known.seconds)}{f', {decimal(known.memory)}' if known.memory else ''} ({known.basis})"


def costs(plan: Plan, settings: Settings, store: Store) -> Iterator[str]:
    """What the run will take: a line for each trial, each claim that waits for some, each table of numbers in the paper, and all.
    At cpu scale it says which claims the paper's own scale has judged already."""

    def together(trials: Sequence[Trial]) -> str:
        known = [plan.known[t.key] for t in trials]
        steps, flops = map(sum, zip(*map(estimates.work, trials), strict=True))
        seconds = [e.seconds for e in known if e.seconds is not None]
        here = (
            one(known[0])
            if len(known) == 1
            else f"about {duration(sum(seconds))}"
            if seconds
            else "time not known"
        )
        missing = (
            f" and {len(known) - len(seconds)} trials whose time is not known"
            if 0 < len(seconds) < len(known)
            else ""
        )
        tera, minutes = (
            f"{x:,.0f}" if x >= 10 else f"{x:.2g}"
            for x in (flops / 1e12, flops / estimates.CARD / 60)
        )
        card = f"{tera} TFLOP: {minutes} card-minutes at an assumed {estimates.CARD / 1e12:g} TFLOP/s"
        return here + missing + (f"; {steps} steps, {card}" if flops else "")

    for trial in plan.todo:
        yield f"{trial}  {together([trial])}"
    todo = {t.key: t for t in plan.todo}
    claims, tables, judged = {}, {}, set()  # by name, the trials that it waits for, by key
    for stem in sorted({t.paper for t in plan.todo}):
        if settings.scale == "cpu":
            judged |= {v.claim.id for v in verdicts(stem, store=store) if v.scale == "paper"}
        for claim, trials in papers.needs(stem, settings.scale).items():
            claims[claim] = {t.key: t for t in trials if t.key in todo}
            if (of := ledger(stem)[claim]).kind == "value":
                tables.setdefault(f"{stem}, {of.where}", {}).update(claims[claim])
    for name, waits in {**claims, **tables, "all": todo}.items():
        if waits:
            already = "; judged at paper scale already" * (name in judged)
            yield f"{name}: {plural(len(waits), 'trial')}, {together([*waits.values()])}{already}"


def duration(seconds: float) -> str:
    """``0.4 s``, ``12 s``, ``4 min``, ``3 h 20 min``."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def failures(records: Sequence[Record], store: Store) -> Table:
    """A table of the trials that failed: how they ended, why, and where their logs are."""
    label = labels([r.trial for r in records])
    table = Table(
        "trial",
        "exit",
        "message",
        "log",
        title=f"{len(records)} failures; --retry-failed runs them again",
    )
    table.columns[-1].overflow = "fold"
    for r in records:
        log, here = store.log(r.trial).resolve(), Path.cwd()
        shown = log.relative_to(here) if log.is_relative_to(here) else log
        table.add_row(escape(label(r.trial)), r.exit, escape(r.message), escape(str(shown)))
    return table
