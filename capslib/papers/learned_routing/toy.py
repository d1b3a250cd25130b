"""Figure 2's toy data: two clusters of votes for one parent, what λ₁ and λ₂ make of them, and a minimiser to compare with."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from capslib.routing.consensus import closed_form, similarity_routing

DENSE, LOOSE = 24, 12
"""Votes of the dense cluster, which is the less active one, and of the loose cluster."""


def clusters(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Votes [I, 1, 2] of two clusters, their activations [I], and mixture and width [1, Q] of a kernel; float64."""
    generator = torch.Generator().manual_seed(seed)
    dense = 0.15 * torch.randn(
        DENSE, 2, generator=generator, dtype=torch.float64
    ) + torch.tensor([0.5, 0.25])
    loose = 1.0 * torch.randn(
        LOOSE, 2, generator=generator, dtype=torch.float64
    ) - torch.tensor([0.5, 0.25])
    drawn = torch.rand(DENSE + LOOSE, generator=generator, dtype=torch.float64)
    activation = torch.cat([0.2 + 0.2 * drawn[:DENSE], 0.6 + 0.3 * drawn[DENSE:]])
    votes = torch.cat([dense, loose])[:, None].double()
    return (
        votes,
        activation,
        torch.zeros(1, 2, dtype=torch.float64),
        torch.tensor([[0.5, 1.0]], dtype=torch.float64),
    )


def disagreement(
    coupling: Tensor, k: Tensor, log_prior: Tensor, lambda1: float, lambda2: float
) -> Tensor:
    """J(c, μ) of eq. (2) for couplings [..., I]: −Σ c k + λ₁ Σ c ln(n c) + λ₂ Σ c ln(c/a)."""
    log_c = coupling.clamp_min(torch.finfo(coupling.dtype).tiny).log()
    n = coupling.shape[-1]
    terms = -k + lambda1 * (log_c + math.log(n)) + lambda2 * (log_c - log_prior)
    return (coupling * terms).sum(dim=-1)


def couplings(seed: int, lambda1: float, lambda2: float, iterations: int = 3) -> Tensor:
    """c [I] of the toy votes for these weights, without a floor of the activations."""
    votes, activation, mixture, width = clusters(seed)
    weights, theta = votes.new_tensor([[lambda1, lambda2]]), votes.new_ones(1, 3)
    options = dict(iterations=iterations, floor=0.0)
    return similarity_routing(
        votes, activation, mixture, width, weights, theta, **options
    ).coupling[:, 0]


def minimised(
    k: Tensor, log_a: Tensor, lambda1: float, lambda2: float, steps: int = 1000
) -> Tensor:
    """The couplings [I] of the least disagreement, by projected gradient, without the closed form."""
    c = torch.full_like(k, 1 / len(k))
    step, value = 1.0, float(disagreement(c, k, log_a, lambda1, lambda2))
    for _ in range(steps):
        slope = -k + lambda1 * (len(k) * c).log() + lambda2 * (c.log() - log_a)
        while step > 1e-14:
            new = onto_simplex(c - step * slope).clamp_min(1e-12)
            after = float(disagreement(new, k, log_a, lambda1, lambda2))
            if after <= value:
                break
            step /= 2
        c, value, step = new, after, step * 1.5
    return c / c.sum()


def onto_simplex(x: Tensor) -> Tensor:
    """The nearest point [I] with entries of at least zero that sum to one."""
    falling = x.sort(descending=True).values
    excess = (falling.cumsum(0) - 1) / torch.arange(1, len(x) + 1, dtype=x.dtype)
    return (x - excess[int((falling > excess).sum()) - 1]).clamp_min(0)


def largest_rise(seed: int, lambda1: float, lambda2: float, iterations: int = 12) -> float:
    """How much J ever rises from one half step to the next, with k = −½‖μ − v‖², of which μ = Σ c v is the exact minimum."""
    votes, activation, *_ = clusters(seed)
    v, log_a, values = votes[:, 0], activation.log(), []
    c = torch.full_like(activation, 1 / len(activation))
    for _ in range(iterations):
        mu = c @ v
        k = -0.5 * (v - mu).square().sum(dim=1)
        values.append(float(disagreement(c, k, log_a, lambda1, lambda2)))
        c = closed_form(k, log_a, votes.new_tensor(lambda1), votes.new_tensor(lambda2)).softmax(
            0
        )
        values.append(float(disagreement(c, k, log_a, lambda1, lambda2)))
    return max(b - a for a, b in itertools.pairwise(values))
