"""Many trials: here, on an embedded cluster and on a scheduler of the user's own; each runs
once and all give the same records.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import distributed  # its configuration has to be there before a test changes a part of it
import pytest
import torch
import toys
from helpers import RecordedDisplay

from capslib import papers
from capslib.errors import UserError
from capslib.lab import batch, cli, workers
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
    retry_failed=False,
    max_steps=None,
    **settings: object,
) -> list[Record]:
    settings, options = (
        Settings(**{"scale": "cpu", **settings}),
        dict(retry_failed=retry_failed, max_steps=max_steps),
    )
    return batch.run(trials, store, settings, display=display, **options)


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
    store, display = Store(tmp_path / "cluster"), RecordedDisplay()
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
    store, display = Store(tmp_path / "cluster"), RecordedDisplay()
    # one worker: two in threads of one process would share torch's random numbers
    address = own_cluster(1).scheduler_address
    assert len(run(tiny, store, display, scheduler=address)) == len(tiny)
    assert numbers(store) == numbers(records_here)
    assert display.plans[0].devices is None
    assert {key for key, *_ in display.steps} == {trial.key for trial in tiny}


# ------------------------------------------------------------------------------------------
# what has a record


def test_what_has_a_record_is_not_run_again(tiny, records_here, monkeypatch):
    files = {p: p.stat().st_mtime_ns for p in records_here.root.rglob("*.json")}
    monkeypatch.setattr(batch, "executor", lambda *_: pytest.fail("a trial was run"))
    for count in (1, 2):
        assert run(tiny, records_here, workers=count) == []
    assert {p: p.stat().st_mtime_ns for p in records_here.root.rglob("*.json")} == files


def test_each_record_is_looked_at_once_before_a_run(tiny, records_here, monkeypatch):
    looked = []
    monkeypatch.setattr(Store, "get", lambda store, trial: looked.append(trial.key))
    monkeypatch.setattr(
        batch, "executor", lambda *_: contextlib.nullcontext(lambda tasks: iter(()))
    )
    run(tiny, records_here, workers=1)
    assert sorted(looked) == sorted(t.key for t in tiny)


def test_only_what_is_missing_runs(tiny, records_here):
    records_here.path(tiny[2]).unlink()
    earlier = numbers(records_here)
    (record,) = run(tiny, records_here, workers=1)
    assert record.trial == tiny[2]
    assert len(earlier) == len(tiny) - 1
    assert earlier.items() <= numbers(records_here).items()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_rehearsal_gives_way_to_the_run_and_never_replaces_one(
    tiny, records_here, shared_workers, tmp_path, workers
):
    store, earlier = Store(tmp_path / "rehearsed"), numbers(records_here)
    for steps in (2, 1):  # a second one replaces the first
        records = run(tiny, store, workers=workers, max_steps=steps)
        assert {(r.exit, len(r.series["loss"])) for r in records} == {("cut", steps)}
        assert {len(r.series["seconds_of_steps"]) for r in records} == {steps - 1}, (
            "between one and the next"
        )
        assert len(records) == len(tiny)
    assert run(tiny, records_here, workers=workers, max_steps=1) == []
    assert numbers(records_here) == earlier
    run(tiny, store, workers=workers)
    assert numbers(store) == earlier


def outcome_of_deaths(trial: Trial, store: Store, **fields: object) -> Record | None:
    """Return what is made of a trial of which the scheduler says that it killed its workers."""
    settings = Settings(scale="cpu")
    task = workers.Task(trial=trial, settings=settings, results=store.root, **fields)
    killed = distributed.KilledWorker("task", None, 3)
    return workers.outcome(task, SimpleNamespace(status="error", exception=lambda: killed))


def test_a_rehearsal_that_kills_its_workers_is_no_failure_of_the_run(toy, store):
    (trial,) = toy("dies")
    record = outcome_of_deaths(trial, store, max_steps=3)
    assert (record.exit, record.failed) == ("cut", True)


def test_a_record_outlives_its_worker(toy, store, make_record):
    """Dask loses the word that a trial has ended with its worker, blames it for the next deaths
    too, and gives it up.
    """
    (trial,) = toy("dies once")
    ended = make_record(trial)
    store.put(ended)
    assert outcome_of_deaths(trial, store) == store.get(trial) == ended
    assert outcome_of_deaths(trial, store, replaces=ended.finished).exit == "error", (
        "that one was there before"
    )


def test_a_rehearsal_leaves_alone_what_was_finished_meanwhile(tiny, records_here):
    """What another process has finished meanwhile is not replaced, even if the rehearsal was
    planned before.
    """
    experiment = papers.experiments(STEM)["sign"]
    record = run_unless_taken(experiment, tiny[0], records_here, Context(seed=0, max_steps=1))
    assert record == records_here.get(tiny[0])
    assert record.exit == "ok"


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
    records = {r.config["size"]: r for r in run(trials, store, workers=workers)}
    assert [records[n].exit for n in range(1, 7)] == [
        "ok",
        "error",
        "nan",
        "oom",
        "error",
        "ok",
    ]
    assert "RuntimeError: out of luck (toys.py:" in records[2].message
    assert "step 3" in records[3].message
    assert "can't allocate memory" in records[4].message
    logs = {p.stem: p.read_text(encoding="utf-8") for p in (store.root / ".logs").iterdir()}
    assert "SystemExit: 3 (toys.py:" in records[5].message
    assert logs.keys() == {t.key for t in trials[1:5]}
    assert all("Traceback" in text for text in logs.values())
    assert 'raise RuntimeError("out of luck")' in logs[trials[1].key]


def test_what_failed_is_run_again_only_when_asked(toy, store, tmp_path, monkeypatch):
    trials, display = toy("well", "raises", "nan"), RecordedDisplay()
    run(trials, store, workers=1)
    assert run(trials, store, display, workers=1) == []
    assert times_run(tmp_path) == {"well 1 0": 1, "raises 2 0": 1, "nan 3 0": 1}
    assert display.plans[0].failed.keys() == {t.key for t in trials[1:]}
    cured = toys.TOY.run
    monkeypatch.setitem(cured.__globals__, "NotFinite", KeyError)  # it fails differently now
    assert [r.exit for r in run(trials, store, workers=1, retry_failed=True)] == [
        "error",
        "error",
    ]
    assert times_run(tmp_path) == {"well 1 0": 1, "raises 2 0": 2, "nan 3 0": 2}
    assert store.get(trials[2]).message.startswith("KeyError")


def test_a_trial_that_ends_well_leaves_no_log(toy, store, make_record):
    (trial,) = toy("well")
    store.put(make_record(trial, exit="error"))
    store.log(trial).parent.mkdir()
    store.log(trial).touch()
    assert [r.exit for r in run([trial], store, workers=1, retry_failed=True)] == ["ok"]
    assert not store.log(trial).exists()


def test_of_each_training_the_final_weights_stay_and_no_unfinished_checkpoint(
    tiny, store, monkeypatch
):
    """A kill came while a checkpoint was being written; the next one has its name, and takes
    what was left along.
    """
    monkeypatch.setenv("CAPSLIB_CHECKPOINT_SECONDS", "0")
    sign = papers.experiments(STEM)["sign"]
    keys = {
        t.key: training.key for t in tiny for training in sign.trainings(papers.arm(t), t.seed)
    }
    assert len(set(keys.values())) == len(tiny) > 1
    leftover = store.trainings / f".{keys[tiny[0].key]}.pt.abcd_123.part"
    leftover.parent.mkdir(parents=True)
    leftover.touch()
    os.utime(leftover, times=(0, 0))
    run(tiny, store, workers=1)
    assert {p.name for p in store.trainings.iterdir() if p.suffix != ".lock"} == {
        f"{key}.pt" for key in keys.values()
    }
    earlier = {p: p.stat().st_mtime_ns for p in store.trainings.glob("*.pt")}
    store.path(tiny[0]).unlink()
    (repetition,) = run(tiny, store, workers=1)
    assert repetition.resumed_from == [], "read, and not taken up in the middle"
    assert {p: p.stat().st_mtime_ns for p in store.trainings.glob("*.pt")} == earlier


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
    display = RecordedDisplay()
    trials = toy("well", "well")
    run(trials, store, display, workers=1)
    assert display.steps == [
        (t.key, *more) for t in trials for more in ((0, 0, ""), (1, 2, "half way"))
    ]


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


def test_a_trial_that_another_process_runs_is_left_to_it(toy, store, tmp_path):
    """The other process is played by a lock of our own; it ends, with a record, when we have
    nothing else left to do.
    """
    from filelock import FileLock

    trials = toy("well", "well", "well")
    lock = FileLock(store.lock(trials[0]))
    store.lock(trials[0]).parent.mkdir(parents=True)
    lock.acquire()

    class Other(RecordedDisplay):
        def say(self, text):
            super().say(text)
            assert [r.config["size"] for r in store.records()] == [2, 3] or len(
                list(store.records())
            ) == 2
            store.put(make(trials[0]))
            lock.release()

    def make(trial):
        record = next(store.records())
        return record.model_copy(
            update={
                "trial": trial,
                "key": trial.key,
                "config": papers.fields(trial),
                "message": "by the other",
            }
        )

    display = Other()
    records = {r.config["size"]: r for r in run(trials, store, display, workers=1)}
    assert len(display.lines) == 1
    assert "1 trials are being run by another process" in display.lines[0]
    assert times_run(tmp_path) == {"well 2 0": 1, "well 3 0": 1}
    assert records[1].message == "by the other"


def test_what_another_process_gave_up_is_taken_over(toy, store, tmp_path):
    from filelock import FileLock

    trials = toy("well", "well")
    lock = FileLock(store.lock(trials[0]))
    store.lock(trials[0]).parent.mkdir(parents=True)
    lock.acquire()
    display = RecordedDisplay()
    display.say = lambda text: lock.release()
    assert {r.config["size"] for r in run(trials, store, display, workers=1)} == {1, 2}
    assert times_run(tmp_path) == {"well 1 0": 1, "well 2 0": 1}


def test_a_failure_is_tried_again_by_one_of_two_only(toy, store, tmp_path, make_record):
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
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CAPSLIB_RESULTS", raising=False)
    (tmp_path / "_toc.yml").touch()
    assert batch.Session.start().store.root.parent == tmp_path / "_build" / "smoke"
    assert batch.Session.start(scale="cpu").store.root == tmp_path / "results"
    assert batch.Session.start(results_dir=tmp_path / "x").store.root == tmp_path / "x"


def test_a_plan_needs_no_folder_that_can_be_written(tmp_path):
    (tmp_path / "file").touch()
    assert batch.Session.start(
        scale="cpu", results_dir=tmp_path / "file" / "below", elsewhere=True
    )
    with pytest.raises(UserError, match="Results cannot be written"):
        batch.Session.start(scale="cpu", results_dir=tmp_path / "file" / "below")


def test_smoke_records_belong_to_the_code_that_made_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    earlier = batch.Session.start().store.root
    monkeypatch.setattr(batch, "code_hash", lambda: "f" * 64)
    assert batch.Session.start().store.root != earlier


def test_a_session_runs_what_is_missing_and_gives_back_all(toy, tmp_path, capsys):
    toy()
    session = batch.Session.start(results_dir=tmp_path / "x", workers=1, seeds=2)
    change = {"folder": str(tmp_path)}
    batch.Session.start(results_dir=tmp_path / "x", workers=1, seeds=1).run(
        STEM, "toy", where={"size": 1}, change=change
    )
    first = session.run(STEM, "toy", where={"size": 1}, change=change)
    assert [(r.config["size"], r.trial.seed) for r in first] == [(1, 0), (1, 1)]
    everything = session.run(STEM, "toy", change=change)
    assert [(r.config["size"], r.trial.seed) for r in everything] == [
        (n, s) for s in (0, 1) for n in (1, 2, 3)
    ]
    assert everything[0] == first[0]
    which = "toy, smoke scale; figures prefer larger runs"
    assert capsys.readouterr().out.splitlines() == [
        f"0 records loaded, 1 run: {which}",
        f"1 record loaded, 1 run: {which}",
        f"2 records loaded, 4 run: {which}",
    ]
    assert times_run(tmp_path) == {f"well {n} {s}": 1 for s in (0, 1) for n in (1, 2, 3)}


def test_a_session_refuses_what_it_cannot_do(tmp_path):
    with pytest.raises(UserError, match="Did you mean 'scale'"):
        batch.Session.start(scal="cpu")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        batch.Session.start(results_dir=tmp_path / "file" / "x")
    session = batch.Session.start(results_dir=tmp_path / "x")
    with pytest.raises(UserError, match="Did you mean 'sign'"):
        session.trials(STEM, "sing")


def test_a_folder_is_that_of_the_caller_for_workers_too(tiny, tmp_path, monkeypatch):
    """Workers may have another working folder."""
    monkeypatch.chdir(tmp_path)
    sent = []
    monkeypatch.setattr(
        batch,
        "executor",
        lambda *_: contextlib.nullcontext(lambda tasks: sent.extend(tasks) or iter(())),
    )
    run(tiny, Store(Path("records")), workers=2, data_dir=Path("data"))
    assert {task.results for task in sent} == {tmp_path / "records"}
    assert {task.settings.data_dir for task in sent} == {tmp_path / "data"}
    assert [task.trial for task in sent] == tiny


def test_a_second_signal_of_either_kind_is_obeyed_at_once():
    """After a Ctrl-C it took two of Slurm's SIGTERM."""
    obeyed = []
    earlier = signal.signal(signal.SIGTERM, lambda number, _: obeyed.append(number))
    try:
        with contextlib.suppress(KeyboardInterrupt), batch.Signals() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert (stop(), obeyed) == (True, [])
            os.kill(os.getpid(), signal.SIGTERM)
            assert obeyed == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, earlier)
