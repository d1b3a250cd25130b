"""An experiment whose trials do what a test wants. Workers load this file too, as dask's ``preload``, so they know it as well."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Literal

from capslib import papers
from capslib.errors import Interrupted, NotFinite, UserError
from capslib.trials import Config, Context, Experiment, Metric, Outcome

STEM = "negation_limitation"


class ToyConfig(Config):
    does: Literal["well", "raises", "nan", "oom", "lacks", "dies", "dies once", "dies further on", "waits"] = "well"
    size: int = 1
    folder: str = "."


def run_toy(config: ToyConfig, context: Context) -> Outcome:
    folder, me = Path(config.folder), f"{config.does} {config.size} {context.seed}"
    with (folder / f"ran {me}").open("a") as ran:
        ran.write(f"{os.getpid()}\n")
    times = len((folder / f"ran {me}").read_text().split())
    if config.does == "raises":
        raise RuntimeError("out of luck")
    if config.does == "nan":
        raise NotFinite("step 3: the output of 1 is not finite")
    if config.does == "oom":
        import torch

        torch.empty(1 << 50, dtype=torch.uint8)
    if config.does == "lacks":
        raise UserError("no data")
    if config.does == "dies further on":
        context.checkpoint.parent.mkdir(exist_ok=True)
        context.checkpoint.write_text(str(times))
    if config.does == "dies" or (config.does == "dies once" and times == 1) or (config.does == "dies further on" and times < 6):
        os.kill(os.getpid(), signal.SIGKILL)
    if context.progress:
        context.progress(1, 2, "half way")
    for _ in range(6000) if config.does == "waits" else ():
        if context.stop():
            context.checkpoint.parent.mkdir(exist_ok=True)
            context.checkpoint.touch()
            raise Interrupted
        if (folder / "go").exists():
            break
        time.sleep(0.01)
    return Outcome(metrics={"size": Metric(value=config.size + context.seed, n=1, unit="things")})


TOY = Experiment(
    name="toy",
    paper=STEM,
    revision=1,
    question="?",
    config=ToyConfig,
    grid=lambda scale: [ToyConfig(size=size) for size in (1, 2, 3)],
    seeds=dict(smoke=(0,), cpu=(0, 1, 2), paper=(0, 1, 2)),
    run=run_toy,
    deviations=lambda config: [],
)


def dask_setup(worker: object) -> None:
    """What dask calls in a worker that loads this file."""
    papers.experiments(STEM)[TOY.name] = TOY
