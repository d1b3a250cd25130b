"""``python -m benchmarks.card [--device cuda] [--minutes 3]``: what a card does, in minutes.

First every routing and path is compared with its definition in float64 on the CPU. Then the
main network of each paper trains, alone and several at once: time and memory of a step, and the
share of the card's limit that it reaches. Each training has a process of its own. Nothing is
begun after the minutes are over. A whole run writes a table to ``benchmarks/cards/``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.__main__ import machine_name, machine_rates, write_table
from benchmarks.cases import limit
from capslib import papers
from capslib.lab.counting import compilable, count_step
from capslib.lab.memory import PeakMemory
from capslib.recipes import BaseRecipe, new_network
from capslib.registry import ROUTINGS
from capslib.routing import make_routing, use_path
from capslib.training import Context, Examples, fit


class MainNetwork(NamedTuple):
    """A network that decides headlines, at its paper's own size."""

    paper: str
    experiment: str
    arm: str


MAIN_NETWORKS = {
    "em_routing, small": MainNetwork("em_routing", "test_error", "small/iterations_3"),
    "em_routing, main": MainNetwork("em_routing", "test_error", "main"),
    "negation_limitation, RBA, 5 layers": MainNetwork(
        "negation_limitation", "depth", "mnist/dynamic/5/bias"
    ),
    "negation_limitation, EM, 9 layers": MainNetwork(
        "negation_limitation", "depth", "mnist/em_vector/9/bias"
    ),
    "sparse_unsupervised, sparse": MainNetwork("sparse_unsupervised", "encodings", "sparse"),
    "learned_routing, LSTM": MainNetwork(
        "learned_routing", "errors", "smallnorb/connectionist"
    ),
    "learned_routing, kernel": MainNetwork("learned_routing", "errors", "smallnorb/similarity"),
    "inequality_anomaly": MainNetwork(
        "inequality_anomaly", "detection", "mnist/outliers/0.1_percent/kind_0"
    ),
}
TOGETHER = (1, 4, 8)
"""How many trainings run at once."""
EPOCH_STEPS = 10
"""Steps between two looks at the clock, where losses are checked and a GPU is waited for."""
WARM, TIMED = 2, 5
"""Epochs in which the network starts and compiles, and those that are timed."""
COLUMNS = (
    "kind",
    "name",
    "together",
    "milliseconds",
    "peak_mib",
    "share_of_limit",
    "bound_by",
    "error",
)
CARDS = Path(__file__).parent / "cards"
Row = dict[str, object]


def main() -> None:
    """Measure what fits into the minutes, print it, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.card", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--only", default="", help="networks whose name contains this")
    parser.add_argument(
        "--together", type=int, nargs="*", default=TOGETHER, help="trainings at once"
    )
    parser.add_argument(
        "--out", type=Path, help="folder of the table; of a whole run: benchmarks/cards"
    )
    parser.add_argument("--train", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        print(json.dumps(train_here(options.train, options.device)))
        return
    names = [name for name in MAIN_NETWORKS if options.only in name]
    if not names:
        parser.error(f"no network is called {options.only!r}: {', '.join(MAIN_NETWORKS)}")
    end = time.monotonic() + 60 * options.minutes
    rows = []
    for row in measurements(names, options.together, options.device, end):
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        rows.append(row)
    is_whole = not options.only and tuple(options.together) == TOGETHER
    folder = options.out or (CARDS if is_whole else None)
    if folder is not None:
        machine = machine_name(options.device, torch.get_num_threads())
        print(f"written to {write_table(rows, COLUMNS, machine, folder)}")


def measurements(
    names: Sequence[str], together: Sequence[int], device: str, end: float
) -> Iterator[Row]:
    """Yield agreements, then training steps, until the time is over."""
    for routing in ROUTINGS:
        for path in ("eager", "fast", "compiled"):
            if time.monotonic() > end:
                return
            error = disagreement(routing, path, device)
            if error is not None:
                yield {"kind": "routing", "name": f"{routing}, {path}", "error": error}
    rates = machine_rates(device)
    for count in together:
        for name in names:
            if time.monotonic() > end:
                return
            yield {"kind": "step", "name": name, **steps(name, count, device, rates)}


# ---------------------------------------------------------------------------------- agreement


def disagreement(routing: str, path: str, device: str) -> float | None:
    """Return the largest relative difference from the definition in float64 on the CPU.

    It is that of poses, activations and the gradient of the votes, each relative to its largest
    entry. None where the routing has no such path.
    """
    module = make_routing(routing, 10, 16)
    if path == "compiled" and not compilable(module):
        return None
    use_path(module, "eager")
    expected = routed(module, "cpu", torch.float64)
    use_path(module, path)
    tensors = routed(module, device, torch.float32)
    errors = []
    for ours, theirs in zip(tensors, expected, strict=True):
        errors.append((ours - theirs).abs().max() / theirs.abs().max())
    worst = torch.stack(errors).max().item()  # NaN if one of them is
    return float(f"{worst:.1e}")


def routed(module: nn.Module, device: str, dtype: torch.dtype) -> list[Tensor]:
    """Return pose, activation and the gradient of the votes, as float64 on the CPU."""
    module.to(device, dtype)
    generator = torch.Generator().manual_seed(0)
    votes = torch.randn(8, 32, 10, 16, generator=generator, dtype=torch.float64)
    activation = torch.rand(8, 32, generator=generator, dtype=torch.float64)
    votes = votes.to(device, dtype).requires_grad_()
    result = module(votes, activation.to(device, dtype))
    (result.pose.square().sum() + result.activation.sum()).backward()
    tensors = (result.pose, result.activation, votes.grad)
    return [tensor.detach().cpu().double() for tensor in tensors]


# --------------------------------------------------------------------------------- trainings


def recipe_of(name: str) -> BaseRecipe:
    """Return what a main network is trained with."""
    network = MAIN_NETWORKS[name]
    experiment = papers.experiments(network.paper)[network.experiment]
    return experiment.at("paper")[network.arm].recipe


def steps(name: str, count: int, device: str, rates: dict[str, float]) -> Row:
    """Return what a step takes while ``count`` such trainings run at once.

    The limit is the larger of arithmetic, at the rate of matrix products, and of the bytes that
    products and the optimizer move, at that of a copy. Several trainings share it. If one
    fails, ``bound_by`` says so, and the costs are missing.
    """
    command = [sys.executable, "-m", "benchmarks.card", "--device", device, "--train", name]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "encoding": "utf-8"}
    trainings = [subprocess.Popen(command, **pipes) for _ in range(count)]
    warm = [training for training in trainings if training.stdout.readline() == "warm\n"]
    for training in warm:
        training.stdin.write("go\n")
        training.stdin.flush()
    outputs = [training.communicate()[0] for training in trainings]
    failed = [training.returncode for training in trainings if training.returncode]
    if failed:
        return {"together": count, "bound_by": f"failed: status {failed[0]}"}
    costs = [json.loads(output.splitlines()[-1]) for output in outputs]
    seconds = median(cost["seconds"] for cost in costs)
    counted = count_step(recipe_of(name))
    least, bound = limit(
        counted["flops"],
        counted["product_bytes"],
        flops_per_second=rates["matrix_flops_per_second"],
        bytes_per_second=rates["bytes_per_second"],
    )
    return {
        "together": count,
        "milliseconds": round(1e3 * seconds, 2),
        "peak_mib": round(max(cost["bytes"] for cost in costs) / 2**20),
        "share_of_limit": round(count * least / seconds, 3),
        "bound_by": bound,
    }


def train_here(name: str, device: str) -> dict[str, float]:
    """Train on random images, as a whole run would, and return the cost of a step.

    Says ``warm`` once the network has started, and waits for a line before it goes on.
    """
    recipe = recipe_of(name)
    torch.manual_seed(0)
    inputs = torch.rand(EPOCH_STEPS * recipe.batch_size, *recipe.input_shape, device=device)
    labels = torch.arange(len(inputs), device=device) % 2
    network = new_network(recipe, tuple(inputs.shape[1:]), 0).to(device)
    clock = Clock()
    with PeakMemory(device) as peak:
        fit(
            network,
            Examples(inputs, labels),
            loss=recipe.objective(torch.device(device)),
            optimizer=recipe.optimizer(network),
            epochs=1000,  # a long run, which compiles
            batch_size=recipe.batch_size,
            context=Context(0, device, max_steps=EPOCH_STEPS * (WARM + TIMED), progress=clock),
        )
    return {"seconds": clock.seconds_of_a_step(), "bytes": peak.bytes}


class Clock:
    """Note when each epoch ends; once the network is warm, wait for a line on stdin."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, step: int, _: int, __: str) -> None:
        if step == WARM * EPOCH_STEPS:
            print("warm", flush=True)
            sys.stdin.readline()
            self.times.clear()
        self.times.append(time.perf_counter())

    def seconds_of_a_step(self) -> float:
        """Return the median seconds of a step."""
        pairs = zip(self.times, self.times[1:], strict=False)
        return median(end - start for start, end in pairs) / EPOCH_STEPS


if __name__ == "__main__":
    main()
