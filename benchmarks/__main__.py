"""``python -m benchmarks [--device cuda] [--only WORDS]``: measure, print, and write the machine's table.

Every measurement runs in a process of its own, so that none inherits the memory of another. The machine's rates are measured
before and after the cases, and the higher ones count. A time is the median of several steps after a first one. Only a whole run
writes the machine's table; with ``--only`` the figures are printed, and written where ``--out`` says.
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
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.cases import Layer

MEASURED = ("kind", "name", "path", "milliseconds", "peak_mib", "faster", "memory_share")
COLUMNS = (*MEASURED, "times_limit", "bound_by", "gflop", "gigabytes")
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Measure every case on every path. The first path of a case is the one that the others are compared with."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="threads of the CPU; default: all")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument(
        "--out",
        type=Path,
        help="folder of the table; default: benchmarks/results, for a whole run",
    )
    parser.add_argument(
        "--measure", nargs=3, metavar=("KIND", "NUMBER", "PATH"), help=argparse.SUPPRESS
    )
    given = parser.parse_args()
    if given.measure:
        kind, number, path = given.measure
        print(json.dumps(measure(kind, int(number), path, given.device, given.threads)))
        return

    from benchmarks.cases import LAYERS, STEPS

    chosen = [
        (kind, number, case)
        for kind, cases in (("layer", LAYERS), ("step", STEPS))
        for number, case in enumerate(cases)
        if given.only in case.name
    ]
    if not chosen:
        parser.error(
            f"no case is called {given.only!r}: {', '.join(case.name for case in (*LAYERS, *STEPS))}"
        )
    before = _in_a_process("rates", 0, "-", given)
    rows: list[dict[str, object]] = []
    for kind, number, case in chosen:
        first: dict[str, float] | None = None
        for path in case.paths:
            found = _in_a_process(kind, number, path, given)
            first = first or found
            rows.append(
                {
                    "kind": kind,
                    "name": case.name,
                    "path": path,
                    "milliseconds": round(1e3 * found["seconds"], 2),
                    "peak_mib": round(found["bytes"] / 2**20, 1),
                    "faster": round(first["seconds"] / found["seconds"], 2),
                    "memory_share": round(found["bytes"] / max(1, first["bytes"]), 3),
                }
            )
            print(
                "  ".join(
                    f"{rows[-1][c]!s:>10}" if c != "name" else f"{rows[-1][c]:<58}"
                    for c in MEASURED
                ),
                flush=True,
            )
    after = _in_a_process("rates", 0, "-", given)
    rates = {name: max(before[name], after[name]) for name in before}
    add_limits(rows, {case.name: case for kind, _, case in chosen if kind == "layer"}, rates)
    print(
        f"copy {rates['bytes_per_second'] / 1e9:.1f} GB/s, vectors {rates['vector_flops_per_second'] / 1e9:.0f} GFLOP/s, "
        f"matrix products {rates['matrix_flops_per_second'] / 1e9:.0f} GFLOP/s"
    )
    for row in rows:
        if "times_limit" in row:
            print(
                f"{row['name']:<58}  {row['path']:>10}  {row['times_limit']:>8} times the limit, which {row['bound_by']} sets"
            )
    if folder := given.out or (None if given.only else RESULTS):
        print(f"written to {_write(rows, rates, given, folder)}")


def add_limits(
    rows: list[dict[str, object]], layers: dict[str, Layer], rates: dict[str, float]
) -> None:
    """Compare each row of a layer with the layer's roofline. A whole training step has none, nor has a routing without textbook form."""
    from benchmarks.cases import TEXTBOOK, limit

    counted = {
        name: (layer.flops, layer.bytes)
        for name, layer in layers.items()
        if layer.routing in TEXTBOOK
    }
    for row in rows:
        if row["name"] in counted:
            flops, moved = counted[row["name"]]
            seconds, bound = limit(flops, moved, rates)
            row |= {
                "times_limit": round(row["milliseconds"] / 1e3 / seconds, 1),
                "bound_by": bound,
            }
            row |= {"gflop": round(flops / 1e9, 3), "gigabytes": round(moved / 1e9, 4)}


def _in_a_process(
    kind: str, number: int, path: str, given: argparse.Namespace
) -> dict[str, float]:
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "--device",
        given.device,
        "--measure",
        kind,
        str(number),
        path,
    ]
    command += ["--threads", str(given.threads)] if given.threads else []
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    if done.returncode:
        raise SystemExit(f"{kind} {number} on the path {path} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(
    kind: str, number: int, path: str, device: str, threads: int | None
) -> dict[str, float]:
    """The seconds and peak bytes of one case, or with the kind ``rates`` those of the machine."""
    import torch

    from benchmarks.cases import LAYERS, STEPS

    torch.set_num_threads(threads or torch.get_num_threads())
    if kind == "rates":
        return _rates(device)
    step = {"layer": LAYERS, "step": STEPS}[kind][number].prepare(path, device)
    step()  # compiles, warms up, and allocates what stays
    seconds: list[float] = []
    while len(seconds) < 3 or (sum(seconds) < 3 and len(seconds) < 20):
        seconds.append(_timed(step, device))
    return {"seconds": statistics.median(seconds), "bytes": _peak(step, device)}


def _timed(function, device: str) -> float:
    import torch

    wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    wait()
    start = time.perf_counter()
    function()
    wait()
    return time.perf_counter() - start


def _peak(step, device: str) -> int:
    """The most bytes that one step holds beyond those held before it."""
    import torch

    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return torch.cuda.max_memory_allocated() - before
    import psutil

    from capslib.lab.runs import PeakMemory

    if sys.platform != "linux":
        return 0
    ctypes.CDLL(None).malloc_trim(
        0
    )  # memory that the allocator kept from earlier steps would hide this one's
    before = psutil.Process().memory_info().rss
    with PeakMemory(device) as memory:
        step()
    return memory.bytes - before


def _rates(device: str) -> dict[str, float]:
    """The machine's rates: bytes read and written by a copy, and operations in float32 of vectors and of a matrix product.

    The vector rate is that of a compiled chain of multiplications and additions on data in cache: the best that element-wise
    code reaches. Matrix products run faster, but routing has none.
    """
    import torch

    cuda = device.startswith("cuda")
    a = torch.randn(1 << 26, device=device)
    b = torch.empty_like(a)
    copy = min(_timed(lambda: b.copy_(a), device) for _ in range(7))
    m = torch.randn((4096, 4096) if cuda else (2048, 2048), device=device)
    product = min(_timed(lambda: m @ m, device) for _ in range(7))
    size, length, repeats = (
        (1 << 24, 256, 1) if cuda else (1 << 18, 16, 30)
    )  # a GPU needs much work per call, a CPU small data
    x, factor, term = (torch.rand(size, device=device) / 2 for _ in range(3))

    @torch.compile
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(length):
            x = x * factor + term
        return x

    chain(x)
    vectors = min(_timed(lambda: [chain(x) for _ in range(repeats)], device) for _ in range(15))
    return {
        "bytes_per_second": 2 * 4 * a.numel() / copy,
        "vector_flops_per_second": 2 * length * size * repeats / vectors,
        "matrix_flops_per_second": 2 * m.shape[0] ** 3 / product,
    }


def _write(
    rows: list[dict[str, object]],
    rates: dict[str, float],
    given: argparse.Namespace,
    folder: Path,
) -> Path:
    import torch

    cuda = given.device.startswith("cuda")
    threads = given.threads or torch.get_num_threads()
    machine = (
        torch.cuda.get_device_name(given.device)
        if cuda
        else f"{platform.machine()}, {threads} threads"
    )
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"{re.sub(r'[^a-z0-9]+', '-', machine.lower()).strip('-')}.csv"
    about = {
        "machine": machine,
        "torch": torch.__version__,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "copy_gb_per_second": round(rates["bytes_per_second"] / 1e9, 1),
        "vector_gflop_per_second": round(rates["vector_flops_per_second"] / 1e9),
        "matrix_gflop_per_second": round(rates["matrix_flops_per_second"] / 1e9),
    }
    with place.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, [*COLUMNS, *about], lineterminator="\n")
        table.writeheader()
        table.writerows({**row, **about} for row in rows)
    return place


if __name__ == "__main__":
    main()
