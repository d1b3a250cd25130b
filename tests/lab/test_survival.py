"""``capslib run`` as processes that are stopped and killed.

No record is lost, none is made twice, and nothing is left running. The long soak, half an hour
with compiled routings, is ``CAPSLIB_KILLS=30 python -m pytest tests/lab/test_survival.py``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import toys
from toys import until

from capslib import papers
from capslib.lab import batch
from capslib.lab.review import review
from capslib.lab.settings import Settings
from capslib.lab.store import Store

STEM = "negation_limitation"
CAPSLIB = """
import signal
import toys
from capslib.lab.cli import main

# The runner of the tests may ignore them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
toys.dask_setup(None)
main()
"""
"""The command line, which knows the toys."""


@pytest.fixture
def capslib(tmp_path):
    """Start ``capslib run …``, by default at smoke scale; what is left of it ends with the
    test.
    """
    folders = [str(Path(toys.__file__).parent)]
    if "PYTHONPATH" in os.environ:
        folders.append(os.environ["PYTHONPATH"])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(folders),
        "DASK_DISTRIBUTED__WORKER__PRELOAD": f"['{toys.__file__}']",
        "CAPSLIB_CHECKPOINT_SECONDS": "0",
    }
    started: list[subprocess.Popen] = []

    def start(*words: object) -> subprocess.Popen:
        options = ("run", STEM, "--results-dir", tmp_path / "results")
        if "--scale" not in words:
            options += ("--scale", "smoke")
        running = subprocess.Popen(
            [sys.executable, "-c", CAPSLIB, *map(str, options + words)],
            stderr=subprocess.PIPE,
            encoding="utf-8",
            start_new_session=True,
            env=environment,
        )
        started.append(running)
        return running

    yield start
    for running in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in [*children(running), psutil.Process(running.pid)]:
                process.kill()
        running.wait()
        running.stderr.close()


def children(running: subprocess.Popen) -> list[psutil.Process]:
    return psutil.Process(running.pid).children(recursive=True)


def workers(running: subprocess.Popen) -> list[psutil.Process]:
    """The worker processes of a run, also those that are about to start."""
    processes = []
    for child in psutil.Process(running.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "spawn_main" in " ".join(child.cmdline()):
                processes.append(child)
    return processes


def wait_for_end(processes: list[psutil.Process]) -> None:
    until(lambda: all(map(has_ended, processes)))


def has_ended(process: psutil.Process) -> bool:
    """Return whether a process has ended, if nobody has asked for its status yet, too."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def finish(running: subprocess.Popen, status: int = 0) -> str:
    """Wait until a run ends with a status, and return what it printed."""
    _, message = running.communicate(timeout=600)
    assert running.returncode == status, message
    assert "Traceback" not in message
    return message


def waiting(folder: Path) -> tuple[str, ...]:
    """Select three toys, each of which waits for a file ``go`` in a folder."""
    return ("--experiment", "toy", "--set", "does=waits", "--set", f"folder={folder}")


def pids(folder: Path) -> list[int]:
    """Return the processes that have run toys, one for each time."""
    logs = [path.read_text(encoding="utf-8") for path in folder.glob("ran *")]
    return [int(pid) for pid in " ".join(logs).split()]


def test_a_signal_to_all_processes_stops_each_with_a_checkpoint(capslib, tmp_path):
    running = capslib(*waiting(tmp_path), "--workers", 2)
    until(lambda: len(pids(tmp_path)) == 2)
    processes = children(running)
    for child in processes:
        # A Ctrl-C at the terminal goes to all of them, and Slurm's SIGTERM as well.
        child.send_signal(signal.SIGINT)
        child.send_signal(signal.SIGTERM)
    running.send_signal(signal.SIGTERM)
    assert "The same command continues" in finish(running, 128 + signal.SIGTERM)
    wait_for_end(processes)
    assert list(tmp_path.glob("results/*/*/*")) == []
    assert len(list(tmp_path.glob("results/.trainings/*.pt"))) == 2


def test_after_ctrl_c_two_runs_at_once_share_the_trials(capslib, tmp_path):
    command = (*waiting(tmp_path), "--workers", 1)
    first = capslib(*command)
    until(lambda: len(pids(tmp_path)) == 1)
    first.send_signal(signal.SIGINT)
    assert "The same command continues" in finish(first, 128 + signal.SIGINT)
    assert list(tmp_path.glob("results/*/*/*")) == []
    assert len(list(tmp_path.glob("results/.trainings/*.pt"))) == 1

    runs = [capslib(*command), capslib(*command)]
    until(lambda: len(pids(tmp_path)) == 3)
    assert len(list(tmp_path.glob("ran *"))) == 2, "each runs another trial"
    (tmp_path / "go").touch()
    for running in runs:
        finish(running)
    assert len(list(tmp_path.glob("results/*/*/*.json"))) == 3
    assert len(pids(tmp_path)) == 4, "a trial ran twice"


def test_a_run_with_a_budget_that_is_killed_goes_on_and_ends_in_time(capslib, tmp_path):
    """At cpu scale, where theorems wait for trials of a second each, and other claims for data
    that are not here.
    """
    budget = ("--scale", "cpu", "--workers", 1, "--data-dir", tmp_path / "none", "--budget")
    records = tmp_path / "results" / STEM / "symmetry"
    first = capslib(*budget, "10m")
    until(lambda: len(list(records.glob("*.json"))) >= 3)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    kept = {path: path.stat().st_mtime_ns for path in records.glob("*.json")}
    started = time.monotonic()
    message = finish(capslib(*budget, "4m"))
    assert time.monotonic() - started < 240
    assert "completes the trials of" in message
    assert {path: path.stat().st_mtime_ns for path in kept} == kept, "a trial ran twice"
    assert len(list(records.glob("*.json"))) == 15


KILLS = int(os.environ.get("CAPSLIB_KILLS", 6))
"""By default one round of each kind but the last."""
ROUTING_PATH, EPOCHS = ("compiled", 500) if KILLS >= 30 else ("fast", 12)
"""24 steps, or 1,000 compiled ones, with a checkpoint after each."""
SEEDS = 2


class Killed:
    """A run whose processes are killed, each time after two trials have got further."""

    def __init__(self, start, store: Store):
        self.start = start
        self.store = store
        self.random = random.Random(0)
        self.kills = 0
        self.running = start()

    def kill(self, processes: list[psutil.Process]) -> None:
        """Kill processes in any order. One whose parent died first may be gone already."""
        self.random.shuffle(processes)
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
                self.kills += 1

    def kill_workers(self) -> None:
        """Kill both workers, and two of those that replace them while they start.

        Their nannies give them up, and without workers a run would wait for ever.
        """
        predecessors = workers(self.running)
        self.kill(list(predecessors))
        for _ in range(2):
            newcomer = self.newcomer(predecessors)
            predecessors.append(newcomer)
            self.kill([newcomer])

    def newcomer(self, predecessors: list[psutil.Process]) -> psutil.Process:
        """Wait for a worker beside its ``predecessors``, and return it."""
        new: list[psutil.Process] = []

        def has_come() -> bool:
            new[:] = [worker for worker in workers(self.running) if worker not in predecessors]
            return bool(new)

        until(has_come)
        return new[0]

    def kill_parent(self) -> None:
        """Kill the parent before, between or after its workers. Nothing stays."""
        processes = children(self.running)
        self.kill([*workers(self.running), psutil.Process(self.running.pid)])
        wait_for_end(processes)
        self.restart()

    def kill_parent_alone(self) -> None:
        """Kill the parent. Its workers end by themselves."""
        processes = children(self.running)
        self.running.kill()
        self.kills += 1
        wait_for_end(processes)
        self.restart()

    def kill_group(self) -> None:
        """Kill all processes at once."""
        os.killpg(self.running.pid, signal.SIGKILL)
        self.kills += 1
        self.restart()

    def restart(self) -> None:
        self.running.communicate()
        self.running = self.start()

    def wait_for_steps(self) -> None:
        """Wait until two trials have each written some more checkpoints, or ended."""
        steps = self.random.randint(2, 12)
        times: dict[str, set[int]] = {}

        def is_enough() -> bool:
            assert self.running.poll() is None, "it ended before it was killed often enough"
            for path in self.store.trainings.glob("*.pt"):
                with contextlib.suppress(FileNotFoundError):
                    times.setdefault(path.stem, set()).add(path.stat().st_mtime_ns)
            further = [key for key, seen in times.items() if len(seen) > steps]
            return len(further) >= 2

        until(is_enough)


def test_ten_trials_survive_kills_with_the_same_numbers(capslib, tmp_path):
    change = {"points": 256, "epochs": EPOCHS}
    words = ["--experiment", "sign", "--seeds", SEEDS, "--workers", 2]
    for name, value in change.items():
        words += ["--set", f"{name}={value}"]
    sign = papers.experiments(STEM)["sign"]
    trials = sign.trials("smoke", seeds=range(SEEDS), change=change)
    assert len(trials) == 10
    store = Store(tmp_path / "results")

    killed = Killed(lambda: capslib(*words), store)
    kinds = (
        killed.kill_workers,
        killed.kill_parent_alone,
        killed.kill_group,
        killed.kill_parent,
    )
    for kill in itertools.cycle(kinds):
        if killed.kills >= KILLS:
            break
        killed.wait_for_steps()
        kill()
    finish(killed.running)

    records = {record.key: record for record in store.records()}
    assert len(store.paths()) == len(records) == len(trials)
    problems = review(store).problems
    assert [problem for problem in problems if "checkout" not in problem] == []
    weights = set()
    for trial in trials:
        for training in sign.trainings(papers.arm(trial), trial.seed):
            weights.add(f"{training.key}.pt")
    # What a kill left of a write is removed after an hour.
    files = [
        path for path in store.trainings.iterdir() if path.suffix not in (".lock", ".part")
    ]
    assert {path.name for path in files} == weights
    resumptions = [record.resumed_from for record in records.values()]
    assert sum(map(len, resumptions)) >= 3, "nothing was taken up again"

    undisturbed = Store(tmp_path / "undisturbed")
    batch.run(trials, undisturbed, Settings(scale="smoke", workers=1))
    expected = {record.key: record for record in undisturbed.records()}
    assert records.keys() == expected.keys()
    for key, record in records.items():
        assert record.exit == expected[key].exit
        assert record.metrics == expected[key].metrics
        assert record.series == expected[key].series
        assert record.routing_path == expected[key].routing_path == ROUTING_PATH
