"""``capslib run`` as processes that are stopped and killed: no record is lost, none is made
twice, nothing is left running.

``CAPSLIB_KILLS=30 python -m pytest tests/lab/test_survival.py -k kills`` is the long soak, with
compiled routings: half an hour.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
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
CAPSLIB = (
    "import signal; [signal.signal(n, signal.default_int_handler if n == 2 else signal.SIG_DFL) for n in (2, 15)]; "
    + ("import toys; toys.dask_setup(None); from capslib.lab.cli import main; main()")
)
"""The command line, which knows the toys, with signals that work where the runner of the tests
ignores them.
"""


@pytest.fixture
def capslib(tmp_path):
    """Start ``capslib run …`` at smoke scale; whatever is left of it is ended with the test."""
    place = os.pathsep.join(
        filter(None, (str(Path(toys.__file__).parent), os.environ.get("PYTHONPATH")))
    )
    preload = {"DASK_DISTRIBUTED__WORKER__PRELOAD": f"['{toys.__file__}']"}

    def start(*words: object, **environment: str) -> subprocess.Popen:
        command = [
            "run",
            STEM,
            "--scale",
            "smoke",
            "--results-dir",
            tmp_path / "results",
            *words,
        ]
        running = subprocess.Popen(
            [sys.executable, "-c", CAPSLIB, *map(str, command)],
            stderr=subprocess.PIPE,
            encoding="utf-8",
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": place, **preload, **environment},
        )
        started.append(running)
        return running

    started: list[subprocess.Popen] = []
    yield start
    for running in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in [*psutil.Process(running.pid).children(recursive=True), running]:
                process.kill()
        running.wait()
        running.stderr.close()


def toy(folder: Path, does: str) -> tuple[str, ...]:
    """Three trials that do this."""
    return ("--experiment", "toy", "--set", f"does={does}", "--set", f"folder={folder}")


def pids(folder: Path) -> list[int]:
    """The processes that have run toys, one for each time."""
    return [
        int(pid)
        for path in folder.glob("ran *")
        for pid in path.read_text(encoding="utf-8").split()
    ]


@pytest.mark.parametrize(
    ("number", "status", "workers"),
    [(signal.SIGINT, 130, 1), (signal.SIGTERM, 143, 2)],
)
def test_a_signal_stops_with_a_checkpoint_and_a_status_of_its_own(
    capslib, tmp_path, number, status, workers
):
    running = capslib(*toy(tmp_path, "waits"), "--workers", workers)
    until(lambda: len(pids(tmp_path)) == workers)
    children = psutil.Process(running.pid).children(recursive=True)
    assert len(children) >= workers - 1
    for child in children:
        # A Ctrl-C at the terminal goes to all of them, and Slurm's SIGTERM as well.
        child.send_signal(signal.SIGINT)
        child.send_signal(signal.SIGTERM)
    running.send_signal(number)
    _, said = running.communicate(timeout=300)
    assert running.returncode == status, said
    assert "The same command continues" in said
    assert "Traceback" not in said
    store = Store(tmp_path / "results")
    assert store.paths() == []
    assert len(list(store.root.glob(".trainings/*.pt"))) == workers
    until(lambda: not any(child.is_running() for child in children))

    if workers == 1:  # that workers take up what was begun is tested with kills
        (tmp_path / "go").touch()
        again = capslib(*toy(tmp_path, "waits"), "--workers", 1)
        _, said = again.communicate(timeout=300)
        assert again.returncode == 0, said
        assert len(store.paths()) == 3


def test_workers_end_when_their_parent_is_killed(capslib, tmp_path):
    running = capslib(*toy(tmp_path, "waits"), "--workers", 2)
    until(lambda: len(pids(tmp_path)) == 2)
    children = psutil.Process(running.pid).children(recursive=True)
    assert set(pids(tmp_path)) <= {child.pid for child in children}
    running.kill()
    until(lambda: not any(child.is_running() for child in children))


def test_workers_that_die_while_they_start_are_replaced(capslib, tmp_path):
    """Their nannies give them up, and without workers a run would wait for ever."""
    running = capslib(*toy(tmp_path, "waits"), "--workers", 2)
    parent, killed = psutil.Process(running.pid), set()

    def kill_newcomers() -> bool:
        for child in parent.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.pid not in killed and "spawn_main" in " ".join(child.cmdline()):
                    killed.add(child.pid)
                    child.kill()
        return (
            len(killed) >= 4
        )  # two that had come up or not, and two more within milliseconds of their start

    until(lambda: len(pids(tmp_path)) == 2)
    until(kill_newcomers)
    (tmp_path / "go").touch()
    _, said = running.communicate(timeout=300)
    assert running.returncode == 0, said
    assert len(Store(tmp_path / "results").paths()) == 3


def test_two_runs_at_once_share_the_trials(capslib, tmp_path):
    runs = [capslib(*toy(tmp_path, "waits"), "--workers", 1) for _ in range(2)]
    until(lambda: len(pids(tmp_path)) == 2)
    assert len(list(tmp_path.glob("ran *"))) == 2, "each runs another trial"
    (tmp_path / "go").touch()
    for running in runs:
        _, said = running.communicate(timeout=300)
        assert running.returncode == 0, said
    assert len(Store(tmp_path / "results").paths()) == 3
    assert len(pids(tmp_path)) == 3, "a trial ran twice"


# ----------------------------------------------------------------------------------------------------------------
# soak

KILLS = int(
    os.environ.get("CAPSLIB_KILLS", 6)
)  # one round of each kind: two workers, both and their parent, the group
SIGN = {
    "points": 256,
    "epochs": 20 if KILLS < 30 else 500,
}  # 40 steps or 1,000 compiled ones, with a checkpoint after each
SEEDS = 2


class Killed:
    """A run whose processes are killed as often as asked for, each time after both workers have
    got further.
    """

    def __init__(self, start, store: Store, trainings: dict[str, str]):
        self.start, self.store, self.trainings, self.random, self.kills = (
            start,
            store,
            trainings,
            random.Random(0),
            0,
        )
        self.running = start()

    def round(self, whom: str) -> None:
        """Kill both workers; or before, between or after them the parent, too; or the whole
        group at once.
        """
        self.wait_for_steps(self.random.randint(2, 12))
        if whom == "group":
            os.killpg(self.running.pid, signal.SIGKILL)
            self.kills += 1
        else:
            victims = self.workers() + (
                [psutil.Process(self.running.pid)] if whom == "parent" else []
            )
            self.random.shuffle(victims)
            for victim in victims:
                with contextlib.suppress(
                    psutil.NoSuchProcess
                ):  # a worker whose parent was killed first may be gone already
                    victim.kill()
                    self.kills += 1
        if whom != "workers":
            self.running.communicate()
            self.running = self.start()

    def wait_for_steps(self, steps: int) -> None:
        """Until two trials have each written so many checkpoints, or ended."""
        seen: dict[str, set[int]] = {}

        def enough() -> bool:
            for path in self.store.trainings.glob("*.pt"):
                with contextlib.suppress(FileNotFoundError):
                    seen.setdefault(path.stem, set()).add(path.stat().st_mtime_ns)
            assert self.running.poll() is None, (
                f"it ended before it was killed often enough: {self.running.stderr.read()}"
            )
            return (
                sum(
                    len(times) > steps or bool(len(times) > 1 and self.ended(key))
                    for key, times in seen.items()
                )
                >= 2
            )

        until(enough)

    def ended(self, training: str) -> bool:
        return any(self.store.root.glob(f"*/*/{self.trainings[training]}.json"))

    def workers(self) -> list[psutil.Process]:
        return [
            p
            for p in psutil.Process(self.running.pid).children()
            if "spawn_main" in " ".join(p.cmdline())
        ]


def test_ten_trials_survive_kills_with_the_same_numbers(capslib, tmp_path):
    sign = papers.experiments(STEM)["sign"]
    trials = sign.trials("smoke", seeds=range(SEEDS), change=SIGN)
    trainings = {
        training.key: t.key
        for t in trials
        for training in sign.trainings(papers.arm(t), t.seed)
    }
    assert len(trials) == len(trainings) == 10
    changes = [word for name, value in SIGN.items() for word in ("--set", f"{name}={value}")]
    store = Store(tmp_path / "results")
    words = ("--experiment", "sign", "--seeds", SEEDS, "--workers", 2, *changes)
    killed = Killed(lambda: capslib(*words, CAPSLIB_CHECKPOINT_SECONDS="0"), store, trainings)
    for whom in itertools.cycle(("workers", "parent", "group")):
        if killed.kills >= KILLS:
            break
        killed.round(whom)
    _, said = killed.running.communicate(timeout=60 * KILLS)
    assert killed.running.returncode == 0, said

    records = {r.key: r for r in store.records()}
    assert len(store.paths()) == len(records) == len(trials)
    assert [p for p in review(store).problems if "checkout" not in p] == []
    there = {
        path.name for path in store.trainings.iterdir() if path.suffix not in (".lock", ".part")
    }
    assert there == {f"{key}.pt" for key in trainings}, (
        "the final weights; what a kill left of a write is removed after an hour"
    )
    assert sum(len(r.resumed_from) for r in records.values()) >= 3, "nothing was taken up again"
    undisturbed = Store(tmp_path / "undisturbed")
    batch.run(trials, undisturbed, Settings(scale="smoke"))
    for record in undisturbed.records():
        other = records.pop(record.key)
        assert (other.exit, other.metrics, other.series) == (
            record.exit,
            record.metrics,
            record.series,
        )
        assert (
            other.routing_path == record.routing_path == ("compiled" if KILLS >= 30 else "fast")
        )
    assert not records
