"""A capsule network that learns to draw shifted digits (§2; released code)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from capslib.config import DataName, NetworkName
from capslib.data.registry import SETS
from capslib.papers.common import squared_error
from capslib.papers.experiment import Arm, Scale
from capslib.recipes import Objective, Recipe
from capslib.registry import NETWORKS

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from capslib.training import Examples


NETWORK_FIELDS = (
    "capsules",
    "dim",
    "filters",
    "kernel",
    "primary_types",
    "primary_dim",
    "primary_kernel",
    "decoder",
    "mask",
    "gamma",
    "boost",
    "band",
    "relative_boost",
    "grouping",
    "routing",
    "iterations",
)
"""The fields that are keywords of capsule networks that reconstruct."""


class SparseRecipe(Recipe):
    """Digits at random places in a frame. Defaults are the paper's SPARSECAPS for affNIST (§2).

    ``mask`` "ranks" is SPARSECAPS, "none" the dense network. Mask "label" with ten capsules is
    SUPCAPS; it and the network "cnn" see labels. The network "cnn" learns to classify,
    "autoencoder" to reconstruct without capsules.
    """

    BATCH_OF_TEST: ClassVar[int] = 500

    data: DataName = "mnist"
    network: NetworkName = "sparse_capsnet"
    mask: Literal["none", "label", "longest", "winner", "ranks"] = Field(
        "ranks", title="mask of the latent capsules"
    )
    boost: bool = Field(True, title="lifetime boosting")
    band: tuple[float, float] = Field((0.04, 0.1), title="band of the share of first ranks")
    """As printed; the released default is (0.03, 0.12)."""
    relative_boost: bool = Field(False, title="steps of boosting as shares of the gain")
    grouping: Literal["position", "released"] = Field(
        "position", title="children whose best coupling counts"
    )
    """Those of a position, as the paper says, or consecutive ones, as the released code takes
    them."""
    gamma: float = Field(12.0, gt=0, title="steepness of the rank mask")
    shift: int = Field(6, ge=0, title="largest shift of a training digit in pixels")
    distinct: int = Field(0, ge=0, title="different digits in a batch (0: all)")
    """The released training set has all shifts of a digit in a row, so that a batch mixes about
    30 digits."""
    capsules: int = Field(16, ge=2, title="latent capsules")
    dim: int = Field(16, ge=1, title="dimension of a latent capsule")
    filters: int = Field(256, ge=1, title="filters of the convolution")
    kernel: int = Field(9, ge=1, title="kernel of the convolution")
    primary_types: int = Field(32, ge=1, title="types of primary capsules")
    primary_dim: int = Field(8, ge=1, title="dimension of primary capsules")
    primary_kernel: int = Field(9, ge=1, title="kernel of the primary capsules")
    hidden: tuple[int, ...] = Field((), title="capsules of the hidden layers")
    """Each has the dimension of the primary capsules."""
    decoder: tuple[int, ...] = Field((512, 1024), title="hidden units of the decoder")
    cnn: tuple[int, int, int] = Field(
        (512, 256, 1024), title="filters and hidden units of the CNN"
    )
    iterations: int = Field(3, ge=1, le=20, title="routing iterations")
    reconstruction_weight: float = Field(
        5e-4, ge=0, title="weight of the reconstruction loss beside labels"
    )
    decays: float = Field(
        15.0, ge=0, title="powers of 0.96 by which the learning rate falls over the training"
    )
    """The rate falls by 0.96 every 2,000 of 30,000 steps."""
    epochs: int = Field(64, ge=1, le=10_000, title="epochs")

    @model_validator(mode="after")
    def _check_that_labels_stay_with_their_digits(self) -> SparseRecipe:
        if self.distinct and self.supervised:
            raise ValueError(
                "distinct repeats the digits of a batch, and their labels would not follow: "
                "leave it 0 with labels"
            )
        return self

    @property
    def supervised(self) -> bool:
        """Whether the network learns from labels."""
        return self.mask == "label" or self.network == "cnn"

    @property
    def prepares_batches(self) -> bool:
        """True: every batch is distorted anew."""
        return True

    def frame(self) -> int:
        """Return the side of the frame in pixels."""
        return SETS[self.data].train_shape[2] + 2 * self.shift

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape (C, H, W) of a digit in its frame."""
        side = self.frame() // self.downsample
        return (SETS[self.data].train_shape[1], side, side)

    def prepare(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return digits uint8 [N, 1, H, W] in their frame.

        With a generator each stands somewhere, without one in the middle.
        """
        import torch

        from capslib.data.transforms import random_crop

        pad = torch.nn.functional.pad
        if generator is None:
            return self.framed(pad(images, [self.shift] * 4))
        if self.distinct:
            distinct = min(self.distinct, len(images))
            images = images[torch.arange(len(images)) * distinct // len(images)]
        surrounded = pad(images, [2 * self.shift] * 4)
        return self.framed(random_crop(surrounded, self.frame(), generator))

    def framed(self, images: Tensor) -> Tensor:
        """Return what the network sees of images that fill the frame."""
        from capslib.data.transforms import downsample, to_float

        return downsample(to_float(images), self.downsample)

    def options(self) -> dict[str, Any]:
        """Return the keywords of the constructor of networks that reconstruct."""
        if self.network == "autoencoder":
            return self.model_dump(include={"capsules", "dim", "decoder"})
        hidden = [(count, self.primary_dim) for count in self.hidden]
        return {**self.model_dump(include=set(NETWORK_FIELDS)), "hidden": hidden}

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Return the network with random weights."""
        if self.network == "cnn":
            return NETWORKS["cnn"](shape, classes=classes, sizes=self.cnn)
        return NETWORKS[self.network](shape, **self.options())

    def start(self, network: nn.Module, train: Examples, seed: int) -> None:
        """Let EM routing keep the parameters that were drawn."""

    def objective(self, device: torch.device) -> Objective:
        """Return the loss of the CNN, or that of what reconstructs."""
        return Objective(self) if self.network == "cnn" else Reconstruction(self)

    def rate(self, progress: float) -> float:
        """Return the learning rate, which falls exponentially to a floor."""
        return max(1e-6, self.learning_rate * 0.96 ** (self.decays * progress))

    def evaluate(self, network: nn.Module, splits: dict[str, Examples]) -> dict[str, float]:
        """Return the test accuracy with labels, the state of boosting, and the test error.

        Of boosting these are the largest share of first ranks in training, and the least and
        the largest gain. The error, of all but the CNN, is that of 2,000 digits in the middle.
        """
        measured: dict[str, float] = {}
        if self.supervised:
            measured["test_accuracy"] = self.accuracy(network, splits["test"])
        if self.network == "cnn":
            return measured
        boost = getattr(network, "boost", None)
        if boost is not None:
            measured["largest_share"] = float(boost.frequency.max())
            measured["smallest_gain"] = float(boost.gain.min())
            measured["largest_gain"] = float(boost.gain.max())
        measured["test_error"] = self.test_error(network, splits["test"].at_most(2000).inputs)
        return measured

    def test_error(self, network: nn.Module, digits: Tensor) -> float:
        """Return the mean squared error of digits uint8 [N, 1, H, W] in the middle."""
        import torch

        errors = []
        with torch.no_grad():
            for batch in digits.split(self.BATCH_OF_TEST):
                images = self.prepare(batch)
                errors.append(squared_error(network(images), images))
        return float(torch.cat(errors).mean())


class Reconstruction(Objective):
    """The mean squared error of the reconstruction.

    With labels: the released margin loss, plus a small share of that error (§2.3, §2.6).
    """

    def __call__(self, network: nn.Module, batch: Examples) -> dict[str, Tensor]:
        recipe = self.recipe
        output = network(batch.inputs, batch.labels if recipe.supervised else None)
        error = squared_error(output, batch.inputs).mean()
        if not recipe.supervised:
            return {"loss": error}
        terms = self.terms(output.activation, batch.labels)
        classes = output.activation.shape[1]
        margin = terms["loss"] / (2 * classes)  # halved, and a mean over the classes
        loss = margin + recipe.reconstruction_weight * error
        return {"loss": loss, "accuracy": terms["accuracy"], "margin": margin, "error": error}


TABLE_1 = {
    "sparse": dict(mask="ranks"),
    "dense": dict(mask="none"),
    "no_boosting": dict(mask="ranks", boost=False),
    "supcaps": dict(mask="label", capsules=10),
    "cnn": dict(network="cnn", loss="cross_entropy"),
}
"""The networks of Table 1, and what tells them apart."""


def full_recipe(scale: Scale, **changes: Any) -> SparseRecipe:
    """Return a recipe of the paper's size on the data of a scale."""
    data = "digits" if scale == "smoke" else "mnist"
    return SparseRecipe(**{"data": data, **changes})


SMALLER: dict[Scale, dict[str, Any]] = {
    "smoke": dict(
        shift=2,
        dim=4,
        filters=8,
        kernel=3,
        primary_types=2,
        primary_dim=4,
        primary_kernel=3,
        decoder=(32,),
        cnn=(4, 4, 16),
        epochs=3,
        batch_size=64,
        svm_fit=300,
        svm_test=100,
        head_fit=300,
        attacked=60,
    ),
    "cpu": dict(
        dim=8,
        filters=64,
        kernel=5,
        primary_types=8,
        primary_kernel=5,
        decoder=(128, 256),
        cnn=(32, 32, 128),
        downsample=2,
        epochs=16,
        batch_size=64,
        svm_fit=20_000,
    ),
    "paper": {},
}
"""The fields of recipes and options that each scale makes smaller."""


def smaller(scale: Scale, arm: Arm) -> dict[str, Any]:
    """Return the fields of an arm that a scale makes smaller."""
    fields = arm.values()
    return {name: value for name, value in SMALLER[scale].items() if name in fields}
