"""How experiments differ from their papers: one CSV file each, and the budgets of the scales.

A row holds for the ``experiments`` that it names (all of them if it names none), and where the
configuration is as ``where`` says: ``field=value`` or ``field!=value``, with a blank between
conditions, none in a value, and ``|`` between values. ``ours`` may name fields in braces. A row
where a field is to be nothing (``routing=``) holds nowhere: it has the former words of records.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path

from capslib import papers
from capslib.lab.ledger import read_rows
from capslib.papers.experiment import Arm, Deviation, Trial

COLUMNS = ["experiments", "where", "what", "paper", "ours", "why"]


def deviations(
    stem: str, experiment: str, arm: Arm, *, everywhere: bool = False
) -> list[Deviation]:
    """Return every difference of an arm from the paper.

    First come the fields that are smaller than the paper's, then the rows of the file.
    ``everywhere`` adds the rows of the experiment's other arms: a record keeps one that was
    narrowed since.
    """
    fields = arm.values()
    deviations = _of_size(arm)
    if everywhere:
        # a row of another arm may want to write a number that this one has not
        fields = {name: math.nan if value is None else value for name, value in fields.items()}
    for row in _rows(stem):
        if _holds({**row, "where": ""} if everywhere else row, experiment, fields):
            text = row["ours"].format(**fields)
            deviations.append(
                Deviation(what=row["what"], paper=row["paper"], ours=text, why=row["why"])
            )
    return deviations


def deviations_of(trial: Trial, *, everywhere: bool = False) -> list[Deviation]:
    """Return the :func:`deviations` of a trial; none if nobody knows its configuration now."""
    if not papers.known(trial):
        return []
    arm = papers.arm(trial)
    return deviations(trial.paper, trial.experiment, arm, everywhere=everywhere)


SMALLER = "budget of this scale"
"""Why a field has another value than in the paper."""


def _of_size(arm: Arm) -> list[Deviation]:
    """Return the fields in which an arm differs from its like of the paper's size."""
    paper = (arm.paper_size or arm).values()
    deviations = []
    for name, value in arm.values().items():
        if value != paper[name]:
            deviations.append(
                Deviation(
                    what=arm.titles()[name],
                    paper=str(paper[name]),
                    ours=str(value),
                    why=SMALLER,
                )
            )
    return deviations


def _holds(row: dict[str, str], experiment: str, fields: dict[str, object]) -> bool:
    """Whether a row holds for an experiment with these fields of its configuration."""
    if row["experiments"] and experiment not in row["experiments"].split("|"):
        return False
    for condition in row["where"].split():
        name, _, values = condition.partition("=")
        value = str(fields[name.rstrip("!")]).replace(" ", "")
        is_listed = value in values.split("|")
        if is_listed == name.endswith("!"):
            return False
    return True


@functools.cache
def _rows(stem: str) -> list[dict[str, str]]:
    """Read the rows of a paper; a study deviates from none."""
    if stem not in papers.PAPERS:
        return []
    path = Path(__file__).parent / f"{stem}.csv"
    return [row for _, row in read_rows(path, COLUMNS)]
