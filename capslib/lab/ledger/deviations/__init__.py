"""How experiments differ from their papers: one CSV file each, beside the ledger, and the budgets of the scales.

A row holds for the ``experiments`` that it names (all of them if it names none), and where the configuration is as ``where``
says: ``field=value`` or ``field!=value``, with a blank between conditions, none in a value, and ``|`` between values. ``ours`` may
name fields in braces. A row where a field is to be nothing (``routing=``) holds nowhere: it has the former words of records.
"""

from __future__ import annotations

import csv
import functools
import math
from pathlib import Path

from capslib.config import Config
from capslib.errors import UserError
from capslib.papers.experiment import Deviation

COLUMNS = ["experiments", "where", "what", "paper", "ours", "why"]


def deviations(
    stem: str, experiment: str, config: Config, *, everywhere: bool = False
) -> list[Deviation]:
    """Every difference of a configuration from the paper: the fields that its budget changes, then the rows of the file.

    ``everywhere`` adds the rows of the experiment's other configurations: a record keeps one that was narrowed since.
    """
    setting, arm = config.setting(), config.arm()
    budget = [
        Deviation(
            what=field.title or name,
            paper=str(getattr(setting, name)),
            ours=str(getattr(config, name)),
            why="budget of this scale",
        )
        for name, field in type(config).model_fields.items()
        if name not in arm and getattr(config, name) != getattr(setting, name)
    ]
    fields = config.model_dump()
    rows = (
        row
        for row in _rows(stem)
        if _holds({**row, "where": ""} if everywhere else row, experiment, fields)
    )
    if (
        everywhere
    ):  # a row of another configuration may want to write a number that this one has not
        fields = {name: math.nan if value is None else value for name, value in fields.items()}
    return budget + [
        Deviation(
            what=r["what"], paper=r["paper"], ours=r["ours"].format(**fields), why=r["why"]
        )
        for r in rows
    ]


def _holds(row: dict[str, str], experiment: str, fields: dict[str, object]) -> bool:
    if row["experiments"] and experiment not in row["experiments"].split("|"):
        return False
    for condition in row["where"].split():
        name, _, values = condition.partition("=")
        if (
            str(fields[name.rstrip("!")]).replace(" ", "") in values.split("|")
        ) is name.endswith("!"):
            return False
    return True


@functools.cache
def _rows(stem: str) -> list[dict[str, str]]:
    path = Path(__file__).parent / f"{stem}.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, strict=True)
        if rows.fieldnames != COLUMNS:
            raise UserError(f"{path}: the columns have to be {', '.join(COLUMNS)}.")
        return list(rows)
