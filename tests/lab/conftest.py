"""What the tests of the lab share: trials that do what a test wants, and workers for them."""

from __future__ import annotations

import contextlib

import dask
import distributed
import pytest
import toys
from distributed.utils import get_mp_context
from forked import preloaded

from capslib import papers
from capslib.lab import workers
from capslib.papers.experiment import Arm, Trial


@pytest.fixture
def toy(monkeypatch, tmp_path):
    """``toy("well", "raises", …)``: trials that do this, in this process and in workers."""
    monkeypatch.setitem(papers.experiments(toys.STEM), "toy", toys.TOY)

    def make(*actions: str) -> list[Trial]:
        trials = []
        for size, action in enumerate(actions, start=1):
            options = toys.ToyOptions(does=action, size=size, folder=str(tmp_path))
            trials.append(toys.TOY.trial("cpu", Arm("", options=options), 0))
        return trials

    return make


@pytest.fixture(scope="module")
def new_processes():
    """Workers of this process are forks of one that has torch already, and know the toys; those
    of `capslib run` as a process start as they do.
    """
    settings = {
        "distributed.worker.multiprocessing-method": "forkserver",
        "distributed.worker.preload": [toys.__file__],
    }
    with dask.config.set(settings):
        get_mp_context()  # which names modules of its own
        with preloaded("torch", "distributed.nanny", "capslib.lab.batch", "capslib.training"):
            yield


@pytest.fixture(scope="module")
def processes(new_processes):
    """Two worker processes that know the toys, for all tests that leave them alive."""
    with workers.start_workers(["cpu", "cpu"], threads=1) as client:
        yield client


@pytest.fixture
def shared_workers(processes, monkeypatch):
    """Let a run with two workers take those instead of two of its own."""
    connection = contextlib.nullcontext(processes)
    monkeypatch.setattr(workers, "start_workers", lambda *_: connection)


@pytest.fixture
def own_cluster():
    """Start a cluster as a user may, in threads of this process: it has torch already."""
    with contextlib.ExitStack() as stack:
        # Threads know the toys; dask would import another copy of them.
        stack.enter_context(dask.config.set({"distributed.worker.preload": []}))

        def start(n_workers: int = 1, threads: int = 1) -> distributed.LocalCluster:
            cluster = distributed.LocalCluster(
                n_workers=n_workers,
                threads_per_worker=threads,
                processes=False,
                protocol="tcp",
                dashboard_address=None,
            )
            return stack.enter_context(cluster)

        yield start
