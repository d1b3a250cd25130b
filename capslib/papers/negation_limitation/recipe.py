"""A CapsNet of the paper and how it is trained and tested (§5.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from capslib.config import DataName, NetworkName, RoutingName
from capslib.papers.experiment import Scale
from capslib.recipes import Objective, Recipe

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from capslib.training import Examples


class CapsNetRecipe(Recipe):
    """A CapsNet of a given depth. Defaults are the paper's setting; the deviations say where paper and release disagree.

    ``weight_std="unit"`` scales W of every layer on a first batch until the pre-activations ‖s‖ have mean length one;
    ``"identity"`` adds the identity to W as the paper draws it. With ``front`` the set also holds the negative of every image,
    under another label. With "odd" the capsules of −x are the negated capsules of x; with "relu" the convolution has a bias and a
    ReLU, as in the paper, and they are not.
    """

    ARM: ClassVar[frozenset[str]] = frozenset(
        ["data", "routing", "depth", "bias", "bias_start", "weight_std", "iterations", "front"]
    )

    data: DataName
    network: NetworkName = "deep_capsnet"
    routing: RoutingName
    depth: int = Field(ge=2, le=16)
    bias: bool
    bias_start: float = Field(0.1, title="value of the bias at the start")
    weight_std: Annotated[float, Field(gt=0, le=10)] | Literal["unit", "identity"] = Field(
        0.1, title="standard deviation of W at the start"
    )
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

    def setting(self) -> Self:
        """The release's scripts have 10 dimensions under EM and 12 under RBA."""
        return (
            super()
            .setting()
            .model_copy(update={"hidden_dim": 12 if self.routing == "dynamic" else 10})
        )

    def idle(self) -> dict[str, set[str]]:
        return {} if self.bias else {"bias=False": {"bias_start"}}

    def arrange(self, parts: dict[str, Examples]) -> dict[str, Examples]:
        """With ``front``: x with its label y, and −x with the label (y + 5) mod 10."""
        import torch

        if self.front is None:
            return parts
        return {
            name: type(of)(
                torch.cat([of.inputs, -of.inputs]), torch.cat([of.labels, (of.labels + 5) % 10])
            )
            for name, of in parts.items()
        }

    def options(self) -> dict[str, Any]:
        drawn = (
            type(self).model_fields["weight_std"].default
        )  # what "unit" and "identity" start from
        std = drawn if isinstance(self.weight_std, str) else self.weight_std
        betas = {"beta_std": std} if self.routing in ("em", "em_vector") else {}
        return dict(
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
            weight_std=std,
            bias=self.bias_start if self.bias else None,
            **betas,
        )

    def shape(self) -> tuple[tuple[int, ...], int]:
        shape, n = super().shape()
        return shape, n if self.front is None else 2 * n

    def start(self, network: nn.Module, train: Examples, seed: int) -> None:
        if self.weight_std == "unit":
            network.capsules.start_at_unit_length(
                network.primary_capsules(train.inputs[: self.batch_size])
            )
        elif self.weight_std == "identity":
            network.capsules.start_near_identity()

    def objective(self, device: torch.device) -> Objective:
        return WithReconstruction(self)

    def evaluate(self, network: nn.Module, splits: dict[str, Examples]) -> dict[str, float]:
        return {"test_accuracy": self.accuracy(network, splits["test"])}


class WithReconstruction(Objective):
    """The margin loss, and the squared error of the reconstruction with its weight."""

    def __call__(self, network: nn.Module, batch: Examples) -> dict[str, Tensor]:
        output = network(batch.inputs)
        terms = self.terms(output.activation, batch.labels)
        reconstruction = (
            (output.reconstruction - batch.inputs.flatten(1)).square().sum(dim=1).mean()
        )
        loss = terms["loss"] + self.recipe.reconstruction_weight * reconstruction
        return {
            "loss": loss,
            "accuracy": terms["accuracy"],
            "margin": terms["loss"],
            "reconstruction": reconstruction,
        }


REDUCED: dict[Scale, dict[str, Any]] = {
    "smoke": dict(
        filters=16,
        kernel=3,
        primary_types=2,
        decoder=(32, 64),
        epochs=3,
        batch_size=64,
        learning_rate=5e-3,
    ),
    "cpu": dict(
        downsample=2,
        filters=32,
        kernel=5,
        primary_types=8,
        decoder=(128, 256),
        epochs=4,
        batch_size=128,
        learning_rate=1e-3,
    ),
    "paper": {},
}
ARMS = ({"bias": False}, {"bias": True})


def budget(scale: Scale, data: str, routing: str) -> dict[str, Any]:
    """At cpu scale every set and routing trains for as long as its arm with a bias needs to learn clearly."""
    longer = {}
    if scale == "cpu" and routing != "dynamic":
        longer = dict(batch_size=64)
    elif scale == "cpu" and data == "fashion_mnist":
        longer = dict(epochs=5)
    return {**REDUCED[scale], **longer, "hidden_dim": 12 if routing == "dynamic" else 10}
