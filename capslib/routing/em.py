"""EM routing: Hinton, Sabour & Frosst (2018), with the variants of Peer et al. (2021)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from einops import einsum, rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from capslib.routing.base import RoutingResult
from capslib.routing.competition import Competition, softmax, uniform
from capslib.routing.fast import LazyVotes, float32_products, routing_function
from capslib.routing.module import Routing, end_wait

__all__ = [
    "INVERSE_TEMPERATURE",
    "MASS_FLOOR",
    "VARIANCE_FLOOR",
    "EMRouting",
    "Spread",
    "VectorEMRouting",
    "em_routing",
    "finish",
    "inverse_temperatures",
    "log_odds",
    "schedule",
]

VARIANCE_FLOOR = 1e-12
"""A floor that keeps the logarithm finite where all votes are equal."""
MASS_FLOOR = 1e-8
"""A floor for divisors: masses, lengths and deviations."""
INVERSE_TEMPERATURE = 0.01
"""The paper's λ after many iterations."""
Spread = Literal["deviation", "variance"]
"""The cost takes the logarithm of σ ("deviation", the paper), or of σ² (Peer et al. 2021)."""


def inverse_temperatures(
    iterations: int, final: float = INVERSE_TEMPERATURE
) -> tuple[float, ...]:
    """Return λ of the iterations t = 0, 1, …: final·(1 − 0.95^(t+1)), as in the released code.

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
    A larger ``beta_u`` [J] makes every vote dearer, and a larger ``beta_a`` [J] a parent more
    active. ``inverse_temperature`` has one λ for each iteration, by default those of
    :func:`inverse_temperatures`. Returns a :class:`RoutingResult`.

    Variants. ``bias`` [J, D] is added to the votes (Peer et al. 2021, §4.2). With
    ``spread="variance"`` the cost has ln σ² in the place of ln σ. ``variance_offset`` is added
    to every variance. With ``vector=True`` poses are a_j·μ_j/(‖μ_j‖ + ``length_offset``).
    ``smoothing`` is the share that a mean keeps of the mean before it; the first such mean is
    zero. With ``mixing`` the activation of a parent is its share m_j/Σ_i a_i of the children,
    without β and λ (Hinton et al. 2018, §5). ``competition`` lets parents at other positions
    compete for the same children. Raises ValueError for less than one iteration, if there are
    not as many temperatures, and for shapes that do not fit together.

    >>> votes, activation = torch.randn(8, 100, 10, 16), torch.rand(8, 100)
    >>> em_routing(votes, activation, torch.zeros(10), torch.zeros(10)).pose.shape
    torch.Size([8, 10, 16])
    """
    D = votes.shape[-1]
    coupling = uniform(votes[..., 0], competition)  # [..., I, J]  c_ij
    mu = torch.zeros_like(votes[..., 0, :, :])  # [..., J, D]
    # The bias moves means and changes no variance, so only `finish` adds it. With `smoothing`
    # the mean before the first is zero, bias included; without the bias that is −bias.
    if bias is not None:
        mu = mu - bias
    for iteration, lamda in enumerate(schedule(iterations, inverse_temperature)):
        # M-step
        r = coupling * activation[..., None]  # [..., I, J]  c_ij a_i
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
        logit = log_odds(mass, activation) if mixing else lamda * (beta_a - cost)  # [..., J]
        # E-step, not needed after the last M-step
        if iteration < iterations - 1:
            precision = (-log_variance).exp()  # [..., J, D]  1/σ²
            distance = einsum(deviation.square(), precision, "... i j d, ... j d -> ... i j")
            log_norm = log_variance.sum(dim=-1) + D * math.log(2 * math.pi)  # [..., J]
            log_p = -0.5 * (distance + log_norm[..., None, :])  # [..., I, J]
            coupling = softmax(F.logsigmoid(logit)[..., None, :] + log_p, competition)
    return finish(mu, logit, coupling, bias=bias, vector=vector, length_offset=length_offset)


def schedule(iterations: int, inverse_temperature: Sequence[float] | None) -> Sequence[float]:
    """Return λ of each iteration; ValueError unless there are as many λ as iterations."""
    if inverse_temperature is None:
        return inverse_temperatures(iterations)
    if len(inverse_temperature) != iterations:
        raise ValueError(
            f"{iterations} iterations need as many λ in inverse_temperature, "
            f"which has {len(inverse_temperature)}"
        )
    return inverse_temperature


def log_odds(mass: Tensor, activation: Tensor) -> Tensor:
    """Return ln(π/(1 − π)) [..., J] of the mixing proportions π_j = m_j/Σ_i a_i."""
    remainder = activation.sum(dim=-1, keepdim=True) - mass
    return mass.clamp_min(MASS_FLOOR).log() - remainder.clamp_min(MASS_FLOOR).log()


def finish(
    mu: Tensor,
    logit: Tensor,
    coupling: Tensor,
    *,
    bias: Tensor | None,
    vector: bool,
    length_offset: float,
    **_: object,
) -> RoutingResult:
    """Return the result of the last M-step: with the bias, and vector poses of length a_j."""
    a = logit.sigmoid()  # [..., J]  a_j
    pose = mu if bias is None else mu + bias
    if vector:
        length = torch.linalg.vector_norm(pose, dim=-1, keepdim=True)  # [..., J, 1]
        pose = a[..., None] * pose / (length + length_offset).clamp_min(MASS_FLOOR)
    return RoutingResult(pose, a, coupling)


class EMRouting(Routing):
    """:func:`em_routing` with its bias, and with β_u and β_a [J], which it learns.

    Their initial values are ``beta``, by default 0 and 0, plus normal noise of standard
    deviation ``beta_std``. Both are multiplied by ``beta_scale``, by default 1 and 1, which
    sets how fast an optimiser moves them. ``inverse_temperature``, a number, is the limit of λ
    after many iterations, by default the paper's 0.01; :func:`inverse_temperatures` has the
    schedule.

    With the paper's λ the activations of a new network hardly differ, and it learns slowly.
    Therefore :func:`capslib.routing.start_on_first_batch` sets β, their scales and λ from a
    batch (:meth:`start_at_half`), unless one of them is given. Scales and λ are plain numbers:
    half precision does not round them.
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
        beta: tuple[float, float] | None = None,
        beta_std: float = 0.1,
        beta_scale: tuple[float, float] | None = None,
        inverse_temperature: float | None = None,
        spread: Spread = "deviation",
        variance_offset: float = 0.0,
        smoothing: float = 0.0,
        mixing: bool = False,
        vector: bool = False,
        length_offset: float = 1e-8,
    ):
        super().__init__(parents, dim, iterations=iterations, bias=bias)
        given = (beta, beta_scale, inverse_temperature)
        self.has_constants = any(constant is not None for constant in given)
        first_u, first_a = beta or (0.0, 0.0)
        self.beta_u = nn.Parameter(first_u + torch.randn(parents) * beta_std)
        self.beta_a = nn.Parameter(first_a + torch.randn(parents) * beta_std)
        self.beta_scale = beta_scale or (1.0, 1.0)
        self.beta_u_offset = 0.0
        if inverse_temperature is None:
            inverse_temperature = INVERSE_TEMPERATURE
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
        """Return both scales, the offset and λ for saved weights, float64 [4]."""
        numbers = [*self.beta_scale, self.beta_u_offset, self.inverse_temperature]
        return torch.tensor(numbers, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Set both scales, the offset and λ from saved weights."""
        scale_u, scale_a, self.beta_u_offset, self.inverse_temperature = state.tolist()
        self.beta_scale = (scale_u, scale_a)

    def betas(self) -> tuple[Tensor, Tensor]:
        """Return β_u and β_a [J] in the units of the paper, in at least float32."""
        wide = torch.promote_types(self.beta_u.dtype, torch.float32)
        scale_u, scale_a = self.beta_scale
        beta_u = self.beta_u.to(wide) * scale_u + self.beta_u_offset
        beta_a = self.beta_a.to(wide) * scale_a
        return beta_u, beta_a

    def forward(
        self,
        votes: Tensor | LazyVotes,
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
        """Set β and λ so that parents are about half active for votes [N, I, J, D].

        Then the cost per unit of mass has mean zero for each parent, and the logits of the last
        iteration have a standard deviation of 0.25: with more, a class layer can learn to make
        all activations equal and nothing else. ``beta_scale`` becomes the change of β that
        moves a logit by about one, so that a step of an optimiser means the same in every
        layer.
        """
        D = votes.shape[-1]
        votes = rearrange(votes, "n i j d -> n j d i").contiguous()
        beta_u = torch.zeros_like(self.beta_u)
        lamda = self.inverse_temperature
        # Couplings follow from β and λ of the iteration before. So first set them for one
        # iteration, then with these for two, and so on.
        for iterations in range(1, self.iterations + 1):
            with float32_products(votes.device):
                (mu, _, coupling), _ = em_routing.core.forward(
                    votes,
                    activation=activation,
                    beta_u=beta_u,
                    beta_a=0 * beta_u,
                    bias=self.bias,
                    competition=competition,
                    **self.options,
                    iterations=iterations,
                    inverse_temperature=inverse_temperatures(iterations, lamda),
                )
                r = coupling * activation[:, None]  # [N, J, I]
                mass = r.sum(dim=-1)  # [N, J]
                share = r / mass.clamp_min(MASS_FLOOR)[..., None]
                square = (votes - mu[..., None]).square()  # [N, J, D, I]
                variance = (square @ share[..., None]).squeeze(-1)  # [N, J, D]
            variance = variance + self.options["variance_offset"]
            log_spread = variance.clamp_min(VARIANCE_FLOOR).log().sum(dim=-1)  # [N, J]
            if self.options["spread"] == "deviation":
                log_spread = log_spread / 2
            mean = log_spread.mean(dim=0)  # [J]
            deviation = ((log_spread - mean) * mass).std().clamp_min(MASS_FLOOR)  # of the cost
            cost_of_a_logit = float(deviation) / 0.25  # the cost that moves a logit by one
            lamda = 1 / (cost_of_a_logit * (1 - 0.95**iterations))
            beta_u = -mean / D
        self.inverse_temperature = lamda
        self.beta_u_offset = float(beta_u.mean())
        mean_mass = float(mass.mean().clamp_min(MASS_FLOOR))
        self.beta_scale = cost_of_a_logit / (D * mean_mass), cost_of_a_logit
        self.beta_u.copy_((beta_u - self.beta_u_offset) / self.beta_scale[0])
        self.beta_a.zero_()
        end_wait(self)

    def start_from(
        self, votes: Tensor, activation: Tensor, competition: Competition | None = None
    ) -> None:
        """Call :meth:`start_at_half`, unless ``beta``, ``beta_scale`` or λ were given."""
        if not self.has_constants:
            self.start_at_half(votes, activation, competition)


class VectorEMRouting(EMRouting):
    """EM routing between vector capsules, with the constants of Peer et al.'s (2021) code."""

    def __init__(self, parents: int, dim: int, **options: object):
        released = {"spread": "variance", "variance_offset": 1e-4, "vector": True}
        super().__init__(parents, dim, **{**released, **options})
