"""Many trials: here, on an embedded cluster and on a scheduler of the user's own; each runs
once and all give the same records.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import distributed  # its configuration has to be there before a test changes a part of it
import pytest
import torch
import toys
from filelock import FileLock
from helpers import RecordedDisplay, make_record

from capslib import papers
from capslib.errors import Interrupted, UserError
from capslib.lab import batch, cli, planning, workers
from capslib.lab.budget import Bundle, Waiting
from capslib.lab.estimates import BY_REHEARSAL
from capslib.lab.records import Record
from capslib.lab.runs import run_unless_taken
from capslib.lab.settings import Settings
from capslib.lab.store import Store
from capslib.papers.experiment import Trial
from capslib.training import Context

pytestmark = pytest.mark.usefixtures("new_processes")
STEM = "negation_limitation"


@pytest.fixture
def tiny() -> list[Trial]:
    """All arms of the sign experiment on twenty points; no data set is needed."""
    return papers.experiments(STEM)["sign"].trials(
        "cpu", seeds=[0], change={"points": 20, "epochs": 2}
    )


def run(
    trials: list[Trial],
    store: Store,
    display: RecordedDisplay | None = None,
    *,
    retry_failed: bool = False,
    max_steps: int | None = None,
    **settings: object,
) -> list[Record]:
    return batch.run(
        trials,
        store,
        Settings(scale="cpu", **settings),
        display=display,
        retry_failed=retry_failed,
        max_steps=max_steps,
    )


def numbers(store: Store) -> dict[str, tuple]:
    """What a trial computed, apart from where and when: equal means equal to the last bit."""
    return {
        r.key: (r.trial, r.exit, r.metrics, r.series, r.parameters) for r in store.records()
    }


@pytest.fixture
def records_here(tiny, tmp_path) -> Store:
    """The tiny trials, run in this process."""
    store = Store(tmp_path / "here")
    run(tiny, store, workers=1)
    return store


def test_two_workers_leave_the_same_records_as_one_process(
    tiny, records_here, tmp_path, shared_workers
):
    store = Store(tmp_path / "cluster")
    display = RecordedDisplay()
    records = run(tiny, store, display, workers=2)
    assert len(numbers(records_here)) == len(tiny) > 1
    assert numbers(store) == numbers(records_here)
    assert {r.key for r in records} == {t.key for t in tiny}
    assert dict(display.ends) == {r.key: r for r in records}
    assert {key for key, *_ in display.steps} == {t.key for t in tiny}, (
        "workers say how far they are"
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_a_trial_has_one_thread_unless_more_are_asked_for(toy, store, shared_workers, workers):
    """On any machine and beside any number of others: with another number of threads the last
    digits differ.
    """
    earlier = torch.get_num_threads()
    torch.set_num_threads(5)
    try:
        run(toy("well", "well"), store, workers=workers)
        run(toy("well", "well", "well"), store, workers=workers, threads=3)
        assert torch.get_num_threads() == 5
    finally:
        torch.set_num_threads(earlier)
    assert {r.config["size"]: r.environment.threads for r in store.records()} == {
        1: 1,
        2: 1,
        3: 3,
    }


def test_a_scheduler_of_ones_own_leaves_the_same_records(
    tiny, records_here, tmp_path, own_cluster
):
    store = Store(tmp_path / "cluster")
    display = RecordedDisplay()
    # one worker: two in threads of one process would share torch's random numbers
    address = own_cluster(1).scheduler_address
    assert len(run(tiny, store, display, scheduler=address)) == len(tiny)
    assert numbers(store) == numbers(records_here)
    assert display.plans[0].devices is None
    assert {key for key, *_ in display.steps} == {trial.key for trial in tiny}


# ------------------------------------------------------------------------------------------
# what has a record


@pytest.mark.parametrize("workers", [1, 2])
def test_what_has_a_record_is_not_run_again(tiny, records_here, shared_workers, workers):
    earlier = numbers(records_here)
    assert run(tiny, records_here, workers=workers) == []
    records_here.path(tiny[2]).unlink()
    (record,) = run(tiny, records_here, workers=workers)
    assert record.trial == tiny[2]
    assert numbers(records_here) == earlier


@pytest.mark.parametrize("workers", [1, 2])
def test_a_rehearsal_gives_way_to_the_run_and_never_replaces_one(
    tiny, records_here, shared_workers, tmp_path, workers
):
    store = Store(tmp_path / "rehearsed")
    earlier = numbers(records_here)
    for steps in (2, 1):  # a second one replaces the first
        records = run(tiny, store, workers=workers, max_steps=steps)
        assert len(records) == len(tiny)
        assert {(r.exit, len(r.series["loss"])) for r in records} == {("cut", steps)}
        assert {len(r.series["seconds_of_steps"]) for r in records} == {steps - 1}
    assert run(tiny, records_here, workers=workers, max_steps=1) == []
    assert numbers(records_here) == earlier
    run(tiny, store, workers=workers)
    assert numbers(store) == earlier


def test_a_rehearsal_leaves_alone_what_was_finished_meanwhile(tiny, records_here):
    """It was planned before another process finished the trial."""
    sign = papers.experiments(STEM)["sign"]
    record = run_unless_taken(sign, tiny[0], records_here, Context(seed=0, max_steps=1))
    assert record == records_here.get(tiny[0])
    assert record.exit == "ok"


def outcome_of_deaths(trial: Trial, store: Store, **fields: object) -> Record | None:
    """Return what is made of a trial of which the scheduler says that it killed its workers."""
    settings = Settings(scale="cpu")
    task = workers.Task(trial=trial, settings=settings, results=store.root, **fields)
    killed = distributed.KilledWorker("task", None, 3)
    return workers.outcome(task, SimpleNamespace(status="error", exception=lambda: killed))


def test_a_record_outlives_its_worker(toy, store):
    """Dask loses the word that a trial has ended with its worker, blames it for the next deaths
    too, and gives it up.
    """
    (trial,) = toy("dies once")
    rehearsal = outcome_of_deaths(trial, store, max_steps=3)
    assert (rehearsal.exit, rehearsal.failed) == ("cut", True)
    record = make_record(trial)
    store.put(record)
    assert outcome_of_deaths(trial, store) == store.get(trial) == record
    failure = outcome_of_deaths(trial, store, replaces=record.finished)
    assert failure.exit == "error", "that record was there before"


# ------------------------------------------------------------------------------------------
# failures


def times_run(folder: Path) -> dict[str, int]:
    return {
        p.name.removeprefix("ran "): len(p.read_text(encoding="utf-8").split())
        for p in folder.glob("ran *")
    }


@pytest.mark.parametrize("workers", [1, 2])
def test_a_trial_that_fails_is_recorded_and_stops_no_other(toy, store, shared_workers, workers):
    trials = toy("well", "raises", "nan", "oom", "exits", "well")
    run(trials, store, workers=workers)
    records = [store.get(trial) for trial in trials]
    exits = [record.exit for record in records]
    assert exits == ["ok", "error", "nan", "oom", "error", "ok"]
    messages = ["RuntimeError: out of luck (toys.py:", "step 3", "can't allocate memory"]
    messages.append("SystemExit: 3 (toys.py:")
    for record, message in zip(records[1:5], messages, strict=True):
        assert message in record.message
        assert "Traceback" in store.log(record.trial).read_text(encoding="utf-8")
    assert len(list((store.root / ".logs").iterdir())) == 4


def test_what_failed_is_run_again_only_when_asked(toy, store, tmp_path, monkeypatch):
    trials = toy("well", "raises", "nan")
    display = RecordedDisplay()
    run(trials, store, workers=1)
    assert run(trials, store, display, workers=1) == []
    assert display.plans[0].not_ok.keys() == {trial.key for trial in trials[1:]}
    monkeypatch.setattr(toys, "NotFinite", KeyError)  # an error that nobody expects
    records = run(trials, store, workers=1, retry_failed=True)
    assert [record.exit for record in records] == ["error", "error"]
    assert times_run(tmp_path) == {"well 1 0": 1, "raises 2 0": 2, "nan 3 0": 2}
    assert store.get(trials[2]).message.startswith("KeyError")


def test_no_rehearsal_replaces_the_record_of_a_failure(toy, store):
    (trial,) = toy("raises")
    run([trial], store, workers=1)
    failure = store.get(trial)
    with pytest.raises(UserError, match="--max-steps is no result: give one of them"):
        run([trial], store, workers=1, retry_failed=True, max_steps=1)
    assert store.get(trial) == failure


def test_a_trial_that_ends_well_leaves_no_log(toy, store):
    (trial,) = toy("well")
    store.put(make_record(trial, exit="error"))
    store.log(trial).parent.mkdir()
    store.log(trial).touch()
    run([trial], store, workers=1, retry_failed=True)
    assert store.get(trial).exit == "ok"
    assert not store.log(trial).exists()


def test_of_each_training_the_final_weights_stay_and_no_unfinished_checkpoint(
    tiny, store, monkeypatch
):
    """What a kill left of a checkpoint goes with the next one."""
    monkeypatch.setenv("CAPSLIB_CHECKPOINT_SECONDS", "0")
    sign = papers.experiments(STEM)["sign"]
    names = []
    for trial in tiny:
        for training in sign.trainings(papers.arm(trial), trial.seed):
            names.append(f"{training.key}.pt")
    leftover = store.trainings / f".{names[0]}.abcd_123.part"
    leftover.parent.mkdir(parents=True)
    leftover.touch()
    os.utime(leftover, times=(0, 0))
    run(tiny, store, workers=1)
    weights = [path for path in store.trainings.iterdir() if path.suffix != ".lock"]
    assert {path.name for path in weights} == set(names)
    times = [path.stat().st_mtime_ns for path in weights]
    store.path(tiny[0]).unlink()
    (repetition,) = run(tiny, store, workers=1)
    assert repetition.resumed_from == [], "read, and not taken up in the middle"
    assert [path.stat().st_mtime_ns for path in weights] == times


@pytest.mark.parametrize("workers", [1, 2])
def test_a_missing_data_set_stops_everything(toy, store, shared_workers, workers):
    with pytest.raises(UserError, match="no data"):
        run(toy("lacks", "lacks", "lacks"), store, workers=workers)
    assert list(store.records()) == []


def test_a_rehearsal_that_fails_ends_with_a_status_and_names_the_log(
    toy, store, tmp_path, monkeypatch, capsys
):
    toy()
    words = f"run {STEM} --scale smoke --experiment toy --where size=1 --workers 1"
    words = [*words.split(), "--max-steps", "1", "--results-dir", str(store.root)]
    words += ["--set", "does=raises", "--set", f"folder={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["capslib", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert len(list(store.records(cut=True))) == 1
    message = " ".join(capsys.readouterr().err.split())
    assert "RuntimeError: out of luck" in message
    assert ".logs" in message


def test_notes_of_a_running_trial_are_passed_on(toy, store):
    (trial,) = toy("well")
    display = RecordedDisplay()
    run([trial], store, display, workers=1)
    assert display.steps == [(trial.key, 0, 0, ""), (trial.key, 1, 2, "half way")]


# ------------------------------------------------------------------------------------------
# workers that die


def test_a_trial_that_kills_its_workers_is_recorded_and_the_others_go_on(toy, store, tmp_path):
    trials = toy("dies", "well", "dies once", "dies further on", "well", "well")
    records = {r.config["size"]: r for r in run(trials, store, workers=2)}
    assert [records[n].exit for n in range(1, 7)] == ["error", "ok", "ok", "ok", "ok", "ok"]
    assert (
        "its worker process died 4 times without getting any further: "
        "somebody killed it, or memory ran out" in records[1].message
    )
    assert records[1].message in store.log(trials[0]).read_text(encoding="utf-8")
    times = times_run(tmp_path)
    assert (times["dies once 3 0"], times["dies further on 4 0"]) == (2, 6)
    assert (
        times["dies 1 0"] <= 4
    )  # dask counts it too when a worker dies that was about to start it
    assert [times[f"well {n} 0"] for n in (2, 5, 6)] == [1, 1, 1]


# ------------------------------------------------------------------------------------------
# two at once


@pytest.mark.parametrize("gives_up", [False, True])
def test_a_trial_that_another_process_runs_is_left_to_it(toy, store, tmp_path, gives_up):
    """A lock of our own plays the other process, which ends when we have nothing left to do."""
    trials = toy("well", "well", "well")
    lock = FileLock(store.lock(trials[0]))
    store.lock(trials[0]).parent.mkdir(parents=True)
    lock.acquire()

    def end() -> None:
        assert {record.config["size"] for record in store.records()} == {2, 3}
        if not gives_up:
            store.put(make_record(trials[0], message="by the other"))
        lock.release()

    display = RecordedDisplay(then=end)
    assert len(run(trials, store, display, workers=1)) == 3
    (line,) = display.lines
    assert line == "Waiting for another process, which runs 1 trial."
    times = times_run(tmp_path)
    assert times.pop("well 1 0", 0) == gives_up
    assert times == {"well 2 0": 1, "well 3 0": 1}


def test_a_failure_is_tried_again_by_one_of_two_only(toy, store, tmp_path):
    """Both saw the same failure; the second finds that it has been replaced meanwhile, by a
    failure again.
    """
    (trial,) = toy("raises")
    store.put(make_record(trial, exit="error"))

    class Slow(RecordedDisplay):
        def plan(self, plan):
            run([trial], store, workers=1, retry_failed=True)  # the other is quicker

    (record,) = run([trial], store, Slow(), workers=1, retry_failed=True)
    assert times_run(tmp_path) == {"raises 1 0": 1}
    assert record == store.get(trial)


# ------------------------------------------------------------------------------------------
# sessions


def test_a_session_keeps_smoke_records_out_of_the_results(tmp_path, monkeypatch):
    """They lie in a folder for the code that made them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CAPSLIB_RESULTS", raising=False)
    (tmp_path / "_toc.yml").touch()
    smoke = batch.Session.start().store.root
    assert smoke.parent == tmp_path / "_build" / "smoke"
    assert batch.Session.start(scale="cpu").store.root == tmp_path / "results"
    assert batch.Session.start(results_dir=tmp_path / "x").store.root == tmp_path / "x"
    monkeypatch.setattr(batch, "code_hash", lambda: "f" * 64)
    assert batch.Session.start().store.root != smoke


def test_a_plan_needs_no_folder_that_can_be_written(tmp_path):
    (tmp_path / "file").touch()
    parameters = {"scale": "cpu", "results_dir": tmp_path / "file" / "below"}
    assert batch.Session.for_plans(**parameters)
    with pytest.raises(UserError, match="Results cannot be written"):
        batch.Session.start(**parameters)


def test_a_session_runs_what_is_missing_and_gives_back_all(toy, tmp_path, capsys):
    toy()
    session = batch.Session.start(results_dir=tmp_path / "x", workers=1, seeds=2)
    change = {"folder": str(tmp_path)}
    first = session.run(STEM, "toy", where={"size": 1}, change=change)
    records = session.run(STEM, "toy", change=change)
    sizes = [(record.trial.seed, record.config["size"]) for record in records]
    assert sizes == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]
    assert [records[0], records[3]] == first
    assert set(times_run(tmp_path).values()) == {1}
    assert capsys.readouterr().out.splitlines() == [
        "0 records loaded, 2 run: toy, smoke scale; figures prefer larger runs",
        "2 records loaded, 4 run: toy, smoke scale; figures prefer larger runs",
    ]


def test_a_folder_is_that_of_the_caller_for_workers_too(tiny, tmp_path, monkeypatch):
    """Workers may have another working folder."""
    monkeypatch.chdir(tmp_path)
    sent = []

    def keep(tasks: Iterable[workers.Task]) -> Iterator[Record]:
        sent.extend(tasks)
        return iter(())

    monkeypatch.setattr(batch, "executor", lambda *_: contextlib.nullcontext(keep))
    run(tiny, Store(Path("records")), workers=2, data_dir=Path("data"))
    assert {task.results for task in sent} == {tmp_path / "records"}
    assert {task.settings.data_dir for task in sent} == {tmp_path / "data"}
    assert [task.trial for task in sent] == tiny


def test_a_signal_that_comes_while_the_last_trial_ends_stops_what_would_follow(toy, store):
    """The trial keeps its record. Other runs of a budget, or of a cell, do not start."""
    (trial,) = toy("well")

    class Interrupting(RecordedDisplay):
        def finish(self, trial, record):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        run([trial], store, Interrupting(), workers=1)
    assert store.get(trial).exit == "ok"


class InterruptedAtAStep(RecordedDisplay):
    """A display that sends Ctrl-C at the first step of all trials."""

    def step(self, *step):
        super().step(*step)
        if len(self.steps) == 1:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_that_is_to_stop_says_once_what_it_waits_for(toy, store, shared_workers, workers):
    display = InterruptedAtAStep()
    with pytest.raises(Interrupted):
        run(toy("waits", "waits"), store, display, workers=workers)
    (line,) = display.lines
    assert line.startswith("Stopping: running trials write a checkpoint first. A second signal")


# ------------------------------------------------------------------------------ in a given time


def in_time(
    trials: list[Trial],
    store: Store,
    seconds: float,
    display: RecordedDisplay | None = None,
    **settings: object,
):
    """Run what some trials decide together in so many seconds, and return the records."""
    waiting = Waiting(
        [Bundle(("NEG-W-1",), frozenset(trial.key for trial in trials))],
        {trial.key: trial for trial in trials},
    )
    settings = Settings(scale="cpu", **settings)
    started = time.monotonic()
    records = batch.run_budget(
        waiting, store, settings, seconds, started=started, display=display
    )
    assert time.monotonic() - started < seconds
    return records


@pytest.mark.parametrize("workers", [1, 2])
def test_a_budget_ends_in_time_with_checkpoints_and_the_next_one_goes_on(
    toy, store, tmp_path, shared_workers, workers
):
    trials = toy("well", "waits")
    records = in_time(trials, store, 24, workers=workers)
    assert [record.trial for record in records] == trials[:1]
    assert len(list(store.trainings.glob("*.pt"))) == 1
    (tmp_path / "go").touch()
    records = in_time(trials, store, 60, workers=1)
    assert [record.trial for record in records] == trials
    assert len((tmp_path / "ran well 1 0").read_text(encoding="utf-8").split()) == 1


def test_a_signal_in_a_budget_stops_it_like_any_run(toy, store):
    with pytest.raises(Interrupted):
        in_time(toy("waits"), store, 60, InterruptedAtAStep(), workers=1)


def test_training_steps_that_no_record_tells_of_are_rehearsed(tiny, store, monkeypatch):
    """One of the trials of each step; then the estimates rest on that, and claims do not."""
    monkeypatch.setattr(batch, "REHEARSAL_STEPS", 2)
    display = RecordedDisplay()
    settings = Settings(scale="cpu", workers=1)
    two_seeds = [*tiny, *(trial.model_copy(update={"seed": 1}) for trial in tiny)]
    deadline = time.monotonic() + 300
    batch.rehearse(two_seeds, store, settings, deadline, display)
    assert len(display.lines) == 1
    rehearsed = list(planning.rehearsals(store).records(STEM, cut=True))
    assert len(rehearsed) == len(tiny)
    assert list(store.records(STEM, cut=True)) == []
    planned = planning.plan(two_seeds, store, settings)
    assert {estimate.basis for estimate in planned.estimates.values()} == {BY_REHEARSAL}
    batch.rehearse(two_seeds, store, settings, deadline, display)
    assert len(display.lines) == 1, "nothing is rehearsed twice"


def test_a_rehearsal_that_fails_in_a_budget_is_told(toy, store):
    display = RecordedDisplay()
    settings = Settings(scale="cpu", workers=1)
    batch.rehearse(toy("raises"), store, settings, time.monotonic() + 300, display)
    assert display.lines[0].startswith("Rehearsing 1 training step that no record tells of")
    assert "failed: error: RuntimeError: out of luck (toys.py:" in display.lines[1]


def test_a_budget_that_outlasts_the_work_ends_with_it(toy, store):
    """Its one line names the trial that it chose."""
    by_key = {trial.key: trial for trial in toy("well")}
    waiting = Waiting([Bundle(("NEG-W-1",), frozenset(by_key))], by_key)
    display = RecordedDisplay()
    settings = Settings(scale="cpu", workers=1)
    started = time.monotonic()
    batch.run_budget(waiting, store, settings, 300, started=started, display=display)
    (line,) = display.lines
    assert line == "Chosen: 1 trial, to decide 1 claim if all end in time."


def test_the_plan_of_a_rehearsal_says_that_it_is_one(toy, store):
    display = RecordedDisplay()
    run(toy("well"), store, display, workers=1, max_steps=3)
    run(toy("well"), store, display, workers=1)
    assert [plan.max_steps for plan in display.plans] == [3, None]
