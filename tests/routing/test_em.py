"""EM routing: numbers worked out on paper, released variants, and logarithms of densities."""

from __future__ import annotations

import math

import pytest
import torch
from conformance import BIASES, EXACT, assert_equal, build, draw, weighted
from hypothesis import given
from hypothesis import strategies as st
from references import em
from torch import Tensor

from capslib.routing import RoutingResult, em_routing
from capslib.routing.em import inverse_temperatures

FLAT = {"iterations": 2, "inverse_temperature": [0.0, 0.0]}
"""λ = 0: every parent is half active, so that densities alone decide."""


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


VOTES = tensor(0, 2, 2, 8).view(2, 2, 1)
"""Votes [I, J, D]: 0 and 2 for the first parent, 2 and 8 for the second."""


def test_one_m_step_worked_by_hand():
    """Couplings of one half: means 1 and 5, variances 1 and 9, mass 0.5 + 0.5 each."""
    beta_u, beta_a = tensor(0.3, 0.4), tensor(0.1, -0.2)
    options = {"iterations": 1, "inverse_temperature": [2.0]}
    result = em_routing(VOTES, tensor(1, 1), beta_u, beta_a, **options)
    cost = tensor(0.3 + math.log(1), 0.4 + math.log(3))  # (β_u + ln σ) · mass
    activation = torch.sigmoid(2 * (beta_a - cost))
    coupling = torch.full((2, 2), 0.5, dtype=torch.float64)
    assert_equal(result, RoutingResult(tensor(1, 5)[:, None], activation, coupling), **EXACT)


def test_one_e_step_worked_by_hand():
    betas = tensor(0, 0), tensor(0, 0)
    coupling = em_routing(VOTES, tensor(1, 1), *betas, **FLAT).coupling
    parents = torch.distributions.Normal(tensor(1, 5), tensor(1, 3))
    density = parents.log_prob(VOTES[..., 0]).exp()  # [I, J]
    torch.testing.assert_close(coupling, density / density.sum(dim=1, keepdim=True))


def test_an_inactive_child_has_no_say():
    votes = torch.randn(5, 2, 3, dtype=torch.float64)
    betas = tensor(0.1, 0.2), tensor(0.3, 0.4)
    active = [0, 1, 3, 4]
    pose, activation, _ = em_routing(votes, tensor(1, 0.5, 0, 0.7, 0.2), *betas)
    expected = em_routing(votes[active], tensor(1, 0.5, 0.7, 0.2), *betas)
    torch.testing.assert_close(pose, expected.pose)
    torch.testing.assert_close(activation, expected.activation)


def test_variants_change_what_their_names_say():
    def route(**options: object) -> RoutingResult:
        options |= {"iterations": 1, "inverse_temperature": [1.0]}
        return em_routing(*draw(parents=2), tensor(0, 0), tensor(0, 0), **options)

    deviation, variance = route(), route(spread="variance")
    # Without β the logit is −Σ ln σ · mass, and ln σ² is twice ln σ.
    torch.testing.assert_close(variance.activation.logit(), 2 * deviation.activation.logit())
    torch.testing.assert_close(variance.pose, deviation.pose)
    assert (route(variance_offset=10.0).activation < deviation.activation).all()
    vector = route(vector=True)
    torch.testing.assert_close(vector.pose.norm(dim=-1), vector.activation)
    cosine = torch.cosine_similarity(vector.pose, deviation.pose, dim=-1)
    torch.testing.assert_close(cosine, torch.ones_like(cosine))


def test_the_default_temperatures_are_those_of_the_release():
    lamda = inverse_temperatures(3)
    assert lamda == pytest.approx((0.0005, 0.000975, 0.00142625))
    betas = torch.randn(2, 3, dtype=torch.float64)
    result = em_routing(*draw(), *betas)
    assert_equal(result, em_routing(*draw(), *betas, inverse_temperature=lamda), **EXACT)


@pytest.mark.parametrize("path", ["eager", "fast"])
def test_temperatures_have_to_match_the_iterations(path):
    for lamda in ([], [0.1], [0.1] * 4):
        with pytest.raises(ValueError, match="3 iterations need as many"):
            em_routing(*draw(parents=2), *VOTES[..., 0], inverse_temperature=lamda, path=path)


@pytest.mark.parametrize("path", ["eager", "fast"])
@pytest.mark.parametrize(
    "options", [{}, {"smoothing": 0.1}, {"smoothing": 0.4, "mixing": True}], ids=str
)
def test_a_bias_is_added_to_the_votes(path, options):
    """With smoothing, too: the first mean is zero with the bias."""
    votes, activation = (t.requires_grad_() for t in draw(4))
    betas = torch.randn(2, 3, dtype=torch.float64)
    bias = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)

    def outcome(votes: Tensor, bias_option: Tensor | None) -> list[Tensor]:
        options["path"] = path
        result = em_routing(votes, activation, *betas, bias=bias_option, **options)
        return [*result, *torch.autograd.grad(weighted(result), [bias, activation])]

    torch.testing.assert_close(outcome(votes, bias), outcome(votes + bias, None))


@pytest.mark.parametrize("bias", BIASES)
def test_the_loops_know_every_variant(bias):
    variants = ({"mixing": True}, {"smoothing": 0.1}, {"vector": True, "spread": "variance"})
    for options in (*variants, {"smoothing": 0.3, "mixing": True}):
        routing = build("em", BIASES[bias], **options)
        for path in ("eager", "fast"):
            routing.path = path
            assert_equal(routing(*draw()), em(routing, *draw()), **EXACT)


@given(seed=st.integers(0, 2**32 - 1))
def test_a_vote_bias_is_a_translation(seed):
    """A shift that all children share moves the mean and nothing else."""
    generator = torch.Generator().manual_seed(seed)
    betas = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    shift = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    tensors = (*draw(seed=seed), *betas)
    result = em_routing(*tensors)
    shifted = em_routing(*tensors, bias=shift)
    assert_equal(shifted, result._replace(pose=result.pose + shift), **EXACT)


def test_densities_that_no_number_holds_are_routed_all_the_same():
    """In 400 dimensions densities underflow in float64, and the loops end in 0/0."""
    routing = build("em", None, dim=400)
    votes, activation = draw(dim=400)
    assert em(routing, 30 * votes, activation).coupling.isnan().any()
    coupling = routing(30 * votes, activation).coupling
    torch.testing.assert_close(coupling.sum(-1), torch.ones_like(activation))


@pytest.mark.parametrize("unit", [1e-3, 1e3])
def test_the_unit_of_votes_changes_no_coupling(unit):
    """A constant beside a determinant or a density would change them."""
    votes, activation = draw(children=12, dim=10)
    betas = torch.zeros(2, 3)
    expected = em_routing(votes, activation, *betas, **FLAT).coupling
    coupling = em_routing(unit * votes, activation, *betas, **FLAT).coupling
    torch.testing.assert_close(coupling, expected)
