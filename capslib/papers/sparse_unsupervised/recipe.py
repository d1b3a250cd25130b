"""A capsule network that learns to draw shifted digits, with labels or without (§2; released code)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from capslib.config import DataName, NetworkName, RoutingName
from capslib.data.registry import SETS
from capslib.papers.experiment import Scale
from capslib.recipes import Objective, Recipe
from capslib.registry import NETWORKS

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from capslib.training import Examples


class SparseRecipe(Recipe):
    """Digits at random places in a frame. Defaults are the paper's SPARSECAPS for affNIST: 40 × 40 pixels (§2).

    ``mask`` "label" with ten latent capsules is SUPCAPS, which alone sees labels, "none" the dense network, "ranks" SPARSECAPS.
    The network "cnn" learns to classify, "autoencoder" to reconstruct without capsules.
    """

    ARM: ClassVar[frozenset[str]] = frozenset(
        [
            "data",
            "network",
            "routing",
            "mask",
            "boost",
            "relative_boost",
            "band",
            "grouping",
            "hidden",
            "distinct",
            "capsules",
            "border",
            "loss",
        ]
    )
    UNUSED: ClassVar[frozenset[str]] = frozenset({"resize", "crop", "jitter", "standardise"})
    BATCH_OF_TEST: ClassVar[int] = 500

    data: DataName = "mnist"
    network: NetworkName = "sparse_capsnet"
    routing: RoutingName = Field("dynamic", title="routing")
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
    """Those of a position, as the paper says, or consecutive ones, as the released code takes them."""
    gamma: float = Field(12.0, gt=0, title="steepness of the rank mask")
    shift: int = Field(6, ge=0, title="largest shift of a training digit in pixels")
    border: int | None = Field(
        None, ge=0, title="pixels of border around a digit (none: as many as the largest shift)"
    )
    """The paper's network for MNIST alone: 28 × 28 pixels, ``border=0`` and shifts of up to two."""
    distinct: int = Field(0, ge=0, title="different digits in a batch (0: all)")
    """The released training set has all shifts of a digit in a row, so that a batch mixes about 30 digits."""
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
    def _labels_stay_with_their_digits(self) -> SparseRecipe:
        if self.distinct and (self.mask == "label" or self.network == "cnn"):
            raise ValueError(
                "distinct repeats the digits of a batch, and their labels would not follow: leave it 0 with labels"
            )
        return self

    def idle(self) -> dict[str, set[str]]:
        boosts, own = (
            {"boost", "band", "relative_boost"},
            {"routing", "iterations", "grouping", "gamma", "hidden"},
        )
        if self.network in ("cnn", "autoencoder"):
            return {f"network={self.network}": own | boosts}
        return {} if self.mask in ("ranks", "winner") else {f"mask={self.mask}": boosts}

    @property
    def supervised(self) -> bool:
        """Whether the network learns from labels."""
        return self.mask == "label" or self.network == "cnn"

    # ------------------------------------------------------------------------------------------------------------- data

    @property
    def augments(self) -> bool:
        return True

    @property
    def edge(self) -> int:
        """Pixels between a digit in the middle of the frame and each edge."""
        return self.shift if self.border is None else self.border

    def frame(self) -> int:
        """The side of the frame in pixels."""
        return SETS[self.data].train[2] + 2 * self.edge

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape (C, H, W) of a digit in its frame."""
        side = self.frame() // self.downsample
        return (SETS[self.data].train[1], side, side)

    def prepare(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Digits uint8 [N, 1, H, W] in their frame: somewhere with a generator, in the middle without one."""
        import torch

        from capslib.data.transforms import random_crop

        if generator is None:
            return self.framed(torch.nn.functional.pad(images, [self.edge] * 4))
        if self.distinct:
            images = images[
                torch.arange(len(images)) * min(self.distinct, len(images)) // len(images)
            ]
        return self.framed(
            random_crop(
                torch.nn.functional.pad(images, [self.edge + self.shift] * 4),
                self.frame(),
                generator,
            )
        )

    def framed(self, images: Tensor) -> Tensor:
        """What the network sees of images that fill the frame."""
        from capslib.data.transforms import downsample, to_float

        return downsample(to_float(images), self.downsample)

    # ---------------------------------------------------------------------------------------------------------- network

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        if self.network == "cnn":
            return NETWORKS["cnn"](shape, classes=classes, sizes=self.cnn)
        own = {
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
        }
        hidden = [(count, self.primary_dim) for count in self.hidden]
        return NETWORKS[self.network](shape, hidden=hidden, **self.model_dump(include=own))

    def objective(self, device: torch.device) -> Objective:
        return Objective(self) if self.network == "cnn" else Reconstruction(self)

    def rate(self, progress: float) -> float:
        return max(1e-6, self.learning_rate * 0.96 ** (self.decays * progress))

    def evaluate(self, network: nn.Module, splits: dict[str, Examples]) -> dict[str, float]:
        """The accuracy of networks that learn labels; the error of all that reconstruct, on 2,000 test digits in the middle.

        Of boosting the largest share of first ranks in training, and the gains.
        """
        import torch

        found = (
            {"test_accuracy": self.accuracy(network, splits["test"])} if self.supervised else {}
        )
        if self.network == "cnn":
            return found
        if (boost := getattr(network, "boost", None)) is not None:
            first, gain = float(boost.frequency.max()), boost.gain
            found |= {
                "largest_share": first,
                "smallest_gain": float(gain.min()),
                "largest_gain": float(gain.max()),
            }
        with torch.no_grad():
            errors = [
                squared_error(network(x), x)
                for x in map(self.prepare, splits["test"].some(2000).inputs.split(500))
            ]
        return found | {"test_error": float(torch.cat(errors).mean())}


def squared_error(output: Any, images: Tensor) -> Tensor:
    """Σ (x̂ − x)² over the pixels of each image, [N]: what §3.5 calls a mean square error."""
    return (output.reconstruction - images.flatten(1)).square().sum(dim=1)


class Reconstruction(Objective):
    """The mean of the squared errors; with labels the margin loss of the released code, and a small share of them (§2.3, §2.6)."""

    def __call__(self, network: nn.Module, batch: Examples) -> dict[str, Tensor]:
        recipe = self.recipe
        output = network(batch.inputs, batch.labels if recipe.supervised else None)
        error = squared_error(output, batch.inputs).mean()
        if not recipe.supervised:
            return {"loss": error}
        terms, classes = self.terms(output.activation, batch.labels), output.activation.shape[1]
        margin = terms["loss"] / (2 * classes)  # halved, and a mean over the classes
        loss = margin + recipe.reconstruction_weight * error
        return {"loss": loss, "accuracy": terms["accuracy"], "margin": margin, "error": error}


SMALL = dict(
    dim=8,
    filters=64,
    kernel=5,
    primary_types=8,
    primary_kernel=5,
    decoder=(128, 256),
    cnn=(32, 32, 128),
    downsample=2,
)
REDUCED: dict[Scale, dict[str, Any]] = {
    "smoke": dict(
        data="digits",
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
    ),
    "cpu": dict(**SMALL, epochs=16, batch_size=64),
    "paper": {},
}
"""What each scale changes."""
