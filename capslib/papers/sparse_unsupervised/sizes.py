"""What is fixed before training: the rank mask and the sizes of the networks (§2.1, §2.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field

from capslib.config import Config
from capslib.papers.common import in_unit, number_of_parameters
from capslib.papers.experiment import Arm, Experiment, Outcome, Scale

if TYPE_CHECKING:
    from capslib.training import Context


CAPSULES = 16
"""The number of latent capsules."""


class SizeOptions(Config):
    """The network for images of this side, and its mask."""

    side: int = Field(ge=28, title="side of the images")


def run(arm: Arm, context: Context) -> Outcome:
    """Count the capsules that the mask leaves whole or in part, and the network's parameters.

    Whole is above a half, in part above a tenth.
    """
    import torch

    from capslib.networks.sparse_unsupervised import SparseCapsNet, rank_mask

    side = arm.options.side
    with torch.device("meta"):
        network = SparseCapsNet((1, side, side), capsules=CAPSULES)
    mask = rank_mask(-torch.arange(float(CAPSULES)))
    first = int((mask > 0.5).sum())
    second = int((mask > 0.1).sum()) - first
    off = abs(first - 1) + abs(second - 2)
    return Outcome(
        metrics=in_unit({"off_one_and_two": off}, CAPSULES, "count"),
        series={"mask": mask.tolist()},
        parameters=number_of_parameters(network),
    )


def arms(scale: Scale) -> Iterator[Arm]:
    """Yield the networks for MNIST alone, and for affNIST."""
    for side in (28, 40):
        yield Arm(f"side_{side}", options=SizeOptions(side=side))


SIZES = Experiment(name="sizes", paper="sparse_unsupervised", arms=arms, run=run)
