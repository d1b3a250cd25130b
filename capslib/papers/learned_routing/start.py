"""What similarity routing can tell apart when it starts: the kernels of a new network over the distances of its votes."""

from __future__ import annotations

from typing import NamedTuple

import torch

from capslib.networks.learned_routing import ConsensusCapsNet
from capslib.papers.learned_routing.table3 import LAYERS, votes_of
from capslib.routing.consensus import Start, kernel
from capslib.training import seeded

BLIND = 0.1
"""A kernel below this tells of hardly any vote how near it is."""


class Sight(NamedTuple):
    """Of a layer: two distances between votes and their mean, what the kernel makes of them, and how often it is blind."""

    near: float  # a twentieth of the votes has less distance
    far: float  # a twentieth has more
    ratio: float  # of the coupling of a near vote to that of a far one, all else equal; mean over the parents
    blind: float  # share of the votes with a kernel below BLIND


@torch.no_grad()
def sight(start: Start, images: int = 8) -> dict[str, Sight]:
    """Every layer of a new network of the paper's size, on images of noise."""
    with seeded(0):
        network = ConsensusCapsNet((1, 32, 32), routing="similarity", start=start)
    with seeded(1):
        pose, active = network.primary_capsules(torch.randn(images, 1, 32, 32))
    found = {}
    for name in LAYERS:
        layer = getattr(network, name)
        votes = votes_of(layer, pose, active)[0].permute(3, 0, 2, 1)  # [D, N, J, I]
        routing = layer.routing
        of = routing.mixture, routing.width()
        lengths = torch.linalg.vector_norm(
            votes - votes.mean(dim=-1, keepdim=True), dim=0
        ).flatten()
        ends = torch.quantile(lengths[:100_000], torch.tensor([0.05, 0.95]))
        near, far = kernel(ends.expand(1, votes.shape[2], 2), torch.zeros(1, 1), *of).unbind(
            -1
        )  # [J]
        ratio = ((near - far) / routing.weights.abs().sum(dim=1)).exp().mean()  # eq. (11)
        blind = (kernel(votes, votes.mean(dim=-1), *of) < BLIND).float().mean()
        found[name] = Sight(*ends.tolist(), float(ratio), float(blind))
        pose, active, _ = layer(pose, active)
    return found
