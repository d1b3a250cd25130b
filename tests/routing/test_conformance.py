"""Every routing in ``ROUTINGS`` does what ``conformance.py`` asks, with and without a bias."""

from __future__ import annotations

import pytest
from conformance import BIASES, CHECKS

from capslib.routing import ROUTINGS


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("name", ROUTINGS)
def test_a_routing_conforms(name, bias, check):
    CHECKS[check](name, BIASES[bias])
