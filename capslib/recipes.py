"""Recipes: what a training is made of, by name, and the training itself.

Recipe and seed together name a *training*; :func:`train` runs it, or reads its final weights
where an earlier call left them, so that a table row and an attack share one. Nothing here
imports torch before a training runs: a mistyped name is answered at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import inspect
import math
import time
from collections.abc import Callable, Mapping, Sequence
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

__all__ = [
    "BaseRecipe",
    "Objective",
    "Recipe",
    "Trained",
    "Training",
    "flops",
    "new_network",
    "step_on_meta",
    "train",
]


class BaseRecipe(Config):
    """What every training is made of: a network, its routing, and how long it learns.

    A subclass brings its own examples (:meth:`splits`) and says how large they are
    (:attr:`input_shape`, :attr:`train_size`). :class:`Recipe` takes images of a data set.
    """

    network: NetworkName
    routing: RoutingName = Field("dynamic", title="routing")
    epochs: int = Field(50, ge=1, le=10_000, title="epochs")
    batch_size: int = Field(128, ge=1, title="batch size")
    learning_rate: float = Field(1e-3, gt=0, le=1, title="Adam learning rate")
    convolutions: Literal["float32", "bfloat16"] = Field(
        "float32", title="numbers that convolutions compute with"
    )

    BATCH_OF_TEST: ClassVar[int] = 1000  # test examples in one forward pass

    def splits(self, context: Context) -> tuple[dict[str, Examples], list[DataFingerprint]]:
        """Return ``train`` and what to test on, on the device, and fingerprints of the data."""
        raise NotImplementedError(f"{type(self).__name__} has no examples: define splits()")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input of the network."""
        raise NotImplementedError(f"{type(self).__name__} has no input_shape: define it")

    @property
    def train_size(self) -> int:
        """The number of training examples."""
        raise NotImplementedError(f"{type(self).__name__} has no train_size: define it")

    @property
    def steps(self) -> int:
        """The number of steps of the whole training."""
        return self.epochs * self.steps_of_epoch(self.train_size)

    def steps_of_epoch(self, examples: int) -> int:
        """Return the number of steps of an epoch of so many training examples."""
        return math.ceil(examples / self.batch_size)

    def number_of_classes(self, labels: Tensor | None = None) -> int:
        """Return the largest of ``labels`` [N] plus one, or 0 without labels."""
        return 0 if labels is None else int(labels.max()) + 1

    def seen(self, inputs: Tensor) -> Tensor:
        """Return the network's input in a test, from ``inputs`` of a split [N, …]."""
        return inputs

    def fit_options(self) -> dict[str, Any]:
        """Return keywords of :func:`capslib.training.fit` that change every batch.

        Here return none.
        """
        return {}

    def options(self) -> dict[str, Any]:
        """Return keywords of the network's constructor: here the routing, if it takes one."""
        parameters = inspect.signature(NETWORKS[self.network]).parameters
        return {"routing": self.routing} if "routing" in parameters else {}

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Return the network for inputs of this shape, with random weights.

        Raise :class:`UserError` for a network that needs other arguments. A ValueError of the
        network, as for images that are too small, names the network.
        """
        kind = NETWORKS[self.network]
        options = {"classes": classes, **self.options()}
        signature = inspect.signature(kind)
        fault = ""
        if "classes" not in signature.parameters:
            fault = "it takes no number of classes"
        else:
            try:
                signature.bind(shape, **options)
            except TypeError as error:
                fault = str(error)
        if fault:
            paper = kind.__module__.replace("capslib.networks.", "capslib.papers.")
            advice = "In a recipe of your own,"
            if paper != kind.__module__:
                advice = f"Take a recipe of {paper}, or"
            raise UserError(
                f"{type(self).__name__} cannot build the network {self.network!r}: {fault}. "
                f"{advice} override options() or build()."
            )
        try:
            return kind(shape, **options)
        except ValueError as error:
            raise ValueError(f"{self.network}: {error}") from error

    def start(self, network: nn.Module, train: Examples, seed: int) -> None:
        """Prepare a new network before its first step. Here do nothing."""

    def scores(self, network: nn.Module, inputs: Tensor) -> Tensor:
        """Return the class scores [N, C] of what the network sees."""
        output = network(inputs)
        return getattr(output, "activation", output)

    def objective(self, device: torch.device) -> Objective:
        """Return the loss of a batch."""
        return Objective(self)

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer of the network's parameters."""
        import torch

        return torch.optim.Adam(network.parameters(), self.learning_rate)

    def rate(self, progress: float) -> float:
        """Return the learning rate; ``progress`` is the share of the steps that are done."""
        return self.learning_rate

    def shorter(self) -> Sequence[int]:
        """Return the numbers of epochs whose training is the beginning of this one.

        With a schedule over the whole training there are none.
        """
        return ()

    def patience(self) -> Patience | None:
        """Return the rule for stopping early, or None to train for all epochs."""
        return None

    def evaluate(self, network: nn.Module, splits: Mapping[str, Examples]) -> dict[str, float]:
        """Return what is measured after every epoch."""
        accuracies = {}
        for name, examples in splits.items():
            if name != "train":
                accuracies[f"{name}_accuracy"] = self.accuracy(network, examples)
        return accuracies

    def accuracy(self, network: nn.Module, examples: Examples) -> float:
        """Return the share of right answers, between 0 and 1."""
        from capslib.training import accuracy

        def scores(inputs: Tensor) -> Tensor:
            return self.scores(network, self.seen(inputs))

        return accuracy(scores, examples, self.BATCH_OF_TEST)

    def error(self, network: nn.Module, examples: Examples) -> float:
        """Return the share of wrong answers, in percent."""
        return 100 * (1 - self.accuracy(network, examples))


class Recipe(BaseRecipe):
    """A training on images of a data set.

    The network has the size of its paper, and dynamic routing unless ``routing`` names another.
    It sees standardised images (:meth:`prepare`). A decoder does not learn: the loss is that of
    the class scores. For a smaller network, override :meth:`build` and call
    :func:`capslib.networks.create_network` there.

    ``resize`` and ``crop`` are the sides of an image in pixels; ``downsample`` averages blocks
    of so many pixels a side. With ``jitter`` brightness and contrast vary in training.
    ``images`` limits the images of each split; 0 takes all. ``loss`` names one of ``LOSSES``.

    For one of your own make a subclass: add fields, and override :meth:`options` or
    :meth:`build` (the network), :meth:`prepare` (what it sees), :meth:`scores` (what of its
    output is a class score), :meth:`objective` (the loss).
    """

    data: DataName | None = Field(None, title="data set")
    loss: LossName = Field("margin", title="loss")
    resize: int | None = Field(None, ge=8, title="images are resized to")
    downsample: int = Field(1, ge=1, le=4, title="images averaged over blocks of")
    crop: int | None = Field(None, ge=8, title="pixels of a crop")
    jitter: bool = Field(False, title="brightness and contrast vary in training")
    standardise: Literal["crop", "image"] = Field(
        "crop", title="pixels whose mean and deviation standardise an image"
    )
    """With "crop", mean and deviation are those of the crop, after jitter; with "image" those
    of the whole image, before crop and jitter."""
    images: int = Field(0, ge=0, title="images of each split, drawn once for all (0: all)")
    shared_stream: bool = Field(
        False, title="augmentation draws from the stream of the permutations"
    )
    """Whether augmentation draws from the stream that permutations draw from, as in older
    records, and not from one of its own."""

    def choose(self, split: DataSplit) -> dict[str, Any]:
        """Return named parts of a split, each as a bool mask [N], or None for all of it."""
        return {split.split: None}

    def arrange(self, parts: dict[str, Examples]) -> dict[str, Examples]:
        """Return the parts after a last change, such as other labels.

        Their inputs are what :meth:`seen` takes.
        """
        return parts

    def splits(self, context: Context) -> tuple[dict[str, Examples], list[DataFingerprint]]:
        """Return ``train`` and what to test on, on the device, and the fingerprint of the data.

        Images stay uint8 if batches are augmented. A rehearsal trains on all images, whose
        number decides how it computes, but tests on two batches. Raise :class:`UserError` where
        the recipe names no data set.
        """
        import numpy as np

        from capslib import data
        from capslib.training import subset

        if self.data is None:
            raise UserError(
                f"{type(self).__name__} names no data set: "
                f"give data=, one of {', '.join(SETS)}."
            )
        train, test = (
            data.load(self.data, name, data_dir=context.data_dir) for name in ("train", "test")
        )
        parts = {}
        for split in (train, test):
            for part, mask in self.choose(split).items():
                count = self.images
                if part != "train" and context.max_steps is not None:
                    count = 2 * self.batch_size
                rows = np.arange(len(split)) if mask is None else mask.nonzero()[0]
                rows = rows[subset(len(rows), count).numpy()]
                parts[part] = self._examples(split, rows, context.device)
        return self.arrange(parts), [train.fingerprint]

    def _examples(self, split: DataSplit, rows: Any, device: str) -> Examples:
        """Return these rows of a split on a device.

        Prepare them now, unless each batch is prepared anew.
        """
        import torch

        from capslib.training import Examples

        images = torch.tensor(split["images"][rows], device=device)
        labels = torch.tensor(split["labels"][rows], device=device)
        if self.resize is not None and images.shape[-2:] != (self.resize, self.resize):
            images = _resized(images, self.resize)
        return Examples(images if self.prepares_batches else self.prepare(images), labels)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape (C, H, W) of what the network sees of one image."""
        _, channels, *size = SETS[self.data].train_shape
        if self.crop is not None:
            return (channels, self.crop, self.crop)
        return (channels, *[(self.resize or side) // self.downsample for side in size])

    @property
    def train_size(self) -> int:
        """The number of training images."""
        size = SETS[self.data].train_shape[0]
        return min(size, self.images or size)

    def number_of_classes(self, labels: Tensor | None = None) -> int:
        """Return the number of classes that the data set names, else that of ``labels`` [N]."""
        classes = 0 if self.data is None else len(SETS[self.data].classes)
        return classes or super().number_of_classes(labels)

    @property
    def prepares_batches(self) -> bool:
        """Whether images stay as they are until the network sees them, batch by batch."""
        return self.crop is not None or self.jitter

    def seen(self, inputs: Tensor) -> Tensor:
        """Return the network's input in a test, from ``inputs`` of a split [N, …]."""
        return self.prepare(inputs) if self.prepares_batches else inputs

    def fit_options(self) -> dict[str, Any]:
        """Return keywords of :func:`capslib.training.fit` that change every batch."""
        transform = self.prepare if self.prepares_batches else None
        return {"transform": transform, "shared_stream": self.shared_stream}

    def start(self, network: nn.Module, train: Examples, seed: int) -> None:
        """Have EM and similarity routing start from the first batch."""
        from capslib.routing import start_on_first_batch

        start_on_first_batch(network)

    def prepare(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return what the network sees of uint8 images [N, C, H, W]: float32, standardised.

        Mean and deviation are those of the pixels that ``standardise`` names. With a generator
        images are prepared as in training, without one as in a test, and as new images for a
        trained network.
        """
        from capslib.data.transforms import (
            center_crop,
            downsample,
            jitter,
            random_crop,
            standardise,
            to_float,
        )

        pixels = to_float(images)
        if self.downsample > 1:
            pixels = downsample(pixels, self.downsample)
        jitters = generator is not None and self.jitter
        seen = pixels
        if jitters and self.standardise == "crop":
            seen = jitter(seen, generator)
        if self.crop is not None and generator is None:
            seen = center_crop(seen, self.crop)
        elif self.crop is not None:
            seen = random_crop(seen, self.crop, generator)
        if jitters and self.standardise == "image":
            seen = jitter(seen, generator)
        return standardise(seen, of=pixels if self.standardise == "image" else seen)


class Objective:
    """The loss of a batch: named scalars, of which training minimises ``loss``."""

    def __init__(self, recipe: BaseRecipe):
        self.recipe = recipe

    def at(self, progress: float) -> None:
        """Update schedules; ``progress`` is the share of the steps that are done, from 0.

        Fill tensors in place: a Python number stays as it is in a captured CUDA step.
        """

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of class scores [N, C] and labels [N], a scalar."""
        return LOSSES[self.recipe.loss](scores, labels)

    def terms(self, scores: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return ``loss`` and ``accuracy`` of class scores [N, C], for labels [N]."""
        right = (scores.argmax(dim=-1) == labels).float().mean()
        return {"loss": self.loss(scores, labels), "accuracy": right}

    def __call__(self, network: nn.Module, batch: Examples) -> dict[str, Tensor]:
        return self.terms(self.recipe.scores(network, batch.inputs), batch.labels)


class Training(NamedTuple):
    """A recipe and a seed: they name what a training gives."""

    recipe: BaseRecipe
    seed: int

    @property
    def key(self) -> str:
        """A hash of recipe and seed. A new option that has a default leaves it as it is."""
        kind = type(self.recipe)
        return hash_of(
            [f"{kind.__module__}.{kind.__qualname__}", self.recipe.differences(), self.seed]
        )

    def path(self, folder: Path) -> Path:
        """Return the file in a folder of the last checkpoint, in the end the final weights."""
        return folder / f"{self.key}.pt"


class Trained(NamedTuple):
    """A network in ``eval`` mode, its history, the splits on the device, and their data."""

    network: nn.Module
    history: History
    splits: dict[str, Examples]
    data: list[DataFingerprint]


def new_network(
    recipe: BaseRecipe, shape: tuple[int, ...], seed: int, labels: Tensor | None = None
) -> nn.Module:
    """Return the network of a recipe before it is trained, on the CPU.

    It is the same for the same seed. ``shape`` is that of an input. The classes are those of
    the data set, or, where the recipe names none, those of the ``labels`` [N].

    >>> network = new_network(Recipe(data="digits", network="cnn"), (1, 8, 8), seed=0)
    >>> network.classes.out_features
    10
    """
    from capslib.layers import convolve_in_bfloat16
    from capslib.training import seeded

    with seeded(seed):
        network = recipe.build(shape, recipe.number_of_classes(labels))
    if recipe.convolutions == "bfloat16":
        convolve_in_bfloat16(network)
    return network


def train(
    recipe: BaseRecipe,
    seed: int | None = None,
    context: Context | None = None,
    *,
    progress: bool = True,
) -> Trained:
    """Train the network of a recipe, or read the weights that an earlier call left.

    ``seed`` decides first weights and batches: by default that of the context, or 0.
    ``context`` says where and how; by default on the CPU, without a folder. With ``progress`` a
    bar on stderr shows steps and loss, unless the context reports its progress itself.

    With ``context.folder`` a killed training goes on from its checkpoint there, and a finished
    one is read. If another process runs the same training, wait for it. The file is named after
    recipe and seed. It is set aside if code has changed since: capslib, or the class of the
    recipe, its network, its routing or its loss. Functions of yours that these call are not
    checked. To check them, or to skip the check, name the code in ``context.code``.

    Shorter trainings that are the beginning of this one are written to the folder, too: those
    of :meth:`BaseRecipe.shorter`, and with ``context.doubles`` that of half the epochs, where
    learning rate and loss are constant.

    Raise what :func:`capslib.training.fit` raises, and UserError for data that are missing.

    >>> recipe = Recipe(data="digits", network="cnn", loss="cross_entropy", epochs=2)
    >>> trained = train(recipe, progress=False)
    >>> sorted(trained.splits), sorted(trained.history.terms), list(trained.history.epochs)
    (['test', 'train'], ['accuracy', 'loss'], ['test_accuracy'])
    """
    from filelock import Timeout

    from capslib.training import Context, ProgressBar, fit

    if seed is None:
        seed = 0 if context is None else context.seed
    if context is None:
        context = Context(seed=seed)
    splits, fingerprints = recipe.splits(dataclasses.replace(context, seed=seed))
    examples = splits["train"]
    shape = tuple(recipe.seen(examples.inputs[:1]).shape[1:])
    network = new_network(recipe, shape, seed, examples.labels).to(context.device)
    recipe.start(network, examples, seed)
    objective = recipe.objective(examples.inputs.device)
    optimizer = recipe.optimizer(network)
    epoch_steps = recipe.steps_of_epoch(len(examples.inputs))
    steps = recipe.epochs * epoch_steps

    def before_step(step: int) -> None:
        objective.at(step / steps)
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate(step / steps)

    def evaluate(model: nn.Module) -> dict[str, float]:
        return recipe.evaluate(model, splits)

    training = Training(recipe, seed)
    training_context = _own_context(training, context)
    if training_context.checkpoint is not None and context.folder is not None:
        training_context.milestones = _milestones(training, objective, steps, training_context)
    request_time = time.perf_counter()
    try:
        with _alone(training_context), contextlib.ExitStack() as closing:
            # The process that held the lock counts these seconds: do not count them twice.
            context.seconds_before -= time.perf_counter() - request_time
            if progress and training_context.progress is None:
                training_context.progress = closing.enter_context(ProgressBar())
            history = fit(
                network,
                examples,
                loss=objective,
                optimizer=optimizer,
                epochs=recipe.epochs,
                epoch_steps=epoch_steps,
                batch_size=recipe.batch_size,
                evaluate=evaluate,
                before_step=before_step,
                patience=recipe.patience(),
                context=training_context,
                **recipe.fit_options(),
            )
    except Timeout:
        raise Interrupted from None
    context.resumed_from += training_context.resumed_from
    context.seconds_before += training_context.seconds_before
    return Trained(network.eval(), history, splits, fingerprints)


def _own_context(training: Training, context: Context) -> Context:
    """Return the context of one training: its seed, its code and its checkpoint."""
    recipe = training.recipe
    code = context.code
    if not code and context.code_of:
        code = context.code_of(type(recipe).__module__)
    training_context = dataclasses.replace(
        context,
        seed=training.seed,
        code=code or _code(recipe),
        milestones={},
        resumed_from=[],
        seconds_before=0.0,
    )
    if context.folder is not None and context.max_steps is None:
        context.folder.mkdir(parents=True, exist_ok=True)
        training_context.checkpoint = training.path(context.folder)
    return training_context


def _milestones(
    training: Training, objective: Objective, steps: int, context: Context
) -> dict[int, Path]:
    """Return the files of the shorter trainings that begin this one, by their last step."""
    from capslib.training import path_of

    recipe = training.recipe
    epochs = list(recipe.shorter())
    constant_rate = type(recipe).rate is BaseRecipe.rate
    constant_loss = type(objective).at is Objective.at
    if context.doubles and constant_rate and constant_loss and recipe.epochs % 2 == 0:
        epochs.append(recipe.epochs // 2)
    milestones = {}
    for shorter in epochs:
        step = steps * shorter // recipe.epochs
        if path_of(step) == path_of(steps):
            beginning = Training(recipe.model_copy(update={"epochs": shorter}), training.seed)
            milestones[step] = beginning.path(context.folder)
    return milestones


def _alone(context: Context) -> contextlib.AbstractContextManager:
    """Return the lock of a training's checkpoint, which one process holds at a time."""
    if context.checkpoint is None:
        return contextlib.nullcontext()
    lock = context.checkpoint.with_suffix(".lock")
    return locked(lock, poll_interval=0.5, cancel_check=context.stop)


def _code(recipe: BaseRecipe) -> str:
    """Return a hash of capslib's source, and of the source of what a recipe names elsewhere.

    What cannot be read does not count, nor does pydantic, on which recipes are built.
    """
    texts = [path.read_bytes() for path in sorted(Path(__file__).parent.rglob("*.py"))]
    objects = [*type(recipe).__mro__, NETWORKS[recipe.network], ROUTINGS[recipe.routing]]
    if isinstance(recipe, Recipe):
        objects.append(LOSSES[recipe.loss])
    for item in objects:
        package = item.__module__.partition(".")[0]
        if package not in ("capslib", "pydantic", "builtins"):
            with contextlib.suppress(OSError, TypeError):
                texts.append(inspect.getsource(item).encode())
    content = b"\0".join(texts).replace(b"\r\n", b"\n")  # a clone of Windows has the same code
    return hashlib.sha256(content).hexdigest()


def flops(recipe: BaseRecipe) -> int:
    """Return the FLOPs of the products and convolutions of one training step.

    They are counted on torch's ``meta`` device, without data.

    >>> flops(Recipe(data="digits", network="cnn", loss="cross_entropy", batch_size=100)) > 1e6
    True
    """
    from torch.utils.flop_counter import FlopCounterMode

    _, backward = step_on_meta(recipe)
    with FlopCounterMode(display=False) as counter:
        backward()
    return counter.get_total_flops()


def step_on_meta(recipe: BaseRecipe) -> tuple[nn.Module, Callable[[], None]]:
    """Return a network on torch's ``meta`` device, and what computes its gradients of a batch.

    Tensors there have shapes and no numbers, so a step can be counted without data.

    >>> recipe = Recipe(data="digits", network="cnn", loss="cross_entropy")
    >>> network, backward = step_on_meta(recipe)
    >>> backward()
    >>> next(network.parameters()).grad.is_meta
    True
    """
    import torch

    from capslib.routing import use_path
    from capslib.training import Examples

    meta = torch.device("meta")
    shape = recipe.input_shape
    with meta:
        network = new_network(recipe, shape, 0).to(meta)
        inputs = torch.zeros(recipe.batch_size, *shape)
        labels = torch.zeros(recipe.batch_size).long()
    use_path(network, "eager")
    objective = recipe.objective(meta)

    def backward() -> None:
        objective(network, Examples(inputs, labels))["loss"].backward()

    return network, backward


def _resized(images: Tensor, side: int) -> Tensor:
    import torch
    from torch.nn import functional as F

    parts = (
        F.interpolate(part.float(), (side, side), mode="bilinear", antialias=True)
        for part in images.split(1000)
    )
    return torch.cat([part.round().clamp(0, 255).byte() for part in parts])
