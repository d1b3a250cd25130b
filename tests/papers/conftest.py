"""What the tests of the papers share: figures open no window."""

from __future__ import annotations

import pytest
from matplotlib import pyplot as plt


@pytest.fixture(autouse=True)
def no_window(monkeypatch):
    plt.switch_backend("agg")
    monkeypatch.setattr(plt, "show", lambda: None)
