"""``python -m benchmarks [--device cuda] [--only WORDS]``: measure, print, and write the machine's table.

Every figure comes from a process of its own, so that no measurement inherits the memory of another; the machine's limits are
measured before and after, and the better of both counts. Time is the median of several steps after the first ones. The machine's
table is that of one whole run: what ``--only`` chooses is printed, and written where ``--out`` says.
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

COLUMNS = ("kind", "name", "path", "milliseconds", "peak_mib", "faster", "memory_share", "times_limit")
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Measure every case on every path; the first path of a case is what the others are compared with."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="threads of the CPU; default: all")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--out", type=Path, help="folder of the table; default: benchmarks/results, for a whole run")
    parser.add_argument("--measure", nargs=3, metavar=("KIND", "NUMBER", "PATH"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        kind, number, path = given.measure
        print(json.dumps(measure(kind, int(number), path, given.device, given.threads)))
        return

    from benchmarks.cases import LAYERS, STEPS

    if not any(given.only in case.name for case in (*LAYERS, *STEPS)):
        parser.error(f"no case is called {given.only!r}: {', '.join(case.name for case in (*LAYERS, *STEPS))}")
    limits = [_in_a_process("limits", 0, "-", given)]
    rows: list[dict[str, object]] = []
    for kind, cases in (("layer", LAYERS), ("step", STEPS)):
        for number, case in enumerate(cases):
            if given.only not in case.name:
                continue
            least = getattr(case, "least_bytes", None)
            first: dict[str, float] | None = None
            for path in case.paths:
                found = _in_a_process(kind, number, path, given)
                first = first or found
                rows.append({
                    "kind": kind, "name": case.name, "path": path,
                    "milliseconds": round(1e3 * found["seconds"], 2), "peak_mib": round(found["bytes"] / 2**20, 1),
                    "faster": round(first["seconds"] / found["seconds"], 2),
                    "memory_share": round(found["bytes"] / max(1, first["bytes"]), 3),
                    "times_limit": least and round(found["seconds"] / (least / max(l["bytes_per_second"] for l in limits)), 1),
                })  # fmt: skip
                print("  ".join(f"{rows[-1][c]!s:>10}" if c != "name" else f"{rows[-1][c]:<58}" for c in COLUMNS), flush=True)
    limits.append(_in_a_process("limits", 0, "-", given))
    best = {name: max(l[name] for l in limits) for name in limits[0]}
    print(f"copy {best['bytes_per_second'] / 1e9:.1f} GB/s, matrix product {best['flops_per_second'] / 1e9:.0f} GFLOP/s")
    folder = given.out or (None if given.only else RESULTS)
    if folder:
        print(f"written to {_write(rows, best, given, folder)}")


def _in_a_process(kind: str, number: int, path: str, given: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks", "--device", given.device, "--measure", kind, str(number), path]
    command += ["--threads", str(given.threads)] if given.threads else []
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{kind} {number} on the path {path} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(kind: str, number: int, path: str, device: str, threads: int | None) -> dict[str, float]:
    """Seconds and peak bytes of one case, or the limits of the machine."""
    import torch

    from benchmarks.cases import LAYERS, STEPS

    torch.set_num_threads(threads or torch.get_num_threads())
    if kind == "limits":
        return _limits(device)
    step = {"layer": LAYERS, "step": STEPS}[kind][number].prepare(path, device)
    step()  # compiles, warms up, allocates what stays
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
    """The most that one step holds beyond what is there before it."""
    import torch

    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return torch.cuda.max_memory_allocated() - before
    import psutil

    from capslib.runs import PeakMemory

    if sys.platform != "linux":
        return 0
    ctypes.CDLL(None).malloc_trim(0)  # what earlier steps left to the allocator would hide what this one takes
    before = psutil.Process().memory_info().rss
    with PeakMemory(device) as memory:
        step()
    return memory.bytes - before


def _limits(device: str) -> dict[str, float]:
    """Copy bandwidth, bytes read and written, and the rate of a large matrix product in float32."""
    import torch

    a = torch.randn(1 << 26, device=device)
    b = torch.empty_like(a)
    copy = min(_timed(lambda: b.copy_(a), device) for _ in range(7))
    m = torch.randn(4096 if device.startswith("cuda") else 2048, 4096 if device.startswith("cuda") else 2048, device=device)
    product = min(_timed(lambda: m @ m, device) for _ in range(7))
    return {"bytes_per_second": 2 * 4 * a.numel() / copy, "flops_per_second": 2 * m.shape[0] ** 3 / product}


def _write(rows: list[dict[str, object]], limits: dict[str, float], given: argparse.Namespace, folder: Path) -> Path:
    import torch

    cuda = given.device.startswith("cuda")
    machine = torch.cuda.get_device_name(given.device) if cuda else f"{platform.machine()}, {_cores(given)} threads"
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"{re.sub(r'[^a-z0-9]+', '-', machine.lower()).strip('-')}.csv"
    about = {
        "machine": machine, "torch": torch.__version__, "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "copy_gb_per_second": round(limits["bytes_per_second"] / 1e9, 1),
        "matrix_gflop_per_second": round(limits["flops_per_second"] / 1e9),
    }  # fmt: skip
    with place.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, [*COLUMNS, *about])
        table.writeheader()
        table.writerows({**row, **about} for row in rows)
    return place


def _cores(given: argparse.Namespace) -> int:
    import torch

    return given.threads or torch.get_num_threads()


if __name__ == "__main__":
    main()
