"""EM routing: Hinton, Sabour & Frosst (2018), with the variants of Peer et al. (2021)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from einops import einsum, rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from capslib.routing.base import RoutingResult, materialised
from capslib.routing.competition import (
    Competition,
    needs_logits,
    softmax,
    softmax_gradient,
    uniform,
)
from capslib.routing.fast import Core, Tensors, float32_products, routing_function
from capslib.routing.module import Routing

__all__ = [
    "MASS_FLOOR",
    "VARIANCE_FLOOR",
    "EMRouting",
    "Spread",
    "VectorEMRouting",
    "em_routing",
    "inverse_temperatures",
]

VARIANCE_FLOOR = 1e-12  # keeps the logarithm finite where all votes are equal
MASS_FLOOR = 1e-8  # keeps the division finite for a parent that no active child is assigned to
Spread = Literal["deviation", "variance"]
_SPREAD: dict[Spread, float] = {"deviation": 0.5, "variance": 1.0}  # of ln σ² in the cost


def inverse_temperatures(iterations: int, final: float = 0.01) -> tuple[float, ...]:
    """λ of each iteration: final·(1 − 0.95^(t+1)), the schedule of the released code.

    >>> [round(t, 6) for t in inverse_temperatures(3)]
    [0.0005, 0.000975, 0.001426]
    """
    return tuple(final * (1 - 0.95 ** (t + 1)) for t in range(iterations))


@routing_function
def em_routing(
    votes: Annotated[Tensor, "... I J D"],
    activation: Annotated[Tensor, "... I"],
    beta_u: Annotated[Tensor, "J"],
    beta_a: Annotated[Tensor, "J"],
    *,
    iterations: int = 3,
    inverse_temperature: Sequence[float] | None = None,
    bias: Annotated[Tensor | None, "J D"] = None,
    spread: Spread = "deviation",
    variance_offset: float = 0.0,
    vector: bool = False,
    length_offset: float = 1e-8,
    smoothing: float = 0.0,
    mixing: bool = False,
    competition: Competition | None = None,
) -> RoutingResult:
    """Route votes [..., I, J, D] of children with activations [..., I] to J parents.

    This is Procedure 1 of Hinton et al. 2018, with the E-step as a softmax of log-densities.
    ``beta_u`` and ``beta_a`` [J] are the costs of the parents, ``inverse_temperature`` is λ of
    each iteration (default: :func:`inverse_temperatures`).

    Variants. ``bias`` [J, D] is added to the votes (Peer et al. 2021, §4.2). With
    ``spread="variance"`` the cost has ln σ² in the place of ln σ. ``variance_offset`` is added
    to every variance. With ``vector=True`` poses are a_j·μ_j/(‖μ_j‖ + ``length_offset``).
    ``smoothing`` is the share that a mean keeps of the mean before it, which at first is zero.
    With ``mixing`` a parent is as active as its share m_j/Σ_i a_i of the children, without β
    and λ (§5). ``competition`` lets parents at other positions compete for the same children.
    Raises ValueError for less than one iteration, if there are not as many temperatures, and for
    shapes that do not fit together.

    >>> votes, activation = torch.randn(8, 100, 10, 16), torch.rand(8, 100)
    >>> em_routing(votes, activation, torch.zeros(10), torch.zeros(10)).pose.shape
    torch.Size([8, 10, 16])
    """
    inverse_temperature = _temperatures(iterations, inverse_temperature)
    D = votes.shape[-1]
    coupling = uniform(votes[..., 0], competition)  # [..., I, J]  R_ij
    # Means are those of the votes without the bias, which shifts them all: zero is at −bias.
    mu = torch.zeros_like(votes[..., 0, :, :]) - (0 if bias is None else bias)  # [..., J, D]
    for iteration, lamda in enumerate(inverse_temperature):
        # M-step
        r = coupling * activation[..., None]  # [..., I, J]  R_ij a_i
        mass = r.sum(dim=-2)  # [..., J]  m_j
        share = r / mass.clamp_min(MASS_FLOOR)[..., None, :]  # [..., I, J]
        mean = einsum(share, votes, "... i j, ... i j d -> ... j d")
        mu = (1 - smoothing) * mean + smoothing * mu  # [..., J, D]
        deviation = votes - mu[..., None, :, :]  # [..., I, J, D]
        variance = einsum(share, deviation.square(), "... i j, ... i j d -> ... j d")
        variance = variance + variance_offset  # [..., J, D]  σ²
        log_variance = variance.clamp_min(VARIANCE_FLOOR).log()
        log_spread = log_variance if spread == "variance" else log_variance / 2  # ln σ
        cost = (D * beta_u + log_spread.sum(dim=-1)) * mass  # [..., J]  Σ_h cost_j^h
        logit = _log_odds(mass, activation) if mixing else lamda * (beta_a - cost)  # [..., J]
        # E-step, not needed after the last M-step
        if iteration < iterations - 1:
            precision = (-log_variance).exp()  # [..., J, D]  1/σ²
            distance = einsum(deviation.square(), precision, "... i j d, ... j d -> ... i j")
            log_norm = log_variance.sum(dim=-1) + D * math.log(2 * math.pi)  # [..., J]
            log_p = -0.5 * (distance + log_norm[..., None, :])  # [..., I, J]
            coupling = softmax(F.logsigmoid(logit)[..., None, :] + log_p, competition)
    return _finish(mu, logit, coupling, bias=bias, vector=vector, length_offset=length_offset)


def _temperatures(iterations: int, given: Sequence[float] | None) -> Sequence[float]:
    if given is not None and len(given) != iterations:
        raise ValueError(f"{iterations} iterations need as many λ, not {len(given)}")
    return inverse_temperatures(iterations) if given is None else given


def _log_odds(mass: Tensor, activation: Tensor) -> Tensor:
    """ln(π/(1 − π)) [..., J] of the mixing proportions π_j = m_j/Σ_i a_i."""
    rest = activation.sum(dim=-1, keepdim=True) - mass
    return mass.clamp_min(MASS_FLOOR).log() - rest.clamp_min(MASS_FLOOR).log()


def _log_odds_gradient(mass: Tensor, activation: Tensor, to_logit: Tensor) -> Tensors:
    """The gradients of mass [..., J] and of every activation [..., 1], from that of logits."""
    rest = activation.sum(dim=-1, keepdim=True) - mass
    of_mass = (to_logit / mass.clamp_min(MASS_FLOOR)).masked_fill(mass < MASS_FLOOR, 0)
    of_rest = (to_logit / rest.clamp_min(MASS_FLOOR)).masked_fill(rest < MASS_FLOOR, 0)
    return of_mass + of_rest, -of_rest.sum(dim=-1, keepdim=True)


def _finish(
    mu: Tensor,
    logit: Tensor,
    coupling: Tensor,
    *,
    bias: Tensor | None,
    vector: bool,
    length_offset: float,
    **_: object,
) -> RoutingResult:
    """Poses [..., J, D] and activations [..., J]; vector capsules are as long as active."""
    a = logit.sigmoid()  # [..., J]  a_j
    pose = mu if bias is None else mu + bias
    if vector:
        length = torch.linalg.vector_norm(pose, dim=-1, keepdim=True)  # [..., J, 1]
        pose = a[..., None] * pose / (length + length_offset).clamp_min(MASS_FLOOR)
    return RoutingResult(pose, a, coupling)


def _forward(
    votes: Tensor,
    *,
    activation: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    bias: Tensor | None,
    iterations: int,
    inverse_temperature: Sequence[float] | None,
    spread: Spread,
    variance_offset: float,
    smoothing: float,
    mixing: bool,
    competition: Competition | None,
    **_: object,
) -> tuple[Tensors, Tensors]:
    """The loop on a chunk, to means, logits and couplings. Keeps every step's σ², μ, logit."""
    D, kept, couplings, densities = votes.shape[2], [], [], []
    coupling = uniform(votes[:, :, 0], competition, dim=1)
    mu = torch.zeros_like(votes[..., 0]) - (0 if bias is None else bias)
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
        kept += variance, mu, logit
        couplings.append(coupling)
        if iteration < iterations - 1:
            distance = (materialised(1 / floored)[:, :, None] @ square).squeeze(2)  # [n, J, I]
            log_p = materialised(F.logsigmoid(logit) - log_variance / 2)  # constants cancel
            density = log_p[..., None] - distance / 2  # [n, J, I]
            coupling = softmax(density, competition, dim=1)
            if needs_logits(competition):
                densities.append(density)
    # the others are outputs, or uniform
    return (mu, logit, coupling), (*kept[:-2], *couplings[1:-1], *densities)


def _backward(
    votes: Tensor,
    outputs: Tensors,
    kept: Tensors,
    gradients: Tensors,
    *,
    activation: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    bias: Tensor | None,
    iterations: int,
    inverse_temperature: Sequence[float] | None,
    spread: Spread,
    variance_offset: float,
    smoothing: float,
    mixing: bool,
    competition: Competition | None,
    **_: object,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loop from its end to its start."""
    D, temperatures = votes.shape[2], _temperatures(iterations, inverse_temperature)
    steps, kept = (*kept[: 3 * iterations - 2], *outputs[:2]), kept[3 * iterations - 2 :]
    inner = max(0, iterations - 2)  # couplings that are neither uniform nor an output
    densities = kept[inner:] or (None,) * iterations
    couplings = uniform(votes[:, :, 0], competition, dim=1), *kept[:inner], outputs[2]
    to_votes, to_activation = torch.zeros_like(votes), torch.zeros_like(activation)
    to_beta_u, to_beta_a = torch.zeros_like(beta_u), torch.zeros_like(beta_a)
    (to_mu, to_logit, to_coupling), from_next = gradients, 0
    for iteration in reversed(range(iterations)):
        last, coupling = iteration == iterations - 1, couplings[iteration]
        variance, mu, logit = steps[3 * iteration : 3 * iteration + 3]
        mass, share = _shares(coupling, activation)
        floored, to_log_variance = variance.clamp_min(VARIANCE_FLOOR), 0
        precision = materialised(1 / floored)
        deviation = votes - mu[..., None]  # anew: a difference of sums loses digits
        square = deviation.square()
        if not last:  # E-step: from the couplings of the next iteration
            to_log_p = softmax_gradient(
                couplings[iteration + 1], to_coupling, competition, densities[iteration]
            )
            to_log_p = materialised(to_log_p)  # [n, J, I]
            to_parent, to_distance = to_log_p.sum(dim=-1), -to_log_p / 2
            to_logit = to_parent * (-logit).sigmoid()
            of_square = (square @ to_distance[..., None]).squeeze(-1)
            to_log_variance = -to_parent[..., None] / 2 - of_square * precision
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
        to_variance = (to_log_variance * precision).masked_fill(variance < VARIANCE_FLOOR, 0)
        to_variance = materialised(to_variance)
        # Σ_i s_ij (V_ij − μ_j) is not zero if μ is smoothed, nor without mass: no mean then
        off = mu * (1 - share.sum(dim=-1, keepdim=True))
        if smoothing:
            off = (deviation @ share[..., None]).squeeze(-1)
        to_mu = to_mu + from_next - 2 * to_variance * off
        to_mean, from_next = materialised((1 - smoothing) * to_mu), smoothing * to_mu
        to_share = (to_variance[:, :, None] @ square + to_mean[:, :, None] @ votes).squeeze(2)
        weight = to_variance[..., None] * share[:, :, None]
        if not last:
            weight = weight + to_distance[:, :, None] * precision[..., None]
        to_votes += 2 * deviation * weight + to_mean[..., None] * share[:, :, None]
        normed = (to_share * share).sum(dim=-1).masked_fill(mass < MASS_FLOOR, 0)
        to_r = (to_share - normed[..., None]) / mass.clamp_min(MASS_FLOOR)[..., None]
        to_r = to_r + to_mass[..., None]
        to_activation += (to_r * coupling).sum(dim=1)
        to_coupling = materialised(to_r * activation[:, None] + (to_coupling if last else 0))
    others = dict(activation=to_activation, beta_u=to_beta_u, beta_a=to_beta_a)
    if bias is not None and smoothing:  # the means start at −bias
        others["bias"] = -from_next.sum(dim=0)
    return to_votes, others


def _shares(coupling: Tensor, activation: Tensor) -> tuple[Tensor, Tensor]:
    """The mass of every parent [n, J], and each child's share of it [n, J, I]."""
    r = coupling * activation[:, None]
    mass = r.sum(dim=-1)
    return mass, materialised(r / mass.clamp_min(MASS_FLOOR)[..., None])


em_routing.core = Core(_forward, _backward, _finish)


class EMRouting(Routing):
    """:func:`em_routing` with its bias and with β_u and β_a [J], which it learns.

    They start from ``beta`` and noise of N(0, ``beta_std``²). ``beta_scale`` multiplies them,
    which sets how fast an optimiser moves them. ``beta_u_offset`` is then added to β_u.
    ``inverse_temperature`` is the limit of λ. Offset, scales and λ are plain numbers that
    :meth:`start_at_half` sets. A cast of the module to half precision leaves them as they are.
    """

    function = em_routing
    activation_weighs_votes = True

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
        spread: Spread = "deviation",
        variance_offset: float = 0.0,
        smoothing: float = 0.0,
        mixing: bool = False,
        vector: bool = False,
        length_offset: float = 1e-8,
    ):
        super().__init__(parents, dim, iterations=iterations, bias=bias)
        self.beta_u = nn.Parameter(beta[0] + torch.randn(parents) * beta_std)
        self.beta_a = nn.Parameter(beta[1] + torch.randn(parents) * beta_std)
        self.beta_scale, self.beta_u_offset = beta_scale, 0.0
        self.inverse_temperature = inverse_temperature
        self.options: dict[str, Any] = {
            "spread": spread,
            "variance_offset": variance_offset,
            "smoothing": smoothing,
            "mixing": mixing,
            "vector": vector,
            "length_offset": length_offset,
        }

    def get_extra_state(self) -> Tensor:
        """Return the scales of β_u and β_a, the offset of β_u and λ, float64 [4], for saved weights."""
        numbers = [*self.beta_scale, self.beta_u_offset, self.inverse_temperature]
        return torch.tensor(numbers, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        scale_u, scale_a, *offset, self.inverse_temperature = state.tolist()
        self.beta_scale = (scale_u, scale_a)
        self.beta_u_offset = offset[0] if offset else 0.0  # older weights have none

    def betas(self) -> tuple[Tensor, Tensor]:
        """Return β_u and β_a [J] in the units of the paper, in at least float32."""
        wide = torch.promote_types(self.beta_u.dtype, torch.float32)
        scale_u, scale_a = self.beta_scale
        beta_u = self.beta_u.to(wide) * scale_u + self.beta_u_offset
        return beta_u, self.beta_a.to(wide) * scale_a

    def forward(
        self,
        votes: Tensor,
        activation: Tensor,
        competition: Competition | None = None,
        *,
        iterations: int | None = None,
    ) -> RoutingResult:
        iterations = self.iterations if iterations is None else iterations
        lamda = inverse_temperatures(iterations, self.inverse_temperature)
        return em_routing(
            votes,
            activation,
            *self.betas(),
            iterations=iterations,
            inverse_temperature=lamda,
            bias=self.bias,
            competition=competition,
            path=self.path,
            **self.options,
        )

    @torch.no_grad()
    def start_at_half(
        self, votes: Tensor, activation: Tensor, competition: Competition | None = None
    ) -> None:
        """Set β and λ so that about half of the parents are active for votes [N, I, J, D].

        Then the cost per unit of mass has mean zero for each parent, and the logits of the last
        iteration have a standard deviation of 0.25: with more, a class layer can learn to make
        all activations equal and nothing else. ``beta_scale`` becomes what moves a logit by
        about one, so that a step of an optimiser means the same in every layer.
        """
        D = votes.shape[-1]
        votes = rearrange(votes, "n i j d -> n j d i").contiguous()
        beta_u, final = torch.zeros_like(self.beta_u), self.inverse_temperature
        for t in range(1, self.iterations + 1):
            with float32_products(votes.device):
                (_, _, coupling), kept = _forward(
                    votes,
                    activation=activation,
                    beta_u=beta_u,
                    beta_a=0 * beta_u,
                    bias=self.bias,
                    competition=competition,
                    **self.options,
                    iterations=t,
                    inverse_temperature=inverse_temperatures(t, final),
                )
            mass, _ = _shares(coupling, activation)  # [N, J]
            log_variance = kept[3 * t - 3].clamp_min(VARIANCE_FLOOR).log().sum(dim=-1)
            spread = log_variance * _SPREAD[self.options["spread"]]  # [N, J]
            mean = spread.mean(dim=0)
            deviations = ((spread - mean) * mass).std().clamp_min(MASS_FLOOR)  # of the cost
            unit = float(deviations) / 0.25  # of cost, which makes one of the logit
            final, beta_u = 1 / (unit * (1 - 0.95**t)), -mean / D
        self.inverse_temperature = final
        self.beta_u_offset = float(beta_u.mean())
        self.beta_scale = unit / (D * float(mass.mean().clamp_min(MASS_FLOOR))), unit
        self.beta_u.copy_((beta_u - self.beta_u_offset) / self.beta_scale[0])
        self.beta_a.zero_()


class VectorEMRouting(EMRouting):
    """EM routing between vector capsules, with the constants of Peer et al.'s (2021) code."""

    def __init__(self, parents: int, dim: int, **options: object):
        released = {"spread": "variance", "variance_offset": 1e-4, "vector": True}
        super().__init__(parents, dim, **{**released, **options})
