"""What the method fixes before anything is trained: the rank mask and the sizes of the networks (§2.1, §2.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from capslib.config import Config
from capslib.papers.common import in_unit
from capslib.papers.experiment import Outcome, Scale

if TYPE_CHECKING:
    from capslib.training import Context


class SizesConfig(Config):
    """A mask over so many latent capsules, and the network for images of this side."""

    side: int = Field(ge=28, title="side of the images")
    capsules: int = Field(16, ge=2, title="latent capsules")
    gamma: float = Field(12.0, gt=0, title="steepness of the rank mask")


def run(config: SizesConfig, context: Context) -> Outcome:
    """Count the capsules that the mask leaves whole (above a half) and in part (above a tenth), and the network's parameters."""
    import torch

    from capslib.networks.sparse_unsupervised import SparseCapsNet, rank_mask

    mask = rank_mask(-torch.arange(float(config.capsules)), config.gamma)
    whole, partly = int((mask > 0.5).sum()), int(((mask > 0.1) & (mask <= 0.5)).sum())
    with torch.device("meta"):
        network = SparseCapsNet((1, config.side, config.side), capsules=config.capsules)
    metrics = in_unit(
        {"off_one_and_two": abs(whole - 1) + abs(partly - 2)}, config.capsules, "count"
    )
    return Outcome(
        metrics=metrics,
        series={"mask": mask.tolist()},
        parameters=sum(p.numel() for p in network.parameters()),
    )


def grid(scale: Scale) -> list[SizesConfig]:
    return [SizesConfig(side=side) for side in (28, 40)]
