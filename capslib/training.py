"""A training loop that resumes to the last bit: :func:`fit`, what it works on, and metrics.

The data are on the device, a batch is a slice of a permutation, and everything random is a
function of seed, epoch and step. So a run that is killed and started again ends with the same
numbers to the last bit (on the CPU with the same number of threads).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from tqdm import tqdm

from capslib.checkpoints import Run
from capslib.errors import Interrupted, NotFinite, check_name, notify
from capslib.routing import use_path
from capslib.routing.base import Path as RoutingPath
from capslib.routing.fast import float32_products

__all__ = [
    "Context",
    "Examples",
    "History",
    "Loss",
    "Patience",
    "ProgressBar",
    "accuracy",
    "augmentation",
    "blame",
    "fit",
    "path_of",
    "permutation",
    "seeded",
    "subset",
]


class Examples(NamedTuple):
    """Inputs [N, …] and, where the data have them, labels [N]: a split, or one batch of it."""

    inputs: Tensor
    labels: Tensor | None = None

    def to(self, device: torch.device | str) -> Examples:
        """Return the examples on a device."""
        labels = None if self.labels is None else self.labels.to(device)
        return Examples(self.inputs.to(device), labels)

    def at_most(self, limit: int) -> Examples:
        """Return at most ``limit`` examples, always the same ones; all of them if it is 0."""
        return self.rows(subset(len(self.inputs), limit)) if limit else self

    def rows(self, index: Any) -> Examples:
        """Return the examples that ``index`` selects: row numbers, a mask or a slice."""
        labels = None if self.labels is None else self.labels[index]
        return Examples(self.inputs[index], labels)

    def batches(self, size: int) -> Iterator[Examples]:
        """Yield consecutive batches of ``size``; the last one may be smaller."""
        for start in range(0, len(self.inputs), size):
            yield self.rows(slice(start, start + size))


Loss = Callable[[nn.Module, Examples], Mapping[str, Tensor]]
"""``loss(model, batch)`` returns scalars by name. Training minimises the one that is called
"loss", and logs all."""


def _checkpoint_seconds() -> float:
    return float(os.environ.get("CAPSLIB_CHECKPOINT_SECONDS", "60"))


def _never() -> bool:
    return False


@dataclass
class Context:
    """Where and how a training runs. Only ``seed`` and ``max_steps`` change what is learned.

    :func:`fit` computes on the device of its examples. The fields ``device``, ``data_dir``,
    ``folder``, ``doubles`` and ``code_of`` are for :func:`capslib.recipes.train` alone, whose
    own ``seed``, where given, takes the place of this one.
    """

    seed: int
    device: str = "cpu"
    data_dir: Path | None = None
    """Folder of prepared data; None is ``$CAPSLIB_DATA``, else the user's cache."""
    folder: Path | None = None
    """Folder for the checkpoints and final weights of trainings; None keeps none."""
    checkpoint: Path | None = None
    """File for the state of the training that :func:`fit` runs, in the end with its weights."""
    doubles: bool = False
    """Whether ``train`` keeps the state after half the epochs, too, as another training."""
    milestones: Mapping[int, Path] = field(default_factory=dict)
    """By step: the file to which ``fit`` writes its state, as a finished shorter training."""
    checkpoint_seconds: float = field(default_factory=_checkpoint_seconds)
    """Seconds between checkpoints: ``$CAPSLIB_CHECKPOINT_SECONDS``, else 60."""
    code: str = ""
    """Name of the code that runs this training; a checkpoint of other code is set aside."""
    code_of: Callable[[str], str] | None = None
    """Returns the ``code`` of a recipe's module, where ``code`` is empty."""
    stop: Callable[[], bool] = _never
    """Asked where losses are checked; if true, ``fit`` writes a checkpoint and raises
    Interrupted."""
    progress: Callable[[int, int, str], None] | None = None
    """Called after each epoch as ``progress(step, steps, note)``, e.g. a ProgressBar."""
    max_steps: int | None = None
    """For a rehearsal: end each training after so many steps, and read and write no
    checkpoint."""
    resumed_from: list[int] = field(default_factory=list)
    """Steps at which a training was taken up again; ``fit`` fills it."""
    seconds_before: float = 0.0
    """Seconds that other processes spent on trainings taken up or found finished, less the
    seconds that this one waited for them."""

    def __post_init__(self) -> None:
        for name in ("data_dir", "folder", "checkpoint"):
            path = getattr(self, name)
            if path is not None:
                setattr(self, name, Path(path))


@dataclass
class History:
    """What a training left.

    ``terms`` has, for each term of the loss, a number for every step. ``epochs`` has the
    metrics of every epoch by name, and ``routing_path`` is the path that the routings took.
    """

    terms: dict[str, list[float]]
    epochs: dict[str, list[float]] = field(default_factory=dict)
    routing_path: str = "fast"


class ProgressBar:
    """A bar on stderr of the steps of a training, for :attr:`Context.progress`.

    It appears when :func:`fit` begins, and moves after each epoch. It is a context manager,
    which ends its line.

    >>> with ProgressBar() as bar:
    ...     context = Context(seed=0, progress=bar)
    """

    def __init__(self) -> None:
        self.bar: tqdm | None = None

    def start(self, step: int, steps: int) -> None:
        """Show a new bar of so many steps, at a step. :func:`fit` calls it."""
        self.close()
        self.bar = tqdm(total=steps, initial=step, unit=" steps", dynamic_ncols=True)

    def close(self) -> None:
        """End the line of the bar, if there is one."""
        if self.bar is not None:
            self.bar.close()

    def __call__(self, step: int, steps: int, note: str) -> None:
        if self.bar is None:
            self.start(0, steps)
        self.bar.set_postfix_str(note, refresh=False)
        self.bar.update(step - self.bar.n)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Patience(NamedTuple):
    """Stop when ``metric`` has not improved for ``epochs`` epochs.

    ``better`` says which value of the metric is better: the lower, as of a loss, or the
    higher, as of an accuracy. ``keep`` says whether the weights of the best or of the last
    epoch stay.
    """

    metric: str
    epochs: int
    keep: Literal["best", "last"] = "best"
    better: Literal["lower", "higher"] = "lower"


def path_of(steps: int) -> Literal["compiled", "fast"]:
    """Return the path of the routings in a run of so many steps.

    A long run repays the seconds that ``torch.compile`` takes.

    >>> path_of(100), path_of(5000)
    ('fast', 'compiled')
    """
    return "compiled" if steps >= 1000 else "fast"


def permutation(n: int, seed: int, epoch: int) -> Tensor:
    """Return the order of ``n`` examples in an epoch, int64 [n], the same for every network.

    >>> permutation(5, seed=0, epoch=1).tolist() == permutation(5, seed=0, epoch=1).tolist()
    True
    """
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))


def subset(n: int, limit: int) -> Tensor:
    """Return at most ``limit`` of ``n`` row numbers, in order; all of them if it is 0.

    They are drawn at random, because equal steps through a sorted set would miss some factors,
    but they are the same in every call.

    >>> subset(4, 0)
    tensor([0, 1, 2, 3])
    """
    return permutation(n, 0, 0)[: limit or n].sort().values


def augmentation(
    seed: int, step: int, device: torch.device, *, shared: bool = False
) -> torch.Generator:
    """Return the generator of the augmentation at a step.

    With ``shared`` it is seeded as :func:`permutation`, as in older records.

    >>> first, again = (augmentation(0, 7, torch.device("cpu")) for _ in range(2))
    >>> bool(torch.rand(1, generator=first) == torch.rand(1, generator=again))
    True
    """
    mixed = seed * 1_000_003 + step
    if not shared:
        digest = hashlib.sha256(f"augmentation {seed} {step}".encode()).digest()
        mixed = int.from_bytes(digest[:7])
    return torch.Generator(device).manual_seed(mixed)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw weights and dropout from ``seed``, and leave the caller's random state as it was.

    >>> with seeded(0):
    ...     first = nn.Linear(2, 2)
    >>> with seeded(0):
    ...     second = nn.Linear(2, 2)
    >>> torch.equal(first.weight, second.weight)
    True
    """
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


def accuracy(
    scores: Callable[[Tensor], Tensor], examples: Examples, batch_size: int = 1000
) -> float:
    """Return the share, 0 to 1, of examples whose label is the arg max of the scores.

    ``scores(inputs)`` returns a tensor [N, C]; of a network here, its ``activation``. Put the
    network into ``eval`` mode first. Raises ValueError for examples without labels, and for
    none.

    >>> accuracy(lambda x: x, Examples(torch.eye(2), torch.tensor([0, 0])))
    0.5
    """
    if examples.labels is None or not len(examples.inputs):
        raise ValueError("an accuracy needs examples with labels")
    correct = 0
    with torch.no_grad():
        for inputs, labels in examples.batches(batch_size):
            correct += (scores(inputs).argmax(dim=-1) == labels).sum()
    return float(correct) / len(examples.inputs)


def fit(
    model: nn.Module,
    examples: Examples,
    *,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    epochs: int,
    batch_size: int,
    context: Context,
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None = None,
    transform: Callable[[Tensor, torch.Generator], Tensor] | None = None,
    shared_stream: bool = False,
    before_step: Callable[[int], None] | None = None,
    patience: Patience | None = None,
    guard_every: int | None = None,
    epoch_steps: int | None = None,
    path: RoutingPath | None = None,
) -> History:
    """Train ``model`` for ``epochs`` passes over ``examples``, which are on its device.

    Returns a :class:`History`. The model ends in ``eval`` mode, and its routings keep the path
    that the run took: ``path``, or by default that of :func:`path_of`. Raises ValueError for a
    training without examples, epochs, steps or a batch, for fewer or more labels than inputs,
    and for a patience whose metric ``evaluate`` does not return. Raises TypeError for examples
    that are no :class:`Examples`, such as a ``DataLoader``, and for a loss that returns no
    mapping with a "loss".

    With ``epoch_steps`` an epoch is no whole pass, but the first so many batches of one.
    ``evaluate(model)`` returns metrics after every epoch, and where ``context.max_steps`` ends
    the run. With ``patience`` the run stops early. ``transform(inputs, generator)`` augments a
    batch with a generator of its own step (``shared_stream``: see :func:`augmentation`).
    ``before_step(step)``, from 0, may set a rate in ``optimizer.param_groups`` or fill, in
    place, a tensor that the loss reads: a captured CUDA step sees no other change.
    Convolutions take the memory format ``channels_last`` on a GPU, and on a CPU where
    ``model.channels_last`` is true.

    Checkpoints go to the file ``context.checkpoint`` every ``context.checkpoint_seconds``. In
    the end the file holds the final weights, as ``model``, and the history, and the same call
    then reads them instead of training. It reads them, too, if the loss or the data have
    changed, or for more epochs. For fewer steps, or where the weights do not fit the model, it
    sets the file aside, and trains anew. Give a changed training another file, or another
    ``context.code``.

    Losses are checked every ``guard_every`` steps (1 on the CPU; 50 on a GPU, where
    checking means waiting). Raises :class:`NotFinite`, naming the step and the first layer,
    where the loss or a gradient is not finite, and :class:`Interrupted` when ``context.stop()``
    returns true.

    >>> def square_error(model, batch):
    ...     return {"loss": (model(batch.inputs) - 3 * batch.inputs).square().mean()}
    >>> line, x = nn.Linear(1, 1), torch.linspace(-1, 1, 64)[:, None]
    >>> sgd = torch.optim.SGD(line.parameters(), lr=0.3)
    >>> options = dict(epochs=40, batch_size=32, context=Context(seed=0))
    >>> history = fit(line, Examples(x), loss=square_error, optimizer=sgd, **options)
    >>> round(line.weight.item(), 2)
    3.0
    """
    if not isinstance(examples, Examples):
        kind = type(examples).__name__
        raise TypeError(f"fit takes Examples(inputs, labels), not {kind}")
    device, size = examples.inputs.device, len(examples.inputs)
    if examples.labels is not None and len(examples.labels) != size:
        raise ValueError(f"{size} inputs need as many labels, not {len(examples.labels)}")
    if min(size, epochs, batch_size) < 1:
        raise ValueError(
            "a training needs examples, epochs and a batch size, "
            f"not {size}, {epochs} and {batch_size}"
        )
    if context.max_steps is not None and context.max_steps < 1:
        raise ValueError(f"max_steps is at least 1, or None, not {context.max_steps}")
    if patience is not None:
        check_name("choice of better", patience.better, ("lower", "higher"))
        check_name("choice of weights to keep", patience.keep, ("best", "last"))
        if evaluate is None:
            raise ValueError(f"patience needs evaluate(model), for {patience.metric!r}")
    whole_pass = math.ceil(size / batch_size)
    epoch_steps = min(epoch_steps or whole_pass, whole_pass)
    all_steps = epochs * epoch_steps
    steps = min(all_steps, context.max_steps or all_steps)
    guard = guard_every or (1 if device.type == "cpu" else 50)
    if device.type == "cuda" or getattr(model, "channels_last", False):
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                module.to(memory_format=torch.channels_last)
    # Dense layers in TF32, as convolutions are by default; routings keep float32.
    with seeded(context.seed), float32_products(device, "high"):
        file = context.checkpoint if context.max_steps is None else None
        run = Run(model, optimizer, steps, device, path=file, code=context.code)
        # A rehearsal takes the path of the whole run.
        path = use_path(model, path or path_of(all_steps))
        gradients = _Gradients(model, loss, batch_size if device.type == "cuda" else None)
        run.resume()
        if isinstance(context.progress, ProgressBar) and not run.finished:
            context.progress.start(run.step, steps)
        if guard > 1:
            run.remember()
        order = None

        while not run.finished:
            step = run.step
            epoch, position = divmod(step, epoch_steps)
            if before_step is not None:
                before_step(step)
            if position == 0 or order is None:
                order = permutation(size, context.seed, epoch).to(device)
            batch = examples.rows(order[position * batch_size : (position + 1) * batch_size])
            if transform is not None:
                generator = augmentation(context.seed, step, device, shared=shared_stream)
                batch = batch._replace(inputs=transform(batch.inputs, generator))
            model.train()
            terms = gradients(batch)
            run.log_step(gradients.names, terms)

            ends_epoch = position == epoch_steps - 1 or step == steps - 1
            checks_losses = ends_epoch or (step + 1) % guard == 0
            if checks_losses and not run.is_finite(guard):
                if guard == 1:
                    culprit = blame(model, functools.partial(loss, model, batch))
                    raise NotFinite(f"step {step + 1}: {culprit}")
                # The weights are spoilt. Go back to sound ones, then check every step.
                run.rewind()
                order, guard = None, 1
                continue
            optimizer.step()
            run.step += 1

            if ends_epoch:
                if evaluate is not None:
                    model.eval()
                    run.log_epoch(evaluate(model))
                stops_early = keeps_best = False
                if patience is not None:
                    since_best = _epochs_since_best(patience, run)
                    stops_early = since_best >= patience.epochs
                    keeps_best = patience.keep == "best"
                    if keeps_best and since_best == 0:
                        run.keep_best()
                run.finished = stops_early or run.step == steps
                if keeps_best and run.finished:
                    model.load_state_dict(run.best)
                milestones = context.milestones if context.max_steps is None else {}
                for milestone, shorter in milestones.items():
                    if run.step == milestone or (stops_early and run.step < milestone):
                        run.save_shorter(shorter)
                if guard > 1:
                    run.remember()
                if context.progress is not None:
                    context.progress(run.step, steps, f"loss {run.terms['loss'][step]:.3f}")
            # Only a state whose losses were checked is known to be sound.
            if checks_losses and not run.finished:
                stop = context.stop()
                if stop or run.seconds_since_save() >= context.checkpoint_seconds:
                    run.save()
                if stop:
                    raise Interrupted
        context.resumed_from += run.resumed_from
        context.seconds_before += run.seconds_before
        run.save()
        model.eval()
        curves = {name: curve[: run.step].tolist() for name, curve in run.terms.items()}
        return History(curves, run.epochs, path)


def _epochs_since_best(patience: Patience, run: Run) -> int:
    """Return how many epochs ago the metric of patience was best, of equal ones the first."""
    if patience.metric not in run.epochs:
        metrics = ", ".join(run.epochs)
        raise ValueError(f"evaluate(model) returns no {patience.metric!r}, but {metrics}")
    sign = 1 if patience.better == "lower" else -1
    values = [
        math.inf if math.isnan(value) else sign * value for value in run.epochs[patience.metric]
    ]
    return len(values) - 1 - values.index(min(values))


class _Gradients:
    """The terms of the loss of a batch, and its gradients.

    Batches of the size ``capture`` are recorded once, as a CUDA graph: launching the hundreds
    of short kernels of a small network takes longer than running them. Other batches, and what
    cannot be captured, run kernel by kernel.
    """

    WARM_UP = 3  # batches before the recording, in which libraries do what they do once

    def __init__(self, model: nn.Module, loss: Loss, capture: int | None):
        self.model, self.loss, self.capture = model, loss, capture
        self.batches = 0  # of the size that is captured
        self.names: tuple[str, ...] = ()
        self.replay: Callable[[], None] | None = None

    def __call__(self, batch: Examples) -> Tensor:
        """Return the terms of the batch [terms], called ``names``, and set the gradients."""
        if len(batch.inputs) != self.capture:
            return self._run(batch)
        self.batches += 1
        if self.replay is None and self.batches > self.WARM_UP:
            self._record(batch)
        if self.replay is None:
            return self._run(batch)
        self.batch.inputs.copy_(batch.inputs)
        if batch.labels is not None:
            self.batch.labels.copy_(batch.labels)
        self.replay()
        # A batch of another size, which ran in between, has set gradients of its own.
        for parameter, gradient in self.recorded:
            parameter.grad = gradient
        return self.terms

    def _run(self, batch: Examples) -> Tensor:
        self.model.zero_grad(set_to_none=True)
        terms = self.loss(self.model, batch)
        if not isinstance(terms, Mapping) or "loss" not in terms:
            returned = list(terms) if isinstance(terms, Mapping) else type(terms).__name__
            raise TypeError(f'a loss returns scalars by name, with "loss", not {returned}')
        self.names = tuple(terms)
        terms["loss"].backward()
        return torch.stack([term.detach().float() for term in terms.values()])

    def _record(self, batch: Examples) -> None:
        labels = None if batch.labels is None else batch.labels.clone()
        self.batch = Examples(batch.inputs.clone(), labels)
        try:
            self.terms, self.replay = _captured(lambda: self._run(self.batch))
        except RuntimeError as error:
            notify(f"This training step cannot be captured, and runs uncaptured: {error}")
            self.capture = None
            return
        self.recorded = [(p, p.grad) for p in self.model.parameters() if p.grad is not None]


def _captured(function: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
    """Record what ``function`` launches as a CUDA graph. Return its result, and the replay."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    return result, graph.replay


def blame(model: nn.Module, forward: Callable[[], object]) -> str:
    """Run ``forward`` again and say what of ``model`` is not finite: an output, or a gradient.

    Of several, the first is named; if there is none, it is the loss.
    """
    culprits = []

    def check(name: str, module: nn.Module, _: object, output: object) -> None:
        tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
        if not all(tensor.isfinite().all() for tensor in tensors):
            layer = f"{name or 'the network'} ({type(module).__name__})"
            culprits.append(f"the output of {layer} is not finite")

    with torch.no_grad(), contextlib.ExitStack() as hooks:
        for name, module in model.named_modules():
            hook = module.register_forward_hook(functools.partial(check, name))
            hooks.enter_context(hook)
        forward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            culprits.append(f"the gradient of {name} is not finite")
    culprits.append("the loss is not finite")
    return culprits[0]
