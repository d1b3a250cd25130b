"""Judging: from a claim, its check and the records to a verdict, which is never written down.

Smoke-scale records and records on a stand-in of our own decide nothing. Arms are compared seed
by seed at one scale: the paper's own, unless cpu scale has more seeds. A run that failed, or a
network that did not learn, leaves the claim open: dropping it would select runs by their
outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from capslib.config import hash_of
from capslib.lab.decisions import NOT_THE_PAPERS, Decision, confirm, decide
from capslib.lab.ledger import Claim, number, plural
from capslib.lab.replicates import Run, Runs
from capslib.lab.samples import (
    Sample,
    Unit,
    average,
    failures,
    missing,
    pick,
    unit_of,
    unlearned,
    verdict_fields,
)
from capslib.lab.statistics import interval
from capslib.lab.words import (
    AGAINST,
    EXACT,
    GROUPS,
    HELD,
    NOT_RUN,
    OPEN,
    REDUCED,
    WORDS,
    Verdict,
    first_names,
    number_failing,
    number_of,
    tally,
)
from capslib.papers.check import AnyCheck, AtLeast, Check, Erratum, Quantity, leaves
from capslib.papers.experiment import Scale
from capslib.papers.names import metric_title

FEWEST_SEEDS = 3
"""The fewest replicates that decide a claim about an average."""


def judge(claim: Claim, check: AnyCheck | None, runs: Runs) -> Verdict:
    """Judge a claim by runs. The order of their records does not matter.

    Raises :class:`ValueError` for a check that does not fit the kind of the claim.
    """
    if check is not None and not fits(check, claim.kind):
        raise ValueError(
            f"The check of {claim.id} does not answer a claim of kind {claim.kind}."
        )
    if claim.not_run:
        return Verdict(claim, "quoted" if claim.quoted else "not to be had", claim.not_run)
    if isinstance(check, Erratum):
        return Verdict(claim, "erratum", check.reason)
    if check is None:
        return Verdict(claim, "waiting", "No experiment of the chapter measures this yet.")
    return _judge(claim, check, runs, _scale(claim, check, runs))


def fits(check: AnyCheck, kind: str, *, part: bool = False) -> bool:
    """Return whether a check, or a part of one, answers a claim of a kind.

    A ``value`` needs a single check with ``≈``. An ``order`` needs comparisons; only a part of
    it may be a theorem. A ``property`` needs theorems, or a single count with ``≈``. An erratum
    answers a whole claim of any kind.
    """
    if isinstance(check, Erratum):
        return not part
    if isinstance(check, AtLeast):
        return kind != "value" and all(fits(p, kind, part=True) for p in check.parts.values())
    is_value = check.op == "≈"
    if kind == "value":
        return is_value
    if kind == "order":
        return not is_value and (part or not check.test)
    return bool(check.test) or (is_value and not part)


def _scale(claim: Claim, check: AnyCheck, runs: Runs) -> Scale:
    """Return the scale that judges a claim: cpu if it has more seeds, else the paper's own."""
    at_cpu_scale = _seed_counts(claim, check, runs, "cpu")
    at_paper_scale = _seed_counts(claim, check, runs, "paper")
    return "cpu" if at_cpu_scale > at_paper_scale else "paper"


def _seed_counts(claim: Claim, check: AnyCheck, runs: Runs, scale: Scale) -> tuple[int, int]:
    """Return how many seeds the part with the fewest has at a scale, and the sum over parts.

    A seed counts where every arm of the part has a run with it, up to ``FEWEST_SEEDS`` a part.
    Theorems and parts for paper scale only do not count: they leave no choice of scale.
    """
    counts = []
    for leaf in leaves(check):
        if leaf.test or leaf.paper_scale_only:
            continue
        sample = pick(claim, leaf, runs, scale)
        seeds = [{run.seed for run in arm} for arm in sample.runs_of_arms]
        counts.append(min(FEWEST_SEEDS, len(set.intersection(*seeds))))
    return min(counts, default=0), sum(counts)


def _judge(claim: Claim, check: Check | AtLeast, runs: Runs, scale: Scale) -> Verdict:
    """Judge a check, or a part of one, at a scale."""
    if isinstance(check, AtLeast):
        return _judge_parts(claim, check, runs, scale)
    if check.test:
        return _judge_theorem(claim, check, runs)
    if claim.kind == "property":
        return _judge_count(claim, check, runs)
    return _judge_mean(claim, check, runs, "paper" if check.paper_scale_only else scale)


def _waiting(verdict: Verdict, reason: str) -> Verdict:
    """Return a verdict that waits for runs."""
    return replace(verdict, status="waiting", reason=reason, ours=None, scale=None)


# ---------------------------------------------------------------------- values and comparisons


def _judge_mean(claim: Claim, check: Check, runs: Runs, scale: Scale) -> Verdict:
    """Judge by the mean over seeds, and its interval."""
    sample = pick(claim, check.at(scale), runs, scale)
    verdict = _open_verdict(claim, sample, scale)
    obstacle = missing(claim, check, sample.runs_of_arms, runs, scale)
    if not obstacle and not sample.runs:
        obstacle = "The two arms have no seed in common."
    if obstacle:
        return _waiting(verdict, obstacle)
    unit = unit_of(claim, sample)
    if unit.clash:
        return replace(verdict, reason=unit.clash)
    numbers = sample.replicates(unit.factor)
    verdict = replace(verdict, n=len(numbers), unit=unit.name, ours=average(numbers))
    if check.op != "≈":
        verdict = replace(
            verdict,
            quantity=sample.check.label,
            asked=check.asked(unit.factor),
            is_lead=check.compares_arms,
        )
    only_measured = verdict.status == "measured"
    obstacle = failures(sample.failed) or unlearned(sample, decides=not only_measured)
    if obstacle:  # a mean of the other seeds would select runs by their outcome
        by_seed = () if check.compares_arms else tuple(numbers)
        return replace(verdict, reason=obstacle, ours=None, by_seed=by_seed)
    if len(numbers) < FEWEST_SEEDS and not only_measured:
        obstacle = _too_few(check, len(numbers))
        if check.op == "≈":
            return _waiting(verdict, obstacle)
        return replace(verdict, reason=obstacle)
    verdict = replace(verdict, interval=interval(numbers, check.limits(unit.name)))
    if only_measured:
        seeds = sample.seeds_and_size()
        reason = f"The mean of {seeds}, {NOT_THE_PAPERS[scale]}: it decides nothing."
        return replace(verdict, reason=reason)
    return _decided(verdict, sample, runs, unit)


def _open_verdict(claim: Claim, sample: Sample, scale: Scale) -> Verdict:
    """Return the verdict on these runs before anything is decided.

    A value in a reduced setting stands beside the paper's, and is never decided.
    """
    rests_on = verdict_fields(sample.runs)
    # Its setting follows from these fields, and decides its status.
    verdict = Verdict(claim, "waiting", "", scale=scale, **rests_on)
    if verdict.setting == REDUCED and sample.check.op == "≈":
        return replace(verdict, status="measured")
    return replace(verdict, status=WORDS[verdict.setting]["open"])


def _too_few(check: Check, count: int) -> str:
    """Return that so many replicates are too few."""
    kind = "pairs of runs with one seed" if check.compares_arms else "seeds"
    verb = "is" if count == 1 else "are"
    return f"A decision needs {FEWEST_SEEDS} {kind}; there {verb} {count}."


def _decided(verdict: Verdict, sample: Sample, runs: Runs, unit: Unit) -> Verdict:
    """Return the verdict that an interval decides, if it stands after twice the budget."""
    check, seeds = sample.check, sample.seeds_and_size()
    decision = decide(verdict.claim, check, verdict.interval, unit, verdict.setting, seeds)
    status, reason, records = decision.status, decision.reason, verdict.records
    if check.has_to_rest(verdict.scale) and status not in OPEN:
        confirmation = confirm(verdict, sample, runs, unit, status)
        if not confirmation.holds:
            status = WORDS[verdict.setting]["open"]
        reason += confirmation.reason
        records = tuple(dict.fromkeys((*records, *confirmation.records)))
    if isinstance(check.metric, Quantity):
        reason += check.metric.note([r for run in sample.paired for r in run.records])
    return replace(verdict, status=status, reason=f"{reason}.", records=records)


# ------------------------------------------------------------------------- theorems and counts


def _judge_theorem(claim: Claim, check: Check, runs: Runs) -> Verdict:
    """Judge a theorem by its worst record: it must hold at every scale."""
    (select,) = check.selects
    arm = runs.pick(claim.paper, select, "cpu", "paper", single=True)
    verdict = _open_exact(claim, arm)
    obstacle = missing(claim, check, (arm,), runs, verdict.scale)
    if obstacle:
        return _waiting(verdict, obstacle)
    obstacle = failures(arm)
    if obstacle:
        return replace(verdict, reason=obstacle)
    metrics = [run.read(check.metric) for run in arm]
    if check.op == "≥":
        worst = min(metrics, key=lambda metric: metric.value)
        holds = worst.value >= check.bound
        side, other = "above", "below"
    else:
        worst = max(metrics, key=lambda metric: metric.value)
        holds = worst.value <= check.bound
        side, other = "below", "above"
    where = f"at or {side}" if holds else other
    reason = (
        f"In the worst of {plural(verdict.n, 'run')} the {metric_title(str(check.metric))} is "
        f"{number(worst.value)}, {where} {number(check.bound)}; tested in {check.test}."
    )
    status = "holds" if holds else "fails"
    verdict = replace(verdict, status=status, reason=reason, ours=worst.value, unit=worst.unit)
    if worst.value == check.bound == 0 and claim.value is not None:
        # The metric is the distance from the paper's value; at zero, ours is the paper's.
        return replace(verdict, ours=claim.value, unit=claim.unit)
    return verdict


def _judge_count(claim: Claim, check: Check, runs: Runs) -> Verdict:
    """Judge a count, such as the parameters of a network that is built and not trained.

    Every record at paper scale has to show the paper's count, within the tolerance.
    """
    sample = pick(claim, check, runs, "paper")
    (arm,) = sample.runs_of_arms
    verdict = _open_exact(claim, arm)
    if not arm:
        return _waiting(verdict, "Nothing has been counted at paper scale yet.")
    obstacle = missing(claim, check, (arm,), runs, "paper")
    if obstacle:
        return _waiting(verdict, obstacle)
    obstacle = failures(arm)
    if obstacle:
        return replace(verdict, reason=obstacle)
    counts = [run.read(check.metric).value for run in arm]
    farthest = max(counts, key=lambda count: abs(count - claim.value))
    holds = abs(farthest - claim.value) <= claim.tolerance * (1 + 1e-9)
    reason = (
        f"We count {number(farthest)}; the paper prints {claim.printed}, "
        f"and {number(claim.tolerance)} is the tolerance."
    )
    status = "holds" if holds else "fails"
    return replace(verdict, status=status, reason=reason, ours=farthest, unit=claim.unit)


def _open_exact(claim: Claim, arm: Sequence[Run]) -> Verdict:
    """Return the verdict on a theorem or a count before anything is decided.

    ``n`` counts a configuration and seed once, even where both scales have a record of it.
    """
    at_cpu_scale = any(run.records[0].trial.scale == "cpu" for run in arm)
    return Verdict(
        claim,
        WORDS[EXACT]["open"],
        "",
        scale="cpu" if at_cpu_scale else "paper",
        n=len({(hash_of(run.records[0].config), run.seed) for run in arm}),
        exact=True,
        **verdict_fields(arm),
    )


# ------------------------------------------------------------------- claims of several parts


def _judge_parts(claim: Claim, check: AtLeast, runs: Runs, scale: Scale) -> Verdict:
    """Judge a claim of several parts by the verdicts on them, all at one scale.

    Raises :class:`ValueError` for a number of parts that cannot be had.
    """
    total, needed = len(check.parts), check.needed
    if not 1 <= needed <= total:
        raise ValueError(f"{claim.id}: a check cannot need {needed} of {total} parts.")
    parts = []
    for label, part in check.parts.items():
        parts.append(replace(_judge(claim, part, runs, scale), name=label))
    verdict = _together(claim, parts)
    verdict = replace(verdict, lost=total - number_failing(parts) < needed)
    decision = _decide_parts(verdict, needed)
    reason = f"{decision.reason}."
    for part, clash in check.errata.items():
        reason += f" Left out, since the paper's own numbers contradict it: {part} ({clash})."
    if decision.status == "waiting":
        verdict = replace(verdict, scale=None)
    return replace(verdict, status=decision.status, reason=reason)


def _together(claim: Claim, parts: Sequence[Verdict]) -> Verdict:
    """Return the verdict on a claim of several parts before anything is decided."""
    judged = [part for part in parts if part.scale]
    records: dict[str, None] = {}
    differences: dict[str, None] = {}
    for part in parts:
        records |= dict.fromkeys(part.records)
        differences |= dict.fromkeys(part.derived)
    all_exact = bool(judged) and all(part.exact for part in judged)
    return Verdict(
        claim,
        "waiting",
        "",
        n=min((part.n for part in judged), default=0),
        scale="cpu" if any(part.scale == "cpu" for part in judged) else "paper",
        records=tuple(records),
        derived=tuple(differences),
        partial=any(part.partial for part in judged),
        baseline=bool(judged) and all(part.baseline for part in judged),
        exact=claim.kind == "property" or all_exact,
        parts=tuple(parts),
    )


def _decide_parts(verdict: Verdict, needed: int) -> Decision:
    """Decide a claim of several parts, of which ``needed`` have to hold, and say why.

    A lost claim is contradicted if more than half of its single checks are, those of nested
    parts included. Otherwise it holds in part if more parts hold than fail, and fails in part
    if not.
    """
    parts, words = verdict.parts, WORDS[verdict.setting]
    failing = [part.name for part in parts if part.fails]
    waiting = [part.name for part in parts if part.status in GROUPS[NOT_RUN]]
    undecided = []
    for part in parts:
        if not part.fails and part.status not in (*HELD, *GROUPS[NOT_RUN]):
            undecided.append(part.name)
    held = number_of(HELD, parts)
    counts = tally(parts)
    reason = f"{counts[0].upper()}{counts[1:]}; the claim needs {needed}"
    if held >= needed:
        return Decision(words["for"], reason)
    if verdict.lost:
        leaf_verdicts = list(_leaf_verdicts(parts))
        if 2 * number_of(AGAINST, leaf_verdicts) > len(leaf_verdicts):
            status = words["against"]
        else:
            status = "holds in part" if held > len(failing) else "fails in part"
        return Decision(status, f"{reason}; against it: {first_names(failing)}")
    if held:
        return Decision(
            "holds in part", f"{reason}; not decided: {first_names(waiting + undecided)}"
        )
    if waiting:
        return Decision("waiting", f"{reason}; not run: {first_names(waiting)}")
    return Decision(words["open"], f"{reason}; undecided: {first_names(undecided)}")


def _leaf_verdicts(parts: Iterable[Verdict]) -> Iterator[Verdict]:
    """Yield the verdicts on the single checks, those of nested parts included."""
    for part in parts:
        if part.parts:
            yield from _leaf_verdicts(part.parts)
        else:
            yield part
