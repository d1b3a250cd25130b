"""Which trials are to run, and how many fit side by side."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from capslib.lab.estimates import Estimate, Experience, Total, total
from capslib.lab.memory import unusable
from capslib.lab.records import UNFINISHED, Record
from capslib.lab.settings import Settings, cuda_devices
from capslib.lab.store import Store
from capslib.papers.experiment import Trial

GIB = 1 << 30
PROCESS_MEMORY = {"cpu": GIB // 2, "cuda": GIB}
"""What a process needs beside its trial: Python and torch; the context and kernels of a device.
"""
SLACK = 1.25
"""Room for what the allocator keeps and cannot give to another tensor."""
FREE_MEMORY = """\
import sys
import torch

try:
    print(torch.cuda.mem_get_info(sys.argv[1])[0])
except Exception as error:
    print(error)
    sys.exit(1)
"""
"""A program that prints the free bytes of a CUDA device, or why it cannot tell them."""


@dataclass(frozen=True)
class Plan:
    """The trials ``todo`` that a call runs, out of ``total``.

    ``not_ok`` maps the key of a trial to its record if that did not end with "ok".
    ``estimates`` has an estimate for each trial of ``todo``, by key. ``devices`` names the
    device of each worker process; a device repeats if workers share it. It is empty if there is
    nothing to do, and None if the workers are elsewhere: on the user's scheduler, or on another
    machine with a GPU. With ``max_steps`` it is the plan of a rehearsal.
    """

    total: int
    todo: list[Trial]
    not_ok: dict[str, Record]
    estimates: dict[str, Estimate]
    devices: list[str] | None
    max_steps: int | None = None


def plan(
    trials: Sequence[Trial],
    store: Store,
    settings: Settings,
    *,
    retry_failed: bool = False,
    check: Callable[[Sequence[Trial]], None] = lambda todo: None,
) -> Plan:
    """Return what is to run: trials without a record of a finished run, and their estimates.

    Interrupted trials run again; failed ones only with ``retry_failed``. ``check`` may raise
    :class:`UserError` for the trials that are to run, before they are estimated.
    """
    records = {}
    for trial in trials:
        record = store.get(trial)
        if record is not None:
            records[trial.key] = record
    not_ok = {key: record for key, record in records.items() if record.exit != "ok"}
    repeated = {
        key for key, record in not_ok.items() if retry_failed or record.exit in UNFINISHED
    }
    todo = [t for t in trials if t.key not in records or t.key in repeated]
    check(todo)
    experience = experience_of({trial.paper for trial in todo}, store, settings.device)
    estimates = {trial.key: experience.estimate(trial) for trial in todo}
    devices: list[str] | None = []
    if settings.scheduler or (settings.device.startswith("cuda") and not cuda_devices()):
        devices = None
    elif todo:
        memory = largest_memory(estimates.values(), settings.device)
        devices = plan_workers(settings, len(estimates), memory)
    return Plan(len(trials), todo, not_ok, estimates, devices)


def rehearsals(store: Store) -> Store:
    """Return the folder of the rehearsals that a run with a budget begins with."""
    return Store(store.trainings / "rehearsals")


def experience_of(stems: Iterable[str], store: Store, device: str) -> Experience:
    """Return what all records of some papers tell, those of rehearsals included."""
    records: list[Record] = []
    for stem in sorted(stems):
        records += store.records(stem, cut=True)
        records += rehearsals(store).records(stem, cut=True)
    return Experience(records, device)


class Crew(NamedTuple):
    """Workers: so many cores or cards, and so many on each."""

    devices: int
    workers_per_card: int

    @classmethod
    def on(cls, devices: Sequence[str] | None) -> Crew:
        """Return the crew with a worker for each device in ``Plan.devices``; one if none."""
        if not devices:
            return cls(1, 1)
        if devices[0] == "cpu":
            return cls(len(devices), 1)
        cards = len(set(devices))
        return cls(cards, math.ceil(len(devices) / cards))

    @property
    def workers(self) -> int:
        """The number of workers."""
        return self.devices * self.workers_per_card


def expected(plan: Plan) -> Total:
    """Return the time of a plan on its workers, or on one if they are elsewhere."""
    crew = Crew.on(plan.devices)
    return total(plan.estimates.values(), crew.devices, crew.workers_per_card)


def slots(trials: int, free: Sequence[int], need: int, cores: int) -> list[int]:
    """Return the number of the device of each worker process, dealt out in rounds.

    ``free`` is the free memory of each device in bytes, ``need`` that of one process. A device
    gets as many as fit, at least one. No more workers than trials or cores.
    """
    room = [max(1, bytes_ // need) for bytes_ in free]
    devices: list[int] = []
    for turn in range(min(trials, max(room))):
        devices += [device for device, places in enumerate(room) if turn < places]
    return devices[: max(1, min(trials, cores))]


def largest_memory(estimates: Collection[Estimate], device: str) -> int | None:
    """Return the bytes of the largest trial; None where they are not known.

    On a card one unknown trial is enough: it may be the largest.
    """
    known = [estimate.memory for estimate in estimates if estimate.memory is not None]
    if device != "cpu" and len(known) < len(estimates):
        return None
    return max(known, default=None)


def plan_workers(settings: Settings, trials: int, memory: int | None) -> list[str]:
    """Return the device of each worker process of this machine: ``cpu``, ``mps`` or ``cuda:N``.

    On CUDA devices as many processes share one as fit by ``memory``, the bytes of the largest
    trial; one where that is not known. On the CPU there is one for every ``settings.threads``
    cores, as far as memory allows. There are never more workers than cores for their threads.
    At smoke scale starting processes costs more than it gains: one. ``settings.workers``
    overrides all of this.
    """
    from dask.system import cpu_count

    kind = settings.device.partition(":")[0]
    devices = [settings.device]
    if settings.device == "cuda":
        devices = [f"cuda:{number}" for number in range(cuda_devices())]
    if settings.workers or settings.scale == "smoke" or kind == "mps":
        workers = settings.workers or 1
        return [devices[number % len(devices)] for number in range(workers)]
    free = [free_memory(device) for device in devices]
    if kind == "cpu":
        # peak memory there is that of the whole process
        need = memory or PROCESS_MEMORY["cpu"]
    elif memory is None:
        need = max(free)
    else:
        need = need_on_card(memory)
    turns = slots(trials, free, need, cpu_count() // settings.threads)
    return [devices[number] for number in turns]


def need_on_card(memory: int) -> int:
    """Return the bytes of a card that a process needs for a trial of ``memory`` bytes."""
    return int(memory * SLACK) + PROCESS_MEMORY["cuda"]


def free_memory(device: str) -> int:
    """Return the bytes that are free on a device now.

    CUDA is asked in a process of its own: the question takes a context, and memory for it.
    Raises UserError where it does not answer.
    """
    if device.startswith("cuda"):
        command = [sys.executable, "-c", FREE_MEMORY, device]
        answer = subprocess.run(command, capture_output=True, encoding="utf-8")
        if answer.returncode:
            raise unusable(device, answer.stdout)
        return int(answer.stdout)
    import psutil
    from distributed.system import memory_limit

    return min(psutil.virtual_memory().available, memory_limit())


def pinned(device: str) -> dict[str, str]:
    """Return the environment in which a process sees one CUDA device, as ``cuda``.

    It is empty for another kind of device.
    """
    kind, _, index = device.partition(":")
    if kind != "cuda" or not index:
        return {}
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    visible = [name for name in names if name]
    return {"CUDA_VISIBLE_DEVICES": visible[int(index)] if visible else index}
