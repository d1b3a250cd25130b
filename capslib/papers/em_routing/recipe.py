"""A network of the paper and how it is trained and tested (§4, §5)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from capslib.config import DataName, LossName, NetworkName, RoutingName
from capslib.data.registry import SETS
from capslib.data.viewpoints import familiar
from capslib.papers.common import SpreadLoss, start_at_half
from capslib.papers.experiment import Arm, Scale
from capslib.recipes import Objective, Recipe, Training

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from capslib.data import DataSplit
    from capslib.training import Examples


Normalise = Literal["types+positions", "positions-per-type", "types-per-position", "released"]
ONE_TYPE: Normalise = "positions-per-type"
MARGIN_STEPS, DECAY_STEPS = 400_000, 2_000_000
"""The steps of the release in which the margin grows, and the rate falls to a sixtieth."""
EPOCHS_OF_50000_STEPS = 132
"""Epochs of smallNORB with batches of 64 that make 50,160 steps."""
WATCHED = 5000
"""Test images for the error after every epoch; the final error is that of all images."""


NETWORK_FIELDS = ("sizes", "routing", "iterations", "pose", "coordinates")
"""The fields that are keywords of the constructor of capsules under any routing."""


class EMRecipe(Recipe):
    """A network on a data set.

    Defaults follow the paper, its release and its authors, as far as these state them.
    Competition, the start of β and λ and the span of both schedules are ours.
    """

    data: DataName = "smallnorb"
    network: NetworkName = "matrix_capsnet"
    routing: RoutingName = "em"
    size: Literal["main", "small"] = Field("main", title="which of the paper's networks")
    sizes: tuple[int, int, int, int] = Field((32, 32, 32, 32), title="A, B, C, D")
    cnn: tuple[int, int, int] = Field(
        (32, 64, 1024), title="filters and hidden units of the CNN"
    )
    iterations: int = Field(3, ge=1, le=20, title="routing iterations")
    pose: Literal["matrix", "vector"] = Field("matrix", title="pose")
    coordinates: bool = Field(True, title="coordinate addition")
    activation: Literal["mdl", "mixing"] = Field("mdl", title="activation of a parent")
    normalise: Normalise = Field(ONE_TYPE, title="who competes for a child")
    preset: Literal["printed", "released", "calibrated"] = Field(
        "calibrated", title="constants of routing"
    )
    loss: LossName = Field("spread", title="loss")
    margin: Literal["sigmoid", "linear", "fixed"] = Field(
        "sigmoid", title="schedule of the spread loss's margin"
    )
    schedule: Literal["run", "steps"] = Field(
        "run", title="what the schedules of margin and learning rate span"
    )
    """The whole run, whatever its length; or as many steps as in the release (``MARGIN_STEPS``,
    ``DECAY_STEPS``)."""
    resize: int = Field(48, ge=8, title="images are resized to")
    crop: int = Field(32, ge=17, title="pixels of a crop")
    jitter: bool = Field(True, title="brightness and contrast vary in training")
    epochs: int = Field(100, ge=1, le=10_000, title="epochs")
    batch_size: int = Field(64, ge=1, title="batch size")
    learning_rate: float = Field(3e-3, gt=0, le=1, title="Adam learning rate")
    cnn_learning_rate: float | None = Field(
        None, gt=0, le=1, title="Adam learning rate of the CNN, where it is another"
    )
    decay: Literal["exponential", "cosine"] = Field(
        "exponential", title="decay of the learning rate"
    )
    weight_decay: float = Field(2e-7, ge=0, title="weight decay")
    factor: Literal["azimuth", "elevation"] | None = Field(
        None, title="factor by which only familiar viewpoints are trained on"
    )

    # the main network then takes no more memory to test than to train
    BATCH_OF_TEST = 250

    def as_cnn(self) -> EMRecipe:
        """Return the recipe of the CNN beside these capsules.

        Nothing competes in a CNN, so ``normalise`` is reset: all CNNs are one training.
        """
        return self.model_copy(update={"network": "cnn", "normalise": ONE_TYPE})

    def choose(self, split: DataSplit) -> dict[str, Any]:
        """Return named parts of a split.

        With a ``factor``: the familiar viewpoints to train on, and the familiar and the novel
        ones to test on.
        """
        if self.factor is None:
            return super().choose(split)
        mask = familiar(split, self.factor)
        if split.split == "train":
            return {"train": mask}
        return {"familiar": mask, "novel": ~mask}

    @property
    def train_size(self) -> int:
        """The number of training images: a third of the set where one factor is familiar."""
        size = SETS[self.data].train_shape[0]
        if self.factor is not None:
            size //= 3
        return min(size, self.images or size)

    def options(self) -> dict[str, Any]:
        """Return the keywords of the network's constructor."""
        if self.network == "cnn":
            return dict(sizes=self.cnn)
        options = self.model_dump(include=set(NETWORK_FIELDS))
        if self.routing == "em":
            options |= dict(
                normalise=self.normalise,
                preset=self.preset,
                mixing=self.activation == "mixing",
            )
        return options

    def start(self, network: nn.Module, train: Examples, seed: int) -> None:
        """Set β and λ on training images, with the preset ``calibrated`` alone."""
        if self.network != "cnn" and self.preset == "calibrated":
            start_at_half(self, network, train, seed)

    def objective(self, device: torch.device) -> Objective:
        """Return the loss of a batch. The CNN's is always the cross entropy of its logits."""
        if self.network == "cnn":
            return Objective(self.model_copy(update={"loss": "cross_entropy"}))
        if self.loss != "spread":
            return Objective(self)

        def margin(progress: float) -> float:
            return margin_at(self.spanned(progress, MARGIN_STEPS), self.margin)

        return SpreadLoss(self, device, margin)

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """Return Adam, with weight decay for weights only."""
        import torch

        weights = [parameter for parameter in network.parameters() if parameter.ndim > 1]
        biases = [parameter for parameter in network.parameters() if parameter.ndim <= 1]
        groups = [{"params": weights, "weight_decay": self.weight_decay}, {"params": biases}]
        return torch.optim.Adam(groups, self.rate(0))

    def rate(self, progress: float) -> float:
        """Return the learning rate.

        Exponential: times 0.96 for each hundredth of what it spans, as the release does every
        20,000 of its 2,000,000 steps.
        """
        rate = self.learning_rate
        if self.network == "cnn" and self.cnn_learning_rate is not None:
            rate = self.cnn_learning_rate
        progress = self.spanned(progress, DECAY_STEPS)
        if self.decay == "exponential":
            return rate * 0.96 ** (100 * progress)
        return rate * ((1 + math.cos(math.pi * progress)) / 2)

    def spanned(self, progress: float, steps: int) -> float:
        """Return which share of a schedule is over.

        It spans the run, or so many ``steps`` as in the release.
        """
        if self.schedule == "run":
            return progress
        return round(progress * self.steps) / steps

    def shorter(self) -> range:
        """Return the lengths of the shorter trainings that this one begins with.

        With the release's own schedules, each 50,000 steps are a training of their own.
        """
        if self.schedule == "run":
            return range(0)
        return range(EPOCHS_OF_50000_STEPS, self.epochs, EPOCHS_OF_50000_STEPS)

    def evaluate(self, network: nn.Module, splits: dict[str, Examples]) -> dict[str, float]:
        """Return errors in percent: of some test images, or of all familiar and novel ones."""
        if self.factor is None:
            return {"error_of_some": self.error(network, splits["test"].at_most(WATCHED))}
        return {view: self.error(network, splits[view]) for view in ("familiar", "novel")}

    def error_of_crops(self, network: nn.Module, examples: Examples) -> float:
        """Return the error in percent when up to 13 crops vote.

        Their activations, each divided by its sum, are added.
        """
        from capslib.data.transforms import CENTRE_AND_DIAGONALS, crops, standardise, to_float
        from capslib.training import accuracy

        border = (self.resize - self.crop) // 2
        offsets = [offset for offset in CENTRE_AND_DIAGONALS if max(map(abs, offset)) <= border]

        def votes(images: Tensor) -> Tensor:
            pixels = to_float(images)
            cropped = crops(pixels, self.crop, offsets)  # [K, N, C, crop, crop]
            reference = None
            if self.standardise == "image":
                reference = pixels.repeat(len(offsets), 1, 1, 1)
            scores = self.scores(network, standardise(cropped.flatten(0, 1), of=reference))
            scores = scores.unflatten(0, cropped.shape[:2])  # [K, N, classes]
            if self.network == "cnn":
                scores = scores.softmax(dim=-1)
            else:
                scores = scores / scores.sum(dim=-1, keepdim=True)
            return scores.sum(dim=0)

        batch = max(1, self.BATCH_OF_TEST // len(offsets))
        return 100 * (1 - accuracy(votes, examples, batch))


def margin_at(progress: float, schedule: Literal["sigmoid", "linear", "fixed"]) -> float:
    """Return the margin of the spread loss when ``progress`` of the training is over.

    ``progress`` exceeds 1 after the release's 400,000 steps. "sigmoid" is the release's
    0.2 + 0.79·σ(step/50000 − 4) in a training of 400,000 steps.
    """
    if schedule == "fixed":
        return 0.9
    if schedule == "linear":
        return 0.2 + 0.7 * progress
    return 0.2 + 0.79 / (1 + math.exp(4 - 8 * progress))


SMALL = (64, 8, 16, 16)
"""A, B, C and D of the paper's small network."""
SETTINGS: dict[Scale, dict[str, Any]] = {
    "smoke": dict(data="toys"),
    "cpu": dict(shared_stream=True),
    "paper": dict(normalise="released", cnn_learning_rate=1e-3, standardise="image"),
}
"""What all arms of a scale have in common beside their size.

The main network competes as the release does where it has the paper's size. Decided on 28
November 2026, before a network of the paper's size was trained: the text lets all parents
compete that see a child, the authors' code does not, and its checkpoint has the numbers of the
paper. Reduced networks compete within a type, as they did before.
"""
SMALLER: dict[Scale, dict[str, Any]] = {
    "smoke": dict(
        sizes=(8, 4, 4, 4),
        cnn=(8, 8, 16),
        resize=24,
        crop=20,
        images=200,
        epochs=3,
        batch_size=20,
        decay="cosine",
    ),
    "cpu": dict(
        sizes=(32, 8, 8, 8),
        cnn=(16, 16, 30),
        resize=32,
        crop=24,
        epochs=12,
        batch_size=32,
    ),
    "paper": {},
}
"""What makes an arm of a scale smaller than the paper's."""


def paper_recipe(scale: Scale, **changes: Any) -> EMRecipe:
    """Return a recipe of the paper's size, with some changes; of a CNN as one training."""
    recipe = EMRecipe(**{**SETTINGS[scale], **changes})
    return recipe.as_cnn() if recipe.network == "cnn" else recipe


def recipes_beside(scale: Scale, **changes: Any) -> dict[str, EMRecipe]:
    """Return what is compared: capsules and a CNN; at paper scale the CNN alone, too.

    Alone it takes a hundredth of the time.
    """
    recipe = paper_recipe(scale, **changes)
    if scale != "paper":
        return {"capsules_and_cnn": recipe}
    return {"capsules_and_cnn": recipe, "cnn": recipe.as_cnn()}


def trainings_beside(arm: Arm, seed: int) -> list[Training]:
    """Return the trainings of the CNN and of the capsules, or of the CNN alone."""
    cnn = Training(arm.recipe.as_cnn(), seed)
    return [cnn] if arm.recipe.network == "cnn" else [cnn, Training(arm.recipe, seed)]
