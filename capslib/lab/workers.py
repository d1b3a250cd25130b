"""Run tasks: in this process where one worker is enough, else on a dask cluster, this machine's processes or the user's own.

A worker of this machine that dies is replaced, and its trial tried again (dask's ``allowed-failures``, three times); a trial
that kills its workers without ever getting further is recorded as failed. When this process dies, its workers notice and end
at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from capslib import papers
from capslib.config import Model
from capslib.errors import Interrupted, UserError
from capslib.lab.planning import Plan, pinned
from capslib.lab.records import Record
from capslib.lab.runs import code_hash, record_death, run_unless_taken
from capslib.lab.settings import Settings
from capslib.lab.store import Store
from capslib.papers.experiment import Experiment, Trial

if TYPE_CHECKING:
    from distributed import Client, Future, Worker

POLL = 0.5
"""Seconds between two looks at whether a cluster has finished something or a signal has come."""
ANSWER, JOIN = 5.0, 300.0
"""Seconds in which a scheduler of the user's own has to answer, and in which one without workers has to get one."""
GONE = "The scheduler went away. The same command goes on from the last checkpoints."
GIVEN_UP, REPLACEMENTS = 5.0, 10
"""Seconds after which a worker without a process is replaced, and how often each may be before anything has finished."""


class Display:
    """What is told about a run while it goes on; this one is silent. Methods may be called from any thread."""

    def plan(self, plan: Plan) -> None:
        """This is going to happen."""

    def step(self, trial: Trial, step: int, steps: int, note: str) -> None:
        """A trial is at step ``step`` of ``steps`` (0 where that is not known yet)."""

    def finish(self, trial: Trial, record: Record | None) -> None:
        """A trial has its record, or None: it is left to another process, or was stopped."""

    def say(self, text: str) -> None:
        """Anything else that a user should know."""


class Task(Model):
    """A trial and how to run it. It goes to a worker as JSON: worker and client need only the same capslib."""

    trial: Trial
    settings: Settings
    results: Path
    replaces: datetime | None = Field(
        description="when the failure finished that is to be tried again"
    )
    wait: bool = Field(description="for another process that runs the trial")
    code: str = Field(description="hash of the capslib that sends this")
    max_steps: int | None = Field(description="of each training, in a rehearsal")

    @property
    def experiment(self) -> Experiment:
        return papers.experiments(self.trial.paper)[self.trial.experiment]


Execute = Callable[[Sequence[Task]], Iterator[tuple[Trial, Record | None]]]
"""Runs tasks and gives back each trial with its record as it comes, None where it was not run to its end."""


@contextlib.contextmanager
def executor(
    settings: Settings, devices: list[str] | None, display: Display, stop: Callable[[], bool]
) -> Iterator[Execute]:
    """What runs the tasks: this process where one worker is enough, else a cluster, this machine's or the user's."""
    if devices is None or len(devices) > 1:
        with _client(settings, devices, stop) as client:
            yield _Cluster(client, display, stop).execute
    else:
        yield lambda tasks: (
            (t.trial, _run_task(t, functools.partial(display.step, t.trial), stop))
            for t in tasks
        )


def _run_task(
    task: Task, told: Callable[[int, int, str], None], stop: Callable[[], bool]
) -> Record | None:
    """Run a trial in this process, whichever that is."""
    import torch

    from capslib.training import Context

    trial, settings, before = task.trial, task.settings, torch.get_num_threads()
    context = Context(
        trial.seed,
        settings.device,
        settings.data_dir,
        progress=told,
        stop=stop,
        max_steps=task.max_steps,
    )
    torch.set_num_threads(settings.threads)
    try:
        return run_unless_taken(
            task.experiment,
            trial,
            Store(task.results),
            context,
            replaces=task.replaces,
            wait=task.wait,
        )
    finally:
        torch.set_num_threads(before)
        if settings.device.startswith("cuda"):
            torch.cuda.empty_cache()  # other processes share the device


# -------------------------------------------------------------------------------------------------------- on a cluster

_stopped: set[str] = set()
"""The calls whose trials on this worker are to stop."""


def _stop(call: str) -> None:
    _stopped.add(call)


def _run_on_worker(sent: str, call: str) -> None:
    """Run a task, as JSON, on a worker, and tell ``call`` how far it is."""
    from distributed import get_worker

    worker = get_worker()
    if (
        json.loads(sent)["code"] != code_hash()
    ):  # before the rest is read, which another version may understand differently
        raise UserError(
            f"The worker {worker.address} has another version of capslib than this process."
        )
    task = Task.model_validate_json(sent)

    def told(step: int, steps: int, note: str) -> None:
        worker.log_event(
            call, {"trial": task.trial.key, "step": step, "steps": steps, "note": note}
        )

    _stop_profiler(worker)
    _run_task(task, told, lambda: call in _stopped)


def _stop_profiler(worker: Worker) -> None:
    """It holds the frames that it looks at. Where one of torch.compile outlives its call by that, the mode that it left is back,
    and the trial fails ("Global grad_mode state changed while dynamo tracing")."""
    from distributed.utils import sync

    async def stop() -> None:
        worker.periodic_callbacks["profile"].stop()

    if "profile" in worker.periodic_callbacks:  # our own workers start without one
        sync(
            worker.loop, stop
        )  # in the thread in which it runs, so it is not at work when this comes back


class _Cluster:
    """The trials of one call on the workers of a cluster."""

    def __init__(self, client: Client, display: Display, stop: Callable[[], bool]):
        self.client, self.display, self.stop = client, display, stop
        self.local = client.cluster  # None where the workers are the user's
        self.dead: dict[int, float] = {}
        self.replaced = 0
        self.alone: float | None = (
            None  # since when a scheduler of the user's own has had no worker
        )
        self.trials: dict[str, Trial] = {}
        self.call = f"capslib {client.id}"  # the topic of what its workers tell
        client.subscribe_topic(self.call, self._told)

    def _told(self, event: tuple[float, dict]) -> None:
        _, said = event
        self.display.step(self.trials[said["trial"]], said["step"], said["steps"], said["note"])

    def execute(self, tasks: Sequence[Task]) -> Iterator[tuple[Trial, Record | None]]:
        from distributed import wait

        self.trials |= {task.trial.key: task.trial for task in tasks}
        pending = dict(map(self._submit, tasks))
        told = False
        while pending:
            if self.stop() and not told:
                self.display.say(
                    "Stopping: running trials write a checkpoint first. Once more, and they stop without."
                )
                told = True
            with _there():
                with contextlib.suppress(TimeoutError):
                    wait(list(pending), timeout=POLL, return_when="FIRST_COMPLETED")
                stopped = (
                    self._tell_workers(pending) if told else []
                )  # again each time: a worker may have died and come back
                self._await_worker() if self.local is None else self._replace_dead_workers()
            for task in stopped:
                yield task.trial, None
            for future in [f for f in pending if f.done()]:
                self.replaced = 0
                task, progress = pending.pop(future)
                if (
                    _died(future) and _progress(task) > progress
                ):  # it got further, so nothing speaks against going on
                    pending |= [self._submit(task)]
                else:
                    yield task.trial, _record(task, future)

    def _await_worker(self) -> None:
        """Say that the user's scheduler has no worker, and give up when none comes."""
        client, now = self.client, time.monotonic()
        start = f"`dask worker {client.scheduler.address} --nthreads 1`"
        if client.sync(client.scheduler.identity, n_workers=0, callback_timeout=JOIN)[
            "n_workers"
        ]:
            self.alone = None
        elif self.alone is None:
            self.alone = now
            self.display.say(
                f"The scheduler has no worker. Waiting {JOIN / 60:.0f} min for one, such as {start}."
            )
        elif now - self.alone > JOIN:
            raise UserError(
                f"No worker has come within {JOIN / 60:.0f} min. Start one, {start}, then the same command again."
            )

    def _replace_dead_workers(self) -> None:
        """A nanny restarts a worker that dies, but gives up on one that dies while it starts: then another nanny has to come."""
        now, before, workers = time.monotonic(), self.dead, self.local.workers
        alive = {n for n, nanny in workers.items() if nanny.is_alive()}
        self.dead = {n: before.get(n, now) for n in self.local.worker_spec if n not in alive}
        gone = [n for n, since in self.dead.items() if now - since > GIVEN_UP]
        if not gone:
            return
        self.replaced += len(gone)
        if self.replaced > REPLACEMENTS * len(self.local.worker_spec):
            raise UserError(
                "The worker processes die while they start. `--workers 1` runs in this process, and shows why."
            )

        async def replace() -> None:
            for nanny in [workers.pop(n) for n in gone if n in workers]:
                with contextlib.suppress(
                    Exception
                ):  # it may wait for its process, which is no more
                    await asyncio.wait_for(nanny.close(timeout=1), 2)
            await (
                self.local._correct_state_internal()
            )  # starts what is in its plan and not among its workers

        for n in gone:
            self.dead[n] = now  # the next one has as long
        with contextlib.suppress(
            Exception
        ):  # one that dies again while it starts is found again
            self.local.sync(replace, callback_timeout=60)

    def _submit(self, task: Task) -> tuple[Future, tuple[Task, int]]:
        future = self.client.submit(
            _run_on_worker, task.model_dump_json(), self.call, pure=False
        )
        return future, (task, _progress(task))

    def _tell_workers(self, pending: dict[Future, tuple[Task, int]]) -> list[Task]:
        """Have the running trials stop, and take back those that do not run yet."""
        self.client.run(_stop, self.call, on_error="ignore")
        running = {key for keys in self.client.processing().values() for key in keys}
        waiting = [
            future for future in pending if future.key not in running and not future.done()
        ]
        self.client.cancel(waiting)
        return [pending.pop(future)[0] for future in waiting]


def _progress(task: Task) -> int:
    """How far a trial has got, as a number that grows: when the last checkpoint of its trainings was written."""
    trial, folder = task.trial, Store(task.results).trainings
    found = [
        training.path(folder)
        for training in task.experiment.trainings(papers.arm(trial), trial.seed)
    ]
    return max((path.stat().st_mtime_ns for path in found if path.exists()), default=0)


@contextlib.contextmanager
def _there() -> Iterator[None]:
    """Raise :class:`UserError` where the scheduler goes away."""
    from distributed.client import CancelledError, ClosedClientError

    try:
        yield
    except (
        CancelledError,
        ClosedClientError,
        OSError,
    ):  # dask's error for a connection is one of the last
        raise UserError(GONE) from None


def _died(future: Future) -> bool:
    from distributed import KilledWorker

    return future.status == "error" and isinstance(future.exception(), KilledWorker)


def _record(task: Task, future: Future) -> Record | None:
    if future.status == "cancelled":
        raise UserError(GONE)
    if future.status == "error" and not _died(future):
        raise future.exception()
    record = Store(task.results).get(
        task.trial
    )  # the result of the future dies with its worker, the record does not
    if record is not None and record.finished != task.replaces:
        return record  # also where workers died later, on other trials, before anyone had heard of it
    if not _died(future):
        return None
    message = (
        f"its worker process died {future.exception().allowed_failures + 1} times without getting any further: "
        "somebody killed it, or memory ran out; the system's log tells which"
    )
    return record_death(
        task.experiment,
        task.trial,
        Store(task.results),
        message,
        "cut" if task.max_steps else "error",
    )


@contextlib.contextmanager
def _client(
    settings: Settings, devices: list[str] | None, stop: Callable[[], bool]
) -> Iterator[Client]:
    """A client of the user's scheduler, or of a cluster with one process of this machine for each entry of ``devices``."""
    import dask
    from distributed import Client, Nanny, Scheduler, SpecCluster
    from distributed.utils import silence_logging_cmgr

    if devices is None:
        quiet = silence_logging_cmgr(
            logging.CRITICAL
        )  # that the scheduler goes away is ours to tell
        try:
            with ThreadPoolExecutor(
                1
            ) as thread:  # a notebook has a loop of its own in this one
                thread.submit(asyncio.run, _ask(settings.scheduler, stop)).result()
            client = Client(settings.scheduler, timeout=ANSWER)
        except Exception as error:  # which one depends on what answers there, and on what dask makes of the address
            raise UserError(
                f"No dask scheduler answers at {settings.scheduler}: {error}"
            ) from None
        with quiet, client:
            _check_workers(client)
            yield client
        return
    local = {"host": "127.0.0.1", "dashboard": False, "dashboard_address": ":0"}
    worker = {
        **local,
        "nthreads": 1,
        "memory_limit": 0,
        "silence_logs": logging.CRITICAL,
    }  # an error of a trial is ours to tell
    workers = {
        n: {"cls": Nanny, "options": {**worker, "env": pinned(device)}}
        for n, device in enumerate(devices)
    }
    options = {
        "distributed.nanny.pre-spawn-environ": {
            "OMP_NUM_THREADS": str(settings.threads),
            "MALLOC_ARENA_MAX": "1",
        },
        "distributed.scheduler.worker-saturation": 1.0,  # no trial waits at a worker: its death is not blamed on the wrong one
        "distributed.worker.profile.enabled": False,  # see _stop_profiler
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(dask.config.set(options))
        with _signals_blocked():
            scheduler = {"cls": Scheduler, "options": {**local, "port": 0}}
            cluster = stack.enter_context(
                SpecCluster(workers, scheduler, silence_logs=logging.ERROR)
            )
            client = stack.enter_context(Client(cluster))
        yield client


async def _ask(address: str, stop: Callable[[], bool]) -> None:
    """Raise an error unless a dask scheduler answers: a client waits for ever for a server that accepts and says nothing."""
    from distributed import Security, rpc

    async with rpc(address, connection_args=Security().get_connection_args("client")) as server:
        asked, begun = asyncio.ensure_future(server.identity()), time.monotonic()
        while not (await asyncio.wait({asked}, timeout=POLL))[0]:
            if stop():
                raise Interrupted
            if time.monotonic() - begun > ANSWER:
                raise TimeoutError(f"no answer within {ANSWER:.0f} s")
        if asked.result()["type"] != "Scheduler":
            raise ValueError(f"it is the address of a {asked.result()['type']}")


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Threads and processes that are started now inherit this, and their own too: a Ctrl-C at the terminal goes to all of them,
    and Slurm's SIGTERM as well, but it is for this thread to answer. It hears of them when the block ends."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # starting it later would let the signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _check_workers(client: Client) -> None:
    """Raise :class:`UserError` for workers of the user's own that cannot run our trials. Those that come later are asked then."""
    if other := [
        address
        for address, code in client.run(code_hash, on_error="return").items()
        if code != code_hash()
    ]:
        raise UserError(
            f"These workers have another version of capslib than this process, or none: {', '.join(other)}."
        )
    if crowded := [address for address, threads in client.nthreads().items() if threads > 1]:
        raise UserError(
            f"A worker runs one trial at a time; start these with --nthreads 1: {', '.join(crowded)}."
        )
