"""EM routing: Hinton, Sabour & Frosst (2018), Procedure 1 in the log domain, with the variants of Peer et al. (2021)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from einops import einsum
from torch import Tensor, nn
from torch.nn import functional as F

from capslib.routing.base import Routing, RoutingResult, at_least_one
from capslib.routing.competition import Competition, softmax, softmax_gradient, uniform
from capslib.routing.fast import Core, materialised, routing_function

VARIANCE_FLOOR = 1e-12
"""A cluster of equal votes has no spread; this keeps the logarithm of its variance finite. Real clusters never come near it."""
MASS_FLOOR = 1e-8
"""A parent that no active child is assigned to has no mass to divide by."""

Spread = Literal["deviation", "variance"]


def inverse_temperatures(iterations: int, final: float = 0.01) -> tuple[float, ...]:
    """λ of each iteration: final·(1 − 0.95^(t+1)), the schedule of the released code."""
    return tuple(final * (1 - 0.95 ** (t + 1)) for t in range(iterations))


@routing_function
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
    smoothing: float = 0.0,
    mixing: bool = False,
    competition: Competition | None = None,
) -> RoutingResult:
    """Route votes [..., I, J, D] of children with activations [..., I] to J parents with costs ``beta_u``, ``beta_a`` [J].

    ``inverse_temperature`` is λ of each iteration, by default :func:`inverse_temperatures`. ``bias`` [J, D] is added to the
    votes (Peer et al. 2021, §4.2), which moves every mean with them and no deviation from it. Released variants:
    ``spread="variance"`` puts ln σ² in the place of ln σ in the cost, ``variance_offset`` is added to every variance, and
    ``vector=True`` gives back vector capsules, a_j·μ_j/(‖μ_j‖ + ``length_offset``) for the pose. In one dimension μ/‖μ‖ is a
    sign, and the offset is all that a gradient can pass through. ``smoothing`` is what every mean keeps of the one before it, at
    first of zero. With ``mixing`` a parent is as active as its share m_j/Σ_i a_i of the children, without β and λ (§5).
    ``competition`` lets more parents than these J compete for a child, those at the other positions of a convolution.
    The E-step is a softmax of log-densities, so no density has to be representable. Hinton et al. 2018, Procedure 1.
    Raises ValueError where the temperatures do not match the iterations.
    """
    inverse_temperature = _temperatures(iterations, inverse_temperature)
    D = votes.shape[-1]
    coupling = uniform(votes[..., 0], competition)  # [..., I, J]  R_ij
    previous = torch.zeros_like(votes[..., 0, :, :])  # [..., J, D]
    for iteration, lamda in enumerate(inverse_temperature):
        # M-step
        r = coupling * activation[..., None]  # [..., I, J]  R_ij a_i
        mass = r.sum(dim=-2)  # [..., J]  m_j
        share = r / mass.clamp_min(MASS_FLOOR)[..., None, :]  # [..., I, J]
        mu = einsum(share, votes, "... i j, ... i j d -> ... j d")  # [..., J, D]
        previous = mu = (1 - smoothing) * mu + smoothing * previous
        deviation = votes - mu[..., None, :, :]  # [..., I, J, D]
        variance = einsum(share, deviation.square(), "... i j, ... i j d -> ... j d") + variance_offset  # [..., J, D]  σ²
        log_variance = variance.clamp_min(VARIANCE_FLOOR).log()
        log_spread = log_variance if spread == "variance" else log_variance / 2  # ln σ
        cost = (D * beta_u + log_spread.sum(dim=-1)) * mass  # [..., J]  Σ_h cost_j^h
        logit = _log_odds(mass, activation) if mixing else lamda * (beta_a - cost)
        # E-step, not needed after the last M-step
        if iteration < iterations - 1:
            precision = (-log_variance).exp()  # [..., J, D]  1/σ²
            distance = einsum(deviation.square(), precision, "... i j d, ... j d -> ... i j")
            log_p = -0.5 * (distance + log_variance.sum(dim=-1)[..., None, :] + D * math.log(2 * math.pi))
            coupling = softmax(F.logsigmoid(logit)[..., None, :] + log_p, competition)  # over the parents j of a child
    return RoutingResult(*_capsules(mu, logit, bias, vector, length_offset), coupling)


def _temperatures(iterations: int, given: Sequence[float] | None) -> Sequence[float]:
    at_least_one(iterations)
    if given is not None and len(given) != iterations:
        raise ValueError(f"{iterations} iterations need as many inverse temperatures, not {len(given)}")
    return inverse_temperatures(iterations) if given is None else given


def _log_odds(mass: Tensor, activation: Tensor) -> Tensor:
    """ln(π/(1 − π)) [..., J] of the mixing proportions π_j = m_j/Σ_i a_i."""
    rest = activation.sum(dim=-1, keepdim=True) - mass
    return mass.clamp_min(MASS_FLOOR).log() - rest.clamp_min(MASS_FLOOR).log()


def _log_odds_gradient(mass: Tensor, activation: Tensor, to_logit: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of mass [..., J] and activation [..., 1], the same for every child, from that of these logits."""
    rest = activation.sum(dim=-1, keepdim=True) - mass
    of_mass, of_rest = ((to_logit / x.clamp_min(MASS_FLOOR)).masked_fill(x < MASS_FLOOR, 0) for x in (mass, rest))
    return of_mass + of_rest, -of_rest.sum(dim=-1, keepdim=True)


def _capsules(mu: Tensor, logit: Tensor, bias: Tensor | None, vector: bool, length_offset: float) -> tuple[Tensor, Tensor]:
    """Poses [..., J, D] and activations [..., J] of means and logits; the poses of vector capsules are as long as they are active."""
    a = logit.sigmoid()  # [..., J]  a_j
    pose = mu if bias is None else mu + bias
    if vector:
        length = torch.linalg.vector_norm(pose, dim=-1, keepdim=True)  # [..., J, 1]
        pose = a[..., None] * pose / (length + length_offset).clamp_min(MASS_FLOOR)
    return pose, a


# --------------------------------------------------------------------------------------------------------------- fast path


def _forward(
    votes: Tensor,
    *,
    activation: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    iterations: int,
    inverse_temperature: Sequence[float] | None,
    spread: Spread,
    variance_offset: float,
    smoothing: float,
    mixing: bool,
    competition: Competition | None,
    **_: object,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The loop on a chunk: means, logits of the activations, couplings. Kept: every σ², and these of the iterations before."""
    D = votes.shape[2]
    coupling = uniform(votes[:, :, 0], competition, dim=1)
    variances, mus, logits, couplings = [], [], [], []
    mu = torch.zeros_like(votes[..., 0])
    for iteration, lamda in enumerate(_temperatures(iterations, inverse_temperature)):
        mass, share = _shares(coupling, activation)
        mean = (votes @ share[..., None]).squeeze(-1)  # [n, J, D]
        mu = materialised((1 - smoothing) * mean + smoothing * mu) if smoothing else mean
        square = (votes - mu[..., None]).square()  # [n, J, D, I]
        variance = (square @ share[..., None]).squeeze(-1) + variance_offset
        floored = variance.clamp_min(VARIANCE_FLOOR)
        log_variance = floored.log().sum(dim=-1)
        cost = (D * beta_u + log_variance * _SPREAD[spread]) * mass
        logit = _log_odds(mass, activation) if mixing else lamda * (beta_a - cost)  # [n, J]
        for of_all, this in zip((variances, mus, logits, couplings), (variance, mu, logit, coupling), strict=True):
            of_all.append(this)
        if iteration < iterations - 1:
            distance = (materialised(1 / floored)[:, :, None] @ square).squeeze(2)  # [n, J, I]
            log_p = materialised(F.logsigmoid(logit) - log_variance / 2)  # constants cancel in the softmax
            coupling = softmax(log_p[..., None] - distance / 2, competition, dim=1)
    return (mu, logit, coupling), (*variances, *mus[:-1], *logits[:-1], *couplings[1:-1])  # the first couplings are uniform


def _backward(
    votes: Tensor,
    outputs: tuple[Tensor, ...],
    kept: tuple[Tensor, ...],
    gradients: tuple[Tensor, ...],
    *,
    activation: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    iterations: int,
    inverse_temperature: Sequence[float] | None,
    spread: Spread,
    variance_offset: float,
    smoothing: float,
    mixing: bool,
    competition: Competition | None,
    **_: object,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loop from its end. Deviations are formed anew from the means: votes minus a number, never a difference of sums."""
    D = votes.shape[2]
    before = iterations - 1
    variances, kept = kept[:iterations], kept[iterations:]
    mus, logits = (*kept[:before], outputs[0]), (*kept[before : 2 * before], outputs[1])
    couplings = (uniform(votes[:, :, 0], competition, dim=1), *kept[2 * before :], outputs[2])
    temperatures = _temperatures(iterations, inverse_temperature)
    to_votes, to_activation = torch.zeros_like(votes), torch.zeros_like(activation)
    to_beta_u, to_beta_a = torch.zeros_like(beta_u), torch.zeros_like(beta_a)
    (to_mu, to_logit, to_coupling), from_next = gradients, 0
    for iteration in reversed(range(iterations)):
        variance, mu, logit, coupling = (of_all[iteration] for of_all in (variances, mus, logits, couplings))
        mass, share = _shares(coupling, activation)
        floored = variance.clamp_min(VARIANCE_FLOOR)
        precision = materialised(1 / floored)
        deviation = votes - mu[..., None]
        square = deviation.square()
        to_log_variance, last = 0, iteration == iterations - 1
        if not last:  # E-step: from the couplings of the next iteration
            after = couplings[iteration + 1]
            to_log_p = materialised(softmax_gradient(after, to_coupling, competition))  # [n, J, I]
            to_parent, to_distance = to_log_p.sum(dim=-1), -to_log_p / 2
            to_logit = to_parent * (-logit).sigmoid()
            to_log_variance = -to_parent[..., None] / 2 - (square @ to_distance[..., None]).squeeze(-1) * precision
            to_mu = -2 * (deviation @ to_distance[..., None]).squeeze(-1) * precision
        # M-step: the activation, then the variance, then the mean
        lamda = 0 if mixing else temperatures[iteration]
        to_cost = -lamda * to_logit
        to_beta_a += (lamda * to_logit).sum(dim=0)
        to_beta_u += (D * mass * to_cost).sum(dim=0)
        to_mass = to_cost * (D * beta_u + floored.log().sum(dim=-1) * _SPREAD[spread])
        if mixing:
            to_mass, to_all = _log_odds_gradient(mass, activation, to_logit)
            to_activation += to_all
        to_log_variance = to_log_variance + (_SPREAD[spread] * mass * to_cost)[..., None]
        to_variance = materialised((to_log_variance * precision).masked_fill(variance < VARIANCE_FLOOR, 0))
        # Σ_i s_ij (V_ij − μ_j): not zero where μ is smoothed, nor where a parent has no mass, whose shares are no mean
        off = (deviation @ share[..., None]).squeeze(-1) if smoothing else mu * (1 - share.sum(dim=-1, keepdim=True))
        to_mu = to_mu + from_next - 2 * to_variance * off
        to_mean, from_next = materialised((1 - smoothing) * to_mu), smoothing * to_mu
        to_share = (to_variance[:, :, None] @ square + to_mean[:, :, None] @ votes).squeeze(2)
        weight = to_variance[..., None] * share[:, :, None]
        if not last:
            weight = weight + to_distance[:, :, None] * precision[..., None]
        to_votes += 2 * deviation * weight + to_mean[..., None] * share[:, :, None]
        normed = (to_share * share).sum(dim=-1).masked_fill(mass < MASS_FLOOR, 0)
        to_r = (to_share - normed[..., None]) / mass.clamp_min(MASS_FLOOR)[..., None] + to_mass[..., None]
        to_activation += (to_r * coupling).sum(dim=1)
        to_coupling = materialised(to_r * activation[:, None] + (to_coupling if last else 0))
    return to_votes, {"activation": to_activation, "beta_u": to_beta_u, "beta_a": to_beta_a}


_SPREAD: dict[Spread, float] = {"deviation": 0.5, "variance": 1.0}
"""What the cost takes of ln σ²."""


def _shares(coupling: Tensor, activation: Tensor) -> tuple[Tensor, Tensor]:
    """The mass of every parent [n, J], and how it is made up of the children [n, J, I]."""
    r = coupling * activation[:, None]
    mass = r.sum(dim=-1)
    return mass, materialised(r / mass.clamp_min(MASS_FLOOR)[..., None])


def _finish(
    mu: Tensor, logit: Tensor, coupling: Tensor, *, bias: Tensor | None, vector: bool, length_offset: float, **_: object
) -> RoutingResult:
    return RoutingResult(*_capsules(mu, logit, bias, vector, length_offset), coupling.transpose(-1, -2))


em_routing.core = Core(_forward, _backward, _finish)


class EMRouting(Routing):
    """:func:`em_routing` with its bias and β_u, β_a, one of each per parent: ``beta`` and noise of N(0, ``beta_std``²).

    ``beta_scale`` multiplies what is learned, which sets how fast an optimiser moves it; ``inverse_temperature`` is what λ tends
    to. ``options`` are the variants of the function.
    """

    def __init__(
        self,
        parents: int,
        dim: int,
        *,
        iterations: int = 3,
        bias: float | None = None,
        beta: tuple[float, float] = (0.0, 0.0),
        beta_std: float = 0.1,
        beta_scale: tuple[float, float] = (1.0, 1.0),
        inverse_temperature: float = 0.01,
        **options: object,
    ):
        super().__init__(parents, dim, iterations=iterations, bias=bias)
        self.beta_u, self.beta_a = (nn.Parameter(start + torch.randn(parents) * beta_std) for start in beta)
        self.beta_scale, self.inverse_temperature = beta_scale, inverse_temperature
        self.options = {"spread": "deviation", "variance_offset": 0.0, "vector": False, "length_offset": 1e-8, **options}

    def get_extra_state(self) -> Tensor:
        """What :meth:`start_at_half` sets beside parameters, float64 [3], so that saved weights are the whole network."""
        return torch.tensor([*self.beta_scale, self.inverse_temperature], dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        *scale, self.inverse_temperature = state.tolist()
        self.beta_scale = tuple(scale)

    def betas(self) -> tuple[Tensor, Tensor]:
        """β_u and β_a [J], in the units of the paper."""
        return self.beta_u * self.beta_scale[0], self.beta_a * self.beta_scale[1]

    def forward(self, votes: Tensor, activation: Tensor, competition: Competition | None = None) -> RoutingResult:
        lamda = inverse_temperatures(self.iterations, self.inverse_temperature)
        return em_routing(
            votes, activation, *self.betas(), iterations=self.iterations, inverse_temperature=lamda, bias=self.bias,
            competition=competition, path=self.path, **self.options,
        )  # fmt: skip

    @torch.no_grad()
    def start_at_half(
        self, votes: Tensor, activation: Tensor, competition: Competition | None = None, deviation: float = 0.25
    ) -> None:
        """Set β and λ so that, for votes [N, I, J, D], about half of the parents are active after the last iteration.

        The cost per unit of mass then has mean zero for each parent, and λ gives the logits this ``deviation``: a quarter keeps
        activations between 0.38 and 0.62 and the logistic nearly linear. Wider ones cost the spread loss more than equal ones
        do, and a class layer that starts with them can learn to make them equal and nothing else. The authors chose their
        constants to the same end. ``beta_scale`` becomes what moves a logit by about one, so that a step of an optimiser means
        the same in every layer.
        """
        iterations, D = self.iterations, votes.shape[-1]
        self.beta_scale, self.beta_u.data[:], self.beta_a.data[:] = (1.0, 1.0), 0, 0
        for self.iterations in range(1, iterations + 1):
            r = self(votes, activation, competition).coupling * activation[..., None]
            mass = r.sum(dim=-2)
            share = r / mass.clamp_min(MASS_FLOOR)[..., None, :]
            mu = einsum(share, votes, "... i j, ... i j d -> ... j d")
            variance = einsum(share, (votes - mu[..., None, :, :]).square(), "... i j, ... i j d -> ... j d")
            variance = variance + self.options["variance_offset"]
            spread = variance.clamp_min(VARIANCE_FLOOR).log().sum(dim=-1) * _SPREAD[self.options["spread"]]  # [N, J]
            mean = spread.flatten(0, -2).mean(dim=0)
            unit = float(((spread - mean) * mass).std().clamp_min(MASS_FLOOR)) / deviation  # of cost, which is one of the logit
            self.inverse_temperature = 1 / (unit * (1 - 0.95**self.iterations))
            self.beta_scale = unit / (D * float(mass.mean().clamp_min(MASS_FLOOR))), unit
            self.beta_u.data[:] = -mean / (D * self.beta_scale[0])
        self.iterations = iterations

    def reference(self, votes: Tensor, activation: Tensor) -> RoutingResult:
        I, J, D = votes.shape
        V, (beta_u, beta_a), options = votes if self.bias is None else votes + self.bias, self.betas(), self.options
        lamda = inverse_temperatures(self.iterations, self.inverse_temperature)
        a_in, R = activation, [[votes.new_tensor(1 / J) for j in range(J)] for i in range(I)]
        for t in range(self.iterations):
            used, mu, var, a = R, [], [], []
            for j in range(J):
                r = [R[i][j] * a_in[i] for i in range(I)]
                m = sum(r)
                mu.append(sum(r[i] * V[i, j] for i in range(I)) / m)
                var.append(sum(r[i] * (V[i, j] - mu[j]) ** 2 for i in range(I)) / m + options["variance_offset"])
                width = var[j] if options["spread"] == "variance" else var[j].sqrt()
                cost = sum((beta_u[j] + width[h].log()) * m for h in range(D))
                a.append(torch.sigmoid(lamda[t] * (beta_a[j] - cost)))
            p = [[a[j] * _gauss(V[i, j], mu[j], var[j]) for j in range(J)] for i in range(I)]
            R = [[p[i][j] / sum(p[i][k] for k in range(J)) for j in range(J)] for i in range(I)]
        pose, act = torch.stack(mu), torch.stack(a)
        if options["vector"]:
            pose = act[:, None] * pose / ((pose * pose).sum(-1, keepdim=True).sqrt() + options["length_offset"])
        return RoutingResult(pose, act, torch.stack([torch.stack(row) for row in used]))


def _gauss(v: Tensor, mu: Tensor, var: Tensor) -> Tensor:
    """Density of a normal distribution with a diagonal covariance: v, mu, var [D]."""
    return torch.exp(-((v - mu) ** 2 / (2 * var)).sum()) / torch.sqrt((2 * math.pi * var).prod())
