"""The one training loop of the book.

The data are on the device, a batch is a slice of a permutation, and everything random is a function of seed, epoch and step. So
a run that is killed and started again ends with the same numbers to the last bit (on the CPU with the same number of threads).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from capslib.checkpoints import Run
from capslib.errors import NotFinite
from capslib.routing import use_path
from capslib.routing.fast import float32_products

__all__ = [
    "Context",
    "Examples",
    "History",
    "Loss",
    "Patience",
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

    def some(self, most: int) -> Examples:
        """At most ``most`` of them, the same ones in every call; all of them if ``most`` is 0."""
        return self[subset(len(self.inputs), most)] if most else self

    def __getitem__(self, rows: Any) -> Examples:  # by rows, and not by field
        return Examples(*(None if t is None else t[rows] for t in (self.inputs, self.labels)))

    def batches(self, size: int) -> Iterator[Examples]:
        """Consecutive batches of ``size``; the last one may be smaller."""
        return (self[start : start + size] for start in range(0, len(self.inputs), size))


Loss = Callable[[nn.Module, Examples], Mapping[str, Tensor]]
"""``loss(model, batch)`` → named scalars. Training minimises the one called ``loss`` and logs all of them at every step."""


@dataclass
class Context:
    """Where and how a training runs. But for the seed, and a rehearsal's end, it changes nothing of what is learned."""

    seed: int
    device: str = "cpu"
    data_dir: Path | None = None
    folder: Path | None = (
        None  # for checkpoints and final weights of the trainings; None: keep none
    )
    checkpoint: Path | None = (
        None  # of the training that `fit` runs now: its last checkpoint, in the end its final weights
    )
    doubles: bool = False  # whether the training with half the epochs is wanted, too
    milestones: Mapping[int, Path] = field(
        default_factory=dict
    )  # steps after which `fit` leaves the shorter training that ends there
    checkpoint_seconds: float = field(
        default_factory=lambda: float(os.environ.get("CAPSLIB_CHECKPOINT_SECONDS", "60"))
    )
    code: str = (
        ""  # names the code that runs this training; a checkpoint of other code is set aside
    )
    code_of: Callable[[str], str] | None = (
        None  # names the code that a module of recipes runs, for `code`
    )
    stop: Callable[[], bool] = lambda: (
        False
    )  # asked every `guard_every` steps; if so, a checkpoint is left, and `Interrupted`
    progress: Callable[[int, int, str], None] | None = (
        None  # called as progress(step, steps, note)
    )
    max_steps: int | None = (
        None  # a rehearsal: each training ends after so many steps, and neither reads nor leaves a checkpoint
    )
    resumed_from: list[int] = field(
        default_factory=list
    )  # the steps at which a training was taken up again
    seconds_before: float = 0.0  # wall time that other runs spent on the trainings that this one took up or found finished

    def __post_init__(self) -> None:
        for name in ("data_dir", "folder", "checkpoint"):
            if (place := getattr(self, name)) is not None:
                setattr(self, name, Path(place))


@dataclass
class History:
    """What training leaves behind: every term of the loss at every step, and the metrics of every epoch, by name."""

    terms: dict[str, list[float]]
    epochs: dict[str, list[float]] = field(default_factory=dict)
    routing_path: str = "fast"


class Patience(NamedTuple):
    """Stop when ``metric`` has not fallen for ``epochs`` epochs, and keep the weights of the best epoch, or of the ``last``."""

    metric: str
    epochs: int
    keep: Literal["best", "last"] = "best"


def path_of(steps: int) -> Literal["compiled", "fast"]:
    """The path of the routings in a run of so many steps: a long one repays the seconds that ``torch.compile`` takes."""
    return "compiled" if steps >= 1000 else "fast"


def permutation(n: int, seed: int, epoch: int) -> Tensor:
    """The order in which epoch ``epoch`` visits ``n`` examples, int64 [n]: the same in every arm of an experiment.

    >>> permutation(5, seed=0, epoch=1).tolist() == permutation(5, seed=0, epoch=1).tolist()
    True
    """
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))


def subset(n: int, most: int) -> Tensor:
    """At most ``most`` of ``n`` rows in their order (all if ``most`` is 0), drawn at random but the same in every call.

    >>> subset(4, 0)
    tensor([0, 1, 2, 3])
    """
    return (
        permutation(n, 0, 0)[: most or n].sort().values
    )  # equal steps through a sorted set would miss some factors


def augmentation(
    seed: int, step: int, device: torch.device, *, shared: bool = False
) -> torch.Generator:
    """The generator of the augmentation at one step. With ``shared`` its stream is one that permutations draw from too."""
    mixed = int.from_bytes(hashlib.sha256(f"augmentation {seed} {step}".encode()).digest()[:7])
    return torch.Generator(device).manual_seed(seed * 1_000_003 + step if shared else mixed)


def accuracy(
    scores: Callable[[Tensor], Tensor], examples: Examples, batch_size: int = 1000
) -> float:
    """The share of ``examples`` whose label is the arg max of ``scores(inputs)`` [N, C], between 0 and 1.

    >>> accuracy(lambda x: x, Examples(torch.eye(2), torch.tensor([0, 0])))
    0.5
    """
    with torch.no_grad():
        right = sum(
            (scores(x).argmax(dim=-1) == y).sum() for x, y in examples.batches(batch_size)
        )
    return float(right) / len(examples.inputs)


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
) -> History:
    """Train ``model`` for ``epochs`` passes over ``examples``, which are on the context's device, with or without labels.

    ``evaluate(model)`` gives metrics after every epoch, and where ``context.max_steps`` ends the run. With ``patience`` the run
    stops early and the model ends with the weights that it keeps. ``transform(inputs, generator)`` augments a batch with a
    generator of its own step (``shared_stream``: see :func:`augmentation`). ``before_step(step)``, from 0, may set a rate in
    ``optimizer.param_groups`` or fill, in place, a tensor that the loss reads: a captured CUDA step sees no other change.

    Checkpoints go to ``context.checkpoint`` every ``context.checkpoint_seconds``; in the end it holds the final weights and the
    history, and the same call then reads them instead of training. The loop looks for losses that are not finite every
    ``guard_every`` steps (1 on the CPU; 50 on a GPU, where looking means waiting). Raises :class:`NotFinite`, naming the step and
    the first layer, where the loss or a gradient is not finite, and :class:`Interrupted` when ``context.stop()`` says so.

    >>> line, x = nn.Linear(1, 1), torch.linspace(-1, 1, 64)[:, None]
    >>> square = lambda model, batch: {"loss": (model(batch.inputs) - 3 * batch.inputs).square().mean()}
    >>> options = dict(optimizer=torch.optim.SGD(line.parameters(), lr=0.3), epochs=40, batch_size=32, context=Context(seed=0))
    >>> history = fit(line, Examples(x), loss=square, **options)
    >>> round(line.weight.item(), 2)
    3.0
    """
    device, n = examples.inputs.device, len(examples.inputs)
    if min(n, epochs, batch_size) < 1:
        raise ValueError(
            f"a training needs examples, epochs and a batch size, not {n}, {epochs} and {batch_size}"
        )
    per_epoch = -(-n // batch_size)
    whole = epochs * per_epoch
    steps = min(whole, context.max_steps or whole)
    guard = guard_every or (1 if device.type == "cpu" else 50)
    if (
        device.type == "cuda"
    ):  # convolutions (torch's default) and dense layers in TF32; routings keep float32
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                module.to(memory_format=torch.channels_last)
    with seeded(context.seed), float32_products(device, "high"):
        run = Run(model, optimizer, steps, device, context)
        path = use_path(model, path_of(whole))  # a rehearsal takes that of the run
        gradients = _Gradients(model, loss, batch_size if device.type == "cuda" else None)
        run.resume()
        if guard > 1:
            run.remember()

        while not run.finished:
            step, (epoch, within) = run.step, divmod(run.step, per_epoch)
            if before_step is not None:
                before_step(step)
            if within == 0 or run.order is None:
                run.order = permutation(n, context.seed, epoch).to(device)
            batch = examples[run.order[within * batch_size : (within + 1) * batch_size]]
            if transform is not None:
                generator = augmentation(context.seed, step, device, shared=shared_stream)
                batch = batch._replace(inputs=transform(batch.inputs, generator))
            model.train()
            run.log(gradients(batch), gradients.names)

            last = within == per_epoch - 1 or step == steps - 1
            looked = (step + 1) % guard == 0 or last
            if looked and not run.finite(guard):
                if guard == 1:
                    culprit = blame(model, functools.partial(loss, model, batch))
                    raise NotFinite(f"step {step + 1}: {culprit}")
                run.rewind()  # the weights are spoilt already: go back to where they were not, and look at every step
                guard = 1
                continue
            optimizer.step()
            run.step += 1

            if last:
                if evaluate is not None:
                    model.eval()
                    for name, metric in evaluate(model).items():
                        run.epochs.setdefault(name, []).append(metric)
                stop_now = patience is not None and run.out_of_patience(patience)
                run.finished = stop_now or run.step == steps
                for milestone, weights in context.milestones.items():
                    if run.step == milestone or (stop_now and run.step < milestone):
                        run.leave(weights)
                if guard > 1:
                    run.remember()
                if context.progress is not None:
                    context.progress(run.step, steps, f"loss {run.terms['loss'][step]:.3f}")
            if (
                looked and not run.finished
            ):  # a state that nobody has looked at may be spoilt already
                run.save_if_due()
        run.finish()
        terms = {name: curve[: run.step].tolist() for name, curve in run.terms.items()}
        return History(terms, run.epochs, path)


class _Gradients:
    """The terms of the loss of a batch, and its gradients.

    With ``capture`` they are recorded once, as a CUDA graph for batches of that size: launching the hundreds of short kernels of a
    small network takes longer than running them. Other batches, and what cannot be captured, run step by step.
    """

    WARM_UP = 3  # batches before the recording: compilers and libraries have to be through with what they do once

    def __init__(self, model: nn.Module, loss: Loss, capture: int | None):
        self.model, self.loss, self.capture, self.seen = model, loss, capture, 0
        self.names: tuple[str, ...] = ()
        self.replay: Callable[[], None] | None = None

    def __call__(self, batch: Examples) -> Tensor:
        """The terms of the batch [terms], by ``names``; the gradients are in the parameters."""
        if len(batch.inputs) != self.capture:
            return self._run(batch)
        self.seen += 1
        if self.replay is None and (self.seen <= self.WARM_UP or not self._record(batch)):
            return self._run(batch)
        for kept, given in zip(self.batch, batch, strict=True):
            if kept is not None:
                kept.copy_(given)
        self.replay()
        for (
            parameter,
            gradient,
        ) in self.recorded:  # an uncaptured batch in between has put its own there
            parameter.grad = gradient
        return self.result

    def _run(self, batch: Examples) -> Tensor:
        self.model.zero_grad(set_to_none=True)
        terms = self.loss(self.model, batch)
        self.names = tuple(terms)
        terms["loss"].backward()
        return torch.stack([term.detach().float() for term in terms.values()])

    def _record(self, batch: Examples) -> bool:
        self.batch = Examples(*(None if t is None else t.clone() for t in batch))
        try:
            self.result, self.replay = _captured(lambda: self._run(self.batch))
        except RuntimeError as error:
            warnings.warn(
                f"This training step cannot be captured, and runs uncaptured: {error}",
                stacklevel=2,
            )
            self.capture = None
            return False
        self.recorded = [(p, p.grad) for p in self.model.parameters() if p.grad is not None]
        return True


def _captured(function: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
    """Record what ``function`` launches as a CUDA graph: the tensor that it returns, and what fills it anew."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    return result, graph.replay


def blame(model: nn.Module, forward: Callable[[], object]) -> str:
    """Run ``forward`` once more and name the first module of ``model`` whose output is not finite, else the first gradient."""
    found = []

    def look(name: str, module: nn.Module, _: object, output: object) -> None:
        if not all(t.isfinite().all() for t in tree_leaves(output) if isinstance(t, Tensor)):
            found.append(
                f"the output of {name or 'the network'} ({type(module).__name__}) is not finite"
            )

    with torch.no_grad(), contextlib.ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.enter_context(module.register_forward_hook(functools.partial(look, name)))
        forward()
    gradients = ((name, p.grad) for name, p in model.named_parameters() if p.grad is not None)
    found += [
        f"the gradient of {name} is not finite"
        for name, gradient in gradients
        if not gradient.isfinite().all()
    ]
    return [*found, "the loss is not finite"][0]


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw weights and dropout from ``seed``, and leave the caller's random state as it was."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield
