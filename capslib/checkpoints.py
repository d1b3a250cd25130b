"""The state of a training run: kept, written, taken up again after a kill, and rewound after a NaN."""

from __future__ import annotations

import io
import math
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from capslib.errors import Interrupted
from capslib.files import set_aside, write_atomically

if TYPE_CHECKING:
    from capslib.training import Context, Patience

__all__ = ["Progress", "Run"]


class Progress(BaseModel):
    """The plain part of a checkpoint: how far a run came, what it measured, and how many seconds it took."""

    model_config = ConfigDict(strict=True)
    step: int = Field(ge=0)
    finished: bool
    epochs: dict[str, list[float]]
    resumed_from: list[Annotated[int, Field(ge=0)]]
    seconds: float = Field(ge=0, le=1e9, allow_inf_nan=False)  # thirty years, as a record


class Run:
    """A run of so many ``steps``: everything that has to survive a kill."""

    STATE = ("step", "finished", "terms", "epochs", "best", "resumed_from")

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        steps: int,
        device: torch.device,
        context: Context,
    ):
        self.model, self.optimizer, self.device, self.context = (
            model,
            optimizer,
            device,
            context,
        )
        self.path = context.checkpoint if context.max_steps is None else None
        self.steps, self.step, self.finished, self.found = steps, 0, False, False
        self.terms: dict[str, Tensor] = {}  # every term of every step, left on the device
        self.epochs: dict[str, list[float]] = {}
        self.best: dict[
            str, object
        ] = {}  # the weights of the best epoch, if patience keeps them
        self.order: Tensor | None = None
        self.started = self.saved = time.perf_counter()
        self.earlier, self.resumed_from = 0.0, []

    def log(self, values: Tensor, names: Sequence[str]) -> None:
        """Keep the terms of this step."""
        for name, value in zip(names, values, strict=True):
            if name not in self.terms:
                self.terms[name] = torch.full((self.steps,), math.nan, device=self.device)
            self.terms[name][self.step] = value

    def out_of_patience(self, patience: Patience) -> bool:
        """Keep the weights of the best epoch, if they are wanted; whether it lies too far back."""
        values = self.epochs[patience.metric]
        since = (
            len(values) - 1 - values.index(min(values))
        )  # epochs since the best one, of equal ones the first
        over = since >= patience.epochs
        if patience.keep == "best":
            if since == 0:
                self.best = _copied(self.model.state_dict(), self.device)
            if over or self.step == self.steps:
                self.model.load_state_dict(self.best)
        return over

    def finite(self, window: int) -> bool:
        """Whether the losses of the last ``window`` steps and all gradients of the last one are finite."""
        losses = self.terms["loss"][max(0, self.step + 1 - window) : self.step + 1]
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        return bool(
            torch.cat([losses, torch.stack(torch._foreach_norm(gradients))]).isfinite().all()
        )

    def state(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in self.STATE},
            "best": {} if self.finished else self.best,
            "model": self.model.state_dict(),
            "optimizer": {} if self.finished else self.optimizer.state_dict(),
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state(self.device)
            if self.device.type == "cuda"
            else None,
            "code": self.context.code,
            "seconds": self.earlier + time.perf_counter() - self.started,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Become that state, whose tensors are on the device and nobody else's."""
        self.model.load_state_dict(state["model"])
        if not state["finished"]:
            self.optimizer.load_state_dict(state["optimizer"])
        for name in self.STATE:
            setattr(self, name, state[name])
        self.order = None
        torch.set_rng_state(state["random"].cpu())
        if state["random_cuda"] is not None:
            torch.cuda.set_rng_state(state["random_cuda"].cpu(), self.device)

    def remember(self) -> None:
        """Keep a copy of the state to go back to when a NaN is found some steps after it arose."""
        self.snapshot = _copied(self.state(), self.device)

    def rewind(self) -> None:
        self.restore(_copied(self.snapshot, self.device))

    def check(self, state: dict[str, Any]) -> None:
        """Raise ValueError for a state that this run, with this code, cannot have left."""
        try:
            progress = Progress.model_validate(state)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        losses = state["terms"]["loss"]
        if not progress.finished and len(losses) != self.steps:
            raise ValueError(f"it is of a run of {len(losses)} steps, not of {self.steps}")
        last = self.steps if progress.finished else self.steps - 1
        if progress.step > last:
            raise ValueError(f"it is at step {progress.step} of {self.steps}")
        if max(progress.resumed_from, default=0) > progress.step:
            raise ValueError(
                f"it was taken up at step {max(progress.resumed_from)}, and is at {progress.step}"
            )
        if not losses[: progress.step].isfinite().all():
            raise ValueError("a loss before its step is not finite")
        weights = [state["model"][name] for name, _ in self.model.named_parameters()]
        for leaf in tree_leaves([weights, state["best"], state["optimizer"]]):
            if isinstance(leaf, Tensor) and not leaf.isfinite().all():
                raise ValueError("a weight or a moment of it is not finite")
        if state["code"] != self.context.code:
            raise ValueError(
                "it was left by another version of the code, and a record names one"
            )

    def resume(self) -> None:
        """Take up what the checkpoint holds, whole or not at all.

        A damaged or senseless one, or one of other code, is set aside.
        """
        if self.path is None or not self.path.exists():
            return
        fresh = _copied(self.state(), self.device)
        try:
            if not self.path.is_file():
                raise ValueError("it is no regular file")
            with zipfile.ZipFile(
                self.path
            ) as archive:  # torch's own reader leaves out the checksums
                if (spoilt := archive.testzip()) is not None:
                    raise ValueError(f"its {spoilt} is not what was written")
            state = torch.load(self.path, map_location=self.device, weights_only=True)
            self.check(state)
            self.restore(state)
            self.earlier = float(state["seconds"])
        except (
            Exception
        ) as error:  # torch.load raises whatever the damaged bytes happen to break
            self.restore(fresh)
            set_aside(self.path, f"{type(error).__name__}: {error}".splitlines()[0])
            return
        self.found = self.finished
        if not self.found:
            self.resumed_from.append(self.step)

    def save_if_due(self) -> None:
        """Write a checkpoint when it is time, or when the run is asked to stop; then raise :class:`Interrupted`."""
        stop = self.context.stop()
        if stop or time.perf_counter() - self.saved >= self.context.checkpoint_seconds:
            self._save(self.path)
        if stop:
            raise Interrupted

    def finish(self) -> None:
        """Leave the final weights where the checkpoint was, and add what earlier runs did to the context."""
        self.context.resumed_from += self.resumed_from
        self.context.seconds_before += self.earlier
        if not self.found:
            self._save(self.path)

    def leave(self, path: Path) -> None:
        """Leave, as finished, the training that ends at this step, through which this one passes; where nobody has begun it."""
        if not path.exists():
            self._save(
                path,
                finished=True,
                best={},
                model=self.best or self.model.state_dict(),
                optimizer={},
            )

    def _save(self, path: Path | None, **changes: Any) -> None:
        if path is not None:
            torch.save(self.state() | changes, file := io.BytesIO())
            write_atomically(path, file.getvalue())
            self.saved = time.perf_counter()


def _copied(state: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """The same state with tensors of its own on ``device``."""
    return tree_map_only(Tensor, lambda t: t.detach().to(device, copy=True), state)
