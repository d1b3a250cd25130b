"""What several test files share: reproducible hypothesis, records made to order, one thread."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
import toys
from hypothesis import settings
from pydantic import ValidationError

from capslib import papers
from capslib.errors import UserError
from capslib.lab.records import Code, Environment, Record
from capslib.lab.store import Store
from capslib.papers.experiment import Experiment, Metric, Trial
from capslib.recipes import Config

# The same examples on every machine, and no deadline: the first call of a torch function is slow anywhere.
settings.register_profile("capslib", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("capslib")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Torch on one thread: sums are in one order everywhere, and tests that run side by side do not wait for each other's cores."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def gradients() -> None:
    """Name the test that leaves gradients switched off, rather than the ones that fail after it."""
    import torch

    yield
    on = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    assert on, "this test left torch's gradients switched off"


@pytest.fixture(scope="module")
def forked() -> None:
    """Workers of this process are forks of one that has torch already; those of `capslib run` as a process start as they do."""
    import dask
    from distributed.utils import get_mp_context
    from forked import preloaded

    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        get_mp_context()  # which names modules of its own
        with preloaded("torch", "distributed.nanny", "capslib.lab.batch", "capslib.training"):
            yield


@pytest.fixture
def trial() -> Trial:
    """A trial of an experiment that exists."""
    config = {"routing": "dynamic", "bias": True, "points": 20, "learning_rate": 0.01}
    return Trial(paper="negation_limitation", experiment="sign", revision=1, scale="cpu", config=config, seed=3)


def every_field(trial: Trial) -> dict[str, object]:
    """The whole configuration of a trial; of one that no experiment has, what it says itself."""
    try:
        return papers.fields(trial)
    except (KeyError, ValidationError, UserError):
        return trial.config


@pytest.fixture(scope="session")
def make_record():
    """A sound record of a trial; keywords replace its fields."""

    def make(trial: Trial, **changes: object) -> Record:
        moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        fields = dict(
            key=trial.key,
            trial=trial,
            config=every_field(trial),
            deviations=[],
            metrics={"train_accuracy": Metric(value=0.5, n=20, unit="fraction")},
            series={"loss": [0.3, 1 / 3]},
            data=[],
            code=Code(revision=None, dirty=None, capslib="0" * 64),
            environment=Environment(python="3.11.0", torch="2.11.0", device="CPU (x86_64)", threads=1, deterministic=True),
            routing_path="eager",
            parameters=7,
            wall_seconds=1.5,
            peak_memory_bytes=1,
            started=moment,
            finished=moment,
            exit="ok",
        )
        return Record(**{**fields, **changes})

    return make


class ToyConfig(Config):
    size: int = 1


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


@pytest.fixture
def make_experiment():
    """An experiment around a ``run(config, context)``; by default one that measures its own size."""

    def make(run=toys.measured, name: str = "toy") -> Experiment:
        return toys.experiment(ToyConfig, run, name)

    return make
