"""Judging: from a claim, a chapter's query and the records to a verdict, which is never written
down.

Smoke-scale records and records on a stand-in of our own decide nothing. Arms are compared seed
by seed at one scale: the paper's own where it has enough runs. A run that failed, or a network
that did not learn, leaves the claim open: dropping it would select runs by their outcome.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from capslib.config import hash_of
from capslib.data.registry import SETS
from capslib.lab.ledger import HIGHER_IS_BETTER, Claim, number, plural, span
from capslib.lab.records import Record
from capslib.lab.replicates import FAILED, Run, Runs
from capslib.lab.statistics import interval
from capslib.lab.words import (
    AGAINST,
    EXACT,
    GROUPS,
    HELD,
    NOT_RUN,
    OPEN,
    OTHER_DATA,
    REDUCED,
    WORDS,
    Status,
    Verdict,
    number_failing,
    number_of,
    tally,
)
from capslib.papers import query as q
from capslib.papers.experiment import DataFingerprint, Scale
from capslib.papers.query import (
    Above,
    Count,
    Erratum,
    Leaf,
    Order,
    Property,
    Query,
    Select,
    Value,
)

SEEDS = 3
"""The fewest replicates that decide a claim about an average."""
WIDEST = 6
"""A value is not decided by an interval wider than this many tolerances: one that wide would
reproduce almost anything.
"""
AT_REST = 0.1
"""A training is at rest if twice its budget moves no arm by more than this share of its value,
and gives the same decision.
"""

QUERIES_OF_KIND = {
    "value": (Value, Erratum),
    "order": (Order, Above, Count, Erratum),
    "property": (Property, Count, Value, Erratum),
}
SHARES = {"fraction": 1.0, "percent": 100.0}


def judge(claim: Claim, query: Query | None, records: Iterable[Record] | Runs) -> Verdict:
    """Judge one claim by records, whose order does not matter.

    Raises :class:`ValueError` for a query that does not fit the kind of the claim: the chapter
    is wrong then.
    """
    if query is not None and not isinstance(query, QUERIES_OF_KIND[claim.kind]):
        raise ValueError(
            f"{claim.id} is of kind {claim.kind}; a query of type {type(query).__name__} does not answer that."
        )
    if claim.not_run:
        return Verdict(claim, "quoted" if claim.quoted else "not to be had", claim.not_run)
    if isinstance(query, Erratum):
        return Verdict(claim, "erratum", query.why)
    if query is None:
        return Verdict(claim, "waiting", "No experiment of the chapter measures this yet.")
    runs = records if isinstance(records, Runs) else Runs(records)
    return _answer(claim, query, runs, _scale(claim, query, runs))


def _scale(claim: Claim, query: Query, runs: Runs) -> Scale:
    """Choose the one scale that judges the claim: the paper's own, unless the cpu scale has
    replicates that it lacks.
    """

    def supply(
        scale: Scale,
    ) -> tuple[
        int, int
    ]:  # replicates (pairs) of each part, counted up to SEEDS: the fewest, and all
        found = []
        for leaf in q.leaves(query):
            if (
                not isinstance(leaf, Property) and not leaf.paper_scale_only
            ):  # which do not ask for one of the two
                picked = (runs.pick(claim.paper, select, scale) for select in leaf.arms)
                found.append(
                    min(
                        SEEDS, len(set.intersection(*({r.seed for r in arm} for arm in picked)))
                    )
                )
        return min(found, default=0), sum(found)

    return "cpu" if supply("cpu") > supply("paper") else "paper"


def _answer(claim: Claim, query: Query, runs: Runs, scale: Scale, name: str = "") -> Verdict:
    if isinstance(query, Count):
        return _count(claim, query, runs, scale, name)
    if isinstance(query, Property):
        return _property(claim, query, runs, name)
    if claim.kind == "property":
        return _exact_value(claim, query, runs, name)
    return _mean(claim, query, runs, "paper" if query.paper_scale_only else scale, name)


# ------------------------------------------------------------------------------------------------
# values and comparisons


def _mean(
    claim: Claim, query: Value | Order | Above, runs: Runs, scale: Scale, name: str
) -> Verdict:
    """Judge by the mean over seeds, or by that of a difference, and its interval."""
    arms = [runs.pick(claim.paper, select, scale) for select in query.arms]
    pairs, failed = _pairs(arms), [run for arm in arms for run in arm if run.exit in FAILED]
    sources = _sources(_distinct([*itertools.chain(*pairs), *failed]))
    verdict = Verdict(claim, "waiting", "", name=name, scale=scale, **sources)
    words = WORDS[verdict.setting]
    only_measured = verdict.setting == REDUCED and isinstance(
        query, Value
    )  # it stands beside the paper's number
    verdict = replace(verdict, status="measured" if only_measured else words["open"])

    missing = _missing(claim, query, arms, runs, scale)
    if not (missing or pairs or failed):
        missing = "The two arms have no seed in common."
    if missing:
        return _waiting(verdict, missing)
    unit = _unit(claim, query, [*itertools.chain(*pairs), *failed])
    mixed = _mixed(query, arms)
    if mixed or unit.clash:
        return replace(verdict, reason=mixed or unit.clash)

    numbers = _replicates(query, pairs, unit)
    verdict = replace(verdict, n=len(numbers), unit=unit.name, ours=_average(numbers))
    if not isinstance(query, Value):
        verdict = replace(
            verdict, measures=f"{query.mean}, {query.asked(unit.factor)} for the claim"
        )
    spoilt = _ends(failed) or _unlearned(query, pairs, decides=not only_measured)
    if spoilt:  # a mean of the other seeds would select runs by their outcome
        return replace(
            verdict,
            reason=spoilt,
            ours=None,
            listed=() if isinstance(query, Order) else tuple(numbers),
        )
    if len(numbers) < SEEDS and not only_measured:
        few = _too_few(query, len(numbers))
        return (
            _waiting(verdict, few) if isinstance(query, Value) else replace(verdict, reason=few)
        )

    verdict = replace(verdict, interval=interval(numbers, query.bounds(unit.name)))
    seeds = _seeds_and_size(query, pairs)
    if only_measured:
        return replace(
            verdict, reason=f"The mean of {seeds}, {NOT_THE_PAPERS[scale]}: it decides nothing."
        )
    status, reason = _decide(claim, query, verdict.interval, unit.factor, words, seeds)
    if query.rests(scale) and status not in OPEN:
        rest = _rest(verdict, query, runs, unit, status)
        status = status if rest.holds else words["open"]
        reason += rest.reason
        verdict = replace(verdict, records=(*verdict.records, *rest.records))
    if isinstance(query.metric, q.Derived):
        reason += query.metric.note(
            [record for run in itertools.chain(*pairs) for record in run.records]
        )
    return replace(verdict, status=status, reason=f"{reason}.")


NOT_THE_PAPERS: Mapping[Scale, str] = {
    "cpu": "in a setting smaller than the paper's",
    "paper": OTHER_DATA,
}
"""Why a value in a reduced setting decides nothing."""


def _distinct(runs: Iterable[Run]) -> list[Run]:
    """Return each run once: an arm may stand on both sides of a comparison."""
    return list({run.keys: run for run in runs}.values())


def _average(numbers: Sequence[float]) -> float | None:
    return math.fsum(numbers) / len(numbers) if numbers else None


def _replicates(
    query: Value | Order | Above, pairs: Sequence[tuple[Run, ...]], unit: _Unit
) -> list[float]:
    """Return what the query asks for, seed by seed, in a unit."""
    return [
        query.replicate([run.read(query.metric).value for run in pair]) * unit.factor
        for pair in pairs
    ]


def _too_few(query: Value | Order | Above, count: int) -> str:
    kind = "pairs of runs with one seed" if isinstance(query, Order) else "seeds"
    return f"A decision needs {SEEDS} {kind}; there {'is' if count == 1 else 'are'} {count}."


def _seeds_and_size(query: Value | Order | Above, pairs: Sequence[tuple[Run, ...]]) -> str:
    """``3 seeds (each on 10 000)``: how many replicates, and what each was measured on."""
    size = min((run.read(query.metric).n for run in itertools.chain(*pairs)), default=0)
    seeds = plural(len(pairs), "seed")
    return f"{seeds} (each on {number(size)})" if size > 1 else seeds


def _waiting(shown: Verdict, reason: str) -> Verdict:
    return replace(shown, status="waiting", reason=reason, ours=None, scale=None)


def _pairs(arms: Sequence[Sequence[Run]]) -> list[tuple[Run, ...]]:
    """Return the runs of each seed with which all arms ended well."""
    well = [{run.seed: run for run in arm if run.exit == "ok"} for arm in arms]
    return [
        tuple(arm[seed] for arm in well) for seed in sorted(set.intersection(*map(set, well)))
    ]


def _named(select: Select) -> str:
    """An arm, for a message: ``depth (routing=em, depth=4)``."""
    if select.arms:
        return f"{select.experiment} ({select.label})"
    fields = ", ".join(f"{name}={value}" for name, value in select.where.items())
    return f"{select.experiment} ({fields})" if fields else select.experiment


def _missing(
    claim: Claim, query: Leaf, arms: Sequence[Sequence[Run]], runs: Runs, scale: Scale
) -> str:
    """Return why there is nothing to judge by: no records of an arm, or none that hold the
    metric. Empty where there is.
    """
    for select, arm in zip(query.arms, arms, strict=True):
        if not arm and len(select.arms) > 1 and not query.paper_scale_only:
            return (
                f"No seed has a record of all {len(select.arms)} arms of {_named(select)} yet."
            )
        if not arm and select.over and not query.paper_scale_only:
            return f"No seed has a record of all {select.cells} of {_named(select)} yet, each with another {select.over}."
        if not arm:
            why, others = query.paper_scale_only, runs.left_out[claim.paper, select.experiment]
            also = f"; a reduced setting cannot tell: {why}" if why else ""
            also += (
                f"; {others} of the experiment have another configuration, seed or revision than the scale's own"
                if others
                else ""
            )
            elsewhere = (
                runs.pick(claim.paper, select, "cpu", "paper")
                and f"{scale} scale, at which the other parts are judged"
            )
            return f"No record on real data at {'paper scale' if why else elsewhere or 'cpu or paper scale'}{also}."
        if any(run.exit == "ok" and run.read(query.metric) is None for run in arm):
            return f"Records of {_named(select)} lack the metric {str(query.metric)!r}."
    return ""


def _mixed(query: Value | Order | Above, arms: Sequence[Sequence[Run]]) -> str:
    """Return in what the records of one arm differ that the query does not fix: such runs are
    no replicates.
    """
    for select, arm in zip(query.arms, arms, strict=True):
        if select.arms:
            continue  # a name fixes every field
        configs = [record.config for run in arm for record in run.records]
        names = {
            name
            for config in configs
            for name, value in config.items()
            if value != configs[0].get(name)
        }
        if names - {select.over}:
            return f"Records of {_named(select)} differ in {', '.join(sorted(names - {select.over}))}, which the query does not fix."
    return ""


def _ends(runs: Sequence[Run]) -> str:
    """Return how replicates failed, with their seeds; empty where none did."""
    ends = {end: [run for run in runs if run.exit == end] for end in FAILED}
    named = [f"{_seeds(found)} ended in {end}" for end, found in ends.items() if found]
    return f"Failed replicates: {'; '.join(named)}." if named else ""


def _unlearned(
    query: Value | Order | Above, pairs: Sequence[tuple[Run, ...]], *, decides: bool = True
) -> str:
    """Return which networks have not learned, or break a limit of their selection; empty where
    all have.
    """
    found: dict[str, None] = {}
    for pair in pairs:
        for place, (select, run) in enumerate(zip(query.arms, pair, strict=True)):
            others = [other for k, other in enumerate(query.arms) if k != place]
            arm = select.apart_from(others[0]) if others else ""
            seed = f"seed {run.seed} of {arm}" if arm else f"seed {run.seed}"
            for record in run.records:
                found |= dict.fromkeys(
                    f"{seed}{run.label(record)} {why}"
                    for why in select.unfit(record, decides=decides)
                )
    return f"Decides nothing: {'; '.join(found)}." if found else ""


def _seeds(runs: Sequence[Run]) -> str:
    """``seeds 0, 3``, or ``4 runs with seeds 0, 3`` where seeds repeat over two arms."""
    seeds = sorted({run.seed for run in runs})
    many = f"{len(runs)} runs with " if len(runs) > len(seeds) else ""
    return f"{many}seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


class _Unit(NamedTuple):
    """The unit in which a verdict is told, and the factor to it from the records' unit.
    ``clash`` says why there is none.
    """

    factor: float
    name: str
    clash: str = ""


def _unit(claim: Claim, query: Value | Above | Order, used: Sequence[Run]) -> _Unit:
    """Return the unit of the claim, if the records have that or a share of it. Differences stay
    in the records' unit.
    """
    units = sorted({metric.unit for run in used if (metric := run.read(query.metric))})
    if len(units) > 1:
        return _Unit(
            1.0, "", f"The records give {query.metric} in different units: {', '.join(units)}."
        )
    unit, wanted = units[0] if units else claim.unit, claim.unit
    if isinstance(query, Order):
        return _Unit(1.0, q.DIFFERENCES["percent"] if unit == "percent" else unit)
    if unit in SHARES and wanted in SHARES:
        return _Unit(SHARES[wanted] / SHARES[unit], wanted)
    if isinstance(query, Value) and (unit in SHARES or wanted in SHARES):
        return _Unit(
            1.0, "", f"The records give {query.metric} in {unit}, the paper in {wanted}."
        )
    return _Unit(1.0, wanted if isinstance(query, Value) else unit)


def _decide(
    claim: Claim,
    query: Value | Order | Above,
    found: tuple[float, float],
    factor: float,
    words: Mapping[q.Decision, Status],
    many: str = "",
) -> tuple[Status, str]:
    """Return what an interval says, and why, in a sentence without its full stop."""
    if isinstance(query, Value):
        return _of_value(claim, query, found, many)
    decision = query.decide(*found, factor)
    lies = {"for": "lies", "against": "does not lie", "open": "does not lie wholly"}[decision]
    return (
        words[decision],
        f"The 95 % interval {span(found)} of the {query.mean} over {many} {lies} {query.asked(factor)}",
    )


def _of_value(
    claim: Claim, query: Value, found: tuple[float, float], many: str
) -> tuple[Status, str]:
    """:func:`_decide` for a value."""
    low, high = found
    value, tolerance = claim.value or 0.0, claim.tolerance or 0.0
    slack = tolerance + 1e-9 * max(1.0, abs(value))  # 0.3 and 99.7 are not exact in binary
    ours = f"our 95 % interval {span(found)} of {many}"
    wide = (
        high - low > WIDEST * slack
        and f"it is wider than {WIDEST} tolerances of {number(tolerance)}"
    )
    if why := query.unlike or wide:
        return "inconclusive", f"O{ours[1:]} decides nothing: {why}"
    if low - slack <= value <= high + slack:
        return (
            "reproduced",
            f"The paper's {number(value)} lies within {ours}, widened by {number(tolerance)}",
        )
    above = low > value
    beaten = query.better_counts and HIGHER_IS_BETTER.get(claim.metric) is above
    where = f"{'below' if above else 'above'} {ours}"
    reason = f"The paper's {number(value)} lies {where}, by more than the tolerance of {number(tolerance)}"
    return "better" if beaten else "not reproduced", reason


# ----------------------------------------------------------------------------------------------------------------
# at rest


class _Rest(NamedTuple):
    """Whether a decision stands after twice the budget; what happened, to end its reason with;
    the keys of the longer runs.
    """

    holds: bool
    reason: str
    records: tuple[str, ...] = ()


def _rest(
    verdict: Verdict, query: Value | Order | Above, runs: Runs, unit: _Unit, status: Status
) -> _Rest:
    """Compare the ``status`` that a verdict is to have with that of twice the budget; one seed
    of each arm is enough.

    A falling learning rate flattens any curve, so a flat curve proves nothing.
    """
    claim, scale, words = verdict.claim, verdict.scale, WORDS[verdict.setting]
    arms = [runs.pick(claim.paper, select, scale, budget=2) for select in query.arms]
    pairs = [pair for pair in _pairs(arms) if all(run.read(query.metric) for run in pair)]
    trouble = _ends(list(itertools.chain(*arms))) or _unlearned(query, pairs)
    if trouble:
        keys = _keys(itertools.chain(*arms))
        return _Rest(
            False,
            f", but with twice the budget: {trouble[0].lower()}{trouble[1:].removesuffix('.')}",
            keys,
        )
    if not pairs:
        return _Rest(False, ", but there is no run with twice the budget yet")
    if verdict.setting != REDUCED and _sources(list(itertools.chain(*pairs)))["partial"]:
        return _Rest(False, f", but the runs with twice the budget are {NOT_THE_PAPERS[scale]}")
    mean = _average(_replicates(query, pairs, unit))
    after, _ = _decide(claim, query, (mean, mean), unit.factor, words)
    same = after == status
    seeds = _seeds(list(itertools.chain(*pairs)))
    reason = f"; with twice the budget ({seeds}) it is {number(mean)}, and the decision {'the same' if same else 'another'}"
    moved = _moved(claim, query, runs, scale, pairs)
    if moved and same:
        reason += f", but {moved}"
    return _Rest(same and not moved, reason, _keys(itertools.chain(*pairs)))


def _keys(runs: Iterable[Run]) -> tuple[str, ...]:
    """Return the keys of the records of these runs, each once."""
    return tuple(dict.fromkeys(key for run in runs for key in run.keys))


def _moved(
    claim: Claim,
    query: Value | Order | Above,
    runs: Runs,
    scale: Scale,
    longer: Sequence[tuple[Run, ...]],
) -> str:
    """Return which arm twice the budget moves too far, and from where to where; empty where all
    are at rest.
    """
    for place, select in enumerate(query.arms):
        shorter = {run.seed: run for run in runs.pick(claim.paper, select, scale)}
        pairs = [
            (shorter[pair[place].seed], pair[place])
            for pair in longer
            if pair[place].seed in shorter
        ]
        if not pairs:
            return "no run of the usual budget has its seed"
        for metric in q.compared(query):
            known = [(one.read(metric), two.read(metric)) for one, two in pairs]
            known = [(one.value, two.value) for one, two in known if one and two]
            if not known:
                continue
            before, after = (_average(values) for values in zip(*known, strict=True))
            if abs(after - before) > AT_REST * abs(before):
                name = str(metric).replace("_", " ")
                return f"{name} moved from {number(before)} to {number(after)}, by more than a tenth"
    return ""


# -------------------------------------------------------------------------------------------------
# properties and counts


def _property(claim: Claim, query: Property, runs: Runs, name: str) -> Verdict:
    """Judge a theorem by its worst record: it must hold at every scale. What both scales drew
    alike counts once.
    """
    arm = runs.pick(claim.paper, query.select, "cpu", "paper", single=True)
    shown = _exact(claim, arm, name)
    if missing := _missing(claim, query, [arm], runs, shown.scale):
        return _waiting(shown, missing)
    if failed := _ends(arm):
        return replace(shown, reason=failed)
    worst = (min if query.above else max)(
        (run.read(query.metric) for run in arm), key=lambda metric: metric.value
    )
    holds = worst.value >= query.bound if query.above else worst.value <= query.bound
    asked = f"{'' if holds else 'not '}at or {'above' if query.above else 'below'} {number(query.bound)}"
    reason = f"The worst of {plural(shown.n, 'run')} has {number(worst.value)}, {asked}; tested in {query.test}."
    found = dict(ours=worst.value, unit=worst.unit)
    if (
        worst.value == 0 and query.bound == 0 and claim.value is not None
    ):  # a count that is off by nothing is the paper's
        found |= dict(ours=claim.value, unit=claim.unit)
    return replace(shown, status="holds" if holds else "fails", reason=reason, **found)


def _exact_value(claim: Claim, query: Value, runs: Runs, name: str) -> Verdict:
    """Judge a count, such as the parameters of a network that is built and not trained: each
    record of its size has to have it.
    """
    arm = runs.pick(claim.paper, query.select, "paper")
    shown = _exact(claim, arm, name)
    if not arm:
        return _waiting(shown, "Nothing has been counted at paper scale yet.")
    if missing := _missing(claim, query, [arm], runs, shown.scale):
        return _waiting(shown, missing)
    if failed := _ends(arm):
        return replace(shown, reason=failed)
    farthest = max(
        (run.read(query.metric).value for run in arm),
        key=lambda value: abs(value - claim.value),
    )
    holds = abs(farthest - claim.value) <= claim.tolerance * (1 + 1e-9)
    reason = f"We count {number(farthest)}; the paper prints {claim.printed}, and {number(claim.tolerance)} is the tolerance."
    return replace(
        shown,
        status="holds" if holds else "fails",
        reason=reason,
        ours=farthest,
        unit=claim.unit,
    )


def _exact(claim: Claim, arm: Sequence[Run], name: str) -> Verdict:
    """Return the open verdict on a theorem or count, with its runs."""
    scale: Scale = "cpu" if any(run.records[0].trial.scale == "cpu" for run in arm) else "paper"
    n = len({(hash_of(run.config()), run.seed) for run in arm})
    return Verdict(
        claim,
        WORDS[EXACT]["open"],
        "",
        name=name,
        scale=scale,
        n=n,
        exact=True,
        **_sources(arm),
    )


def _count(claim: Claim, query: Count, runs: Runs, scale: Scale, name: str) -> Verdict:
    """Judge a claim of several parts by the verdicts on them, all at one scale."""
    total, need = (
        len(query.parts),
        len(query.parts) if query.at_least is None else query.at_least,
    )
    if not 1 <= need <= total:
        raise ValueError(
            f"{claim.id}: a query cannot ask for at least {need} of {total} parts."
        )
    allowed = (Property, Count) if claim.kind == "property" else (Order, Above, Property, Count)
    if wrong := [label for label, part in query.parts.items() if not isinstance(part, allowed)]:
        raise ValueError(
            f"{claim.id} is of kind {claim.kind}; its part {wrong[0]!r} cannot be a {type(query.parts[wrong[0]]).__name__}."
        )
    parts = tuple(
        _answer(claim, part, runs, scale, label) for label, part in query.parts.items()
    )
    ran = [part for part in parts if part.scale]
    shown = Verdict(
        claim,
        "waiting",
        "",
        n=min((part.n for part in ran), default=0),
        scale="cpu" if any(part.scale == "cpu" for part in ran) else "paper",
        records=tuple(dict.fromkeys(key for part in parts for key in part.records)),
        derived="; ".join(
            dict.fromkeys(text for part in parts for text in part.derived.split("; ") if text)
        ),
        partial=any(part.partial for part in ran),
        baseline=bool(ran) and all(part.baseline for part in ran),
        exact=claim.kind == "property" or (bool(ran) and all(part.exact for part in ran)),
        parts=parts,
        name=name,
    )
    shown = replace(shown, lost=total - number_failing(parts) < need)
    status, reason = _of_parts(parts, need, shown)
    reason += "".join(
        f" Left out, since the paper's own numbers contradict it: {part} ({why})."
        for part, why in query.errata.items()
    )
    return replace(
        shown, status=status, reason=reason, scale=None if status == "waiting" else shown.scale
    )


def _of_parts(parts: Sequence[Verdict], need: int, shown: Verdict) -> tuple[Status, str]:
    """Return the word of a claim that needs so many of its parts, and why.

    "Contradicted" and "opposite order" are words for most of the parts, those of parts
    included; less holds, or fails, in part.
    """
    words = WORDS[shown.setting]
    against = [part.name for part in parts if part.fails]
    waiting = [part.name for part in parts if part.status in GROUPS[NOT_RUN]]
    undecided = [
        part.name
        for part in parts
        if not part.fails and part.status not in (*HELD, *GROUPS[NOT_RUN])
    ]
    held, tallied = number_of(HELD, parts), tally(parts)
    said = f"{tallied[0].upper()}{tallied[1:]}; the claim needs {need}"
    if held >= need:
        return words["for"], f"{said}."
    if shown.lost:
        single = list(_single(parts))
        if 2 * number_of(AGAINST, single) > len(single):
            status = words["against"]
        else:
            status = "holds in part" if held > len(against) else "fails in part"
        return status, f"{said}; against it: {_few(against)}."
    if held:
        return "holds in part", f"{said}; not decided: {_few(waiting + undecided)}."
    if waiting:
        return "waiting", f"{said}; not run: {_few(waiting)}."
    return words["open"], f"{said}; undecided: {_few(undecided)}."


def _single(parts: Iterable[Verdict]) -> Iterator[Verdict]:
    """Yield the verdicts that no parts stand behind."""
    for part in parts:
        if part.parts:
            yield from _single(part.parts)
        else:
            yield part


def _few(names: list[str]) -> str:
    return "; ".join(names[:4]) + (f"; and {len(names) - 4} more" if len(names) > 4 else "")


def whole(data: DataFingerprint) -> bool:
    """Whether a data set has all of the paper's examples, and no others: the publisher's own,
    or every one of them made smaller.
    """
    return data.complete or (data.name in SETS and data.sha256 in SETS[data.name].whole)


def _sources(runs: Sequence[Run]) -> dict:
    """Return what a verdict says of its records: their keys, what their data are, and whether
    they train capsules.
    """
    records = [record for run in runs for record in run.records]
    told = set()
    for data in (d for r in records for d in r.data if d.deviations or not d.complete):
        told.add(
            f"{data.name}: "
            + (
                ", ".join(d.strip().rstrip(".").replace(";", ",") for d in data.deviations)
                or "incomplete"
            )
        )
    return {
        "records": tuple(record.key for record in records),
        "derived": "; ".join(sorted(told)),
        "partial": any(not whole(data) for record in records for data in record.data),
        "baseline": bool(records) and all(record.routing_path == "none" for record in records),
    }
