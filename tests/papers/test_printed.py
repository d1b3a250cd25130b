"""Every check, asked of the paper's own printed numbers: one that they fail is not a check of
that claim.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from capslib.lab.ledger import ledger
from capslib.papers import STEMS, queries
from capslib.papers.learned_routing.asks import table_arm
from capslib.papers.query import Above, Count, Derived, Erratum, Order, Query, Select, Value

PERCENT = 0.01


def printed(stem: str) -> dict[tuple, float]:
    """What the paper prints for a metric of an arm, by experiment, arm and metric: from the
    ledger, where a value asks for it.
    """
    found = {}
    for name, query in queries(stem).items():
        claim = ledger(stem)[name]
        if isinstance(query, Value) and claim.value is not None:
            for metric in names(query.metric):
                in_percent = claim.unit == "percent" and not metric.endswith(
                    "error"
                )  # records have errors in percent, shares as such
                found[place(query.select, metric)] = claim.value * (
                    PERCENT if in_percent else 1
                )
    return found


def place(select: Select, metric: str) -> tuple:
    where = tuple(sorted((name, str(value)) for name, value in select.where.items()))
    return select.experiment, select.arms or where, metric


def names(metric: str | Derived) -> tuple[str, ...]:
    """The metrics behind one: ``a or b`` is the one of both that a record has."""
    if isinstance(metric, Derived):
        return metric.metrics or tuple(metric.name.split(" or "))
    return (metric,)


def on_print(query: Order | Above, numbers: dict[tuple, float]) -> float | None:
    """The quantity that a check decides by, from printed numbers; None where the paper prints
    too few.
    """

    def of(select: Select) -> float | None:
        known = [numbers.get(place(select, metric)) for metric in names(query.metric)]
        if isinstance(query.metric, Derived) and query.metric.metrics:
            if None in known:
                return None
            difference = known[0] - known[1]
            return abs(difference) if "apart from" in query.metric.name else difference
        return next((number for number in known if number is not None), None)

    values = [of(select) for select in query.arms]
    return None if None in values else query.replicate(values)


def checks(query: Query, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Query]]:
    if isinstance(query, Count):
        for name, part in query.parts.items():
            yield from checks(part, (*path, name))
    else:
        yield path, query


def decided(query: Query, numbers: dict[tuple, float]) -> bool | None:
    """Whether printed numbers pass; of a count, whether enough of its parts do. None where
    there are none.
    """
    if isinstance(query, Count):
        parts = [decided(part, numbers) for part in query.parts.values()]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return all(known) if known else None
        return sum(known) >= (query.at_least or len(parts))
    if not isinstance(query, Order | Above):
        return None
    value = on_print(query, numbers)
    return None if value is None else query.decide(value, value) == "for"


def quoted(stem: str) -> dict[tuple, float]:
    """What a paper prints of its rivals, from other work: the better of the two open
    implementations of EM routing.
    """
    if stem != "learned_routing":
        return {}
    numbers = {"mnist": "LR-T3-em24-mnist", "smallnorb": "LR-T3-em24-norb"}
    return {
        place(table_arm(data, "em"), "test_error"): ledger(stem)[name].value
        for data, name in numbers.items()
    }


COVERED = {
    "em_routing": 6,
    "negation_limitation": 5,
    "sparse_unsupervised": 1,
    "learned_routing": 1,
    "inequality_anomaly": 7,
}
"""How many claims of each paper have checks that its printed numbers answer: fewer would mean
that this test looks at nothing.
"""


@pytest.mark.parametrize("stem", STEMS)
def test_the_papers_own_numbers_pass_its_checks(stem):
    numbers, asked, failing = printed(stem) | quoted(stem), set(), []
    for name, query in queries(stem).items():
        if not isinstance(query, Count):
            query = Count({"": query})
        for part, check in query.parts.items():
            passed = decided(check, numbers)
            if passed is not None:
                asked.add(name)
            if passed is False:
                failing.append((name, part))
    assert not failing
    assert len(asked) >= COVERED[stem], asked


def test_a_bound_that_is_the_papers_number_is_passed_by_it():
    """Chance is 20 percent, and accuracy never falls below it."""
    query = queries("em_routing")["EM-X-adv-chance"]
    assert query.bound == ledger()["EM-X-adv-chance"].value * PERCENT
    assert query.decide(query.bound, query.bound) == "for"


# ------------------------------------------------------------------------------------------------------------------
# errata


def values(stem: str, *ids: str) -> list[float]:
    return [ledger(stem)[name].value for name in ids]


def test_each_erratum_is_one():
    """The paper's own numbers contradict what it says, which is why no run decides it."""
    whole = {
        name
        for stem in STEMS
        for name, query in queries(stem).items()
        if isinstance(query, Erratum)
    }
    parts = {
        (name, part)
        for stem in STEMS
        for name, query in queries(stem).items()
        if isinstance(query, Count)
        for part in query.errata
    }
    assert whole == {"EM-X-param-ratio-cnn", "INQ-W-9"}
    assert {name for name, _ in parts} == {"INQ-W-3", "INQ-W-6"}

    cnn, main, factor = values(
        "em_routing", "EM-X-params-cnn", "EM-X-params-main", "EM-X-param-ratio-cnn"
    )
    assert round(cnn / main, 1) == 13.5 < factor - 0.5

    few, many = values(
        "inequality_anomaly", "INQ-T2-cifar10-0.1pct-npp", "INQ-T2-cifar10-10pct-npp"
    )
    assert (few, many) == (0.6487, 0.7915), "it rises"

    above = {}
    for setup, score in itertools.product("ABCD", ("a", "nre", "abc", "nl")):
        value, rate = values(
            "inequality_anomaly", f"INQ-S3-{setup}-{score}", f"INQ-S3-{setup}-plain"
        )
        above[setup, score] = value - rate
    assert max(above, key=above.get) == ("C", "nl")
    assert 0.065 < above["C", "nl"] < 0.075, "about seven points"
    assert [cell for cell, points in above.items() if points <= 0.02] == [("A", "abc")]

    tables = [
        name.removesuffix("-palma")
        for name in ledger("inequality_anomaly")
        if name.endswith("-palma")
    ]
    cells = [
        name
        for name in tables
        if name.split("-")[1] in ("T2", "T3", "T4") or name == "INQ-C-auroc"
    ]
    leads = [
        palma - gini
        for palma, gini in (
            values("inequality_anomaly", f"{c}-palma", f"{c}-gini") for c in cells
        )
    ]
    assert (len(cells), sum(lead > 0 for lead in leads), sum(lead < 0 for lead in leads)) == (
        29,
        9,
        17,
    )
