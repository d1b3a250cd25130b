"""Recipes: what a training is made of, by name, and the training itself.

Recipe and seed together name a *training*; :func:`train` runs it, or reads its final weights where an earlier call left them, so
that a table row and an attack share one. Nothing here imports torch before a training runs: a mistyped name is answered at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import inspect
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from capslib.config import Config, DataName, LossName, NetworkName, RoutingName, hash_of
from capslib.data.registry import SETS
from capslib.errors import Interrupted, UserError
from capslib.files import locked
from capslib.registry import LOSSES, NETWORKS, ROUTINGS

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from capslib.data import DataFingerprint, DataSplit
    from capslib.training import Context, Examples, History, Patience

__all__ = ["Objective", "Recipe", "Trained", "Training", "flops", "new_network", "train"]


class Recipe(Config):
    """What a training is made of. Its direct subclasses are those of the papers, whose defaults are the paper's setting.

    A recipe of your own is a direct subclass, too: add fields, and override :meth:`options` or :meth:`build` (the network),
    :meth:`prepare` (what it sees), :meth:`scores` (what of its output is a class score), :meth:`objective` (the loss). A subclass of
    a paper's recipe holds what an experiment measures besides; :meth:`recipe` leaves that out.
    """

    data: DataName | None = Field(None, title="data set")
    network: NetworkName
    routing: RoutingName = Field("dynamic", title="routing")
    loss: LossName = Field("margin", title="loss")
    resize: int | None = Field(None, ge=8, title="images are resized to")
    downsample: int = Field(1, ge=1, le=4, title="images averaged over blocks of")
    crop: int | None = Field(None, ge=8, title="pixels of a crop")
    jitter: bool = Field(False, title="brightness and contrast vary in training")
    standardise: Literal["crop", "image"] = Field(
        "crop", title="pixels whose mean and deviation standardise an image"
    )
    """Of the crop, after jitter, which that mostly undoes; or of the whole image, before crop and jitter."""
    images: int = Field(0, ge=0, title="images of each split, drawn once for all (0: all)")
    epochs: int = Field(50, ge=1, le=10_000, title="epochs")
    batch_size: int = Field(128, ge=1, title="batch size")
    learning_rate: float = Field(1e-3, gt=0, le=1, title="Adam learning rate")
    shared_stream: bool = Field(
        False, title="augmentation draws from the stream of the permutations"
    )
    """Augmentation drew so until it got a stream of its own; records of that time keep their meaning."""

    BATCH_OF_TEST: ClassVar[int] = 1000  # test examples in one forward pass

    def recipe(self, **changes: Any) -> Recipe:
        """It with ``changes``, less what an experiment measures besides and what is then idle. TypeError, if that changes the training."""
        line = type(self).__mro__
        paper = next(c for c in line if Recipe in c.__bases__ or c is Recipe)
        changeable = {
            name
            for name, f in vars(Recipe).items()
            if inspect.isfunction(f) or isinstance(f, property)
        }
        methods = changeable - {"recipe", "__hash__"}
        if lost := sorted(
            methods & {name for c in line[: line.index(paper)] for name in vars(c)}
        ):
            so = (
                "subclass Recipe itself, or let recipe() return self.model_copy(update=changes)"
            )
            raise TypeError(
                f"{type(self).__name__} trains as {paper.__name__}, without its own {', '.join(lost)}: {so}"
            )
        kept = {**self.model_dump(include=set(paper.model_fields)), **changes}
        idle = set().union(*paper.model_construct(**kept).idle().values()) - changes.keys()
        return paper.model_validate(
            {name: value for name, value in kept.items() if name not in idle}
        )

    def choose(self, split: DataSplit) -> dict[str, Any]:
        """Named parts of a split of the data set, each as a bool mask [N], or None for all of it."""
        return {split.split: None}

    def arrange(self, parts: dict[str, Examples]) -> dict[str, Examples]:
        """Last changes to all parts, such as other labels; their inputs are what :meth:`seen` takes."""
        return parts

    def splits(self, context: Context) -> tuple[dict[str, Examples], list[DataFingerprint]]:
        """``train`` and what to test on, on the device, and the fingerprint of the data. Images stay uint8 if batches are augmented.

        A rehearsal trains on all images, for their number decides how it computes, but tests on two batches.
        """
        import numpy as np
        import torch

        from capslib import data
        from capslib.training import Examples, subset

        if self.data is None:
            raise UserError(
                f"{type(self).__name__} names no data set: give data=, one of {', '.join(SETS)}."
            )
        parts = {}
        for name in ("train", "test"):
            split = data.load(self.data, name, data_dir=context.data_dir)
            for part, mask in self.choose(split).items():
                most = (
                    2 * self.batch_size
                    if part != "train" and context.max_steps is not None
                    else self.images
                )
                rows = np.arange(len(split)) if mask is None else mask.nonzero()[0]
                rows = rows[subset(len(rows), most).numpy()]
                images, labels = (
                    torch.tensor(split[array][rows], device=context.device)
                    for array in ("images", "labels")
                )
                if self.resize is not None and images.shape[-2:] != (self.resize, self.resize):
                    images = _resized(images, self.resize)
                parts[part] = Examples(
                    images if self.augments else self.prepare(images), labels
                )
        return self.arrange(parts), [split.fingerprint]

    def shape(self) -> tuple[tuple[int, ...], int]:
        """What the network sees of one example, (C, H, W), and the number of training examples, by the registry of data sets."""
        n, channels, *size = SETS[self.data].train
        size = [(self.resize or side) // self.downsample for side in size]
        return (channels, *([self.crop] * 2 if self.crop else size)), min(n, self.images or n)

    @property
    def augments(self) -> bool:
        """Whether every batch is prepared anew, with random numbers of its own."""
        return self.crop is not None or self.jitter

    def prepare(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """What the network sees of uint8 images [N, C, H, W]: with a generator as in training, without one as in a test."""
        from capslib.data.transforms import (
            center_crop,
            downsample,
            jitter,
            random_crop,
            standardise,
            to_float,
        )

        x = whole = (
            downsample(to_float(images), self.downsample)
            if self.downsample > 1
            else to_float(images)
        )
        jitters = generator is not None and self.jitter
        if jitters and self.standardise == "crop":
            x = jitter(x, generator)
        if self.crop is not None:
            x = (
                center_crop(x, self.crop)
                if generator is None
                else random_crop(x, self.crop, generator)
            )
        if jitters and self.standardise == "image":
            x = jitter(x, generator)
        return standardise(x, of=whole if self.standardise == "image" else x)

    def seen(self, inputs: Tensor) -> Tensor:
        """What the network sees of the inputs of a split, in a test."""
        return self.prepare(inputs) if self.augments else inputs

    def options(self) -> dict[str, Any]:
        """Keywords of the network's constructor, besides shape and number of classes: here the routing, if it takes one."""
        takes = inspect.signature(NETWORKS[self.network]).parameters
        return {"routing": self.routing} if "routing" in takes else {}

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """The network for inputs of this shape (C, H, W), with random weights. UserError for one that needs other arguments."""
        kind, given = NETWORKS[self.network], {"classes": classes, **self.options()}
        signature, paper = (
            inspect.signature(kind),
            kind.__module__.replace("capslib.networks.", "capslib.papers."),
        )
        try:
            if "classes" not in signature.parameters:
                raise TypeError("it takes no number of classes")
            signature.bind(shape, **given)
        except TypeError as why:
            there = (
                f"Take a recipe of {paper}, or"
                if paper != kind.__module__
                else "In a recipe of your own,"
            )
            raise UserError(
                f"{type(self).__name__} cannot build the network {self.network!r}: {why}. {there} override options() or build()."
            ) from None
        return kind(shape, **given)

    def start(self, network: nn.Module, train: Examples, seed: int) -> None:
        """Set what a network learns from its first batch, before it is trained."""

    def scores(self, network: nn.Module, inputs: Tensor) -> Tensor:
        """Class scores [N, C] of what the network sees."""
        output = network(inputs)
        return getattr(output, "activation", output)

    def objective(self, device: torch.device) -> Objective:
        """The loss of a batch."""
        return Objective(self)

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        import torch

        return torch.optim.Adam(network.parameters(), self.learning_rate)

    def rate(self, progress: float) -> float:
        """The learning rate when this share of the training is over."""
        return self.learning_rate

    def steps(self) -> int:
        """Number of steps of the whole training, by the registry of data sets."""
        return self.epochs * -(-self.shape()[1] // self.batch_size)

    def shorter(self) -> Sequence[int]:
        """Numbers of epochs after which this training is, step for step, a shorter one: none where a schedule spans all of it."""
        return ()

    def patience(self) -> Patience | None:
        """When to stop early; None: never."""
        return None

    def evaluate(self, network: nn.Module, splits: Mapping[str, Examples]) -> dict[str, float]:
        """What is measured after every epoch."""
        return {
            f"{name}_accuracy": self.accuracy(network, of)
            for name, of in splits.items()
            if name != "train"
        }

    def accuracy(self, network: nn.Module, examples: Examples) -> float:
        """The share of right answers, between 0 and 1."""
        from capslib.training import accuracy

        return accuracy(
            lambda inputs: self.scores(network, self.seen(inputs)), examples, self.BATCH_OF_TEST
        )

    def error(self, network: nn.Module, examples: Examples) -> float:
        """The share of wrong answers, in percent."""
        return 100 * (1 - self.accuracy(network, examples))


class Objective:
    """The loss of a recipe, as training wants it: named scalars of a batch, of which it minimises ``loss``."""

    def __init__(self, recipe: Recipe):
        self.recipe = recipe

    def at(self, progress: float) -> None:
        """Told before every step which share of the training is over, for losses that have a schedule."""

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The loss of class scores [N, C] and labels [N], a scalar."""
        return LOSSES[self.recipe.loss](scores, labels)

    def terms(self, scores: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The loss of class scores [N, C], and how many of them are right."""
        right = (scores.argmax(dim=-1) == labels).float().mean()
        return {"loss": self.loss(scores, labels), "accuracy": right}

    def __call__(self, network: nn.Module, batch: Examples) -> dict[str, Tensor]:
        return self.terms(self.recipe.scores(network, batch.inputs), batch.labels)


class Training(NamedTuple):
    """A recipe and a seed: they name what a training gives."""

    recipe: Recipe
    seed: int

    @property
    def key(self) -> str:
        """Sixteen hexadecimal digits, from what differs from the defaults: a new option leaves the old trainings alone."""
        kind = type(self.recipe)
        return hash_of(
            [f"{kind.__module__}.{kind.__qualname__}", self.recipe.differences(), self.seed]
        )

    def path(self, folder: Any) -> Any:
        """Where its last checkpoint and its final weights lie, below a working folder."""
        return folder / f"{self.key}.pt"


class Trained(NamedTuple):
    """What :func:`train` gives: the network in ``eval`` mode, its history, the splits on the device, and the data they are from."""

    network: nn.Module
    history: History
    splits: dict[str, Examples]
    data: list[DataFingerprint]


def new_network(
    recipe: Recipe, shape: tuple[int, ...], seed: int, labels: Tensor | None = None
) -> nn.Module:
    """Return the network of a recipe before it is trained, on the CPU: the same for the same seed.

    ``shape`` is that of an input. The classes are those of the data set, or, where the recipe names
    none and brings its own examples, those of the ``labels`` [N].
    """
    from capslib.training import seeded

    classes = 0
    if recipe.data is not None:
        classes = len(SETS[recipe.data].classes)
    elif labels is not None:
        classes = int(labels.max()) + 1
    with seeded(seed):
        return recipe.build(shape, classes)


def train(recipe: Recipe, seed: int, context: Context) -> Trained:
    """Train the network of a recipe, go on with a training that was killed, or read its final weights in ``context.folder``.

    Recipe and seed find the weights. What other code left is set aside: a changed capslib, a changed class of the recipe, its network
    or routing, a changed loss. What these call elsewhere in your files is not looked at; where that matters, or nothing of this does,
    name the code in ``context.code``. Where another process runs the same training, this waits for it. Shorter trainings that are the
    beginning of this one are left in the folder on the way: those that the recipe names (:meth:`Recipe.shorter`) and, if
    ``context.doubles``, that with half the epochs, where rate and loss are constant. Raises what :func:`capslib.training.fit` raises, UserError for data that are missing, and
    TypeError for a subclass of a paper's recipe with methods of its own (:meth:`Recipe.recipe`).

    >>> from capslib.training import Context
    >>> recipe = Recipe(data="digits", network="cnn", loss="cross_entropy", epochs=2)
    >>> trained = train(recipe, 0, Context(seed=0))
    >>> sorted(trained.splits), sorted(trained.history.terms), list(trained.history.epochs)
    (['test', 'train'], ['accuracy', 'loss'], ['test_accuracy'])
    """
    from filelock import Timeout

    from capslib.training import fit, path_of

    recipe = recipe.recipe()
    splits, fingerprints = recipe.splits(dataclasses.replace(context, seed=seed))
    first = splits["train"]
    shape = tuple(recipe.seen(first.inputs[:1]).shape[1:])
    network = new_network(recipe, shape, seed, first.labels).to(context.device)
    recipe.start(network, first, seed)
    objective, optimizer = recipe.objective(first.inputs.device), recipe.optimizer(network)
    steps = recipe.epochs * -(-len(first.inputs) // recipe.batch_size)

    def before_step(step: int) -> None:
        objective.at(step / steps)
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate(step / steps)

    code = context.code or (
        context.code_of(type(recipe).__module__) if context.code_of else _code(recipe)
    )
    own = dataclasses.replace(
        context, seed=seed, code=code, milestones={}, resumed_from=[], seconds_before=0.0
    )
    if context.folder is not None and context.max_steps is None:
        context.folder.mkdir(parents=True, exist_ok=True)
        own.checkpoint = Training(recipe, seed).path(context.folder)
        shorter = [*recipe.shorter()]
        steady = (
            type(recipe).rate is Recipe.rate and type(objective).at is Objective.at
        )  # does not ask how much is left
        if context.doubles and steady and recipe.epochs % 2 == 0:
            shorter.append(recipe.epochs // 2)
        for epochs in shorter:
            milestone = steps * epochs // recipe.epochs
            if path_of(milestone) == path_of(steps):
                beginning = Training(recipe.model_copy(update={"epochs": epochs}), seed)
                own.milestones[milestone] = beginning.path(context.folder)
    alone, asked = contextlib.nullcontext(), time.perf_counter()
    if own.checkpoint:
        alone = locked(
            own.checkpoint.with_suffix(".lock"), poll_interval=0.5, cancel_check=context.stop
        )
    try:
        with alone:
            context.seconds_before -= (
                time.perf_counter() - asked
            )  # while another process trained it, which is counted below
            history = fit(
                network,
                first,
                loss=objective,
                optimizer=optimizer,
                epochs=recipe.epochs,
                batch_size=recipe.batch_size,
                evaluate=lambda model: recipe.evaluate(model, splits),
                transform=recipe.prepare if recipe.augments else None,
                shared_stream=recipe.shared_stream,
                before_step=before_step,
                patience=recipe.patience(),
                context=own,
            )
    except Timeout:
        raise Interrupted from None
    context.resumed_from += own.resumed_from
    context.seconds_before += own.seconds_before
    return Trained(network.eval(), history, splits, fingerprints)


def _code(recipe: Recipe) -> str:
    """A hash of capslib's source, and of the source of what a recipe names elsewhere, where that can be read."""
    text = [path.read_bytes() for path in sorted(Path(__file__).parent.rglob("*.py"))]
    named = (NETWORKS[recipe.network], ROUTINGS[recipe.routing], LOSSES[recipe.loss])
    for thing in (*type(recipe).__mro__, *named):
        if thing.__module__.partition(".")[0] != "capslib":
            with contextlib.suppress(OSError, TypeError):
                text.append(inspect.getsource(thing).encode())
    return hashlib.sha256(b"\0".join(text)).hexdigest()


def flops(recipe: Recipe) -> tuple[int, int]:
    """FLOPs of the products and convolutions of one training step, counted on torch's ``meta`` device, and the number of steps.

    >>> step, steps = flops(Recipe(data="digits", network="cnn", loss="cross_entropy", batch_size=100, epochs=2))
    >>> step > 1e6, steps
    (True, 30)
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from capslib.routing import use_path
    from capslib.training import Examples

    (shape, count), meta = recipe.shape(), torch.device("meta")
    with meta:
        network = new_network(recipe, shape, 0).to(meta)
        images, labels = torch.zeros(recipe.batch_size, *shape), torch.zeros(recipe.batch_size)
        batch = Examples(images, labels.long())
    use_path(network, "eager")
    with FlopCounterMode(display=False) as counter:
        recipe.objective(meta)(network, batch)["loss"].backward()
    return counter.get_total_flops(), recipe.epochs * -(-count // recipe.batch_size)


def _resized(images: Tensor, side: int) -> Tensor:
    import torch
    from torch.nn import functional as F

    parts = (
        F.interpolate(part.float(), (side, side), mode="bilinear", antialias=True)
        for part in images.split(1000)
    )
    return torch.cat([part.round().clamp(0, 255).byte() for part in parts])
