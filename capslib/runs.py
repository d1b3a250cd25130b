"""Run one trial and keep its record, with the code, the machine and the memory that it took."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import platform
import subprocess
import sys
import time
import traceback
import warnings
from datetime import UTC, datetime
from pathlib import Path

from capslib.errors import NotFinite, UserError
from capslib.store import Store
from capslib.trials import Code, Context, Environment, Exit, Experiment, Outcome, Record, Trial


@functools.cache
def code_hash() -> str:
    """SHA-256 of the package's own Python files, by name and content; twelve digits are enough to tell two apart."""
    digest = hashlib.sha256()
    package = Path(__file__).parent
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


@functools.cache
def _code() -> Code:
    def git(*words: str) -> str | None:
        done = subprocess.run(["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else None

    try:
        revision, changes = git("rev-parse", "HEAD"), git("status", "--porcelain", "--untracked-files=no", "--", ".")
    except FileNotFoundError:
        revision = changes = None
    return Code(revision=revision, dirty=None if changes is None else bool(changes), capslib=code_hash())


def _environment(device: str) -> Environment:
    import torch

    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else f"CPU ({platform.machine()})"
    return Environment(
        python=platform.python_version(),
        torch=torch.__version__,
        device=name,
        threads=torch.get_num_threads(),
        deterministic=torch.are_deterministic_algorithms_enabled() or device == "cpu",
    )


class _PeakMemory:
    """The most memory that was held: the device's own count on CUDA, resident memory of this process on the CPU."""

    def __init__(self, device: str):
        self.device = device

    def __enter__(self) -> _PeakMemory:
        if self.device.startswith("cuda"):
            import torch

            torch.cuda.reset_peak_memory_stats(self.device)
        elif sys.platform == "linux":
            with contextlib.suppress(OSError):  # some containers forbid it; the mark of the whole process has to do there
                Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark back to what is held now
        return self

    def __exit__(self, *_: object) -> None:
        if self.device.startswith("cuda"):
            import torch

            self.bytes = torch.cuda.max_memory_allocated(self.device)
        elif sys.platform == "linux":
            status = Path("/proc/self/status").read_text()
            self.bytes = int(status.partition("VmHWM:")[2].split()[0]) * 1024
        else:
            import resource

            self.bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def run_trial(experiment: Experiment, trial: Trial, store: Store, context: Context) -> Record:
    """Run one trial, or take it up where an earlier run was killed, and keep its record.

    A trial that ends in a NaN, out of memory or in an exception is recorded as such. :class:`UserError` (a missing data
    set, say) and a keyboard interrupt are raised; the checkpoint stays, so the next run goes on from there.
    """
    import torch

    config = experiment.config.model_validate(trial.config)
    context.checkpoint = store.checkpoint(trial) if context.checkpoint is None else context.checkpoint
    started, clock = datetime.now(UTC), time.perf_counter()
    outcome, message = Outcome(metrics={}, routing_path="none"), ""
    status: Exit = "ok"
    with _PeakMemory(context.device) as memory:
        try:
            outcome = experiment.run(config, context)
        except NotFinite as error:
            status, message = "nan", str(error)
        except (torch.OutOfMemoryError, MemoryError) as error:
            status, message = "oom", str(error).splitlines()[0] if str(error) else type(error).__name__
        except UserError:
            raise
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            status = "error"
            message = f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
            warnings.warn(f"{trial}: {traceback.format_exc()}", stacklevel=2)
    record = Record(
        key=trial.key,
        trial=trial,
        deviations=experiment.deviations(config),
        metrics=outcome.metrics,
        series=outcome.series,
        data=outcome.data,
        code=_code(),
        environment=_environment(context.device),
        routing_path=outcome.routing_path,
        parameters=outcome.parameters,
        wall_seconds=round(time.perf_counter() - clock + context.seconds_before, 3),
        peak_memory_bytes=memory.bytes,
        started=started,
        finished=datetime.now(UTC),
        exit=status,
        message=message,
        resumed_from=context.resumed_from,
    )
    store.put(record)
    if status in ("ok", "nan"):  # whatever else ended it, a next run may go on from there
        context.checkpoint.unlink(missing_ok=True)
    return record
