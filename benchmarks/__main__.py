"""``python -m benchmarks [--device cuda] [--public FOLDER]``: measure, and write a table.

Every measurement runs in a process of its own, so that none inherits the memory of another. The
machine's rates are measured before and after the cases, and the higher ones count. A time is
the median of several steps after a first one. With ``--public``, public repositories with a
clone in FOLDER are measured beside capslib (:mod:`benchmarks.public`). Only a whole run writes
the machine's table; with ``--only`` figures are printed, and written where ``--out`` says.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import json
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.cases import LayerCase, RoutingCase, StepCase
    from benchmarks.public import Implementation

    Case = LayerCase | RoutingCase | StepCase

COLUMNS = (
    "kind",
    "name",
    "path",
    "milliseconds",
    "peak_mib",
    "faster",
    "agrees",
    "difference",
    "times_limit",
    "bound_by",
    "gflop",
    "gigabytes",
)
RESULTS = Path(__file__).parent / "results"
LEAST_STEPS, MOST_STEPS = 2, 20
"""How many steps are timed."""
SECONDS = 1.0
"""When no further step is timed."""


def main() -> None:
    """Measure every case on every path. A case is compared with its first path."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--device", default="cpu", type=device_name)
    parser.add_argument("--threads", type=int, help="threads of the CPU; default: all")
    parser.add_argument("--only", default="", help="cases whose name or routing contains this")
    parser.add_argument(
        "--public",
        type=Path,
        metavar="FOLDER",
        help="folder with clones of public repositories, to measure them beside capslib",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="folder of the table; default: benchmarks/results, for a whole run",
    )
    parser.add_argument(
        "--measure", nargs=3, metavar=("KIND", "NUMBER", "PATH"), help=argparse.SUPPRESS
    )
    parser.add_argument("--rates", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()

    import torch

    if options.threads:
        torch.set_num_threads(options.threads)
    if options.rates:
        print(json.dumps(machine_rates(options.device)))
        return
    if options.measure:
        kind, number, path = options.measure
        cost = measure(kind, int(number), path, options.device, public=options.public)
        print(json.dumps(cost))
        return

    from benchmarks.cases import CASES, LAYERS
    from benchmarks.public import clones
    from capslib.errors import UserError

    try:
        cloned = clones(options.public) if options.public else []
    except UserError as error:
        parser.error(str(error))
    names = [case.name for cases in CASES.values() for case in cases]
    if not any(is_called(case, options.only) for cases in CASES.values() for case in cases):
        parser.error(f"no case or routing is called {options.only!r}: {', '.join(names)}")
    rates = _in_a_process(options, "--rates")
    rows = []
    for kind, cases in CASES.items():
        for number, case in enumerate(cases):
            if is_called(case, options.only):
                paths = paths_of(kind, case, cloned)
                rows += _measure_paths(kind, number, case, paths, options)
    for name, rate in _in_a_process(options, "--rates").items():
        rates[name] = max(rate, rates[name])
    add_limits(rows, {layer.name: layer for layer in LAYERS}, rates)
    print(
        f"copy {rates['bytes_per_second'] / 1e9:.1f} GB/s, "
        f"vectors {rates['vector_flops_per_second'] / 1e9:.0f} GFLOP/s, "
        f"matrix products {rates['matrix_flops_per_second'] / 1e9:.0f} GFLOP/s"
    )
    for row in rows:
        if "times_limit" in row:
            ratio = f"{row['times_limit']:>8} times the limit, which {row['bound_by']} sets"
            print(f"{row['name']:<36}  {row['path']:>10}  {ratio}")
    folder = options.out
    if folder is None and not options.only:
        folder = RESULTS
    if folder is not None:
        print(f"written to {_write(rows, rates, options, folder)}")


def device_name(text: str) -> str:
    """Return the name of a device that can be timed: ``cpu``, ``cuda``, ``cuda:1``."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be timed: choose cpu or cuda")
    return text


def is_called(case: Case, text: str) -> bool:
    """Say whether a text is in the name of a case, or in that of its routing."""
    return text in case.name or text in getattr(case, "routing", "")


def paths_of(kind: str, case: Case, cloned: Sequence[Implementation]) -> list[str]:
    """Return the paths of a case: those of capslib, then repositories that have it too."""
    paths = list(case.paths)
    if kind == "shared":
        paths += [code.repository for code in cloned if code.case == case.name]
    return paths


def _measure_paths(
    kind: str, number: int, case: Case, paths: Sequence[str], options: argparse.Namespace
) -> list[dict[str, object]]:
    """Measure a case on each path, print it, and return a row of the table for each."""
    rows = []
    first = None
    for path in paths:
        cost = _in_a_process(options, "--measure", kind, str(number), path)
        first = first or cost
        row = {
            "kind": kind,
            "name": case.name,
            "path": path,
            "milliseconds": round(1e3 * cost["seconds"], 2),
            "peak_mib": None if cost["bytes"] is None else round(cost["bytes"] / 2**20, 1),
            "faster": round(first["seconds"] / cost["seconds"], 2),
            "agrees": cost.get("agrees"),
            "difference": cost.get("difference"),
        }
        cells = [f"{'' if value is None else str(value):>10}" for value in row.values()]
        cells[1] = f"{case.name:<36}"
        print("  ".join(cells), flush=True)
        rows.append(row)
    return rows


def add_limits(
    rows: list[dict[str, object]], layers: dict[str, RoutingCase], rates: dict[str, float]
) -> None:
    """Compare each row of a layer with the layer's roofline.

    Skip shared layers, training steps, and routings without a textbook form: they have no
    limit.
    """
    from benchmarks.cases import TEXTBOOK, limit

    for row in rows:
        layer = layers.get(row["name"])
        if row["kind"] != "layer" or layer.routing not in TEXTBOOK:
            continue
        seconds, bound = limit(
            layer.flops,
            layer.bytes,
            flops_per_second=rates["vector_flops_per_second"],
            bytes_per_second=rates["bytes_per_second"],
        )
        row["times_limit"] = round(row["milliseconds"] / 1e3 / seconds, 1)
        row["bound_by"] = bound
        row["gflop"] = round(layer.flops / 1e9, 3)
        row["gigabytes"] = round(layer.bytes / 1e9, 4)


def _in_a_process(options: argparse.Namespace, *measurement: str) -> dict[str, float]:
    """Return what a new process measures, which gets these arguments."""
    command = [sys.executable, "-m", "benchmarks", "--device", options.device, *measurement]
    if options.threads:
        command += ["--threads", str(options.threads)]
    if options.public:
        command += ["--public", str(options.public)]
    process = subprocess.run(command, capture_output=True, encoding="utf-8")
    if process.returncode:
        raise SystemExit(f"{' '.join(measurement)} failed:\n{process.stderr}")
    return json.loads(process.stdout.splitlines()[-1])


def measure(
    kind: str, number: int, path: str, device: str, *, public: Path | None = None
) -> dict[str, float | str | None]:
    """Return the seconds and peak bytes of the case of this kind and number.

    A ``path`` can be a repository with a clone in the folder ``public``; then its
    ``Agreement`` with capslib is there, too. Bytes that cannot be measured are None.
    """
    from benchmarks.cases import CASES
    from benchmarks.public import agreement, prepare

    case = CASES[kind][number]
    is_public = path not in case.paths
    step = prepare(path, case, public, device) if is_public else case.prepare(path, device)
    step()  # compiles, warms up, and allocates what stays
    seconds = []
    while len(seconds) < LEAST_STEPS or (sum(seconds) < SECONDS and len(seconds) < MOST_STEPS):
        seconds.append(_timed(step, device))
    cost = {"seconds": statistics.median(seconds), "bytes": _peak(step, device)}
    if is_public:
        cost |= agreement(path, case, public, device)._asdict()
    return cost


def _timed(function: Callable[[], object], device: str) -> float:
    """Return the seconds of a call, the work that it leaves to a GPU included."""
    import torch

    def wait() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)

    wait()
    start = time.perf_counter()
    function()
    wait()
    return time.perf_counter() - start


def _peak(step: Callable[[], object], device: str) -> int | None:
    """Return the most bytes that one step holds beyond those held before it.

    Return None for a CPU outside Linux: only there can they be measured.
    """
    import torch

    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
        base = torch.cuda.memory_allocated(device)
        step()
        return torch.cuda.max_memory_allocated(device) - base
    if sys.platform != "linux":
        return None
    import psutil

    from capslib.lab.memory import PeakMemory

    # memory that the allocator kept from earlier steps would hide this one's
    ctypes.CDLL(None).malloc_trim(0)
    base = psutil.Process().memory_info().rss
    with PeakMemory(device) as memory:
        step()
    return memory.bytes - base


def machine_rates(device: str) -> dict[str, float]:
    """Return the machine's rates: bytes moved by a copy, and operations in float32.

    Operations are those of vectors and of a matrix product. The vector rate is that of a
    compiled chain of multiplications and additions on data in cache: the best that element-wise
    code reaches. Matrix products run faster, but routing has none.
    """
    import torch

    cuda = device.startswith("cuda")
    source = torch.randn(1 << 26, device=device)
    target = torch.empty_like(source)
    copy = min(_timed(lambda: target.copy_(source), device) for _ in range(7))
    side = 4096 if cuda else 2048
    matrix = torch.randn(side, side, device=device)
    product = min(_timed(lambda: matrix @ matrix, device) for _ in range(7))
    # a GPU needs much work per call, a CPU small data
    size, length, repeats = (1 << 24, 256, 1) if cuda else (1 << 18, 16, 30)
    x, factor, term = torch.rand(3, size, device=device) / 2

    @torch.compile
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(length):
            x = x * factor + term
        return x

    def chains() -> None:
        for _ in range(repeats):
            chain(x)

    chain(x)
    vectors = min(_timed(chains, device) for _ in range(15))
    return {
        "bytes_per_second": 2 * 4 * source.numel() / copy,
        "vector_flops_per_second": 2 * length * size * repeats / vectors,
        "matrix_flops_per_second": 2 * side**3 / product,
    }


def _write(
    rows: list[dict[str, object]],
    rates: dict[str, float],
    options: argparse.Namespace,
    folder: Path,
) -> Path:
    """Write the table of this machine, and return its path."""
    import torch

    machine = machine_name(options.device, torch.get_num_threads())
    measured_rates = {
        "copy_gb_per_second": round(rates["bytes_per_second"] / 1e9, 1),
        "vector_gflop_per_second": round(rates["vector_flops_per_second"] / 1e9),
        "matrix_gflop_per_second": round(rates["matrix_flops_per_second"] / 1e9),
    }
    return write_table(rows, COLUMNS, machine, folder, measured_rates)


def machine_name(device: str, threads: int) -> str:
    """Return the name of a card, or the architecture of the CPU and its threads."""
    import torch

    from capslib.lab.ledger import plural

    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()}, {plural(threads, 'thread')}"


def write_table(
    rows: Sequence[Mapping[str, object]],
    columns: Sequence[str],
    machine: str,
    folder: Path,
    conditions: Mapping[str, object] = {},
) -> Path:
    """Write rows as a CSV named after the machine, and return its path.

    Machine, version of torch, date and ``conditions`` stand in every row.
    """
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-")
    path = folder / f"{name}.csv"
    conditions = {
        "machine": machine,
        "torch": torch.__version__,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        **conditions,
    }
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, [*columns, *conditions], lineterminator="\n")
        table.writeheader()
        table.writerows({**row, **conditions} for row in rows)
    return path


if __name__ == "__main__":
    main()
