"""Many trials: here, on an embedded cluster and on a scheduler of the user's own; each runs once and all give the same records."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from capslib import batch, cli, papers
from capslib.errors import UserError
from capslib.settings import Settings
from capslib.store import Store
from capslib.trials import Metric, Outcome, Record, Trial

STEM = "negation_limitation"


@pytest.fixture
def tiny() -> list[Trial]:
    """All arms of the sign experiment on twenty points; no data set is needed."""
    return papers.experiments(STEM)["sign"].trials("cpu", seeds=[0], change={"points": 20, "epochs": 1})


def run(trials: list[Trial], store: Store, **settings: object) -> list[Record]:
    return batch.run(trials, store, Settings(scale="cpu", **settings))


def numbers(store: Store) -> dict[str, tuple]:
    """What a trial computed, apart from where and when: equal means equal to the last bit."""
    return {r.key: (r.trial, r.exit, r.metrics, r.series, r.parameters) for r in store.records()}


@pytest.fixture
def here(tiny, tmp_path) -> Store:
    """The tiny trials, run in this process."""
    store = Store(tmp_path / "here")
    run(tiny, store, workers=1)
    return store


def test_two_workers_leave_the_same_records_as_one_process(tiny, here, tmp_path):
    store, told = Store(tmp_path / "cluster"), []
    settings = Settings(scale="cpu", workers=2)
    records = batch.run(tiny, store, settings, report=lambda trial, record, note: told.append((trial.key, record)))
    assert len(numbers(here)) == len(tiny) > 1
    assert numbers(store) == numbers(here)
    assert {r.key for r in records} == {t.key for t in tiny}
    assert dict(told) == {r.key: r for r in records}


@contextlib.contextmanager
def process(*words: str):
    with subprocess.Popen([sys.executable, "-m", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        try:
            yield running
        finally:
            running.terminate()
            running.wait(30)


def test_a_scheduler_of_ones_own_leaves_the_same_records(tiny, here, tmp_path):
    file, quiet = tmp_path / "scheduler.json", ("--no-dashboard", "--scheduler-file")
    with process("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", *quiet, str(file)) as scheduler:
        for _ in range(600):
            if file.exists() and file.stat().st_size:
                break
            assert scheduler.poll() is None
            time.sleep(0.1)
        address = json.loads(file.read_text())["address"]
        with process("distributed.cli.dask_worker", "--no-nanny", "--nthreads", "1", *quiet, str(file)):
            store = Store(tmp_path / "cluster")
            assert len(run(tiny, store, scheduler=address)) == len(tiny)
    assert numbers(store) == numbers(here)


def test_what_has_a_record_is_not_run_again(tiny, here, monkeypatch):
    files = {p: p.stat().st_mtime_ns for p in here.root.rglob("*.json")}
    monkeypatch.setattr(batch, "_run_here", lambda *_: pytest.fail("a trial was run"))
    monkeypatch.setattr(batch, "_run_on_cluster", lambda *_: pytest.fail("a cluster was started"))
    for workers in (1, 2):
        assert run(tiny, here, workers=workers) == []
    assert {p: p.stat().st_mtime_ns for p in here.root.rglob("*.json")} == files


def test_only_what_is_missing_runs(tiny, here):
    here.path(tiny[2]).unlink()
    before = numbers(here)
    (record,) = run(tiny, here, workers=1)
    assert record.trial == tiny[2]
    assert len(before) == len(tiny) - 1
    assert before.items() <= numbers(here).items()


# ------------------------------------------------------------------------------------------------------------ failures


@pytest.fixture
def toy(monkeypatch, make_experiment):
    """An experiment of sizes 1, 2, 3 that goes wrong at size 2 as long as ``toy.error`` is set."""

    def run_toy(config, context):
        ran.append(config.size)
        if config.size == 2 and experiment_error:
            raise experiment_error[0]
        if context.progress:
            context.progress(1, 2, "half way")
        return Outcome(metrics={"size": Metric(value=config.size, n=1, unit="things")})

    ran: list[int] = []
    experiment_error: list[Exception] = [RuntimeError("out of luck")]
    experiment = make_experiment(run_toy)
    monkeypatch.setitem(papers.experiments(STEM), "toy", experiment)
    return experiment, experiment_error, ran


@pytest.mark.filterwarnings("ignore:.*out of luck")
def test_a_trial_that_fails_stops_no_other_and_is_tried_again(toy, store):
    experiment, error, ran = toy
    trials = experiment.trials("smoke")
    assert [r.exit for r in run(trials, store, workers=1)] == ["ok", "error", "ok"]
    error.clear()
    assert [r.exit for r in run(trials, store, workers=1)] == ["ok"]
    assert ran == [1, 2, 3, 2]


def test_a_missing_data_set_stops_everything(toy, store):
    experiment, error, ran = toy
    error[:] = [UserError("no data")]
    with pytest.raises(UserError, match="no data"):
        run(experiment.trials("smoke"), store, workers=1)
    assert ran == [1, 2]


@pytest.mark.filterwarnings("ignore:.*out of luck")
@pytest.mark.parametrize(("fails", "status"), [(True, 1), (False, 0)])
def test_the_exit_status_tells(toy, store, monkeypatch, capsys, fails, status):
    if not fails:
        toy[1].clear()
    words = [
        "capslib",
        "run",
        STEM,
        "--scale",
        "smoke",
        "--experiment",
        "toy",
        "--workers",
        "1",
        "--results-dir",
        str(store.root),
    ]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == status
    assert len(list(store.records())) == 3
    assert ("RuntimeError: out of luck" in " ".join(capsys.readouterr().err.split())) is fails


def test_data_are_asked_for_before_anything_starts(store, tmp_path, monkeypatch):
    monkeypatch.setattr(batch, "_run_on_cluster", lambda *_: pytest.fail("a cluster was started"))
    trials = papers.experiments(STEM)["depth"].trials("cpu", seeds=[0])
    with pytest.raises(UserError, match="mnist"):
        run(trials, store, workers=2, data_dir=tmp_path / "none")


def test_notes_of_a_running_trial_are_passed_on(toy, store):
    experiment, error, _ = toy
    error.clear()
    told = []
    settings = Settings(scale="smoke", workers=1)
    batch.run(experiment.trials("smoke"), store, settings, report=lambda trial, record, note: told.append((record is None, note)))
    assert told == [(True, "1/2 half way"), (False, "")] * 3


# ------------------------------------------------------------------------------------------------------------ sessions


@pytest.mark.parametrize(
    ("settings", "trials", "workers"),
    [
        (Settings(scale="smoke"), 100, 1),
        (Settings(scale="cpu"), 100, 4),
        (Settings(scale="cpu"), 3, 3),
        (Settings(scale="paper", device="cuda:0"), 100, 1),
    ],
)
def test_how_many_workers_there_are(monkeypatch, settings, trials, workers):
    monkeypatch.setattr(batch.os, "cpu_count", lambda: 4)
    assert batch.default_workers(settings, trials) == workers


def test_a_session_keeps_smoke_records_out_of_the_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CAPSLIB_RESULTS", raising=False)
    (tmp_path / "_toc.yml").touch()
    assert batch.Session.start().store.root.parent == tmp_path / "_build" / "smoke"
    assert batch.Session.start(scale="cpu").store.root == tmp_path / "results"
    assert batch.Session.start(results_dir=tmp_path / "x").store.root == tmp_path / "x"


def test_smoke_records_belong_to_the_code_that_made_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = batch.Session.start().store.root
    monkeypatch.setattr(batch, "code_hash", lambda: "f" * 64)
    assert batch.Session.start().store.root != before


def test_a_session_runs_what_is_missing_and_gives_back_all(toy, tmp_path):
    _, error, ran = toy
    error.clear()
    session = batch.Session.start(results_dir=tmp_path / "x", workers=1, seeds=2)
    first = session.run(STEM, "toy", where={"size": 1})
    assert [(r.trial.config["size"], r.trial.seed) for r in first] == [(1, 0), (1, 1)]
    everything = session.run(STEM, "toy")
    assert [(r.trial.config["size"], r.trial.seed) for r in everything] == [(n, s) for s in (0, 1) for n in (1, 2, 3)]
    assert everything[0] == first[0]
    assert sorted(ran) == [1, 1, 2, 2, 3, 3]


def test_a_session_refuses_what_it_cannot_do(tmp_path):
    with pytest.raises(UserError, match="Did you mean 'scale'"):
        batch.Session.start(scal="cpu")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        batch.Session.start(results_dir=tmp_path / "file" / "x")
    session = batch.Session.start(results_dir=tmp_path / "x")
    with pytest.raises(UserError, match="Did you mean 'sign'"):
        session.trials(STEM, "sing")
    with pytest.raises(UserError, match="none yet"):
        session.trials("em_routing", "sign")


def test_the_path_of_a_relative_results_folder_is_that_of_the_client(tiny, tmp_path, monkeypatch):
    """Workers may have another working folder."""
    monkeypatch.chdir(tmp_path)
    sent = []
    monkeypatch.setattr(batch, "_client", lambda *_: contextlib.nullcontext((Recorder(sent), 1)))
    monkeypatch.setattr("distributed.as_completed", lambda futures: [])
    run(tiny, Store(Path("records")), workers=2)
    assert {words[1] for words in sent} == {str(tmp_path / "records")}
    assert {words[0] for words in sent} == {t.model_dump_json() for t in tiny}


class Recorder:
    """A client that only remembers what it was asked to send."""

    def __init__(self, sent: list):
        self.sent = sent

    def submit(self, function, *words, **options):
        self.sent.append(words)
        return object()
