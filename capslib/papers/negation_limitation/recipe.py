"""A CapsNet of the paper, and how it is trained and tested (§5.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from capslib.config import DataName, NetworkName, RoutingName
from capslib.papers.common import squared_error
from capslib.papers.experiment import Arm, Scale
from capslib.recipes import Objective, Recipe

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from capslib.training import Examples


class CapsNetRecipe(Recipe):
    """A CapsNet of a given depth, with or without a bias. Defaults are the paper's setting.

    With ``front`` the training set also holds the negative of every image, under another label.
    """

    data: DataName
    network: NetworkName = "deep_capsnet"
    routing: RoutingName
    depth: int = Field(ge=2, le=16)
    bias: bool
    bias_start: float = Field(0.1, title="value of the bias at the start")
    weight_std: Annotated[float, Field(gt=0, le=10)] | Literal["unit", "identity"] = Field(
        0.1, title="standard deviation of W at the start"
    )
    """``unit`` scales W on a first batch until all ‖s‖ have mean length one; ``identity`` adds
    the identity to W.
    """
    hidden_dim: int = Field(12, ge=1, title="dimension of hidden capsules")
    filters: int = Field(256, ge=1, title="filters of the convolution")
    kernel: int = Field(9, ge=1, title="kernel of both convolutions")
    primary_types: int = Field(32, ge=1, title="types of primary capsules")
    decoder: tuple[int, int] = Field((512, 1024), title="hidden units of the decoder")
    reconstruction_weight: float = Field(5e-4, ge=0, title="weight of the reconstruction loss")
    iterations: int = Field(3, ge=1, le=20, title="routing iterations")
    batch_size: int = Field(256, ge=1, title="batch size")
    learning_rate: float = Field(1e-4, gt=0, le=1, title="Adam learning rate")
    front: Literal["relu", "odd"] | None = Field(
        None, title="front end, where images come with their negatives"
    )
    """``odd``: the capsules of −x are the negated capsules of x. ``relu``: they are not, for
    the convolution has a bias and a ReLU, as in the paper.
    """

    def arrange(self, parts: dict[str, Examples]) -> dict[str, Examples]:
        """Add the negatives where there is a ``front``: −x with the label (y + 5) mod 10."""
        import torch

        if self.front is None:
            return parts
        pairs = {}
        for name, examples in parts.items():
            inputs = torch.cat([examples.inputs, -examples.inputs])
            labels = torch.cat([examples.labels, (examples.labels + 5) % 10])
            pairs[name] = type(examples)(inputs, labels)
        return pairs

    @property
    def train_size(self) -> int:
        """The number of training images, negatives included."""
        images = super().train_size
        return images if self.front is None else 2 * images

    def options(self) -> dict[str, Any]:
        """Return the keywords of the network's constructor."""
        weight_std = self.weight_std
        if weight_std in ("unit", "identity"):
            weight_std = type(self).model_fields["weight_std"].default
        options = dict(
            depth=self.depth,
            filters=self.filters,
            kernel=self.kernel,
            primary_types=self.primary_types,
            primary_kernel=self.kernel,
            hidden=(16, self.hidden_dim),
            decoder=self.decoder,
            odd=self.front == "odd",
            routing=self.routing,
            iterations=self.iterations,
            weight_std=weight_std,
            bias=self.bias_start if self.bias else None,
        )
        if self.routing in ("em", "em_vector"):
            options["beta_std"] = weight_std
        return options

    def start(self, network: nn.Module, train: Examples, seed: int) -> None:
        """Set W as ``weight_std`` says, where that needs a first batch or the identity."""
        if self.weight_std == "unit":
            batch = train.inputs[: self.batch_size]
            network.capsules.start_at_unit_length(network.primary_capsules(batch))
        elif self.weight_std == "identity":
            network.capsules.start_near_identity()

    def objective(self, device: torch.device) -> Objective:
        """Return the margin loss with that of the reconstruction."""
        return WithReconstruction(self)


class WithReconstruction(Objective):
    """The margin loss, and the squared error of the reconstruction with its weight."""

    def __call__(self, network: nn.Module, batch: Examples) -> dict[str, Tensor]:
        output = network(batch.inputs)
        terms = self.terms(output.activation, batch.labels)
        reconstruction = squared_error(output, batch.inputs).mean()
        loss = terms["loss"] + self.recipe.reconstruction_weight * reconstruction
        return {
            "loss": loss,
            "accuracy": terms["accuracy"],
            "margin": terms["loss"],
            "reconstruction": reconstruction,
        }


def paper_recipe(data: str, routing: str, **changes: Any) -> CapsNetRecipe:
    """Return the setting of the release. Hidden capsules have 12 numbers, or 10 under EM."""
    hidden_dim = 12 if routing == "dynamic" else 10
    return CapsNetRecipe(data=data, routing=routing, hidden_dim=hidden_dim, **changes)


def smaller(scale: Scale, arm: Arm) -> dict[str, Any]:
    """Return the fields that a scale makes smaller.

    At cpu scale every data set and routing trains for as long as its arm with a bias needs to
    learn clearly.
    """
    if scale == "paper":
        return {}
    if scale == "smoke":
        return dict(
            filters=16,
            kernel=3,
            primary_types=2,
            decoder=(32, 64),
            epochs=3,
            batch_size=64,
            learning_rate=5e-3,
        )
    is_dynamic = arm.recipe.routing == "dynamic"
    return dict(
        downsample=2,
        filters=32,
        kernel=5,
        primary_types=8,
        decoder=(128, 256),
        epochs=5 if is_dynamic and arm.data == "fashion_mnist" else 4,
        batch_size=128 if is_dynamic else 64,
        learning_rate=1e-3,
    )
