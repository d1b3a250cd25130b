"""The one training loop of the book.

Training sees tensors, not loaders: the data are on the device, a batch is a slice of a permutation, and everything random is
a function of seed, epoch and step. So a run that is killed at any moment and started again goes on from its last checkpoint
and ends with the same numbers to the last bit (on the CPU with as many threads).
"""

from __future__ import annotations

import contextlib
import io
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from capslib.errors import Interrupted, NotFinite
from capslib.routing import use_path
from capslib.runs import code_hash
from capslib.store import seal, set_aside, unseal, write_atomically
from capslib.trials import Context, RoutingPath

Loss = Callable[[nn.Module, Tensor, Tensor], tuple[Tensor, Tensor]]
"""``loss(model, inputs, targets)`` → the scalar loss and the class scores [N, C]."""


WORTH_COMPILING = 1000
"""Steps from which on a run repays the seconds that ``torch.compile`` takes for its routings."""


@dataclass
class History:
    """What training leaves behind: ``loss`` and ``accuracy`` of every step, and the metrics of every epoch by name."""

    loss: list[float]
    accuracy: list[float]
    epochs: dict[str, list[float]] = field(default_factory=dict)
    routing_path: RoutingPath = "fast"

    def loss_change_last_quarter(self) -> float:
        """How much the loss still moved over the last quarter of the run, as a share of the loss at its start.

        Losses are means over a twentieth of the steps. Near zero the run has flattened; see ``capslib.queries.CONVERGED_BELOW``.
        """
        window = max(1, len(self.loss) // 20)
        return moved_over_last_quarter(self.loss, window) / max(abs(fmean(self.loss[:window])), 1e-12)


def moved_over_last_quarter(values: Sequence[float], window: int) -> float:
    """How far apart the means over the ``window`` values that end at three quarters and over the last ones are; at least 0."""
    corner = max(1, len(values) * 3 // 4)
    window = min(window, corner)
    return abs(fmean(values[corner - window : corner]) - fmean(values[-window:]))


def permutation(n: int, seed: int, epoch: int) -> Tensor:
    """The order in which epoch ``epoch`` visits ``n`` examples, int64 [n]: the same in every arm of an experiment."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))


def accuracy(scores: Callable[[Tensor], Tensor], inputs: Tensor, targets: Tensor, batch_size: int = 1000) -> float:
    """Share of ``targets`` [N] that are the arg max of ``scores(inputs)`` [N, C], between 0 and 1."""
    with torch.no_grad():
        right = sum(
            (scores(x).argmax(dim=-1) == y).sum()
            for x, y in zip(inputs.split(batch_size), targets.split(batch_size), strict=True)
        )
    return float(right) / len(targets)


def fit(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    epochs: int,
    batch_size: int,
    context: Context,
    evaluate: Callable[[nn.Module], dict[str, float]] | None = None,
    transform: Callable[[Tensor, torch.Generator], Tensor] | None = None,
    bfloat16: bool = False,
    before_step: Callable[[int], None] | None = None,
    guard_every: int | None = None,
) -> History:
    """Train ``model`` for ``epochs`` passes over ``inputs`` [N, …] and ``targets`` [N], both on the context's device.

    ``evaluate(model)`` gives metrics after every epoch, and where ``context.max_steps`` ends the run.
    ``transform(batch, generator)`` augments a batch with a generator of its own step.
    ``before_step(step)`` is called before every step, counted from 0: schedules are functions of it. They set a rate
    in ``optimizer.param_groups`` or fill, in place, a tensor that the loss reads; of a captured step nothing else is seen again.

    ``bfloat16`` runs the forward pass under autocast (routings stay in float32). Checkpoints go to ``context.checkpoint`` every
    ``context.checkpoint_seconds`` and when ``context.stop()``. Losses are looked at every ``guard_every`` steps (1 on the CPU,
    50 on a GPU, where looking means waiting).

    Raises :class:`NotFinite`, naming the step and the first layer, as soon as the loss or a gradient is not finite, and
    :class:`Interrupted` when ``context.stop()`` says so.
    """
    device = inputs.device
    per_epoch = -(-len(inputs) // batch_size)
    whole = epochs * per_epoch
    steps = min(whole, context.max_steps or whole)
    guard = guard_every or (1 if device.type == "cpu" else 50)
    with seeded(context.seed), _arithmetic(model, device), _Run(model, optimizer, steps, device, context) as run:
        path = use_path(model, "compiled" if whole >= WORTH_COMPILING else "fast")  # a rehearsal takes that of the run
        gradients = _Gradients(model, loss, bfloat16, batch_size if device.type == "cuda" else None)
        run.resume()
        if guard > 1:
            run.remember()

        while run.step < steps:
            step, (epoch, within) = run.step, divmod(run.step, per_epoch)
            if before_step is not None:
                before_step(step)
            if within == 0 or run.order is None:
                run.order = permutation(len(inputs), context.seed, epoch).to(device)
            batch = run.order[within * batch_size : (within + 1) * batch_size]
            x, y = inputs[batch], targets[batch]
            if transform is not None:
                x = transform(x, torch.Generator(device).manual_seed(context.seed * 1_000_003 + step))
            model.train()
            run.curves[step] = gradients(x, y)

            last = within == per_epoch - 1 or step == steps - 1
            looked = (step + 1) % guard == 0 or last
            if looked and not run.finite(guard):
                if guard == 1:
                    raise NotFinite(f"step {step + 1}: {blame(model, lambda: gradients.forward(x, y))}")  # noqa: B023
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
                if guard > 1:
                    run.remember()
                if context.progress is not None:
                    context.progress(run.step, steps, f"loss {run.curves[step, 0]:.3f}")
            if looked:  # a state that nobody has looked at may be spoilt already
                run.save_if_due()
        return History(*(column.tolist() for column in run.curves.T.cpu()), run.epochs, path)


@contextlib.contextmanager
def _arithmetic(model: nn.Module, device: torch.device) -> Iterator[None]:
    """On CUDA: convolutions and dense layers in TF32, on channels-last weights. Routings see to their own float32."""
    if device.type != "cuda":
        yield
        return
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.to(memory_format=torch.channels_last)
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


class _Gradients:
    """Loss, accuracy and gradients of a batch. With ``capture`` they are recorded once, as a CUDA graph for batches of that size.

    A step of a small network is hundreds of short kernels, and launching them takes longer than running them; a graph launches
    once. Whatever cannot be captured goes on step by step, and so does a batch of another size, the last one of an epoch.
    """

    WARM_UP = 3
    """Batches before the recording: compilers and libraries have to be through with what they do once."""

    def __init__(self, model: nn.Module, loss: Loss, bfloat16: bool, capture: int | None):
        self.model, self.loss, self.bfloat16, self.capture = model, loss, bfloat16, capture
        self.seen = 0
        self.replay: Callable[[], None] | None = None

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Loss and accuracy [2] of inputs [N, …] and targets [N]; the gradients are in the parameters."""
        if len(x) != self.capture:
            return self._run(x, y)
        if self.replay is None:
            self.seen += 1
            if self.seen <= self.WARM_UP or not self._record(x, y):
                return self._run(x, y)
        self.x.copy_(x)
        self.y.copy_(y)
        self.replay()
        for parameter, gradient in self.recorded:  # an uncaptured batch in between has put its own there
            parameter.grad = gradient
        return self.result

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=self.bfloat16):
            return self.loss(self.model, x, y)

    def _run(self, x: Tensor, y: Tensor) -> Tensor:
        self.model.zero_grad(set_to_none=True)
        value, scores = self.forward(x, y)
        value.backward()
        return torch.stack([value.detach().float(), (scores.argmax(dim=-1) == y).float().mean()])

    def _record(self, x: Tensor, y: Tensor) -> bool:
        self.x, self.y = x.clone(), y.clone()
        try:
            self.result, self.replay = _captured(lambda: self._run(self.x, self.y))
        except RuntimeError as error:
            warnings.warn(f"This training step cannot be captured, and runs uncaptured: {error}", stacklevel=2)
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


class _Run:
    """The state of a run: everything that has to survive a kill."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, device: torch.device, context: Context):
        self.model, self.optimizer, self.device, self.context = model, optimizer, device, context
        self.path = context.checkpoint if context.max_steps is None else None
        self.step = 0
        self.curves = torch.zeros(steps, 2, device=device)  # loss and accuracy of every step, left on the device
        self.epochs: dict[str, list[float]] = {}
        self.order: Tensor | None = None
        self.started = self.saved = time.perf_counter()
        self.earlier = 0.0
        self.snapshot: dict[str, object] = {}
        self.writer = ThreadPoolExecutor(1, "checkpoint")
        self.writing: Future | None = None

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *error: object) -> None:
        self.writer.shutdown()  # whoever takes the checkpoint away has to find it whole
        if not any(error):
            self._written()

    def state(self) -> dict[str, object]:
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "curves": self.curves,
            "epochs": self.epochs,
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
            "resumed_from": self.context.resumed_from,
            "code": code_hash(),
            "seconds": self.earlier + time.perf_counter() - self.started,
        }

    def restore(self, state: dict) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.epochs, self.order = state["step"], state["epochs"], None
        self.curves.copy_(state["curves"])
        torch.set_rng_state(state["random"].cpu())
        if state["random_cuda"] is not None:
            torch.cuda.set_rng_state(state["random_cuda"].cpu(), self.device)

    def save_if_due(self) -> None:
        """Write a checkpoint when it is time, and before ending by :class:`Interrupted` when the run is asked to stop."""
        path, stop = self.path, self.context.stop()
        if path is not None and (stop or time.perf_counter() - self.saved >= self.context.checkpoint_seconds):
            self._written()
            state = _copied(self.state(), torch.device("cpu"))  # the next step changes it; the disk can take its time
            self.writing = self.writer.submit(lambda: write_atomically(path, seal(_dump(state))))
            self.saved = time.perf_counter()
        if stop:
            self._written()
            raise Interrupted

    def _written(self) -> None:
        """Wait for the checkpoint that is being written, and raise what went wrong with it."""
        if self.writing is not None:
            self.writing.result()

    def resume(self) -> None:
        path = self.path
        if path is None or not path.exists():
            return
        fresh = _copied(self.state(), self.device)
        try:
            state = _load(unseal(path.read_bytes()), self.device)
            if state["curves"].shape != self.curves.shape:
                raise ValueError(f"it is of a run of {len(state['curves'])} steps, not of {len(self.curves)}")
            if state["code"] != code_hash():
                raise ValueError("it was written by another version of capslib, and a record names one")
            self.restore(state)
            resumed_from, seconds = [*state["resumed_from"], self.step], state["seconds"]
        except Exception as error:  # torch.load raises whatever the damaged bytes happen to break
            self.restore(fresh)  # a checkpoint is used whole or not at all
            set_aside(path, f"{type(error).__name__}: {error}".splitlines()[0])
            return
        self.context.resumed_from[:] = resumed_from
        self.earlier = self.context.seconds_before = seconds

    def remember(self) -> None:
        """Keep a copy of the state to go back to when a NaN is found some steps after it arose."""
        self.snapshot = _copied(self.state(), self.device)

    def rewind(self) -> None:
        self.restore(_copied(self.snapshot, self.device))

    def finite(self, window: int) -> bool:
        """Whether the losses of the last ``window`` steps and all gradients of the last one are finite."""
        losses = self.curves[max(0, self.step + 1 - window) : self.step + 1, 0]
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        return bool(torch.cat([losses, torch.stack(torch._foreach_norm(gradients))]).isfinite().all())


def _copied(thing: Any, device: torch.device) -> Any:
    """The same state with tensors of its own on ``device``."""
    if isinstance(thing, Tensor):
        return thing.detach().to(device, copy=True)
    if isinstance(thing, dict):
        return {key: _copied(value, device) for key, value in thing.items()}
    return [_copied(value, device) for value in thing] if isinstance(thing, list) else thing


def _dump(state: dict[str, object]) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def _load(data: bytes, device: torch.device) -> dict:
    return torch.load(io.BytesIO(data), map_location=device, weights_only=True)


def blame(model: nn.Module, forward: Callable[[], object]) -> str:
    """Run ``forward`` once more and name the first module of ``model`` whose output is not finite, else the first gradient."""

    def tensors(thing: object) -> Iterator[Tensor]:
        if isinstance(thing, Tensor):
            yield thing
        elif isinstance(thing, tuple | list):
            for part in thing:
                yield from tensors(part)

    class Found(Exception):
        pass

    def hook(name: str) -> Callable[..., None]:
        def look(module: nn.Module, _: object, output: object) -> None:
            if not all(t.isfinite().all() for t in tensors(output)):
                raise Found(f"the output of {name} ({type(module).__name__}) is not finite")

        return look

    handles = [m.register_forward_hook(hook(name or "the network")) for name, m in model.named_modules()]
    try:
        with torch.no_grad():
            forward()
    except Found as found:
        return str(found)
    finally:
        for handle in handles:
            handle.remove()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            return f"the gradient of {name} is not finite"
    return "the loss is not finite"


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw what draws from torch's own generators, weights and dropout, from ``seed``, and leave the caller's random state as it was."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield
