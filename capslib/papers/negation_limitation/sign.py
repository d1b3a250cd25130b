"""The sign of a scalar (§5.1, Table 1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic import Field

from capslib.config import NetworkName, RoutingName
from capslib.papers.common import bias_name, in_unit, outcome
from capslib.papers.experiment import SEEDS, Arm, Experiment, Outcome, Scale
from capslib.recipes import BaseRecipe, Objective, train
from capslib.registry import NETWORKS

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from capslib.training import Context, Examples


class SignRecipe(BaseRecipe):
    """The 1–20–2 network on a grid of scalars. Defaults are those of the first release."""

    network: NetworkName = "sign"
    routing: RoutingName
    bias: bool
    points: int = Field(20_000, ge=2, le=10_000_000, title="points")
    batch_size: int = Field(256, ge=1, title="batch size")
    learning_rate: float = Field(5e-3, gt=0, le=1, title="Adam learning rate")
    hidden: int = Field(20, ge=1, title="hidden capsules")
    weight_std: float = Field(
        0.5, gt=0, title="standard deviation of W at the start, and value of the bias"
    )
    iterations: int = Field(3, ge=1, le=20, title="routing iterations")
    length_offset: float = Field(1e-8, ge=0, title="added to the length of EM vector capsules")

    def splits(self, context: Context) -> tuple[dict[str, Examples], list]:
        """Return the symmetric grid of scalars, −1 … 0 and 0 … 1, each with its sign."""
        import torch

        from capslib.training import Examples

        x = torch.linspace(0, 1, self.points // 2 + 1, device=context.device)
        inputs = torch.cat([-x, x])
        labels = torch.cat([torch.zeros_like(x), torch.ones_like(x)]).long()
        return {"train": Examples(inputs, labels)}, []

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of a scalar."""
        return ()

    @property
    def train_size(self) -> int:
        """The number of scalars."""
        return 2 * (self.points // 2 + 1)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Return the network with random weights."""
        options = dict(
            routing=self.routing,
            iterations=self.iterations,
            weight_std=self.weight_std,
            bias=self.weight_std if self.bias else None,
        )
        if self.routing in ("em", "em_vector"):
            options |= dict(beta_std=self.weight_std, length_offset=self.length_offset)
        return NETWORKS[self.network](self.hidden, **options)

    def objective(self, device: torch.device) -> Objective:
        """Return the margin loss, with the absent class at its full weight."""
        return WholeMargin(self)

    def evaluate(self, network: nn.Module, splits: dict[str, Examples]) -> dict[str, Any]:
        """Return the accuracy on the training points, as in Table 1."""
        return {"train_accuracy": self.accuracy(network, splits["train"])}


class WholeMargin(Objective):
    """The margin loss, with the absent class at its full weight."""

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        from capslib.losses import margin_loss

        return margin_loss(scores, labels, down_weight=1.0)


def arms(scale: Scale) -> Iterator[Arm]:
    """Yield the four networks of Table 1, and one that asks whether the offset matters."""
    for routing in ("dynamic", "em_vector"):
        for bias in (False, True):
            recipe = SignRecipe(routing=routing, bias=bias)
            yield Arm(f"{routing}/{bias_name(bias)}", recipe)
    recipe = SignRecipe(routing="em_vector", bias=True, length_offset=0)
    yield Arm("em_vector/bias/no_offset", recipe)


def smaller(scale: Scale, arm: Arm) -> dict[str, Any]:
    """Return fewer points and epochs for smoke scale."""
    return dict(points=2_000, epochs=15) if scale == "smoke" else {}


def run(arm: Arm, context: Context) -> Outcome:
    """Train the network, and measure its accuracy on the training points."""
    trained = train(arm.recipe, context.seed, context)
    accuracy = trained.history.epochs["train_accuracy"][-1]
    points = len(trained.splits["train"].inputs)
    metrics = in_unit({"train_accuracy": accuracy}, points, "fraction")
    return outcome(trained, metrics, curves=["train_accuracy"])


SIGN = Experiment(
    name="sign",
    paper="negation_limitation",
    arms=arms,
    smaller=smaller,
    run=run,
    seeds=SEEDS | {"paper": (0, 1, 2, 3, 4)},
)
