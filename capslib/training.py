"""The one training loop of the book.

Training sees tensors, not loaders: the data are on the device, a batch is a slice of a permutation, and everything random is
a function of seed, epoch and step. So a run that is killed at any moment and started again goes on from its last checkpoint
and ends with the same numbers to the last bit (on the CPU with as many threads).
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

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

        Each of the three losses is a mean over a twentieth of the steps: the first, the one that ends at three quarters,
        and the last. Near zero the run has flattened; see ``capslib.queries.CONVERGED_BELOW``.
        """
        loss = torch.tensor(self.loss, dtype=torch.float64)
        window = max(1, len(loss) // 20)
        corner = max(window, len(loss) * 3 // 4)
        start, before, end = loss[:window].mean(), loss[corner - window : corner].mean(), loss[-window:].mean()
        return float((before - end).abs() / start.abs().clamp_min(1e-12))


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
    guard_every: int | None = None,
) -> History:
    """Train ``model`` for ``epochs`` passes over ``inputs`` [N, …] and ``targets`` [N], both on the context's device.

    ``evaluate(model)`` gives metrics after every epoch; ``transform(batch, generator)`` augments a batch with a generator of
    its own step. ``bfloat16`` runs the forward pass under autocast (routings stay in float32). Checkpoints go to
    ``context.checkpoint`` every ``context.checkpoint_seconds`` and when ``context.stop()``. Losses are looked at every ``guard_every`` steps (1 on the
    CPU, 50 on a GPU, where looking means waiting).

    Raises :class:`NotFinite`, naming the step and the first layer, as soon as the loss or a gradient is not finite, and
    :class:`Interrupted` when ``context.stop()`` says so.
    """
    device = inputs.device
    per_epoch = -(-len(inputs) // batch_size)
    steps = epochs * per_epoch
    guard = guard_every or (1 if device.type == "cpu" else 50)
    path = use_path(model, "compiled" if steps >= WORTH_COMPILING else "fast")
    run = _Run(model, optimizer, steps, device, context)
    run.resume()
    if guard > 1:
        run.remember()

    while run.step < steps:
        step, (epoch, within) = run.step, divmod(run.step, per_epoch)
        if within == 0 or run.order is None:
            run.order = permutation(len(inputs), context.seed, epoch).to(device)
        batch = run.order[within * batch_size : (within + 1) * batch_size]
        x, y = inputs[batch], targets[batch]
        if transform is not None:
            x = transform(x, torch.Generator(device).manual_seed(context.seed * 1_000_003 + step))
        model.train()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bfloat16):
            value, scores = loss(model, x, y)
        value.backward()
        run.curves[step, 0] = value.detach()
        run.curves[step, 1] = (scores.argmax(dim=-1) == y).float().mean()

        looked = (step + 1) % guard == 0 or within == per_epoch - 1
        if looked and not run.finite(guard):
            if guard == 1:
                raise NotFinite(f"step {step + 1}: {blame(model, lambda: loss(model, x, y))}")  # noqa: B023
            run.rewind()  # the weights are spoilt already: go back to where they were not, and look at every step
            guard = 1
            continue
        optimizer.step()
        run.step += 1

        if within == per_epoch - 1:
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


class _Run:
    """The state of a run: everything that has to survive a kill."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, device: torch.device, context: Context):
        self.model, self.optimizer, self.device, self.context = model, optimizer, device, context
        self.step = 0
        self.curves = torch.zeros(steps, 2, device=device)  # loss and accuracy of every step, left on the device
        self.epochs: dict[str, list[float]] = {}
        self.order: Tensor | None = None
        self.started = self.saved = time.perf_counter()
        self.earlier = 0.0
        self.snapshot = b""

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
        path, stop = self.context.checkpoint, self.context.stop()
        if path is not None and (stop or time.perf_counter() - self.saved >= self.context.checkpoint_seconds):
            write_atomically(path, seal(_dump(self.state())))
            self.saved = time.perf_counter()
        if stop:
            raise Interrupted

    def resume(self) -> None:
        path = self.context.checkpoint
        if path is None or not path.exists():
            return
        fresh = _dump(self.state())
        try:
            state = _load(unseal(path.read_bytes()), self.device)
            if state["curves"].shape != self.curves.shape:
                raise ValueError(f"it is of a run of {len(state['curves'])} steps, not of {len(self.curves)}")
            if state["code"] != code_hash():
                raise ValueError("it was written by another version of capslib, and a record names one")
            self.restore(state)
            resumed_from, seconds = [*state["resumed_from"], self.step], state["seconds"]
        except Exception as error:  # torch.load raises whatever the damaged bytes happen to break
            self.restore(_load(fresh, self.device))  # a checkpoint is used whole or not at all
            set_aside(path, f"{type(error).__name__}: {error}".splitlines()[0])
            return
        self.context.resumed_from[:] = resumed_from
        self.earlier = self.context.seconds_before = seconds

    def remember(self) -> None:
        """Keep a copy of the state to go back to when a NaN is found some steps after it arose."""
        self.snapshot = _dump(self.state())

    def rewind(self) -> None:
        self.restore(_load(self.snapshot, self.device))

    def finite(self, window: int) -> bool:
        """Whether the losses of the last ``window`` steps and all gradients of the last one are finite."""
        losses = self.curves[max(0, self.step + 1 - window) : self.step + 1, 0]
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        return bool(torch.cat([losses, torch.stack(torch._foreach_norm(gradients))]).isfinite().all())


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
    """Draw the initial weights from ``seed``, and leave the caller's random state as it was."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield
