"""The committed benchmarks, machine by machine."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

from capslib.lab.ledger import number

KINDS = ("shared", "layer", "step")
"""What is measured: layers that public repositories have too, routings, training steps."""
Row = dict[str, str]
AGREEMENT = {"gradient": "the same poses and gradients", "output": "the same poses", "": ""}
"""What a public repository has in common with capslib, the most first."""


def read(path: Path) -> list[Row]:
    """Return the rows of a table."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


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
    """Compare our fastest path with the fastest public code among those that agree most.

    Leave out a case that no public code was measured in.
    """
    order = list(AGREEMENT)
    pairs = []
    for case in cases(rows):
        by_time = sorted(case, key=lambda row: float(row["milliseconds"]))
        ours = [row for row in by_time if not is_public(row)]
        public = [row for row in by_time if is_public(row)]
        public.sort(key=lambda row: order.index(row["agrees"]))
        if public:
            pairs.append(Comparison(ours[0], public[0]))
    return pairs


def times_of_limit(rows: list[Row], path: str) -> list[float]:
    """Return how many times their limits the layers take on a path, in rising order."""
    texts = [row["times_limit"] for row in rows if row["path"] == path]
    return sorted(float(text) for text in texts if text)


def milliseconds(text: str) -> str:
    """Return a time for readers, with a decimal below a hundred."""
    value = float(text)
    return number(round(value)) if value >= 100 else f"{value:.1f}"
