"""The state of a training run: written to a file, taken up again after a kill, rewound."""

from __future__ import annotations

import io
import math
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from capslib.files import set_aside, write_atomically
from capslib.routing.module import wait_again, waiting_routings

__all__ = ["Progress", "Run"]


class Progress(BaseModel):
    """The plain part of a checkpoint: how far a run came, its metrics, and its seconds."""

    model_config = ConfigDict(strict=True)
    step: int = Field(ge=0)
    finished: bool
    epochs: dict[str, list[float]]
    resumed_from: list[Annotated[int, Field(ge=0)]]
    # thirty years, the limit of a record, too
    seconds: float = Field(ge=0, le=1e9, allow_inf_nan=False)


class Run:
    """A training run of ``steps`` steps: everything that has to survive a kill.

    ``path`` is the file of its checkpoint, or None to write none. ``code`` names the code that
    runs; a checkpoint of other code is not taken up.
    """

    FIELDS = ("step", "finished", "terms", "epochs", "best", "resumed_from")

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        steps: int,
        device: torch.device,
        *,
        path: Path | None,
        code: str,
    ):
        self.model, self.optimizer = model, optimizer
        self.steps, self.device, self.path, self.code = steps, device, path, code
        self.step, self.finished = 0, False
        self.terms: dict[str, Tensor] = {}  # [steps] each, left on the device
        self.epochs: dict[str, list[float]] = {}
        self.best: dict[str, Tensor] = {}  # weights of the best epoch, if they are kept
        self.resumed_from: list[int] = []
        self.was_finished = False  # when its checkpoint was read
        self.seconds_before = 0.0  # of the processes that this one goes on from
        self.started = self.saved = time.perf_counter()

    def log_step(self, names: Sequence[str], values: Tensor) -> None:
        """Log the terms of the loss at this step."""
        for name, value in zip(names, values, strict=True):
            if name not in self.terms:
                self.terms[name] = torch.full((self.steps,), math.nan, device=self.device)
            self.terms[name][self.step] = value

    def log_epoch(self, metrics: Mapping[str, float]) -> None:
        """Log the metrics of an epoch."""
        for name, value in metrics.items():
            self.epochs.setdefault(name, []).append(float(value))

    def is_finite(self, window: int) -> bool:
        """Return whether the last ``window`` losses and the gradients at hand are finite."""
        first = max(0, self.step + 1 - window)
        losses = self.terms["loss"][first : self.step + 1]
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients, norm_type=math.inf)
        return bool(losses.isfinite().all() & norm.isfinite())

    def keep_best(self) -> None:
        """Copy the weights, which are the best so far."""
        self.best = self._copy(self.model.state_dict())

    def remember(self) -> None:
        """Copy the state, to go back to when a NaN is found some steps after it arose."""
        self.snapshot = self._copy(self._state())

    def rewind(self) -> None:
        """Go back to the state that was remembered."""
        self._restore(self._copy(self.snapshot))

    def resume(self) -> None:
        """Take up the checkpoint whole, or set it aside if it is damaged or of other code."""
        if self.path is None or not self.path.exists():
            return
        fresh = self._copy(self._state())
        try:
            state = self._read()
            self._check(state)
            self._restore(state)
        except Exception as error:  # torch.load raises whatever the damaged bytes break
            self._restore(fresh)
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            set_aside(self.path, reason)
            return
        self.seconds_before = float(state["seconds"])
        self.was_finished = self.finished
        if not self.finished:
            self.resumed_from.append(self.step)

    def seconds_since_save(self) -> float:
        """Return the seconds since the last checkpoint, or since the start."""
        return time.perf_counter() - self.saved

    def save(self) -> None:
        """Write the checkpoint, unless the run has no file or was found finished in it."""
        if self.path is not None and not self.was_finished:
            _write(self.path, self._state())
            self.saved = time.perf_counter()

    def save_shorter(self, path: Path) -> None:
        """Write, as finished, the run that ends at this step, unless ``path`` exists."""
        if not path.exists():
            weights = self.best or self.model.state_dict()
            finished = {"finished": True, "best": {}, "model": weights, "optimizer": {}}
            _write(path, self._state() | finished)

    def _state(self) -> dict[str, Any]:
        state = {name: getattr(self, name) for name in self.FIELDS}
        state["model"] = self.model.state_dict()
        state["optimizer"] = self.optimizer.state_dict()
        if self.finished:
            state["best"] = state["optimizer"] = {}
        state["random"] = torch.get_rng_state()
        state["random_cuda"] = None
        if self.device.type == "cuda":
            state["random_cuda"] = torch.cuda.get_rng_state(self.device)
        state["waiting"] = waiting_routings(self.model)
        state["code"] = self.code
        state["seconds"] = self.seconds_before + time.perf_counter() - self.started
        return state

    def _restore(self, state: dict[str, Any]) -> None:
        """Go back to this state, whose tensors are on the device and used by nobody else."""
        self.model.load_state_dict(state["model"])
        wait_again(self.model, state["waiting"])
        if not state["finished"]:
            self.optimizer.load_state_dict(state["optimizer"])
        for name in self.FIELDS:
            setattr(self, name, state[name])
        torch.set_rng_state(state["random"].cpu())
        if state["random_cuda"] is not None:
            torch.cuda.set_rng_state(state["random_cuda"].cpu(), self.device)

    def _read(self) -> dict[str, Any]:
        if not self.path.is_file():
            raise ValueError("it is no regular file")
        with zipfile.ZipFile(self.path) as archive:
            damaged = archive.testzip()  # torch's own reader leaves out the checksums
        if damaged is not None:
            raise ValueError(f"its {damaged} is not what was written")
        return torch.load(self.path, map_location=self.device, weights_only=True)

    def _check(self, state: dict[str, Any]) -> None:
        """Raise ValueError for a state that this run, with this code, cannot have left."""
        if state["code"] != self.code:
            message = "it was left by another version of the code, and a record names one"
            raise ValueError(message)
        try:
            progress = Progress.model_validate(state)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(map(str, first["loc"]))
            raise ValueError(f"{field}: {first['msg']}") from None
        losses = state["terms"]["loss"]
        if not progress.finished and len(losses) != self.steps:
            raise ValueError(f"it is of a run of {len(losses)} steps, not of {self.steps}")
        last = self.steps if progress.finished else self.steps - 1
        if progress.step > last:
            fault = f"it is at step {progress.step} of {self.steps}"
            raise ValueError(f"it belongs to another training, or is damaged: {fault}")
        resumed = max(progress.resumed_from, default=0)
        if resumed > progress.step:
            raise ValueError(f"it was taken up at step {resumed}, and is at {progress.step}")
        if not losses[: progress.step].isfinite().all():
            raise ValueError("a loss before its step is not finite")
        weights = [state["model"][name] for name, _ in self.model.named_parameters()]
        for leaf in tree_leaves([weights, state["best"], state["optimizer"]]):
            if isinstance(leaf, Tensor) and not leaf.isfinite().all():
                raise ValueError("a weight or a moment of it is not finite")

    def _copy(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state with tensors of its own on the device."""
        return tree_map_only(Tensor, lambda t: t.detach().to(self.device, copy=True), state)


def _write(path: Path, state: dict[str, Any]) -> None:
    file = io.BytesIO()
    torch.save(state, file)
    write_atomically(path, file.getvalue())
