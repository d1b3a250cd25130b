"""Samples: the runs that a check compares, seed by seed, and why they may decide nothing."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from capslib.data.registry import SETS
from capslib.lab.ledger import Claim, number, plural
from capslib.lab.replicates import FAILED, Run, Runs
from capslib.papers.check import Check, Select
from capslib.papers.experiment import DataFingerprint, Scale

SHARES = {"fraction": 1.0, "percent": 100.0}
"""The value of a whole, in each unit of shares."""


@dataclass(frozen=True)
class Unit:
    """The unit of a verdict, and the factor to it from the records' unit.

    ``clash`` says why the records give no unit; it is empty where they do.
    """

    name: str
    factor: float = 1.0
    clash: str = ""


@dataclass(frozen=True)
class Sample:
    """The runs of each arm of a check at one scale."""

    check: Check
    runs_of_arms: tuple[list[Run], ...]

    @functools.cached_property
    def pairs(self) -> list[tuple[Run, ...]]:
        """The runs of each seed, one of each arm, in the order of the seeds.

        A seed counts only where every arm has a run that ended well and has the metric.
        """
        runs_by_seed = []
        for arm in self.runs_of_arms:
            measured = [run for run in arm if run.exit == "ok" and run.read(self.check.metric)]
            runs_by_seed.append({run.seed: run for run in measured})
        common_seeds = set.intersection(*map(set, runs_by_seed))
        pairs = []
        for seed in sorted(common_seeds):
            pairs.append(tuple(by_seed[seed] for by_seed in runs_by_seed))
        return pairs

    @property
    def failed(self) -> list[Run]:
        """The runs that failed."""
        return [run for arm in self.runs_of_arms for run in arm if run.exit in FAILED]

    @property
    def paired(self) -> list[Run]:
        """The runs of all pairs."""
        return list(itertools.chain(*self.pairs))

    @property
    def runs(self) -> list[Run]:
        """The runs of all pairs and those that failed, each once: arms may share runs."""
        return list({run.keys: run for run in [*self.paired, *self.failed]}.values())

    def replicates(self, factor: float) -> list[float]:
        """Return what the check asks for, seed by seed, ``factor`` times."""
        numbers = []
        for pair in self.pairs:
            values = [run.read(self.check.metric).value for run in pair]
            numbers.append(self.check.replicate(values) * factor)
        return numbers

    def seeds_and_size(self) -> str:
        """Return how many seeds there are, and what each was measured on.

        For example ``3 seeds (each on 10,000)``.
        """
        sizes = [run.read(self.check.metric).n for run in self.paired]
        size = min(sizes, default=0)
        seeds = plural(len(self.pairs), "seed")
        return f"{seeds} (each on {number(size)})" if size > 1 else seeds


def pick(claim: Claim, check: Check, runs: Runs, scale: Scale, budget: int = 1) -> Sample:
    """Return the runs of a check at a scale; with twice the budget, if ``budget`` is 2."""
    arms = [runs.pick(claim.paper, arm, scale, budget=budget) for arm in check.selects]
    return Sample(check, tuple(arms))


def average(numbers: Sequence[float]) -> float | None:
    """Return the mean; None for no numbers."""
    return fmean(numbers) if numbers else None


def keys(runs: Iterable[Run]) -> tuple[str, ...]:
    """Return the keys of the records of these runs, each once."""
    return tuple(dict.fromkeys(key for run in runs for key in run.keys))


def unit_of(claim: Claim, sample: Sample) -> Unit:
    """Return the unit of the verdict, and the factor to it from the records' unit.

    A difference of arms keeps the records' unit; percentages become points. One arm has the
    claim's unit where both units are shares. Else a comparison keeps the records' unit, and a
    value has the claim's. A share and another unit clash for a value.
    """
    check = sample.check
    metrics = [run.read(check.metric) for run in sample.runs]
    units = sorted({metric.unit for metric in metrics if metric})
    if len(units) > 1:
        listed = ", ".join(units)
        return Unit("", clash=f"The records give {check.metric} in different units: {listed}.")
    unit = units[0] if units else claim.unit
    if check.compares_arms:
        return Unit("points" if unit == "percent" else unit)
    if unit in SHARES and claim.unit in SHARES:
        return Unit(claim.unit, SHARES[claim.unit] / SHARES[unit])
    if check.op != "≈":
        return Unit(unit)
    if unit in SHARES or claim.unit in SHARES:
        return Unit(
            "", clash=f"The records give {check.metric} in {unit}, the paper in {claim.unit}."
        )
    return Unit(claim.unit)


# --------------------------------------------------------------- why a sample decides nothing


def missing(
    claim: Claim, check: Check, runs_of_arms: Sequence[list[Run]], runs: Runs, scale: Scale
) -> str:
    """Return why there is nothing to judge by at a scale; empty where there is.

    An arm may have no records, or none that hold the metric. ``check`` is the one of all
    scales, for an arm may have records at another scale.
    """
    for select, arm in zip(check.selects, runs_of_arms, strict=True):
        if not arm:
            return _no_record(claim, check, select, runs, scale)
        if any(run.exit == "ok" and run.read(check.metric) is None for run in arm):
            name = _name(select.at(scale))
            return f"Records of {name} lack the metric {str(check.metric)!r}."
    return ""


def _no_record(claim: Claim, check: Check, select: Select, runs: Runs, scale: Scale) -> str:
    """Return that an arm has no record, and where it could have one."""
    reason = check.paper_scale_only
    at_scale = select.at(scale)
    if len(at_scale.names) > 1 and not reason:
        count, name = len(at_scale.names), _name(at_scale)
        return f"No seed has a record of all {count} arms of {name} yet."
    if reason:
        where = f"paper scale; small networks cannot tell: {reason}"
    elif runs.pick(claim.paper, select, "cpu", "paper"):
        where = f"{scale} scale, at which the other parts are judged"
    else:
        where = "cpu or paper scale"
    left_out = runs.left_out[claim.paper, select.experiment]
    if left_out:
        where += (
            f"; {left_out} of the experiment have another configuration, seed or revision "
            "than the scale's own"
        )
    return f"No record on real data at {where}."


def _name(select: Select) -> str:
    """Return arms for a message: ``depth (mnist/dynamic/*/bias)``."""
    return f"{select.experiment} ({select.label})"


def failures(runs: Sequence[Run]) -> str:
    """Return how runs failed, with their seeds; empty where none did."""
    ends = []
    for end in FAILED:
        failed = [run for run in runs if run.exit == end]
        if failed:
            ends.append(f"{seed_list(failed)} ended in {end}")
    return f"Failed replicates: {'; '.join(ends)}." if ends else ""


def unlearned(sample: Sample, *, decides: bool = True) -> str:
    """Return why networks of a sample are unfit to judge by; empty where all are fit.

    ``decides=False``, for a value that is only measured, asks only that no network guesses. The
    limits of :attr:`Select.at_most` stay.
    """
    reasons: dict[str, None] = {}
    selects = sample.check.selects
    for pair in sample.pairs:
        for index, (select, run) in enumerate(zip(selects, pair, strict=True)):
            rivals = selects[:index] + selects[index + 1 :]
            arm = select.apart_from(rivals[0]) if rivals else ""
            seed = f"seed {run.seed} of {arm}" if arm else f"seed {run.seed}"
            for record in run.records:
                for reason in select.unfit(record, decides=decides):
                    reasons[f"{seed}{run.label(record)} {reason}"] = None
    return f"Decides nothing: {'; '.join(reasons)}." if reasons else ""


def seed_list(runs: Sequence[Run]) -> str:
    """Return the seeds of runs as text: ``seeds 0, 3``.

    Where two arms have the same seeds, it is ``4 runs with seeds 0, 3``.
    """
    numbers = sorted({run.seed for run in runs})
    text = f"seed{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
    return f"{len(runs)} runs with {text}" if len(runs) > len(numbers) else text


# ------------------------------------------------------------------------ what a sample is of


def is_whole(data: DataFingerprint) -> bool:
    """Return whether a data set has all of the paper's examples, and no others.

    They may be the publisher's own examples, or all of them made smaller.
    """
    return data.complete or (data.name in SETS and data.sha256 in SETS[data.name].whole)


def is_partial(runs: Iterable[Run]) -> bool:
    """Return whether a data set of these runs is not the paper's whole one."""
    records = itertools.chain.from_iterable(run.records for run in runs)
    return not all(is_whole(data) for record in records for data in record.data)


def verdict_fields(runs: Sequence[Run]) -> dict:
    """Return the fields of a verdict that say which records and data it rests on.

    ``records`` has the keys of the records, each once. ``derived`` says how their data differ
    from the originals, and ``partial`` is :func:`is_partial`. ``baseline`` says that no record
    trains a capsule network.
    """
    records = [record for run in runs for record in run.records]
    differences = set()
    for record in records:
        for data in record.data:
            if data.deviations or not data.complete:
                texts = [text.strip().rstrip(".").replace(";", ",") for text in data.deviations]
                differences.add(f"{data.name}: {', '.join(texts) or 'incomplete'}")
    return {
        "records": keys(runs),
        "derived": tuple(sorted(differences)),
        "partial": is_partial(runs),
        "baseline": bool(records) and all(r.routing_path == "none" for r in records),
    }
