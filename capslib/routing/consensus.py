"""Routings that learn what agreement is: similarity and connectionist routing (Faria 2019).

Our copy of the paper lacks the formulas; we rebuilt them from its text and the released code.
Numbers of equations are the paper's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NamedTuple, get_args

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
    "RELATIVE_WIDTHS",
    "SMALLEST_WIDTH",
    "ConnectionistRouting",
    "Layers",
    "Reads",
    "SimilarityRouting",
    "Start",
    "activated",
    "closed_form",
    "connectionist_routing",
    "consensus",
    "gaussians",
    "kernel",
    "lambdas",
    "lstm_cell",
    "mixture_of_gaussians",
    "perceptron",
    "similarity_routing",
    "total_weight",
]

SMALLEST_WIDTH = 1e-4
"""The least width of a kernel, far below any distance between votes that matters."""
RELATIVE_WIDTHS = (0.3, 2.0)
"""The narrowest and the widest kernel for votes at a mean distance of one from their mean."""
Layers = Sequence[tuple[Tensor, Tensor]]
"""The weight [out, in] and bias [out] of each layer of a perceptron."""


def consensus(
    votes: Tensor,
    compatibility: Callable[..., tuple[Tensor, Any]],
    *,
    iterations: int,
    bias: Tensor | None,
) -> tuple[Tensor, Tensor, Any]:
    """Route votes [D, ..., J, I] so that each parent weighs its children (Faria 2019, Alg. 1).

    ``compatibility(μ, c, state)`` returns the logits of the next couplings [..., J, I], and a
    state that starts as None. Returns μ [D, ..., J], c and the last state. ``bias`` [J, D] is
    added to μ. Children come last, so each of the D numbers of a vote is contiguous over the
    children.

    >>> def equal(mu, coupling, state):
    ...     return torch.zeros_like(coupling), None
    >>> votes = torch.tensor([[[1.0, 2.0, 6.0]]])  # one number, one parent, three children
    >>> consensus(votes, equal, iterations=1, bias=None)[0]
    tensor([[3.]])
    """

    def mean(coupling: Tensor) -> Tensor:
        mu = (coupling * votes).sum(dim=-1)  # [D, ..., J]  Σ_i c_i v_i
        return mu if bias is None else (mu.movedim(0, -1) + bias).movedim(-1, 0)

    coupling = torch.full_like(votes[0], 1 / votes.shape[-1])  # [..., J, I]
    state = None
    mu = mean(coupling)
    for _ in range(iterations):
        logits, state = compatibility(mu, coupling, state)
        coupling = logits.softmax(dim=-1)  # over the children: Σ_i c_i = 1, eq. 3 of the paper
        mu = mean(coupling)  # eq. 4 of the paper
    return mu, coupling, state


def kernel(votes: Tensor, mu: Tensor, mixture: Tensor, width: Tensor) -> Tensor:
    """Return k(μ, v) [..., J, I] of eq. (15), in [0, 1]: a mixture of Q Gaussians.

    ``votes`` are [D, ..., J, I], ``mu`` is [D, ..., J]; ``mixture`` (logits) and ``width`` ℓ
    are [J, Q].

    >>> votes, mu = torch.zeros(16, 1, 5), torch.zeros(16, 1)
    >>> kernel(votes, mu, torch.zeros(1, 4), torch.ones(1, 4))  # nothing apart
    tensor([[1., 1., 1., 1., 1.]])
    """
    distance = (votes - mu[..., None]).square().sum(dim=0)  # [..., J, I]  ‖μ − v‖²
    return mixture_of_gaussians(distance, mixture, width)


def mixture_of_gaussians(distance: Tensor, mixture: Tensor, width: Tensor) -> Tensor:
    """Return the :func:`kernel` [..., J, I] of squared distances [..., J, I].

    >>> mixture_of_gaussians(torch.zeros(1, 2), torch.zeros(1, 4), torch.ones(1, 4))
    tensor([[1., 1.]])
    """
    k = 0
    for share, precision in gaussians(mixture, width):
        k = k + share * (-distance * precision).exp()
    return k


def gaussians(mixture: Tensor, width: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return share and precision 1/2ℓ² of each of Q Gaussians, both [J, 1].

    ``mixture`` (logits) and ``width`` ℓ are [J, Q]. Shares of a parent sum to one.

    >>> narrow, wide = gaussians(torch.zeros(1, 2), torch.tensor([[0.5, 1.0]]))
    >>> [number.item() for number in narrow]
    [0.5, 2.0]
    """
    precision = 0.5 / width.square().clamp_min(SMALLEST_WIDTH**2)  # [J, Q]
    share = mixture.softmax(dim=-1)  # [J, Q]
    return list(zip(share.split(1, dim=-1), precision.split(1, dim=-1), strict=True))


def lambdas(weights: Tensor) -> tuple[Tensor, ...]:
    """Return λ₁ and λ₂ [J, 1], the absolute values of ``weights`` [J, 2].

    >>> lambdas(torch.tensor([[-0.5, 2.0]]))
    (tensor([[0.5000]]), tensor([[2.]]))
    """
    return weights.abs()[..., None].unbind(-2)


def closed_form(k: Tensor, log_prior: Tensor, lambda1: Tensor, lambda2: Tensor) -> Tensor:
    """Return the logits of the couplings that are best for a fixed mean μ, eqs. (8) to (12).

    ``k`` and ``log_prior`` = ln a broadcast to [..., J, I]; the weights λ₁ and λ₂ are [J, 1].

    >>> k, log_a = torch.tensor([[1.0, 0.0]]), torch.zeros(1, 2)
    >>> closed_form(k, log_a, torch.tensor([[0.5]]), torch.tensor([[0.0]])).softmax(-1)
    tensor([[0.8808, 0.1192]])
    """
    return (k + lambda2 * log_prior) / total_weight(lambda1, lambda2)


def total_weight(lambda1: Tensor, lambda2: Tensor) -> Tensor:
    """Return λ₁ + λ₂, kept above zero.

    >>> total_weight(torch.zeros(3, 1), torch.zeros(3, 1)).min().item() > 0
    True
    """
    return lambda1 + lambda2 + 1e-6


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
    """Route votes [..., I, J, D] with activations [..., I] by similarity (eqs. 2–15).

    Couplings (Faria 2019) maximise the kernel between a mean and its votes, held back by two
    divergences: from equal couplings, and from the activations. The kernel of a parent is a
    mixture of Q Gaussians, whose shares are the softmax of ``mixture`` [J, Q] and whose
    deviations are ``width`` [J, Q]. ``weights`` [J, 2] are λ₁ and λ₂, whose absolute values
    count; ``theta`` [J, 3] belong to the activation, eq. (13). ``floor`` is added to
    activations before a logarithm. Without ``logistic`` the activation is a logit. Raises
    ValueError for less than one iteration, and for shapes that do not fit together.

    >>> votes, activation = torch.randn(8, 100, 10, 16), torch.rand(8, 100)
    >>> kernels = torch.zeros(10, 4), torch.ones(10, 4)
    >>> result = similarity_routing(
    ...     votes, activation, *kernels, torch.ones(10, 2), torch.ones(10, 3)
    ... )
    >>> result.pose.shape
    torch.Size([8, 10, 16])
    """
    votes = rearrange(votes, "... i j d -> d ... j i").contiguous()
    log_a = (activation + floor).log()[..., None, :]  # [..., 1, I]
    lambda1, lambda2 = lambdas(weights)  # [J, 1]

    def compatibility(mu: Tensor, coupling: Tensor, _: Tensor | None) -> tuple[Tensor, Tensor]:
        k = kernel(votes, mu, mixture, width)  # [..., J, I]
        return closed_form(k, log_a, lambda1, lambda2), k  # eq. 11 of the paper

    mu, coupling, k = consensus(votes, compatibility, iterations=iterations, bias=bias)
    agreement = (coupling * k).sum(dim=-1)  # [..., J]
    prior = (coupling * log_a).sum(dim=-1)  # [..., J]
    pose = rearrange(mu, "d ... j -> ... j d")
    return RoutingResult(pose, activated(agreement, prior, theta, logistic), coupling.mT)


def activated(agreement: Tensor, prior: Tensor, theta: Tensor, logistic: bool) -> Tensor:
    """Return activations [..., J] of Σ_i c_i k_i and Σ_i c_i ln a_i, or logits, eq. (13).

    ``agreement`` and ``prior``, the two sums, are [..., J]; ``theta`` is [J, 3].

    >>> theta = torch.tensor([[10.0, -5.0, 1.0]])
    >>> activated(torch.ones(1), torch.zeros(1), theta, logistic=False)
    tensor([5.])
    """
    logit = theta[:, 0] * agreement + theta[:, 1] + theta[:, 2].abs() * prior
    return logit.sigmoid() if logistic else logit


Start = Literal["released", "spread", "steep"]
"""The initial values of a similarity routing."""


class SimilarityRouting(Routing):
    """:func:`similarity_routing` with the widths of its ``kernels``, λ and θ, which it learns.

    ``start`` names their initial values. "released": λ₁ near 12, λ₂ = 1, θ₁ and θ₃ from N(0,
    0.1²), θ₂ = 1, and widths from N(0, 0.1²), so that nearly every kernel is zero or flat.
    "spread": the same, but widths from 0.5 to 4, which softplus keeps positive. "steep", for
    votes of a length near one: widths from 0.1 to 1, λ₁ near 1, θ₁ = 10 and θ₂ = −5, so that
    activations show agreement at once. With ``columns``, as in the released code, θ belongs to
    the columns of a grid and not to parents; the examples of a batch then follow the rows of
    such grids.
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
        self.start = start
        self.columns = columns
        self.options = {"floor": floor, "logistic": logistic}
        weights = torch.ones(parents, 2)
        theta = _normal(columns or parents, 3)
        if start == "steep":
            weights[:, 0] = 1 + _normal(parents)
            theta[:, 0] = 10
            theta[:, 1] = -5
        else:
            weights[:, 0] = 12 + torch.randn(parents)
            theta[:, 1] = 1
        if start == "released":
            raw_width = _normal(parents, kernels)
        else:
            narrow, wide = (0.1, 1.0) if start == "steep" else (0.5, 4.0)
            width = torch.linspace(math.log(narrow), math.log(wide), kernels).exp()
            raw_width = width.expm1().log().repeat(parents, 1)  # before softplus
        self.mixture = nn.Parameter(torch.ones(parents, kernels))
        self.raw_width = nn.Parameter(raw_width)
        self.weights = nn.Parameter(weights)
        self.theta = nn.Parameter(theta)

    @torch.no_grad()
    def start_from(self, votes: Tensor, activation: Tensor, competition: object = None) -> None:
        """Set widths, λ₁ and θ so that activations show the agreement of votes [N, I, J, D].

        Widths become 0.3 to 2 times the distance of a vote from the mean of all votes for its
        parent, λ₁ = 1, and θ such that the logits of a parent have mean zero and a standard
        deviation of 0.25, as in EM routing. The starts "released" and "steep", and one with
        ``columns``, stay as they are.
        """
        if self.start != "spread" or self.columns is not None:
            return
        by_child = rearrange(votes, "n i j d -> d n j i")
        distance = (by_child - by_child.mean(dim=-1, keepdim=True)).square().sum(dim=0)
        scale = distance.mean(dim=(0, 2)).sqrt().clamp_min(SMALLEST_WIDTH)  # [J]
        kernels = self.raw_width.shape[1]
        relative = torch.linspace(*map(math.log, RELATIVE_WIDTHS), kernels).exp()
        width = scale[:, None] * relative.to(scale)
        self.raw_width.copy_(width + (-torch.expm1(-width)).log())  # before softplus
        self.weights[:, 0] = 1
        self.theta[:, 0] = 1
        self.theta[:, 1] = 0
        logit = similarity_routing(
            votes,
            activation,
            self.mixture,
            self.width(),
            self.weights,
            self.theta,
            iterations=self.iterations,
            bias=self.bias,
            **(self.options | {"logistic": False}),
        ).activation  # [N, J]
        steepness = 0.25 / logit.std(dim=0, correction=0).clamp_min(1e-4)  # logits may be equal
        self.theta[:, 0] = steepness
        self.theta[:, 2] *= steepness
        self.theta[:, 1] = -steepness * logit.mean(dim=0)

    def width(self) -> Tensor:
        """Return ℓ [J, Q], the widths of the kernels."""
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
        results = []
        for column, theta in enumerate(self.theta):
            examples = slice(column, None, self.columns)
            if isinstance(votes, LazyVotes):
                column_votes = votes._replace(pose=votes.pose[examples])
            else:
                column_votes = votes[examples]
            theta = theta.expand(len(self.weights), 3)
            results.append(route(column_votes, activation[examples], theta))
        fields = zip(*results, strict=True)
        return RoutingResult(*(torch.stack(field, dim=1).flatten(0, 1) for field in fields))


def _tanh_(x: Tensor) -> Tensor:
    """Compute tanh x = 2 σ(2x) − 1 in place; torch.tanh takes seven times as long on a CPU."""
    return x.mul_(2).sigmoid_().mul_(2).sub_(1)


def _normal(*shape: int) -> Tensor:
    """Draw from N(0, 0.1²), cut off at two standard deviations."""
    return nn.init.trunc_normal_(torch.empty(shape), std=0.1, a=-0.2, b=0.2)


def _by_parent(gates: Tensor, parents: int) -> Tensor:
    """View gates [4·H, R] as [4·H, R/I, I]. R/I = ``parents`` is zero in an empty batch."""
    return gates.unflatten(1, (parents, gates.shape[1] // max(1, parents)))


class _Cell(torch.autograd.Function):
    """The cell of :func:`lstm_cell`, with its gradient by hand.

    Autograd would go through memory three times as often.
    """

    @staticmethod
    def forward(
        ctx: Any,
        constant: Tensor,
        of_parent: Tensor,
        weight: Tensor,
        x: Tensor,
        cell: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        H = len(constant) // 4
        gates = torch.addmm(constant, weight, x)
        parents = of_parent.shape[1]  # of all examples
        _by_parent(gates, parents).add_(of_parent[..., None])
        i, f, o = gates[: 3 * H].sigmoid_().chunk(3)
        candidate = _tanh_(gates[3 * H :])
        next_cell = i * candidate
        if cell is not None:
            next_cell = torch.addcmul(next_cell, f, cell)
        squashed = _tanh_(next_cell.clone())
        ctx.save_for_backward(gates, squashed, weight, x, cell)
        ctx.parents = parents
        return o * squashed, next_cell

    @staticmethod
    def backward(ctx: Any, to_hidden: Tensor, to_cell: Tensor) -> tuple[Tensor | None, ...]:
        # Autograd takes saved tensors for constants: a second derivative would be wrong.
        if torch.is_grad_enabled():
            raise RuntimeError(
                "Connectionist routing has a first derivative only: for the gradient of a "
                "gradient take torch.func.grad."
            )
        sigmoid_backward = torch.ops.aten.sigmoid_backward
        tanh_backward = torch.ops.aten.tanh_backward
        gates, squashed, weight, x, cell = ctx.saved_tensors
        i, f, o, candidate = gates.chunk(4)
        to_cell = to_cell + tanh_backward(to_hidden * o, squashed)
        to_i = sigmoid_backward(to_cell * candidate, i)
        to_f = torch.zeros_like(f) if cell is None else sigmoid_backward(to_cell * cell, f)
        to_o = sigmoid_backward(to_hidden * squashed, o)
        to_candidate = tanh_backward(to_cell * i, candidate)
        to_gates = torch.cat([to_i, to_f, to_o, to_candidate])
        to_parent = _by_parent(to_gates, ctx.parents).sum(dim=-1)
        to_previous = None if cell is None else to_cell * f
        return to_gates, to_parent, to_gates @ x.T, weight.T @ to_gates, to_previous


def lstm_cell(
    constant: Tensor, of_parent: Tensor, weight: Tensor, x: Tensor, cell: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the hidden and the cell state [H, R] of an LSTM for R pairs of child and parent.

    The gates [4·H, R] are ``constant`` [4·H, R] + ``weight`` [4·H, F] ``x`` [F, R], with
    ``of_parent`` [4·H, R/I] added for all I children of a parent. ``cell`` [H, R] is the state
    before, or None at first. Under ``torch.compile`` and ``torch.func`` it has all derivatives;
    otherwise a faster form has a first derivative only.

    >>> H, R, parents = 3, 10, 2
    >>> weight, x = torch.zeros(4 * H, 5), torch.randn(5, R)
    >>> hidden, cell = lstm_cell(
    ...     torch.zeros(4 * H, R), torch.zeros(4 * H, parents), weight, x, None
    ... )
    >>> hidden.shape, cell.shape
    (torch.Size([3, 10]), torch.Size([3, 10]))
    """
    if values_can_be_read():
        return _Cell.apply(constant, of_parent, weight, x, cell)
    gates = _by_parent(torch.addmm(constant, weight, x), of_parent.shape[1])
    i, f, o, candidate = (gates + of_parent[..., None]).flatten(1).chunk(4)
    next_cell = i.sigmoid() * candidate.tanh()
    if cell is not None:
        next_cell = next_cell + f.sigmoid() * cell
    return o.sigmoid() * next_cell.tanh(), next_cell


def perceptron(x: Tensor, layers: Layers) -> Tensor:
    """Return the output [R] of dense layers on ``x`` [features, R], with ReLU between them.

    The last layer has one unit.

    >>> perceptron(torch.tensor([[1.0, 2.0]]), [(torch.tensor([[3.0]]), torch.zeros(1))])
    tensor([3., 6.])
    """
    for number, (weight, bias) in enumerate(layers):
        if number > 0:
            x = x.relu()
        x = torch.addmm(bias.to(x.dtype)[:, None], weight.to(x.dtype), x)
    return x[0]


Reads = Literal["paper", "released"]
"""In the paper g reads the hidden and f the cell state; in the release they are swapped."""


class _State(NamedTuple):
    """The hidden and the cell state [H, R] of an LSTM."""

    hidden: Tensor
    cell: Tensor


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
    """Route votes [..., I, J, D] with activations [..., I] by an LSTM (Algorithm 2).

    For each child and parent, an LSTM of H units (Faria 2019) reads x_i = [μ, a_i, v_i, c_i].
    Its ``weight`` [4·H, 2·D + 2 + H] and ``gate_bias`` [4·H] belong to input, forget and output
    gate and to the candidate. The layers ``g`` turn the hidden state h_i into the logit of a
    coupling, the layers ``f`` turn Σ_i c_i s_i of the cell states into the activation, eq.
    (14). All pairs share them. With ``reads="released"``, g reads the cell state and f the
    hidden state. Without ``logistic`` the activation is a logit. Raises ValueError for less
    than one iteration, and for shapes that do not fit together.

    >>> votes, activation = torch.randn(8, 100, 10, 16), torch.rand(8, 100)
    >>> layer = torch.randn(1, 4), torch.zeros(1)  # of both perceptrons, for four units
    >>> gates = torch.randn(16, 2 * 16 + 2 + 4), torch.zeros(16)
    >>> connectionist_routing(votes, activation, *gates, [layer], [layer]).pose.shape
    torch.Size([8, 10, 16])
    """
    votes = rearrange(votes, "... i j d -> d ... j i").contiguous()
    D, *shape = votes.shape  # shape: [..., J, I]
    H = len(gate_bias) // 4
    check_shapes(weight=(weight, f"{4 * H} {2 * D + 2 + H}"))
    # One product with [μ, a, v, c, h], of which a and v are the same in every iteration.
    of_mu, of_a, of_v, of_c, of_h = weight.split([D, 1, D, 1, H], dim=1)
    a = activation[..., None, :].expand(shape).reshape(1, -1)  # [1, R]
    av = torch.cat([a, votes.flatten(1)])  # [1 + D, R]
    of_av = torch.cat([of_a, of_v], dim=1)
    constant = torch.addmm(gate_bias[:, None], of_av, av)  # [4·H, R]
    of_ch = torch.cat([of_c, of_h], dim=1)

    def compatibility(
        mu: Tensor, coupling: Tensor, state: _State | None
    ) -> tuple[Tensor, _State]:
        of_parent = of_mu @ mu.flatten(1)
        c = coupling.reshape(1, -1)  # [1, R]
        if state is None:
            state = _State(*lstm_cell(constant, of_parent, of_c, c, None))
        else:
            ch = torch.cat([c, state.hidden])  # [1 + H, R]
            state = _State(*lstm_cell(constant, of_parent, of_ch, ch, state.cell))
        logit = perceptron(state.hidden if reads == "paper" else state.cell, g)
        return logit.view(shape), state

    mu, coupling, state = consensus(votes, compatibility, iterations=iterations, bias=bias)
    s = state.cell if reads == "paper" else state.hidden
    total = (coupling * s.view(H, *shape)).sum(dim=-1).flatten(1)  # [H, parents]  Σ_i c_i s_i
    logit = perceptron(total, f).view(shape[:-1])  # [..., J]
    pose = rearrange(mu, "d ... j -> ... j d")
    return RoutingResult(pose, logit.sigmoid() if logistic else logit, coupling.mT)


class ConnectionistRouting(Routing):
    """:func:`connectionist_routing` with an LSTM of ``units`` and two perceptrons.

    ``g`` and ``f`` are the sizes of their hidden layers. Weights start from Glorot's uniform
    distribution and biases from zero, but those of the forget gate from one, as in TensorFlow.
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
        self.gate_weight = _glorot(4 * units, 2 * dim + 2 + units)
        self.gate_bias = nn.Parameter((torch.arange(4 * units) // units == 1).float())
        self.depth = {"g": len(g) + 1, "f": len(f) + 1}
        for name, hidden in (("g", g), ("f", f)):
            sizes = itertools.pairwise([units, *hidden, 1])
            for layer, (inputs, outputs) in enumerate(sizes):
                layer_bias = nn.Parameter(torch.zeros(outputs))
                self.register_parameter(f"{name}_weight{layer}", _glorot(outputs, inputs))
                self.register_parameter(f"{name}_bias{layer}", layer_bias)

    def layers(self, name: Literal["g", "f"]) -> Layers:
        """Return weights and biases of a perceptron."""
        layers = []
        for layer in range(self.depth[name]):
            weight = getattr(self, f"{name}_weight{layer}")
            layers.append((weight, getattr(self, f"{name}_bias{layer}")))
        return tuple(layers)

    def forward(
        self, votes: Tensor | LazyVotes, activation: Tensor, *, iterations: int | None = None
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


def _glorot(outputs: int, inputs: int) -> nn.Parameter:
    """Draw a weight [outputs, inputs] from Glorot's uniform distribution."""
    return nn.Parameter(nn.init.xavier_uniform_(torch.empty(outputs, inputs)))
