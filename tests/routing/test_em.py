"""EM routing: numbers that can be worked out on paper, the released variants, and why the E-step is in the log domain."""

from __future__ import annotations

import math

import pytest
import torch
from conformance import weighted
from hypothesis import given
from hypothesis import strategies as st
from references import em

from capslib.routing import EMRouting, em_routing
from capslib.routing.em import inverse_temperatures


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


VOTES = tensor(0, 2, 2, 8).view(
    2, 2, 1
)  # [I, J, D]: the first parent is voted 0 and 2, the second 2 and 8


def test_one_m_step_worked_by_hand():
    """Couplings of one half: means 1 and 5, variances 1 and 9, mass 0.5 + 0.5 each."""
    beta_u, beta_a = tensor(0.3, 0.4), tensor(0.1, -0.2)
    result = em_routing(
        VOTES, tensor(1, 1), beta_u, beta_a, iterations=1, inverse_temperature=[2.0]
    )
    torch.testing.assert_close(result.pose[:, 0], tensor(1, 5))
    cost = tensor(0.3 + math.log(1), 0.4 + math.log(3))  # (β_u + ln σ) · mass
    torch.testing.assert_close(result.activation, torch.sigmoid(2 * (beta_a - cost)))
    torch.testing.assert_close(result.coupling, torch.full((2, 2), 0.5, dtype=torch.float64))


def test_one_e_step_worked_by_hand():
    def density(x: float, mean: float, deviation: float) -> float:
        return math.exp(-((x - mean) ** 2) / (2 * deviation**2)) / (
            deviation * math.sqrt(2 * math.pi)
        )

    flat = dict(
        inverse_temperature=[0.0, 0.0]
    )  # λ = 0: every parent is half active, so densities alone decide
    coupling = em_routing(
        VOTES, tensor(1, 1), tensor(0, 0), tensor(0, 0), iterations=2, **flat
    ).coupling
    for child in (0, 1):
        p = density(VOTES[child, 0].item(), 1, 1), density(VOTES[child, 1].item(), 5, 3)
        torch.testing.assert_close(coupling[child], tensor(p[0] / sum(p), p[1] / sum(p)))


def test_an_inactive_child_has_no_say():
    votes = torch.randn(5, 2, 3, dtype=torch.float64)
    betas = tensor(0.1, 0.2), tensor(0.3, 0.4)
    with_it = em_routing(votes, tensor(1, 0.5, 0, 0.7, 0.2), *betas)
    keep = [0, 1, 3, 4]
    without = em_routing(votes[keep], tensor(1, 0.5, 0.7, 0.2), *betas)
    torch.testing.assert_close(with_it.pose, without.pose)
    torch.testing.assert_close(with_it.activation, without.activation)


def test_variants_change_what_their_names_say():
    votes, a, betas = (
        torch.randn(6, 2, 3, dtype=torch.float64),
        torch.rand(6, dtype=torch.float64),
        (tensor(0, 0), tensor(0, 0)),
    )
    one = dict(iterations=1, inverse_temperature=[1.0])
    deviation = em_routing(votes, a, *betas, **one)
    variance = em_routing(votes, a, *betas, **one, spread="variance")
    # Without β the logit is −Σ ln σ · mass, and ln σ² is twice ln σ.
    torch.testing.assert_close(variance.activation.logit(), 2 * deviation.activation.logit())
    torch.testing.assert_close(variance.pose, deviation.pose)
    wider = em_routing(votes, a, *betas, **one, variance_offset=10.0)
    assert (wider.activation < deviation.activation).all()
    vector = em_routing(votes, a, *betas, **one, vector=True)
    torch.testing.assert_close(vector.pose.norm(dim=-1), vector.activation)
    cosine = torch.cosine_similarity(vector.pose, deviation.pose, dim=-1)
    torch.testing.assert_close(cosine, torch.ones_like(cosine))


def test_the_default_temperatures_are_those_of_the_release():
    assert inverse_temperatures(3) == pytest.approx((0.0005, 0.000975, 0.00142625))
    votes, a = torch.randn(4, 2, 3, dtype=torch.float64), torch.rand(4, dtype=torch.float64)
    betas = torch.randn(2, 2, dtype=torch.float64)
    assert torch.equal(
        em_routing(votes, a, *betas)[1],
        em_routing(votes, a, *betas, inverse_temperature=inverse_temperatures(3))[1],
    )


@pytest.mark.parametrize("temperatures", [[], [0.1], [0.1] * 4])
def test_temperatures_have_to_match_the_iterations(temperatures):
    with pytest.raises(ValueError, match="3 iterations need as many"):
        em_routing(
            VOTES, tensor(1, 1), tensor(0, 0), tensor(0, 0), inverse_temperature=temperatures
        )


@pytest.mark.parametrize(
    "options", [{}, {"smoothing": 0.1}, {"smoothing": 0.4, "mixing": True}], ids=str
)
@pytest.mark.parametrize("path", ["eager", "fast"])
def test_a_bias_is_added_to_the_votes(path, options):
    """With smoothing it was not: the means started at zero in the frame of the votes without it."""
    torch.manual_seed(0)
    given = (
        torch.randn(4, 6, 3, 4),
        torch.rand(4, 6) + 0.1,
        torch.randn(3),
        torch.randn(3),
        torch.randn(3, 4),
    )

    def outcome(biased):
        votes, activation, beta_u, beta_a, bias = (t.double().requires_grad_() for t in given)
        votes, option = (votes, bias) if biased else (votes + bias, None)
        result = em_routing(
            votes, activation, beta_u, beta_a, bias=option, path=path, **options
        )
        weighted(result).backward()
        return *result, bias.grad, activation.grad

    for ours, expected in zip(outcome(True), outcome(False), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("bias", [None, 0.3])
@pytest.mark.parametrize(
    "options",
    [
        {"mixing": True},
        {"smoothing": 0.1},
        {"smoothing": 0.3, "mixing": True, "vector": True, "spread": "variance"},
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["eager", "fast"])
def test_the_loops_know_every_variant(path, options, bias):
    """They ignored ``mixing`` and ``smoothing``."""
    torch.manual_seed(0)
    routing = EMRouting(3, 4, bias=bias, **options).double()
    routing.path = path
    votes, activation = (
        torch.randn(9, 3, 4, dtype=torch.float64),
        torch.rand(9, dtype=torch.float64) + 0.1,
    )
    for ours, loops in zip(
        routing(votes, activation), em(routing, votes, activation), strict=True
    ):
        torch.testing.assert_close(ours, loops, rtol=0, atol=1e-10)


@given(seed=st.integers(0, 2**32 - 1))
def test_a_vote_bias_is_a_translation(seed):
    """EM moves with its votes: a shift that all children share moves the mean and nothing else."""
    g = torch.Generator().manual_seed(seed)
    votes, a = (
        torch.randn(6, 3, 4, generator=g, dtype=torch.float64),
        torch.rand(6, generator=g, dtype=torch.float64) + 0.1,
    )
    betas, shift = (
        torch.randn(2, 3, generator=g, dtype=torch.float64),
        torch.randn(3, 4, generator=g, dtype=torch.float64),
    )
    plain, shifted = em_routing(votes, a, *betas), em_routing(votes, a, *betas, bias=shift)
    torch.testing.assert_close(shifted.pose, plain.pose + shift)
    torch.testing.assert_close(shifted.activation, plain.activation)
    torch.testing.assert_close(shifted.coupling, plain.coupling)


def test_densities_that_no_number_holds_are_routed_all_the_same():
    """In 400 dimensions a density underflows even in float64, so the loops that multiply them end in 0/0; logarithms do not."""
    torch.manual_seed(0)
    routing, votes, activation = (
        EMRouting(3, 400).double(),
        30 * torch.randn(8, 3, 400, dtype=torch.float64),
        torch.ones(8).double(),
    )
    assert em(routing, votes, activation).coupling.isnan().any()
    result = routing(votes, activation)
    assert all(t.isfinite().all() for t in result)
    torch.testing.assert_close(result.coupling.sum(-1), torch.ones(8, dtype=torch.float64))


@pytest.mark.parametrize("unit", [1e-3, 1e3])
def test_the_unit_of_votes_changes_no_coupling(unit):
    """A constant beside a determinant or a density would: narrow clusters lose the determinant, children of wide ones their parents."""
    g = torch.Generator().manual_seed(0)
    votes, a = (
        torch.randn(12, 3, 10, generator=g, dtype=torch.float64),
        torch.ones(12, dtype=torch.float64),
    )
    flat = dict(iterations=2, inverse_temperature=[0.0, 0.0])  # λ = 0: densities alone decide
    one, other = (
        em_routing(u * votes, a, torch.zeros(3), torch.zeros(3), **flat).coupling
        for u in (1, unit)
    )
    torch.testing.assert_close(other, one)
