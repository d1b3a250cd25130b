"""Show a run of many trials: bars on a terminal, lines in a file, one line under a cell."""

from __future__ import annotations

import math
import re
import sys
import threading
import unicodedata
from collections import Counter
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
from capslib.lab.budget import Choice, Cost, Group, Waiting, choose
from capslib.lab.estimates import UNKNOWN, Estimate, Total, flops, steps, total, total_of
from capslib.lab.ledger import plural
from capslib.lab.planning import Crew, Plan, expected
from capslib.lab.records import Record
from capslib.lab.store import Store
from capslib.lab.words import first_names
from capslib.lab.workers import Display
from capslib.papers.check import common_name
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

    Elsewhere (a log, CI, Slurm) each trial that starts has a line, too. After ``QUIET`` seconds
    without a line, the next step of a trial prints one.
    """

    QUIET = 600.0

    def __init__(self, console: Terminal):
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
            speed_estimate_period=math.inf,  # trials take hours: no sample is too old
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
        for task in self.progress.task_ids:  # of a plan before
            self.progress.remove_task(task)
        self.bars, self.shares, self.ended = {}, {}, set()
        self.labels = labels(plan.todo)
        seconds = [plan.estimates[trial.key].seconds for trial in plan.todo]
        if None in seconds or plan.max_steps is not None:
            seconds = [1.0] * len(seconds)  # then the bar counts trials, not time
        # By trial, the seconds that it is expected to take.
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
        self.console.print(text, soft_wrap=True)
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
"""Match a line that ends in a carriage return: the next line is written over it."""


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
    """Return a plan in two sentences: how many trials will run, and what they will take.

    The estimates are of whole trials, so they say nothing of a rehearsal.
    """
    scale = f" at scale {plan.todo[0].scale}" if plan.todo else ""
    failed = len(plan.not_ok.keys() - plan.estimates.keys())
    failures = ""
    if failed:
        failures = f" ({failed} of a failure; --retry-failed runs those again)"
    ready = plan.total - len(plan.todo)
    records = f"{ready} have a record{failures}, {len(plan.todo)} to run."
    sentences = [f"{plural(plan.total, 'trial')}{scale}: {records}"]
    if plan.todo and plan.max_steps is not None:
        steps = plural(plan.max_steps, "step")
        sentences.append(f"They are rehearsed: {steps} of each training.")
    elif plan.todo:
        sentences.append(_time_and_memory(plan))
    return sentences


def _time_and_memory(plan: Plan) -> str:
    """Return a sentence about the time and the memory that a plan will take."""
    crew = "a worker elsewhere"
    if plan.devices is not None:
        crew = plural(len(plan.devices), "worker")
    time = expected(plan)
    if time.unknown == len(plan.todo):
        return f"No record tells how long they take on {crew}."
    memory = max(e.memory or 0 for e in plan.estimates.values())
    memory_text = f", at most {decimal(memory)} each" if memory else ""
    return f"Expected on {crew}: {time_and_basis(time)}{memory_text}."


def describe(estimate: Estimate) -> str:
    """Return what one trial will take: ``about 12 min (8 min to 20 min), 340 MB; by …``."""
    if estimate.seconds is None:
        return estimate.basis
    memory = f", {decimal(estimate.memory)}" if estimate.memory else ""
    return (
        f"{time_and_range(total([estimate], workers_per_card=1))}{memory}; by {estimate.basis}"
    )


def time_and_range(time: Total) -> str:
    """Return a time with its range: ``about 12 min (8 min to 20 min)``."""
    text = f"about {duration(time.seconds)}"
    low, high = duration(time.low), duration(time.high)
    return text if low == high else f"{text} ({low} to {high})"


def basis_of(time: Total) -> str:
    """Return what a time rests on, most first: ``30 by records of the same step``."""
    return ", ".join(f"{number} by {basis}" for basis, number in time.bases.most_common())


def time_and_basis(time: Total) -> str:
    """Return a time, its range, what it rests on, and how many trials are not in it."""
    estimated = time._replace(bases=Counter(time.bases))
    estimated.bases.pop(UNKNOWN.basis, None)
    text = f"{time_and_range(time)}, {basis_of(estimated)}"
    if time.unknown:
        text += f"; {time.unknown} without an estimate come on top"
    return text


# ------------------------------------------------------------------------------- plans in lines

FEW_TRIALS = 12
"""So many trials are listed one by one."""


def _columns(
    trials: object, at_once: object, time: str, claims: object, headlines: object, text: str
) -> str:
    """Return a line of a plan, its columns below those of :data:`HEAD`."""
    return f"{trials:>6} {at_once:>7}  {time:<34} {claims:>6} {headlines:>8}  {text}"


HEAD = _columns("trials", "at once", "time", "claims", "headline", "what they are")


def group_lines(groups: Iterable[Group], trials: Mapping[str, Trial]) -> Iterator[str]:
    """Yield a line for each group of trials: what it takes, and what it then decides."""
    for group in groups:
        label = label_of([trials[key] for key in group.trials])
        yield _columns(
            len(group.trials),
            group.crew.workers,
            time_and_range(group.time),
            len(group.claims),
            group.headlines or "",
            f"{label}: {first_names(group.claims, 3, ', ')}; {basis_of(group.time)}",
        )


def label_of(trials: Iterable[Trial]) -> str:
    """Return experiments and arms: ``em_routing/test_error copy/*``, a star for what varies."""
    arms: dict[str, dict[str, None]] = {}
    for trial in trials:
        names = arms.setdefault(f"{trial.paper}/{trial.experiment}", {})
        names[papers.arm(trial).name] = None
    texts = []
    for experiment, names in arms.items():
        texts.append(f"{experiment} {common_name(names)}".strip())
    return ", ".join(texts)


def choice_lines(choice: Choice, trials: Mapping[str, Trial], most: int = 10) -> Iterator[str]:
    """Yield what a budget buys: the groups to run, what is begun, and what is left out."""
    if choice.groups:
        yield HEAD
        yield from group_lines(choice.groups, trials)
        decided = sum(len(group.claims) for group in choice.groups)
        headlines = sum(group.headlines for group in choice.groups)
        time = total_of(group.time for group in choice.groups)
        yield (
            f"all: {plural(time.bases.total(), 'trial')} to decide {plural(decided, 'claim')}, "
            f"{headlines} of them headline claims, in {time_and_basis(time)}."
        )
    if choice.begun:
        yield "The time that is left begins this, and checkpoints keep what is done:"
        yield from group_lines([choice.begun], trials)
    groups_left = [group for group in choice.left_out if group is not choice.begun]
    if groups_left:
        # The claims of what is begun count, too: it will not end in this time.
        undecided = {claim for group in choice.left_out for claim in group.claims}
        left_out = f"Left out, {plural(len(undecided), 'claim')} in all"
        yield f"{left_out}; the best of them:" if most else f"{left_out}."
        yield from group_lines(groups_left[:most], trials)


def plan_lines(
    plan: Plan, waiting: Waiting, costs: Mapping[str, Cost], *, list_trials: bool
) -> Iterator[str]:
    """Yield what a run will take, group by group, those that decide most a minute first.

    With ``list_trials``, and where there are few, every trial has a line first. Trials in no
    group follow by experiment. The last line has the total.
    """
    if list_trials or len(plan.todo) <= FEW_TRIALS:
        for trial in plan.todo:
            yield f"{trial}  {describe(plan.estimates[trial.key])}"
    if not plan.todo:
        return
    crew = Crew.on(plan.devices)
    choice = choose(waiting.bundles, costs, math.inf, lambda estimates: crew)
    remaining = {trial.key: trial for trial in plan.todo}
    if choice.groups:
        yield HEAD
        yield from group_lines(choice.groups, waiting.trials)
        for key in choice.trials:
            remaining.pop(key, None)
    yield from _lines_by_experiment(remaining.values(), plan, crew)
    step_count, flop_count = sum(map(steps, plan.todo)), sum(map(flops, plan.todo))
    counted = ""
    if flop_count:
        counted = f"; {plural(step_count, 'step')}, {_digits(flop_count / 1e12)} TFLOP"
    yield f"all: {plural(len(plan.todo), 'trial')}, {time_and_basis(expected(plan))}{counted}"


def _lines_by_experiment(trials: Iterable[Trial], plan: Plan, crew: Crew) -> Iterator[str]:
    """Yield a line for the trials of each experiment that are in no group of claims."""
    by_experiment: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        by_experiment.setdefault((trial.paper, trial.experiment), []).append(trial)
    for members in by_experiment.values():
        estimates = [plan.estimates[trial.key] for trial in members]
        time = total(estimates, crew.devices, crew.workers_per_card)
        text = f"{label_of(members)}; {basis_of(time)}"
        yield _columns(len(members), crew.workers, time_and_range(time), 0, "", text)


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
    title = plural(len(records), "failure")
    if any(record.exit != "cut" for record in records):  # a rehearsal runs again without it
        title = f"{title}; --retry-failed runs them again"
    table = Table("trial", "exit", "message", "log", title=title)
    table.columns[-1].overflow = "fold"
    label = labels([record.trial for record in records])
    for record in records:
        log = store.log(record.trial).resolve()
        if log.is_relative_to(Path.cwd()):
            log = log.relative_to(Path.cwd())
        table.add_row(label[record.key], record.exit, record.message, str(log))
    return table
