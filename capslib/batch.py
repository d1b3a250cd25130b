"""Run many trials: those that have no record yet, side by side, on this machine or on a dask cluster.

A trial is a task of **dask.distributed**. With one worker it runs in this process; otherwise an embedded local cluster gives
every worker its share of the cores, or the user's own scheduler is used. A trial that is killed goes on from its checkpoint.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from capslib import papers
from capslib.errors import UserError, unknown
from capslib.runs import code_hash, run_trial
from capslib.settings import Settings
from capslib.store import Store, project_root
from capslib.trials import Context, Experiment, Record, Trial

KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": "4294967296", "MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TOP_PAD_": "67108864"}
"""Let glibc keep what a step frees for the next one. Dask's default, to give it back at once, made a training step 1.8 times as
long: every step then faults all its pages in again."""

Report = Callable[[Trial, Record | None, str], None]
"""Called as ``report(trial, record, note)``: a note while a trial runs (record None), the record when it ends."""


@dataclass(frozen=True)
class Session:
    """A scale, a device and folders: what a notebook or the command line runs its experiments with.

    At smoke scale records go to a folder of the build that belongs to the code at hand, never to the committed results.
    """

    settings: Settings
    store: Store

    @classmethod
    def start(cls, **parameters: object) -> Session:
        """Check the parameters of a notebook (see :class:`Settings`). Raises :class:`UserError` for whatever is wrong."""
        settings = Settings.check(**parameters)
        root = settings.results_dir
        if root is None and settings.scale == "smoke":
            root = project_root() / "_build" / "smoke" / code_hash()[:12]
        store = Store(root)
        store.check_writable()
        return cls(settings, store)

    def trials(self, stem: str, experiment: str, **selection: object) -> list[Trial]:
        chosen = _experiment(stem, experiment)
        seeds = chosen.seeds[self.settings.scale]
        if self.settings.seeds is not None:
            seeds = range(self.settings.seeds)
        return chosen.trials(self.settings.scale, seeds=seeds, **selection)

    def run(self, stem: str, experiment: str, *, report: Report | None = None, **selection: object) -> list[Record]:
        """The records of an experiment at this scale; trials without one are run first. ``selection`` as in ``Experiment.trials``."""
        trials = self.trials(stem, experiment, **selection)
        run(trials, self.store, self.settings, report=report)
        return [record for trial in trials if (record := self.store.get(trial)) is not None]


def _experiment(stem: str, name: str) -> Experiment:
    experiments = papers.experiments(stem)
    if name not in experiments:
        raise unknown(f"experiment of {stem}", name, experiments or ["none yet: this chapter comes later"])
    return experiments[name]


def check_data(trials: Sequence[Trial], data_dir: Path | None) -> None:
    """Raise :class:`UserError` if a data set that one of the trials names is not there. Reads no data."""
    from capslib import data

    for name in sorted({t.config["data"] for t in trials if "data" in t.config}):
        data.require(name, data_dir=data_dir)


def run(trials: Sequence[Trial], store: Store, settings: Settings, *, report: Report | None = None) -> list[Record]:
    """Run the trials that have no record, and give back their records. A trial that fails does not stop the others."""
    todo = [t for t in trials if not store.done(t)]
    if not todo:
        return []
    store.check_writable()
    check_data(todo, settings.data_dir)
    report = report or (lambda trial, record, note: None)
    workers = settings.workers or default_workers(settings, len(todo))
    if workers == 1 and settings.scheduler is None:
        return [_run_here(trial, store, settings, report) for trial in todo]
    return list(_run_on_cluster(todo, store, settings, workers, report))


def default_workers(settings: Settings, trials: int) -> int:
    """One process for each core on the CPU, except at smoke scale, where starting them costs more than it gains; one on a GPU."""
    return 1 if settings.scale == "smoke" or settings.device != "cpu" else max(1, min(trials, os.cpu_count() or 1))


def _run_here(trial: Trial, store: Store, settings: Settings, report: Report) -> Record:
    def progress(step: int, steps: int, note: str) -> None:
        report(trial, None, f"{step}/{steps} {note}")

    context = Context(seed=trial.seed, device=settings.device, data_dir=settings.data_dir, progress=progress)
    with _threads(1 if settings.scale == "smoke" else None):  # tiny networks: a second thread costs more than it brings
        record = run_trial(_experiment(trial.paper, trial.experiment), trial, store, context)
    report(trial, record, "")
    return record


@contextlib.contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """Let torch compute with ``number`` threads for a while; None leaves it as it is."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _task(trial: str, root: str, settings: str, threads: int | None) -> str:
    """One trial on a worker; everything crosses the wire as JSON, so that worker and client need only the same capslib."""
    quiet: Report = lambda trial, record, note: None  # noqa: E731
    here = Settings.model_validate_json(settings)
    here = here.model_copy(update={"device": _own_device(here.device)})
    with _threads(threads):
        return _run_here(Trial.model_validate_json(trial), Store(root), here, quiet).model_dump_json()


def _own_device(device: str) -> str:
    """``cuda`` without a number means all of them: the workers of a machine take its devices in turn."""
    import torch
    from distributed import get_worker

    name = get_worker().name
    return f"cuda:{name % torch.cuda.device_count()}" if device == "cuda" and isinstance(name, int) else device


def _run_on_cluster(todo: Sequence[Trial], store: Store, settings: Settings, workers: int, report: Report) -> Iterator[Record]:
    from distributed import as_completed

    with _client(settings, workers) as (client, threads):
        futures = {
            client.submit(
                _task,
                trial.model_dump_json(),
                str(store.root.resolve()),
                settings.model_copy(update={"data_dir": settings.data_dir and settings.data_dir.resolve()}).model_dump_json(),
                threads,
                key=f"{trial.experiment}-{trial.key}",
                pure=False,
            ): trial
            for trial in todo
        }
        for future in as_completed(futures):
            trial = futures[future]
            if future.status == "finished":
                record = Record.model_validate_json(future.result())
                report(trial, record, "")
                yield record
            else:
                report(trial, None, f"failed: {future.exception()}")
                raise future.exception()


@contextlib.contextmanager
def _client(settings: Settings, workers: int) -> Iterator[tuple[object, int | None]]:
    import dask
    from distributed import Client, LocalCluster

    if settings.scheduler is not None:
        try:
            client = Client(settings.scheduler, timeout=10)
        except OSError as error:
            raise UserError(f"No scheduler answers at {settings.scheduler}: {error}") from None
        with client:
            yield client, None
        return
    threads = max(1, (os.cpu_count() or 1) // workers)
    with (
        dask.config.set({"distributed.nanny.pre-spawn-environ": {**KEEP_MEMORY, "OMP_NUM_THREADS": str(threads)}}),
        LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=":0", memory_limit=0, silence_logs=40
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client, threads
