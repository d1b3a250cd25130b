"""What trials take: time and memory, as records of the same training step tell."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from capslib import papers
from capslib.config import hash_of
from capslib.errors import UserError
from capslib.lab.ledger import plural
from capslib.lab.records import Record
from capslib.lab.runs import code_hash
from capslib.lab.store import Store
from capslib.papers.experiment import Scale, Trial
from capslib.recipes import BaseRecipe, flops

CARD = 20e12
"""FLOP/s that one large card is taken to reach.

Networks that mostly convolve reach more; those that mostly route are not measured.
"""
TINY = 1e6
"""FLOPs of a step so small that it spends its time between the operations."""
NOT_OF_A_STEP = {
    *("data", "resize", "crop", "downsample", "jitter", "images", "epochs", "learning_rate"),
    *("shared_stream", "setup", "kind", "percent", "draw", "normals", "nrg_pam", "sees"),
    *("stop_on", "stop_examples", "stop_after", "keep"),
}
"""Fields that change a step only by the shape of its inputs and the number of classes."""


@dataclass(frozen=True)
class Estimate:
    """Seconds and bytes of a trial, None where nothing tells, and what they rest on."""

    seconds: float | None
    memory: int | None
    basis: str


UNKNOWN = Estimate(None, None, "no record to go by; --max-steps 20 rehearses it")


class Work(NamedTuple):
    """The training steps of a trial, and their FLOPs; none where it trains nothing."""

    steps: int
    flops: int

    @property
    def tiny(self) -> bool:
        """Whether the steps are so small that their FLOPs do not tell their time."""
        return self.flops <= TINY * self.steps


def recipes(trial: Trial) -> tuple[BaseRecipe, ...]:
    """Return what a trial trains; nothing where nobody knows its configuration today."""
    if not papers.known(trial):
        return ()
    trainings = papers.experiment_of(trial).trainings(papers.arm(trial), trial.seed)
    return tuple(training.recipe for training in trainings)


@functools.lru_cache(maxsize=65_536)
def step_name(recipe: BaseRecipe) -> str:
    """Return a hash of what the time of a step depends on, the machine aside."""
    kind = type(recipe).__qualname__
    fields = recipe.model_dump(mode="json", exclude=NOT_OF_A_STEP)
    return hash_of([kind, fields, recipe.input_shape, recipe.number_of_classes()])


def step_names(trial: Trial) -> tuple[str, ...]:
    """Return the names of the steps of all trainings of a trial."""
    return tuple(sorted(step_name(recipe) for recipe in recipes(trial)))


def steps(trial: Trial) -> int:
    """Return the number of steps of all trainings of a trial."""
    return sum(recipe.steps for recipe in recipes(trial))


def work(trial: Trial) -> Work:
    """Return the steps of a trial and their FLOPs, as counted from its networks.

    Raise UserError for a network that cannot be built.
    """
    return _work(recipes(trial))


@functools.lru_cache(maxsize=65_536)
def _work(recipes: tuple[BaseRecipe, ...]) -> Work:
    flops = sum(recipe.steps * flops_of_step(recipe) for recipe in recipes)
    return Work(sum(recipe.steps for recipe in recipes), flops)


_counted: dict[str, int] = {}


def flops_of_step(recipe: BaseRecipe) -> int:
    """Return the FLOPs of a step, counted once for recipes with the same step.

    Raise UserError for a network that cannot be built.
    """
    name = step_name(recipe)
    if name not in _counted:
        try:
            count = _kept_count()
            _counted[name] = count(recipe, name, code_hash(type(recipe).__module__))
        except (UserError, TypeError, ValueError, RuntimeError, ArithmeticError) as error:
            data = getattr(recipe, "data", None) or "its data"
            raise UserError(
                f"{recipe.network}, {recipe.routing} routing and {data} do not go together: "
                f"{error}"
            ) from error
    return _counted[name]


def _count(recipe: BaseRecipe, name: str, code: str) -> int:
    return flops(recipe)


@functools.cache
def _kept_count() -> Callable[[BaseRecipe, str, str], int]:
    """Return the count that the user's cache keeps until a step or its code changes.

    Where the cache cannot be written, every process counts anew.
    """
    import joblib
    import pooch

    try:
        memory = joblib.Memory(pooch.os_cache("capslib") / "flops", verbose=0)
    except OSError:
        return _count
    return memory.cache(_count, ignore=["recipe"])


def networks_of(trial: Trial) -> frozenset[tuple[str, str]]:
    """Return the networks that a trial trains, each with its routing."""
    return frozenset((recipe.network, recipe.routing) for recipe in recipes(trial))


class Experience:
    """What earlier trials took on one kind of machine, CPU or GPU."""

    def __init__(self, records: Iterable[Record], device: str):
        self.ended: dict[str, list[Record]] = {}
        """The records of trainings that ended well, by paper."""
        self.rehearsed: dict[str, Record] = {}
        self._by_step: dict[tuple, list[Record]] = {}
        self._rates: dict[tuple, float | None] = {}
        for record in records:
            on_cpu = record.environment.device.startswith("CPU")
            if on_cpu != (device == "cpu"):
                continue
            if record.exit == "cut" and not record.message:
                self.rehearsed[record.key] = record
            elif record.exit == "ok":
                self.ended.setdefault(record.trial.paper, []).append(record)
                names = step_names(record.trial)
                for experiment in (record.trial.experiment, ""):
                    step = record.trial.paper, experiment, names
                    self._by_step.setdefault(step, []).append(record)

    def estimate(self, trial: Trial) -> Estimate:
        """Return what a trial will take, by the best that is known of it.

        First: records of the same training step, in the same experiment, then in others, by
        the median of their seconds a step. Second: a rehearsal of this trial (``--max-steps``).
        Third: its FLOPs, at the rate of the paper's records. Raise UserError where its network
        cannot be built.
        """
        names = step_names(trial)
        for experiment, origin in ((trial.experiment, ""), ("", " of other experiments")):
            records = self._by_step.get((trial.paper, experiment, names))
            if names and records:
                return self._by_steps(trial, records, origin)
        return self._by_rehearsal(trial) or self._by_flops(trial) or UNKNOWN

    def _by_steps(self, trial: Trial, records: list[Record], origin: str) -> Estimate:
        seconds = statistics.median(r.wall_seconds / steps(r.trial) for r in records)
        memory = max(record.peak_memory_bytes for record in records)
        basis = f"{plural(len(records), 'record')} of the same step{origin}"
        return Estimate(seconds * steps(trial), memory, basis)

    def _by_rehearsal(self, trial: Trial) -> Estimate | None:
        record = self.rehearsed.get(trial.key)
        if record is None or not record.series.get("seconds_of_steps") or not steps(trial):
            return None
        step = statistics.median(record.series["seconds_of_steps"])
        seconds = record.wall_seconds + step * steps(trial)
        basis = "by the steps of its rehearsal, without evaluations between epochs"
        return Estimate(seconds, record.peak_memory_bytes, basis)

    def _by_flops(self, trial: Trial) -> Estimate | None:
        rate = self.rate(trial)
        if rate is None or not work(trial).flops:
            return None
        basis = f"by its FLOPs, at the {rate / 1e9:.2g} GFLOP/s of the paper's records"
        return Estimate(work(trial).flops / rate, None, basis)

    def rate(self, trial: Trial) -> float | None:
        """Return the median FLOPs a second of records of a paper, of the same networks first.

        Tiny steps tell nothing of others.
        """
        networks = networks_of(trial)
        if not networks or trial.paper not in self.ended:
            return None  # counting would take torch, and a moment
        key = trial.paper, networks, work(trial).tiny
        if key not in self._rates:
            self._rates[key] = self._median_rate(*key)
        return self._rates[key]

    def _median_rate(self, paper: str, networks: frozenset, tiny: bool) -> float | None:
        rates: list[float] = []
        rates_of_others: list[float] = []
        for record in self.ended[paper]:
            done = work(record.trial)
            if record.wall_seconds and done.flops and (tiny or not done.tiny):
                rate = done.flops / record.wall_seconds
                if networks_of(record.trial) == networks:
                    rates.append(rate)
                else:
                    rates_of_others.append(rate)
        rates = rates or rates_of_others
        return statistics.median(rates) if rates else None


class Outlook(NamedTuple):
    """What is left of an experiment: trials, FLOPs, and hours of a CPU core if known."""

    experiment: str
    trials: int
    waiting: int
    flops: int
    hours: float | None


def outlook(stem: str, scale: Scale, store: Store) -> Iterator[Outlook]:
    """Yield what is left of every experiment of a paper that still has something to train."""
    records = list(store.records(stem))
    done = {record.key for record in records}
    experience = Experience(records, "cpu")
    for name, experiment in papers.experiments(stem).items():
        trials = experiment.trials(scale)
        waiting = [trial for trial in trials if trial.key not in done]
        total = sum(work(trial).flops for trial in waiting)
        if not total:
            continue
        seconds = [experience.estimate(trial).seconds for trial in waiting]
        hours = None if None in seconds else sum(seconds) / 3600
        yield Outlook(name, len(trials), len(waiting), total, hours)
