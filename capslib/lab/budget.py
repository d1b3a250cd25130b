"""Which trials to run in a given time: those that decide most claims, headlines first.

Trials count by *bundles*: everything that a claim still waits for, all its arms and all their
seeds. A part of a bundle decides nothing. Bundles share trials, and trials share trainings;
each is counted once.
"""

from __future__ import annotations

import functools
import heapq
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from capslib import papers
from capslib.errors import UserError
from capslib.lab.claims import verdicts, waits_after
from capslib.lab.estimates import Estimate, Total, total
from capslib.lab.headlines import of_claim
from capslib.lab.planning import (
    GIB,
    Crew,
    experience_of,
    largest_memory,
    need_on_card,
    plan_workers,
    slots,
)
from capslib.lab.provenance import code_hash
from capslib.lab.settings import Settings, cuda_devices
from capslib.lab.store import Store
from capslib.lab.words import ERRATA, EXACT, NOT_RUN, OPEN, Verdict
from capslib.papers.check import leaves
from capslib.papers.experiment import Scale, Trial
from capslib.recipes import Training

UNITS = {"h": 3600, "m": 60, "s": 1}
LONGEST = 10_000 * 3600
"""Seconds of the longest budget, more than a year."""
NEARLY = 0.9
"""A part of a bundle goes first if it decides this share of its headlines per second."""
WORTH_BEGINNING = 0.95
"""The share of a budget up to which it is worth beginning what does not end in it."""
LEAST_SHARE = 0.05
"""The least share of its time that a trial takes, even if all its trainings exist."""


def seconds_of(text: str) -> float:
    """Return the seconds of a duration such as ``15m``. Raises UserError for anything else.

    >>> seconds_of("90s"), seconds_of("1h30m"), seconds_of("0.5h")
    (90.0, 5400.0, 1800.0)
    """
    number = r"(\d{1,9}(?:\.\d{1,9})?)"
    match = re.fullmatch(f"(?:{number}h)?(?:{number}m)?(?:{number}s)?", text.strip())
    parts = match.groups() if match else ()
    seconds = sum(
        float(part or 0) * unit for part, unit in zip(parts, UNITS.values(), strict=False)
    )
    if not 1 <= seconds <= LONGEST:
        raise UserError(
            f"{text!r} is no time for --budget: give hours, minutes or seconds, "
            "as in 12h, 15m, 90s or 1h30m, from a second to 10,000 hours."
        )
    return seconds


# ------------------------------------------------------------------------- what claims wait for


@dataclass(frozen=True)
class Bundle:
    """Claims that wait for the same trials, and the keys of these trials."""

    claims: tuple[str, ...]
    trials: frozenset[str]


@dataclass
class Waiting:
    """The bundles of some papers at a scale, and every trial in them by its key."""

    bundles: list[Bundle] = field(default_factory=list)
    trials: dict[str, Trial] = field(default_factory=dict)

    def among(self, keys: Set[str]) -> Waiting:
        """Return the bundles with all their trials in ``keys``, and the trials in ``keys``."""
        bundles = [bundle for bundle in self.bundles if bundle.trials <= keys]
        return Waiting(bundles, {key: t for key, t in self.trials.items() if key in keys})

    def without(self, done: Set[str]) -> Waiting:
        """Return what still waits when the trials in ``done`` have run."""
        bundles = []
        for bundle in self.bundles:
            if not bundle.trials <= done:
                bundles.append(Bundle(bundle.claims, bundle.trials - done))
        return Waiting(bundles, {key: t for key, t in self.trials.items() if key not in done})

    @property
    def claims(self) -> list[str]:
        """The ids of all claims that wait."""
        return [claim for bundle in self.bundles for claim in bundle.claims]


def waiting_for(stems: Iterable[str], scale: Scale, store: Store) -> Waiting:
    """Return what the claims of papers wait for that trials at a scale can decide."""
    waiting = Waiting()
    claims: dict[frozenset[str], list[str]] = {}
    for stem in stems:
        if stem not in papers.PAPERS:
            continue  # a study makes no claims
        waits = waits_after(stem, store.records(stem))
        for verdict in verdicts(stem, store=store):
            claim = verdict.claim.id
            if claim not in waits or not decidable(verdict, scale):
                continue
            wait = waits[claim].get(scale)
            trials = [] if wait is None else [*wait.trials, *wait.doubles]
            if trials and not any(is_blocked(trial, store) for trial in trials):
                waiting.trials |= {trial.key: trial for trial in trials}
                claims.setdefault(frozenset(t.key for t in trials), []).append(claim)
    waiting.bundles = [Bundle(tuple(ids), trials) for trials, ids in claims.items()]
    return waiting


def is_blocked(trial: Trial, store: Store) -> bool:
    """Return whether a file that does not count keeps a trial from running.

    Its record ended and was left out, or a newer version of the code wrote it. Somebody has to
    remove it first; the store has warned of it.
    """
    try:
        return store.ended(trial) is not None
    except UserError:
        return True


def decidable(verdict: Verdict, scale: Scale) -> bool:
    """Return whether more trials at a scale may decide a claim that nothing has decided yet.

    A reduced setting decides no value and nothing that the paper's own size has judged.
    """
    if verdict.group == ERRATA or (verdict.group == NOT_RUN and verdict.status != "waiting"):
        return False
    if verdict.group == EXACT and verdict.status not in OPEN:
        return False
    if scale == "paper":
        return True
    check = papers.checks_of(verdict.claim.paper)[verdict.claim.id]
    needs_paper_scale = any(leaf.paper_scale_only for leaf in leaves(check))
    is_judged = verdict.scale == "paper" and verdict.status != "waiting"
    return not (verdict.claim.kind == "value" or needs_paper_scale or is_judged)


# -------------------------------------------------------------------------------- what it costs


@dataclass(frozen=True)
class Cost:
    """Estimate of a trial, and the share of its time that each training takes, by key."""

    estimate: Estimate
    trainings: Mapping[str, float] = field(default_factory=dict)

    def without(self, trained: Set[str]) -> Estimate:
        """Return the estimate without the trainings in ``trained``."""
        saved = sum(share for key, share in self.trainings.items() if key in trained)
        return self.estimate if not saved else self.estimate.times(max(LEAST_SHARE, 1 - saved))


def cost_of(trial: Trial, estimate: Estimate, store: Store) -> Cost:
    """Return the cost of a trial, less what checkpoints of its trainings have done already."""
    trainings = papers.experiment_of(trial).trainings(papers.arm(trial), trial.seed)
    steps = sum(training.recipe.steps for training in trainings)
    shares = {t.key: t.recipe.steps * (1 - progress_of(t, store)) / steps for t in trainings}
    remaining = max(LEAST_SHARE, sum(shares.values())) if shares else 1.0
    shares_of_remaining = {key: share / remaining for key, share in shares.items()}
    return Cost(estimate.times(remaining), shares_of_remaining)


def progress_of(training: Training, store: Store) -> float:
    """Return the share of a training that is done in a checkpoint of the current code."""
    state = read_checkpoint(training.path(store.trainings))
    if state is None or state.code != code_hash(type(training.recipe).__module__):
        return 0.0
    return 1.0 if state.finished else state.step / training.recipe.steps


class Checkpoint(NamedTuple):
    """How far the training in a checkpoint came, and a hash of the code that it ran with."""

    finished: bool
    step: int
    code: str


def read_checkpoint(path: Path) -> Checkpoint | None:
    """Return how far the training in a file came; None if it is damaged or not there."""
    if not path.exists():
        return None
    import torch

    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        return Checkpoint(bool(state["finished"]), int(state["step"]), state["code"])
    except Exception:  # torch.load raises whatever the damaged bytes break
        return None


def durations(estimates: Iterable[Estimate], crew: Crew) -> list[float]:
    """Return the seconds of trials that run on such a crew, the longest first.

    More trials on a card than it runs at once slow each other down.
    """
    seconds = []
    for estimate in estimates:
        crowd = max(1.0, crew.workers_per_card / estimate.together)
        seconds.append((estimate.seconds or 0.0) * crowd)
    return sorted(seconds, reverse=True)


def schedule(free: Sequence[float], seconds: Iterable[float], crew: Crew) -> list[float]:
    """Return when each worker is free after these trials.

    ``free`` has the times at which they are free before. The next trial goes to the worker that
    is free first. Another crew begins when all of the one before have ended.

    >>> schedule([0.0, 0.0], [3.0, 2.0, 2.0], Crew(2, 1))
    [3.0, 4.0]
    """
    same_crew = len(free) == crew.workers
    times = list(free) if same_crew else [max(free)] * crew.workers
    heapq.heapify(times)
    for duration in seconds:
        heapq.heapreplace(times, times[0] + duration)
    return sorted(times)


# ----------------------------------------------------------------------------------- the choice


@dataclass(frozen=True)
class Group:
    """Trials to run next, the claims that are then decided, and what they take."""

    claims: tuple[str, ...]
    headlines: int
    trials: tuple[str, ...]
    crew: Crew
    time: Total
    ends: float
    """Seconds until its last trial ends, if it runs next."""

    @property
    def seconds(self) -> float:
        """The seconds of its trials, at least a millisecond: rates divide by them."""
        return max(self.time.seconds, 1e-3)

    @property
    def headline_rate(self) -> float:
        """Headline claims per second, in two digits."""
        return two_digits(self.headlines / self.seconds)

    @property
    def claim_rate(self) -> float:
        """Claims per second, in two digits."""
        return two_digits(len(self.claims) / self.seconds)

    @property
    def rank(self) -> tuple[float, float, float]:
        """Headline claims per second, claims per second, and minus the seconds."""
        return self.headline_rate, self.claim_rate, -self.seconds


def two_digits(rate: float) -> float:
    """Return a rate in two digits, so that of nearly equal groups the shorter wins."""
    return float(f"{rate:.1e}")


@dataclass(frozen=True)
class Choice:
    """Groups that fit into a time, in their order; one to begin; and what is left out.

    ``left_out`` has what each bundle that is left out takes after the choice, the best first.
    """

    groups: list[Group]
    begun: Group | None
    left_out: list[Group]

    @property
    def groups_to_run(self) -> list[Group]:
        """The groups that fit, then the one to begin."""
        return [*self.groups, self.begun] if self.begun else self.groups

    @property
    def trials(self) -> list[str]:
        """The keys of all trials to run, in their order."""
        keys = (key for group in self.groups_to_run for key in group.trials)
        return list(dict.fromkeys(keys))


def choose(
    bundles: Iterable[Bundle],
    costs: Mapping[str, Cost],
    seconds: float,
    crew_of: Callable[[Sequence[Estimate]], Crew] = lambda estimates: Crew(1, 1),
) -> Choice:
    """Choose the bundles that decide most headline claims, then most claims, per second.

    Take the best bundle that still fits, again and again. A trial that is already chosen costs
    the next bundle nothing. If time is left, begin the best that does not fit.
    """
    waiting = list(bundles)
    chosen: set[str] = set()
    trained: set[str] = set()
    free = [0.0]
    groups: list[Group] = []
    left_out = _groups(waiting, costs, chosen, trained, free, crew_of)
    while fitting := [group for group in left_out if group.ends <= seconds]:
        best = _smallest(fitting)
        groups.append(best)
        estimates = _remaining(best.trials, costs, trained)
        free = schedule(free, durations(estimates, best.crew), best.crew)
        for key in best.trials:
            chosen.add(key)
            trained |= costs[key].trainings.keys()
        waiting = [bundle for bundle in waiting if not bundle.trials <= chosen]
        left_out = _groups(waiting, costs, chosen, trained, free, crew_of)
    begun = left_out[0] if left_out and min(free) < WORTH_BEGINNING * seconds else None
    return Choice(groups, begun, left_out)


def _smallest(groups: Sequence[Group]) -> Group:
    """Return the best group, or its smallest part with nearly as many headlines per second.

    Without headlines it is its smallest part. What is decided early stays decided, should the
    rest not end in time.
    """
    best = groups[0]
    smallest = best
    for group in groups[1:]:
        is_part = set(group.trials) < set(smallest.trials)
        is_nearly_as_good = group.headline_rate >= NEARLY * best.headline_rate
        if is_part and is_nearly_as_good:
            smallest = group
    return smallest


def _remaining(
    keys: Iterable[str], costs: Mapping[str, Cost], trained: Set[str]
) -> list[Estimate]:
    """Return what each trial still takes; a training that several share counts once."""
    estimates = []
    covered = set(trained)
    for key in keys:
        estimates.append(costs[key].without(covered))
        covered |= costs[key].trainings.keys()
    return estimates


def _groups(
    waiting: Sequence[Bundle],
    costs: Mapping[str, Cost],
    chosen: Set[str],
    trained: Set[str],
    free: Sequence[float],
    crew_of: Callable[[Sequence[Estimate]], Crew],
) -> list[Group]:
    """Return what each bundle would be as the next group, the best first."""
    groups = []
    for bundle in waiting:
        claims = []
        for other in waiting:
            if other.trials <= chosen | bundle.trials:
                claims += other.claims
        keys = [key for key in costs if key in bundle.trials and key not in chosen]
        estimates = _remaining(keys, costs, trained)
        crew = crew_of(estimates)
        times = durations(estimates, crew)
        group = Group(
            claims=tuple(claims),
            headlines=sum(1 for claim in claims if of_claim(claim)),
            trials=tuple(keys),
            crew=crew,
            time=total(estimates, crew.devices, crew.workers_per_card),
            ends=max(schedule(free, times, crew)),
        )
        groups.append(group)
    return sorted(groups, key=lambda group: group.rank, reverse=True)


# ------------------------------------------------------------------------------ of one machine

ELSEWHERE = 80 * GIB
"""Memory of the card that a plan for another machine assumes, in bytes."""
CORES_ELSEWHERE = 16
MANY = 10_000
"""A number of trials that never limits the number of workers."""


def crews(settings: Settings) -> Callable[[Sequence[Estimate]], Crew]:
    """Return a function that gives the crew for trials: as many as fit in memory.

    If the memory of a trial is not known, a card runs one trial at a time.
    """
    has_device = not settings.device.startswith("cuda") or cuda_devices() > 0

    @functools.cache
    def crew_for(memory: int | None) -> Crew:
        if has_device:
            return Crew.on(plan_workers(settings, MANY, memory))
        if settings.workers:
            return Crew(1, settings.workers)
        need = ELSEWHERE if memory is None else need_on_card(memory)
        return Crew(1, len(slots(MANY, [ELSEWHERE], need, CORES_ELSEWHERE)))

    def crew(estimates: Sequence[Estimate]) -> Crew:
        return crew_for(largest_memory(estimates, settings.device))

    return crew


def plan_budget(waiting: Waiting, store: Store, settings: Settings, seconds: float) -> Choice:
    """Return what to run in so many seconds on this machine."""
    stems = {trial.paper for trial in waiting.trials.values()}
    experience = experience_of(stems, store, settings.device)
    costs = {}
    for key, trial in waiting.trials.items():
        costs[key] = cost_of(trial, experience.estimate(trial), store)
    return choose(waiting.bundles, costs, seconds, crews(settings))
