"""The committed benchmarks, machine by machine."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

from capslib.lab.ledger import number

KINDS = ("shared", "layer", "step")
"""What is measured: layers that public repositories have too, routings, training steps."""
Row = dict[str, str]


def read(path: Path) -> list[Row]:
    """Return the rows of a table, with bounds of their limits."""
    with path.open(newline="", encoding="utf-8") as file:
        return [row | bounds(row) for row in csv.DictReader(file)]


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


def is_public(row: Row) -> bool:
    """Return whether a path is that of a public repository, owner/name."""
    return "/" in row["path"]


class Comparison(NamedTuple):
    """The fastest path of capslib in a case, and the fastest public code for the same."""

    ours: Row
    public: Row

    @property
    def times(self) -> float:
        """How many times as long the repository takes."""
        return float(self.public["milliseconds"]) / float(self.ours["milliseconds"])


def beside_public(rows: list[Row]) -> list[Comparison]:
    """Return a comparison for each case that a public repository was measured in.

    Repositories whose result was checked to be the same come before all others.
    """
    pairs = []
    for case in cases(rows):
        by_time = sorted(case, key=lambda row: float(row["milliseconds"]))
        ours = [row for row in by_time if not is_public(row)]
        public = [row for row in by_time if is_public(row)]
        public.sort(key=lambda row: not row["difference"])
        if public:
            pairs.append(Comparison(ours[0], public[0]))
    return pairs


def times_of_limit(rows: list[Row], path: str) -> list[float]:
    """Return how many times their limits the layers take on a path, in rising order.

    Limits that are only bounded, for want of a vector rate, count as nothing.
    """
    texts = [row["times_limit"] for row in rows if row["path"] == path]
    return sorted(float(text) for text in texts if text and not text.startswith("≤"))


def milliseconds(text: str) -> str:
    """Return a time for readers, with a decimal below a hundred."""
    value = float(text)
    return number(round(value)) if value >= 100 else f"{value:.1f}"
