"""Run tasks: in this process where one worker is enough, else on a dask cluster.

The workers of a cluster are processes of this machine, or the user's own. Dask starts a worker
again whose process dies, and gives its trial to a worker three more times. A trial that kills
its workers without getting any further is then recorded as failed. When this process dies, the
workers that it started notice and end at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from capslib import papers
from capslib.config import Model
from capslib.errors import UserError
from capslib.lab.planning import Plan, pinned
from capslib.lab.provenance import code_hash
from capslib.lab.records import Record
from capslib.lab.runs import record_death, run_unless_taken
from capslib.lab.settings import Settings
from capslib.lab.signals import signals_blocked
from capslib.lab.store import Store
from capslib.papers.experiment import Experiment, Trial

if TYPE_CHECKING:
    from distributed import Client, Future

POLL_SECONDS = 0.5
"""Seconds between two looks at whether a trial has ended or a signal has come."""
SCHEDULER_TIMEOUT = 5.0
"""Seconds in which a scheduler of the user's own has to answer."""
WORKER_TIMEOUT = 300.0
"""Seconds in which a cluster without a worker has to get one."""
SCHEDULER_GONE = "The scheduler went away. The same command goes on from the last checkpoints."


class Display:
    """What shows a run while it goes on. This one shows nothing.

    Its methods may be called from any thread.
    """

    def plan(self, plan: Plan) -> None:
        """Show what is going to happen."""

    def step(self, trial: Trial, step: int, steps: int, note: str) -> None:
        """Show that a trial is at ``step`` of ``steps``, which is 0 as long as nobody knows."""

    def finish(self, trial: Trial, record: Record | None) -> None:
        """Show that a trial has ended.

        Without a record it was stopped, or left to another process.
        """

    def say(self, text: str) -> None:
        """Show anything else that a user should know."""


class Task(Model):
    """A trial and how to run it."""

    trial: Trial
    settings: Settings
    results: Path
    replaces: datetime | None = Field(
        None, description="when the record finished that is to be replaced"
    )
    wait: bool = Field(False, description="whether to wait for another process that runs it")
    max_steps: int | None = Field(None, description="of each training, in a rehearsal")

    @property
    def experiment(self) -> Experiment:
        """The experiment of the trial."""
        return papers.experiments(self.trial.paper)[self.trial.experiment]

    @property
    def store(self) -> Store:
        """The folder of the records."""
        return Store(self.results)


Execute = Callable[[Sequence[Task]], Iterator[tuple[Task, Record | None]]]
"""Runs tasks and yields each with its record, or with None where it was not run to its end."""


@contextlib.contextmanager
def executor(
    settings: Settings, devices: list[str] | None, display: Display, stop: Callable[[], bool]
) -> Iterator[Execute]:
    """Yield what runs tasks: this process where one worker is enough, else a cluster.

    ``devices`` has the device of each worker process of this machine. It is None on a scheduler
    of the user's own. No task begins once ``stop()`` is true, and the running ones end.
    """

    def execute_here(tasks: Sequence[Task]) -> Iterator[tuple[Task, Record | None]]:
        for task in tasks:
            report = functools.partial(display.step, task.trial)
            yield task, run_task(task, report, stop)

    if devices is not None and len(devices) == 1:
        yield execute_here
        return
    if devices is None:
        connection = connect(settings.scheduler)
    else:
        connection = start_workers(devices, settings.threads)
    with connection as client:
        yield ClusterRun(client, display, stop).execute


def run_task(
    task: Task, report: Callable[[int, int, str], None], stop: Callable[[], bool]
) -> Record | None:
    """Run a trial in this process, and return its record.

    Return None if it was stopped or another process runs it.
    """
    import torch

    from capslib.training import Context

    settings = task.settings
    context = Context(
        task.trial.seed,
        settings.device,
        settings.data_dir,
        progress=report,
        stop=stop,
        max_steps=task.max_steps,
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        return run_unless_taken(
            task.experiment,
            task.trial,
            task.store,
            context,
            replaces=task.replaces,
            wait=task.wait,
        )
    finally:
        torch.set_num_threads(threads)
        if settings.device.startswith("cuda"):
            torch.cuda.empty_cache()  # other processes share the device


# ------------------------------------------------------------------- in a worker of a cluster

_stopped: set[str] = set()
"""Names of the runs whose trials on this worker are to stop."""


def _stop_run(name: str) -> None:
    _stopped.add(name)


def _run_on_worker(code: str, task_json: str, run: str) -> None:
    """Run a task on a worker, and log its progress under the topic ``run``.

    The task comes as JSON, and is read after the hashes of the code are compared: another
    version of capslib may understand it differently.
    """
    from distributed import get_worker

    worker = get_worker()
    if code != code_hash():
        raise UserError(
            f"The worker {worker.address} has another version of capslib than this process."
        )
    task = Task.model_validate_json(task_json)

    def report(step: int, steps: int, note: str) -> None:
        worker.log_event(run, [task.trial.key, step, steps, note])

    # Dask's profiler holds frames of the thread that runs a task. Where a frame of
    # torch.compile outlives its call by that, the mode that it left is back, and the trial
    # fails ("Global grad_mode state changed while dynamo tracing"). So it has its own thread.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(run_task, task, report, lambda: run in _stopped).result()


# ------------------------------------------------------------------ in the process of the user


class ClusterRun:
    """A run of trials on the workers of a cluster."""

    def __init__(self, client: Client, display: Display, stop: Callable[[], bool]):
        self.client = client
        self.display = display
        self.stop = stop
        self.cluster = client.cluster  # None where the workers are the user's
        self.name = f"capslib {uuid.uuid4()}"  # runs may share a client
        self.trials: dict[str, Trial] = {}
        self.checkpoint_times: dict[str, int] = {}  # by trial, when it was submitted
        self.without_workers_since: float | None = None
        client.subscribe_topic(self.name, self._show_step)

    def _show_step(self, event: tuple[float, Any]) -> None:
        _, (key, step, steps, note) = event
        self.display.step(self.trials[key], step, steps, note)

    def execute(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Record | None]]:
        """Run tasks; yield each with its record, or with None where it has none."""
        from distributed import wait

        pending: dict[Future, Task] = {}
        for task in tasks:
            self.trials[task.trial.key] = task.trial
            pending[self._submit(task)] = task
        while pending:
            cancelled: list[Future] = []
            with scheduler_there():
                with contextlib.suppress(TimeoutError):
                    wait(list(pending), timeout=POLL_SECONDS, return_when="FIRST_COMPLETED")
                if self.stop():
                    cancelled = self._stop_trials(list(pending))
                self._look_after_workers()
            for future in cancelled:
                yield pending.pop(future), None
            for future in [future for future in pending if future.done()]:
                task = pending.pop(future)
                checkpoint_before = self.checkpoint_times[task.trial.key]
                if died(future) and checkpoint_time(task.trial, task.store) > checkpoint_before:
                    pending[self._submit(task)] = task  # it got further, so it may go on
                else:
                    yield task, outcome(task, future)

    def _submit(self, task: Task) -> Future:
        self.checkpoint_times[task.trial.key] = checkpoint_time(task.trial, task.store)
        task_json = task.model_dump_json()
        return self.client.submit(_run_on_worker, code_hash(), task_json, self.name, pure=False)

    def _stop_trials(self, futures: Sequence[Future]) -> list[Future]:
        """Have the running trials stop. Return those that do not run yet, which are cancelled.

        Has to be called again until all have ended: a worker that comes back does not know yet.
        """
        self.client.run(_stop_run, self.name, on_error="ignore")
        running: set[str] = set()
        for keys in self.client.processing().values():
            running.update(keys)
        waiting = [f for f in futures if f.key not in running and not f.done()]
        self.client.cancel(waiting)
        return waiting

    def _look_after_workers(self) -> None:
        workers = len(self.client.nthreads())
        self._replace_workers(workers)
        self._check_that_workers_come(workers)

    def _replace_workers(self, workers: int) -> None:
        """Replace workers of this machine that dask gave up.

        Dask gives up a worker that dies while it starts, and some seconds later takes it off
        its list. Scaling to the planned size then starts another.
        """
        if self.cluster is not None and workers < len(self.cluster.plan):
            self.cluster.scale(len(self.cluster.plan))

    def _check_that_workers_come(self, workers: int) -> None:
        """Raise UserError where there has been no worker for minutes."""
        now = time.monotonic()
        if workers:
            self.without_workers_since = None
            return
        command = f"`dask worker {self.client.scheduler.address} --nthreads 1`"
        minutes = f"{WORKER_TIMEOUT / 60:.0f} min"
        if self.without_workers_since is None:
            self.without_workers_since = now
            if self.cluster is None:
                self.display.say(
                    "The scheduler has no worker. "
                    f"Waiting {minutes} for one, such as {command}."
                )
        elif now - self.without_workers_since > WORKER_TIMEOUT:
            if self.cluster is None:
                raise UserError(
                    f"No worker has come within {minutes}. "
                    f"Start one, {command}, then the same command again."
                )
            raise UserError(
                "The worker processes die while they start. "
                "`--workers 1` runs in this process, and shows why."
            )


def checkpoint_time(trial: Trial, store: Store) -> int:
    """Return when the last checkpoint of a trial was written, in nanoseconds; 0 if never."""
    times = [0]
    for training in papers.experiment_of(trial).trainings(papers.arm(trial), trial.seed):
        path = training.path(store.trainings)
        if path.exists():
            times.append(path.stat().st_mtime_ns)
    return max(times)


def died(future: Future) -> bool:
    """Return whether dask gave a task up because its workers died."""
    from distributed import KilledWorker

    return future.status == "error" and isinstance(future.exception(), KilledWorker)


def outcome(task: Task, future: Future) -> Record | None:
    """Return the record that a task left; None if it was stopped or left to another process.

    Raises what the task raised, and UserError where the scheduler went away.
    """
    if future.status == "cancelled":
        raise UserError(SCHEDULER_GONE)
    if future.status == "error" and not died(future):
        raise future.exception()
    # The result of a future dies with its worker, and dask blames the task for the next deaths,
    # too. The record stays.
    record = task.store.get(task.trial)
    if record is not None and record.finished != task.replaces:
        return record
    if not died(future):
        return None
    deaths = future.exception().allowed_failures + 1
    message = (
        f"its worker process died {deaths} times without getting any further: "
        "somebody killed it, or memory ran out; the system's log tells which"
    )
    is_rehearsal = task.max_steps is not None
    return record_death(task.experiment, task.trial, task.store, message, is_rehearsal)


@contextlib.contextmanager
def scheduler_there() -> Iterator[None]:
    """Raise UserError where the scheduler goes away."""
    from distributed import CancelledError
    from distributed.client import ClosedClientError

    try:
        yield
    except (CancelledError, ClosedClientError, OSError):  # a broken connection is an OSError
        raise UserError(SCHEDULER_GONE) from None


@contextlib.contextmanager
def connect(address: str) -> Iterator[Client]:
    """Yield a client of the user's own scheduler.

    Raises UserError where none answers, or where its workers cannot run our trials.
    """
    from distributed import Client
    from distributed.utils import silence_logging_cmgr

    try:
        with ThreadPoolExecutor(1) as thread:  # a notebook has an event loop in this one
            thread.submit(asyncio.run, check_scheduler(address)).result()
        client = Client(address, timeout=SCHEDULER_TIMEOUT)
    except Exception as error:  # which one depends on what answers there
        raise UserError(f"No dask scheduler answers at {address}: {error}") from None
    with silence_logging_cmgr(logging.CRITICAL), client:  # we say ourselves when it goes away
        check_workers(client)
        yield client


async def check_scheduler(address: str) -> None:
    """Raise an error unless a dask scheduler answers.

    A client waits for ever for a server that accepts a connection and says nothing.
    """
    from distributed import Security, rpc

    security = Security().get_connection_args("client")
    async with rpc(address, connection_args=security) as server:
        try:
            identity = await asyncio.wait_for(server.identity(), SCHEDULER_TIMEOUT)
        except TimeoutError:
            raise TimeoutError(f"no answer within {SCHEDULER_TIMEOUT:.0f} s") from None
    if identity["type"] != "Scheduler":
        raise ValueError(f"it is the address of a {identity['type']}")


def check_workers(client: Client) -> None:
    """Raise UserError for workers that cannot run our trials.

    Those that join later compare the code when they get a trial.
    """
    hashes = client.run(code_hash, on_error="return")
    strangers = [address for address, code in hashes.items() if code != code_hash()]
    if strangers:
        raise UserError(
            "These workers have another version of capslib than this process, or none: "
            f"{', '.join(strangers)}."
        )
    crowded = [address for address, threads in client.nthreads().items() if threads > 1]
    if crowded:
        raise UserError(
            "A worker runs one trial at a time; start these with --nthreads 1: "
            f"{', '.join(crowded)}."
        )


@contextlib.contextmanager
def start_workers(devices: Sequence[str], threads: int) -> Iterator[Client]:
    """Yield a client of a cluster that has a process of this machine for each device."""
    import dask
    from distributed import Client, Nanny, Scheduler, SpecCluster

    local = {"host": "127.0.0.1", "dashboard": False, "dashboard_address": ":0"}
    # We plan memory, and report errors of trials, ourselves.
    options = {"nthreads": 1, "memory_limit": 0, "silence_logs": logging.CRITICAL, **local}
    workers: dict[int, dict[str, Any]] = {}
    for number, device in enumerate(devices):
        workers[number] = {"cls": Nanny, "options": {"env": pinned(device), **options}}
    environment = {"OMP_NUM_THREADS": str(threads), "MALLOC_ARENA_MAX": "1"}
    configuration = {
        "distributed.nanny.pre-spawn-environ": environment,
        # No trial waits at a worker: its death is not blamed on the wrong one.
        "distributed.scheduler.worker-saturation": 1.0,
        "distributed.worker.profile.enabled": False,  # see _run_on_worker
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(dask.config.set(configuration))
        with signals_blocked():
            scheduler = {"cls": Scheduler, "options": {"port": 0, **local}}
            try:
                cluster = SpecCluster(workers, scheduler, silence_logs=logging.ERROR)
                stack.enter_context(cluster)
                client = stack.enter_context(Client(cluster))
            except (RuntimeError, OSError) as error:
                raise UserError(
                    f"No worker processes can be reached on this machine ({error}). "
                    "With --workers 1 trials run in this process."
                ) from None
        yield client
