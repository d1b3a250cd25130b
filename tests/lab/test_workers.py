"""The cluster on which trials run: this machine's processes, or a scheduler of the user's own, whatever its state."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import dask
import distributed
import pytest
import toys

from capslib import papers
from capslib.lab import batch, workers
from capslib.lab.settings import Settings
from capslib.papers.experiment import Trial


@contextlib.contextmanager
def own_cluster(n_workers: int = 1) -> Iterator[distributed.LocalCluster]:
    """A cluster as a user may start it, in threads of this process: nothing here has to import torch again."""
    options = dict(processes=False, protocol="tcp", threads_per_worker=1, dashboard_address=None)
    with distributed.LocalCluster(n_workers=n_workers, **options) as cluster:
        yield cluster


@pytest.fixture
def toy(monkeypatch, tmp_path):
    """``toy("well", …)``: trials that do this, here or in workers."""
    monkeypatch.setitem(papers.experiments(toys.STEM), "toy", toys.TOY)

    def make(*does: str) -> list[Trial]:
        configs = [toys.ToyConfig(does=what, size=n, folder=str(tmp_path)) for n, what in enumerate(does, start=1)]
        return [toys.TOY.trial("cpu", config, 0) for config in configs]

    return make


# ------------------------------------------------------------------------------------------------- dask's own profiler


def test_no_profiler_of_our_workers_spoils_a_compiled_trial(toy, store):
    with dask.config.set({"distributed.worker.preload": [toys.__file__]}):
        records = batch.run(toy("compiles", "compiles"), store, Settings(scale="cpu", workers=2))
    assert [(r.exit, r.message) for r in records] == [("ok", "")] * 2


@pytest.mark.parametrize("observed", [False, True])
def test_no_profiler_of_a_users_worker_spoils_a_compiled_trial(toy, store, monkeypatch, observed):
    """Left on, it makes the trial fail; so the test above would, too. After the trial it is on again."""
    if observed:
        monkeypatch.setattr(workers, "_unobserved", lambda worker: contextlib.nullcontext())
    with own_cluster() as cluster:
        (record,) = batch.run(toy("compiles"), store, Settings(scale="cpu", scheduler=cluster.scheduler_address))
        profiler = cluster.workers[0].periodic_callbacks["profile"]
        toys.until(profiler.is_running, 10)
    assert record.exit == ("error" if observed else "ok"), record.message
    assert ("grad_mode state changed" in record.message) is observed
