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
    dense = 0.15 * torch.randn(DENSE, 2, generator=generator, dtype=torch.float64) + torch.tensor([0.5, 0.25])
    loose = 1.0 * torch.randn(LOOSE, 2, generator=generator, dtype=torch.float64) - torch.tensor([0.5, 0.25])
    drawn = torch.rand(DENSE + LOOSE, generator=generator, dtype=torch.float64)
    activation = torch.cat([0.2 + 0.2 * drawn[:DENSE], 0.6 + 0.3 * drawn[DENSE:]])
    votes = torch.cat([dense, loose])[:, None].double()
    return votes, activation, torch.zeros(1, 2, dtype=torch.float64), torch.tensor([[0.5, 1.0]], dtype=torch.float64)


def disagreement(coupling: Tensor, k: Tensor, log_prior: Tensor, lambda1: float, lambda2: float) -> Tensor:
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
    return similarity_routing(votes, activation, mixture, width, weights, theta, **options).coupling[:, 0]


def minimised(k: Tensor, log_a: Tensor, lambda1: float, lambda2: float, steps: int = 1000) -> Tensor:
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
        c = closed_form(k, log_a, votes.new_tensor(lambda1), votes.new_tensor(lambda2)).softmax(0)
        values.append(float(disagreement(c, k, log_a, lambda1, lambda2)))
    return max(b - a for a, b in itertools.pairwise(values))


WIDGET = """
<style>
.lr-toy { max-width: 30rem; padding: 0.7rem 0.9rem; border: 1px solid var(--hairline, #bbb); border-radius: 4px; }
.lr-toy :is(label, input, svg) { display: block; width: 100%; }
.lr-toy label { margin: 0 0 0.6rem; font-size: 0.92rem; }
.lr-toy input { margin: 0.3rem 0 0; accent-color: var(--pst-color-primary, #0b5c86); }
html[data-theme="dark"] .lr-toy svg { filter: invert(1) hue-rotate(180deg); }
.lr-toy p { margin: 0.4rem 0 0; font-size: 0.92rem; }
</style>
<div class="lr-toy">
<label>λ₁, towards equal shares: <output>0.3</output>
<input type="range" min="-2" max="2" step="0.05" value="-0.5" aria-label="lambda one, power of ten"></label>
<label>λ₂, towards the activations: <output>0.3</output>
<input type="range" min="-2" max="2" step="0.05" value="-0.5" aria-label="lambda two, power of ten"></label>
<svg role="img" aria-label="Votes as discs whose areas are their couplings; a cross marks the mean."></svg>
<p class="lr-said"></p></div>
<script>(() => {
const root = [...document.querySelectorAll('.lr-toy')].pop(), data = DATA;
const sliders = root.querySelectorAll('input'), outs = root.querySelectorAll('output');
const n = data.a.length, svg = root.querySelector('svg'), NS = 'http://www.w3.org/2000/svg';
const [x, y] = [0, 1].map(d => data.v.map(v => v[d])), edge = 0.35;
const [left, top] = [Math.min(...x) - edge, -Math.max(...y) - edge];
svg.setAttribute('viewBox', [left, top, Math.max(...x) + edge - left, edge - Math.min(...y) - top].join(' '));
const make = (tag, of) => { const e = document.createElementNS(NS, tag);
  for (const k in of) e.setAttribute(k, of[k]); svg.append(e); return e; };
const discs = data.v.map(v => make('circle', {cx: v[0], cy: -v[1], fill: data.color, 'fill-opacity': 0.55}));
data.v.forEach(v => make('circle', {cx: v[0], cy: -v[1], r: 0.025, fill: data.ink}));
const cross = make('path', {d: 'M-.12 0H.12M0-.12V.12', stroke: data.ink, 'stroke-width': 0.05});
const draw = () => {
  const l = [...sliders].map(s => 10 ** s.value); l.forEach((x, k) => outs[k].textContent = x.toPrecision(2));
  let c = data.a.map(() => 1 / n), mu;
  for (let t = 0; t <= 10; t++) {
    mu = [0, 1].map(d => c.reduce((sum, w, i) => sum + w * data.v[i][d], 0));
    if (t === 10) break;
    const e = data.v.map((v, i) => { const q = (v[0]-mu[0])**2 + (v[1]-mu[1])**2;
      const k = data.w.reduce((sum, w) => sum + Math.exp(-q / (2*w*w)), 0) / data.w.length;
      return Math.exp((k + l[1] * Math.log(data.a[i])) / (l[0] + l[1])); });
    const total = e.reduce((a, b) => a + b); c = e.map(x => x / total);
  }
  discs.forEach((disc, i) => disc.setAttribute('r', 0.6 * Math.sqrt(c[i])));
  cross.setAttribute('transform', `translate(${mu[0]} ${-mu[1]})`);
  const share = c.slice(0, data.dense).reduce((a, b) => a + b);
  root.querySelector('.lr-said').textContent = `The dense cluster has ${(100*share).toFixed(0)} % of the couplings.`;
};
sliders.forEach(s => s.addEventListener('input', draw)); draw();
})();</script>
"""
"""Two sliders for λ₁ and λ₂; the script computes what :func:`couplings` does, for the votes that stand in for DATA."""
