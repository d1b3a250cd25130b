"""The ledger: every claim of the papers, in one CSV file per paper beside this module.

Tolerances, fixed before any result was seen:

==================================  ========================================================
accuracy, error (percent)           0.5 points; 0.3 where the paper's error is under 3 or its
                                    accuracy over 97; 1 for the two arms of NEG-T1 without
                                    bias, whose printed numbers are running means
AUROC, average precision            0.02, and at most half the distance from the paper's value
                                    to 1
exact counts                        0 (kind ``property``: one count decides, no seeds needed)
numbers of parameters, rounded      one unit of the last printed digit (the papers cut off:
                                    68,618 is printed as 68K)
factors, orders of magnitude        0.5 (printed as whole numbers)
relative reduction of errors        5 points (a tolerance of 0.3 points in a small error moves
                                    the ratio by more)
reconstruction error                5 % of the paper's value, to two decimals
settings, surveys, hours            not computed: the row says why
==================================  ========================================================
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from capslib.config import Model
from capslib.errors import UserError
from capslib.papers import PAPERS, module

LEDGER = Path(__file__).parent
HIGHER_IS_BETTER = {
    "test accuracy": True,
    "training accuracy": True,
    "AUROC": True,
    "average precision": True,
    "relative reduction of test errors": True,
    "relative reduction of error": True,
    "test error": False,
    "reconstruction error (called batch mean square error)": False,
}
"""The direction of metrics. One that is missing here (a count, a ratio) has no better side."""


class Claim(Model):
    """One row of the ledger.

    ``value``, ``std`` and ``tolerance`` are in ``unit``; ``printed`` is the value as the paper
    prints it.
    """

    id: str = Field(pattern=r"^[A-Z]+-[A-Za-z0-9.-]+$")
    paper: str
    where: str = Field(min_length=1)
    kind: Literal["value", "order", "property"]
    statement: str = Field(min_length=1)
    dataset: str
    setting: str
    metric: str
    unit: str
    value: float | None
    std: float | None = Field(ge=0)
    tolerance: float | None = Field(ge=0)
    not_run: str
    notes: str
    printed: str = ""

    @property
    def quoted(self) -> bool:
        """Whether it is not run because the paper quotes it.

        Whatever else is not run has no data, or nothing that a run could measure.
        """
        return self.not_run.startswith("Quoted from other literature")

    @property
    def unprinted(self) -> bool:
        """Whether only the authors' notebooks have the value, to which the article refers."""
        return self.notes.startswith("Taken from the authors' notebook")

    @model_validator(mode="after")
    def _complete(self) -> Claim:
        if self.kind == "value" and self.tolerance is None:
            raise ValueError("a claim of kind value needs a tolerance")
        if self.kind == "value" and self.value is None and not self.not_run:
            raise ValueError("a claim of kind value needs a value, or a reason in not_run")
        return self


COLUMNS = tuple(name for name in Claim.model_fields if name not in ("paper", "printed"))


def grouped(digits: str) -> str:
    """Group the digits of a whole number in threes: ``316,650``.

    Leaves any other text as it is.
    """
    return f"{int(digits):,}" if re.fullmatch(r"-?\d+", digits) else digits


def raised(text: str) -> str:
    """Write the power of ten of a number for readers: ``6.1e-05`` is ``6.1·10⁻⁵``.

    Leaves a number without one as it is.
    """
    digits, _, power = text.partition("e")
    if not power:
        return text
    superscript = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    return f"{digits}·10{str(int(power)).translate(superscript)}"


def number(value: float) -> str:
    """Return a number for readers.

    It has two decimals from ten on and four significant digits below. Whole numbers have none,
    and stand in groups of three digits.
    """
    if value < 0:
        return f"−{number(-value)}"
    if value == int(value) and value < 1e9:
        return grouped(f"{int(value)}")
    return f"{value:.2f}" if value >= 10 else raised(f"{value:.4g}")


def plural(n: int, word: str) -> str:
    """Return a number of things: ``1 seed``, ``3 seeds``."""
    return f"{n} {word}" if n == 1 else f"{n:,} {word}s"


def listed(names: Sequence[str]) -> str:
    """Return names as prose lists them.

    >>> listed(["MNIST"]), listed(["MNIST", "smallNORB", "CRISPR"])
    ('MNIST', 'MNIST, smallNORB and CRISPR')
    """
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def span(interval: tuple[float, float]) -> str:
    """Return an interval for readers: ``[99.6, 99.9]``."""
    low, high = interval
    return f"[{number(low)}, {number(high)}]"


def read_ledger(path: Path, stem: str) -> dict[str, Claim]:
    """Read the claims of one CSV file by id, in its order.

    The letters that begin the first id have to begin all. Raises :class:`UserError`, which
    names the file and the line.
    """
    claims = {}
    try:
        for line, row in read_rows(path, COLUMNS):
            claim = _read_claim(row, stem, line)
            if claim.id in claims:
                raise UserError(f"{line}: the id {claim.id} occurs twice.")
            prefix = next(iter(claims), claim.id).partition("-")[0]
            if claim.id.partition("-")[0] != prefix:
                raise UserError(f"{line}: the id {claim.id} has to begin with {prefix}-.")
            claims[claim.id] = claim
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: the ledger cannot be read: {error}.") from None
    return claims


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the rows of a CSV file, each with its place for a message: ``a.csv, line 2``.

    Raises :class:`UserError` for a file with other columns, and for a row with more or fewer
    fields.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, strict=True)
        if tuple(rows.fieldnames or ()) != tuple(columns):
            raise UserError(f"{path}, line 1: the columns must be {', '.join(columns)}.")
        for row in rows:
            line = f"{path}, line {rows.line_num}"
            if None in row or None in row.values():
                raise UserError(
                    f"{line}: a row needs {len(columns)} fields. "
                    "Put a text with a comma in quotation marks."
                )
            yield line, row


def _read_claim(row: dict[str, str], stem: str, line: str) -> Claim:
    """Return the claim of a row. Raises :class:`UserError`, which names its ``line``."""
    printed = grouped(row["value"])
    if row["std"]:
        printed += f" ± {row['std']}"
    fields = {**row, "paper": stem, "printed": printed}
    for name in ("value", "std", "tolerance"):
        fields[name] = row[name] or None
    try:
        return Claim.model_validate(fields)
    except ValidationError as error:
        reasons = []
        for fault in error.errors():
            field = ".".join(map(str, fault["loc"]))
            reasons.append(f"{field or row['id']}: {fault['msg']}")
        raise UserError(f"{line}: {'; '.join(reasons)}.") from None


@functools.cache
def _ledger(stem: str) -> dict[str, Claim]:
    return read_ledger(LEDGER / f"{stem}.csv", stem)


def ledger(stem: str | None = None) -> dict[str, Claim]:
    """Return the claims of a paper, or of all papers, by id, in the order of the ledger.

    A study has none. Raises :class:`UserError` for an unknown paper, or for a bad row with its
    file and line.
    """
    if stem is not None:
        module(stem)  # raises for an unknown stem
    claims = {}
    for paper in [stem] if stem else PAPERS:
        if paper in PAPERS:
            claims |= _ledger(paper)
    return claims
