"""An experiment whose trials do what a test wants. Workers load this file too, as dask's ``preload``, so they know it as well."""

from __future__ import annotations

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
    folder, me = Path(config.folder), f"{config.does} {config.size} {context.seed}"
    with (folder / f"ran {me}").open("a", encoding="utf-8") as ran:
        ran.write(f"{os.getpid()}\n")
    times = len((folder / f"ran {me}").read_text(encoding="utf-8").split())
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
        context.folder.mkdir(exist_ok=True)
        training(config, context.seed).path(context.folder).write_text(
            str(times), encoding="utf-8"
        )
    if (
        config.does == "dies"
        or (config.does == "dies once" and times == 1)
        or (config.does == "dies further on" and times < 6)
    ):
        os.kill(os.getpid(), signal.SIGKILL)
    if context.progress:
        context.progress(1, 2, "half way")
    for _ in range(6000) if config.does == "waits" else ():
        if context.stop():
            context.folder.mkdir(exist_ok=True)
            training(config, context.seed).path(context.folder).touch()
            raise Interrupted
        if (folder / "go").exists():
            break
        time.sleep(0.01)
    return measured(config, context)


def compile_under_observation() -> None:
    """Compile without gradients, as a routing is, while dask's profiler, if it runs here, holds the frame that it looks at.

    It takes frames of this thread from another one, and in between this thread may go on. If the frame is the one that ends
    the compiler's own mode, the mode lives on with it. That is rare; here it comes every time.
    """
    import torch
    from distributed import get_worker

    profiler, held = get_worker().periodic_callbacks.get("profile"), []
    mode, code = (
        torch._C._InferenceMode,
        (lambda x: x + 1).__code__.replace(),
    )  # new to the compiler, each time

    class Observed(mode):
        def __enter__(self):
            if profiler is not None and profiler.is_running():
                held.append(sys._getframe(1))
            return super().__enter__()

    torch._C._InferenceMode = Observed
    try:
        with torch.no_grad():
            try:
                torch.compile(types.FunctionType(code, globals()), backend="eager")(
                    torch.zeros(1)
                )
            finally:
                held.clear()  # here, not where a collector finds it: a mode that ends switches gradients off in the thread it ends in
    finally:
        torch._C._InferenceMode = mode


def measured(config: Any, context: Context) -> Outcome:
    """What a toy finds out: its own size."""
    return Outcome(
        metrics={"size": Metric(value=config.size + context.seed, n=1, unit="things")}
    )


def experiment(
    config: type[Config], run: Callable[[Any, Context], Outcome], name: str = "toy"
) -> Experiment:
    """Three configurations, of sizes 1, 2 and 3."""
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
    """The training that a toy says it does; it only leaves a file in its place."""
    return Training(SignRecipe(routing="dynamic", bias=True, points=config.size + 1), seed)


TOY = experiment(ToyConfig, run_toy)


def until(true: Callable[[], object], seconds: float = 300) -> None:
    """Wait for something that has to come; how long it takes depends on the machine."""
    for _ in range(int(seconds * 200)):
        if true():
            return
        time.sleep(0.005)
    raise AssertionError("it did not come")


def dask_setup(worker: object) -> None:
    """What dask calls in a worker that loads this file."""
    papers.experiments(STEM)[TOY.name] = TOY
