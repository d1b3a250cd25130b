"""EM routing: numbers worked out on paper, released variants, and logarithms of densities."""

from __future__ import annotations

import pytest
import torch
from conformance import (
    BIASES,
    EXACT,
    KINDS,
    assert_close,
    assert_equal,
    build,
    draw,
    draw_kind,
    outcome_on,
    small_chunks,
)
from references import em
from torch import Tensor

from capslib.routing import RoutingResult, em_routing
from capslib.routing.em import inverse_temperatures

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture
def votes() -> Tensor:
    """Votes [I, J, D]: 0 and 2 for the first parent, 2 and 8 for the second."""
    return torch.tensor([[[0.0], [2.0]], [[2.0], [8.0]]])


def test_one_m_step_worked_by_hand(votes):
    """Couplings of one half: means 1 and 5, variances 1 and 9, mass 0.5 + 0.5 each."""
    beta_u, beta_a = torch.tensor([[0.3, 0.4], [0.1, -0.2]])
    options = {"iterations": 1, "inverse_temperature": [2.0]}
    result = em_routing(votes, torch.ones(2), beta_u, beta_a, **options)
    cost = beta_u + torch.tensor([1.0, 3.0]).log()  # (β_u + ln σ) · mass
    activation = torch.sigmoid(2 * (beta_a - cost))
    pose, coupling = torch.tensor([[1.0], [5.0]]), torch.full((2, 2), 0.5)
    assert_equal(result, RoutingResult(pose, activation, coupling), **EXACT)


def test_one_e_step_worked_by_hand(votes):
    """With λ = 0 every parent is half active, so that densities alone decide."""
    options = {"iterations": 2, "inverse_temperature": [0.0, 0.0]}
    coupling = em_routing(votes, torch.ones(2), *torch.zeros(2, 2), **options).coupling
    mean, deviation = torch.tensor([[1.0, 5.0], [1.0, 3.0]])
    density = torch.distributions.Normal(mean, deviation).log_prob(votes[..., 0]).exp()
    expected = density / density.sum(dim=1, keepdim=True)
    torch.testing.assert_close(coupling, expected)


@pytest.mark.parametrize("unit", [1e-3, 1e3])
def test_the_unit_of_votes_changes_no_coupling(unit):
    """A constant beside a determinant or a density would change them."""
    votes, activation = draw(children=12, dim=10)
    options = {"inverse_temperature": [0.0, 0.0, 0.0]}
    betas = torch.zeros(2, 3)
    expected = em_routing(votes, activation, *betas, **options).coupling
    coupling = em_routing(unit * votes, activation, *betas, **options).coupling
    torch.testing.assert_close(coupling, expected)


def test_an_inactive_child_has_no_say():
    votes, activation = draw(children=5)
    activation[2] = 0
    active = [0, 1, 3, 4]
    betas = torch.randn(2, 3)
    result = em_routing(votes, activation, *betas)
    expected = em_routing(votes[active], activation[active], *betas)
    torch.testing.assert_close(result[:2], expected[:2])


def test_there_is_a_temperature_for_each_iteration():
    assert inverse_temperatures(3) == pytest.approx((0.0005, 0.000975, 0.00142625))
    for path, count in (("eager", 0), ("fast", 1), ("fast", 4)):
        options = {"inverse_temperature": [0.1] * count, "path": path}
        with pytest.raises(ValueError, match="3 iterations need as many"):
            em_routing(*draw(), *torch.zeros(2, 3), **options)


VARIANTS = [
    {"mixing": True},
    {"smoothing": 0.1},
    {"smoothing": 0.3, "mixing": True},
    {"vector": True, "spread": "variance", "variance_offset": 0.1},
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)
def test_every_variant_is_what_the_loops_say_on_both_paths(options, bias):
    routing = build("em", bias, **options)
    assert_equal(routing(*draw()), em(routing, *draw()), **EXACT)
    for kind in KINDS[:-1]:
        tensors = draw_kind(kind)
        expected = outcome_on("eager", routing, *tensors)
        with small_chunks():
            result = outcome_on("fast", routing, *tensors)
        assert_close(result, expected, 1e-9, case=kind)


def test_densities_that_no_number_holds_are_routed_all_the_same():
    """In 400 dimensions densities underflow in float64, and the loops end in 0/0."""
    routing = build("em", None, dim=400)
    votes, activation = draw(dim=400)
    assert em(routing, 30 * votes, activation).coupling.isnan().any()
    coupling = routing(30 * votes, activation).coupling
    torch.testing.assert_close(coupling.sum(-1), torch.ones_like(activation))
