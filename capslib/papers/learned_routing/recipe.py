"""A network of the paper and how it is trained (§5; released code)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from capslib.config import DataName, LossName, NetworkName, RoutingName
from capslib.data.registry import SETS
from capslib.papers.common import SpreadLoss, start_at_half
from capslib.papers.experiment import Scale
from capslib.recipes import Objective, Recipe

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from capslib.data import DataSplit
    from capslib.training import Examples

WATCHED = 2000
"""Test images for the error after every epoch; the final error is that of all images."""


NETWORK_FIELDS = ("sizes", "routing", "iterations", "coordinates", "raw_poses", "trained")
"""The fields that are keywords of the network's constructor."""


class ConsensusRecipe(Recipe):
    """One network on one data set. Defaults are the setting of the paper for smallNORB.

    What the paper does not state is that of the released code, except for the loss.
    """

    BATCH_OF_TEST: ClassVar[int] = 250

    data: DataName = "smallnorb"
    network: NetworkName = "consensus_capsnet"
    routing: RoutingName = Field("connectionist", title="routing")
    trained: bool = Field(True, title="what a routing can learn is trained")
    """The control that the paper lacks: a learned routing that stays as it starts."""
    similarity_start: Literal["released", "spread", "steep"] = Field(
        "released", title="start of similarity routing"
    )
    theta: Literal["types", "columns"] = Field(
        "types", title="what θ of similarity routing belongs to"
    )
    reads: Literal["paper", "released"] = Field(
        "paper", title="states that the couplings and the activation are made of"
    )
    sizes: tuple[int, int, int, int] = Field((64, 8, 16, 16), title="filters and capsule types")
    iterations: int = Field(3, ge=1, le=20, title="routing iterations")
    coordinates: bool = Field(True, title="coordinate addition")
    raw_poses: bool = Field(False, title="primary poses without ReLU and norm")
    views: Literal["separate", "pairs"] = Field("separate", title="images of a stereo pair")
    """``separate``: an example each, with one channel. ``pairs``: one example, two channels."""
    loss: LossName = Field("spread", title="loss")
    """The paper states none, and the release has the cross entropy of a softmax by default.

    Activations of EM routing and RBA are not logits, so all routings have the spread loss.
    """
    resize: int | None = Field(48, ge=8, title="images are resized to")
    pad: int = Field(0, ge=0, title="black pixels added at every edge")
    crop: int = Field(32, ge=17, title="pixels of a crop")
    jitter: bool = Field(True, title="brightness and contrast vary in training")
    standardise: Literal["image", "no"] = Field(
        "image", title="pixels whose mean and deviation standardise an image"
    )
    epochs: int = Field(100, ge=1, le=10_000, title="epochs")
    batch_size: int = Field(64, ge=1, title="batch size")
    learning_rate: float = Field(3e-3, gt=0, le=1, title="Adam learning rate")
    decay: Literal["steps", "cosine"] = Field("steps", title="decay of the learning rate")
    """``steps``: times 0.96 every 20,000 steps, as released. ``cosine``: to nothing."""
    held_out: bool = Field(
        False, title="tested on some training images, which are not trained on"
    )
    """To choose an option without a look at the test images: one toy of each category, or a
    tenth of the digits."""

    def choose(self, split: DataSplit) -> dict[str, Any]:
        """Return the whole split; where training images are held out, these as ``test``."""
        import numpy as np

        from capslib.training import subset

        if not self.held_out:
            return super().choose(split)
        if split.split != "train":
            return {}
        if "instance" in split.arrays:
            instance = split["instance"]
            held_out = instance == instance.max()
        else:
            rows = subset(len(split), len(split) // 10).numpy()
            held_out = np.isin(np.arange(len(split)), rows)
        return {"train": ~held_out, "test": held_out}

    def arrange(self, parts: dict[str, Examples]) -> dict[str, Examples]:
        """Make both images of a pair examples of their own, unless the network sees pairs."""
        if self.views == "pairs":
            return parts
        separate = {}
        for name, examples in parts.items():
            images = examples.inputs.flatten(0, 1)[:, None]
            labels = examples.labels.repeat_interleave(examples.inputs.shape[1])
            separate[name] = type(examples)(images, labels)
        return separate

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape (C, H, W) of what the network sees of one image."""
        channels = 1 if self.views == "separate" else SETS[self.data].train_shape[1]
        return (channels, self.crop, self.crop)

    @property
    def train_size(self) -> int:
        """The number of training examples: two for each pair of images that is seen apart."""
        size, channels, *_ = SETS[self.data].train_shape
        if self.held_out and channels == 2:
            size = size * 4 // 5  # four of the five toys of each category
        elif self.held_out:
            size -= size // 10
        size = min(size, self.images or size)
        return size * channels if self.views == "separate" else size

    def prepare(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return what the network sees of uint8 images [N, C, H, W].

        With a generator they are prepared as in training, without one as in a test. As
        released, they are standardised before crop and jitter, so that jitter is not undone.
        """
        from torch.nn import functional as F

        from capslib.data.transforms import (
            center_crop,
            jitter,
            random_crop,
            standardise,
            to_float,
        )

        x = to_float(images)
        if self.standardise == "image":
            x = standardise(x)
        x = F.pad(x, (self.pad,) * 4)
        if generator is None:
            return center_crop(x, self.crop)
        x = random_crop(x, self.crop, generator)
        if self.jitter:
            x = jitter(x, generator, brightness=2.0, contrast=(0.5, 1.5))
        return x

    def options(self) -> dict[str, Any]:
        """Return the keywords of the network's constructor."""
        options = self.model_dump(include=set(NETWORK_FIELDS))
        options["logits"] = self.loss == "cross_entropy"
        if self.routing == "similarity":
            options |= dict(start=self.similarity_start, theta=self.theta)
        elif self.routing == "connectionist":
            options["reads"] = self.reads
        return options

    def start(self, network: nn.Module, train: Examples, seed: int) -> None:
        """Set β and λ on training images, for EM routing alone."""
        start_at_half(self, network, train, seed)

    def objective(self, device: torch.device) -> Objective:
        """Return the spread loss with the margin of the release, or the loss of that name."""
        if self.loss == "spread":
            return SpreadLoss(self, device, margin_at)
        return Objective(self)

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """Return Adam on what is trained, with the ε of the release."""
        import torch

        trained = [p for p in network.parameters() if p.requires_grad]
        return torch.optim.Adam(trained, self.learning_rate, eps=1e-9)

    def rate(self, progress: float) -> float:
        """Return the learning rate when ``progress`` of the training, from 0 to 1, is over."""
        if self.decay == "cosine":
            return self.learning_rate * (1 + math.cos(math.pi * progress)) / 2
        return self.learning_rate * 0.96 ** (progress * self.steps / 20_000)

    def evaluate(self, network: nn.Module, splits: dict[str, Examples]) -> dict[str, float]:
        """Return the error on some test images, in percent."""
        return {"error_of_some": self.error(network, splits["test"].at_most(WATCHED))}


def margin_at(progress: float) -> float:
    """Return the margin of the released spread loss when ``progress``, 0 to 1, is over."""
    return 0.2 + 0.79 / (1 + math.exp(4 - 10 * progress))


MNIST: dict[str, Any] = dict(resize=None, pad=2, crop=28, jitter=False, standardise="no")
"""What is different for MNIST: shifts of up to two pixels, and grey values in 0…1."""


def paper_recipe(data: str, **changes: Any) -> ConsensusRecipe:
    """Return the setting of the paper for a data set, with some changes."""
    setting = MNIST if data == "mnist" else {}
    return ConsensusRecipe(data=data, **setting, **changes)


SMOKE = dict(
    sizes=(8, 2, 3, 3), epochs=2, batch_size=20, images=100, decay="cosine", jitter=False
)
CPU = dict(sizes=(16, 4, 8, 8), images=10_000, decay="cosine", jitter=False, crop=24)
REDUCED: dict[Scale, dict[str, dict[str, Any]]] = {
    "smoke": {
        "digits": dict(**SMOKE, resize=24, crop=20, standardise="no"),
        "toys": dict(**SMOKE, resize=24, crop=20),
    },
    "cpu": {
        "mnist": dict(**CPU, pad=0, epochs=8),
        "smallnorb": dict(**CPU, resize=32, epochs=4),
    },
    "paper": {"mnist": {}, "smallnorb": {}},
}
"""What each scale changes for each of its sets.

On smallNORB at cpu scale four epochs leave all routings below the floor of training accuracy,
so these networks decide nothing.
"""
