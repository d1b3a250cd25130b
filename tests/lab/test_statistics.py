"""The interval that verdicts rest on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capslib.lab.statistics import interval


def test_the_interval_of_few_values_is_students():
    assert interval([1, 2, 3]) == pytest.approx((2 - 2.4841377, 2 + 2.4841377))  # 4.302653/√3


def test_the_interval_of_one_value_does_not_exist_and_of_equal_values_is_a_point():
    assert interval([]) is interval([0.5]) is None
    assert interval([0.5, 0.5, 0.5]) == interval([0.5] * 20) == (0.5, 0.5)


def test_from_ten_values_on_the_interval_is_bootstrapped():
    skewed = list(np.random.default_rng(0).exponential(size=12))
    low, high = interval(skewed)
    mean, half = np.mean(skewed), 2.200985 * np.std(skewed, ddof=1) / np.sqrt(12)
    assert (low, high) != pytest.approx((mean - half, mean + half), rel=1e-3)
    assert high - mean > mean - low > 0, "a bootstrap of skewed values is skewed"
    assert interval(skewed) == interval(skewed[::-1])


@pytest.mark.parametrize(
    "values", [[1.0] * 9 + [2.0], [0.0] * 10 + [1e-300], [0.5] * 19 + [np.nextafter(0.5, 1)]]
)
def test_the_bootstrap_survives_values_that_are_nearly_equal(values):
    low, high = interval(values)
    assert min(values) <= low <= high <= max(values) or np.isclose(low, high)


BETAS = {"in the middle": (50, 50), "near everything": (995, 5), "with a wide spread": (2, 8)}


@pytest.mark.parametrize("n", [3, 5, 12])
@pytest.mark.parametrize("accuracies", BETAS)
def test_the_interval_covers_the_mean_as_often_as_it_says(n, accuracies):
    """Accuracies as seeds give them. The plain t interval has 0.91 near a bound."""
    a, b = BETAS[accuracies]
    trials, tolerance = (1000, 0.022) if n < 10 else (100, 0.1)
    hits = 0
    for values in np.random.default_rng(1).beta(a, b, size=(trials, n)):
        low, high = interval(values, (0, 1))
        hits += low <= a / (a + b) <= high
    assert hits / trials == pytest.approx(0.95, abs=tolerance)


@given(st.lists(st.floats(0, 100), min_size=2, max_size=12), st.randoms())
def test_an_interval_never_leaves_its_bounds_and_holds_the_mean(values, rng):
    low, high = interval(values, (0, 100))
    assert 0 <= low <= np.mean(values) + 1e-9
    assert np.mean(values) - 1e-9 <= high <= 100
    assert interval(rng.sample(values, len(values)), (0, 100)) == (low, high), "in any order"


def test_far_from_its_bounds_an_interval_is_the_plain_one():
    values = [49.9, 50.0, 50.2]
    assert interval(values, (0, 100)) == pytest.approx(interval(values), rel=1e-4)
    assert interval([-5, 20, 30], (0, 100)) == interval([-5, 20, 30]), "what has left them"
    low, high = interval(values, (0, 100))
    mirrored = interval([100 - value for value in values], (0, 100))
    assert mirrored == pytest.approx((100 - high, 100 - low))
