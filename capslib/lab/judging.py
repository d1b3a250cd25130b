"""Judging: from a claim, a chapter's query and the records to a verdict, which is never written down.

A verdict's word carries its weight: ``GROUPS`` has the words of runs at the paper's own size, of a reduced setting, of theorems and
counts, and of claims that nothing was run for. Smoke-scale records and records on a stand-in decide nothing. Arms are compared seed
by seed at one scale: the paper's own where it has enough runs. A run that failed, or a network that did not learn, leaves the claim
open: dropping it would select runs by their outcome.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from capslib.config import hash_of
from capslib.lab.ledger import HIGHER_IS_BETTER, Claim, number, plural, span
from capslib.lab.records import Record
from capslib.lab.replicates import FAILED, Run, Runs
from capslib.lab.statistics import interval
from capslib.papers import query as q
from capslib.papers.experiment import Scale
from capslib.papers.query import Above, Count, Leaf, Order, Property, Query, Select, Value

SEEDS = 3
"""The fewest replicates that decide a claim about an average."""
WIDEST = 6
"""A value is not decided by an interval wider than this many tolerances: one that wide would reproduce almost anything."""

Status = str
GROUPS: Mapping[str, tuple[Status, ...]] = {
    "at the papers’ own size": ("reproduced", "better", "not reproduced", "contradicted", "inconclusive"),
    "in a reduced setting": ("same order", "opposite order", "undecided", "measured smaller"),
    "theorems and counts": ("holds", "fails"),
    "not run": ("waiting", "quoted", "not to be had"),
}
"""The words of verdicts. Those of one group are never added to those of another."""
FULL, REDUCED, EXACT, NOT_RUN = GROUPS.values()
STATUSES: tuple[Status, ...] = FULL + REDUCED + EXACT + NOT_RUN

WORDS: Mapping[Scale, Mapping[q.Decision, Status]] = {
    "paper": {"for": "reproduced", "against": "contradicted", "open": "inconclusive"},
    "cpu": {"for": "same order", "against": "opposite order", "open": "undecided"},
}
KEPT: tuple[Status, ...] = ("reproduced", "same order", "holds")
AGAINST: tuple[Status, ...] = ("contradicted", "opposite order", "fails")
OPEN: tuple[Status, ...] = ("inconclusive", "undecided")

QUERIES_OF_KIND = {"value": (Value,), "order": (Order, Above, Count), "property": (Property, Count)}
SHARES = {"fraction": 1.0, "percent": 100.0}


@dataclass(frozen=True)
class Verdict:
    """What the records say about a claim.

    ``ours`` and ``interval`` are in ``unit``: for a value the mean, for a comparison what ``measures`` says (of percentages in
    points; a lead is that of the side that the claim puts first), for a property the worst record. ``listed`` has the values seed
    by seed in the place of a mean, where a network did not learn. ``n`` counts replicates (seeds; for a property runs). ``reason``
    explains the status in one sentence. ``records`` holds the keys of the records used, ``shares`` the other claims that use some
    of them; ``derived`` says how their data differ from the originals. ``unconfirmed`` tells an open verdict that lacks a run with
    twice the budget, and nothing else. ``parts`` holds the named decisions behind a count. Raises :class:`ValueError` for a word
    that has not the weight of its scale.
    """

    claim: Claim
    status: Status
    reason: str
    ours: float | None = None
    interval: tuple[float, float] | None = None
    measures: str = ""
    listed: tuple[float, ...] = ()
    unit: str = ""
    n: int = 0
    scale: Scale | None = None
    records: tuple[str, ...] = ()
    shares: tuple[str, ...] = ()
    derived: str = ""
    unconfirmed: bool = False
    parts: tuple[Verdict, ...] = ()
    name: str = ""

    def __post_init__(self) -> None:
        if self.status in FULL + REDUCED and self.status not in {"paper": FULL, "cpu": REDUCED}.get(self.scale, ()):
            raise ValueError(f"{self.claim.id}: {self.status!r} cannot be said of scale {self.scale}.")


class _Waits(Exception):
    """There are no records to judge by."""


class _Open(Exception):
    """These records cannot decide the claim."""


class _Unfit(_Open):
    """A network guesses or died: its number is shown, and goes into no mean."""


def judge(claim: Claim, query: Query | None, records: Iterable[Record] | Runs) -> Verdict:
    """Judge one claim by records, whose order does not matter.

    Raises :class:`ValueError` for a query that does not fit the kind of the claim: the chapter is wrong then.
    """
    if query is not None and not isinstance(query, QUERIES_OF_KIND[claim.kind]):
        raise ValueError(f"{claim.id} is of kind {claim.kind}; a query of type {type(query).__name__} does not answer that.")
    if claim.not_run:
        return Verdict(claim, "quoted" if claim.quoted else "not to be had", claim.not_run)
    if query is None:
        return Verdict(claim, "waiting", "No experiment of the chapter measures this yet.")
    runs = records if isinstance(records, Runs) else Runs(records)
    return _answer(claim, query, runs, _scale(claim, query, runs))


def _scale(claim: Claim, query: Query, runs: Runs) -> Scale:
    """Choose the one scale that judges the claim: the paper's own, unless the cpu scale has replicates that it lacks."""

    def supply(scale: Scale) -> tuple[int, int]:  # replicates (pairs) of each part, counted up to SEEDS: the fewest, and all
        found = []
        for leaf in q.leaves(query):
            if not isinstance(leaf, Property) and not leaf.paper_scale_only:  # which do not ask for one of the two
                picked = (runs.pick(claim.paper, select, scale) for select in leaf.arms)
                found.append(min(SEEDS, len(set.intersection(*({r.seed for r in arm} for arm in picked)))))
        return min(found, default=0), sum(found)

    return "cpu" if supply("cpu") > supply("paper") else "paper"


def _answer(claim: Claim, query: Query, runs: Runs, scale: Scale, name: str = "") -> Verdict:
    if isinstance(query, Count):
        return _count(claim, query, runs, scale, name)
    if isinstance(query, Property):
        return _property(claim, query, runs, name)
    return _mean(claim, query, runs, "paper" if query.paper_scale_only else scale, name)


# ------------------------------------------------------------------------------------------------ values and comparisons


def _mean(claim: Claim, query: Value | Order | Above, runs: Runs, scale: Scale, name: str) -> Verdict:
    """Judge by the mean over seeds, or by that of a difference, and its interval."""
    measures = isinstance(query, Value) and scale == "cpu"  # beside the paper's number, and nothing is decided
    picked = [runs.pick(claim.paper, select, scale) for select in query.arms]
    pairs, failed = _pairs(picked), [r for arm in picked for r in arm if r.exit in FAILED]
    used = list({r.keys: r for r in (*(r for pair in pairs for r in pair), *failed)}.values())
    shown = Verdict(claim, "measured smaller" if measures else WORDS[scale]["open"], "", name=name, scale=scale, **_sources(used))
    try:
        for select, arm in zip(query.arms, picked, strict=True):
            _check_arm(claim, query, select, arm, runs, scale)
        if not used:
            raise _Waits("The two arms have no seed in common.")
        factor, unit = _unit(claim, query, used)
        if not isinstance(query, Value):
            shown = replace(shown, measures=f"{query.mean}, {query.asked(factor)} for the claim")
        found = [[metric for r in pair if (metric := r.read(query.metric))] for pair in pairs]
        numbers = [query.replicate([metric.value for metric in pair]) * factor for pair in found]
        n, tests = len(numbers), min((metric.n for pair in found for metric in pair), default=0)
        shown = replace(shown, n=n, unit=unit, ours=math.fsum(numbers) / n if n else None)
        _check_ended(failed)
        _check_fit(query, pairs)
        if n < SEEDS and not measures:
            what = "pairs of runs with one seed" if isinstance(query, Order) else "seeds"
            few = f"A decision needs {SEEDS} {what}; there {'is' if n == 1 else 'are'} {n}."
            raise _Waits(few) if isinstance(query, Value) else _Open(few)
        shown = replace(shown, interval=interval(numbers, query.bounds(unit)))
        many = plural(n, "seed") + (f" (each on {number(tests)})" if tests > 1 else "")
        if measures:
            return replace(shown, reason=f"The mean of {many}, in a setting smaller than the paper's: it decides nothing.")
        status, reason = _decide(claim, query, shown.interval, factor, scale, many)
        if query.rests(scale) and status not in OPEN:
            status, said, longer = _at_rest(claim, query, runs, factor, scale, status)
            reason, shown = f"{reason}{said}", replace(shown, records=(*shown.records, *longer), unconfirmed=not longer)
        return replace(shown, status=status, reason=f"{reason}.")
    except _Waits as why:
        return replace(shown, status="waiting", reason=str(why), ours=None, scale=None)
    except _Unfit as why:
        return replace(shown, reason=str(why), ours=None, listed=() if isinstance(query, Order) else tuple(numbers))
    except _Open as why:
        return replace(shown, reason=str(why))


def _pairs(picked: list[list[Run]]) -> list[tuple[Run, ...]]:
    """The runs of each seed with which all arms ended well."""
    well = [{r.seed: r for r in arm if r.exit == "ok"} for arm in picked]
    return [tuple(arm[seed] for arm in well) for seed in sorted(set.intersection(*map(set, well)))]


def _check_arm(claim: Claim, query: Leaf, select: Select, arm: list[Run], runs: Runs, scale: Scale) -> None:
    """Raise unless there are records, of one configuration, and every one that ended well holds the metric."""
    named = f"{select.experiment} ({', '.join(f'{k}={v}' for k, v in select.where.items())})".removesuffix(" ()")
    if not arm and select.over and not query.paper_scale_only:
        raise _Waits(f"No seed has a record of all {select.cells} of {named} yet, each with another {select.over}.")
    if not arm:
        why, others = query.paper_scale_only, runs.left_out[claim.paper, select.experiment]
        also = f"; a reduced setting cannot tell: {why}" if why else ""
        also += f"; {others} of the experiment have another configuration or revision than the scale's own" if others else ""
        elsewhere = runs.pick(claim.paper, select, "cpu", "paper") and f"{scale} scale, at which the other parts are judged"
        raise _Waits(f"No record on real data at {'paper scale' if why else elsewhere or 'cpu or paper scale'}{also}.")
    if any(r.exit == "ok" and r.read(query.metric) is None for r in arm):
        raise _Waits(f"Records of {named} lack the metric {str(query.metric)!r}.")
    configs = [record.config for r in arm for record in r.records]
    mixed = sorted({k for config in configs for k, value in config.items() if value != configs[0].get(k)} - {select.over})
    if mixed and not isinstance(query, Property):  # a property holds in all of them; the others need replicates
        raise _Open(f"Records of {named} differ in {', '.join(mixed)}, which the query does not fix.")


def _check_ended(runs: list[Run]) -> None:
    """Raise if a replicate failed, naming the seeds and how they ended."""
    ends = {end: [r for r in runs if r.exit == end] for end in FAILED}
    if named := [f"{_list(found)} ended in {end}" for end, found in ends.items() if found]:
        raise _Open(f"Failed replicates: {'; '.join(named)}.")


def _check_fit(query: Value | Order | Above, pairs: list[tuple[Run, ...]]) -> None:
    """Raise if a network guesses, died or breaks a limit of its selection, naming each."""
    fits = ((arm, r) for pair in pairs for arm, r in zip(query.arms, pair, strict=True))
    if told := [f"seed {run.seed}{run.told(r)} {why}" for arm, run in fits for r in run.records for why in arm.unfit(r)]:
        raise _Unfit(f"Decides nothing: {'; '.join(dict.fromkeys(told))}.")


def _decide(
    claim: Claim, query: Value | Order | Above, found: tuple[float, float], factor: float, scale: Scale, many: str = ""
) -> tuple[Status, str]:
    """What an interval says, and why, in a sentence without its full stop."""
    if isinstance(query, Value):
        return _of_value(claim, query, found, many)
    decision = query.decide(*found, factor)
    lies = {"for": "lies", "against": "does not lie", "open": "does not lie wholly"}[decision]
    return WORDS[scale][decision], f"The 95 % interval {span(found)} of the {query.mean} over {many} {lies} {query.asked(factor)}"


def _at_rest(
    claim: Claim, query: Value | Order | Above, runs: Runs, factor: float, scale: Scale, status: Status
) -> tuple[Status, str, list[str]]:
    """What is left of a decision after runs with twice the budget, in words, and their keys; one seed of each arm is enough.

    A falling learning rate flattens any curve, so a flat curve proves nothing.
    """
    picked = [runs.pick(claim.paper, select, scale, budget=2) for select in query.arms]
    every, undone = [r for arm in picked for r in arm], WORDS[scale]["open"]
    pairs = [pair for pair in _pairs(picked) if all(r.read(query.metric) for r in pair)]
    try:
        _check_ended(every)
        _check_fit(query, pairs)
    except _Open as why:
        text = str(why)
        said = f", but with twice the budget: {text[0].lower()}{text[1:].removesuffix('.')}"
        return undone, said, list(dict.fromkeys(key for r in every for key in r.keys))
    if not pairs:
        return undone, ", but there is no run with twice the budget yet", []
    again = math.fsum(query.replicate([r.read(query.metric).value for r in pair]) for pair in pairs) / len(pairs) * factor
    same, used = _decide(claim, query, (again, again), factor, scale)[0] == status, [r for pair in pairs for r in pair]
    said = f"; with twice the budget ({_list(used)}) it is {number(again)}, and the decision {'the same' if same else 'another'}"
    return status if same else undone, said, list(dict.fromkeys(key for r in used for key in r.keys))


def _list(runs: list[Run]) -> str:
    """``seeds 0, 3``, or ``4 runs with seeds 0, 3`` where seeds repeat over two arms."""
    seeds = sorted({r.seed for r in runs})
    many = f"{len(runs)} runs with " if len(runs) > len(seeds) else ""
    return f"{many}seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _unit(claim: Claim, query: Value | Above | Order, used: list[Run]) -> tuple[float, str]:
    """The factor from the records' unit to the claim's, and the resulting unit. Differences stay in the records' unit."""
    units = sorted({metric.unit for r in used if (metric := r.read(query.metric))})
    if len(units) > 1:
        raise _Open(f"The records give {query.metric} in different units: {', '.join(units)}.")
    unit, wanted = units[0] if units else claim.unit, claim.unit
    if isinstance(query, Order):
        return 1.0, q.DIFFERENCES["percent"] if unit == "percent" else unit
    if unit in SHARES and wanted in SHARES:
        return SHARES[wanted] / SHARES[unit], wanted
    if isinstance(query, Value) and (unit in SHARES or wanted in SHARES):
        raise _Open(f"The records give {query.metric} in {unit}, the paper in {wanted}.")
    return 1.0, wanted if isinstance(query, Value) else unit


def _of_value(claim: Claim, query: Value, found: tuple[float, float], many: str) -> tuple[Status, str]:
    """:func:`_decide` for a value."""
    low, high = found
    value, tolerance = claim.value or 0.0, claim.tolerance or 0.0
    slack = tolerance + 1e-9 * max(1.0, abs(value))  # 0.3 and 99.7 are not exact in binary
    ours = f"our 95 % interval {span(found)} of {many}"
    wide = high - low > WIDEST * slack and f"it is wider than {WIDEST} tolerances of {number(tolerance)}"
    if why := query.unlike or wide:
        return "inconclusive", f"O{ours[1:]} decides nothing: {why}"
    if low - slack <= value <= high + slack:
        return "reproduced", f"The paper's {number(value)} lies within {ours}, widened by {number(tolerance)}"
    above = low > value
    beaten = query.better_counts and HIGHER_IS_BETTER.get(claim.metric) is above
    where = f"{'below' if above else 'above'} {ours}"
    reason = f"The paper's {number(value)} lies {where}, by more than the tolerance of {number(tolerance)}"
    return "better" if beaten else "not reproduced", reason


# ------------------------------------------------------------------------------------------------- properties and counts


def _property(claim: Claim, query: Property, runs: Runs, name: str) -> Verdict:
    """Judge a theorem by its worst record: it must hold at every scale. What both scales drew alike counts once."""
    arm = runs.pick(claim.paper, query.select, "cpu", "paper")
    scale: Scale = "cpu" if any(r.records[0].trial.scale == "cpu" for r in arm) else "paper"
    n = len({(hash_of(r.config()), r.seed) for r in arm})
    shown = Verdict(claim, WORDS[scale]["open"], "", name=name, scale=scale, n=n, **_sources(arm))
    try:
        _check_arm(claim, query, query.select, arm, runs, scale)
        _check_ended(arm)
    except _Waits as why:
        return replace(shown, status="waiting", reason=str(why), scale=None)
    except _Open as why:
        return replace(shown, reason=str(why))
    worst = (min if query.above else max)((r.read(query.metric) for r in arm), key=lambda metric: metric.value)
    holds = worst.value >= query.bound if query.above else worst.value <= query.bound
    asked = f"{'' if holds else 'not '}at or {'above' if query.above else 'below'} {number(query.bound)}"
    reason = f"The worst of {plural(n, 'run')} has {number(worst.value)}, {asked}; tested in {query.test}."
    found = dict(ours=worst.value, unit=worst.unit)
    if worst.value == 0 and query.bound == 0 and claim.value is not None:  # a count that is off by nothing is the paper's
        found |= dict(ours=claim.value, unit=claim.unit)
    return replace(shown, status="holds" if holds else "fails", reason=reason, **found)


def _count(claim: Claim, query: Count, runs: Runs, scale: Scale, name: str) -> Verdict:
    """Judge a claim over many cells by the verdicts on its parts, all at one scale."""
    total, need = len(query.parts), len(query.parts) if query.at_least is None else query.at_least
    if not 1 <= need <= total:
        raise ValueError(f"{claim.id}: a query cannot ask for at least {need} of {total} parts.")
    allowed = (Property, Count) if claim.kind == "property" else (Order, Above, Property, Count)
    if wrong := [label for label, part in query.parts.items() if not isinstance(part, allowed)]:
        raise ValueError(
            f"{claim.id} is of kind {claim.kind}; its part {wrong[0]!r} cannot be a {type(query.parts[wrong[0]]).__name__}."
        )
    parts = tuple(_answer(claim, part, runs, scale, label) for label, part in query.parts.items())
    ran = [p for p in parts if p.scale]
    judged: Scale = "cpu" if any(p.scale == "cpu" for p in ran) else "paper"
    words = {**WORDS[judged], **({"for": "holds", "against": "fails"} if claim.kind == "property" else {})}
    against, waiting, undecided = ([p.name for p in parts if p.status in of] for of in (AGAINST, NOT_RUN, OPEN))
    unconfirmed = {p.name for p in parts if p.unconfirmed}
    said = f"{tally(parts)}; the claim needs {need}"
    said += "; for an unconfirmed part there is no run with twice the budget yet" * bool(unconfirmed)
    if kept(parts) >= need:
        status, reason = words["for"], f"{said}."
    elif total - len(against) < need:
        status, reason = words["against"], f"{said}; against it: {_few(against)}."
    elif waiting:
        status, reason = "waiting", f"{said}; not run: {_few(waiting)}."
    else:
        status, reason = words["open"], f"{said}; undecided: {_few(undecided)}."
    records = tuple(dict.fromkeys(key for p in parts for key in p.records))
    derived = "; ".join(dict.fromkeys(text for p in parts for text in p.derived.split("; ") if text))
    told = dict(n=min((p.n for p in ran), default=0), records=records, derived=derived, parts=parts, name=name)
    told |= dict(scale=None if status == "waiting" else judged, unconfirmed=status in OPEN and unconfirmed.issuperset(undecided))
    return Verdict(claim, status, reason, **told)


def tally(parts: Sequence[Verdict]) -> str:
    """How many parts of a count hold, and how many do not and why: ``5 of 8 parts hold, 1 against, 1 open, 1 unconfirmed``."""
    words = dict.fromkeys(AGAINST, "against") | dict.fromkeys(NOT_RUN, "waiting")
    of = Counter("unconfirmed" if p.unconfirmed else words.get(p.status, "open") for p in parts if p.status not in KEPT)
    others = [f"{of[word]} {word}" for word in ("against", "open", "unconfirmed", "waiting") if of[word]]
    return ", ".join([f"{kept(parts)} of {len(parts)} parts hold", *others])


def kept(parts: Sequence[Verdict]) -> int:
    """How many of these claims hold."""
    return sum(part.status in KEPT for part in parts)


def _few(names: list[str]) -> str:
    return "; ".join(names[:4]) + (f"; and {len(names) - 4} more" if len(names) > 4 else "")


def _sources(runs: list[Run]) -> dict:
    """The keys of the records used, and how their data differ from the originals."""
    told = set()
    records = [r for run in runs for r in run.records]
    for data in (d for r in records for d in r.data if d.deviations or not d.complete):
        told.add(f"{data.name}: " + (", ".join(d.strip().rstrip(".").replace(";", ",") for d in data.deviations) or "incomplete"))
    return {"records": tuple(r.key for r in records), "derived": "; ".join(sorted(told))}
