"""What the tests of the lab share: toys that are trials of an experiment."""

from __future__ import annotations

import pytest
import toys

from capslib import papers
from capslib.papers.experiment import Trial


@pytest.fixture
def toy(monkeypatch, tmp_path):
    """``toy("well", "raises", …)``: trials that do this, in this process or in workers that know them."""
    monkeypatch.setitem(papers.experiments(toys.STEM), "toy", toys.TOY)

    def make(*does: str) -> list[Trial]:
        configs = [
            toys.ToyConfig(does=what, size=n, folder=str(tmp_path))
            for n, what in enumerate(does, start=1)
        ]
        return [toys.TOY.trial("cpu", config, 0) for config in configs]

    return make
