"""What λ₁ and λ₂ do on the toy data of Figure 2, and whether routings tell votes from their negatives."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from capslib.config import Config, RoutingName
from capslib.papers.common import in_unit
from capslib.papers.experiment import Outcome, Scale

if TYPE_CHECKING:
    from capslib.training import Context

LIMIT = 1e6
"""A weight as large as this stands for an infinite one."""
SMALL = (3.0, 1.0, 0.3, 0.1)
"""λ₁ and λ₂ fall through these values together."""


class ToyConfig(Config):
    """Two clusters of votes for one parent."""

    draws: int = Field(5, ge=1, title="draws of the votes")


def run(config: ToyConfig, context: Context) -> Outcome:
    """The limits of λ₁ and λ₂, the share of the dense cluster while both fall, and the closed form against a minimiser."""
    from capslib.papers.learned_routing import toy
    from capslib.routing.consensus import closed_form, kernel

    worst: dict[str, float] = {}
    least = 1.0

    def keep(name: str, value: float) -> None:
        worst[name] = max(worst.get(name, -1.0), value)

    for draw in range(config.draws):
        seed = 1000 * context.seed + draw
        votes, activation, mixture, width = toy.clusters(seed)
        n = len(activation)
        keep("off_uniform", float((n * toy.couplings(seed, LIMIT, 1.0) - 1).abs().max()))
        keep(
            "off_activation",
            float(
                (toy.couplings(seed, 1.0, LIMIT) * activation.sum() / activation - 1)
                .abs()
                .max()
            ),
        )
        shares = [
            float(toy.couplings(seed, value, value, iterations=10)[: toy.DENSE].sum())
            for value in SMALL
        ]
        keep("largest_fall_of_share", max(a - b for a, b in itertools.pairwise(shares)))
        least = min(least, shares[-1])
        mu = votes.mean(dim=0)[0]
        k = kernel(votes.permute(2, 1, 0), mu[:, None], mixture, width)[0]
        for one, two in ((0.5, 0.5), (2.0, 0.1), (0.2, 1.0)):
            closed = closed_form(
                k, activation.log(), votes.new_tensor(one), votes.new_tensor(two)
            ).softmax(0)
            keep(
                "off_minimum",
                float((closed - toy.minimised(k, activation.log(), one, two)).abs().max()),
            )
            keep("rise", toy.largest_rise(seed, one, two))
    return Outcome(
        metrics=in_unit(worst | {"least_dense_share": least}, config.draws, "difference")
    )


def grid(scale: Scale) -> list[ToyConfig]:
    return [ToyConfig(draws=2)] if scale == "smoke" else [ToyConfig()]


class NegationConfig(Config):
    """A routing of random votes and of their negatives."""

    ARM: ClassVar[frozenset[str]] = frozenset({"bias"})

    routing: RoutingName
    bias: bool = Field(False, title="bias")


def negate(config: NegationConfig, context: Context) -> Outcome:
    """How far the poses of negated votes are from negated poses, and their activations from the same activations."""
    import torch

    from capslib.routing import make_routing

    torch.manual_seed(context.seed)
    routing = make_routing(config.routing, 5, 16, bias=0.1 if config.bias else None).double()
    votes, activation = (
        torch.randn(20, 30, 5, 16, dtype=torch.float64),
        torch.rand(20, 30, dtype=torch.float64),
    )
    with torch.no_grad():
        one, other = routing(votes, activation), routing(-votes, activation)
    size = torch.linalg.vector_norm(one.pose, dim=-1).mean()
    pose = torch.linalg.vector_norm(one.pose + other.pose, dim=-1).amax() / size
    found = {
        "pose_is_not_odd": float(pose),
        "activation_is_not_even": float((one.activation - other.activation).abs().max()),
    }
    return Outcome(metrics=in_unit(found, 20, "difference"))


def negation_grid(scale: Scale) -> list[NegationConfig]:
    names = ("similarity", "connectionist", "em", "dynamic")
    return [NegationConfig(routing=name, bias=bias) for name in names for bias in (False, True)]


def negate_network(routing: str, raw: bool = False, images: int = 16) -> tuple[float, float]:
    """How far the class poses of a new network move, in mean lengths, from an image to its negative, and to another image.

    Images are noise; ``raw`` networks neither clip and divide primary poses nor add coordinates.
    """
    import torch

    from capslib.networks.learned_routing import ConsensusCapsNet
    from capslib.training import seeded

    with seeded(0), torch.no_grad():
        network = ConsensusCapsNet(
            (1, 32, 32), routing=routing, raw_poses=raw, coordinates=not raw
        ).eval()
        x = torch.randn(images, 1, 32, 32)
        pose, *others = (
            network.layers(of)["classes"].pose for of in (x, -x, x.roll(1, dims=0))
        )
    size = torch.linalg.vector_norm(pose, dim=-1).mean()
    negative, other = (
        float(torch.linalg.vector_norm(pose - of, dim=-1).mean() / size) for of in others
    )
    return negative, other
