"""Which update of EM routing lowers which free energy (EM-W-8), and a circle in the updates."""

from __future__ import annotations

from itertools import islice, pairwise, product

import pytest
import torch
from conformance import EXACT, assert_equal
from torch import Tensor

from capslib.routing import RoutingResult, em_routing
from capslib.routing.free_energy import EMState, em_trajectory, free_energy

pytestmark = pytest.mark.usefixtures("float64")
FORMS = ("printed", "weighted", "mixture")
STEPS = ("M-step", "logistic", "E-step")
LOWERS = {
    ("printed", "M-step"),
    ("weighted", "M-step"),
    ("weighted", "logistic"),
    ("mixture", "M-step"),
    ("mixture", "E-step"),
}
"""By calculus: each form, and an update of the paper that minimises it over one variable."""
RAISES = sorted(set(product(FORMS, STEPS)) - LOWERS)


def draw(children: int, parents: int, dim: int, scale: float = 1.0) -> list[Tensor]:
    """Return votes, activations, and one β_u and one β_a for all parents, for 100 examples."""
    votes = scale * torch.randn(100, children, parents, dim)
    activation = torch.rand(100, children)
    beta_u, beta_a = torch.tensor([0.1, 0.2])
    return [votes, activation, beta_u, beta_a]


def states_of(tensors: list[Tensor], count: int, e_step: str = "paper") -> list[EMState]:
    trajectory = em_trajectory(*tensors, e_step=e_step)
    return list(islice(trajectory, count))


def largest_rise(tensors: list[Tensor], form: str, step: str, e_step: str = "paper") -> float:
    """Return the largest rise by a kind of update, as a share of what was there, or one."""
    rises = []
    for previous, state in pairwise(states_of(tensors, 12, e_step)):
        if state.step == step:
            energy = free_energy(previous, *tensors, form)
            rise = free_energy(state, *tensors, form) - energy
            rises.append(rise / energy.abs().clamp_min(1))
    return torch.cat(rises).max().item()


@pytest.mark.parametrize("iterations", [1, 4])
def test_the_trajectory_is_em_routing(iterations):
    votes, activation, *_ = draw(12, 3, 4)
    tensors = [votes, activation, *torch.randn(2, 3)]
    options = {"iterations": iterations, "inverse_temperature": [1.0] * iterations}
    result = em_routing(*tensors, **options)
    state = states_of(tensors, 3 * iterations - 2)[-1]
    activation, coupling = state.logit.sigmoid(), state.log_coupling.exp()
    assert_equal(result, RoutingResult(state.mu, activation, coupling), **EXACT)


def test_the_printed_form_is_its_loops():
    """Eq. 4 with the cost (β_u + ln σ) m, after a logistic: μ and σ are those of the votes."""
    tensors = votes, activation, beta_u, beta_a = draw(6, 2, 3)
    state = states_of(tensors, 7)[-1]
    R, a = state.log_coupling.exp()[0], state.logit.sigmoid()[0]
    energy = 0.0
    for j in range(2):
        r = R[:, j] * activation[0]
        for h in range(3):
            V = votes[0, :, j, h]
            mu = (r * V).sum() / r.sum()
            variance = (r * (V - mu) ** 2).sum() / r.sum()
            energy += (beta_u + variance.log() / 2) * r.sum()
        energy += a[j] * a[j].log()
        energy += (1 - a[j]) * (1 - a[j]).log()
        energy += (r * R[:, j].log()).sum()
        energy -= a[j] * beta_a
    first, *_ = free_energy(state, *tensors)
    assert first.item() == pytest.approx(energy.item(), rel=1e-12)


@pytest.mark.parametrize(("form", "step"), sorted(LOWERS))
def test_each_update_lowers_the_forms_whose_minimum_it_is(form, step):
    for tensors in (draw(8, 2, 1, scale=3.0), draw(20, 3, 1, scale=0.3)):
        assert largest_rise(tensors, form, step) < 1e-10


@pytest.mark.parametrize(("form", "step"), RAISES)
def test_each_other_update_raises_a_form(form, step):
    """Of a hundred random draws at least one shows it; eq. 4 as printed is raised by two."""
    assert largest_rise(draw(8, 2, 1, scale=3.0), form, step) > 0.01


@pytest.mark.parametrize("step", STEPS)
def test_a_whole_iteration_can_raise_the_printed_form_as_well(step):
    tensors = draw(8, 2, 1)
    states = [state for state in states_of(tensors, 12) if state.step == step]
    energies = [free_energy(state, *tensors) for state in states]
    assert torch.stack(energies).diff(dim=0).max() > 0.01


@pytest.mark.parametrize("step", STEPS)
def test_with_the_matched_e_step_one_free_energy_never_rises(step):
    draws = draw(12, 1, 1, scale=2.0), draw(24, 4, 2, scale=0.3), draw(48, 3, 4)
    for tensors in draws:
        assert largest_rise(tensors, "weighted", step, "matched") < 1e-10


def test_procedure_1_can_go_round_in_a_circle():
    """Four children vote ±1 and ±1.01 for two parents: who gets them gives them away again.

    A function that every update lowers, unless nothing changes, would be lower after two
    iterations, but is where it was.
    """
    vote = torch.tensor([-1.0, 1.0, -1.0, 1.0])
    votes = torch.stack([vote, 1.01 * vote], dim=-1)[..., None]  # [I, J, D]
    tensors = [votes, torch.ones(4), torch.tensor(1.0), torch.tensor(0.0)]
    iterations = states_of(tensors, 309)[300:]
    first, second, third = [state for state in iterations if state.step == "M-step"]
    torch.testing.assert_close(third[1:], first[1:], rtol=1e-12, atol=1e-12)
    change = second.logit.sigmoid() - first.logit.sigmoid()
    assert change.abs().min() > 0.4
    rise = free_energy(second, *tensors) - free_energy(first, *tensors)
    assert rise.abs() > 0.005
