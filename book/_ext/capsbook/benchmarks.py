"""The committed benchmarks, machine by machine."""

from __future__ import annotations

import csv
from pathlib import Path

from capslib.lab.ledger import number

Row = dict[str, str]


def read(path: Path, kind: str) -> list[Row]:
    """Return the rows of a table that measure layers or steps, with bounds of their limits."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == kind]
    return [row | bounds(row) for row in rows]


def bounds(row: Row) -> Row:
    """Return how far a layer is from its limit at most, where the vector rate is not measured.

    A table without that rate is from before benchmarks measured it. Vectors are never faster
    than matrix products, whose rate bounds the limit.
    """
    if row.get("vector_gflop_per_second") or not row["times_limit"]:
        return {}
    memory = float(row["gigabytes"]) / float(row["copy_gb_per_second"])
    arithmetic = float(row["gflop"]) / float(row["matrix_gflop_per_second"])
    times = float(row["milliseconds"]) / 1e3 / max(memory, arithmetic)
    return {
        "times_limit": f"≤\N{NO-BREAK SPACE}{times:.1f}",
        "bound_by": "arithmetic" if arithmetic > memory else "",
    }


def cases(rows: list[Row]) -> list[list[Row]]:
    """Return the rows of each case, in their order."""
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(row["name"], []).append(row)
    return list(by_name.values())


def milliseconds(text: str) -> str:
    """Return a time for readers, with a decimal below a hundred."""
    value = float(text)
    return number(round(value)) if value >= 100 else f"{value:.1f}"
