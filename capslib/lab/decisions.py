"""Decisions: what an interval says about a claim, and what twice the budget says."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from capslib.lab.ledger import HIGHER_IS_BETTER, Claim, number, span
from capslib.lab.replicates import Run, Runs
from capslib.lab.samples import (
    Sample,
    Unit,
    average,
    failures,
    is_partial,
    keys,
    pick,
    seed_list,
    unlearned,
)
from capslib.lab.statistics import Interval
from capslib.lab.words import OTHER_DATA, REDUCED, WORDS, Group, Status, Verdict
from capslib.papers.check import Check, Quantity
from capslib.papers.experiment import Scale
from capslib.papers.names import metric_title

WIDEST = 6
"""An interval wider than this many tolerances decides no value: it would fit almost any."""
LARGEST_MOVE = 0.1
"""The largest move by twice the budget, as a share of a metric's value."""
NOT_THE_PAPERS: dict[Scale, str] = {
    "cpu": "in a setting smaller than the paper's",
    "paper": OTHER_DATA,
}
"""Why a run in a reduced setting decides no value."""
_POSITION = {"for": "lies", "against": "does not lie", "open": "does not lie wholly"}


@dataclass(frozen=True)
class Decision:
    """The word of a verdict, and why, in a sentence without its full stop."""

    status: Status
    reason: str


def decide(
    claim: Claim, check: Check, interval: Interval, unit: Unit, group: Group, replicates: str
) -> Decision:
    """Return what an interval says about a claim, in the words of a group.

    ``replicates`` names them, for the reason: ``3 seeds``.
    """
    if check.op == "≈":
        return _decide_value(claim, check, interval, replicates)
    answer = check.decide(*interval, unit.factor)
    reason = (
        f"The 95 % interval {span(interval)} of the {check.label} over {replicates} "
        f"{_POSITION[answer]} {check.asked(unit.factor)}"
    )
    return Decision(WORDS[group][answer], reason)


def _decide_value(claim: Claim, check: Check, interval: Interval, replicates: str) -> Decision:
    """Decide a value: whether the paper's lies in our interval, widened by the tolerance."""
    low, high = interval
    value, tolerance = claim.value, claim.tolerance
    slack = tolerance + 1e-9 * max(1.0, abs(value))  # 0.3 and 99.7 are not exact in binary
    result = f"95 % interval {span(interval)} of {replicates}"
    obstacle = check.incomparable
    if not obstacle and high - low > WIDEST * slack:
        obstacle = f"it is wider than {WIDEST} tolerances of {number(tolerance)}"
    if obstacle:
        return Decision("inconclusive", f"Our {result} decides nothing: {obstacle}")
    paper = f"The paper's {number(value)} lies"
    if low - slack <= value <= high + slack:
        return Decision(
            "reproduced", f"{paper} within our {result}, widened by {number(tolerance)}"
        )
    we_are_above = low > value
    side = "below" if we_are_above else "above"
    # A metric without a better direction gives None, which is neither True nor False.
    is_better = HIGHER_IS_BETTER.get(claim.metric) is we_are_above
    return Decision(
        "better" if is_better and check.better_counts else "not reproduced",
        f"{paper} {side} our {result}, by more than the tolerance of {number(tolerance)}",
    )


# ------------------------------------------------------------------------------------ at rest


@dataclass(frozen=True)
class Confirmation:
    """Whether a decision stands after twice the budget.

    ``reason`` is appended to the decision's reason. ``records`` has the keys of the longer
    runs.
    """

    holds: bool
    reason: str
    records: tuple[str, ...] = ()


def confirm(
    verdict: Verdict, sample: Sample, runs: Runs, unit: Unit, status: Status
) -> Confirmation:
    """Return whether twice the budget gives the same ``status``, and moves no arm far.

    A learning rate that falls to zero flattens any curve, so only a longer run shows that
    training was over. One seed of each arm is enough.
    """
    claim, check, scale = verdict.claim, sample.check, verdict.scale
    doubled = pick(claim, check, runs, scale, budget=2)
    every_run = list(itertools.chain(*doubled.runs_of_arms))
    obstacle = failures(every_run) or unlearned(doubled)
    if obstacle:
        obstacle = obstacle[0].lower() + obstacle[1:].removesuffix(".")
        return Confirmation(False, f", but with twice the budget: {obstacle}", keys(every_run))
    if not doubled.pairs:
        return Confirmation(False, ", but there is no run with twice the budget yet")
    if verdict.setting != REDUCED and is_partial(doubled.paired):
        where = NOT_THE_PAPERS[scale]
        return Confirmation(False, f", but the runs with twice the budget are {where}")
    mean = average(doubled.replicates(unit.factor))
    # Few seeds have no interval: judge their mean as an interval of no width.
    decision = decide(claim, check, (mean, mean), unit, verdict.setting, "")
    agrees = decision.status == status
    reason = (
        f"; with twice the budget ({seed_list(doubled.paired)}) it is {number(mean)}, "
        f"and the decision {'the same' if agrees else 'another'}"
    )
    movement = _movement(sample, doubled) if agrees else ""
    if movement:
        reason += f", but {movement}"
    return Confirmation(agrees and not movement, reason, keys(doubled.paired))


def _movement(sample: Sample, doubled: Sample) -> str:
    """Return how twice the budget moves a metric too far, or why nobody knows; else empty."""
    for index, arm in enumerate(sample.runs_of_arms):
        shorter = {run.seed: run for run in arm}
        pairs = []
        for runs in doubled.pairs:
            run = runs[index]
            if run.seed in shorter:
                pairs.append((shorter[run.seed], run))
        if not pairs:
            return "no run of the usual budget has its seed"
        for metric in sample.check.metrics_at_rest:
            start, end = _means(metric, pairs)
            if start is not None and abs(end - start) > LARGEST_MOVE * abs(start):
                name = metric_title(str(metric))
                return (
                    f"{name} moved from {number(start)} to {number(end)}, by more than a tenth"
                )
    return ""


def _means(
    metric: str | Quantity, pairs: Sequence[tuple[Run, Run]]
) -> tuple[float | None, float | None]:
    """Return the mean metric of the first and the second runs, over pairs that have both."""
    first, second = [], []
    for one_run, longer_run in pairs:
        one_metric, longer_metric = one_run.read(metric), longer_run.read(metric)
        if one_metric and longer_metric:
            first.append(one_metric.value)
            second.append(longer_metric.value)
    return average(first), average(second)
