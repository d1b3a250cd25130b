"""A network of the paper, trained and tested: the configuration, and what the experiments on images share (§5)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import Field

from capslib.costs import FLOAT, Layer, Work, after, capsules, convolution, dense, steps
from capslib.data.registry import dataset
from capslib.papers.common import differences
from capslib.trials import Config, Context, DataFingerprint, Deviation, Metric, Scale

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor, nn

    from capslib import data
    from capslib.training import History


class TrainingConfig(Config):
    """One network on one data set. Defaults are the paper's setting, as far as the paper, its release or its authors state it."""

    data: Literal["smallnorb", "toys", "mnist", "digits", "cifar10"] = "smallnorb"
    model: Literal["capsules", "cnn"] = "capsules"
    network: Literal["main", "small"] = Field("main", title="which of the paper's networks")
    sizes: tuple[int, int, int, int] = Field((32, 32, 32, 32), title="A, B, C, D")
    cnn: tuple[int, int, int] = Field((32, 64, 1024), title="filters and hidden units of the CNN")
    iterations: int = Field(3, ge=1, le=20, title="routing iterations")
    pose: Literal["matrix", "vector"] = Field("matrix", title="pose")
    coordinates: bool = Field(True, title="coordinate addition")
    activation: Literal["mdl", "mixing"] = Field("mdl", title="activation of a parent")
    normalise: Literal["types+positions", "positions-per-type", "types-per-position"] = Field(
        "positions-per-type", title="who competes for a child"
    )
    preset: Literal["printed", "released", "calibrated"] = Field("calibrated", title="constants of routing")
    loss: Literal["spread", "margin", "cross_entropy"] = Field("spread", title="loss")
    margin: Literal["sigmoid", "linear", "fixed"] = Field("sigmoid", title="schedule of the spread loss's margin")
    resize: int = Field(48, ge=8, title="images are resized to")
    crop: int = Field(32, ge=17, title="pixels of a crop")
    jitter: bool = Field(True, title="brightness and contrast vary in training")
    images: int = Field(0, ge=0, title="images of each split, drawn once for all (0: all)")
    epochs: int = Field(100, ge=1, le=10_000, title="epochs")
    batch_size: int = Field(64, ge=1, title="batch size")
    learning_rate: float = Field(3e-3, gt=0, le=1, title="Adam learning rate")
    cnn_learning_rate: float | None = Field(
        None, gt=0, le=1, title="Adam learning rate of the CNN, where it is another", exclude_if=lambda rate: rate is None
    )
    decay: Literal["exponential", "cosine"] = Field("exponential", title="decay of the learning rate")
    weight_decay: float = Field(2e-7, ge=0, title="weight decay")
    multi_crop: int = Field(0, ge=0, title="test images that are looked at in 13 crops")


TESTED_AT_ONCE = 250
"""Images, or crops of them, in one forward pass without a gradient: the main network takes no more memory than to train."""


class Split(NamedTuple):
    """Images uint8 [N, C, H, W], resized, and labels [N], on the device."""

    images: Tensor
    labels: Tensor

    def some(self, most: int) -> Split:
        """At most so many of them, drawn once for all; all if ``most`` is 0."""
        rows = _some(len(self.labels), most)
        return Split(*(t[rows] for t in self))


class Trained(NamedTuple):
    network: nn.Module
    history: History


def _some(n: int, most: int) -> Tensor:
    """At most so many of ``n`` rows, in their order. Drawn: smallNORB is sorted by its factors, and equal steps would miss some."""
    from capslib.training import permutation

    return permutation(n, 0, 0)[: most or n].sort().values


def load_splits(
    config: TrainingConfig, context: Context, keep: Callable[[data.DataSplit], np.ndarray] | None = None
) -> tuple[Split, Split, DataFingerprint]:
    """Training and test split, and the data's fingerprint."""
    (train, _), (test, fingerprint) = (load_split(config, context, name, keep) for name in ("train", "test"))
    return train, test, fingerprint


def load_split(
    config: TrainingConfig, context: Context, name: str, keep: Callable[[data.DataSplit], np.ndarray] | None
) -> tuple[Split, DataFingerprint]:
    """One split, resized. ``keep`` chooses its examples, as a bool mask [N].

    A rehearsal trains on all images, for their number decides how it computes, but tests on two batches.
    """
    import numpy as np
    import torch
    from torch.nn import functional as F

    from capslib import data

    split = data.load(config.data, name, data_dir=context.data_dir)
    rows = np.arange(len(split)) if keep is None else keep(split).nonzero()[0]
    few = name == "test" and context.max_steps is not None
    rows = rows[_some(len(rows), 2 * config.batch_size if few else config.images).numpy()]
    images, labels = (torch.tensor(split[array][rows], device=context.device) for array in ("images", "labels"))
    if images.shape[-1] != config.resize:
        size = (config.resize, config.resize)
        images = torch.cat([
            F.interpolate(part.float(), size, mode="bilinear", antialias=True).round().clamp(0, 255).byte()
            for part in images.split(1000)
        ])  # fmt: skip
    return Split(images, labels), DataFingerprint(**split.fingerprint._asdict())


def seen(config: TrainingConfig, images: Tensor) -> Tensor:
    """What a network sees of test images: the middle, standardised."""
    from capslib.data.transforms import center_crop, standardise, to_float

    return standardise(center_crop(to_float(images), config.crop))


def build(config: TrainingConfig, context: Context, train: Split) -> nn.Module:
    from capslib.networks.em_routing import BaselineCNN, MatrixCapsNet
    from capslib.training import permutation, seeded

    shape, classes = (train.images.shape[1], config.crop, config.crop), len(dataset(config.data).classes)
    with seeded(context.seed):
        if config.model == "cnn":
            return BaselineCNN(shape, classes, config.cnn).to(context.device)
        network = MatrixCapsNet(
            shape, classes, config.sizes, iterations=config.iterations, pose=config.pose, coordinates=config.coordinates,
            normalise=config.normalise, preset=config.preset, mixing=config.activation == "mixing",
        ).to(context.device)  # fmt: skip
    if config.preset == "calibrated":
        first = permutation(len(train.images), context.seed, 0)[: min(16, config.batch_size)].to(context.device)
        network.start_at_half(seen(config, train.images[first]))
    return network


def losses(config: TrainingConfig, scores: Tensor, labels: Tensor, margin: float | Tensor) -> Tensor:
    """The loss of a batch; the CNN's is always the cross entropy of its logits."""
    from torch.nn import functional as F

    from capslib.losses import margin_loss, spread_loss

    if config.model == "cnn" or config.loss == "cross_entropy":
        return F.cross_entropy(scores, labels)
    return margin_loss(scores, labels) if config.loss == "margin" else spread_loss(scores, labels, margin)


def margin_at(progress: float, schedule: Literal["sigmoid", "linear", "fixed"]) -> float:
    """Margin of the spread loss when ``progress`` of the training, between 0 and 1, is over.

    "sigmoid" is the release's 0.2 + 0.79·σ(step/50000 − 4), with the 400,000 steps after which it is 0.98 as the whole training.
    """
    if schedule == "fixed":
        return 0.9
    return 0.2 + 0.7 * progress if schedule == "linear" else 0.2 + 0.79 / (1 + math.exp(4 - 8 * progress))


def fit_network(
    config: TrainingConfig, context: Context, train: Split, evaluate: Callable[[nn.Module], dict[str, float]]
) -> Trained:
    import torch

    from capslib.data.transforms import jitter, random_crop, standardise, to_float
    from capslib.training import fit

    network = build(config, context, train)
    weights = [p for p in network.parameters() if p.ndim > 1]
    others = [p for p in network.parameters() if p.ndim < 2]
    rate = (config.cnn_learning_rate if config.model == "cnn" else None) or config.learning_rate
    optimizer = torch.optim.Adam([{"params": weights, "weight_decay": config.weight_decay}, {"params": others}], rate)
    total = config.epochs * -(-len(train.images) // config.batch_size)
    margin = torch.zeros((), device=context.device)

    def before_step(step: int) -> None:
        progress = step / total
        margin.fill_(margin_at(progress, config.margin))
        # 0.96 every 20,000 steps, of the 2,000,000 of the release: to 1.7 %, so that at the end nothing is left of noisy steps
        factor = 0.96 ** (100 * progress) if config.decay == "exponential" else (1 + math.cos(math.pi * progress)) / 2
        for group in optimizer.param_groups:
            group["lr"] = rate * factor

    def loss(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        scores = model(images)
        return losses(config, scores, labels, margin), scores

    def augment(images: Tensor, generator: torch.Generator) -> Tensor:
        x = to_float(images)
        return standardise(random_crop(jitter(x, generator) if config.jitter else x, config.crop, generator))

    history = fit(
        network, *train, loss=loss, optimizer=optimizer, epochs=config.epochs, batch_size=config.batch_size, context=context,
        evaluate=evaluate, transform=augment, before_step=before_step,
    )  # fmt: skip
    return Trained(network.eval(), history)


def error_of(config: TrainingConfig, network: nn.Module, split: Split) -> float:
    """Share of wrong answers, in percent, on the middle of the images."""
    from capslib.training import accuracy

    return 100 * (1 - accuracy(lambda images: network(seen(config, images)), *split, batch_size=TESTED_AT_ONCE))


def error_of_crops(config: TrainingConfig, network: nn.Module, split: Split) -> float:
    """The same with those of the 13 crops that fit voting: each crop's activations, divided by their sum, are added up."""
    from capslib.data.transforms import CENTRE_AND_DIAGONALS, crops, standardise, to_float
    from capslib.training import accuracy

    offsets = [o for o in CENTRE_AND_DIAGONALS if max(map(abs, o)) <= (config.resize - config.crop) // 2]
    batch_size = max(1, TESTED_AT_ONCE // len(offsets))

    def scores(images: Tensor) -> Tensor:
        several = crops(to_float(images), config.crop, offsets)  # [K, N, C, crop, crop]
        found = network(standardise(several.flatten(0, 1))).unflatten(0, several.shape[:2])
        found = found.softmax(dim=-1) if config.model == "cnn" else found / found.sum(dim=-1, keepdim=True)
        return found.sum(dim=0)

    return 100 * (1 - accuracy(scores, *split, batch_size=batch_size))


def flattening_of_error(config: TrainingConfig, history: History, images: int) -> Metric:
    """The check for convergence: how far the training error moved over the last quarter, as a share of that of guessing.

    The error, for the spread loss itself rises with its margin; of the epoch that ends at three quarters and of the last, which
    see the same ``images``; and one base for all arms, for what an arm errs in its first steps is less the quicker it learns.
    """
    from capslib.training import moved_over_last_quarter

    moved = moved_over_last_quarter(history.accuracy, -(-images // config.batch_size))
    guessing = 1 - 1 / len(dataset(config.data).classes)
    return Metric(value=moved / guessing, n=len(history.accuracy), unit="share of the error of guessing")


SMALL = (64, 8, 16, 16)
REDUCED: dict[Scale, dict[str, Any]] = {
    "smoke": dict(
        data="toys", sizes=(8, 4, 4, 4), cnn=(8, 8, 16), resize=24, crop=20, images=200, epochs=3, batch_size=20, decay="cosine"
    ),
    "cpu": dict(sizes=(32, 8, 8, 8), cnn=(16, 16, 30), resize=32, crop=24, epochs=12, batch_size=32),
    "paper": dict(cnn_learning_rate=1e-3),
}


# ---------------------------------------------------------------------------------------------------- costs and deviations


def capsule_layers(
    batch: int, channels: int, size: tuple[int, int], classes: int, sizes: tuple[int, int, int, int], iterations: int = 3,
    pose: Literal["matrix", "vector"] = "matrix", *, shared: bool = True,
) -> tuple[Layer, ...]:  # fmt: skip
    """The layers of matrix capsules for images of ``size``; ``shared``: class capsules have one set of matrices for all positions."""
    (A, B, C, D), inner = sizes, 4 if pose == "matrix" else 16
    one = after(size, 5, 2)
    two = after(one, 3, 2)
    three = after(two, 3)

    def routed(grid: tuple[int, int], children: int, parents: int, matrices: int) -> tuple[Layer, ...]:
        images, weights = batch * math.prod(grid), 4 * inner * matrices
        return capsules("em", images, children, parents, 16, inner, iterations=iterations, weights=weights)

    return (
        convolution(batch, channels, A, 5, one, 2, first=True),
        convolution(batch, A, 17 * B, 1, one),
        *routed(two, 9 * B, C, 9 * B * C),
        *routed(three, 9 * C, D, 9 * C * D),
        *routed((1, 1), math.prod(three) * D, classes, D * classes * (1 if shared else math.prod(three))),
    )


def work(config: TrainingConfig, cnns: int = 0, share: float = 1.0, tested: int = 0) -> Work:
    """What a training takes, beside it those of so many CNNs; ``share`` of the training images, after each epoch ``tested`` test images (0: all)."""
    of, batch, size = dataset(config.data), config.batch_size, (config.crop, config.crop)
    (train, channels, *full), (test, *_), classes = of.splits["train"], of.splits["test"], len(of.classes)
    first, second, hidden = config.cnn
    half, quarter = (tuple(side // k for side in size) for k in (2, 4))
    cnn = (
        convolution(batch, channels, first, 5, size, first=True),
        convolution(batch, first, second, 5, half),
        dense(batch, second * math.prod(quarter), hidden),
        dense(batch, hidden, classes),
    )
    caps = capsule_layers(batch, channels, size, classes, config.sizes, config.iterations, config.pose)
    images = (train + test) * channels * (math.prod(full) + config.resize**2)  # as bytes, as they are and resized
    evaluated = FLOAT * TESTED_AT_ONCE * config.sizes[0] * math.prod(size)
    layers = (*(cnn if config.model == "cnn" else caps), *cnn * cnns)
    return Work(steps(config.epochs, batch, int(train * share), tested or test), layers, images + evaluated)


_RESIZED = Deviation(
    what="size of smallNORB images", paper="96 × 96 resized to 48 × 48 (the release keeps every second row and column)",
    ours="2 × 2 pixels averaged", why="no aliasing; the prepared form of the set",
)  # fmt: skip
_COMPETITION = Deviation(
    what="who competes for a child", paper="all parents that see it (text); the positions of each type (release)",
    ours="as in the release", why="the authors' own code; as printed, few children are left to a parent, which is an arm of its own",
)  # fmt: skip
_CONSTANTS = {
    "calibrated": Deviation(
        what="start of β and λ", paper="constants; in the release λ = 0.02, β_a = −1250 and −2500",
        ours="set layer by layer so that half of the capsules are active on 16 images",
        why="the authors' own criterion; from the released constants a network of another size gets next to no gradient",
    ),
    "printed": Deviation(
        what="start of β and λ, variance floor", paper="not stated (Procedure 1)", ours="β = 0, λ = 0.01 in all layers, 1e-12",
        why="as little as a start needs",
    ),
    "released": Deviation(
        what="ε in the mass", paper="1e-7, 1e-5 in the class layer (release)", ours="masses below 1e-8 count as 1e-8",
        why="the same but for parents without children",
    ),
}  # fmt: skip


def deviations(config: TrainingConfig, cnns: int = 0) -> list[Deviation]:
    """Those of a training, and of ``cnns`` beside it."""
    arm = {
        "cnn_learning_rate", "data", "model", "network", "iterations", "pose", "coordinates", "activation", "normalise", "preset", "loss", "margin", "multi_crop",
        "factor", *({"resize", "crop", "jitter"} if config.data in ("mnist", "digits", "cifar10") else ()),
    }  # fmt: skip
    if config.network == "small" or config.data == "cifar10":
        arm.add("sizes")
    setting = type(config)(**config.model_dump(include=arm & set(type(config).model_fields)))
    found = differences(config, setting, arm, "budget of this scale")
    found.append(
        Deviation(what="length of the training", paper="not stated; the release's flag says 2,000,000 steps", ours=f"{config.epochs} epochs",
                  why="400,000 steps of the margin's schedule and 2,000,000 of the learning rate's are stretched to it")
    )  # fmt: skip
    if config.cnn_learning_rate is not None and (config.model == "cnn" or cnns):
        found.append(Deviation(what="Adam learning rate of the CNN", paper="not stated; 0.003 for capsules (authors' reply)",
                               ours=f"{config.cnn_learning_rate:g}",
                               why="at 0.003 the full-size CNN gives every image one answer after some twenty steps"))  # fmt: skip
    if config.model == "cnn":
        return [*found, Deviation(what="dropout of the CNN", paper="rate not stated", ours="0.5", why="the usual rate")]
    found.append(_CONSTANTS[config.preset])
    if config.normalise == "positions-per-type":
        found.append(_COMPETITION)
        found.append(Deviation(what="windows that step by two", paper="as all others (text); other places grouped (release)",
                               ours="as all others", why="the release's index arithmetic is exact for steps of one only"))  # fmt: skip
        if config.activation == "mixing":
            found.append(Deviation(what="mixing proportions", paper="shares among all parents", ours="shares among the positions of a type",
                                   why="a child gives one unit to every type, as in the release"))  # fmt: skip
    if config.data == "smallnorb":
        found.append(_RESIZED)
    if config.data == "mnist":
        found.append(Deviation(what="rotation of MNIST digits", paper="one random angle, drawn when the graph is built (release)",
                               ours="none", why="one angle for all images and the whole training augments nothing"))  # fmt: skip
    if config.data == "cifar10":
        found.append(
            Deviation(
                what="crops of CIFAR-10", paper="not stated", ours="24 × 24, as for MNIST", why="the paper gives only A = 256"
            )
        )
    if config.pose == "vector":
        found.append(Deviation(what="vector pose", paper="not specified", ours="16 numbers, a 16 × 16 matrix for each pair",
                               why="as in Sabour et al. 2017; it has sixteen times the weights"))  # fmt: skip
    return found
