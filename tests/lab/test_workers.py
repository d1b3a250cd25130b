"""The cluster on which trials run: this machine's processes, or a scheduler of the user's own, whatever its state."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import shutil
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import dask
import distributed
import pytest
import toys
from helpers import Told
from toys import until

import capslib
from capslib.errors import Interrupted, UserError
from capslib.lab import batch, workers
from capslib.lab.settings import Settings

pytestmark = pytest.mark.usefixtures("forked")


@pytest.fixture(autouse=True)
def bound():
    """Whatever waits for ever, for a server or for another process, fails after some minutes."""

    def over(*_: object) -> None:
        raise AssertionError("it waits for ever")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(240)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def own_cluster(n_workers: int = 1, threads: int = 1) -> distributed.LocalCluster:
    """A cluster as a user may start it, in threads of this process: nothing here has to import torch again."""
    options = dict(processes=False, protocol="tcp", dashboard_address=None)
    return distributed.LocalCluster(n_workers=n_workers, threads_per_worker=threads, **options)


# ------------------------------------------------------------------------------------------------- dask's own profiler


def test_our_workers_have_no_profiler_and_leave_errors_to_us(toy, store, monkeypatch, capfd):
    settings = Settings(scale="cpu", workers=2)
    with (
        dask.config.set({"distributed.worker.preload": [toys.__file__]}),
        workers._client(settings, ["cpu", "cpu"], bool) as client,
    ):
        monkeypatch.setattr(workers, "_client", lambda *_: contextlib.nullcontext(client))
        records = batch.run(toy("compiles", "compiles"), store, settings)
        with pytest.raises(UserError, match="no data"):
            batch.run(toy("lacks", "lacks"), store, settings)
    assert [(r.exit, r.message) for r in records] == [("ok", "")] * 2
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("observed", [False, True])
def test_no_profiler_of_a_users_worker_spoils_a_compiled_trial(
    toy, store, monkeypatch, observed
):
    """Left on, it makes the trial fail; so the test above would, too."""
    if observed:
        monkeypatch.setattr(workers, "_stop_profiler", lambda worker: None)
    with own_cluster() as cluster:
        (record,) = batch.run(
            toy("compiles"), store, Settings(scale="cpu", scheduler=cluster.scheduler_address)
        )
    assert record.exit == ("error" if observed else "ok"), record.message
    assert ("grad_mode state changed" in record.message) is observed


# ------------------------------------------------------------------------------------------- workers that are refused


def on(address: str) -> Settings:
    return Settings(scale="cpu", scheduler=address)


def test_a_worker_with_another_capslib_is_refused(toy, store, tmp_path, monkeypatch):
    package = Path(capslib.__file__).parent
    shutil.copytree(
        package, tmp_path / "other" / "capslib", ignore=shutil.ignore_patterns("__pycache__")
    )
    with (tmp_path / "other" / "capslib" / "losses.py").open("a", encoding="utf-8") as file:
        file.write("# another version\n")
    with own_cluster(0) as cluster:
        command = [
            "-m",
            "distributed.cli.dask_worker",
            cluster.scheduler_address,
            "--no-nanny",
            "--nthreads",
            "1",
        ]
        with process(
            *command, "--no-dashboard", folder=tmp_path / "other"
        ):  # a module is first looked for in its folder
            until(lambda: cluster.scheduler.workers)
            with pytest.raises(
                UserError, match=r"These workers have another version of capslib.*: tcp://"
            ):
                batch.run(toy("well"), store, on(cluster.scheduler_address))
            monkeypatch.setattr(
                workers, "_check_workers", lambda client: None
            )  # as if it had joined a moment later
            with pytest.raises(
                UserError, match=r"The worker tcp://.* has another version of capslib"
            ):
                batch.run(toy("well"), store, on(cluster.scheduler_address))
    assert list(store.records()) == []


@contextlib.contextmanager
def process(*words: str, folder: Path) -> Iterator[subprocess.Popen]:
    with subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as running:
        yield running
        running.kill()


def test_a_worker_of_many_threads_is_refused(toy, store):
    with own_cluster(threads=2) as cluster, pytest.raises(UserError, match="--nthreads 1"):
        batch.run(toy("well"), store, on(cluster.scheduler_address))


# ------------------------------------------------------------------------------------- a scheduler that is none, or no more


@contextlib.contextmanager
def server(answer: bytes) -> Iterator[str]:
    """A server of another kind: it answers with this whatever it is sent, or with nothing for as long as the test takes."""
    over = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.recv(100)
            self.request.sendall(answer) if answer else over.wait()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as there:
        threading.Thread(target=there.serve_forever, daemon=True).start()
        yield "tcp://{}:{}".format(*there.server_address)
        over.set()
        there.shutdown()


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["silence", "http"]
)
def test_a_server_that_is_no_scheduler_is_refused(toy, store, monkeypatch, answer):
    monkeypatch.setattr(workers, "ANSWER", 1.0)
    with (
        server(answer) as address,
        pytest.raises(UserError, match=rf"No dask scheduler answers at {address}: \S"),
    ):
        batch.run(toy("well"), store, on(address))


@pytest.mark.parametrize(
    "address",
    [
        "tls://127.0.0.1:9",
        "ucx://127.0.0.1:9",
        "inproc://x:9",
        "http://127.0.0.1:9",
        "tcp://127.0.0.1:9",
    ],
)
def test_an_address_at_which_nothing_answers_is_refused(toy, store, monkeypatch, address):
    monkeypatch.setattr(workers, "ANSWER", 1.0)
    with pytest.raises(UserError, match=f"No dask scheduler answers at {address}: "):
        batch.run(toy("well"), store, on(address))


def test_the_address_of_a_worker_is_no_schedulers(toy, store):
    with (
        own_cluster() as cluster,
        pytest.raises(UserError, match="it is the address of a Worker"),
    ):
        batch.run(toy("well"), store, on(cluster.workers[0].address))


def test_the_first_signal_ends_the_wait_for_an_answer(toy, store, monkeypatch):
    monkeypatch.setattr(workers, "ANSWER", 1e6)
    with server(b"") as address:
        told = Told()
        told.plan = lambda plan: threading.Timer(
            1, os.kill, (os.getpid(), signal.SIGTERM)
        ).start()
        with pytest.raises(Interrupted) as stopped:
            batch.run(toy("well"), store, on(address), display=told)
    assert stopped.value.signal == signal.SIGTERM


def test_a_scheduler_without_workers_is_said_and_waited_for(toy, store):
    with own_cluster(0) as cluster:
        told = Told(then=lambda: cluster.scale(1))
        (record,) = batch.run(toy("well"), store, on(cluster.scheduler_address), display=told)
        assert record.exit == "ok"
    assert len(told.said) == 1
    assert "The scheduler has no worker. Waiting 5 min" in told.said[0]


def test_a_scheduler_that_gets_no_worker_is_not_waited_for_for_ever(toy, store, monkeypatch):
    monkeypatch.setattr(workers, "JOIN", 1.0)
    with (
        own_cluster(0) as cluster,
        pytest.raises(
            UserError, match=rf"`dask worker {cluster.scheduler_address} --nthreads 1`"
        ),
    ):
        batch.run(toy("well"), store, on(cluster.scheduler_address))


def test_a_signal_ends_the_wait_for_a_worker(toy, store):
    told = Told(then=lambda: len(told.said) == 1 and signal.raise_signal(signal.SIGINT))
    with own_cluster(0) as cluster, pytest.raises(Interrupted):
        batch.run(toy("well"), store, on(cluster.scheduler_address), display=told)


@contextlib.contextmanager
def worker_of(address: str) -> Iterator[None]:
    """A worker in a thread of this process, for a scheduler of another one."""
    runner = distributed.utils.LoopRunner(asynchronous=False)
    runner.start()

    async def start() -> distributed.Worker:
        return await distributed.Worker(address, nthreads=1)

    worker = runner.run_sync(start)
    yield
    runner.run_sync(worker.close, timeout=1)
    runner.stop()


def test_a_scheduler_that_is_killed_in_mid_run(toy, store, tmp_path):
    file = tmp_path / "scheduler.json"
    words = (
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--no-dashboard",
        "--scheduler-file",
        str(file),
    )
    with process("-m", "distributed.cli.dask_scheduler", *words, folder=tmp_path) as scheduler:
        until(lambda: file.exists() and file.stat().st_size)
        address = json.loads(file.read_text(encoding="utf-8"))["address"]
        told = Told()
        told.step = lambda *_: scheduler.kill()  # the trial runs, and says so
        with worker_of(address), contextlib.ExitStack() as ends:
            ends.callback((tmp_path / "go").touch)
            ends.callback(scheduler.kill)
            logger, log = logging.getLogger("distributed"), io.StringIO()
            logger.addHandler(handler := logging.StreamHandler(log))
            ends.callback(logger.removeHandler, handler)
            handler.setLevel(logging.ERROR)
            with pytest.raises(UserError, match=r"went away\. The same command"):
                batch.run(toy("waits", "waits"), store, on(address), display=told)
            assert log.getvalue() == ""
