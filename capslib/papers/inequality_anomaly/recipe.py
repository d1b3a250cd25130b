"""A two-class capsule network of the paper, its few anomalies, and when its training stops.

See §3 and the released code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from capslib.config import DataName, NetworkName, RoutingName
from capslib.data.anomalies import DIVERSE
from capslib.data.registry import SETS
from capslib.papers.common import squared_error
from capslib.papers.experiment import Arm, Scale
from capslib.recipes import BaseRecipe, Objective
from capslib.registry import NETWORKS

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from capslib.data import DataFingerprint
    from capslib.training import Context, Examples, Patience

Setup = Literal["outliers", "inliers", "A", "B", "C", "D", "off_targets"]
NETWORK_FIELDS = (
    "routing",
    "iterations",
    "filters",
    "kernel",
    "nonlinearity",
    "primary_types",
    "primary_dim",
    "decoder",
    "weight_std",
)
"""The fields that are keywords of the network's constructor."""


class AnomalyRecipe(BaseRecipe):
    """Normal examples and a few anomalies.

    Defaults are the paper's setting for MNIST and its like; ``PAPER`` has that of other sets.

    In "outliers" the class ``kind`` is normal and all others are anomalies, in "inliers" it is
    the anomaly and all others are normal; ``percent`` of the training examples are anomalies.
    "A" to "D" are the setups of HAM10000. ``draw`` seeds the choice of the training examples;
    None: as the network.
    """

    BATCH_OF_TEST: ClassVar[int] = 250

    network: NetworkName = "anomaly_capsnet"
    routing: RoutingName = Field("dynamic_over_children", title="routing")
    epochs: int = Field(10, ge=1, le=10_000, title="epochs")
    batch_size: int = Field(256, ge=1, title="batch size")
    data: DataName
    downsample: int = Field(1, ge=1, le=4, title="images averaged over blocks of")
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

    @field_validator("kind", "percent")
    @classmethod
    def _check_setup(cls, value: Any, info: ValidationInfo) -> Any:
        """Raise ValueError where class or percentage do not go with the setup and the set."""
        data, setup, field = info.data.get("data"), info.data.get("setup"), info.field_name
        if data is None or setup is None:  # wrong themselves, which has its own message
            return value
        if setup in DIVERSE and value is None:
            raise ValueError(f"the setup {setup} needs {field}")
        if setup not in DIVERSE and value is not None:
            raise ValueError(f"the setup {setup} has no {field}")
        classes = SETS[data].classes
        if field == "kind" and value is not None and value >= len(classes):
            last = len(classes) - 1
            raise ValueError(
                f"{data} has the classes 0 ({classes[0]}) to {last} ({classes[last]}) only"
            )
        return value

    # ----------------------------------------------------------------------------------------
    # data

    def splits(self, context: Context) -> tuple[dict[str, Examples], list[DataFingerprint]]:
        """Return ``train``, ``test`` and what early stopping looks at, ``stop``, on the device.

        Labels are 1 for anomalies. A rehearsal tests on two batches.
        """
        import torch

        from capslib.papers.inequality_anomaly.examples import parts
        from capslib.training import Examples

        draw = context.seed if self.draw is None else self.draw
        arrays, fingerprint = parts(self, draw, context.data_dir)
        splits = {}
        for name, part in arrays.items():
            inputs = torch.tensor(part.inputs, device=context.device)
            labels = torch.tensor(part.labels, device=context.device)
            splits[name] = Examples(self.prepare(inputs), labels)
        if context.max_steps is not None:
            splits["test"] = splits["test"].at_most(2 * self.batch_size)
        if self.stop_on == "test":
            splits["stop"] = splits["test"].at_most(self.stop_examples)
        return splits, [fingerprint]

    def prepare(self, images: Tensor) -> Tensor:
        """Return uint8 images in 0…1, or one-hot letters as they are.

        They are averaged over blocks, and what does not fill one is left out.
        """
        import torch

        x = images.float() / (1 if self.setup == "off_targets" else 255)
        return torch.nn.functional.avg_pool2d(x, self.downsample) if self.downsample > 1 else x

    @property
    def _set_shape(self) -> tuple[int, ...]:
        """The shape (N, C, H, W) of the examples of the data set that it trains on."""
        return SETS[self.data].splits.get("all") or SETS[self.data].train_shape

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape (C, H, W) of what the network sees of one example."""
        _, channels, *size = self._set_shape
        return (channels, *[side // self.downsample for side in size])

    @property
    def train_size(self) -> int:
        """The number of training examples, about: as if all classes were equally large.

        Of lesions and pairs it is three quarters of the set, of which some setups use fewer.
        """
        size = self._set_shape[0]
        trained_share = 0.9 if self.stop_on == "held_out" else 1
        if self.percent is None:
            return int(trained_share * (size * 3 // 4))
        class_share = 1 / len(SETS[self.data].classes)
        normal_share = class_share if self.setup == "outliers" else 1 - class_share
        all_normal = int(size * normal_share)
        normal = min(all_normal, self.normals or all_normal)
        anomalous = normal * self.percent / (100 - self.percent)
        anomalous = round(min(size - normal, anomalous))
        return int(trained_share * (normal + anomalous))

    # ----------------------------------------------------------------------------------------
    # network

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Return the network with random weights. It has two class capsules."""
        return NETWORKS[self.network](shape, **self.model_dump(include=set(NETWORK_FIELDS)))

    def objective(self, device: torch.device) -> Objective:
        """Return the loss of class capsules and reconstruction."""
        return AnomalyLoss(self)

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """Return Adam on gradients that are clipped."""
        import torch

        def clip(*_: object) -> None:
            torch.nn.utils.clip_grad_norm_(network.parameters(), self.clip)

        optimizer = torch.optim.Adam(network.parameters(), self.learning_rate)
        optimizer.register_step_pre_hook(clip)
        return optimizer

    def patience(self) -> Patience:
        """Return when to stop: where the loss has not improved for ``stop_after`` epochs."""
        from capslib.training import Patience

        return Patience("stop_loss", self.stop_after, keep=self.keep)

    def evaluate(self, network: nn.Module, splits: dict[str, Examples]) -> dict[str, float]:
        """Return the loss of all examples that early stopping looks at, as of one batch."""
        import torch

        loss = AnomalyLoss(self)
        sums = 0
        with torch.no_grad():
            for batch in splits["stop"].batches(self.BATCH_OF_TEST):
                sums = sums + torch.stack(loss.sums(network(batch.inputs), batch))
        return {"stop_loss": float(loss.terms_of(*sums)["loss"])}


class AnomalyLoss(Objective):
    """The margin loss of both class capsules, and the reconstruction error with its weight.

    The error is the squared one of normal examples. As released both are divided by the number
    of normal examples in the batch, so that the margin loss counts for more in a batch with
    many anomalies; repaired, each is divided by the number of its own examples. A batch without
    normal examples is divided by one.
    """

    def sums(self, output: Any, batch: Examples) -> tuple[Tensor, ...]:
        """Return the sums over a batch.

        They are margin loss, error of normal examples, their number, the number of all
        examples, and how many of these are classified right.
        """
        from capslib.losses import margin_loss
        from capslib.networks.inequality_anomaly import NORMAL

        labels, count = batch.labels, batch.inputs.new_full((), len(batch.inputs))
        normal = (labels == NORMAL).float()
        error = squared_error(output, batch.inputs)
        right = (output.activation.argmax(dim=1) == labels).float().sum()
        margin = margin_loss(output.activation, labels) * count
        return margin, (normal * error).sum(), normal.sum(), count, right

    def terms_of(
        self, margin: Tensor, error: Tensor, normal: Tensor, count: Tensor, right: Tensor
    ) -> dict[str, Tensor]:
        """Return the named terms of these sums."""
        normal = normal.clamp_min(1)
        margin = margin / (normal if self.recipe.divisor == "normals" else count)
        error, right = error / normal, right / count
        loss = margin + self.recipe.reconstruction_weight * error
        return {"loss": loss, "accuracy": right, "margin": margin, "reconstruction": error}

    def __call__(self, network: nn.Module, batch: Examples) -> dict[str, Tensor]:
        return self.terms_of(*self.sums(network(batch.inputs), batch))


PAPER: dict[str, dict[str, Any]] = {
    "cifar10": dict(batch_size=64),
    "ham10000": dict(batch_size=64, nonlinearity="elu", primary_dim=8),
    "crispr": dict(kernel=2, epochs=50),
}
"""What is different for other sets than MNIST and its like."""


def paper_recipe(data: str, setup: str, **fields: Any) -> AnomalyRecipe:
    """Return the paper's recipe for a data set and setup, with these other fields."""
    return AnomalyRecipe(data=data, setup=setup, **PAPER.get(data, {}), **fields)


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
        # for outliers as many steps as MNIST and Fashion-MNIST, for inliers five times
        "kmnist": dict(**CPU, batch_size=32),
        "cifar10": CPU,
        "ham10000": dict(**SMALL, downsample=2),
        "crispr": SMALL,
    },
}
"""What each scale changes for each of its sets."""


def smaller(scale: Scale, arm: Arm) -> dict[str, Any]:
    """Return the fields that a scale makes smaller for a set."""
    return {} if scale == "paper" else REDUCED[scale][arm.data]
