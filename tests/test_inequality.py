"""Measures of inequality: what they are by definition, and what they must not depend on."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from capslib.inequality import MEASURES, atkinson, gini, hoover, palma, theil

SEEDS = st.integers(0, 2**32 - 1)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    """Shares as a softmax gives them, from nearly equal ones to polarised ones."""
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(*shape, generator=generator, dtype=torch.float64)).softmax(dim=-1)


@pytest.mark.parametrize("name", MEASURES)
def test_equal_values_are_equal(name):
    for x in (torch.full((40,), 0.3), torch.full((40,), 1e-30), torch.zeros(40), torch.ones(1)):
        torch.testing.assert_close(
            MEASURES[name](x), torch.tensor(1.0 if name == "palma" else 0.0), atol=1e-6, rtol=0
        )


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
def test_half_precision_and_integers_are_measured_in_float32(name, dtype):
    """Sums over the children of a network pass the largest float16; integers have no mean."""
    x = (200 * draw(2, 1152, seed=0) * 1152).to(dtype)
    torch.testing.assert_close(MEASURES[name](x), MEASURES[name](x.float()), rtol=0, atol=0)
    assert MEASURES[name](x).dtype == torch.float32
    assert MEASURES[name](x).isfinite().all()


def test_one_who_has_everything_is_the_bound():
    for n in (2, 10, 1152):
        x = torch.eye(n, dtype=torch.float64)[n // 2]
        found = [float(f(x)) for f in (gini, hoover, theil, atkinson)]
        assert found == pytest.approx([(n - 1) / n, (n - 1) / n, math.log(n), 1 - 1 / n])
        assert float(gini(x + 1e-7)) == pytest.approx(
            (n - 1) / n, abs=n * 1e-6
        )  # the offset of the released code
    assert palma(torch.eye(41)[0]) == 1  # nobody counts above the ninth decile
    assert palma(torch.tensor([0.0, 0.0, 1.0])) == math.inf


@pytest.mark.parametrize("name", MEASURES)
@given(seed=SEEDS, factor=st.floats(1e-6, 1e6))
def test_neither_the_unit_nor_the_order_counts(name, seed, factor):
    x = draw(3, 50, seed=seed)
    torch.testing.assert_close(MEASURES[name](factor * x), MEASURES[name](x))
    torch.testing.assert_close(MEASURES[name](x.flip(-1)), MEASURES[name](x))
    torch.testing.assert_close(MEASURES[name](x.T, dim=0), MEASURES[name](x))


@given(seed=SEEDS, n=st.integers(1, 60))
def test_gini_is_its_double_sum(seed, n):
    x = draw(n, seed=seed)
    by_definition = (x[:, None] - x).abs().sum() / (2 * n * x.sum())
    torch.testing.assert_close(gini(x), by_definition, atol=1e-12, rtol=1e-9)


def test_gini_is_twice_the_area_that_the_lorenz_curve_leaves_by_scikit_learn():
    """PySAL's ``inequality`` has a Gini too and brings geopandas, and pyod brings numba: both are too much for one formula."""
    from sklearn.metrics import auc

    x = np.random.default_rng(0).lognormal(size=200)
    curve = np.concatenate([[0], np.cumsum(np.sort(x))]) / x.sum()
    assert float(gini(torch.from_numpy(x))) == pytest.approx(
        1 - 2 * auc(np.linspace(0, 1, 201), curve)
    )


@given(seed=SEEDS, n=st.integers(1, 60))
def test_palma_has_interpolated_quantiles(seed, n):
    x = draw(4, n, seed=seed)
    torch.testing.assert_close(palma(x), x.quantile(0.9, dim=-1) / x.quantile(0.4, dim=-1))


def test_more_unequal_values_are_more_unequal_by_every_measure():
    logits = draw(200, seed=1).log()
    for measure in MEASURES.values():
        found = torch.stack(
            [measure((scale * logits).softmax(dim=-1)) for scale in (0.0, 0.2, 0.5, 1.0, 2.0)]
        )
        assert (found.diff() > 0).all()


@pytest.mark.parametrize("name", MEASURES)
def test_float32_is_enough_for_the_children_of_the_largest_network(name):
    """40,320 couplings that sum to one, nearly equal and polarised, in the order of magnitude of a softmax."""
    for spread in (0.01, 1.0, 4.0):
        generator = torch.Generator().manual_seed(0)
        x = (spread * torch.randn(4, 40_320, generator=generator, dtype=torch.float64)).softmax(
            dim=-1
        )
        wide = MEASURES[name](x)
        torch.testing.assert_close(
            MEASURES[name](x.float()).double(), wide, rtol=1e-5, atol=2e-7
        )


@pytest.mark.parametrize("spread", [1e-4, 3e-4, 1e-3, 1e-2, 0.1, 1.0, 4.0])
def test_nearly_equal_shares_keep_their_digits_and_their_order(spread):
    """Σ p ln(n p) of such shares cancels in float32, to values below zero. Here are sums whose terms are all above."""
    generator = torch.Generator().manual_seed(0)
    x = (
        (spread * torch.randn(64, 1152, generator=generator, dtype=torch.float64))
        .softmax(dim=-1)
        .float()
    )
    d = x.double() / x.double().mean(dim=-1, keepdim=True) - 1
    lost = (d / (1 + (1 + d).sqrt())).square().mean(dim=-1) / 2  # 1 − mean √(x/x̄)
    for measure, wide in (
        (theil, ((1 + d) * d.log1p() - d).mean(dim=-1)),
        (atkinson, lost * (2 - lost)),
    ):
        found = measure(x)
        torch.testing.assert_close(found.double(), wide, rtol=1e-6, atol=0)
        assert spread > 0.1 or found.argsort().equal(wide.argsort())
        assert found.min() > 0


@pytest.mark.parametrize("measure", [theil, atkinson])
def test_what_is_left_of_equal_values_is_not_below_zero(measure):
    generator = torch.Generator().manual_seed(0)
    x = 1 + 1e-9 * torch.rand(64, 1152, generator=generator, dtype=torch.float64)
    assert measure(x).min() == 0


@given(seed=SEEDS)
def test_theil_and_atkinson_are_what_they_are_by_definition(seed):
    x = draw(4, 50, seed=seed)
    torch.testing.assert_close(
        theil(x), math.log(50) - torch.distributions.Categorical(probs=x).entropy()
    )
    torch.testing.assert_close(
        atkinson(x), 1 - x.sqrt().sum(dim=-1).square() / (50 * x.sum(dim=-1))
    )
