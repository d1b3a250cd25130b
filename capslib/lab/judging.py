"""Judging: from a claim, a chapter's query and the records to a verdict, which is never written down.

Three rules hold for every verdict. Smoke-scale records and records on a stand-in decide nothing. Arms are compared seed by seed
at one scale: the paper's own where it has enough runs. A run that failed (``nan``, ``oom`` or ``error``) leaves the claim
undecided: dropping it would select runs by their outcome.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from capslib.lab.ledger import Claim, grouped
from capslib.lab.records import Exit, Record
from capslib.lab.statistics import interval
from capslib.papers.experiment import Scale
from capslib.papers.query import CONVERGED, CONVERGED_BELOW, Above, Count, Order, Property, Query, Select, Value

SEEDS = 3
"""The fewest replicates that decide a claim about an average."""

FAILED: tuple[Exit, ...] = ("nan", "oom", "error")
"""Ends of a run that failed. An interrupted run is not over yet, so it says nothing."""

Status = Literal["reproduced", "better", "not reproduced", "contradicted", "inconclusive", "holds", "fails", "not run"]
STATUSES: tuple[Status, ...] = get_args(Status)

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
"""Direction of the ledger's metrics. A metric that is missing here (a count, a ratio) has no better side."""

QUERIES_OF_KIND = {"value": (Value,), "order": (Order, Above, Count), "property": (Property, Count)}


@dataclass(frozen=True)
class Verdict:
    """What the records say about a claim.

    ``ours`` and ``interval`` are in ``unit``: for a value the mean, for a comparison the lead of the better arm (of percentages
    in points), for a property the worst record. ``n`` counts replicates (seeds; for a property records), ``test_n`` what each was
    measured on (for instance test images). ``reason`` explains the status in one sentence. ``records`` holds the keys of the
    records used; ``partial`` says how their data differ from the complete original. ``parts`` holds the named decisions behind a
    count.
    """

    claim: Claim
    status: Status
    reason: str
    ours: float | None = None
    interval: tuple[float, float] | None = None
    unit: str = ""
    n: int = 0
    test_n: int = 0
    scale: Scale | None = None
    records: tuple[str, ...] = ()
    partial: str = ""
    parts: tuple[Verdict, ...] = ()
    name: str = ""


class Runs:
    """The records that may decide a claim, by paper and experiment: on real data, at cpu or paper scale, ended well or failed.

    Only the last revision of an experiment counts: earlier records mean something else. ``own`` leaves out further records;
    ``left_out`` counts them, so that a verdict can name their number.
    """

    def __init__(self, records: Iterable[Record] = (), own: Callable[[Record], bool] = lambda record: True):
        found: dict[tuple[str, str], dict[str, Record]] = {}
        self.left_out: Counter[tuple[str, str]] = Counter()
        for record in records:
            if record.real and record.trial.scale != "smoke" and record.exit in ("ok", *FAILED):
                place = record.trial.paper, record.trial.experiment
                if own(record):
                    found.setdefault(place, {})[record.key] = record
                else:
                    self.left_out[place] += 1
        self._found: dict[tuple[str, str], list[Record]] = {}
        for place, runs in found.items():
            last = max(r.trial.revision for r in runs.values())
            kept = [r for r in runs.values() if r.trial.revision == last]
            self._found[place] = sorted(kept, key=lambda r: (r.trial.seed, r.key))

    def pick(self, paper: str, select: Select, *scales: Scale) -> list[Record]:
        """The selected records by seed."""
        found = self._found.get((paper, select.experiment), ())
        return [r for r in found if r.trial.scale in scales and select.takes(r.trial.experiment, r.config)]


class _Undecided(Exception):
    """These records cannot decide the claim. Holds the status that it gets instead, and the reason."""

    def __init__(self, status: Status, reason: str):
        super().__init__(reason)
        self.status: Status = status


def judge(claim: Claim, query: Query | None, records: Iterable[Record] | Runs) -> Verdict:
    """Judge one claim by records, whose order does not matter.

    Raises :class:`ValueError` for a query that does not fit the kind of the claim: the chapter is wrong then.
    """
    if query is not None and not isinstance(query, QUERIES_OF_KIND[claim.kind]):
        raise ValueError(f"{claim.id} is of kind {claim.kind}; a query of type {type(query).__name__} does not answer that.")
    if claim.not_run:
        return Verdict(claim, "not run", claim.not_run)
    if query is None:
        return Verdict(claim, "not run", "No experiment of the chapter measures this yet.")
    runs = records if isinstance(records, Runs) else Runs(records)
    return _answer(claim, query, runs, _scale(claim, query, runs))


def _scale(claim: Claim, query: Query, runs: Runs) -> Scale:
    """Choose the one scale that judges the claim: the paper's own, unless the cpu scale has replicates that it lacks."""
    if _paper_only(query):
        return "paper"

    def supply(query: Query, scale: Scale) -> list[int]:  # replicates (pairs) of each part, counted up to SEEDS
        match query:
            case Count():
                return [n for part in query.parts.values() for n in supply(part, scale)]
            case Property():
                return [SEEDS]  # reads the records of both scales
            case Order():
                arms = [runs.pick(claim.paper, select, scale) for select in (query.better, query.worse)]
            case _:
                arms = [runs.pick(claim.paper, query.select, scale)]
        return [min(SEEDS, len(set.intersection(*({r.trial.seed for r in arm} for arm in arms))))]

    cpu, paper = ((min(n, default=0), sum(n)) for n in (supply(query, "cpu"), supply(query, "paper")))
    return "cpu" if cpu > paper else "paper"


def _paper_only(query: Query) -> bool:
    return isinstance(query, Value) or (isinstance(query, Above) and query.paper_scale_only)


def _answer(claim: Claim, query: Query, runs: Runs, scale: Scale, name: str = "") -> Verdict:
    match query:
        case Count():
            return _count(claim, query, runs, scale, name)
        case Property():
            return _property(claim, query, runs, name)
    selects = [query.better, query.worse] if isinstance(query, Order) else [query.select]
    arms = [[] if _paper_only(query) and scale == "cpu" else runs.pick(claim.paper, select, scale) for select in selects]
    seeds = set.intersection(*({r.trial.seed for r in arm} for arm in arms))
    failed = [r for arm in arms for r in arm if r.exit in FAILED]
    used = [r for arm in arms for r in arm if r.trial.seed in seeds or r.exit in FAILED]
    shown = Verdict(claim, "not run", "", name=name, scale=scale if used else None, **_sources(used))
    try:
        for select, arm in zip(selects, arms, strict=True):
            _check_arm(claim, select, query.metric, arm, runs, _paper_only(query))
            _check_one_configuration(select, arm)
        factor, unit = _unit(claim, query, used)
        well = [{r.trial.seed: r for r in arm if r.exit == "ok"} for arm in arms]
        pairs = [tuple(arm[seed] for arm in well) for seed in sorted(set.intersection(*map(set, well)))]
        numbers = [_replicate(query, pair) * factor for pair in pairs]
        tests = min((r.metrics[query.metric].n for pair in pairs for r in pair if query.metric in r.metrics), default=0)
        mean = math.fsum(numbers) / len(numbers) if numbers else None
        unit = "points" if isinstance(query, Order) and unit == "percent" else unit
        shown = replace(shown, n=len(numbers), unit=unit, ours=mean, test_n=tests)
        _check_none_failed(failed)
        _check_replicates(query, used, seeds, len(numbers))
    except _Undecided as why:
        if why.status == "not run":
            shown = replace(shown, ours=None, scale=None)
        return replace(shown, status=why.status, reason=str(why))
    found = interval(numbers)
    assert found is not None
    many = f"{len(numbers)} seeds" + (f" (each on {tests})" if tests > 1 else "")
    status, reason = _decide_value(claim, query, found, many) if isinstance(query, Value) else _decide(query, found, many, factor)
    return replace(shown, status=status, interval=found, reason=reason)


def _check_arm(claim: Claim, select: Select, metric: str, arm: list[Record], runs: Runs, paper_only: bool = False) -> None:
    """Raise unless there are records, and every one that ended well holds the metric."""
    if not arm:
        reduced = len(runs.pick(claim.paper, select, "cpu")) if paper_only else 0
        others = runs.left_out[claim.paper, select.experiment]
        also = f"; the {reduced} at cpu scale are of a reduced setting" if reduced else ""
        also += f"; {others} of the experiment have another configuration or revision than the scale's own" if others else ""
        scale = "paper" if paper_only else "cpu or paper"
        raise _Undecided("not run", f"No record on real data at {scale} scale{also}.")
    if any(r.exit == "ok" and metric not in r.metrics and metric != "parameters" for r in arm):
        raise _Undecided("not run", f"Records of {_named(select)} lack the metric {metric!r}.")


def _check_one_configuration(select: Select, arm: list[Record]) -> None:
    """Raise if the arm mixes configurations: their runs are not replicates of one another."""
    first = arm[0].config
    if mixed := sorted({k for r in arm for k in r.config if r.config[k] != first.get(k)}):
        raise _Undecided(
            "inconclusive", f"Records of {_named(select)} differ in {', '.join(mixed)}, which the query does not fix."
        )


def _check_none_failed(failed: list[Record]) -> None:
    """Raise if a replicate failed, naming the seeds and how they ended."""
    if failed:
        ends = {end: [r for r in failed if r.exit == end] for end in FAILED}
        named = "; ".join(f"{_list(found)} ended in {end}" for end, found in ends.items() if found)
        raise _Undecided("inconclusive", f"Failed replicates: {named}.")


def _check_replicates(query: Value | Above | Order, used: list[Record], seeds: set[int], n: int) -> None:
    """Raise unless there are enough replicates, and, for a claim about the end of training, all of them had converged."""
    many = "pairs of runs with one seed" if isinstance(query, Order) else "seeds"
    if not seeds:
        raise _Undecided("not run", "The two arms have no seed in common.")
    if n < SEEDS:
        status: Status = "not run" if isinstance(query, Value) else "inconclusive"
        raise _Undecided(status, f"A decision needs {SEEDS} {many}; there {'is' if n == 1 else 'are'} {n}.")
    if query.final:
        changes = {r.key: next((r.metrics[name] for name in CONVERGED if name in r.metrics), None) for r in used}
        if silent := [r for r in used if changes[r.key] is None]:
            raise _Undecided("inconclusive", f"Not known to have converged: {_list(silent)} recorded no convergence check.")
        if moving := [r for r in used if abs(changes[r.key].value) > CONVERGED_BELOW]:
            most = max((changes[r.key] for r in moving), key=lambda metric: abs(metric.value))
            raise _Undecided(
                "inconclusive",
                f"Not converged: over the last quarter {_list(moving)} still moved by up to {abs(most.value):.1%} "
                f"({most.unit}; the limit is {CONVERGED_BELOW:.0%}).",
            )


def _named(select: Select) -> str:
    where = ", ".join(f"{k}={v}" for k, v in select.where.items())
    return f"experiment {select.experiment}" + (f" with {where}" if where else "")


def _list(records: list[Record]) -> str:
    """``seeds 0, 3``, or ``4 runs with seeds 0, 3`` where seeds repeat over two arms."""
    seeds = sorted({r.trial.seed for r in records})
    runs = f"{len(records)} runs with " if len(records) > len(seeds) else ""
    return f"{runs}seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _unit(claim: Claim, query: Value | Above | Order, used: list[Record]) -> tuple[float, str]:
    """The factor from the records' unit to the claim's, and the resulting unit. Differences stay in the records' unit."""
    units = sorted({r.metrics[query.metric].unit for r in used if query.metric in r.metrics})
    if len(units) > 1:
        raise _Undecided("inconclusive", f"The records give {query.metric} in different units: {', '.join(units)}.")
    unit = units[0] if units else claim.unit
    shares = {"fraction": 1.0, "percent": 100.0}
    if (
        isinstance(query, Order)
        or not claim.unit
        or unit == claim.unit
        or (isinstance(query, Above) and claim.unit not in shares)
    ):
        return 1.0, unit
    if unit in shares and claim.unit in shares:
        return shares[claim.unit] / shares[unit], claim.unit
    if unit in shares or claim.unit in shares:
        raise _Undecided("inconclusive", f"The records give {query.metric} in {unit}, the paper in {claim.unit}.")
    return 1.0, claim.unit


def _measured(record: Record, metric: str) -> float:
    """A metric of a record. ``parameters`` is the record's own field."""
    return record.metrics[metric].value if metric in record.metrics else float(record.parameters)


def _replicate(query: Value | Above | Order, pair: tuple[Record, ...]) -> float:
    """One replicate: the metric itself, or the lead of the better arm over the worse."""
    if not isinstance(query, Order):
        return _measured(pair[0], query.metric)
    ahead = _measured(pair[0], query.metric) - _measured(pair[1], query.metric)
    return ahead if query.higher_is_better else -ahead


def _decide_value(claim: Claim, query: Value, found: tuple[float, float], many: str) -> tuple[Status, str]:
    low, high = found
    value, tolerance = claim.value or 0.0, claim.tolerance or 0.0
    slack = tolerance + 1e-9 * max(1.0, abs(value))  # 0.3 and 99.7 are not exact in binary
    ours = f"our 95 % interval {span(found)} of {many}"
    if low - slack <= value <= high + slack:
        return "reproduced", f"The paper's {number(value)} lies within {ours}, widened by {number(tolerance)}."
    above = low > value
    beaten = query.better_counts and HIGHER_IS_BETTER.get(claim.metric) is above
    status: Status = "better" if beaten else "not reproduced"
    where = f"{'below' if above else 'above'} {ours}"
    return status, f"The paper's {number(value)} lies {where}, by more than the tolerance of {number(tolerance)}."


def _decide(query: Above | Order, found: tuple[float, float], many: str, factor: float) -> tuple[Status, str]:
    low, high = found
    match query:
        case Above():
            bound, what, asked = query.bound * factor, "mean", "below" if query.below else "above"
            inside, outside = (high < bound, low > bound) if query.below else (low > bound, high < bound)
        case Order(equal=True):
            bound, what, asked = query.margin, "difference", "within ±"
            inside, outside = -bound <= low and high <= bound, low > bound or high < -bound
        case _:
            bound, what, asked = query.margin, "lead", "above"
            inside, outside = low > bound, high < bound
    status: Status = "reproduced" if inside else "contradicted" if outside else "inconclusive"
    lies = {"reproduced": "lies", "contradicted": "does not lie", "inconclusive": "does not lie wholly"}[status]
    asked = f"{asked} {number(bound)}".replace("± ", "±")
    return status, f"The 95 % interval {span(found)} of the {what} over {many} {lies} {asked}."


def _property(claim: Claim, query: Property, runs: Runs, name: str) -> Verdict:
    """Judge a theorem by its worst record: it must hold at every scale."""
    arm = runs.pick(claim.paper, query.select, "cpu", "paper")
    shown = Verdict(claim, "not run", "", name=name)
    try:
        _check_arm(claim, query.select, query.metric, arm, runs)
        scale: Scale = "cpu" if any(r.trial.scale == "cpu" for r in arm) else "paper"
        shown = replace(shown, n=len(arm), scale=scale, **_sources(arm))
        _check_none_failed([r for r in arm if r.exit in FAILED])
    except _Undecided as why:
        return replace(shown, status=why.status, reason=str(why))
    worst = (min if query.above else max)(arm, key=lambda r: _measured(r, query.metric))
    ours, held = _measured(worst, query.metric), worst.metrics.get(query.metric)
    holds = ours >= query.bound if query.above else ours <= query.bound
    asked = f"{'' if holds else 'not '}at or {'above' if query.above else 'below'} {number(query.bound)}"
    reason = f"The worst of {len(arm)} record{'s' if len(arm) > 1 else ''} has {number(ours)}, {asked}; tested in {query.test}."
    shown = replace(shown, unit=held.unit if held else claim.unit, test_n=held.n if held else 0)
    return replace(shown, status="holds" if holds else "fails", ours=ours, reason=reason)


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
    named = {status: [p.name for p in parts if p.status == status] for status in STATUSES}
    hold = kept(parts)
    against = named["contradicted"] + named["fails"]
    said = f"{hold} of {total} parts hold, and the claim needs {need}"
    status: Status
    if hold >= need:
        status, reason = "holds" if claim.kind == "property" else "reproduced", f"{said}."
    elif total - len(against) < need:
        status = "fails" if claim.kind == "property" else "contradicted"
        reason = f"{said}; against it: {_few(against)}."
    elif named["not run"]:
        status, reason = "not run", f"{said}; not run: {_few(named['not run'])}."
    else:
        status, reason = "inconclusive", f"{said}; undecided: {_few(named['inconclusive'])}."
    ran = [p for p in parts if p.scale]
    judged: Scale = "cpu" if any(p.scale == "cpu" for p in ran) else "paper"
    return Verdict(
        claim,
        status,
        reason,
        n=min((p.n for p in ran), default=0),
        test_n=min((p.test_n for p in ran), default=0),
        scale=None if status == "not run" else judged,
        records=tuple(dict.fromkeys(key for p in parts for key in p.records)),
        partial="; ".join(dict.fromkeys(text for p in parts for text in p.partial.split("; ") if text)),
        parts=parts,
        name=name,
    )


def kept(parts: Iterable[Verdict]) -> int:
    """How many of these claims hold."""
    return sum(part.status in ("reproduced", "holds") for part in parts)


def _few(names: list[str]) -> str:
    return "; ".join(names[:4]) + (f"; and {len(names) - 4} more" if len(names) > 4 else "")


def _sources(records: list[Record]) -> dict:
    """The keys of the records used, and how their data differ from the complete originals."""
    told = set()
    for data in (d for r in records for d in r.data if d.deviations or not d.complete):
        what = [*([] if data.complete else ["incomplete"]), *(d.strip().rstrip(".").replace(";", ",") for d in data.deviations)]
        told.add(f"{data.name}: {', '.join(what)}")
    return {"records": tuple(r.key for r in records), "partial": "; ".join(sorted(told))}


def number(value: float) -> str:
    """A number for readers: two decimals from ten on, four significant digits below, whole numbers in groups of three digits."""
    if value == int(value) and abs(value) < 1e9:
        return grouped(f"{int(value)}")
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4g}"


def span(found: tuple[float, float]) -> str:
    return f"[{number(found[0])}, {number(found[1])}]"
