"""Which trials are to run, what they will take as far as earlier records tell, and how many fit side by side."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from capslib import papers
from capslib.errors import UserError
from capslib.lab.ledger import plural
from capslib.lab.records import UNFINISHED, Record
from capslib.lab.settings import Settings, cuda_devices
from capslib.lab.store import Store
from capslib.papers.experiment import Scale, Trial
from capslib.recipes import Recipe, flops

GIB = 1 << 30
PROCESS_MEMORY = {"cpu": GIB // 2, "cuda": GIB}
"""What a process needs beside its trial: Python and torch on the CPU; the context and the kernels on a CUDA device."""
CARD = 20e12  # FLOP/s that one large card is taken to reach. Networks that mostly convolve reach more; those that mostly route are not measured
TINY = 1e6  # FLOPs of a step
SLACK = 1.25
"""Room for what the allocator keeps and cannot give to another tensor."""


@dataclass(frozen=True)
class Estimate:
    """Wall time in seconds and peak memory in bytes of a trial, None where nothing is known, and in words what they rest on."""

    seconds: float | None
    memory: int | None
    basis: str


class Experience:
    """What earlier trials took on one kind of machine: CPU, or GPU. Records with one configuration are looked at as one."""

    def __init__(self, records: Iterable[Record], device: str):
        self.on_cpu = device == "cpu"
        self.ended: dict[tuple, dict[frozenset, list[Record]]] = {}
        self.rehearsed: dict[str, Record] = {}
        for record in records:
            if record.environment.device.startswith("CPU") != self.on_cpu:
                continue
            if record.exit == "cut" and not record.message:
                self.rehearsed[record.key] = record
            elif record.exit == "ok":
                arms = self.ended.setdefault(_place(record.trial), {})
                arms.setdefault(_fields(record.trial), []).append(record)

    def estimate(self, trial: Trial) -> Estimate:
        """What a trial will take, by the nearest thing that is known: the median time, by images seen, and the largest memory of those
        trials of the same scale and network that differ in the fewest fields that change a step, then in the fewest of all; a
        rehearsal of this trial, its start-up once and its median step for each; or the FLOPs of its trainings at the rate of the
        paper's most similar ones. Of other experiments those tell that are configured alike and have the same data.
        """
        own, arms = _fields(trial), self.ended.get(_place(trial), {})
        every = {arm: {name for name, _ in own ^ arm} for arm in arms}
        if differs := {
            arm: of
            for arm, of in every.items()
            if not of >= {"experiment", "data"} and "network" not in of
        }:
            far = {
                arm: (len(of - BUDGET), "experiment" in of, len(of))
                for arm, of in differs.items()
            }
            fewest = min(far.values())
            nearest = [arm for arm in far if far[arm] == fewest]
            near = [record for arm in nearest for record in arms[arm]]
            other = ", ".join(sorted(set().union(*(differs[arm] for arm in nearest))))
            seconds = statistics.median(
                r.wall_seconds * _seen(trial) / _seen(r.trial) for r in near
            )
            basis = plural(len(near), "record") + (f" with other {other}" if other else "")
            return Estimate(seconds, max(r.peak_memory_bytes for r in near), basis)
        cut = self.rehearsed.get(trial.key)
        if (
            cut
            and (between := cut.series.get("seconds_of_steps"))
            and (steps := work(trial)[0])
        ):
            seconds = cut.wall_seconds + steps * statistics.median(between)
            return Estimate(
                seconds,
                cut.peak_memory_bytes,
                "by the steps of its rehearsal, without evaluations between epochs",
            )
        if (rate := self.rate(trial)) and (
            flops := work(trial)[1]
        ):  # counting takes torch, so not without a rate
            basis = f"by its FLOPs, at the {rate / 1e9:.2g} GFLOP/s of the paper's most similar records"
            return Estimate(flops / rate, None, basis)
        return Estimate(None, None, "no record to go by; --max-steps 20 rehearses it")

    def rate(self, trial: Trial) -> float | None:
        """FLOPs a second: the median over the paper's recorded trainings that differ in the fewest fields, of this network and this
        experiment first.

        Steps of less than ``TINY`` tell only of others so small: they spend their time between the operations.
        """
        far: dict[tuple[bool, bool, int], list[list[Record]]] = {}
        for (paper, *_), arms in self.ended.items():
            for arm, records in arms.items() if paper == trial.paper else ():
                fields = {name for name, _ in _fields(trial) ^ arm}
                key = "network" in fields, "experiment" in fields, len(fields - BUDGET)
                far.setdefault(key, []).append(records)
        for _, nearest in sorted(
            far.items()
        ):  # counting takes a moment, so none is counted that is not needed
            steps, own = work(trial)
            known = [(of, *work(of[0].trial)) for of in nearest if papers.known(of[0].trial)]
            alike = [
                (of, flops) for of, n, flops in known if flops > TINY * n or own <= TINY * steps
            ]
            if rates := [
                flops / r.wall_seconds for of, flops in alike for r in of if r.wall_seconds
            ]:
                return statistics.median(rates)
        return None


def _place(trial: Trial) -> tuple:
    """Trials that can be compared have the same paper, scale and model of a configuration. A record may outlive its experiment."""
    experiment = papers.experiments(trial.paper).get(trial.experiment)
    return trial.paper, trial.scale, experiment and experiment.kind


def _fields(trial: Trial) -> frozenset:
    return frozenset(
        {
            ("experiment", trial.experiment),
            *((name, str(value)) for name, value in trial.config.items()),
        }
    )


def _recipes(trial: Trial) -> list[Recipe]:
    experiment = papers.experiments(trial.paper)[trial.experiment]
    return (
        [t.recipe for t in experiment.trainings(papers.arm(trial), trial.seed)]
        if papers.known(trial)
        else []
    )


def _seen(trial: Trial) -> int:
    """How many images its trainings see, those of each epoch counted; 1 where it trains nothing."""
    return sum(recipe.epochs * recipe.train_size for recipe in _recipes(trial)) or 1


def work(trial: Trial) -> tuple[int, int]:
    """Training steps of a trial, and their FLOPs as counted from its networks; none where it trains nothing."""
    counted = [_counted(recipe) for recipe in _recipes(trial)]
    return sum(steps for _, steps in counted), sum(step * steps for step, steps in counted)


BUDGET = {
    "experiment",
    *(
        "data",
        "resize",
        "crop",
        "downsample",
        "jitter",
        "images",
        "epochs",
        "learning_rate",
        "shared_stream",
    ),
    *(
        "setup",
        "kind",
        "percent",
        "draw",
        "normals",
        "nrg_pam",
        "sees",
        "stop_on",
        "stop_examples",
        "stop_after",
        "keep",
    ),
}
"""Fields that change a step only by the shape of what the network sees, and the number of classes."""
_steps: dict[tuple, int] = {}


def _counted(recipe: Recipe) -> tuple[int, int]:
    """FLOPs of a step, counted once for recipes with the same step, and the number of steps. UserError for one that cannot be taken."""
    shape = recipe.input_shape
    classes = recipe.number_of_classes()
    key = type(recipe), recipe.model_dump_json(exclude=BUDGET), shape, classes
    if key not in _steps:
        try:
            _steps[key] = flops(recipe)
        except (UserError, TypeError, ValueError, RuntimeError, ArithmeticError) as why:
            raise UserError(
                f"{recipe.network}, {recipe.routing} routing and {getattr(recipe, 'data', None) or 'its data'} do not go together: {why}"
            ) from why
    return _steps[key], recipe.steps


def outlook(
    stem: str, scale: Scale, store: Store
) -> Iterator[tuple[str, int, int, int, float | None]]:
    """Of every experiment of a chapter that trains: its name, its trials, those without a record, the FLOPs of their trainings,
    and the hours that they take on one CPU core, None where nothing tells."""
    records = list(store.records(stem))
    done, experience = {r.key for r in records}, Experience(records, "cpu")
    for name, experiment in papers.experiments(stem).items():
        trials = experiment.trials(scale)
        waiting = [t for t in trials if t.key not in done]
        if flops := sum(work(t)[1] for t in waiting):
            seconds = [experience.estimate(t).seconds for t in waiting]
            yield (
                name,
                len(trials),
                len(waiting),
                flops,
                None if None in seconds else sum(seconds) / 3600,
            )


@dataclass(frozen=True)
class Plan:
    """What a call is going to do: the trials ``todo`` out of ``total``, on these devices (one worker process each).

    ``failed`` has the records of those of all trials that did not end well before, and ``known`` an estimate for each of ``todo``, by key.
    ``devices`` is None on a scheduler of the user's own, which has workers of its own.
    """

    total: int
    todo: list[Trial]
    failed: dict[str, Record]
    known: dict[str, Estimate]
    devices: list[str] | None


def plan(
    trials: Sequence[Trial],
    store: Store,
    settings: Settings,
    *,
    retry_failed: bool = False,
    check: Callable[[Sequence[Trial]], None] = lambda todo: None,
) -> Plan:
    """Look at the record of each trial once. Those are to run that have none, or none of a finished run, and with
    ``retry_failed`` those that failed.

    ``check`` may raise :class:`UserError` for the trials that are to run. It is called before they are estimated, which can take
    half a minute.
    """
    found = {t.key: record for t in trials if (record := store.get(t)) is not None}
    failed = {key: record for key, record in found.items() if record.exit != "ok"}
    again = {key for key, record in failed.items() if retry_failed or record.exit in UNFINISHED}
    todo = [t for t in trials if t.key not in found or t.key in again]
    check(todo)
    records = (r for paper in {t.paper for t in todo} for r in store.records(paper, cut=True))
    experience = Experience(records, settings.device)
    known = {t.key: experience.estimate(t) for t in todo}
    elsewhere = settings.scheduler or (
        settings.device.startswith("cuda") and not cuda_devices()
    )
    devices = (
        None
        if elsewhere
        else plan_workers(settings, [known[t.key] for t in todo])
        if todo
        else []
    )
    return Plan(len(trials), todo, failed, known, devices)


def slots(trials: int, free: Sequence[int], need: int, cores: int) -> list[int]:
    """The device of each worker process: one after the other in turn, on each as many as fit, at least one.

    ``free`` is the memory of each device in bytes, ``need`` that of one process. No more workers than trials or cores.
    """
    room = [max(1, bytes_ // need) for bytes_ in free]
    turns = [
        device
        for turn in range(min(trials, max(room)))
        for device, fit in enumerate(room)
        if turn < fit
    ]
    return turns[: max(1, min(trials, cores))]


def plan_workers(settings: Settings, known: Sequence[Estimate]) -> list[str]:
    """The device of each worker process of this machine, ``cpu``, ``mps`` or ``cuda:N``, for trials of which this is known.

    On CUDA devices as many processes share one as fit by the memory of the largest trial, one where that is not known. On the CPU
    there is one for every ``settings.threads`` cores, as far as memory allows. At smoke scale starting processes costs more than
    it gains: one. ``settings.workers`` overrides all of this.
    """
    from dask.system import cpu_count

    kind = settings.device.partition(":")[0]
    devices = (
        [f"cuda:{n}" for n in range(cuda_devices())]
        if settings.device == "cuda"
        else [settings.device]
    )
    if settings.workers or settings.scale == "smoke" or kind == "mps":
        return [devices[n % len(devices)] for n in range(settings.workers or 1)]
    free = [free_memory(device) for device in devices]
    memory = [e.memory for e in known if e.memory is not None]
    if kind == "cpu":
        need = (
            max(memory, default=0) or PROCESS_MEMORY["cpu"]
        )  # peak memory there is that of the whole process
    else:
        need = (
            int(max(memory) * SLACK) + PROCESS_MEMORY["cuda"]
            if len(memory) == len(known)
            else max(free)
        )
    return [devices[n] for n in slots(len(known), free, need, cpu_count() // settings.threads)]


def free_memory(device: str) -> int:
    """Bytes that are free on a device now. CUDA is asked in a process of its own: the question takes a context, and memory for it."""
    if device.startswith("cuda"):
        code = f"import torch; print(torch.cuda.mem_get_info({device!r})[0])"
        return int(
            subprocess.run(
                [sys.executable, "-c", code], check=True, capture_output=True, encoding="utf-8"
            ).stdout
        )
    import psutil
    from distributed.system import memory_limit

    return min(psutil.virtual_memory().available, memory_limit())


def pinned(device: str) -> dict[str, str]:
    """The environment in which a process sees this CUDA device and no other, as ``cuda``; nothing for another kind of device."""
    kind, _, index = device.partition(":")
    if kind != "cuda" or not index:
        return {}
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return {"CUDA_VISIBLE_DEVICES": visible[int(index)] if visible else index}
