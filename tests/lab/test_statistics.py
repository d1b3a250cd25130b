"""The interval that verdicts rest on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capslib.lab.statistics import interval


def test_the_interval_of_few_values_is_students():
    assert interval([1, 2, 3]) == pytest.approx(
        (2 - 2.4841377, 2 + 2.4841377)
    )  # 4.302653 · 1/√3
    assert interval([1, 2, 3], level=0.9) == pytest.approx(
        (2 - 1.6858545, 2 + 1.6858545)
    )  # 2.919986 · 1/√3


def test_the_interval_of_one_value_does_not_exist_and_of_equal_values_is_a_point():
    assert interval([]) is interval([0.5]) is None
    assert interval([0.5, 0.5, 0.5]) == interval([0.5] * 20) == (0.5, 0.5)


def test_from_ten_values_on_the_interval_is_bootstrapped():
    skewed = list(np.random.default_rng(0).exponential(size=12))
    low, high = interval(skewed)
    mean, half = np.mean(skewed), 2.200985 * np.std(skewed, ddof=1) / np.sqrt(12)
    assert low < mean < high
    assert (low, high) != pytest.approx((mean - half, mean + half), rel=1e-3)
    assert high - mean > mean - low, "a bootstrap of skewed values is skewed"
    assert interval(skewed) == interval(skewed[::-1])


@pytest.mark.parametrize(
    "values", [[1.0] * 9 + [2.0], [0.0] * 10 + [1e-300], [0.5] * 19 + [np.nextafter(0.5, 1)]]
)
def test_the_bootstrap_survives_values_that_are_nearly_equal(values):
    low, high = interval(values)
    assert min(values) <= low <= high <= max(values) or np.isclose(low, high)


@pytest.mark.parametrize(
    ("n", "trials", "low", "high"),
    [(3, 2000, 0.93, 0.97), (5, 2000, 0.93, 0.97), (12, 200, 0.85, 0.99)],
)
def test_the_interval_covers_the_mean_as_often_as_it_says(n, trials, low, high):
    draws = np.random.default_rng(1).normal(size=(trials, n))
    hits = sum(lo <= 0 <= hi for lo, hi in map(interval, draws))
    assert low < hits / trials < high


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=9), st.randoms())
def test_the_interval_ignores_order_and_moves_with_the_values(values, rng):
    low, high = interval(values)
    assert low <= np.mean(values) + 1e-6 <= high + 2e-6
    shuffled = rng.sample(values, len(values))
    assert interval(shuffled) == (low, high)


@pytest.mark.parametrize("n", [3, 5])
@pytest.mark.parametrize(("a", "b"), [(50, 50), (98, 2), (995, 5), (2, 8)])
def test_inside_bounds_the_interval_covers_the_mean_as_often_as_it_says(a, b, n):
    """Accuracies as seeds give them: in the middle, near everything, and with a wide spread. The plain t interval has 0.91 near a bound."""
    draws = np.random.default_rng(1).beta(a, b, size=(2000, n))
    hits = [
        low <= a / (a + b) <= high
        for low, high in (interval(values, (0, 1)) for values in draws)
    ]
    assert 0.93 < np.mean(hits) < 0.97


@given(st.lists(st.floats(0, 100), min_size=2, max_size=12))
def test_an_interval_never_leaves_its_bounds_and_holds_the_mean(values):
    low, high = interval(values, (0, 100))
    assert 0 <= low <= high <= 100
    assert low <= np.mean(values) + 1e-9
    assert high >= np.mean(values) - 1e-9


def test_far_from_its_bounds_an_interval_is_the_plain_one():
    values = [49.9, 50.0, 50.2]
    assert interval(values, (0, 100)) == pytest.approx(interval(values), rel=1e-4)
    assert interval([-5, 20, 30], (0, 100)) == interval([-5, 20, 30]), (
        "what has left them has none"
    )
    low, high = interval(values, (0, 100))
    mirrored = interval([100 - v for v in values], (0, 100))
    assert mirrored == pytest.approx((100 - high, 100 - low))
