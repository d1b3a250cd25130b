"""Claims and verdicts: what the papers say, and what the records say to it.

The ledger (``capslib/ledger/STEM.csv``) holds one row a claim. A chapter's ``QUERIES`` say which records can decide it. A verdict
is computed from those two and the records; none is ever written down.

Three rules hold for every verdict. Smoke-scale records and records on a stand-in decide nothing. Arms are compared at one
scale, the paper's own where it has enough runs, seed by seed. A run that ended in a NaN is a replicate that failed, so it leaves
the claim undecided: to drop it would be to choose runs by their outcome.
"""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from capslib.ledger import Claim, grouped, ledger
from capslib.papers import PAPERS, experiments, module, queries
from capslib.queries import CONVERGED, CONVERGED_BELOW, Above, Count, Order, Property, Query, Select, Value
from capslib.statistics import interval
from capslib.store import Store
from capslib.trials import Record, Scale

if TYPE_CHECKING:
    import pandas as pd
    from pandas.io.formats.style import Styler

SEEDS = 3
"""The fewest replicates that decide a claim about an average."""

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
"""Direction of the ledger's metrics; of the others (counts, ratios) neither side is better."""

QUERIES_OF_KIND = {"value": (Value,), "order": (Order, Above, Count), "property": (Property, Count)}


@dataclass(frozen=True)
class Verdict:
    """What the records say to a claim.

    ``ours`` and ``interval`` are in ``unit``: the mean of a value; for a comparison how far the better arm is ahead (of percentages
    in points); for a property the worst record. ``n`` counts replicates (seeds; for a property records), ``test_n`` what each was
    measured on (test images, say). ``reason`` says in a sentence why the status is what it is. ``records`` are the keys of the
    records used, ``partial`` says how their data differ from the complete original. ``parts`` are the named decisions behind a
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
    """The records that may decide a claim, by paper and experiment: on real data, at cpu or paper scale, ended well or in a NaN.

    Where the revision of an experiment was raised, only records of the last one count: the earlier ones mean something else.
    ``own`` keeps records out for another reason; how many is counted, so that a verdict can say so.
    """

    def __init__(self, records: Iterable[Record] = (), own: Callable[[Record], bool] = lambda record: True):
        found: dict[tuple[str, str], dict[str, Record]] = {}
        self.left_out: Counter[tuple[str, str]] = Counter()
        for record in records:
            if record.real and record.trial.scale != "smoke" and record.exit in ("ok", "nan"):
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
        return [r for r in found if r.trial.scale in scales and select.takes(r.trial)]


class _Undecided(Exception):
    """These records cannot decide the claim: the status it gets instead, and why."""

    def __init__(self, status: Status, reason: str):
        super().__init__(reason)
        self.status: Status = status


def judge(claim: Claim, query: Query | None, records: Iterable[Record] | Runs) -> Verdict:
    """Answer one claim from records. The order of the records does not matter.

    Raises :class:`ValueError` for a query that does not fit the kind of the claim: that is a mistake of the chapter.
    """
    if query is not None and not isinstance(query, QUERIES_OF_KIND[claim.kind]):
        raise ValueError(f"{claim.id} is of kind {claim.kind}; a query of type {type(query).__name__} does not answer that.")
    if claim.not_run:
        return Verdict(claim, "not run", claim.not_run)
    if query is None:
        return Verdict(claim, "not run", "No experiment of the chapter asks for this yet.")
    runs = records if isinstance(records, Runs) else Runs(records)
    return _answer(claim, query, runs, _scale(claim, query, runs))


def _scale(claim: Claim, query: Query, runs: Runs) -> Scale:
    """The one scale at which the claim is judged: the paper's own, unless it lacks runs that the cpu scale has."""
    if _paper_only(query):
        return "paper"

    def supply(query: Query, scale: Scale) -> list[int]:  # replicates (pairs) of each part, as far as they are needed
        match query:
            case Count():
                return [n for part in query.parts.values() for n in supply(part, scale)]
            case Property():
                return [SEEDS]  # asks all records, whatever their scale
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
    used = [r for arm in arms for r in arm if r.trial.seed in seeds]
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
        differs = isinstance(query, Order) or (isinstance(query, Above) and query.difference)
        unit = "points" if differs and unit == "percent" else unit
        shown = replace(shown, n=len(numbers), unit=unit, ours=mean, test_n=tests)
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
    """Raise unless there are records and all of them hold the metric."""
    if not arm:
        reduced = len(runs.pick(claim.paper, select, "cpu")) if paper_only else 0
        others = runs.left_out[claim.paper, select.experiment]
        also = f"; the {reduced} at cpu scale are of a reduced setting" if reduced else ""
        also += f"; {others} of the experiment have a configuration or revision that is not the scale's own" if others else ""
        scale = "paper" if paper_only else "cpu or paper"
        raise _Undecided("not run", f"No record on real data at {scale} scale{also}.")
    if any(r.exit == "ok" and metric not in r.metrics and metric != "parameters" for r in arm):
        raise _Undecided("not run", f"Records of {_named(select)} hold no metric {metric!r}.")


def _check_one_configuration(select: Select, arm: list[Record]) -> None:
    """Raise if runs of different configurations would pass for replicates of one."""
    first = arm[0].trial.config
    if mixed := sorted({k for r in arm for k in r.trial.config if r.trial.config[k] != first.get(k)}):
        raise _Undecided(
            "inconclusive", f"Records of {_named(select)} differ in {', '.join(mixed)}, which the query leaves open."
        )


def _check_replicates(query: Value | Above | Order, used: list[Record], seeds: set[int], n: int) -> None:
    """Raise unless enough replicates ended well, and, where the end of training is what counts, had come to rest."""
    many = "pairs of runs with one seed" if isinstance(query, Order) else "seeds"
    if not seeds:
        raise _Undecided("not run", "The two arms have no seed in common.")
    if failed := [r for r in used if r.exit == "nan"]:
        raise _Undecided("inconclusive", f"Failed replicates: {_list(failed)} ended in a NaN.")
    if n < SEEDS:
        status: Status = "not run" if isinstance(query, Value) else "inconclusive"
        raise _Undecided(status, f"There are {n} of the {SEEDS} {many} that a decision needs.")
    if query.final:
        if silent := [r for r in used if CONVERGED not in r.metrics]:
            raise _Undecided("inconclusive", f"Not converged, as far as is known: {_list(silent)} recorded no convergence check.")
        if moving := [r for r in used if abs(r.metrics[CONVERGED].value) > CONVERGED_BELOW]:
            most = max((r.metrics[CONVERGED] for r in moving), key=lambda metric: abs(metric.value))
            raise _Undecided(
                "inconclusive",
                f"Not converged: over the last quarter {_list(moving)} still moved by up to {abs(most.value):.1%}, as {most.unit} "
                f"(limit {CONVERGED_BELOW:.0%}).",
            )


def _named(select: Select) -> str:
    where = ", ".join(f"{k}={v}" for k, v in select.where.items())
    return f"experiment {select.experiment}" + (f" with {where}" if where else "")


def _list(records: list[Record]) -> str:
    """``seeds 0, 3``; how many runs, where seeds repeat over two arms."""
    seeds = sorted({r.trial.seed for r in records})
    runs = f"{len(records)} runs with " if len(records) > len(seeds) else ""
    return f"{runs}seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _unit(claim: Claim, query: Value | Above | Order, used: list[Record]) -> tuple[float, str]:
    """What turns the records' unit into the claim's, and the unit that results. Differences stay in the records' unit."""
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
    """A metric of a record; ``parameters`` is the record's own count."""
    return record.metrics[metric].value if metric in record.metrics else float(record.parameters)


def _replicate(query: Value | Above | Order, pair: tuple[Record, ...]) -> float:
    """One replicate: the metric itself, or how far the better arm is ahead of the worse."""
    if not isinstance(query, Order):
        return _measured(pair[0], query.metric)
    ahead = _measured(pair[0], query.metric) - _measured(pair[1], query.metric)
    return ahead if query.higher_is_better else -ahead


def _decide_value(claim: Claim, query: Value, found: tuple[float, float], many: str) -> tuple[Status, str]:
    low, high = found
    value, tolerance = claim.value or 0.0, claim.tolerance or 0.0
    slack = tolerance + 1e-9 * max(1.0, abs(value))  # 0.3 and 99.7 are not exact in binary
    ours = f"our 95 % interval {_span(found)} of {many}"
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
    return status, f"The 95 % interval {_span(found)} of the {what} over {many} {lies} {asked}."


def _property(claim: Claim, query: Property, runs: Runs, name: str) -> Verdict:
    """A theorem holds at every scale, so the worst record of both counts."""
    arm = runs.pick(claim.paper, query.select, "cpu", "paper")
    try:
        _check_arm(claim, query.select, query.metric, arm, runs)
    except _Undecided as why:
        return Verdict(claim, why.status, str(why), name=name)
    scale: Scale = "cpu" if any(r.trial.scale == "cpu" for r in arm) else "paper"
    shown = Verdict(claim, "inconclusive", "", n=len(arm), scale=scale, name=name, **_sources(arm))
    if failed := [r for r in arm if r.exit == "nan"]:
        return replace(shown, reason=f"Failed replicates: {_list(failed)} ended in a NaN.")
    worst = (min if query.above else max)(arm, key=lambda r: _measured(r, query.metric))
    ours, held = _measured(worst, query.metric), worst.metrics.get(query.metric)
    holds = ours >= query.bound if query.above else ours <= query.bound
    asked = f"{'' if holds else 'not '}at or {'above' if query.above else 'below'} {number(query.bound)}"
    reason = f"The worst of {len(arm)} record{'s' if len(arm) > 1 else ''} has {number(ours)}, {asked}; tested in {query.test}."
    shown = replace(shown, unit=held.unit if held else claim.unit, test_n=held.n if held else 0)
    return replace(shown, status="holds" if holds else "fails", ours=ours, reason=reason)


def _count(claim: Claim, query: Count, runs: Runs, scale: Scale, name: str) -> Verdict:
    """A claim over many cells, decided from the decisions of its parts, all at one scale."""
    total, need = len(query.parts), len(query.parts) if query.at_least is None else query.at_least
    if not 1 <= need <= total:
        raise ValueError(f"{claim.id}: at least {need} of {total} parts cannot be asked for.")
    allowed = (Property, Count) if claim.kind == "property" else (Order, Above, Property, Count)
    if wrong := [label for label, part in query.parts.items() if not isinstance(part, allowed)]:
        raise ValueError(
            f"{claim.id} is of kind {claim.kind}; its part {wrong[0]!r} cannot be a {type(query.parts[wrong[0]]).__name__}."
        )
    parts = tuple(_answer(claim, part, runs, scale, label) for label, part in query.parts.items())
    named = {status: [p.name for p in parts if p.status == status] for status in STATUSES}
    kept = _kept(parts)
    against = named["contradicted"] + named["fails"]
    said = f"{kept} of {total} parts hold where {need} {'has' if need == 1 else 'have'} to"
    status: Status
    if kept >= need:
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


def _kept(parts: Iterable[Verdict]) -> int:
    return sum(part.status in ("reproduced", "holds") for part in parts)


def _few(names: list[str]) -> str:
    return "; ".join(names[:4]) + (f"; and {len(names) - 4} more" if len(names) > 4 else "")


def _sources(records: list[Record]) -> dict:
    """Keys of the records used, and how their data differ from the complete originals."""
    told = set()
    for data in (d for r in records for d in r.data if d.deviations or not d.complete):
        what = [*([] if data.complete else ["incomplete"]), *(d.strip().rstrip(".").replace(";", ",") for d in data.deviations)]
        told.add(f"{data.name}: {', '.join(what)}")
    return {"records": tuple(r.key for r in records), "partial": "; ".join(sorted(told))}


def verdicts(stem: str | None = None, *, store: Store | None = None) -> list[Verdict]:
    """The verdict of every claim of a paper (of all papers), in the order of the ledger.

    Only trials that belong to an experiment's own grid of their scale count: a run with a changed configuration is welcome as a
    record, but it is not what the scale stands for. Raises :class:`UserError` as :func:`ledger` does.
    """
    claims, store = ledger(stem), store or Store()
    answers: list[Verdict] = []
    for paper in [stem] if stem else PAPERS:
        asked, moved_in = queries(paper), module(paper) is not None
        runs = Runs(store.records(paper), _own(paper)) if asked else Runs()
        for claim in (c for c in claims.values() if c.paper == paper):
            if not moved_in and not claim.not_run:
                answers.append(Verdict(claim, "not run", "The chapter of this paper has not moved in yet."))
            else:
                answers.append(judge(claim, asked.get(claim.id), runs))
    return answers


def _own(paper: str) -> Callable[[Record], bool]:
    """Whether a record's trial is one of the chapter's own, at the revision of today."""

    def canonical(config: object) -> str:
        return json.dumps(config, sort_keys=True)

    @functools.cache
    def grid(experiment: str, scale: Scale) -> set[str]:
        return {canonical(c.model_dump(mode="json")) for c in experiments(paper)[experiment].grid(scale)}

    def own(record: Record) -> bool:
        trial, experiment = record.trial, experiments(paper).get(record.trial.experiment)
        known = experiment is not None and trial.revision == experiment.revision
        return known and canonical(trial.config) in grid(trial.experiment, trial.scale)

    return own


# ---------------------------------------------------------------------------------------------------------- for readers


def number(value: float) -> str:
    """A number as a reader sees it: two decimals from ten on, four digits that count below, whole numbers in groups of three."""
    if value == int(value) and abs(value) < 1e9:
        return grouped(f"{int(value)}")
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4g}"


_BARE = ("", "fraction", "difference of fractions", "count", "ratio", "1")
"""Units that a number is understood without."""


def with_unit(text: str, unit: str) -> str:
    """``99.7 %``, ``1.9 points``; fractions, counts and ratios stand alone."""
    return text + ("" if not text or unit in _BARE else " %" if unit == "percent" else f" {unit}")


def our_value(verdict: Verdict) -> str:
    """Our value as text, with its unit; of a count how many of its parts hold; nothing where there is neither."""
    if verdict.ours is not None:
        return with_unit(number(verdict.ours), verdict.unit)
    return f"{_kept(verdict.parts)} of {len(verdict.parts)} parts" if verdict.parts and verdict.status != "not run" else ""


def _span(found: tuple[float, float]) -> str:
    return f"[{number(found[0])}, {number(found[1])}]"


def table(stem: str, ids: Iterable[str] | None = None, store: Store | None = None) -> pd.DataFrame:
    """The table that a notebook shows under an experiment: Claim, Paper, Ours, 95 % interval, n, Scale, Verdict, as text.

    ``ids`` chooses the claims and their order (all of the paper by default). Numbers are in the paper's unit; ``n`` is the number
    of replicates; a verdict on partial or altered data says so. Raises :class:`UserError` for an id that is not in the ledger.
    """
    import pandas as pd

    from capslib.errors import unknown

    found = {v.claim.id: v for v in verdicts(stem, store=store)}
    rows = []
    for name in found if ids is None else ids:
        if name not in found:
            raise unknown("claim", name, found)
        v = found[name]
        same = v.interval is not None and v.interval[0] == v.interval[1]
        rows.append(
            {
                "Claim": name,
                "Paper": with_unit(v.claim.printed, v.claim.unit) or v.claim.statement,
                "Ours": our_value(v),
                "95 % interval": "all equal" if same else "" if v.interval is None else _span(v.interval),
                "n": v.n or "",
                "Scale": v.scale or "",
                "Verdict": v.status + (" (on partial data)" if v.partial and v.status != "not run" else ""),
            }
        )
    return pd.DataFrame(rows, columns=["Claim", "Paper", "Ours", "95 % interval", "n", "Scale", "Verdict"])


def page_table(stem: str, *ids: str, store: Store | None = None) -> Styler:
    """:func:`table` in the shape of a page, which is not wide: intervals stand under numbers, the scale beside n, and columns that
    say nothing of any of these claims are left out.

    An id that ends in a dash stands for all claims of the paper that start with it.
    """
    groups = {of: [name for name in ledger(stem) if of.endswith("-") and name.startswith(of)] or [of] for of in ids}
    found = table(stem, [name for group in groups.values() for name in group], store)
    found = found.replace(" %", "\N{NO-BREAK SPACE}%", regex=True)
    width = "10rem" if found["Paper"].str.len().max() > 20 else "4rem"  # a sentence of the paper, or a number
    ours = "Ours (95\N{NO-BREAK SPACE}% interval)"
    for name, between, one, other in ((ours, "<br>", "Ours", "95 % interval"), ("n", ", ", "n", "Scale")):
        found[one] = [between.join(str(part) for part in pair if part) for pair in zip(found[one], found.pop(other), strict=True)]
        found = found.rename(columns={one: name})
    found = found.loc[:, (found != "").any()]
    style = found.style.hide(axis="index").set_properties(subset=["Paper"], **{"min-width": width})
    narrow = found.columns.intersection(["Claim", ours, "n"])
    return style.set_properties(subset=narrow, **{"white-space": "nowrap"})


def counts(found: Iterable[Verdict]) -> dict[Status, int]:
    """How many verdicts have each status, all statuses in their fixed order."""
    statuses = [v.status for v in found]
    return {status: statuses.count(status) for status in STATUSES}


def to_json(found: Iterable[Verdict]) -> str:
    """Verdicts as a JSON list, for other programs. ``paper_value`` and ``our_value`` are in the unit of the claim."""
    rows = [
        {
            "id": v.claim.id,
            "paper": v.claim.paper,
            "kind": v.claim.kind,
            "paper_value": v.claim.value,
            "our_value": v.ours,
            "interval": list(v.interval) if v.interval else None,
            "n": v.n,
            "scale": v.scale,
            "verdict": v.status,
            "reason": v.reason,
            "records": list(v.records),
            "partial": v.partial,
        }
        for v in found
    ]
    return json.dumps(rows, indent=1, ensure_ascii=False)
