"""What is measured: routings at the papers' sizes, training steps, layers that others have."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from capslib.losses import margin_loss, spread_loss
from capslib.networks.capsnet import CapsNet
from capslib.networks.em_routing import MatrixCapsNet
from capslib.networks.learned_routing import ConsensusCapsNet
from capslib.networks.negation_limitation import DeepCapsNet
from capslib.routing import LazyVotes, RoutingResult, make_routing, squash, use_path
from capslib.routing.em import inverse_temperatures

# ---------------------------------------------------------- the plain form of the papers' lines


PARENTS, CHILDREN = -1, -2
"""Dimensions of couplings [N, I, J]; they sum to one over either."""


def textbook_dynamic(
    votes: Tensor, *, iterations: int = 3, over: int = PARENTS
) -> RoutingResult:
    """Sabour et al. 2017, Procedure 1, line by line: broadcast, multiply, sum.

    ``over`` is the dimension along which couplings sum to one.
    """
    logits = votes.new_zeros(votes.shape[:-1])
    for iteration in range(iterations):
        coupling = logits.softmax(dim=over)
        pose = squash((coupling[..., None] * votes).sum(dim=-3))
        if iteration < iterations - 1:
            logits = logits + (pose[..., None, :, :] * votes).sum(dim=-1)
    return RoutingResult(pose, torch.linalg.vector_norm(pose, dim=-1), coupling)


def textbook_em(
    votes: Tensor,
    activation: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    iterations: int = 3,
    vector: bool = False,
) -> RoutingResult:
    """Hinton et al. 2018, Procedure 1, in the same way. The E-step is a softmax of logs.

    With ``vector`` the length of a pose is its activation (Peer et al. 2021).
    """
    J = votes.shape[-2]
    coupling = torch.full_like(votes[..., 0], 1 / J)
    for iteration, lamda in enumerate(inverse_temperatures(iterations)):
        r = coupling * activation[..., None]
        mass = r.sum(dim=-2)
        mu = (r[..., None] * votes).sum(dim=-3) / mass[..., None]
        square = (votes - mu[..., None, :, :]) ** 2
        variance = (r[..., None] * square).sum(dim=-3) / mass[..., None] + 1e-12
        cost = (beta_u[..., None] + variance.log() / 2) * mass[..., None]
        logit = lamda * (beta_a - cost.sum(dim=-1))
        if iteration < iterations - 1:
            exponent = (square / (2 * variance[..., None, :, :])).sum(dim=-1)
            log_norm = (variance.log() / 2).sum(dim=-1)
            log_p = -exponent - log_norm[..., None, :]
            coupling = (F.logsigmoid(logit)[..., None, :] + log_p).softmax(dim=-1)
    a = logit.sigmoid()
    if vector:
        mu = a[..., None] * mu / torch.linalg.vector_norm(mu, dim=-1, keepdim=True)
    return RoutingResult(mu, a, coupling)


def _textbook_over_children(votes: Tensor, activation: Tensor, betas: object) -> RoutingResult:
    return textbook_dynamic(votes, over=CHILDREN)


TEXTBOOK = {
    "dynamic": lambda votes, activation, betas: textbook_dynamic(votes),
    "dynamic_over_children": _textbook_over_children,
    "em": lambda votes, activation, betas: textbook_em(votes, activation, *betas),
    "em_vector": lambda votes, activation, betas: textbook_em(
        votes, activation, *betas, vector=True
    ),
}
PATHS = ("textbook", "eager", "fast", "compiled")
"""The plain form above, the book's definition, the fast path, and the fast path compiled."""
BOOK_PATHS = PATHS[1:]

# --------------------------------------------------------------- what bounds a layer from below


SOFTMAX = {"_softmax": 5, "_softmax_backward_data": 4}
MOVES = ("clone", "copy_", "_to_copy", "fill", "fill_")
"""What moves data, though torch counts it among the element-wise operations."""


class Arithmetic(TorchDispatchMode):
    """Counts the floating-point operations of whatever runs inside, in ``flops``.

    An element-wise operation counts one per element that it writes, a reduction one per element
    that it reads. A softmax counts five (maximum, difference, exponential, sum, quotient), its
    gradient four. Moving data counts nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in SOFTMAX:
            self.flops += SOFTMAX[name] * args[0].numel()
        elif torch.Tag.reduction in func.tags:
            self.flops += args[0].numel()
        elif torch.Tag.pointwise in func.tags and name not in MOVES:
            self.flops += result.numel()
        return result


def limit(
    flops: float, moved: float, *, flops_per_second: float, bytes_per_second: float
) -> tuple[float, str]:
    """Return the least seconds for operations and bytes, and what sets them (roofline)."""
    arithmetic = flops / flops_per_second
    memory = moved / bytes_per_second
    if arithmetic > memory:
        return arithmetic, "arithmetic"
    return memory, "memory"


@dataclass(frozen=True)
class RoutingCase:
    """Routing of votes [N, I, J, D] by any registered routing, forward and backward.

    N counts images times positions. A routing that is not in ``TEXTBOOK`` has only
    ``BOOK_PATHS``, and "compiled" only with a core; it is compared with no limit.
    """

    name: str
    routing: str
    shape: tuple[int, int, int, int]
    paths: tuple[str, ...] = PATHS

    @property
    def bytes(self) -> int:
        """The bytes that every implementation moves.

        It reads the votes forward and backward, and writes their gradient.
        """
        return 3 * 4 * torch.Size(self.shape).numel()

    @functools.cached_property
    def flops(self) -> int:
        """The operations of the textbook form, forward and backward.

        They are counted on one example, for they grow in step with N.
        """
        step = replace(self, shape=(1, *self.shape[1:])).prepare("textbook", "cpu")
        with Arithmetic() as counted:
            step()
        return self.shape[0] * counted.flops

    def prepare(self, path: str, device: str) -> Callable[[], object]:
        """Return a function that routes forward and backward on a path."""
        generator = torch.Generator(device).manual_seed(0)
        N, I, J, D = self.shape
        votes = torch.randn(self.shape, generator=generator, device=device, requires_grad=True)
        activation = torch.rand(N, I, generator=generator, device=device, requires_grad=True)
        betas = [torch.zeros(J, device=device, requires_grad=True) for _ in range(2)]
        routing = make_routing(self.routing, J, D).to(device)
        use_path(routing, "eager" if path == "textbook" else path)

        def step() -> None:
            votes.grad = None
            if path == "textbook":
                result = TEXTBOOK[self.routing](votes, activation, betas)
            else:
                result = routing(votes, activation)
            (result.pose.square().sum() + result.activation.sum()).backward()

        return step


WINDOWS = (64 * 36, 9 * 8, 16, 16)
"""Votes of the first convolution of matrix capsules, sizes (64, 8, 16, 16), for 64 images."""
LAYERS = (
    RoutingCase("EM, first convolution", "em", WINDOWS),
    RoutingCase("EM, class capsules", "em", (64, 16 * 16, 5, 16)),
    RoutingCase("EM of vectors, first hidden layer", "em_vector", (64, 1152, 16, 10)),
    RoutingCase("dynamic, CapsNet", "dynamic", (64, 1152, 10, 16)),
    RoutingCase("dynamic, 40 × 40 images", "dynamic", (64, 4608, 16, 16)),
    RoutingCase(
        "dynamic over children, two classes", "dynamic_over_children", (64, 1152, 2, 16)
    ),
    RoutingCase("similarity, first convolution", "similarity", WINDOWS, paths=BOOK_PATHS),
    RoutingCase(
        "connectionist, first convolution",
        "connectionist",
        WINDOWS,
        paths=("eager", "fast"),
    ),
)
"""Each registered routing, for 64 images."""


# ------------------------------------------------------------------------------- training steps

Loss = Callable[[Tensor, Tensor], Tensor]
"""A function of class activations [N, classes] and labels [N]."""


def spread(activation: Tensor, labels: Tensor) -> Tensor:
    """Return the spread loss with the margin from which training starts."""
    return spread_loss(activation, labels, 0.2)


@dataclass(frozen=True)
class StepCase:
    """One training step of a network: forward, backward and Adam."""

    name: str
    build: Callable[[], nn.Module]
    image: tuple[int, int, int]
    batch: int = 64
    classes: int = 10
    loss: Loss = margin_loss
    paths: tuple[str, ...] = BOOK_PATHS

    def prepare(self, path: str, device: str) -> Callable[[], object]:
        """Return a function that trains for one step on a path."""
        torch.manual_seed(0)
        network = self.build()
        use_path(network, path)
        return self.training_step(network, device)

    def training_step(self, network: nn.Module, device: str) -> Callable[[], object]:
        """Return a function that trains a network, on the device, for one step."""
        network.to(device)
        optimizer = torch.optim.Adam(network.parameters(), 1e-3)
        images = torch.rand(self.batch, *self.image, device=device)
        labels = torch.arange(self.batch, device=device) % self.classes

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            self.loss(network(images).activation, labels).backward()
            optimizer.step()

        return step


PAIRS, DIGITS, GREY = (2, 32, 32), (1, 28, 28), (1, 32, 32)
SMALL = (64, 8, 16, 16)
"""Filters and capsule types of the small network of the EM paper."""
STEPS = (
    StepCase(
        "EM routing, small network",
        lambda: MatrixCapsNet(PAIRS, sizes=SMALL),
        PAIRS,
        classes=5,
        loss=spread,
    ),
    StepCase(
        "EM routing, main network, batch 8",
        lambda: MatrixCapsNet(PAIRS),
        PAIRS,
        batch=8,
        classes=5,
        loss=spread,
    ),
    StepCase(
        "Negation, EM, 9 layers",
        lambda: DeepCapsNet(DIGITS, depth=9, hidden=(16, 10), routing="em_vector", bias=0.1),
        DIGITS,
    ),
    StepCase(
        "Learned routing, similarity",
        lambda: ConsensusCapsNet(GREY, routing="similarity"),
        GREY,
        classes=5,
        loss=spread,
    ),
    StepCase(
        "Learned routing, connectionist, batch 16",
        lambda: ConsensusCapsNet(GREY, routing="connectionist"),
        GREY,
        batch=16,
        classes=5,
        loss=spread,
        paths=("eager", "fast"),
    ),
)
"""The networks of the papers, for 64 images where nothing else is said."""

# --------------------------------------------------------------- what public repositories have


class DenseLayer(nn.Module):
    """Votes of capsules by given matrices [I, J, …], and a routing of them."""

    def __init__(self, weight: Tensor, routing: str, **options: object):
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.routing = make_routing(routing, weight.shape[1], 16, **options)

    def forward(self, pose: Tensor, activation: Tensor) -> Tensor:
        return self.routing(LazyVotes(self.weight, pose), activation).pose


@dataclass(frozen=True)
class LayerCase:
    """Votes and routing of a layer, forward and backward, from the poses of its children.

    ``pose`` [N, I, …] and ``weight`` [I, J, …] are shapes of
    :class:`~capslib.routing.LazyVotes`; parents have 16 numbers. ``options`` are for the
    ``routing``.
    """

    name: str
    routing: str
    pose: tuple[int, ...]
    weight: tuple[int, ...]
    options: Mapping[str, object] = field(default_factory=dict)
    paths: tuple[str, ...] = BOOK_PATHS

    def start(self, device: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return poses, activations [N, I] and matrices, the same at each call."""
        generator = torch.Generator().manual_seed(0)
        pose = torch.randn(self.pose, generator=generator)
        activation = torch.rand(self.pose[:2], generator=generator)
        weight = 0.1 * torch.randn(self.weight, generator=generator)
        return pose.to(device).requires_grad_(), activation.to(device), weight.to(device)

    def layer(self, path: str, device: str) -> nn.Module:
        """Return capslib's layer on a path."""
        _, _, weight = self.start(device)
        layer = DenseLayer(weight, self.routing, **self.options).to(device)
        use_path(layer, path)
        return layer

    def prepare(self, path: str, device: str) -> Callable[[], object]:
        """Return a function that runs capslib's layer forward and backward on a path."""
        return self.both_ways(self.layer(path, device), device)

    def both_ways(
        self, layer: Callable[[Tensor, Tensor], Tensor], device: str
    ) -> Callable[[], tuple[Tensor, Tensor]]:
        """Return a function that runs a layer forward and backward.

        ``layer`` makes parent poses of poses and activations. The function returns these, and
        the gradient of the poses.
        """
        pose, activation, _ = self.start(device)

        def step() -> tuple[Tensor, Tensor]:
            pose.grad = None
            parents = layer(pose, activation)
            parents.square().sum().backward()
            return parents.detach(), pose.grad

        return step


SHARED = (
    LayerCase("class capsules of CapsNet", "dynamic", (64, 1152, 8), (1152, 10, 16, 8)),
    LayerCase(
        "EM routing, from poses on",
        "em",
        (64 * 36, 9 * 8, 4, 4),
        (9 * 8, 16, 4, 4),
        # like the public layer, whose E-step takes all parents as equally active
        options={"inverse_temperature": 0.0, "beta_std": 0.0, "variance_offset": 1e-5},
    ),
    StepCase("training step of CapsNet", lambda: CapsNet(DIGITS, decoder=()), DIGITS),
)
"""What capslib shares with public repositories: two layers from poses on, and a network."""
CASES: Mapping[str, tuple[RoutingCase | StepCase | LayerCase, ...]] = {
    "shared": SHARED,
    "layer": LAYERS,
    "step": STEPS,
}
"""Every case, by kind."""
