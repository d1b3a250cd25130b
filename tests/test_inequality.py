"""Measures of inequality: what they are by definition, and what they must not depend on."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from capslib import data
from capslib.errors import UserError
from capslib.inequality import MEASURES, atkinson, gini, hoover, palma, scores, theil
from capslib.losses import margin_loss
from capslib.networks import create_network
from capslib.training import permutation

each_measure = pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
each_length = pytest.mark.parametrize("n", [1, 2, 7, 60])


def draw(*shape: int, spread: float = 3.0) -> Tensor:
    """Return shares as a softmax gives them, from nearly equal ones to polarised ones."""
    logits = spread * torch.randn(*shape, dtype=torch.float64)
    return logits.softmax(dim=-1)


@each_measure
def test_equal_values_are_equal(measure):
    expected = 1.0 if measure is palma else 0.0
    for value, count in ((0.3, 40), (1e-30, 40), (0.0, 40), (1.0, 1)):
        equal = torch.full((count,), value)
        assert measure(equal).item() == pytest.approx(expected, abs=1e-6)


@each_measure
def test_half_precision_and_integers_are_measured_in_float32(measure):
    """Sums over the children of a network pass the largest float16; integers have no mean."""
    shares = 200 * 1152 * draw(2, 1152)
    for dtype in (torch.float16, torch.bfloat16, torch.int64):
        x = shares.to(dtype)
        result = measure(x)
        assert result.dtype == torch.float32
        assert torch.equal(result, measure(x.float()))
        assert result.isfinite().all()


@pytest.mark.parametrize("n", [2, 10, 1152])
def test_a_single_owner_of_everything_is_the_bound(n):
    x = torch.zeros(n, dtype=torch.float64)
    x[n // 2] = 1
    bound = (n - 1) / n
    for measure in (gini, hoover, atkinson):
        assert measure(x).item() == pytest.approx(bound)
    assert theil(x).item() == pytest.approx(math.log(n))
    # With the offset of the released code.
    assert gini(x + 1e-7).item() == pytest.approx(bound, abs=n * 1e-6)


def test_the_palma_ratio_ignores_all_above_the_ninth_decile():
    assert palma(torch.eye(41)[0]) == 1
    assert palma(torch.tensor([0.0, 0.0, 1.0])) == math.inf


@each_measure
def test_neither_the_unit_nor_the_order_counts(measure):
    x = draw(3, 50)
    expected = measure(x)
    for factor in (1e-6, 3.0, 1e6):
        torch.testing.assert_close(measure(factor * x), expected)
    torch.testing.assert_close(measure(x.flip(-1)), expected)
    torch.testing.assert_close(measure(x.T, dim=0), expected)


@each_length
def test_gini_is_its_double_sum(n):
    x = draw(n)
    differences = (x[:, None] - x).abs()
    by_definition = differences.sum() / (2 * n * x.sum())
    torch.testing.assert_close(gini(x), by_definition, atol=1e-12, rtol=1e-9)


def test_gini_is_twice_the_area_that_the_lorenz_curve_leaves_by_scikit_learn():
    from sklearn.metrics import auc

    x = draw(200).sort().values.numpy()
    curve = np.cumsum([0, *x]) / x.sum()
    area = auc(np.linspace(0, 1, 201), curve)
    assert gini(torch.from_numpy(x)).item() == pytest.approx(1 - 2 * area)


@each_length
def test_palma_has_interpolated_quantiles(n):
    x = draw(4, n)
    ninth, fourth = x.quantile(0.9, dim=-1), x.quantile(0.4, dim=-1)
    torch.testing.assert_close(palma(x), ninth / fourth)


@pytest.mark.parametrize("spread", [1e-4, 3e-4, 1e-3, 1e-2, 0.1, 1.0, 4.0])
def test_theil_and_atkinson_keep_the_digits_and_the_order_of_nearly_equal_shares(spread):
    """Σ p ln(n p) cancels in float32, to values below zero; the terms here are all above."""
    x = draw(64, 1152, spread=spread).float()
    exact = x.double()
    d = exact / exact.mean(dim=-1, keepdim=True) - 1
    theil_terms = (1 + d) * d.log1p() - d
    root_terms = d / (1 + (1 + d).sqrt())  # √(x/x̄) − 1
    gap = root_terms.square().mean(dim=-1) / 2  # 1 − mean √(x/x̄)
    values = {theil: theil_terms.mean(dim=-1), atkinson: gap * (2 - gap)}
    for measure, expected in values.items():
        result = measure(x)
        torch.testing.assert_close(result.double(), expected, rtol=1e-6, atol=0)
        assert spread > 0.1 or result.argsort().equal(expected.argsort())
        assert result.min() > 0


@each_measure
def test_more_unequal_values_are_more_unequal_by_every_measure(measure):
    logits = draw(200).log()
    inequalities = []
    for scale in (0.0, 0.2, 0.5, 1.0, 2.0):
        shares = (scale * logits).softmax(dim=-1)
        inequalities.append(measure(shares).item())
    assert inequalities == sorted(set(inequalities))


@each_measure
@pytest.mark.parametrize("spread", [0.01, 4.0])
def test_float32_is_enough_for_the_children_of_the_largest_network(measure, spread):
    """40,320 couplings that sum to one, nearly equal and polarised."""
    x = draw(4, 40_320, spread=spread)
    torch.testing.assert_close(measure(x.float()).double(), measure(x), rtol=1e-5, atol=2e-7)


@pytest.mark.parametrize("measure", [theil, atkinson])
def test_rounding_of_equal_values_is_not_below_zero(measure):
    x = 1 + 1e-9 * torch.rand(64, 1152, dtype=torch.float64)
    assert measure(x).min() == 0


# ------------------------------------------------------------------------- anomaly scores


def anomaly_network(**options):
    torch.manual_seed(0)
    return create_network("anomaly_capsnet", (1, 8, 8), classes=2, **options)


def test_scores_are_the_measures_of_the_couplings_of_the_anomaly_capsule_over_children():
    network, images = anomaly_network(), torch.rand(7, 1, 8, 8)
    result = scores(network, images, measures=MEASURES, batch_size=3)
    assert network.training
    coupling = network.eval()(images).coupling
    assert list(result) == list(MEASURES)
    for name, measure in MEASURES.items():
        torch.testing.assert_close(result[name], measure(coupling, dim=1)[:, 1])
    normal = scores(network, images, capsule=0)["gini"]
    torch.testing.assert_close(normal, gini(coupling[..., 0]))
    assert not network.training


def test_anomalies_have_the_larger_scores():
    """Threes among digits, of which a tenth of the training images are."""
    train, test = (data.load("digits", split) for split in ("train", "test"))
    images, labels = torch.tensor(train.images) / 255, torch.tensor(train.labels == 3).long()
    network = anomaly_network()
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    for step in range(200):
        rows = permutation(len(images), 0, step)[:64]
        optimizer.zero_grad()
        margin_loss(network(images[rows]).activation, labels[rows]).backward()
        optimizer.step()
    result = scores(network, torch.tensor(test.images) / 255)
    for name, score in result.items():
        assert roc_auc_score(test.labels == 3, score) > 0.95, name


@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_couplings_over_parents_are_refused_with_the_routing_to_take(routing):
    with pytest.raises(ValueError, match="dynamic_over_children"):
        scores(anomaly_network(routing=routing), torch.rand(2, 1, 8, 8))


def test_what_has_no_couplings_or_no_such_measure_is_refused():
    network, images = anomaly_network(), torch.rand(2, 1, 8, 8)
    with pytest.raises(ValueError, match="as `coupling`"):
        scores(create_network("cnn", (1, 8, 8), 2), images)
    with pytest.raises(UserError, match="Did you mean 'gini'"):
        scores(network, images, measures=["ginni"])
    with pytest.raises(ValueError, match="no capsule 2: the network has 2"):
        scores(network, images, capsule=2)


@each_measure
def test_the_gradient_is_finite_where_all_values_are_zero(measure):
    x = torch.tensor([[0.0, 0.0, 0.0], [0.1, 0.2, 0.7]], requires_grad=True)
    measure(x).sum().backward()
    assert x.grad.isfinite().all()


@each_measure
def test_values_below_zero_are_refused(measure):
    with pytest.raises(ValueError, match="at least zero"):
        measure(torch.tensor([-1.0, 1.0]))


def test_scores_leave_every_layer_in_its_mode():
    network = anomaly_network()
    network.conv.eval()
    scores(network, torch.rand(2, 1, 8, 8))
    assert network.training
    assert network.primary.training
    assert not network.conv.training
