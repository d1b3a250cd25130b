"""Free energies of EM routing, and what lowers them (Hinton et al. 2018, appendix A).

``printed`` is eq. 4: −β_a a + a ln a + (1−a) ln(1−a) + cost, summed over the parents, plus
a_i R_ij ln R_ij, summed over all pairs. Each of the three updates of Procedure 1 lowers *some*
free energy, but none of these forms is lowered by all three:

============  =========================  ======================================================
form          cost of parent j           updates that minimise it, all else fixed
============  =========================  ======================================================
``printed``   Σ_h cost_j^h               the M-step; neither logistic nor E-step
``weighted``  a_j Σ_h cost_j^h           the M-step and the logistic; of the E-steps ``matched``
``mixture``   Σ_h cost_j^h − m_j ln a_j  the M-step and the E-step, if all parents have one β_u
============  =========================  ======================================================

If all parents are active, a_j ≈ 1, the three forms are equal. No other function of the state
works either: Procedure 1 can go round in a circle, and a function that falls with every change
cannot.

Here λ is 1, no variance has a floor, and nothing is smoothed. A parent can then collapse onto
one child: its variance becomes zero, the free energy −∞, and what follows is not a number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

import torch
from einops import einsum
from torch import Tensor
from torch.nn import functional as F

from capslib.errors import check_name

__all__ = ["EMState", "EStep", "Form", "em_trajectory", "free_energy"]

Form = Literal["printed", "weighted", "mixture"]
EStep = Literal["paper", "matched"]


class EMState(NamedTuple):
    """The state of EM routing after ``step``."""

    step: Literal["M-step", "logistic", "E-step"]
    log_coupling: Tensor  # [..., I, J]  ln R_ij
    mu: Tensor  # [..., J, D]
    variance: Tensor  # [..., J, D]  σ²
    logit: Tensor  # [..., J]  of a_j


def em_trajectory(
    votes: Tensor,
    activation: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    e_step: EStep = "paper",
) -> Iterator[EMState]:
    """Yield the state after every step of Procedure 1, from the first logistic on, without end.

    ``votes`` are [..., I, J, D], the children's ``activation`` is [..., I], and ``beta_u`` and
    ``beta_a`` are [J] or scalars. The E-step of the paper is R_ij ∝ a_j p_ij. The ``matched``
    E-step, R_ij ∝ exp(−a_j Σ_h cost_ij^h), lowers what the logistic lowers.

    >>> betas = torch.zeros(2, 3)
    >>> states = em_trajectory(torch.randn(9, 3, 4), torch.rand(9), *betas)
    >>> [next(states).step for _ in range(4)]
    ['logistic', 'E-step', 'M-step', 'logistic']
    """
    check_name("E-step", e_step, get_args(EStep))
    log_coupling = torch.full_like(votes[..., 0], -math.log(votes.shape[-2]))  # [..., I, J]
    logit = None
    while True:
        log_r = log_coupling + activation[..., None].log()
        share = log_r.softmax(dim=-2)  # [..., I, J]  R_ij a_i / m_j, however small the mass
        mu = einsum(share, votes, "... i j, ... i j d -> ... j d")
        square = (votes - mu[..., None, :, :]).square()
        variance = einsum(share, square, "... i j, ... i j d -> ... j d")
        if logit is not None:
            yield EMState("M-step", log_coupling, mu, variance, logit)
        cost = _cost(votes, mu, variance, beta_u)  # [..., I, J]
        coupling = log_coupling.exp()
        total = einsum(coupling, activation, cost, "... i j, ... i, ... i j -> ... j")
        logit = beta_a - total  # [..., J]
        yield EMState("logistic", log_coupling, mu, variance, logit)
        if e_step == "paper":
            log_p = _cost(votes, mu, variance, 0).neg()  # but for a constant
            log_weight = F.logsigmoid(logit)[..., None, :] + log_p
        else:
            log_weight = -logit.sigmoid()[..., None, :] * cost
        log_coupling = log_weight.log_softmax(dim=-1)
        yield EMState("E-step", log_coupling, mu, variance, logit)


def free_energy(
    state: EMState,
    votes: Tensor,
    activation: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    form: Form = "printed",
) -> Tensor:
    """Return the free energy [...] of a state in one of the forms above.

    The other arguments are those of :func:`em_trajectory`.
    """
    check_name("form", form, get_args(Form))
    a = state.logit.sigmoid()  # [..., J]
    log_a = F.logsigmoid(state.logit)
    log_not_a = F.logsigmoid(-state.logit)
    r = state.log_coupling.exp() * activation[..., None]  # [..., I, J]  a_i R_ij
    cost = (r * _cost(votes, state.mu, state.variance, beta_u)).sum(dim=-2)  # [..., J]
    if form == "weighted":
        cost = a * cost
    elif form == "mixture":
        cost = cost - r.sum(dim=-2) * log_a
    parents = (-beta_a * a + a * log_a + (1 - a) * log_not_a + cost).sum(dim=-1)
    return parents + (r * state.log_coupling).sum(dim=(-2, -1))


def _cost(votes: Tensor, mu: Tensor, variance: Tensor, beta_u: Tensor | float) -> Tensor:
    """Return the cost [..., I, J] of each vote, Σ_h (β_u + ln σ + ((V − μ)²/σ² − 1)/2).

    Right after an M-step the last term, weighted with a_i R_ij, sums to zero over the children.
    """
    D = votes.shape[-1]
    square = (votes - mu[..., None, :, :]).square()
    distance = square / variance[..., None, :, :]  # [..., I, J, D]
    excess = variance.log()[..., None, :, :] + distance - 1
    return D * beta_u + excess.sum(dim=-1) / 2
