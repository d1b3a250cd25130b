"""Run one trial and keep its record, with the code, the machine and the memory that it took."""

from __future__ import annotations

import ast
import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from filelock import Timeout

from capslib.errors import Interrupted, NotFinite, UserError
from capslib.files import locked
from capslib.lab.ledger.deviations import deviations
from capslib.lab.records import Code, Environment, Exit, Record
from capslib.lab.store import Store
from capslib.papers.experiment import Experiment, Outcome, Trial

if TYPE_CHECKING:
    from capslib.training import Context

PACKAGE = Path(__file__).parents[1]
ROOT = PACKAGE.resolve().parent
LANDMARKS = ("book/_ext/capsbook/__init__.py", "capslib/__init__.py")
"""Files, as git sorts them, that tell a repository of this project from others."""
HARMLESS = ("GIT_CONFIG_", "GIT_DISCOVERY_")
"""How variables of git begin that name no repository; they may hold a safe.directory."""


@functools.cache
def code_hash(entry: str | None = None) -> str:
    """Return the SHA-256 of the package; with ``entry``, of what this module may import."""
    files = {
        path.relative_to(PACKAGE).as_posix(): path.read_bytes()
        for path in PACKAGE.rglob("*.py")
    }
    return hash_of_code(files, entry)


def hash_of_code(files: Mapping[str, bytes], entry: str | None = None) -> str:
    """Return the SHA-256 of files of the package, by name and content.

    With ``entry``, a module, only the files count that it can import. What a registry names
    counts as imported. So a change of the command line leaves the checkpoints of an experiment
    alone. Line ends do not count: a clone with those of Windows has the same code.
    """
    digest = hashlib.sha256()
    for name in sorted(files if entry is None else reached(files, entry)):
        content = files[name].replace(b"\r\n", b"\n")
        digest.update(name.encode() + b"\0" + content + b"\0")
    return digest.hexdigest()


def reached(files: Mapping[str, bytes], entry: str) -> set[str]:
    """Return the names of the files that a module may import, wherever in its code it does.

    A package counts where it is imported by name, and not for a module in it. The set is empty
    if there is no such module.
    """
    names: set[str] = set()
    modules = [entry]
    while modules:
        path = "/".join(modules.pop().split(".")[1:])  # without "capslib"
        for name in (f"{path}/__init__.py", f"{path}.py"):
            if name in files and name not in names:
                names.add(name)
                modules += _imported(files[name])
    return names


@functools.cache
def _imported(source: bytes) -> frozenset[str]:
    """Return the modules below the package that a file imports, or names for a registry."""
    imported: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            imported |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            module, colon, _ = node.value.partition(":")  # as in a registry
            if colon:
                imported.add(module)
    return frozenset(name for name in imported if name.startswith("capslib."))


def git(*words: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Return what git answers in a folder: ``returncode``, ``stdout``, ``stderr``.

    It does not see variables such as ``GIT_DIR``, which may name another repository. Where git
    cannot be started, the status is 127, as in a shell.
    """
    environment = dict(os.environ)
    for name in os.environ:
        if name.startswith("GIT_") and not name.startswith(HARMLESS):
            del environment[name]
    command = ["git", *words]
    try:
        answer = subprocess.run(command, cwd=folder, env=environment, capture_output=True)
    except OSError as error:
        reason = f"git cannot be started: {error.strerror}"
        return subprocess.CompletedProcess(command, 127, stdout="", stderr=reason)
    stdout = answer.stdout.decode(errors="replace")
    stderr = answer.stderr.decode(errors="replace")
    return subprocess.CompletedProcess(command, answer.returncode, stdout, stderr)


def complaint(answer: subprocess.CompletedProcess[str]) -> str:
    """Return why git failed, in its own words and in one line."""
    return " ".join(answer.stderr.split()) or f"git ended with status {answer.returncode}"


class Checkout(NamedTuple):
    """What git knows of the code in a folder."""

    revision: str | None
    dirty: bool | None
    """Whether files of the package have changed since, or are new."""
    reason: str = ""
    """Why git knows no revision, or not whether the code is dirty."""

    @property
    def objection(self) -> str:
        """Why records of this code prove nothing; empty if they do."""
        if self.dirty:
            return "there are uncommitted changes, so commit first"
        if self.revision is None or self.dirty is None:
            unknown = f"the revision of this code is not known ({self.reason})"
            return f"{unknown}, so run a clone of this project that git accepts"
        return ""


@functools.cache
def checkout(root: Path = ROOT) -> Checkout:
    """Return what git knows of the code in a folder, if that is a checkout of this project.

    Another repository may have the project below it, copied or installed. Its revisions say
    nothing about the code. So git has to track the package and the book's extension, from the
    root of the repository on.
    """
    head = git("rev-parse", "--verify", "HEAD", folder=root)
    if head.returncode:
        return Checkout(None, None, complaint(head))
    tracked = git("ls-files", "--full-name", "--", *LANDMARKS, folder=root)
    if tracked.returncode:
        return Checkout(None, None, complaint(tracked))
    if tracked.stdout.split() != list(LANDMARKS):
        return Checkout(None, None, f"{root} is in a git repository of something else")
    package = ("capslib/*.py", "capslib/*.csv")  # git's * matches folders, too
    changes = git("status", "--porcelain", "--untracked-files=all", "--", *package, folder=root)
    if changes.returncode:
        return Checkout(head.stdout.strip(), None, complaint(changes))
    return Checkout(head.stdout.strip(), bool(changes.stdout))


@functools.cache
def revisions(root: Path = ROOT) -> frozenset[str] | None:
    """Return all revisions of a checkout of this project; None where git knows not all."""
    if checkout(root).revision is None:
        return None
    shallow = git("rev-parse", "--is-shallow-repository", folder=root).stdout.strip()
    if shallow != "false":
        return None
    return frozenset(git("rev-list", "--all", "HEAD", folder=root).stdout.split())


def code_of(experiment: Experiment) -> Code:
    """Return git's revision, and the hash of what an experiment's module imports."""
    code = checkout()
    imported = code_hash(experiment.run.__module__)
    return Code(revision=code.revision, dirty=code.dirty, capslib=imported)


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


def keep_memory() -> None:
    """Have glibc keep freed memory for the rest of this process.

    By default glibc returns the large blocks of a training step to the system, and in a dask
    worker the small ones, too. Every step then faults its pages in again, and a step of an LSTM
    routing takes 1.1 times as long, in a dask worker 2.8 times. What is free before the first
    step is returned. Other C libraries stay as they are.
    """
    # AttributeError: musl or a Mac. OSError: no dynamic linker. TypeError: Windows.
    with contextlib.suppress(AttributeError, OSError, TypeError):
        glibc = ctypes.CDLL(None)
        glibc.malloc_trim(0)
        glibc.mallopt(-4, 0)  # M_MMAP_MAX
        glibc.mallopt(-1, -1)  # M_TRIM_THRESHOLD
        glibc.mallopt(-2, 2**26)  # M_TOP_PAD


class PeakMemory:
    """The most memory that was held meanwhile, in ``bytes``.

    On CUDA it is the device's own count, on the CPU the resident memory of this process.
    """

    bytes: int

    def __init__(self, device: str):
        self.device = device

    def __enter__(self) -> Self:
        if self.device.startswith("cuda"):
            import torch

            torch.cuda.reset_peak_memory_stats(self.device)
        elif sys.platform == "linux":
            # Some containers forbid it; the mark of the whole process has to do there.
            with contextlib.suppress(OSError):
                # Sets the mark back to what is held now.
                Path("/proc/self/clear_refs").write_bytes(b"5")
        return self

    def __exit__(self, *_: object) -> None:
        if self.device.startswith("cuda"):
            import torch

            self.bytes = torch.cuda.max_memory_allocated(self.device)
            return
        mark = None
        if sys.platform == "linux":
            status = Path("/proc/self/status").read_text(encoding="utf-8")
            mark = re.search(r"VmHWM:\s*(\d+)", status)
        if mark:
            self.bytes = int(mark[1]) * 1024
            return
        import psutil

        memory = psutil.Process().memory_info()
        # Windows keeps a peak; a Mac and gVisor tell what is held now.
        self.bytes = getattr(memory, "peak_wset", memory.rss)


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
    traceback in ``store.log(trial)``. UserError (a missing data set, say) and interrupts are
    raised; checkpoints stay, so the next run goes on from there. Weights of finished trainings
    stay for the experiments that share them. With ``context.max_steps`` it is a rehearsal: its
    record says "cut", and if it failed, the message begins with how, such as ``oom``.
    """
    arm = experiment.arm(trial.scale, trial.config)
    code = code_of(experiment)  # as it is now: somebody may commit or pull while the trial runs
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
        exit=status,
        message=message,
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
        exit=status,
        message=message,
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


def _log(trial: Trial, store: Store, text: str) -> None:
    path = store.log(trial)
    path.parent.mkdir(parents=True, exist_ok=True)
    time_and_place = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC on {platform.node()}"
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{time_and_place}: {trial}\n{text}\n")


def _keep(
    experiment: Experiment, trial: Trial, store: Store, outcome: Outcome, **measured: Any
) -> Record:
    """Write the record of a trial, and return it."""
    arm = experiment.arm(trial.scale, trial.config)
    fields = arm.fields()
    fields.pop("arm", None)  # a name may change
    record = Record(
        key=trial.key,
        trial=trial,
        config=fields,
        deviations=deviations(trial.paper, trial.experiment, arm),
        finished=datetime.now(UTC),
        **vars(outcome),
        **measured,
    )
    store.put(record)
    if record.exit == "ok":
        store.log(trial).unlink(missing_ok=True)
    return record
