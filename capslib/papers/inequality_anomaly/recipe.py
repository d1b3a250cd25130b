"""A two-class capsule network of the paper, its few anomalies, and when its training stops (§3;
released code).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator

from capslib.config import DataName, NetworkName, RoutingName
from capslib.data.anomalies import DIVERSE
from capslib.data.registry import SETS
from capslib.papers.experiment import Scale
from capslib.recipes import Objective, Recipe
from capslib.registry import NETWORKS

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from capslib.data import DataFingerprint
    from capslib.training import Context, Examples, Patience

Setup = Literal["outliers", "inliers", "A", "B", "C", "D", "off_targets"]


class AnomalyRecipe(Recipe):
    """Normal examples and a few anomalies. Defaults are the paper's setting for MNIST and its
    like; ``PAPER`` has the other sets'.

    In "outliers" the class ``kind`` is normal and all others are anomalies, in "inliers" it is
    the anomaly and all others are normal; ``percent`` of the training examples are anomalies.
    "A" to "D" are the setups of HAM10000. ``draw`` seeds the choice of the training examples;
    None: as the network.
    """

    ARM: ClassVar[frozenset[str]] = frozenset(
        [
            "data",
            "routing",
            "setup",
            "kind",
            "percent",
            "draw",
            "weight_std",
            "divisor",
            "stop_on",
            "keep",
            "nrg_pam",
            "sees",
        ]
    )
    UNUSED: ClassVar[frozenset[str]] = frozenset(
        {"loss", "resize", "crop", "jitter", "standardise", "images"}
    )
    OF_NETWORK: ClassVar[frozenset[str]] = frozenset(
        [
            "routing",
            "iterations",
            "filters",
            "kernel",
            "nonlinearity",
            "primary_types",
            "primary_dim",
            "decoder",
            "weight_std",
        ]
    )
    BATCH_OF_TEST: ClassVar[int] = 250

    data: DataName
    network: NetworkName = "anomaly_capsnet"
    routing: RoutingName = Field("dynamic_over_children", title="routing")
    setup: Setup
    kind: int | None = Field(None, ge=0, validate_default=True)
    percent: float | None = Field(None, gt=0, lt=100, validate_default=True)
    draw: int | None = Field(None, ge=0)
    normals: int = Field(0, ge=0, title="normal training examples (0: all)")
    nrg_pam: bool = Field(False, title="only sites with an NRG PAM")
    sees: Literal["all", "pam"] = Field("all", title="what a network sees of guide and site")
    filters: int = Field(256, ge=1, title="filters of the convolution")
    kernel: int = Field(9, ge=1, title="kernel of both convolutions")
    nonlinearity: Literal["relu", "elu"] = Field(
        "relu", title="nonlinearity of the convolution"
    )
    primary_types: int = Field(32, ge=1, title="types of primary capsules")
    primary_dim: int = Field(32, ge=1, title="dimension of primary capsules")
    decoder: tuple[int, int] = Field((512, 1024), title="hidden units of the decoder")
    weight_std: float = Field(1.0, gt=0, title="standard deviation of W at the start")
    iterations: int = Field(3, ge=1, le=20, title="routing iterations")
    reconstruction_weight: float = Field(5e-4, ge=0, title="weight of the reconstruction loss")
    divisor: Literal["normals", "own"] = Field(
        "normals", title="what the margin loss is divided by"
    )
    """"normals", as released: by the normal examples of the batch; "own", repaired: by all of
    them.
    """
    clip: float = Field(0.1, gt=0, title="largest norm of a gradient")
    stop_on: Literal["test", "held_out"] = Field("test", title="what early stopping looks at")
    """"test", as released: the test set; "held_out": a tenth of the training examples, which
    nothing else sees.
    """
    stop_examples: int = Field(
        0, ge=0, title="test examples that early stopping looks at (0: all)"
    )
    stop_after: int = Field(
        3, ge=1, title="epochs without improvement after which training stops"
    )
    keep: Literal["last", "best"] = Field(
        "last", title="weights that are kept where training stops"
    )
    epochs: int = Field(10, ge=1, le=10_000, title="epochs")
    batch_size: int = Field(256, ge=1, title="batch size")

    @field_validator("kind", "percent")
    @classmethod
    def _of_setup(cls, value: Any, info: ValidationInfo) -> Any:
        name, setup, field = info.data.get("data"), info.data.get("setup"), info.field_name
        if name is None or setup is None:  # wrong themselves, and said so
            return value
        if (setup in DIVERSE) != (value is not None):
            raise ValueError(
                f"the setup {setup} {'needs' if value is None else 'has no'} {field}"
            )
        if field == "kind" and value is not None and value >= len(names := SETS[name].classes):
            raise ValueError(
                f"{name} has the classes 0 ({names[0]}) to {len(names) - 1} ({names[-1]}) only"
            )
        return value

    def setting(self) -> Self:
        return super().setting().model_copy(update=PAPER.get(self.data, {}))

    # -------------------------------------------------------------------------------------------------------------
    # data

    def splits(self, context: Context) -> tuple[dict[str, Examples], list[DataFingerprint]]:
        """``train``, ``test`` and what early stopping looks at, ``stop``, on the device; labels
        are 1 for anomalies.

        A rehearsal tests on two batches.
        """
        import torch

        from capslib.papers.inequality_anomaly.examples import parts
        from capslib.training import Examples

        rows, fingerprint = parts(
            self, context.seed if self.draw is None else self.draw, context.data_dir
        )
        found = {}
        for name, of in rows.items():
            inputs, labels = (torch.tensor(array, device=context.device) for array in of)
            found[name] = Examples(self.prepare(inputs), labels)
        if context.max_steps is not None:
            found["test"] = found["test"].some(2 * self.batch_size)
        if self.stop_on == "test":
            found["stop"] = found["test"].some(self.stop_examples)
        return found, [fingerprint]

    def prepare(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """uint8 images in 0…1, one-hot letters as they are; averaged over blocks, without what
        does not fill one.
        """
        import torch

        x = images.float() / (1 if self.setup == "off_targets" else 255)
        return torch.nn.functional.avg_pool2d(x, self.downsample) if self.downsample > 1 else x

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape (C, H, W) of what the network sees of one example."""
        splits = SETS[self.data].splits
        _, channels, *size = splits.get("all") or SETS[self.data].train
        return (channels, *[side // self.downsample for side in size])

    @property
    def train_size(self) -> int:
        """The number of training examples, if all classes of the set are equally large."""
        all_examples = (SETS[self.data].splits.get("all") or SETS[self.data].train)[0]
        kept = 0.9 if self.stop_on == "held_out" else 1
        if self.percent is None:
            return int(kept * (all_examples * 3 // 4))
        share = 1 / len(SETS[self.data].classes)
        normal = int(all_examples * (share if self.setup == "outliers" else 1 - share))
        normal = min(normal, self.normals or normal)
        wanted = normal * self.percent / (100 - self.percent)
        anomalous = round(min(all_examples - normal, wanted))
        return int(kept * (normal + anomalous))

    # ----------------------------------------------------------------------------------------------------------
    # network

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return NETWORKS[self.network](shape, **self.model_dump(include=set(self.OF_NETWORK)))

    def objective(self, device: torch.device) -> Objective:
        return AnomalyLoss(self)

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """Adam on gradients that are clipped."""
        import torch

        def clip(*_: object) -> None:
            torch.nn.utils.clip_grad_norm_(network.parameters(), self.clip)

        optimizer = torch.optim.Adam(network.parameters(), self.learning_rate)
        optimizer.register_step_pre_hook(clip)
        return optimizer

    def patience(self) -> Patience:
        from capslib.training import Patience

        return Patience("stop_loss", self.stop_after, keep=self.keep)

    def evaluate(self, network: nn.Module, splits: dict[str, Examples]) -> dict[str, float]:
        """The loss of all examples that early stopping looks at, as of one batch."""
        import torch

        loss = AnomalyLoss(self)
        with torch.no_grad():
            sums = sum(
                torch.stack(loss.sums(network(b.inputs), b))
                for b in splits["stop"].batches(self.BATCH_OF_TEST)
            )
        return {"stop_loss": float(loss.of(*sums)["loss"])}


class AnomalyLoss(Objective):
    """The margin loss of both class capsules, and the squared error of the reconstruction of
    normal examples with its weight.

    As released both are divided by the number of normal examples in the batch, so that the
    margin loss counts for more in a batch with many anomalies; repaired, each is divided by the
    number of its own examples. No normal example counts as one.
    """

    def sums(self, output: Any, batch: Examples) -> tuple[Tensor, ...]:
        """Of the batch: margin loss, error of normal examples, how many, all examples, hits."""
        from capslib.losses import margin_loss
        from capslib.networks.inequality_anomaly import NORMAL

        labels, count = batch.labels, batch.inputs.new_full((), len(batch.inputs))
        normal = (labels == NORMAL).float()
        error = (output.reconstruction - batch.inputs.flatten(1)).square().sum(dim=1)
        right = (output.activation.argmax(dim=1) == labels).float().sum()
        margin = margin_loss(output.activation, labels) * count
        return margin, (normal * error).sum(), normal.sum(), count, right

    def of(
        self, margin: Tensor, error: Tensor, normal: Tensor, count: Tensor, right: Tensor
    ) -> dict[str, Tensor]:
        """The named terms of these sums."""
        normal = normal.clamp_min(1)
        margin = margin / (normal if self.recipe.divisor == "normals" else count)
        error, right = error / normal, right / count
        loss = margin + self.recipe.reconstruction_weight * error
        return {"loss": loss, "accuracy": right, "margin": margin, "reconstruction": error}

    def __call__(self, network: nn.Module, batch: Examples) -> dict[str, Tensor]:
        return self.of(*self.sums(network(batch.inputs), batch))


PAPER: dict[str, dict[str, Any]] = {
    "cifar10": dict(batch_size=64),
    "ham10000": dict(batch_size=64, nonlinearity="elu", primary_dim=8),
    "crispr": dict(kernel=2, epochs=50),
}
"""What is different for other sets than MNIST and its like."""
SMOKE = dict(
    filters=8, primary_types=4, primary_dim=4, decoder=(16, 32), epochs=2, batch_size=32
)
SMALL = dict(filters=64, primary_types=8, primary_dim=8, decoder=(128, 256))
CPU = dict(**SMALL, normals=10_000, stop_examples=2000)
REDUCED: dict[Scale, dict[str, dict[str, Any]]] = {
    "smoke": {
        "digits": dict(kernel=3, **SMOKE),
        "tints": dict(kernel=5, **SMOKE),
        "moles": dict(kernel=5, nonlinearity="elu", **SMOKE),
        "guides": dict(kernel=2, **SMOKE),
    },
    "cpu": {
        "mnist": CPU,
        "fashion_mnist": CPU,
        "kmnist": dict(
            **CPU, batch_size=32
        ),  # for outliers as many steps as the others, for inliers five times
        "cifar10": dict(**CPU, batch_size=64),
        "ham10000": dict(**SMALL, batch_size=64, nonlinearity="elu", downsample=2),
        "crispr": dict(**SMALL, kernel=2, epochs=50),
    },
    "paper": {**{name: {} for name in ("mnist", "fashion_mnist", "kmnist")}, **PAPER},
}
"""What each scale changes for each of its sets."""
