"""The core of EM routing as Triton kernels, for a GPU.

No record has been computed by them, and no GPU has run them yet: the first run on one decides.
They stay only if a training step is at least 1.5 × as fast as with the compiled core. Dynamic
routing, which does less with each vote, has none of its own.

One program computes one parent j of one example n in one iteration. It passes over the children,
a tile at a time. PyTorch does what couples the parents of a child and what has neither children
nor dimensions. ``forward`` and ``backward`` are those of a :class:`capslib.routing.fast.Core`, but
take votes [N, I, J, D], and ``backward`` writes their gradient into ``to_votes``. Importing this
file needs Triton; without a GPU, TRITON_INTERPRET=1 runs it in NumPy.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from capslib.routing import em
from capslib.routing.base import Path
from capslib.routing.competition import Competition, softmax, softmax_gradient, uniform
from capslib.routing.fast import Tensors

TILE = 4096  # numbers in a tile of votes: as many as the registers of one program hold
MASS_FLOOR, VARIANCE_FLOOR = tl.constexpr(em.MASS_FLOOR), tl.constexpr(em.VARIANCE_FLOOR)


def _launch(kernel: Any, votes: Tensor, *tensors: Tensor, **options: Any) -> None:
    """Run a kernel for every parent of every example, on tiles of powers of two: B children, E ≥ D."""
    N, I, J, D = votes.shape
    E = triton.next_power_of_2(D)
    B = min(triton.next_power_of_2(I), max(1, TILE // E))
    with torch.cuda.device_of(votes):
        kernel[(N, J)](*(t.contiguous() for t in (votes, *tensors)), **options, I=I, J=J, D=D, B=B, E=E)


@triton.jit
def _tile(all_votes, n, j, start, I: tl.constexpr, J: tl.constexpr, D: tl.constexpr, B: tl.constexpr, E: tl.constexpr):
    """A tile: children [B] and which exist; places [B, E] in a tensor [N, I, J, D] and which exist; votes [B, E], else zero."""
    child, dim = start + tl.arange(0, B), tl.arange(0, E)
    there = child < I
    inside = there[:, None] & (dim < D)[None, :]
    place = ((n * I + child[:, None]) * J + j) * D + dim[None, :]
    return child, there, place, inside, tl.load(all_votes + place, mask=inside, other=0.0)


@triton.jit
def _forward_kernel(all_votes, coupling, activation, beta_u, beta_a, mass, mu, variance, logit, log_density,
    lamda, spread, offset, last: tl.constexpr,
    I: tl.constexpr, J: tl.constexpr, D: tl.constexpr, B: tl.constexpr, E: tl.constexpr):  # fmt: skip
    n, j, dim = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, E)
    parent = n * J + j
    m, mean, var = 0.0, tl.zeros([E], tl.float32), tl.zeros([E], tl.float32)
    for start in range(0, I, B):
        child, there, _, _, votes = _tile(all_votes, n, j, start, I, J, D, B, E)
        r = tl.load(coupling + parent * I + child, there, 0.0) * tl.load(activation + n * I + child, there, 0.0)
        m += tl.sum(r)
        mean += tl.sum(r[:, None] * votes, axis=0)
    mean /= tl.maximum(m, MASS_FLOOR)
    for start in range(0, I, B):
        child, there, _, _, votes = _tile(all_votes, n, j, start, I, J, D, B, E)
        r = tl.load(coupling + parent * I + child, there, 0.0) * tl.load(activation + n * I + child, there, 0.0)
        deviation = votes - mean[None, :]
        var += tl.sum(r[:, None] * (deviation * deviation), axis=0)
    var = var / tl.maximum(m, MASS_FLOOR) + offset
    floored = tl.where(dim < D, tl.maximum(var, VARIANCE_FLOOR), 1.0)
    log_variance = tl.sum(tl.log(floored))
    cost = (D * tl.load(beta_u + j) + log_variance * spread) * m
    tl.store(mass + parent, m)
    tl.store(mu + parent * D + dim, mean, dim < D)
    tl.store(variance + parent * D + dim, var, dim < D)
    tl.store(logit + parent, lamda * (tl.load(beta_a + j) - cost))
    if not last:
        for start in range(0, I, B):
            child, there, _, _, votes = _tile(all_votes, n, j, start, I, J, D, B, E)
            deviation = votes - mean[None, :]
            distance = tl.sum(deviation * deviation / floored[None, :], axis=1)
            tl.store(log_density + parent * I + child, -(log_variance + distance) / 2, there)


@triton.jit
def _backward_kernel(all_votes, coupling, activation, beta_u, mass, mu, variance, to_mu, to_logit, to_log_p, to_r, to_votes,
    lamda, spread, offset, last: tl.constexpr,
    I: tl.constexpr, J: tl.constexpr, D: tl.constexpr, B: tl.constexpr, E: tl.constexpr):  # fmt: skip
    n, j, dim = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, E)
    parent = n * J + j
    m = tl.load(mass + parent)
    mean = tl.load(mu + parent * D + dim, dim < D, 0.0)
    var = tl.load(variance + parent * D + dim, dim < D, 1.0)
    floored, has_mass = tl.maximum(var, VARIANCE_FLOOR), m >= MASS_FLOOR
    to_cost = -lamda * tl.load(to_logit + parent)
    to_mass = to_cost * (D * tl.load(beta_u + j) + tl.sum(tl.log(floored)) * spread)
    to_mean = tl.zeros([E], tl.float32)
    to_log_variance = to_mean + spread * m * to_cost
    if last:
        to_mean = tl.load(to_mu + parent * D + dim, dim < D, 0.0)
    else:  # E-step
        for start in range(0, I, B):
            child, there, _, _, votes = _tile(all_votes, n, j, start, I, J, D, B, E)
            deviation = votes - mean[None, :]
            g = tl.load(to_log_p + parent * I + child, there, 0.0)[:, None]
            to_mean += tl.sum(g * deviation, axis=0) / floored
            to_log_variance += tl.sum(g * (deviation * deviation / floored[None, :] - 1), axis=0) / 2
    to_variance = tl.where((var >= VARIANCE_FLOOR) & (dim < D), to_log_variance / floored, 0.0)
    to_mean -= tl.where(has_mass, 0.0, 2 * to_variance * mean * (1 - m / MASS_FLOOR))  # without mass the mean is not a mean
    # The gradient of the shares has its mean under the shares subtracted. So mu is subtracted from votes, variance from squares.
    mean_vote, mean_square = tl.where(has_mass, mean, 0.0), tl.where(has_mass, var - offset, 0.0)
    floored_mass = tl.maximum(m, MASS_FLOOR)
    for start in range(0, I, B):
        child, there, place, inside, votes = _tile(all_votes, n, j, start, I, J, D, B, E)
        r = tl.load(coupling + parent * I + child, there, 0.0) * tl.load(activation + n * I + child, there, 0.0)
        deviation, share = votes - mean[None, :], (r / floored_mass)[:, None]
        square = deviation * deviation
        to_share = to_variance[None, :] * (square - mean_square[None, :]) + to_mean[None, :] * (votes - mean_vote[None, :])
        tl.store(to_r + parent * I + child, tl.sum(to_share, axis=1) / floored_mass + to_mass, there)
        to_vote = to_mean[None, :] * share + 2 * deviation * to_variance[None, :] * share
        if not last:
            g = tl.load(to_log_p + parent * I + child, there, 0.0)[:, None]
            to_vote += tl.load(to_votes + place, inside, 0.0) - deviation * g / floored[None, :]
        tl.store(to_votes + place, to_vote, inside)


def forward(votes: Tensor, *, activation: Tensor, beta_u: Tensor, beta_a: Tensor, **options: Any) -> tuple[Tensors, Tensors]:
    N, I, J, D = votes.shape
    competition: Competition | None = options["competition"]
    coupling = uniform(votes.new_empty(N, J, I), competition, dim=1)
    steps, couplings = [], []
    for last, numbers in _numbers(**options):
        (mass, logit), (mu, variance) = votes.new_empty(2, N, J), votes.new_empty(2, N, J, D)
        log_density = torch.empty_like(coupling)
        tensors = (coupling, activation, beta_u, beta_a, mass, mu, variance, logit, log_density)
        _launch(_forward_kernel, votes, *tensors, last=last, **numbers)
        steps.append((mass, variance, mu, logit))
        couplings.append(coupling)
        if not last:
            coupling = softmax(F.logsigmoid(logit)[..., None] + log_density, competition, dim=1)
    return (mu, logit, coupling), (*(t for step in steps for t in step), *couplings[1:-1])


def backward(
    votes: Tensor, to_votes: Tensor, outputs: Tensors, kept: Tensors, gradients: Tensors, **arguments: Any
) -> dict[str, Tensor]:
    names = "activation", "beta_u", "beta_a", "iterations", "competition"
    activation, beta_u, beta_a, iterations, competition = (arguments[name] for name in names)
    (to_mu, to_logit, to_coupling), D = gradients, votes.shape[-1]
    couplings = (uniform(outputs[2], competition, dim=1), *kept[4 * iterations :], outputs[2])
    to_activation, to_beta_u, to_beta_a = torch.zeros_like(activation), torch.zeros_like(beta_u), torch.zeros_like(beta_a)
    to_log_p = to_r = torch.empty_like(outputs[2])
    for iteration, (last, numbers) in reversed(list(enumerate(_numbers(**arguments)))):
        (mass, variance, mu, logit), coupling = kept[4 * iteration : 4 * iteration + 4], couplings[iteration]
        if not last:
            after = couplings[iteration + 1]
            to_log_p = softmax_gradient(after, to_coupling, competition)
            to_logit = to_log_p.sum(dim=-1) * (-logit).sigmoid()
        to_r = torch.empty_like(coupling)
        tensors = (coupling, activation, beta_u, mass, mu, variance, to_mu, to_logit, to_log_p, to_r, to_votes)
        _launch(_backward_kernel, votes, *tensors, last=last, **numbers)
        to_beta_a += (numbers["lamda"] * to_logit).sum(dim=0)
        to_beta_u -= (numbers["lamda"] * D * mass * to_logit).sum(dim=0)
        to_activation += (to_r * coupling).sum(dim=1)
        to_coupling = to_r * activation[:, None] + (to_coupling if last else 0)
    return {"activation": to_activation, "beta_u": to_beta_u, "beta_a": to_beta_a}


def _numbers(*, iterations: int, inverse_temperature: Any, spread: em.Spread, variance_offset: float, **_: Any) -> list:
    """For every iteration, whether it is the last, and its numbers."""
    shared = dict(spread=em._SPREAD[spread], offset=float(variance_offset))
    temperatures = enumerate(em._temperatures(iterations, inverse_temperature), 1)
    return [(t == iterations, dict(lamda=float(lamda), **shared)) for t, lamda in temperatures]


def covers(device: torch.device, smoothing: float = 0.0, mixing: bool = False, **_: object) -> bool:
    """Whether the kernels run on this device and know these options of EM routing."""
    return (device.type == "cuda" or triton.knobs.runtime.interpret) and not smoothing and not mixing


def agree(device: torch.device) -> bool:
    """Whether values and gradients of the kernels are on this device those of the definition, for children of two tiles."""
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 700, 2, 6), (2, 700), (2,), (2,), (2, 6)
    drawn = [torch.rand(s, generator=generator, dtype=torch.float64) + 0.1 for s in shapes]

    def outcome(path: Path, dtype: torch.dtype) -> list[Tensor]:
        *leaves, bias = (t.to(device, dtype, copy=True).requires_grad_() for t in drawn)
        result = em.em_routing(*leaves, bias=bias, path=path)
        sum((t * torch.linspace(-1, 2, t.numel(), device=device).view_as(t)).sum() for t in result).backward()
        return [t.detach() for t in (*result, *(leaf.grad for leaf in (*leaves, bias)))]

    with torch.enable_grad():
        pairs = zip(outcome("triton", torch.float32), outcome("eager", torch.float64), strict=True)
    return all((a - b).abs().max() <= 1e-3 * b.abs().max() for a, b in pairs)
