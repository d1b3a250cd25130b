"""An experiment whose trials do what a test wants.

Workers load this file, too, as dask's ``preload``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from capslib import papers
from capslib.config import Config
from capslib.errors import Interrupted, NotFinite, UserError
from capslib.papers.experiment import Metric, Outcome
from capslib.papers.flat import FlatExperiment as Experiment
from capslib.papers.negation_limitation.sign import SignRecipe
from capslib.recipes import Training
from capslib.training import Context

STEM = "negation_limitation"


class ToyConfig(Config):
    does: Literal[
        "well",
        "raises",
        "nan",
        "oom",
        "lacks",
        "dies",
        "dies once",
        "dies further on",
        "waits",
        "compiles",
        "exits",
    ] = "well"
    size: int = 1
    folder: str = "."


def run_toy(config: ToyConfig, context: Context) -> Outcome:
    """Note in ``config.folder`` that the trial ran, then do what the configuration says."""
    folder = Path(config.folder)
    log = folder / f"ran {config.does} {config.size} {context.seed}"
    with log.open("a", encoding="utf-8") as file:
        file.write(f"{os.getpid()}\n")
    runs = len(log.read_text(encoding="utf-8").split())
    if config.does == "raises":
        raise RuntimeError("out of luck")
    if config.does == "nan":
        raise NotFinite("step 3: the output of 1 is not finite")
    if config.does == "oom":
        import torch

        torch.empty(1 << 50, dtype=torch.uint8)
    if config.does == "exits":
        sys.exit(3)
    if config.does == "lacks":
        raise UserError("no data")
    if config.does == "compiles":
        compile_under_observation()
    if config.does == "dies further on":
        checkpoint(config, context).write_text(str(runs), encoding="utf-8")
    runs_that_die = {"dies": sys.maxsize, "dies once": 1, "dies further on": 5}
    if runs <= runs_that_die.get(config.does, 0):
        os.kill(os.getpid(), signal.SIGKILL)
    if context.progress:
        context.progress(1, 2, "half way")
    if config.does == "waits":
        wait_for_go(folder, config, context)
    return measured(config, context)


def wait_for_go(folder: Path, config: ToyConfig, context: Context) -> None:
    """Wait for a file ``go``, for a minute at most. Asked to stop, leave a checkpoint."""
    for _ in range(6000):
        if context.stop():
            checkpoint(config, context).touch()
            raise Interrupted
        if (folder / "go").exists():
            return
        time.sleep(0.01)


def checkpoint(config: ToyConfig, context: Context) -> Path:
    """Return the path of the training's checkpoint, in a folder that exists."""
    context.folder.mkdir(exist_ok=True)
    return training(config, context.seed).path(context.folder)


def compile_under_observation() -> None:
    """Compile without gradients, as a routing is, while dask's profiler holds a frame.

    The profiler takes frames of this thread from another one, and in between this thread may go
    on. If the frame ends the compiler's own mode, the mode lives on with it. That
    is rare; here it comes every time.
    """
    import torch
    from distributed import get_worker

    profiler, frames = None, []
    with contextlib.suppress(ValueError):  # this is no thread in which dask runs a task
        profiler = get_worker().periodic_callbacks.get("profile")
    mode = torch._C._InferenceMode
    code = (lambda x: x + 1).__code__.replace()  # new to the compiler, each time

    class Observed(mode):
        def __enter__(self):
            if profiler is not None and profiler.is_running():
                frames.append(sys._getframe(1))
            return super().__enter__()

    torch._C._InferenceMode = Observed
    try:
        with torch.no_grad():
            try:
                function = types.FunctionType(code, globals())
                torch.compile(function, backend="eager")(torch.zeros(1))
            finally:
                # A mode that ends switches gradients off in its thread: end it in this one.
                frames.clear()
    finally:
        torch._C._InferenceMode = mode


def measured(config: Any, context: Context) -> Outcome:
    """Measure the size of a toy."""
    size = Metric(value=config.size + context.seed, n=1, unit="things")
    return Outcome(metrics={"size": size})


def experiment(
    config: type[Config], run: Callable[[Any, Context], Outcome], name: str = "toy"
) -> Experiment:
    """Return an experiment of three configurations, of sizes 1, 2 and 3."""
    return Experiment(
        name=name,
        paper=STEM,
        revision=1,
        config=config,
        grid=lambda scale: [config(size=size) for size in (1, 2, 3)],
        seeds=dict(smoke=(0,), cpu=(0, 1, 2), paper=(0, 1, 2)),
        run=run,
        trainings=lambda config, seed: [training(config, seed)],
    )


def training(config: Any, seed: int) -> Training:
    """Return the training of a toy, which only leaves a file in its place."""
    return Training(SignRecipe(routing="dynamic", bias=True, points=config.size + 1), seed)


TOY = experiment(ToyConfig, run_toy)


def until(condition: Callable[[], object], seconds: float = 300) -> None:
    """Wait until a condition is true; how long it takes depends on the machine."""
    for _ in range(int(seconds * 200)):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it did not come")


def dask_setup(worker: object) -> None:
    """Register the toy in a worker that loads this file, for dask calls this function."""
    papers.experiments(STEM)[TOY.name] = TOY
