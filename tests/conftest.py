"""What several test files share: reproducible hypothesis, records made to order, one thread."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import make_record
from hypothesis import settings

from capslib import data, papers
from capslib.lab.ledger import ledger
from capslib.lab.store import Store
from capslib.papers.experiment import Metric, Trial

# The same examples on every machine, and no deadline: the first call of a torch function is
# slow anywhere.
settings.register_profile("capslib", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("capslib")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Torch on one thread: sums are in one order everywhere, and tests that run side by side do
    not wait for each other's cores.
    """
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def fresh_torch_state() -> None:
    """Seed torch before each test; fail the test that leaves gradients off."""
    import torch

    torch.manual_seed(0)
    yield
    enabled = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    assert enabled, "this test left torch's gradients switched off"


@pytest.fixture
def trial() -> Trial:
    """A trial of an experiment that exists."""
    config = {"routing": "dynamic", "bias": True, "points": 20, "learning_rate": 0.01}
    return Trial(
        paper="negation_limitation",
        experiment="sign",
        revision=1,
        scale="cpu",
        config=config,
        seed=3,
    )


@pytest.fixture(scope="session")
def real():
    """``real("mnist")``: the folder of prepared data, which has this set; where there is none
    the test is skipped, saying so.
    """

    def folder(name: str) -> Path:
        root = os.environ.get("CAPSLIB_DATA")
        if not root or name not in {row.name for row in data.describe(root) if row.folder}:
            pytest.skip(f"real data: {name} is not in $CAPSLIB_DATA")
        return Path(root)

    return folder


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


@pytest.fixture(scope="session")
def add_records() -> Callable[[Path], list[str]]:
    """Write the records of a replicated arm of the sign experiment, with an accuracy of 99.7 %,
    and give their keys."""

    def add(results: Path) -> list[str]:
        check = papers.checks_of("negation_limitation")["NEG-T1-rba-bias"]
        experiment = papers.experiments("negation_limitation")[check.selects[0].experiment]
        value = ledger()["NEG-T1-rba-bias"].value
        keys = []
        arm = {"arm": check.selects[0].names[0]}
        for trial in experiment.trials("paper", where=arm, seeds=range(3)):
            metric = Metric(value=value + trial.seed / 100, n=20_000, unit="percent")
            record = make_record(trial, metrics={check.metric: metric}, series={})
            Store(results).put(record)
            keys.append(record.key)
        return keys

    return add
