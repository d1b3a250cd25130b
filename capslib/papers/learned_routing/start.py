"""What similarity routing can tell apart at its start: kernels over the distances of votes."""

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
    """Two distances of a layer's votes from their mean, and what the kernel makes of them."""

    near: float
    """A twentieth of the votes has less distance."""
    far: float
    """A twentieth has more."""
    ratio: float
    """The coupling of a near vote over that of a far one, all else equal; mean over parents."""
    blind: float
    """The share of the votes with a kernel below :data:`BLIND`."""


@torch.no_grad()
def sight(start: Start, images: int = 8) -> dict[str, Sight]:
    """Return the sight of every layer of a new network of the paper's size, on noise."""
    with seeded(0):
        network = ConsensusCapsNet((1, 32, 32), routing="similarity", start=start)
    with seeded(1):
        pose, activation = network.primary_capsules(torch.randn(images, 1, 32, 32))
    sights = {}
    for name in LAYERS:
        layer = getattr(network, name)
        routing = layer.routing
        widths = routing.mixture, routing.width()
        votes, _, _ = votes_of(layer, pose, activation)
        votes = votes.permute(3, 0, 2, 1)  # [D, N, J, I]
        mean = votes.mean(dim=-1)
        distances = torch.linalg.vector_norm(votes - mean[..., None], dim=0).flatten()
        near, far = torch.quantile(distances, torch.tensor([0.05, 0.95]))
        parents = votes.shape[2]
        points = torch.stack([near, far]).expand(1, parents, 2)
        kernels = kernel(points, torch.zeros(1, 1), *widths)  # [J, 2]
        gap = kernels[:, 0] - kernels[:, 1]
        ratio = (gap / routing.weights.abs().sum(dim=1)).exp().mean()  # eq. (11)
        blind = (kernel(votes, mean, *widths) < BLIND).float().mean()
        sights[name] = Sight(float(near), float(far), float(ratio), float(blind))
        pose, activation, _ = layer(pose, activation)
    return sights
