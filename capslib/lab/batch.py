"""Run many trials: those that have no record yet, side by side, on this machine or on a dask cluster.

A trial is a task, see :mod:`capslib.lab.workers`. Whatever is killed, the same call again goes on from the checkpoints:

* On Ctrl-C or SIGTERM the running trials write a checkpoint, and :class:`Interrupted` is raised. A second one is obeyed at once.
* A trial that another process runs, of the same or of another call, is left to it (see :func:`capslib.lab.runs.run_unless_taken`)
  and looked at again at the end.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from capslib import papers
from capslib.errors import Interrupted, UserError
from capslib.lab import planning, progress
from capslib.lab.ledger import plural
from capslib.lab.records import Record
from capslib.lab.runs import code_hash
from capslib.lab.settings import Settings
from capslib.lab.store import Store, project_root
from capslib.lab.workers import Display, Task, executor
from capslib.papers.experiment import Trial


@dataclass(frozen=True)
class Session:
    """A scale, a device and folders: what a notebook or the command line runs its experiments with.

    At smoke scale records go to a folder of the build that belongs to the code at hand, never to the committed results.
    """

    settings: Settings
    store: Store

    @classmethod
    def start(cls, *, elsewhere: bool = False, **parameters: object) -> Session:
        """Check the parameters of a notebook (see :meth:`Settings.check`). Raises :class:`UserError` for whatever is wrong."""
        settings = Settings.check(elsewhere=elsewhere, **parameters)
        root = settings.results_dir
        if root is None and settings.scale == "smoke":
            root = project_root() / "_build" / "smoke" / code_hash()[:12]
        store = Store(root)
        if not elsewhere:  # a plan writes nothing
            store.check_writable()
        return cls(settings, store)

    def trials(self, stem: str, experiment: str, **selection: object) -> list[Trial]:
        """Those of an experiment at this scale. Raises :class:`UserError` as ``Experiment.trials`` does, and says which experiments
        have a field or a configuration that this one lacks."""
        seeds, chosen = (
            None if self.settings.seeds is None else range(self.settings.seeds),
            papers.experiments(stem)[experiment],
        )
        try:
            return chosen.trials(self.settings.scale, seeds=seeds, **selection)
        except UserError as error:
            own, every = chosen.fields, papers.experiments(stem).values()
            for name in {
                **(selection.get("where") or {}),
                **(selection.get("change") or {}),
            }.keys() - set(own):
                if have := ", ".join(e.name for e in every if name in e.fields):
                    raise UserError(
                        f"{error} Experiments with a field {name!r}: {have}. Name one with --experiment."
                    ) from None
            where = {
                name: value
                for name, value in (selection.get("where") or {}).items()
                if name != "seed"
            }
            able = (e for e in every if where.keys() <= set(e.fields))
            have = [
                e.name
                for e in able
                if any(arm.matches(where) for arm in e.at(self.settings.scale).values())
            ]
            if have and experiment not in have:
                raise UserError(
                    f"{error} Experiments that have some: {', '.join(have)}. Name one with --experiment."
                ) from None
            raise

    def run(self, stem: str, experiment: str, **selection: object) -> list[Record]:
        """The records of an experiment at this scale; trials without one are run first, and a line says what was loaded and run.

        ``selection`` is as in ``Experiment.trials``. In a notebook the line tells until then how the trials get on.
        """
        trials = self.trials(stem, experiment, **selection)
        console = Console(force_terminal=False)
        with (
            progress.Passing(console)
            if console.is_jupyter
            else contextlib.nullcontext() as display
        ):
            ran = run(trials, self.store, self.settings, display=display)
        found = [record for trial in trials if (record := self.store.get(trial)) is not None]
        sets, there = (
            sorted({of for r in found if (of := r.config.get("data"))}),
            len(found) - len(ran),
        )
        about = ", ".join([experiment, f"{self.settings.scale} scale", *sets])
        larger = "; figures prefer larger runs" * (self.settings.scale == "smoke")
        print(
            progress.printable(
                f"{plural(there, 'record')} loaded, {len(ran)} run: {about}{larger}"
            )
        )
        return found


def check_data(trials: Sequence[Trial], data_dir: Path | None) -> None:
    """Raise :class:`UserError` if data sets that the trials name are not there or damaged; its message has all of them."""
    from capslib import data

    missing = []
    for name in sorted(
        {name for t in trials if (name := getattr(papers.arm(t), "data", None))}
    ):
        try:
            data.require(name, data_dir=data_dir)
        except UserError as error:
            missing.append(str(error))
    if missing:
        raise UserError("\n".join(missing))


def run(
    trials: Sequence[Trial],
    store: Store,
    settings: Settings,
    *,
    display: Display | None = None,
    retry_failed: bool = False,
    max_steps: int | None = None,
) -> list[Record]:
    """Run the trials that have no record, with ``retry_failed`` those too whose record is of a failure; give back their records.

    A trial that fails is recorded as such and does not stop the others. Raises :class:`UserError` for what would stop them all (a
    missing data set, workers with another version of capslib) and :class:`Interrupted` when stopped by a signal.
    ``max_steps`` makes it a rehearsal, see :class:`Context`: the next run without it replaces these records.
    On a scheduler of the user's own, the folders of data and results are paths on the machines of its workers, too.
    """
    display = display or Display()

    def check(todo: Sequence[Trial]) -> None:
        if settings.scheduler is None:
            check_data(todo, settings.data_dir)

    plan = planning.plan(trials, store, settings, retry_failed=retry_failed, check=check)
    display.plan(plan)
    todo, devices = plan.todo, plan.devices
    if not todo:
        return []
    store.check_writable()
    alone = devices is None or len(devices) == 1
    common = dict(
        settings=settings.model_copy(
            update={
                "data_dir": settings.data_dir and settings.data_dir.resolve(),
                "device": settings.device
                if alone
                else settings.device.partition(":")[0],  # of several, each sees only its own
            }
        ),
        results=store.root.resolve(),
        code=code_hash(),
        max_steps=max_steps,
    )
    replaces = {key: record.finished for key, record in plan.failed.items()}
    records: list[Record] = []
    with Signals() as stop, executor(settings, devices, display, stop) as execute:
        for wait in (
            False,
            True,
        ):  # what another process runs is looked at again when nothing else is left
            left: list[Trial] = []
            tasks = [
                Task(trial=t, replaces=replaces.get(t.key), wait=wait, **common) for t in todo
            ]
            for trial, record in execute(tasks):
                display.finish(trial, record)
                if record is None:
                    left.append(trial)
                else:
                    records.append(record)
            if left and stop():
                raise Interrupted
            if not left:
                break
            todo = left
            display.say(f"{len(todo)} trials are being run by another process; waiting for it.")
    return records


class Signals:
    """Turns Ctrl-C and SIGTERM into a flag, which is true once one has come. The next one, of either, does what it did before."""

    signal: int | None = None

    def __call__(self) -> bool:
        return self.signal is not None

    def __enter__(self) -> Signals:
        here = (
            threading.current_thread() is threading.main_thread()
        )  # no other thread may ask for signals
        self.before = (
            {n: signal.signal(n, self._note) for n in (signal.SIGINT, signal.SIGTERM)}
            if here
            else {}
        )
        return self

    def __exit__(self, _: object, error: object, __: object) -> None:
        if isinstance(error, Interrupted):
            error.signal = self.signal or error.signal
        self._restore()

    def _note(self, number: int, _: object) -> None:
        self.signal = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
