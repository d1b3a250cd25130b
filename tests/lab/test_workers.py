"""Workers: this machine's processes, or those of a scheduler of the user's own."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import dask
import pytest
import toys
from helpers import RecordedDisplay
from toys import until

import capslib
from capslib.errors import Interrupted, UserError
from capslib.lab import batch, workers
from capslib.lab.settings import Settings


@pytest.fixture(autouse=True)
def time_limit():
    """Fail after some minutes what waits for ever, for a server or another process."""

    def end(*_: object) -> None:
        raise AssertionError("it waits for ever")

    handler = signal.signal(signal.SIGALRM, end)
    signal.alarm(240)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, handler)


def test_where_worker_processes_cannot_be_reached_one_worker_is_advised():
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1us"}),
        pytest.raises(UserError, match="--workers 1"),
        workers.start_workers(["cpu", "cpu"], threads=1),
    ):
        pass


@pytest.fixture
def run_on(toy, store):
    """Run toys on the user's scheduler at an address."""

    def run(address: str, *actions: str, display=None):
        settings = Settings(scale="cpu", scheduler=address)
        return batch.run(toy(*actions or ["well"]), store, settings, display=display)

    return run


@contextlib.contextmanager
def process(module: str, *words: str, folder: Path) -> Iterator[subprocess.Popen]:
    """Run ``python -m`` in a folder, whose modules come before all others."""
    with subprocess.Popen(
        [sys.executable, "-m", module, *words],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def worker(address: str, folder: Path, *words: str) -> contextlib.AbstractContextManager:
    words = ("--no-nanny", "--nthreads", "1", "--no-dashboard", *words)
    return process("distributed.cli.dask_worker", address, *words, folder=folder)


def test_no_profiler_of_dask_spoils_a_compiled_trial(run_on, own_cluster):
    """In the thread of the task it would make the trial fail."""
    (record,) = run_on(own_cluster().scheduler_address, "compiles")
    assert (record.exit, record.message) == ("ok", "")


def test_errors_of_workers_are_told_by_us_alone(toy, store, shared_workers, capfd):
    settings = Settings(scale="cpu", workers=2)
    assert [r.exit for r in batch.run(toy("raises", "raises"), store, settings)] == [
        "error"
    ] * 2
    with pytest.raises(UserError, match="no data"):
        batch.run(toy("lacks", "lacks"), store, settings)
    assert capfd.readouterr().err == ""


def test_a_worker_with_another_capslib_is_refused(
    run_on, own_cluster, store, tmp_path, monkeypatch
):
    package = tmp_path / "other" / "capslib"
    shutil.copytree(
        Path(capslib.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    (package / "new.py").touch()
    cluster = own_cluster(0)
    with worker(cluster.scheduler_address, package.parent):
        until(lambda: cluster.scheduler.workers)
        message = "These workers have another version of capslib.*: tcp://"
        with pytest.raises(UserError, match=message):
            run_on(cluster.scheduler_address)
        # As if it had joined a moment later.
        monkeypatch.setattr(workers, "check_workers", lambda client: None)
        message = "The worker tcp://.* has another version of capslib"
        with pytest.raises(UserError, match=message):
            run_on(cluster.scheduler_address)
    assert list(store.records()) == []


def test_a_worker_of_many_threads_is_refused(run_on, own_cluster):
    with pytest.raises(UserError, match="--nthreads 1"):
        run_on(own_cluster(threads=2).scheduler_address)


# ------------------------------------------------------------- a scheduler that is none


@contextlib.contextmanager
def server(answer: bytes) -> Iterator[str]:
    """Run a server of another kind; without an answer it is silent. Yield its address."""
    end = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(100)
            if answer:
                self.request.sendall(answer)
            else:
                end.wait()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        try:
            yield "tcp://{}:{}".format(*running.server_address)
        finally:
            end.set()
            running.shutdown()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_server_that_is_no_scheduler_is_refused(run_on, monkeypatch, answer):
    monkeypatch.setattr(workers, "SCHEDULER_TIMEOUT", 1.0)
    with server(answer) as address, pytest.raises(UserError) as refused:
        run_on(address)
    assert str(refused.value).startswith(f"No dask scheduler answers at {address}: ")


@pytest.mark.parametrize("protocol", ["tls", "http", "tcp"])
def test_an_address_at_which_nothing_answers_is_refused(run_on, monkeypatch, protocol):
    monkeypatch.setattr(workers, "SCHEDULER_TIMEOUT", 1.0)
    address = f"{protocol}://127.0.0.1:9"
    with pytest.raises(UserError, match=f"No dask scheduler answers at {address}: "):
        run_on(address)


def test_the_address_of_a_worker_is_no_schedulers(run_on, own_cluster):
    with pytest.raises(UserError, match="it is the address of a Worker"):
        run_on(own_cluster().workers[0].address)


# ----------------------------------------------------- a scheduler without workers, or no more


def test_a_scheduler_without_workers_is_told_and_waited_for(run_on, own_cluster):
    cluster = own_cluster(0)
    display = RecordedDisplay(then=lambda: cluster.scale(1))
    (record,) = run_on(cluster.scheduler_address, display=display)
    assert record.exit == "ok"
    assert len(display.lines) == 1
    assert "The scheduler has no worker. Waiting 5 min" in display.lines[0]


def test_a_scheduler_that_gets_no_worker_is_not_waited_for_for_ever(
    run_on, own_cluster, monkeypatch
):
    monkeypatch.setattr(workers, "WORKER_TIMEOUT", 1.0)
    address = own_cluster(0).scheduler_address
    with pytest.raises(UserError, match=rf"`dask worker {address} --nthreads 1`"):
        run_on(address)


def test_a_signal_ends_the_wait_for_a_worker(run_on, own_cluster):
    def interrupt() -> None:
        if len(display.lines) == 1:
            signal.raise_signal(signal.SIGINT)

    display = RecordedDisplay(then=interrupt)
    with pytest.raises(Interrupted):
        run_on(own_cluster(0).scheduler_address, display=display)


def test_a_scheduler_that_is_killed_in_mid_run(run_on, tmp_path, capfd):
    file = tmp_path / "scheduler.json"
    words = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file")
    module = "distributed.cli.dask_scheduler"
    with process(module, *words, str(file), folder=tmp_path) as scheduler:
        until(lambda: file.exists() and file.stat().st_size)
        address = json.loads(file.read_text(encoding="utf-8"))["address"]
        display = RecordedDisplay()
        display.step = lambda *_: scheduler.kill()  # the trial runs, and says so
        with (
            worker(address, Path(toys.__file__).parent, "--preload", toys.__file__),
            pytest.raises(UserError, match=r"went away\. The same command"),
        ):
            run_on(address, "waits", display=display)
    assert capfd.readouterr().err == ""
