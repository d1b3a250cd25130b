"""The sign of a scalar (§5.1, Table 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from capslib.config import NetworkName, RoutingName
from capslib.papers.common import in_unit, outcome
from capslib.papers.experiment import Outcome, Scale
from capslib.recipes import Objective, Recipe, train
from capslib.registry import NETWORKS

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from capslib.training import Context, Examples


class SignConfig(Recipe):
    """The sign of a scalar. Defaults are the paper's setting, as its first release has it."""

    ARM: ClassVar[frozenset[str]] = frozenset({"routing", "bias", "length_offset"})
    UNUSED: ClassVar[frozenset[str]] = frozenset(
        {"data", "loss", "resize", "downsample", "crop", "jitter", "standardise", "images"}
    )

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
        """The symmetric grid of scalars: −1 … 0 and 0 … 1."""
        import torch

        from capslib.training import Examples

        x = torch.linspace(0, 1, self.points // 2 + 1, device=context.device)
        return {
            "train": Examples(
                torch.cat([-x, x]), torch.cat([torch.zeros_like(x), torch.ones_like(x)]).long()
            )
        }, []

    def shape(self) -> tuple[tuple[int, ...], int]:
        return (), 2 * (self.points // 2 + 1)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        betas = (
            {"beta_std": self.weight_std, "length_offset": self.length_offset}
            if self.routing in ("em", "em_vector")
            else {}
        )
        return NETWORKS[self.network](
            self.hidden,
            routing=self.routing,
            iterations=self.iterations,
            weight_std=self.weight_std,
            bias=self.weight_std if self.bias else None,
            **betas,
        )

    def objective(self, device: torch.device) -> Objective:
        return WholeMargin(self)

    def evaluate(self, network: nn.Module, splits: dict[str, Examples]) -> dict[str, Any]:
        return {"train_accuracy": self.accuracy(network, splits["train"])}


class WholeMargin(Objective):
    """The margin loss, with the absent class at its full weight."""

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        from capslib.losses import margin_loss

        return margin_loss(scores, labels, down_weight=1.0)


def run(config: SignConfig, context: Context) -> Outcome:
    """Train the 1–20–2 network on the symmetric grid of scalars; the accuracy is on the training points, as in Table 1."""
    trained = train(config, context.seed, context)
    accuracy = trained.history.epochs["train_accuracy"][-1]
    metrics = in_unit(
        {"train_accuracy": accuracy}, len(trained.splits["train"].inputs), "fraction"
    )
    return outcome(trained, metrics, curves=["train_accuracy"])


def grid(scale: Scale) -> list[SignConfig]:
    budget = {"points": 2_000, "epochs": 15} if scale == "smoke" else {}
    arms = [
        SignConfig(routing=r, bias=b, **budget)
        for r in ("dynamic", "em_vector")
        for b in (False, True)
    ]
    return [
        *arms,
        SignConfig(routing="em_vector", bias=True, length_offset=0, **budget),
    ]  # a control: does the offset matter?
