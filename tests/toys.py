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
from typing import Literal

from capslib import papers
from capslib.config import Config
from capslib.errors import Interrupted, NotFinite, UserError
from capslib.papers.experiment import Arm, Experiment, Metric, Outcome, Scale
from capslib.papers.negation_limitation.sign import SignRecipe
from capslib.recipes import Training
from capslib.training import Context

STEM = "negation_limitation"


class ToyOptions(Config):
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


def run_toy(arm: Arm, context: Context) -> Outcome:
    """Note in ``folder`` that the trial ran, then do what the options say."""
    options: ToyOptions = arm.options
    folder = Path(options.folder)
    log = folder / f"ran {options.does} {options.size} {context.seed}"
    with log.open("a", encoding="utf-8") as file:
        file.write(f"{os.getpid()}\n")
    runs = len(log.read_text(encoding="utf-8").split())
    if options.does == "raises":
        raise RuntimeError("out of luck")
    if options.does == "nan":
        raise NotFinite("step 3: the output of 1 is not finite")
    if options.does == "oom":
        import torch

        torch.empty(1 << 50, dtype=torch.uint8)
    if options.does == "exits":
        sys.exit(3)
    if options.does == "lacks":
        raise UserError("no data")
    if options.does == "compiles":
        compile_under_observation()
    if options.does == "dies further on":
        checkpoint(arm, context).write_text(str(runs), encoding="utf-8")
    runs_that_die = {"dies": sys.maxsize, "dies once": 1, "dies further on": 5}
    if runs <= runs_that_die.get(options.does, 0):
        os.kill(os.getpid(), signal.SIGKILL)
    if context.progress:
        context.progress(1, 2, "half way")
    if options.does == "waits":
        wait_for_go(folder, arm, context)
    return measured(arm, context)


def wait_for_go(folder: Path, arm: Arm, context: Context) -> None:
    """Wait for a file ``go``, for a minute at most. Asked to stop, leave a checkpoint."""
    for _ in range(6000):
        if context.stop():
            checkpoint(arm, context).touch()
            raise Interrupted
        if (folder / "go").exists():
            return
        time.sleep(0.01)


def checkpoint(arm: Arm, context: Context) -> Path:
    """Return the path of the training's checkpoint, in a folder that exists."""
    context.folder.mkdir(exist_ok=True)
    return training(arm, context.seed).path(context.folder)


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


def measured(arm: Arm, context: Context) -> Outcome:
    """Measure the size of a toy."""
    size = Metric(value=arm.options.size + context.seed, n=1, unit="things")
    return Outcome(metrics={"size": size})


def experiment(options: type[Config], run: Callable[[Arm, Context], Outcome]) -> Experiment:
    """Return an experiment of three arms, of sizes 1, 2 and 3."""

    def arms(scale: Scale) -> list[Arm]:
        return [Arm(f"size_{size}", options=options(size=size)) for size in (1, 2, 3)]

    return Experiment(
        name="toy",
        paper=STEM,
        arms=arms,
        run=run,
        seeds=dict(smoke=(0,), cpu=(0, 1, 2), paper=(0, 1, 2)),
        trainings=lambda arm, seed: [training(arm, seed)],
    )


def training(arm: Arm, seed: int) -> Training:
    """Return the training of a toy, which only leaves a file in its place."""
    points = arm.options.size + 1
    return Training(SignRecipe(routing="dynamic", bias=True, points=points), seed)


TOY = experiment(ToyOptions, run_toy)


def until(condition: Callable[[], object]) -> None:
    """Wait until a condition is true, for five minutes at most.

    How long it takes depends on the machine.
    """
    for _ in range(300 * 200):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it did not come")


def dask_setup(worker: object) -> None:
    """Register the toy in a worker that loads this file, for dask calls this function."""
    papers.experiments(STEM)[TOY.name] = TOY
