"""What is measured: routing layers of the papers at their sizes, and whole training steps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from capslib.losses import margin_loss
from capslib.networks.em_routing import MatrixCapsNet
from capslib.networks.learned_routing import ConsensusCapsNet
from capslib.networks.negation_limitation import DeepCapsNet
from capslib.routing import RoutingResult, make_routing, squash, use_path
from capslib.routing.em import inverse_temperatures

# ---------------------------------------------------------- the plain form of the papers' lines


def textbook_dynamic(votes: Tensor, *, iterations: int = 3) -> RoutingResult:
    """Sabour et al. 2017, Procedure 1, line by line: broadcast, multiply, sum."""
    logits = votes.new_zeros(votes.shape[:-1])
    for iteration in range(iterations):
        coupling = logits.softmax(dim=-1)
        pose = squash((coupling[..., None] * votes).sum(dim=-3))
        if iteration < iterations - 1:
            logits = logits + (pose[..., None, :, :] * votes).sum(dim=-1)
    return RoutingResult(pose, torch.linalg.vector_norm(pose, dim=-1), coupling)


def textbook_em(
    votes: Tensor, activation: Tensor, beta_u: Tensor, beta_a: Tensor, *, iterations: int = 3
) -> RoutingResult:
    """Hinton et al. 2018, Procedure 1, in the same way. The E-step is a softmax of logs."""
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
    return RoutingResult(mu, logit.sigmoid(), coupling)


TEXTBOOK = {
    "dynamic": lambda votes, activation, betas: textbook_dynamic(votes),
    "em": lambda votes, activation, betas: textbook_em(votes, activation, *betas),
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


def limit(flops: float, moved: float, rates: dict[str, float]) -> tuple[float, str]:
    """Return the least seconds for these operations and bytes, and what sets them (roofline).

    ``rates`` holds ``vector_flops_per_second`` and ``bytes_per_second``.
    """
    arithmetic = flops / rates["vector_flops_per_second"]
    memory = moved / rates["bytes_per_second"]
    if arithmetic > memory:
        return arithmetic, "arithmetic"
    return memory, "memory"


@dataclass(frozen=True)
class Layer:
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


LAYERS = (
    Layer("em_routing 68K, ConvCaps 1, batch 32", "em", (32 * 36, 9 * 8, 16, 16)),
    Layer("em_routing 68K, ConvCaps 2, batch 32", "em", (32 * 16, 9 * 16, 16, 16)),
    Layer("em_routing 68K, classes, batch 32", "em", (32, 16 * 16, 5, 16)),
    Layer("em_routing 317K, ConvCaps 1, batch 8", "em", (8 * 36, 9 * 32, 32, 16)),
    Layer("dynamic routing of CapsNet, batch 128", "dynamic", (128, 1152, 10, 16)),
    Layer(
        "negation_limitation, RBA, first hidden layer, batch 128",
        "dynamic",
        (128, 1152, 16, 12),
    ),
    Layer("negation_limitation, EM, first hidden layer, batch 128", "em", (128, 1152, 16, 10)),
    Layer("negation_limitation, EM, hidden layer, batch 256", "em", (256, 16, 16, 10)),
    Layer("sparse_unsupervised, 40 × 40 images, batch 16", "dynamic", (16, 4608, 10, 16)),
    Layer("learned_routing, ConvCaps 1 by EM, batch 32", "em", (32 * 36, 9 * 8, 16, 16)),
    Layer("inequality_anomaly, two classes, batch 64", "dynamic", (64, 2048, 2, 16)),
    Layer(
        "learned_routing, ConvCaps 1 by similarity, batch 32",
        "similarity",
        (32 * 36, 9 * 8, 16, 16),
        paths=BOOK_PATHS,
    ),
)


# ------------------------------------------------------------------------------- training steps


@dataclass(frozen=True)
class Step:
    """One training step of a network: forward, backward and Adam."""

    name: str
    build: Callable[[], nn.Module]
    image: tuple[int, int, int]
    batch: int
    classes: int = 10
    paths: tuple[str, ...] = BOOK_PATHS

    def prepare(self, path: str, device: str) -> Callable[[], object]:
        """Return a function that trains for one step on a path."""
        torch.manual_seed(0)
        network = self.build().to(device)
        use_path(network, path)
        optimizer = torch.optim.Adam(network.parameters(), 1e-3)
        images = torch.randn(self.batch, *self.image, device=device)
        labels = torch.arange(self.batch, device=device) % self.classes

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            margin_loss(network(images).activation, labels).backward()
            optimizer.step()

        return step


NORB, MNIST = (2, 32, 32), (1, 28, 28)
STEPS = (
    Step(
        "em_routing, 68K, batch 32",
        lambda: MatrixCapsNet(NORB, sizes=(64, 8, 16, 16)),
        NORB,
        batch=32,
        classes=5,
    ),
    Step("em_routing, 317K, batch 8", lambda: MatrixCapsNet(NORB), NORB, batch=8, classes=5),
    Step(
        "negation_limitation, RBA, 5 layers, batch 32",
        lambda: DeepCapsNet(MNIST, depth=5, bias=0.1),
        MNIST,
        batch=32,
    ),
    Step(
        "negation_limitation, EM, 9 layers, batch 32",
        lambda: DeepCapsNet(MNIST, depth=9, hidden=(16, 10), routing="em_vector", bias=0.1),
        MNIST,
        batch=32,
    ),
    Step(
        "learned_routing, similarity, batch 32",
        lambda: ConsensusCapsNet((1, 32, 32), routing="similarity"),
        (1, 32, 32),
        batch=32,
        classes=5,
    ),
)
