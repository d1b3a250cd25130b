"""The one small network of the study, with each routing, and how it is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from capslib.config import DataName, NetworkName
from capslib.data.registry import SETS
from capslib.papers.common import number_of_parameters
from capslib.recipes import Recipe

if TYPE_CHECKING:
    from torch import Tensor, nn

    from capslib.data import DataSplit
    from capslib.training import Examples

BY_INSTANCE = ("smallnorb", "toys")
"""Data sets of which one instance (a toy) of each class is held out, and not single images.

Other views of a toy that is trained on would be too easy.
"""
INSTANCES = 5
"""The instances of each class among the training images of these sets."""
SPLIT_SEED = 59
"""What draws the images that are held out, the same for all networks and seeds."""
WATCHED = 1000
"""Held-out images whose accuracy is logged after every epoch."""


class ComparisonRecipe(Recipe):
    """A CapsNet without a decoder, or the CNN of as many parameters, on part of the training
    images; the others are held out.

    An *epoch* is ``epoch_steps`` batches, drawn without replacement. The training goes through
    the shorter ones of ``measured_after`` epochs, because loss and learning rate are constant.
    """

    data: DataName
    network: NetworkName = "capsnet"
    iterations: int | None = Field(None, ge=1, le=20, title="routing iterations")
    """None is what the routing has by default; 1 of dynamic routing couples uniformly."""
    batch_size: int = Field(64, ge=1, title="batch size")
    epoch_steps: int = Field(200, ge=1, title="steps of an epoch")
    measured_after: tuple[int, ...] = Field((60,), title="epochs after which it is measured")
    held_out: int = Field(5000, ge=1, title="training images that are held out")
    """Of the sets ``BY_INSTANCE``, one instance of each class is held out instead."""
    filters: int = Field(32, ge=1, title="filters of the convolution")
    kernel: int = Field(5, ge=1, title="kernel of both convolutions")
    stride: int = Field(2, ge=1, title="stride of the first convolution")
    primary_types: int = Field(8, ge=1, title="types of primary capsules")

    BATCH_OF_TEST = 250

    def choose(self, split: DataSplit) -> dict[str, Any]:
        """Return the images to train on, ``held_out`` ones, or ``test``."""
        if split.split != "train":
            return super().choose(split)
        from capslib.training import permutation

        if self.data in BY_INSTANCE:
            instances = np.unique(split["instance"])
            chosen = instances[permutation(len(instances), SPLIT_SEED, 0)[0]]
            is_held_out = np.asarray(split["instance"]) == chosen
        else:
            is_held_out = np.zeros(len(split), dtype=bool)
            is_held_out[permutation(len(split), SPLIT_SEED, 0)[: self.held_out].numpy()] = True
        return {"train": ~is_held_out, "held_out": is_held_out}

    @property
    def train_size(self) -> int:
        """The number of training images that are not held out."""
        size = SETS[self.data].train_shape[0]
        held_out = size // INSTANCES if self.data in BY_INSTANCE else self.held_out
        return min(size - held_out, self.images or size)

    def steps_of_epoch(self, examples: int) -> int:
        """Return ``epoch_steps``, or a whole pass where the examples are fewer."""
        return min(self.epoch_steps, super().steps_of_epoch(examples))

    @property
    def prepares_batches(self) -> bool:
        """True, because tests change and attack pixels."""
        return True

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Return the network for images of this shape, with random weights."""
        from capslib.networks import create_network

        if self.network == "cnn":
            sizes = self.sizes_of_cnn(shape, classes)
            return create_network("cnn", shape, classes, sizes=sizes)
        options: dict[str, Any] = {"routing": self.routing}
        if self.iterations is not None:
            options["iterations"] = self.iterations
        for name in ("filters", "kernel", "stride", "primary_types"):
            options[name] = getattr(self, name)
        return create_network(self.network, shape, classes, decoder=(), **options)

    def sizes_of_cnn(self, shape: tuple[int, ...], classes: int) -> tuple[int, int, int]:
        """Return filters and hidden units of the CNN with as many parameters as the CapsNet."""
        import torch

        from capslib.networks import create_network

        with torch.device("meta"):
            capsules = self.model_copy(update={"network": "capsnet", "routing": "dynamic"})
            target = number_of_parameters(capsules.build(shape, classes))
            with_one, with_two = (
                number_of_parameters(
                    create_network("cnn", shape, classes, sizes=(16, 32, hidden))
                )
                for hidden in (1, 2)
            )
        return (16, 32, max(1, round((target - with_one) / (with_two - with_one)) + 1))

    def scores(self, network: nn.Module, inputs: Tensor) -> Tensor:
        """Return activations [N, C] in 0…1; those of the CNN are the logistic of its logits."""
        scores = super().scores(network, inputs)
        return scores.sigmoid() if self.network == "cnn" else scores

    def shorter(self) -> tuple[int, ...]:
        """Return the numbers of epochs to measure after, on the way of this training."""
        return tuple(sorted({n for n in self.measured_after if n < self.epochs}))

    def evaluate(self, network: nn.Module, splits: dict[str, Examples]) -> dict[str, float]:
        """Return the accuracy on some held-out images."""
        watched = splits["held_out"].at_most(WATCHED)
        return {"held_out_accuracy": self.accuracy(network, watched)}
