"""What several test files call, and what is no fixture."""

from __future__ import annotations

import contextlib
import os
import re
import unittest
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import ValidationError

from capslib import papers
from capslib.errors import UserError, notify
from capslib.lab import batch
from capslib.lab.records import Code, Environment, Record
from capslib.lab.replicates import Runs
from capslib.papers.experiment import Metric, Trial


def lacking(reason: str) -> None:
    """Skip a test, saying what is lacking. Fail in CI, where nothing may be."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason} (in CI this may not be lacking)")
    pytest.skip(reason)


@contextlib.contextmanager
def notified(pattern: str) -> Iterator[list[str]]:
    """Collect what capslib notifies its user of meanwhile; one message has to match the
    pattern.
    """
    notify.cache_clear()  # which tells nothing twice
    with unittest.TestCase().assertLogs("capslib") as logged:
        yield logged.output
    assert [message for message in logged.output if re.search(pattern, message)], logged.output


def every_field(trial: Trial) -> dict[str, object]:
    """Return the whole configuration of a trial, or what it says itself if nobody knows it."""
    try:
        return papers.fields(trial)
    except (KeyError, ValidationError, UserError):
        return trial.config


def make_record(trial: Trial, **changes: object) -> Record:
    """A sound record of a trial; keywords replace its fields."""
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    fields = dict(
        key=trial.key,
        trial=trial,
        config=changes["config"] if "config" in changes else every_field(trial),
        deviations=[],
        metrics={"train_accuracy": Metric(value=0.5, n=20, unit="fraction")},
        series={"loss": [0.3, 1 / 3]},
        data=[],
        code=Code(revision=None, dirty=None, capslib="0" * 64),
        environment=Environment(
            python="3.11.0",
            torch="2.11.0",
            device="CPU (x86_64)",
            threads=1,
            deterministic=True,
        ),
        routing_path="eager",
        parameters=7,
        wall_seconds=1.5,
        peak_memory_bytes=1,
        started=moment,
        finished=moment,
        exit="ok",
    )
    return Record(**{**fields, **changes})


def runs_of(records: Iterable[Record]) -> Runs:
    """Return the runs that records make, by the budgets of their experiments."""
    return Runs(records, lambda record: papers.budget(record.trial))


class Harm:
    """What a pickle would run that comes from somebody else."""

    def __reduce__(self):
        return Path.touch, (Path("harm"),)


class RecordedDisplay(batch.Display):
    """A display that keeps what it shows, and does something after each line."""

    def __init__(self, then: Callable[[], object] = lambda: None):
        self.plans = []
        self.steps = []
        self.ends = []
        self.lines = []
        self.then = then

    def plan(self, plan):
        self.plans.append(plan)

    def step(self, trial, step, steps, note):
        self.steps.append((trial.key, step, steps, note))

    def finish(self, trial, record):
        self.ends.append((trial.key, record))

    def say(self, text):
        self.lines.append(text)
        self.then()


def contrast(first: str, second: str) -> float:
    """Return the contrast of two colours as WCAG 2 defines it.

    They are as in a style, ``#565d69``, or as a browser computes them, ``rgb(86, 93, 105)``.
    """
    low, high = sorted([_luminance(first), _luminance(second)])
    return (high + 0.05) / (low + 0.05)


def _luminance(color: str) -> float:
    """Return the relative luminance of a colour."""
    if color.startswith("#"):
        channels = bytes.fromhex(color[1:])
    else:
        channels = map(int, re.fullmatch(r"rgb\((\d+), (\d+), (\d+)\)", color).groups())
    luminance = 0
    for channel, weight in zip(channels, (0.2126, 0.7152, 0.0722), strict=True):
        part = channel / 255
        linear = part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        luminance += weight * linear
    return luminance
