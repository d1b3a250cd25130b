"""Routings that learn what agreement is: similarity and connectionist routing (Faria 2019).

The paper's formulas are lost; these are rebuilt from its text and from the released code.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, get_args

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from capslib.errors import check_name
from capslib.routing.base import RoutingResult
from capslib.routing.fast import LazyVotes, routing_function
from capslib.routing.module import Routing
from capslib.shapes import check_shapes, values_can_be_read

__all__ = [
    "SMALLEST",
    "ConnectionistRouting",
    "Layers",
    "Reads",
    "SimilarityRouting",
    "Start",
    "closed_form",
    "connectionist_routing",
    "consensus",
    "kernel",
    "lstm_cell",
    "perceptron",
    "sigmoid_backward",
    "similarity_routing",
    "tanh_backward",
]

sigmoid_backward, tanh_backward = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward
SMALLEST = 1e-4  # of a kernel's width, and far below any distance between votes that matters
Layers = Sequence[tuple[Tensor, Tensor]]  # weight [out, in] and bias [out] of each layer


def consensus(
    votes: Tensor,
    compatibility: Callable[..., tuple[Tensor, Any]],
    *,
    iterations: int,
    bias: Tensor | None,
) -> tuple[Tensor, Tensor, Any]:
    """Faria 2019, Algorithm 1, for votes [D, ..., J, I]: each parent weighs its own children.

    ``compatibility(μ, c, state)`` gives logits of the next couplings [..., J, I], and a state that
    starts as None. Returns μ [D, ..., J], c and the last state. ``bias`` [J, D] is added to μ.
    Children are neighbours in memory, and every number of a vote is a row for all of them.
    """

    def mean(coupling: Tensor) -> Tensor:
        mu = (coupling * votes).sum(dim=-1)  # [D, ..., J]  Σ_i c_i v_i
        return mu if bias is None else (mu.movedim(0, -1) + bias).movedim(-1, 0)

    coupling, state = torch.full_like(votes[0], 1 / votes.shape[-1]), None
    mu = mean(coupling)
    for _ in range(iterations):
        logits, state = compatibility(mu, coupling, state)
        coupling = logits.softmax(dim=-1)  # over the children: Σ_i c_i = 1, eq. (3)
        mu = mean(coupling)  # eq. (4)
    return mu, coupling, state


def kernel(votes: Tensor, mu: Tensor, mixture: Tensor, width: Tensor) -> Tensor:
    """k(μ, v) [..., J, I] of eq. (15), between 0 and 1: a mixture of Q Gaussians.

    ``votes`` are [D, ..., J, I], ``mu`` [D, ..., J]; ``mixture`` (logits) and ``width`` ℓ [J, Q].
    """
    distance = (votes - mu[..., None]).square().sum(dim=0)  # [..., J, I]  ‖μ − v‖²
    precision = 0.5 / width.square().clamp_min(SMALLEST**2)  # [J, Q]
    parts = zip(mixture.softmax(dim=-1).unbind(-1), precision.unbind(-1), strict=True)
    return sum(w[:, None] * (-distance * p[:, None]).exp() for w, p in parts)


def closed_form(k: Tensor, log_prior: Tensor, lambda1: Tensor, lambda2: Tensor) -> Tensor:
    """Logits of the couplings that minimise J for a fixed μ, eqs. (8) to (12).

    ``k`` and ``log_prior`` = ln a broadcast to [..., J, I], the weights to [J, 1].
    """
    return (k + lambda2 * log_prior) / (lambda1 + lambda2 + 1e-6)


@routing_function
def similarity_routing(
    votes: Annotated[Tensor, "... I J D"],
    activation: Annotated[Tensor, "... I"],
    mixture: Annotated[Tensor, "J Q"],
    width: Annotated[Tensor, "J Q"],
    weights: Annotated[Tensor, "J 2"],
    theta: Annotated[Tensor, "J 3"],
    *,
    iterations: int = 3,
    bias: Annotated[Tensor | None, "J D"] = None,
    floor: float = 0.1,
    logistic: bool = True,
) -> RoutingResult:
    """Route votes [..., I, J, D] of children with activations [..., I] (Faria 2019, eqs. 2–15).

    Couplings maximise the kernel between a mean and its votes, held back by two divergences: from
    equal couplings, and from the activations. ``mixture`` and ``width`` [J, Q] are of the
    kernel, ``weights`` [J, 2] are λ₁ and λ₂, whose absolute values count, and ``theta`` [J, 3]
    make the activation, eq. (13). ``floor`` is added to activations before a logarithm. Without
    ``logistic`` the activation is a logit. Raises ValueError for less than one iteration, and for
    shapes that do not fit together.
    """
    votes = rearrange(votes, "... i j d -> d ... j i").contiguous()
    log_a = (activation + floor).log()[..., None, :]  # [..., 1, I]
    lambda1, lambda2 = weights.abs()[..., None].unbind(-2)  # [J, 1]

    def compatibility(mu: Tensor, coupling: Tensor, _: Tensor | None) -> tuple[Tensor, Tensor]:
        k = kernel(votes, mu, mixture, width)  # [..., J, I]
        return closed_form(k, log_a, lambda1, lambda2), k  # eq. (11)

    mu, coupling, k = consensus(votes, compatibility, iterations=iterations, bias=bias)
    agreement, prior = (coupling * k).sum(dim=-1), (coupling * log_a).sum(dim=-1)  # [..., J]
    logit = theta[:, 0] * agreement + theta[:, 1] + theta[:, 2].abs() * prior  # eq. (13)
    mu = rearrange(mu, "d ... j -> ... j d")
    return RoutingResult(mu, logit.sigmoid() if logistic else logit, coupling.mT)


Start = Literal["released", "spread", "steep"]


class SimilarityRouting(Routing):
    """:func:`similarity_routing` with the widths of its ``kernels``, λ and θ, which it learns.

    ``start`` says what from. "released": λ₁ near 12, λ₂ = 1, θ₁ and θ₃ from N(0, 0.1²), θ₂ = 1, and
    widths from N(0, 0.1²), so that nearly every kernel is zero or flat. "spread": the same, but
    widths from 0.5 to 4, kept positive by softplus. "steep", for votes about as long as one: widths
    from 0.1 to 1, λ₁ near 1, θ₁ = 10 and θ₂ = −5, so that activations tell agreement at once.
    With ``columns``, as in the released code, θ belongs to the columns of a grid of so many, which
    the rows of a batch follow, and not to parents.
    """

    function = similarity_routing
    couplings_sum_over = "children"

    def __init__(
        self,
        parents: int,
        dim: int,
        *,
        iterations: int = 3,
        bias: float | None = None,
        kernels: int = 4,
        start: Start = "spread",
        floor: float = 0.1,
        logistic: bool = True,
        columns: int | None = None,
    ):
        super().__init__(parents, dim, iterations=iterations, bias=bias)
        check_name("start", start, get_args(Start))
        self.start, self.columns = start, columns
        self.options = {"floor": floor, "logistic": logistic}
        least, most = (0.1, 1.0) if start == "steep" else (0.5, 4.0)
        widths = (
            torch.linspace(math.log(least), math.log(most), kernels).exp().repeat(parents, 1)
        )
        weights, theta = torch.ones(parents, 2), _normal(columns or parents, 3)
        weights[:, 0] = 1 + _normal(parents) if start == "steep" else 12 + torch.randn(parents)
        theta[:, 1] = 1
        if start == "steep":
            theta[:, 0], theta[:, 1] = 10, -5
        raw = _normal(parents, kernels) if start == "released" else widths.expm1().log()
        self.mixture, self.raw_width = (
            nn.Parameter(torch.ones(parents, kernels)),
            nn.Parameter(raw),
        )
        self.weights, self.theta = nn.Parameter(weights), nn.Parameter(theta)

    def width(self) -> Tensor:
        """ℓ [J, Q], the widths of the kernels."""
        return self.raw_width if self.start == "released" else F.softplus(self.raw_width)

    def forward(
        self, votes: Tensor | LazyVotes, activation: Tensor, *, iterations: int | None = None
    ) -> RoutingResult:
        def route(
            votes: Tensor | LazyVotes, activation: Tensor, theta: Tensor
        ) -> RoutingResult:
            return similarity_routing(
                votes,
                activation,
                self.mixture,
                self.width(),
                self.weights,
                theta,
                iterations=self.iterations if iterations is None else iterations,
                bias=self.bias,
                path=self.path,
                **self.options,
            )

        if self.columns is None:
            return route(votes, activation, self.theta)
        found = []
        for x, theta in enumerate(self.theta):
            rows = slice(x, None, self.columns)
            lazy = isinstance(votes, LazyVotes)
            some = votes._replace(pose=votes.pose[rows]) if lazy else votes[rows]
            found.append(route(some, activation[rows], theta.expand(len(self.weights), 3)))
        return RoutingResult(
            *(torch.stack(t, dim=1).flatten(0, 1) for t in zip(*found, strict=True))
        )


def _tanh_(x: Tensor) -> Tensor:
    """tanh x = 2 σ(2x) − 1, in place: on a CPU torch's own takes seven times as long."""
    return x.mul_(2).sigmoid_().mul_(2).sub_(1)


def _normal(*shape: int) -> Tensor:
    return nn.init.trunc_normal_(torch.empty(shape), std=0.1, a=-0.2, b=0.2)


class _Cell(torch.autograd.Function):
    """An LSTM cell: gates [4·H, R] = ``fixed`` + ``weight`` x, for R pairs, with ``of_parent`` [4·H, R/I] added.

    Returns the hidden and the cell state [H, R]. By hand, because autograd would go through memory three times as often.
    """

    @staticmethod
    def forward(
        ctx: Any,
        fixed: Tensor,
        of_parent: Tensor,
        weight: Tensor,
        x: Tensor,
        cell: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        H = len(fixed) // 4
        gates = torch.addmm(fixed, weight, x)
        parents = of_parent.shape[1]  # of all examples; none in an empty batch
        gates.unflatten(1, (parents, x.shape[1] // max(1, parents))).add_(of_parent[..., None])
        (i, f, o), new = gates[: 3 * H].sigmoid_().unflatten(0, (3, H)), _tanh_(gates[3 * H :])
        after = i * new if cell is None else torch.addcmul(i * new, f, cell)
        squashed = _tanh_(after.clone())
        ctx.save_for_backward(gates, squashed, weight, x, cell)
        ctx.parents = parents
        return o * squashed, after

    @staticmethod
    def backward(ctx: Any, to_hidden: Tensor, to_after: Tensor) -> tuple[Tensor | None, ...]:
        if (
            torch.is_grad_enabled()
        ):  # what is saved is constant to autograd, which would be wrong without a word
            raise RuntimeError("Connectionist routing has a first derivative only.")
        gates, squashed, weight, x, cell = ctx.saved_tensors
        i, f, o, new = gates.chunk(4)
        to_after = to_after + tanh_backward(to_hidden * o, squashed)
        past = torch.zeros_like(f) if cell is None else sigmoid_backward(to_after * cell, f)
        to_i, to_o = (
            sigmoid_backward(to_after * new, i),
            sigmoid_backward(to_hidden * squashed, o),
        )
        to_gates = torch.cat([to_i, past, to_o, tanh_backward(to_after * i, new)])
        to_parent = to_gates.unflatten(1, (ctx.parents, -1)).sum(dim=-1)
        return (
            to_gates,
            to_parent,
            to_gates @ x.T,
            weight.T @ to_gates,
            None if cell is None else to_after * f,
        )


def lstm_cell(
    fixed: Tensor, of_parent: Tensor, weight: Tensor, x: Tensor, cell: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return what :class:`_Cell` does, or its formulas where somebody differentiates them."""
    if values_can_be_read():
        return _Cell.apply(fixed, of_parent, weight, x, cell)
    gates = (
        torch.addmm(fixed, weight, x).unflatten(1, (of_parent.shape[1], -1))
        + of_parent[..., None]
    )
    i, f, o, new = gates.flatten(1).chunk(4)
    after = i.sigmoid() * new.tanh() + (0 if cell is None else f.sigmoid() * cell)
    return o.sigmoid() * after.tanh(), after


def perceptron(x: Tensor, layers: Layers) -> Tensor:
    """Dense layers on features [features, R], with ReLU between them; the last has one unit: [R]."""
    for number, (weight, bias) in enumerate(layers):
        x = torch.addmm(
            bias.to(x.dtype)[:, None], weight.to(x.dtype), x if number == 0 else x.relu()
        )
    return x[0]


Reads = Literal["paper", "released"]


@routing_function
def connectionist_routing(
    votes: Annotated[Tensor, "... I J D"],
    activation: Annotated[Tensor, "... I"],
    weight: Annotated[Tensor, "gates inputs"],
    gate_bias: Annotated[Tensor, "gates"],
    g: Layers,
    f: Layers,
    *,
    iterations: int = 3,
    bias: Annotated[Tensor | None, "J D"] = None,
    reads: Reads = "paper",
    logistic: bool = True,
) -> RoutingResult:
    """Route votes [..., I, J, D] with activations [..., I] by an LSTM (Faria 2019, Algorithm 2).

    For each child and parent an LSTM of H units sees x_i = [μ, a_i, v_i, c_i]; ``weight``
    [4·H, 2·D + 2 + H] and ``gate_bias`` [4·H] are of its input, forget and output gate and of
    its candidate. The layers ``g`` make the logit of a coupling out of the hidden state h_i, the
    layers ``f`` the activation out of Σ_i c_i s_i of the cell states, eq. (14). All are shared by
    all pairs. With ``reads="released"``, g reads the cell state and f the hidden one. Without
    ``logistic`` the activation is a logit. Raises ValueError for less than one iteration, and for
    shapes that do not fit together.
    """
    votes = rearrange(votes, "... i j d -> d ... j i").contiguous()
    (D, *shape), H = votes.shape, len(gate_bias) // 4  # shape: [..., J, I]
    check_shapes(weight=(weight, f"{4 * H} {2 * D + 2 + H}"))
    of_mu, of_a, of_v, of_c, of_h = weight.split([D, 1, D, 1, H], dim=1)
    # One product with [μ, a, v, c, h], of which a and v are the same in every iteration.
    active = activation[..., None, :].expand(shape).reshape(1, -1)  # [1, R]
    known = torch.cat([active, votes.flatten(1)])  # [1 + D, R]
    fixed = torch.addmm(gate_bias[:, None], torch.cat([of_a, of_v], dim=1), known)  # [4·H, R]
    of_state = torch.cat([of_c, of_h], dim=1)

    def compatibility(mu: Tensor, coupling: Tensor, state: Any) -> tuple[Tensor, Any]:
        x, of_x, cell = coupling.reshape(1, -1), of_c, None
        if state is not None:
            x, of_x, cell = torch.cat([x, state[0]]), of_state, state[1]  # [1 + H, R]
        hidden, cell = lstm_cell(fixed, of_mu @ mu.flatten(1), of_x, x, cell)
        return perceptron(hidden if reads == "paper" else cell, g).view(shape), (hidden, cell)

    mu, coupling, (h, s) = consensus(votes, compatibility, iterations=iterations, bias=bias)
    state = (s if reads == "paper" else h).view(H, *shape)
    total = (coupling * state).sum(dim=-1).flatten(1)  # [H, parents]  Σ_i c_i s_i
    logit = perceptron(total, f).view(shape[:-1])  # [..., J]
    mu = rearrange(mu, "d ... j -> ... j d")
    return RoutingResult(mu, logit.sigmoid() if logistic else logit, coupling.mT)


class ConnectionistRouting(Routing):
    """:func:`connectionist_routing` with an LSTM of ``units`` and two perceptrons, which it learns.

    ``g`` and ``f`` are the sizes of their hidden layers. Weights start uniform as Glorot's, biases
    at zero, but those of the forget gate at one, as in TensorFlow.
    """

    function = connectionist_routing
    couplings_sum_over = "children"
    odd_without_bias = False

    def __init__(
        self,
        parents: int,
        dim: int,
        *,
        iterations: int = 3,
        bias: float | None = None,
        units: int = 16,
        g: Sequence[int] = (),
        f: Sequence[int] = (),
        reads: Reads = "paper",
        logistic: bool = True,
    ):
        super().__init__(parents, dim, iterations=iterations, bias=bias)
        self.options = {"reads": reads, "logistic": logistic}
        self.gate_weight = nn.Parameter(
            nn.init.xavier_uniform_(torch.empty(4 * units, 2 * dim + 2 + units))
        )
        self.gate_bias = nn.Parameter((torch.arange(4 * units) // units == 1).float())
        self.depth = {"g": len(g) + 1, "f": len(f) + 1}
        for name, hidden in (("g", g), ("f", f)):
            for k, (a, b) in enumerate(itertools.pairwise([units, *hidden, 1])):
                self.register_parameter(
                    f"{name}_weight{k}",
                    nn.Parameter(nn.init.xavier_uniform_(torch.empty(b, a))),
                )
                self.register_parameter(f"{name}_bias{k}", nn.Parameter(torch.zeros(b)))

    def layers(self, name: Literal["g", "f"]) -> Layers:
        """Weights and biases of a perceptron."""
        found = range(self.depth[name])
        return tuple(
            (getattr(self, f"{name}_weight{k}"), getattr(self, f"{name}_bias{k}"))
            for k in found
        )

    def forward(
        self, votes: Tensor, activation: Tensor, *, iterations: int | None = None
    ) -> RoutingResult:
        return connectionist_routing(
            votes,
            activation,
            self.gate_weight,
            self.gate_bias,
            self.layers("g"),
            self.layers("f"),
            iterations=self.iterations if iterations is None else iterations,
            bias=self.bias,
            path=self.path,
            **self.options,
        )
