"""The shipped routings as the loops of their papers, for one example: votes [I, J, D]."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from capslib.routing import Routing, RoutingResult
from capslib.routing.em import EMRouting, inverse_temperatures


def squashed(s: Tensor) -> Tensor:
    length = s.norm(dim=-1, keepdim=True)
    return length**2 / (1 + length**2) * s / length


def means(coupling: Tensor, votes: Tensor, bias: Tensor | None) -> Tensor:
    """Return Σ_i c_ij v_ij, and the bias, of every parent [J, D]."""
    I, J, _ = votes.shape
    mu = torch.zeros_like(votes[0])
    for i, j in product(range(I), range(J)):
        mu[j] += coupling[i, j] * votes[i, j]
    return mu if bias is None else mu + bias


def dynamic(routing: Routing, votes: Tensor, activation: Tensor) -> RoutingResult:
    """Sabour et al. 2017, Procedure 1."""
    I, J, _ = votes.shape
    b = votes.new_zeros(I, J)
    for _ in range(routing.iterations):
        c = b.exp() / b.exp().sum(dim=1, keepdim=True)
        pose = squashed(means(c, votes, routing.bias))
        for i, j in product(range(I), range(J)):
            b[i, j] += votes[i, j] @ pose[j]
    return RoutingResult(pose, pose.norm(dim=1), c)


def dynamic_over_children(routing: Routing, votes: Tensor, activation: Tensor) -> RoutingResult:
    """The released loop of Kirillov & Panov 2022, with logits in the shape of votes."""
    logits = torch.zeros_like(votes)  # [I, J, D]
    for _ in range(routing.iterations):
        coupling = logits.exp() / logits.exp().sum(dim=0)
        s = (coupling * votes).sum(dim=0)  # [J, D]
        if routing.bias is not None:
            s = s + routing.bias
        pose = squashed(s)
        logits = logits + (votes * pose).sum(dim=-1, keepdim=True)
    return RoutingResult(pose, pose.norm(dim=1), coupling[..., 0])


def em(routing: EMRouting, votes: Tensor, activation: Tensor) -> RoutingResult:
    """Hinton et al. 2018, Procedure 1, with densities in the place of their logarithms."""
    options = routing.options
    smoothing = options["smoothing"]
    beta_u, beta_a = routing.betas()
    V = votes if routing.bias is None else votes + routing.bias
    I, J, D = V.shape
    R = V.new_full((I, J), 1 / J)
    p, a, mu, variance = V.new_zeros(I, J), V.new_zeros(J), V.new_zeros(J, D), V.new_zeros(J, D)
    for lamda in inverse_temperatures(routing.iterations, routing.inverse_temperature):
        for j in range(J):
            r = R[:, j] * activation
            mass = r.sum()
            mean = sum(r[i] * V[i, j] for i in range(I)) / mass
            mu[j] = (1 - smoothing) * mean + smoothing * mu[j]
            variance[j] = sum(r[i] * (V[i, j] - mu[j]) ** 2 for i in range(I)) / mass
            variance[j] += options["variance_offset"]
            spread = variance[j] if options["spread"] == "variance" else variance[j].sqrt()
            cost = sum((beta_u[j] + spread[h].log()) * mass for h in range(D))
            a[j] = torch.sigmoid(lamda * (beta_a[j] - cost))
            if options["mixing"]:
                a[j] = mass / activation.sum()
        for i, j in product(range(I), range(J)):
            exponent = ((V[i, j] - mu[j]) ** 2 / (2 * variance[j])).sum()
            norm = torch.sqrt((2 * math.pi * variance[j]).prod())
            p[i, j] = a[j] * torch.exp(-exponent) / norm
        coupling = R
        R = p / p.sum(dim=1, keepdim=True)
    pose = mu
    if options["vector"]:
        length = mu.norm(dim=1, keepdim=True)
        pose = a[:, None] * mu / (length + options["length_offset"])
    return RoutingResult(pose, a, coupling)


def similarity(routing: Routing, votes: Tensor, activation: Tensor) -> RoutingResult:
    """Faria 2019, eqs. 2–15."""
    I, J, _ = votes.shape
    lambda1, lambda2 = routing.weights.abs().T
    share, width = routing.mixture.softmax(dim=1), routing.width()
    prior = activation + routing.options["floor"]
    c, k, a = votes.new_full((I, J), 1 / I), votes.new_zeros(I, J), votes.new_zeros(J)
    mu = means(c, votes, routing.bias)
    for _ in range(routing.iterations):
        for i, j in product(range(I), range(J)):
            square = ((mu[j] - votes[i, j]) ** 2).sum()
            k[i, j] = (share[j] * torch.exp(-square / (2 * width[j] ** 2))).sum()
        for j in range(J):
            total = lambda1[j] + lambda2[j] + 1e-6
            e = prior ** (lambda2[j] / total) * torch.exp(k[:, j] / total)
            c[:, j] = e / e.sum()
        mu = means(c, votes, routing.bias)
    for j in range(J):
        theta1, theta2, theta3 = routing.theta[j]
        logit = theta1 * (c[:, j] @ k[:, j]) + theta3.abs() * (c[:, j] @ prior.log()) + theta2
        a[j] = torch.sigmoid(logit)
    return RoutingResult(mu, a, c)


def connectionist(routing: Routing, votes: Tensor, activation: Tensor) -> RoutingResult:
    """Faria 2019, Algorithm 2."""
    I, J, _ = votes.shape
    H = len(routing.gate_bias) // 4
    paper = routing.options["reads"] == "paper"
    c, b, a = votes.new_full((I, J), 1 / I), votes.new_zeros(I, J), votes.new_zeros(J)
    hidden, cell = votes.new_zeros(I, J, H), votes.new_zeros(I, J, H)

    def perceptron(x: Tensor, name: str) -> Tensor:
        *layers, (weight, bias) = routing.layers(name)
        for hidden_weight, hidden_bias in layers:
            x = torch.relu(hidden_weight @ x + hidden_bias)
        return (weight @ x + bias)[0]

    for _ in range(routing.iterations):
        mu = means(c, votes, routing.bias)
        for i, j in product(range(I), range(J)):
            x = torch.cat(
                [mu[j], activation[i, None], votes[i, j], c[i, j, None], hidden[i, j]]
            )
            gates = (routing.gate_weight @ x + routing.gate_bias).split(H)
            i_gate, f_gate, o_gate = (gate.sigmoid() for gate in gates[:3])
            cell[i, j] = f_gate * cell[i, j] + i_gate * torch.tanh(gates[3])
            hidden[i, j] = o_gate * torch.tanh(cell[i, j])
            b[i, j] = perceptron(hidden[i, j] if paper else cell[i, j], "g")
        c = b.exp() / b.exp().sum(dim=0)
    for j in range(J):
        state = cell if paper else hidden
        total = sum(c[i, j] * state[i, j] for i in range(I))
        a[j] = torch.sigmoid(perceptron(total, "f"))
    return RoutingResult(means(c, votes, routing.bias), a, c)


REFERENCES: dict[str, Callable[..., RoutingResult]] = {
    "dynamic": dynamic,
    "dynamic_over_children": dynamic_over_children,
    "em": em,
    "em_vector": em,
    "similarity": similarity,
    "connectionist": connectionist,
}


@torch.no_grad()
def route_by_loops(
    name: str, routing: Routing, votes: Tensor, activation: Tensor
) -> RoutingResult:
    """Route by a reference above, or by the own ``reference`` of a new routing."""
    if name in REFERENCES:
        return REFERENCES[name](routing, votes, activation)
    return routing.reference(votes, activation)
