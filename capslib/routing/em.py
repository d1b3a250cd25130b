"""EM routing: Hinton, Sabour & Frosst (2018), Procedure 1 in the log domain, with the variants of Peer et al. (2021)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from einops import einsum
from torch import Tensor, nn
from torch.nn import functional as F

from capslib.routing.base import Routing, RoutingResult, at_least_one, full_precision

VARIANCE_FLOOR = 1e-12
"""A cluster of equal votes has no spread; this keeps the logarithm of its variance finite. Real clusters never come near it."""
MASS_FLOOR = 1e-8
"""A parent that no active child is assigned to has no mass to divide by."""

Spread = Literal["deviation", "variance"]


def inverse_temperatures(iterations: int, final: float = 0.01) -> tuple[float, ...]:
    """λ of each iteration: final·(1 − 0.95^(t+1)), the schedule of the released code."""
    return tuple(final * (1 - 0.95 ** (t + 1)) for t in range(iterations))


@full_precision
def em_routing(
    votes: Tensor,
    activation: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    iterations: int = 3,
    inverse_temperature: Sequence[float] | None = None,
    bias: Tensor | None = None,
    spread: Spread = "deviation",
    variance_offset: float = 0.0,
    vector: bool = False,
    length_offset: float = 1e-8,
) -> RoutingResult:
    """Route votes [..., I, J, D] of children with activations [..., I] to J parents with costs ``beta_u``, ``beta_a`` [J].

    ``inverse_temperature`` is λ of each iteration, by default :func:`inverse_temperatures`. ``bias`` [J, D] is added to the
    votes (Peer et al. 2021, §4.2). Released variants: ``spread="variance"`` puts ln σ² in the place of ln σ in the cost,
    ``variance_offset`` is added to every variance, ``vector=True`` gives back vector capsules, a_j·μ_j/(‖μ_j‖ + ``length_offset``) for the pose.
    In one dimension μ/‖μ‖ is a sign, and the offset is all that a gradient can pass through.
    The E-step is a softmax of log-densities, so no density has to be representable. Hinton et al. 2018, Procedure 1.
    Raises ValueError where the temperatures do not match the iterations.
    """
    at_least_one(iterations)
    if inverse_temperature is None:
        inverse_temperature = inverse_temperatures(iterations)
    if len(inverse_temperature) != iterations:
        raise ValueError(f"{iterations} iterations need as many inverse temperatures, not {len(inverse_temperature)}")
    if bias is not None:
        votes = votes + bias
    J, D = votes.shape[-2:]
    coupling = torch.full_like(votes[..., 0], 1 / J)  # [..., I, J]  R_ij
    for iteration, lamda in enumerate(inverse_temperature):
        # M-step
        r = coupling * activation[..., None]  # [..., I, J]  R_ij a_i
        mass = r.sum(dim=-2)  # [..., J]  m_j
        share = r / mass.clamp_min(MASS_FLOOR)[..., None, :]  # [..., I, J]
        mu = einsum(share, votes, "... i j, ... i j d -> ... j d")  # [..., J, D]
        deviation = votes - mu[..., None, :, :]  # [..., I, J, D]
        variance = einsum(share, deviation.square(), "... i j, ... i j d -> ... j d") + variance_offset  # [..., J, D]  σ²
        log_variance = variance.clamp_min(VARIANCE_FLOOR).log()
        log_spread = log_variance if spread == "variance" else log_variance / 2  # ln σ
        cost = (D * beta_u + log_spread.sum(dim=-1)) * mass  # [..., J]  Σ_h cost_j^h
        logit = lamda * (beta_a - cost)
        # E-step, not needed after the last M-step
        if iteration < iterations - 1:
            precision = (-log_variance).exp()  # [..., J, D]  1/σ²
            distance = einsum(deviation.square(), precision, "... i j d, ... j d -> ... i j")
            log_p = -0.5 * (distance + log_variance.sum(dim=-1)[..., None, :] + D * math.log(2 * math.pi))
            coupling = (F.logsigmoid(logit)[..., None, :] + log_p).softmax(dim=-1)  # over the parents j of a child
    a = logit.sigmoid()  # [..., J]  a_j
    if not vector:
        return RoutingResult(mu, a, coupling)
    length = torch.linalg.vector_norm(mu, dim=-1, keepdim=True)  # [..., J, 1]
    return RoutingResult(a[..., None] * mu / (length + length_offset).clamp_min(MASS_FLOOR), a, coupling)


class EMRouting(Routing):
    """:func:`em_routing` with its bias and β_u, β_a, one of each per parent, drawn from N(0, ``beta_std``²)."""

    def __init__(
        self,
        parents: int,
        dim: int,
        *,
        iterations: int = 3,
        bias: float | None = None,
        beta_std: float = 0.1,
        spread: Spread = "deviation",
        variance_offset: float = 0.0,
        vector: bool = False,
        length_offset: float = 1e-8,
    ):
        super().__init__(parents, dim, iterations=iterations, bias=bias)
        self.beta_u = nn.Parameter(torch.randn(parents) * beta_std)
        self.beta_a = nn.Parameter(torch.randn(parents) * beta_std)
        self.spread: Spread = spread
        self.variance_offset, self.vector, self.length_offset = variance_offset, vector, length_offset

    def forward(self, votes: Tensor, activation: Tensor) -> RoutingResult:
        return em_routing(
            votes,
            activation,
            self.beta_u,
            self.beta_a,
            iterations=self.iterations,
            bias=self.bias,
            spread=self.spread,
            variance_offset=self.variance_offset,
            vector=self.vector,
            length_offset=self.length_offset,
        )

    def reference(self, votes: Tensor, activation: Tensor) -> RoutingResult:
        I, J, D = votes.shape
        V = votes if self.bias is None else votes + self.bias
        a_in, R = activation, [[votes.new_tensor(1 / J) for j in range(J)] for i in range(I)]
        for t in range(self.iterations):
            used, mu, var, a = R, [], [], []
            for j in range(J):
                r = [R[i][j] * a_in[i] for i in range(I)]
                m = sum(r)
                mu.append(sum(r[i] * V[i, j] for i in range(I)) / m)
                var.append(sum(r[i] * (V[i, j] - mu[j]) ** 2 for i in range(I)) / m + self.variance_offset)
                width = var[j] if self.spread == "variance" else var[j].sqrt()
                cost = sum((self.beta_u[j] + width[h].log()) * m for h in range(D))
                a.append(torch.sigmoid(0.01 * (1 - 0.95 ** (t + 1)) * (self.beta_a[j] - cost)))
            p = [[a[j] * _gauss(V[i, j], mu[j], var[j]) for j in range(J)] for i in range(I)]
            R = [[p[i][j] / sum(p[i][k] for k in range(J)) for j in range(J)] for i in range(I)]
        pose, act = torch.stack(mu), torch.stack(a)
        if self.vector:
            pose = act[:, None] * pose / ((pose * pose).sum(-1, keepdim=True).sqrt() + self.length_offset)
        return RoutingResult(pose, act, torch.stack([torch.stack(row) for row in used]))


def _gauss(v: Tensor, mu: Tensor, var: Tensor) -> Tensor:
    """Density of a normal distribution with a diagonal covariance: v, mu, var [D]."""
    return torch.exp(-((v - mu) ** 2 / (2 * var)).sum()) / torch.sqrt((2 * math.pi * var).prod())
