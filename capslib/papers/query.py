"""What a claim asks of the records: small, declarative questions. Each chapter lists its own; ``capslib.lab.claims`` answers them.

A query never holds a result. It says which records to look at and what to compare; the answer is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from capslib.recipes import matches

CONVERGED = ("loss_change_last_quarter", "error_change_last_quarter")
"""Metrics of a record, one of which says how far the training still moved over its last quarter."""
CONVERGED_BELOW = 0.02
"""A run whose loss still moves by more than this share cannot decide a claim about final accuracy."""


@dataclass(frozen=True)
class Select:
    """The records of one experiment whose configuration has these field values."""

    experiment: str
    where: Mapping[str, Any] = field(default_factory=dict)

    def takes(self, experiment: str, fields: Mapping[str, Any]) -> bool:
        """Whether a configuration of an experiment, with all of its fields, is one of these."""
        return experiment == self.experiment and matches(fields, self.where)


@dataclass(frozen=True)
class Value:
    """A table cell: the mean of a metric over the selected records (one a seed)."""

    select: Select
    metric: str
    final: bool = True
    """Whether it speaks of the end of training, so that a run that has not flattened cannot decide it."""
    better_counts: bool = True
    """Whether beating the paper's value is *better*. Not where the claim is that something fails: there it is a failure to fail."""


@dataclass(frozen=True)
class Order:
    """``better`` beats ``worse`` in a metric by more than ``margin``: the interval of the difference, paired by seed.

    With ``equal=True`` it asks instead whether the two differ by no more than ``margin``.
    """

    better: Select
    worse: Select
    metric: str
    higher_is_better: bool = True
    margin: float = 0.0
    equal: bool = False
    final: bool = True


@dataclass(frozen=True)
class Above:
    """The mean of a metric lies above (or with ``below=True`` under) a bound: the interval has to clear it."""

    select: Select
    metric: str
    bound: float
    below: bool = False
    final: bool = True
    paper_scale_only: bool = False
    """For quantities that mean nothing in a reduced setting, such as a number of steps."""


@dataclass(frozen=True)
class Property:
    """A theorem or an exact count: the worst record keeps the metric at or below ``bound`` (``above=True``: at or above).

    ``test`` names the test that holds code and statement together.
    """

    select: Select
    metric: str
    bound: float
    test: str
    above: bool = False


@dataclass(frozen=True)
class Count:
    """A claim over many cells: how many of ``parts`` must hold (all, by default). Each part's decision is listed."""

    parts: Mapping[str, Query]
    at_least: int | None = None


Query = Value | Order | Above | Property | Count


def selects(query: Query) -> Iterator[Select]:
    """What a query looks at, its parts' selections included."""
    if isinstance(query, Count):
        for part in query.parts.values():
            yield from selects(part)
    elif isinstance(query, Order):
        yield from (query.better, query.worse)
    else:
        yield query.select
