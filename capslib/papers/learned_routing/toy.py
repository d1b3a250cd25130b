"""The toy data of Figure 2: two clusters of votes for one parent, and a minimiser."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from capslib.routing.consensus import closed_form, similarity_routing

DENSE, LOOSE = 24, 12
"""Votes of the dense cluster, which is the less active one, and of the loose cluster."""


def clusters(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return votes of two clusters, and a kernel, all in float64.

    These are the votes [I, 1, 2], their activations [I], and mixture and width [1, Q] of a
    kernel.
    """
    generator = torch.Generator().manual_seed(seed)
    options = dict(generator=generator, dtype=torch.float64)
    center = torch.tensor([0.5, 0.25])
    dense = 0.15 * torch.randn(DENSE, 2, **options) + center
    loose = torch.randn(LOOSE, 2, **options) - center
    uniform = torch.rand(DENSE + LOOSE, **options)
    votes = torch.cat([dense, loose])[:, None]
    activation = torch.cat([0.2 + 0.2 * uniform[:DENSE], 0.6 + 0.3 * uniform[DENSE:]])
    mixture = torch.zeros(1, 2, dtype=torch.float64)
    width = torch.tensor([[0.5, 1.0]], dtype=torch.float64)
    return votes, activation, mixture, width


def disagreement(
    coupling: Tensor, k: Tensor, log_prior: Tensor, lambda1: float, lambda2: float
) -> Tensor:
    """Return J(c, μ) of eq. (2) for couplings [..., I].

    It is −Σ c k + λ₁ Σ c ln(n c) + λ₂ Σ c ln(c/a).
    """
    log_c = coupling.clamp_min(torch.finfo(coupling.dtype).tiny).log()
    n = coupling.shape[-1]
    terms = -k + lambda1 * (log_c + math.log(n)) + lambda2 * (log_c - log_prior)
    return (coupling * terms).sum(dim=-1)


def couplings(seed: int, lambda1: float, lambda2: float, iterations: int = 3) -> Tensor:
    """Return c [I] of the toy votes for these weights, without a floor of the activations."""
    votes, activation, mixture, width = clusters(seed)
    weights = votes.new_tensor([[lambda1, lambda2]])
    theta = votes.new_ones(1, 3)
    routed = similarity_routing(
        votes, activation, mixture, width, weights, theta, iterations=iterations, floor=0.0
    )
    return routed.coupling[:, 0]


def minimised(
    k: Tensor, log_a: Tensor, lambda1: float, lambda2: float, steps: int = 1000
) -> Tensor:
    """Return the couplings [I] of the least disagreement, by projected gradient."""
    c = torch.full_like(k, 1 / len(k))
    step = 1.0
    value = float(disagreement(c, k, log_a, lambda1, lambda2))
    for _ in range(steps):
        slope = -k + lambda1 * (len(k) * c).log() + lambda2 * (c.log() - log_a)
        while step > 1e-14:
            next_c = onto_simplex(c - step * slope).clamp_min(1e-12)
            next_value = float(disagreement(next_c, k, log_a, lambda1, lambda2))
            if next_value <= value:
                break
            step /= 2
        c, value = next_c, next_value
        step *= 1.5
    return c / c.sum()


def onto_simplex(x: Tensor) -> Tensor:
    """Return the nearest point [I] with entries of at least zero that sum to one."""
    falling = x.sort(descending=True).values
    excess = (falling.cumsum(0) - 1) / torch.arange(1, len(x) + 1, dtype=x.dtype)
    positive = int((falling > excess).sum())
    return (x - excess[positive - 1]).clamp_min(0)


def largest_rise(seed: int, lambda1: float, lambda2: float, iterations: int = 12) -> float:
    """Return how much J ever rises from one half step to the next.

    With k = −½‖μ − v‖², of which μ = Σ c v is the exact minimum.
    """
    votes, activation, *_ = clusters(seed)
    v = votes[:, 0]
    log_a = activation.log()
    weights = votes.new_tensor(lambda1), votes.new_tensor(lambda2)
    c = torch.full_like(activation, 1 / len(activation))
    values = []
    for _ in range(iterations):
        mu = c @ v
        k = -0.5 * (v - mu).square().sum(dim=1)
        values.append(float(disagreement(c, k, log_a, lambda1, lambda2)))
        c = closed_form(k, log_a, *weights).softmax(0)
        values.append(float(disagreement(c, k, log_a, lambda1, lambda2)))
    return max(value - previous for previous, value in itertools.pairwise(values))
