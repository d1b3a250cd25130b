"""What the tests of several routings need."""

import pytest
import torch

from capslib.routing import ROUTINGS


@pytest.fixture
def float64() -> None:
    """Numbers have sixteen digits, unless a test says otherwise."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def every_core_is_fast(monkeypatch) -> None:
    """The fast path takes every core, also one that it leaves to the compiler otherwise."""
    for name in ROUTINGS:
        function = ROUTINGS[name].function
        if function.core is not None:
            core = function.core._replace(only_compiled=False)
            monkeypatch.setattr(function, "core", core)
