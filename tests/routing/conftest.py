"""What the tests of several routings need."""

import pytest
import torch


@pytest.fixture
def float64() -> None:
    """Numbers have sixteen digits, unless a test says otherwise."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
