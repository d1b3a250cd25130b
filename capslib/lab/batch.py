"""Run the trials that have no record yet, side by side, on this machine or on a cluster.

Whatever is killed, the same call again goes on from the checkpoints:

* On Ctrl-C or SIGTERM the running trials write a checkpoint, and :class:`Interrupted` is
  raised. A second one is obeyed at once.
* A trial that another process runs is left to it, and looked at again at the end. See
  :func:`capslib.lab.runs.run_unless_taken`.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import rich

from capslib import papers
from capslib.errors import Interrupted, UserError
from capslib.lab import planning, progress
from capslib.lab.budget import Waiting, plan_budget
from capslib.lab.estimates import NOT_MEASURED, step_names
from capslib.lab.ledger import plural
from capslib.lab.provenance import code_hash
from capslib.lab.records import Record
from capslib.lab.settings import Settings
from capslib.lab.signals import StopRequest, time_limit
from capslib.lab.store import Store, project_root
from capslib.lab.workers import Display, Task, executor
from capslib.papers.experiment import Trial


@dataclass(frozen=True)
class Session:
    """A scale, a device and folders: what a notebook or a command runs experiments with.

    Records of smoke scale lie in a folder of the build, unless ``results_dir`` names another.
    """

    settings: Settings
    store: Store

    @classmethod
    def start(cls, **parameters: object) -> Session:
        """Return a session with the parameters of a notebook.

        Raises UserError for a bad parameter, and where no record can be written.
        """
        session = cls._with(Settings.check(parameters))
        session.store.check_writable()
        return session

    @classmethod
    def for_plans(cls, **parameters: object) -> Session:
        """Return a session that runs nothing and plans, perhaps for another machine.

        On a machine without a CUDA device, the one that is named need not be here. No folder
        has to be writable. Raises UserError for a bad parameter.
        """
        return cls._with(Settings.check(parameters, elsewhere=True))

    @classmethod
    def _with(cls, settings: Settings) -> Session:
        root = settings.results_dir
        if root is None and settings.scale == "smoke":
            root = project_root() / "_build" / "smoke" / code_hash()[:12]
        return cls(settings, Store(root))

    def trials(self, stem: str, experiment: str, **selection: Any) -> list[Trial]:
        """Return the trials of an experiment at this scale.

        ``selection`` has ``where`` and ``change`` of :meth:`Experiment.trials`. Raises
        UserError as it does, and names the experiments that have what this one lacks.
        """
        seeds = None if self.settings.seeds is None else range(self.settings.seeds)
        chosen = papers.experiments(stem)[experiment]
        try:
            return chosen.trials(self.settings.scale, seeds=seeds, **selection)
        except UserError as error:
            names = self._experiments_with(stem, **selection)
            if not names or experiment in names:
                raise
            hint = f"Experiments that have it: {', '.join(names)}. Name one with --experiment."
            raise UserError(f"{error} {hint}") from None

    def _experiments_with(
        self,
        stem: str,
        where: Mapping[str, Any] | None = None,
        change: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Return the experiments that have such configurations, and all fields to change."""
        values = {field: value for field, value in (where or {}).items() if field != "seed"}
        fields = {*values, *(change or {})}
        names: list[str] = []
        for experiment in papers.experiments(stem).values():
            if fields <= set(experiment.fields):
                arms = experiment.at(self.settings.scale).values()
                if any(arm.matches(values) for arm in arms):
                    names.append(experiment.name)
        return names

    def run(self, stem: str, experiment: str, **selection: Any) -> list[Record]:
        """Return the records of an experiment at this scale, after running what has none.

        ``selection`` is that of :meth:`trials`. One line is printed: how many records were
        loaded and run. In a notebook it shows until then how the trials get on.
        """
        trials = self.trials(stem, experiment, **selection)
        display = contextlib.nullcontext()
        if rich.get_console().is_jupyter:
            display = progress.CellLine()
        with display as line_display:
            count = len(run(trials, self.store, self.settings, display=line_display))
        stored = [self.store.get(trial) for trial in trials]
        records = [record for record in stored if record is not None]
        data = {record.config["data"] for record in records if record.config.get("data")}
        names = [experiment, f"{self.settings.scale} scale", *sorted(data)]
        loaded = plural(len(records) - count, "record")
        line = f"{loaded} loaded, {count} run: {', '.join(names)}"
        if self.settings.scale == "smoke":
            line += "; figures prefer larger runs"
        print(progress.printable(line))
        return records


def missing_data(trials: Iterable[Trial], data_dir: Path | None) -> dict[str, str]:
    """Return the data sets of the trials that are not there, and what to do about each."""
    from capslib import data

    problems = {}
    for name in papers.data_sets(trials):
        try:
            data.require(name, data_dir=data_dir)
        except UserError as error:
            problems[name] = str(error)
    return problems


def check_data(trials: Sequence[Trial], data_dir: Path | None) -> None:
    """Raise UserError, which names them, for data sets of the trials that are not there."""
    problems = missing_data(trials, data_dir)
    if problems:
        raise UserError("\n".join(problems.values()))


def run(
    trials: Sequence[Trial],
    store: Store,
    settings: Settings,
    *,
    display: Display | None = None,
    retry_failed: bool = False,
    max_steps: int | None = None,
    deadline: float = math.inf,
) -> list[Record]:
    """Run the trials that have no record, and return the new records.

    A trial that fails is recorded as such and does not stop the others. ``retry_failed`` runs
    those again whose record is of a failure. ``max_steps`` makes it a rehearsal, which ends
    each training after so many steps; the next run without it replaces these records. On a
    scheduler of the user's own, the folders of data and results are paths on its workers, too.
    At ``deadline``, by the monotonic clock, trials write a checkpoint and stop.

    Raises UserError for what would stop all trials (a missing data set, workers with another
    version of capslib), and for ``retry_failed`` in a rehearsal, which would replace records of
    failures by none. Raises Interrupted when stopped by a signal.
    """
    if retry_failed and max_steps is not None:
        raise UserError(
            "--retry-failed replaces the records of failures, and a rehearsal with --max-steps "
            "is no result: give one of them, then the other."
        )
    display = display or Display()

    def check(todo: Sequence[Trial]) -> None:
        if settings.scheduler is None:
            check_data(todo, settings.data_dir)

    plan = planning.plan(trials, store, settings, retry_failed=retry_failed, check=check)
    plan = replace(plan, max_steps=max_steps)
    display.plan(plan)
    if not plan.todo:
        return []
    store.check_writable()
    changes: dict[str, Any] = {}
    if settings.data_dir is not None:
        changes["data_dir"] = settings.data_dir.resolve()
    if plan.devices is not None and len(plan.devices) > 1:
        # Each worker sees its own device alone.
        changes["device"] = settings.device.partition(":")[0]
    tasks: list[Task] = []
    for trial in plan.todo:
        failure = plan.not_ok.get(trial.key)
        task = Task(
            trial=trial,
            settings=settings.model_copy(update=changes),
            results=store.root.resolve(),
            replaces=None if failure is None else failure.finished,
            max_steps=max_steps,
        )
        tasks.append(task)
    records: list[Record] = []
    request = StopRequest(deadline, display.say)
    with request as stop, executor(settings, plan.devices, display, stop) as execute:
        # The first round skips trials that another process runs. The second waits for them.
        for is_second_round in (False, True):
            unfinished: list[Task] = []
            for task, record in execute(tasks):
                display.finish(task.trial, record)
                if record is None:
                    unfinished.append(task.model_copy(update={"wait": True}))
                else:
                    records.append(record)
            if stop.signal is not None:
                raise Interrupted(stop.signal)
            if is_second_round or not unfinished or stop():
                break
            tasks = unfinished
            display.say(
                f"Waiting for another process, which runs {plural(len(tasks), 'trial')}."
            )
    return records


# ------------------------------------------------------------------------------ in a given time

REHEARSAL_STEPS = 20
REHEARSED = 0.1
"""The share of a budget that rehearsals at its start may take."""
WORTH_REHEARSING = 600.0
"""Seconds of the shortest budget that begins with rehearsals."""


def grace(seconds: float) -> float:
    """Return the seconds that trials get to write a checkpoint before they are broken off."""
    return min(60.0, max(3.0, 0.05 * seconds))


def wrap_up(seconds: float, planned: float) -> float:
    """Return the seconds to keep for the end of a budget: workers, verdicts, the next plan.

    ``planned`` is the number of seconds that planning took at the start.
    """
    return min(0.3 * seconds, 5.0 + 1.5 * planned)


def run_budget(
    waiting: Waiting,
    store: Store,
    settings: Settings,
    seconds: float,
    *,
    started: float,
    display: Display | None = None,
) -> list[Record]:
    """Run the trials that decide most claims in so many seconds.

    Return the records of all trials in ``waiting`` that have ended. The time counts from
    ``started``, by the monotonic clock. Unless it is short, training steps that no record tells
    of are rehearsed first. What still runs shortly before the end writes a checkpoint. What
    does not stop then is broken off. Raises what :func:`run` raises.
    """
    display = display or Display()
    end = started + seconds - wrap_up(seconds, time.monotonic() - started)
    deadline = end - grace(seconds)
    remaining = waiting
    with time_limit(end):
        if seconds >= WORTH_REHEARSING:
            limit = min(deadline, time.monotonic() + REHEARSED * seconds)
            choice = plan_budget(remaining, store, settings, deadline - time.monotonic())
            rehearse(
                [waiting.trials[key] for key in choice.trials], store, settings, limit, display
            )
        while time.monotonic() < deadline:
            choice = plan_budget(remaining, store, settings, deadline - time.monotonic())
            if not choice.trials:
                break
            claims = sum(len(group.claims) for group in choice.groups)
            display.say(
                f"Chosen: {plural(len(choice.trials), 'trial')}, "
                f"to decide {plural(claims, 'claim')} if all end in time."
            )
            records: list[Record] = []
            # A run has as many workers as its largest trial allows: large trials would slow
            # small ones.
            by_crew = itertools.groupby(choice.groups_to_run, key=lambda group: group.crew)
            for _, groups in by_crew:
                keys = dict.fromkeys(key for group in groups for key in group.trials)
                trials = [waiting.trials[key] for key in keys]
                if time.monotonic() < deadline:
                    records += run(trials, store, settings, display=display, deadline=deadline)
            if not records:
                break
            remaining = remaining.without({record.key for record in records})
    return list(filter(None, map(store.ended, waiting.trials.values())))


def rehearse(
    trials: Sequence[Trial],
    store: Store,
    settings: Settings,
    deadline: float,
    display: Display,
) -> None:
    """Rehearse one of the trials for each training step that nothing measured tells of."""
    stems = {trial.paper for trial in trials}
    experience = planning.experience_of(stems, store, settings.device)
    unmeasured: dict[tuple[str, ...], Trial] = {}
    for trial in trials:
        if experience.estimate(trial).basis in NOT_MEASURED:
            unmeasured.setdefault(step_names(trial), trial)
    if not unmeasured:
        return
    limit = progress.duration(deadline - time.monotonic())
    display.say(
        f"Rehearsing {plural(len(unmeasured), 'training step')} that no record tells of, "
        f"for {limit} at most."
    )
    records = run(
        list(unmeasured.values()),
        planning.rehearsals(store),
        settings.model_copy(update={"workers": 1}),
        max_steps=REHEARSAL_STEPS,
        deadline=deadline,
    )
    for record in records:
        if record.failed:
            display.say(f"The rehearsal of {record.trial} failed: {record.message}")
