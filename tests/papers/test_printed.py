"""Every check, asked of the paper's own printed numbers: one that they fail is not a check of
that claim.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from capslib.lab.ledger import ledger
from capslib.papers import STEMS, checks_of
from capslib.papers.check import AtLeast, Check, Erratum, Select, read
from capslib.papers.experiment import Metric
from capslib.papers.learned_routing.checks import table_arm

PERCENT = 0.01


def place(select: Select, metric: str) -> tuple:
    return select.experiment, select.names, metric


def printed(stem: str) -> dict[tuple, float]:
    """Return what the paper prints for a metric of an arm, from the values of the ledger."""
    numbers = {}
    for name, check in checks_of(stem).items():
        claim = ledger(stem)[name]
        if claim.kind == "order" or claim.value is None or not isinstance(check, Check):
            continue
        metric = str(check.metric)
        # records have errors in percent, and shares as such
        in_percent = claim.unit == "percent" and not metric.endswith("error")
        value = claim.value * (PERCENT if in_percent else 1)
        numbers[place(check.selects[0], metric)] = value
    return numbers


def printed_metric(check: Check, select: Select, numbers: dict[tuple, float]) -> float | None:
    """Return the metric of an arm from printed numbers; None where the paper prints too few."""
    metrics = {}
    for (experiment, names, metric), value in numbers.items():
        if (experiment, names) == (select.experiment, select.names):
            metrics[metric] = Metric(value=value, n=1, unit="")
    if check.metric == "parameters" and "parameters" not in metrics:
        return None
    record = SimpleNamespace(metrics=metrics, series={}, parameters=0)
    metric = read(check.metric, record)
    return None if metric is None else metric.value


def passes(check: Check | AtLeast, numbers: dict[tuple, float]) -> bool | None:
    """Return whether printed numbers pass; None where there are none.

    Of several parts, whether enough of them do.
    """
    if isinstance(check, AtLeast):
        parts = [passes(part, numbers) for part in check.parts.values()]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return all(known) if known else None
        return sum(known) >= check.needed
    if check.test or check.op == "≈":
        return None
    values = [printed_metric(check, select, numbers) for select in check.selects]
    if None in values:
        return None
    replicate = check.replicate(values)
    return check.decide(replicate, replicate) == "for"


def quoted(stem: str) -> dict[tuple, float]:
    """Return what a paper quotes of its rival: the better open code of EM routing."""
    if stem != "learned_routing":
        return {}
    error = ledger(stem)["LR-T3-em24-norb"].value
    return {place(table_arm("smallnorb", "em"), "test_error"): error}


def answers(stem: str) -> dict[tuple[str, str], bool]:
    """Return which checks, or parts of checks, of a paper its printed numbers pass.

    Those that they do not answer are left out.
    """
    numbers = printed(stem) | quoted(stem)
    answers = {}
    for name, check in checks_of(stem).items():
        if isinstance(check, Erratum):
            continue
        parts = check.parts if isinstance(check, AtLeast) else {"": check}
        for part, single in parts.items():
            passed = passes(single, numbers)
            if passed is not None:
                answers[name, part] = passed
    return answers


@pytest.mark.parametrize("stem", STEMS)
def test_the_papers_own_numbers_pass_its_checks(stem):
    assert [name for name, passed in answers(stem).items() if not passed] == []


def test_printed_numbers_answer_checks():
    """Else the test above would look at nothing."""
    asked = {name for stem in STEMS for name, _ in answers(stem)}
    assert len(asked) >= 20, asked


def test_a_bound_that_is_the_papers_number_is_passed_by_it():
    """Chance is 20 percent, and accuracy never falls below it."""
    check = checks_of("em_routing")["EM-X-adv-chance"]
    assert check.bound == ledger()["EM-X-adv-chance"].value * PERCENT
    assert check.decide(check.bound, check.bound) == "for"


# ------------------------------------------------------------------------------------ errata


def value(name: str) -> float:
    return ledger()[name].value


def test_every_erratum_is_proved_below():
    """Whoever adds an erratum adds a test of the paper's numbers here."""
    claims, parts = set(), set()
    for stem in STEMS:
        for name, check in checks_of(stem).items():
            if isinstance(check, Erratum):
                claims.add(name)
            elif isinstance(check, AtLeast) and check.errata:
                parts.add(name)
    assert claims == {"EM-X-param-ratio-cnn", "INQ-W-9"}
    assert parts == {"INQ-W-3", "INQ-W-6"}


def test_the_cnn_of_em_routing_is_not_15_times_as_large():
    ratio = value("EM-X-params-cnn") / value("EM-X-params-main")
    assert round(ratio, 1) == 13.5 < value("EM-X-param-ratio-cnn") - 0.5


def test_npp_rises_on_cifar10():
    few, many = value("INQ-T2-cifar10-0.1pct-npp"), value("INQ-T2-cifar10-10pct-npp")
    assert (few, many) == (0.6487, 0.7915)


def test_other_scores_lie_up_to_seven_points_above_the_base_rate():
    lead = {}
    for setup in "ABCD":
        for score in ("a", "nre", "abc", "nl"):
            rate = value(f"INQ-S3-{setup}-plain")
            lead[setup, score] = value(f"INQ-S3-{setup}-{score}") - rate
    assert max(lead, key=lead.get) == ("C", "nl")
    assert 0.065 < lead["C", "nl"] < 0.075
    assert [cell for cell, points in lead.items() if points <= 0.02] == [("A", "abc")]


def test_palma_beats_gini_in_fewer_cells_than_it_loses_in():
    leads = []
    for name in ledger("inequality_anomaly"):
        table = name.split("-")[1]
        is_auroc = table in ("T2", "T3", "T4") or name.startswith("INQ-C-auroc")
        if is_auroc and name.endswith("-palma"):
            leads.append(value(name) - value(name.replace("-palma", "-gini")))
    assert len(leads) == 29
    assert sum(lead > 0 for lead in leads) == 9
    assert sum(lead < 0 for lead in leads) == 17
