"""The interval that verdicts rest on, and the names that seeds do not tell from the best."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capslib.lab.statistics import interval, leaders


def test_the_interval_of_few_values_is_students():
    assert interval([1, 2, 3]) == pytest.approx((2 - 2.4841377, 2 + 2.4841377))  # 4.302653/√3


def test_the_interval_of_one_value_does_not_exist_and_of_equal_values_is_a_point():
    assert interval([0.5]) is None
    assert interval([0.5, 0.5, 0.5]) == interval([0.5] * 20) == (0.5, 0.5)


def test_leaders_are_the_best_and_what_paired_seeds_do_not_tell_from_it():
    seeds = {
        "best": [90.0, 80.0, 70.0],
        "always a little worse": [89.0, 79.0, 69.1],
        "sometimes better": [91.0, 79.0, 69.5],
        "far below": [10.0, 11.0, 12.0],
    }
    assert leaders(seeds) == {"best", "sometimes better"}
    negated = {name: [-value for value in values] for name, values in seeds.items()}
    assert leaders(negated) == {"far below"}
    assert leaders({name: values[:1] for name, values in seeds.items()}) == set(seeds)
    assert leaders({}) == set()


def test_from_ten_values_on_the_interval_is_bootstrapped():
    skewed = np.random.default_rng(0).exponential(size=12)
    low, high = interval(skewed)
    mean = skewed.mean()
    assert high - mean > mean - low > 0, "a bootstrap of skewed values is skewed"


def test_the_bootstrap_survives_values_that_are_nearly_equal():
    close = np.nextafter(0.5, 1)
    low, high = interval([0.5] * 19 + [close])
    assert low == pytest.approx(0.5)
    assert high == pytest.approx(0.5)


@pytest.mark.parametrize("n", [3, 12])
@pytest.mark.parametrize(("a", "b"), [(50, 50), (995, 5), (2, 8)])
def test_the_interval_covers_the_mean_as_often_as_it_says(n, a, b):
    """Accuracies as seeds give them. The plain t interval has 0.91 near a bound."""
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
    shuffled = rng.sample(values, len(values))
    assert interval(shuffled, (0, 100)) == (low, high)


def test_far_from_its_bounds_an_interval_is_the_plain_one():
    values = [49.9, 50.0, 50.2]
    assert interval(values, (0, 100)) == pytest.approx(interval(values), rel=1e-4)
    outside = [-5, 20, 30]
    assert interval(outside, (0, 100)) == interval(outside)
