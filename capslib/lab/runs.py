"""Run one trial and keep its record."""

from __future__ import annotations

import contextlib
import platform
import time
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import Timeout
from pydantic import ValidationError

from capslib.errors import Interrupted, NotFinite, UserError
from capslib.files import locked
from capslib.lab.ledger.deviations import deviations
from capslib.lab.memory import PeakMemory, keep_memory
from capslib.lab.provenance import code_after, code_hash, code_of
from capslib.lab.records import Code, Environment, Exit, Record
from capslib.lab.store import Store, reason
from capslib.papers.experiment import Experiment, Outcome, Trial

if TYPE_CHECKING:
    from capslib.training import Context


def _environment(device: str) -> Environment:
    import torch

    kind = device.partition(":")[0]
    name = f"{kind.upper()} ({platform.machine()})"
    if kind == "cuda":
        name = torch.cuda.get_device_name(device)
    return Environment(
        python=platform.python_version(),
        torch=torch.__version__,
        device=name,
        threads=torch.get_num_threads(),
        deterministic=torch.are_deterministic_algorithms_enabled() or device == "cpu",
    )


@contextlib.contextmanager
def _seconds_of_steps(device: str) -> Iterator[list[float]]:
    """Yield a list that collects the seconds from each step of an optimiser to the next.

    What comes before the first step (data, a compiler, a CUDA context) is not in it: a
    rehearsal is mostly that, and a run is not.
    """
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    seconds: list[float] = []
    last: float | None = None

    def step_ended(*_: object) -> None:
        nonlocal last
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)
        now = time.perf_counter()
        if last is not None:
            seconds.append(now - last)
        last = now

    hook = register_optimizer_step_post_hook(step_ended)
    try:
        yield seconds
    finally:
        hook.remove()


def run_trial(experiment: Experiment, trial: Trial, store: Store, context: Context) -> Record:
    """Run one trial, or take it up where an earlier run was killed, and keep its record.

    A trial that ends in a NaN, out of memory or in an exception is recorded as such, with its
    traceback in ``store.log(trial)``. So is one whose outcome no record can hold, such as a
    curve with a NaN. UserError (a missing data set, say) and interrupts are raised; checkpoints
    stay, so the next run goes on from there. Weights of finished trainings stay for the
    experiments that share them. With ``context.max_steps`` it is a rehearsal: its record says
    "cut", and if it failed, the message begins with how, such as ``oom``.
    """
    arm = experiment.arm(trial.scale, trial.config)
    code = code_of(experiment)  # at the start: somebody may commit or pull while it runs
    context.folder = context.folder or store.trainings
    context.code_of = code_hash
    context.doubles = experiment.budget(trial) == 2
    started, clock = datetime.now(UTC), time.perf_counter()
    outcome, status, message = Outcome(metrics={}), "ok", ""
    rehearsal = context.max_steps is not None
    timer = _seconds_of_steps(context.device) if rehearsal else contextlib.nullcontext([])
    keep_memory()
    with timer as seconds_of_steps, PeakMemory(context.device) as memory:
        try:
            outcome = experiment.run(arm, context)
        except UserError:
            raise
        except (Exception, SystemExit) as error:  # SystemExit would end a worker
            status, message = _fault(error)
            _log(trial, store, traceback.format_exc())
    if rehearsal:
        status, message = _of_rehearsal(status, message)
        outcome.series["seconds_of_steps"] = seconds_of_steps
    return _keep(
        experiment,
        trial,
        store,
        outcome,
        status,
        message,
        code=code,
        environment=_environment(context.device),
        wall_seconds=round(time.perf_counter() - clock + context.seconds_before, 3),
        peak_memory_bytes=memory.bytes,
        started=started,
        resumed_from=context.resumed_from,
    )


def run_unless_taken(
    experiment: Experiment,
    trial: Trial,
    store: Store,
    context: Context,
    *,
    replaces: datetime | None = None,
    wait: bool = False,
) -> Record | None:
    """Run a trial and return its record, or None if it is stopped or left to another process.

    A process that runs a trial holds the lock ``store.lock(trial)``; the system frees it when
    the process dies. With ``wait``, wait for the lock. Then, if there is a record by now,
    return it and run nothing. A record that finished at ``replaces`` does not count: it is the
    one to replace.

    The lock is the operating system's (flock). On a network file system without locks two
    processes may run the same trial at once; the later record then replaces the earlier, whole.
    """
    if context.stop():
        return None
    lock = locked(
        store.lock(trial), blocking=wait, poll_interval=0.5, cancel_check=context.stop
    )
    try:
        with lock:
            record = store.ended(trial)
            if record is not None and record.finished != replaces:
                return record
            if context.progress is not None:
                context.progress(0, 0, "")
            return run_trial(experiment, trial, store, context)
    except (Timeout, Interrupted):
        return None


def record_death(
    experiment: Experiment, trial: Trial, store: Store, message: str, is_rehearsal: bool
) -> Record:
    """Record that the process that ran a trial died, as far as the survivor knows."""
    _log(trial, store, f"{message}\n")
    status: Exit = "error"
    if is_rehearsal:
        status, message = _of_rehearsal(status, message)
    return _keep(
        experiment,
        trial,
        store,
        Outcome(metrics={}),
        status,
        message,
        code=code_of(experiment),
        environment=_environment("cpu").model_copy(update={"device": "unknown"}),
        wall_seconds=0,
        peak_memory_bytes=0,
        started=datetime.now(UTC),
        resumed_from=[],
    )


def _of_rehearsal(status: Exit, message: str) -> tuple[Exit, str]:
    """Return status and message of a rehearsal: the message then says how it failed."""
    return "cut", f"{status}: {message}" if message else ""


def _fault(error: BaseException) -> tuple[Exit, str]:
    """Return how a trial ended that raised an error, and a message."""
    import torch

    if isinstance(error, NotFinite):
        return "nan", str(error)
    refused = "can't allocate memory" in str(error)  # torch's word for it on the CPU
    if refused or isinstance(error, torch.OutOfMemoryError | MemoryError):
        return "oom", (str(error) or type(error).__name__).splitlines()[0]
    frame = traceback.extract_tb(error.__traceback__)[-1]
    line = f"{Path(frame.filename).name}:{frame.lineno}"
    return "error", f"{type(error).__name__}: {error} ({line})"


def _unicode(text: str) -> str:
    """Return a text with what is no Unicode, such as a byte of a file's name, as escapes."""
    return text.encode(errors="backslashreplace").decode()


def _log(trial: Trial, store: Store, text: str) -> None:
    path = store.log(trial)
    path.parent.mkdir(parents=True, exist_ok=True)
    time_and_place = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC on {platform.node()}"
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{time_and_place}: {trial}\n{_unicode(text)}\n")


def _keep(
    experiment: Experiment,
    trial: Trial,
    store: Store,
    outcome: Outcome,
    status: Exit,
    message: str,
    code: Code,
    **measured: Any,
) -> Record:
    """Write the record of a trial, and return it.

    ``code`` is that at the start. If no record can hold the outcome, the record is of an error,
    and names the reason.
    """
    arm = experiment.arm(trial.scale, trial.config)
    config = arm.fields()
    config.pop("arm", None)  # a name may change
    fields = dict(
        measured,
        code=code_after(experiment, code),
        key=trial.key,
        trial=trial,
        config=config,
        deviations=deviations(trial.paper, trial.experiment, arm),
        finished=datetime.now(UTC),
    )
    try:
        record = Record(**vars(outcome), exit=status, message=_unicode(message), **fields)
    except ValidationError as error:
        is_rehearsal = status == "cut"
        status, message = "error", f"no record can hold what it measured: {reason(error)}"
        _log(trial, store, message)
        if is_rehearsal:
            status, message = _of_rehearsal(status, message)
        nothing = vars(Outcome(metrics={}))
        record = Record(**nothing, exit=status, message=message, **fields)
    store.put(record)
    if record.exit == "ok":
        store.log(trial).unlink(missing_ok=True)
    return record
