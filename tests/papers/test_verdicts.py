"""The verdicts of the committed records, as a table: whoever changes one sees it in the diff.

After new records: ``make verdicts`` writes the table anew, and the one in the README. Read the
diff before you commit it.
"""

from __future__ import annotations

import csv
from pathlib import Path

from capslib.lab.claims import verdicts
from capslib.lab.store import Store
from capslib.lab.words import GROUPS, NOT_RUN

TABLE = Path(__file__).with_name("verdicts.csv")
RESULTS = Path(__file__).parents[2] / "results"
COLUMNS = ["id", "verdict", "group", "ours", "low", "high", "n", "scale"]


def today() -> list[list[str]]:
    """Every claim that records decide, or leave undecided."""

    def text(value: float | None) -> str:
        return "" if value is None else f"{value + 0.0:.6g}"  # no negative zero

    return [
        [
            v.claim.id,
            v.word,
            v.group,
            text(v.ours),
            *map(text, v.interval or (None, None)),
            str(v.n),
            v.scale or "",
        ]
        for v in verdicts(store=Store(RESULTS))
        if v.status not in GROUPS[NOT_RUN]
    ]


def test_no_verdict_moves_unseen():
    with TABLE.open(encoding="utf-8", newline="") as file:
        columns, *expected = csv.reader(file)
    assert columns == COLUMNS
    assert today() == expected


if __name__ == "__main__":
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *today()])
    from tests.test_readme import write_table

    write_table()
