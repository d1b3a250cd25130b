"""Estimate seconds and bytes of trials: from records, a rehearsal, or counted work."""

from __future__ import annotations

import functools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from capslib import papers
from capslib.config import hash_of
from capslib.errors import UserError
from capslib.lab.provenance import code_hash
from capslib.lab.records import Record
from capslib.lab.store import Store
from capslib.papers.experiment import Scale, Trial
from capslib.recipes import BaseRecipe


class Machine(NamedTuple):
    """What a class of devices reaches: FLOP/s, bytes a second, and seconds of a launch."""

    flops: float
    traffic: float
    launch: float


CPU_CORE = Machine(flops=50e9, traffic=12e9, launch=50e-6)
"""One CPU core: the average over the records of about 130 training steps."""
CARD = Machine(flops=50e12, traffic=2.5e12, launch=4e-6)
"""One large GPU.

The arithmetic is that of the only network that was measured on one, which mostly convolves.
Half the bandwidth of such cards, and launches of a captured step, are assumed.
"""
FUSED = 0.15
"""The share of bytes and launches outside products that remains after compiling."""
DOUBT = 2.5
"""Factor, up and down, by which a step that was never measured may miss its estimate."""
MEASURED_DOUBT = 1.5
"""That factor for a rehearsed step, or for a network that was measured in another size."""
START_SECONDS = 10.0
"""What a trial takes before its first step: data, kernels, a compiler."""
UNTRAINED_SECONDS = 10.0
"""Assumed seconds of a trial that trains nothing and has no record to go by."""
IGNORED_FIELDS = {
    *("data", "resize", "crop", "downsample", "jitter", "images", "epochs", "learning_rate"),
    *("shared_stream", "setup", "kind", "percent", "draw", "normals", "nrg_pam", "sees"),
    *("stop_on", "stop_examples", "stop_after", "keep"),
}
"""Fields that do not change the time of a step, or only by input shape and classes."""

BY_RECORDS = "records of the same step"
BY_OTHERS = "records of the same step in other experiments"
BY_REHEARSAL = "a rehearsal of the same step"
BY_PACE = "counted work at the pace of the network in other sizes"
BY_WORK = "counted work alone"
NOT_MEASURED = (BY_PACE, BY_WORK)
"""Bases of an estimate for a step that was neither recorded nor rehearsed."""
BY_KIND = "records of the experiment"
BY_GUESS = "ten seconds each, for nothing is trained"


@dataclass(frozen=True)
class Estimate:
    """Seconds and bytes that a trial takes, None if unknown, and the basis of the estimate.

    ``low`` and ``high`` bound the expected seconds. ``together`` is how many such trials can
    share one card before they slow each other down.
    """

    seconds: float | None
    memory: int | None
    basis: str
    low: float | None = None
    high: float | None = None
    together: float = 1.0

    @property
    def device_seconds(self) -> float | None:
        """The seconds of a core or card for one trial, if it is shared as ``together`` says."""
        return None if self.seconds is None else self.seconds / self.together

    def times(self, factor: float) -> Estimate:
        """Return the estimate for a part of the trial, or for several."""
        if self.seconds is None:
            return self
        low, high = self.low, self.high
        return Estimate(
            self.seconds * factor,
            self.memory,
            self.basis,
            None if low is None else low * factor,
            None if high is None else high * factor,
            self.together,
        )


UNKNOWN = Estimate(None, None, "no record to go by; --max-steps 20 rehearses it")


class Total(NamedTuple):
    """Seconds of several trials, their range, and the number of trials for each basis.

    ``unknown`` counts the trials without an estimate, which are not in the seconds.
    """

    seconds: float
    low: float
    high: float
    unknown: int
    bases: Counter[str]


def total(
    estimates: Iterable[Estimate], devices: int = 1, workers_per_card: float = math.inf
) -> Total:
    """Return the seconds that trials take together on ``devices`` cores or cards.

    By default ``together`` alone limits how many share one card.
    """
    seconds = low = high = 0.0
    unknown = 0
    bases: Counter[str] = Counter()
    for estimate in estimates:
        bases[estimate.basis] += 1
        if estimate.seconds is None:
            unknown += 1
            continue
        share = devices * min(workers_per_card, estimate.together)
        seconds += estimate.seconds / share
        low += (estimate.seconds if estimate.low is None else estimate.low) / share
        high += (estimate.seconds if estimate.high is None else estimate.high) / share
    return Total(seconds, low, high, unknown, bases)


def total_of(parts: Iterable[Total]) -> Total:
    """Return the sum of several totals."""
    seconds = low = high = 0.0
    unknown = 0
    bases: Counter[str] = Counter()
    for part in parts:
        seconds, low, high = seconds + part.seconds, low + part.low, high + part.high
        unknown += part.unknown
        bases.update(part.bases)
    return Total(seconds, low, high, unknown, bases)


# ---------------------------------------------------------------------------- what a step does


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
    fields = recipe.model_dump(mode="json", exclude=IGNORED_FIELDS)
    return hash_of([kind, fields, recipe.input_shape, recipe.number_of_classes()])


def step_names(trial: Trial) -> tuple[str, ...]:
    """Return the names of the steps of all trainings of a trial."""
    return tuple(sorted(step_name(recipe) for recipe in recipes(trial)))


def steps(trial: Trial) -> int:
    """Return the number of steps of all trainings of a trial."""
    return sum(recipe.steps for recipe in recipes(trial))


def flops(trial: Trial) -> int:
    """Return the FLOPs of all steps of a trial, as counted from its networks.

    Raise UserError for a network that cannot be built.
    """
    return sum(recipe.steps * counted(recipe).flops for recipe in recipes(trial))


class StepCount(NamedTuple):
    """What a training step does, as :func:`capslib.lab.counting.count_step` counts it."""

    flops: int
    bytes: int
    product_bytes: int
    launches: int
    product_launches: int
    fuses: int


COUNTING = "capslib.lab.counting"
"""The module that counts, which needs torch."""
_counted: dict[str, dict[str, int]] = {}


def counted(recipe: BaseRecipe) -> StepCount:
    """Return what a step does, counted once for recipes with the same step.

    Raise UserError for a network that cannot be built.
    """
    name = step_name(recipe)
    if name not in _counted:
        code = [code_hash(module) for module in (type(recipe).__module__, COUNTING)]
        try:
            _counted[name] = _kept_count()(recipe, name, code)
        except (UserError, TypeError, ValueError, RuntimeError, ArithmeticError) as error:
            data = getattr(recipe, "data", None) or "its data"
            raise UserError(
                f"{recipe.network}, {recipe.routing} routing and {data} do not go together: "
                f"{error}"
            ) from error
    return StepCount(**_counted[name])


def _count(recipe: BaseRecipe, name: str, code: list[str]) -> dict[str, int]:
    from capslib.lab.counting import count_step

    return count_step(recipe)


@functools.cache
def _kept_count() -> Callable[[BaseRecipe, str, list[str]], dict[str, int]]:
    """Return the count that the user's cache keeps until a step or its code changes.

    Where the cache cannot be written, every process counts anew.
    """
    import joblib
    import pooch

    try:
        memory = joblib.Memory(pooch.os_cache("capslib") / "steps", verbose=0)
    except OSError:
        return _count
    return memory.cache(_count, ignore=["recipe"])


class Roofline(NamedTuple):
    """Seconds of arithmetic, of memory traffic and of launches, each as if alone."""

    arithmetic: float
    traffic: float
    launches: float

    @property
    def low(self) -> float:
        """The largest of the three, as if the others ran meanwhile."""
        return max(self)

    @property
    def high(self) -> float:
        """The sum of the three, as if they ran one after another."""
        return sum(self)

    @property
    def middle(self) -> float:
        """The geometric mean of the two."""
        return math.sqrt(self.low * self.high)

    @property
    def busy(self) -> float:
        """The seconds in which a device has work; launches leave it idle."""
        return max(self.arithmetic, self.traffic)


def roofline(
    recipes: Iterable[BaseRecipe], machine: Machine, compiled: bool | None = None
) -> Roofline:
    """Return what trainings take on a machine, by all that their steps do.

    ``compiled`` says whether their routing is; by default it is where that pays.
    """
    arithmetic = traffic = launches = 0.0
    for recipe in recipes:
        count, steps = counted(recipe), recipe.steps
        moved, launched = count.bytes, count.launches
        if count.fuses and (is_long(recipe) if compiled is None else compiled):
            moved = count.product_bytes + FUSED * (moved - count.product_bytes)
            launched = count.product_launches + FUSED * (launched - count.product_launches)
        arithmetic += steps * count.flops / machine.flops
        traffic += steps * moved / machine.traffic
        launches += steps * launched * machine.launch
    return Roofline(arithmetic, traffic, launches)


def is_long(recipe: BaseRecipe) -> bool:
    """Return whether a training is long enough for ``torch.compile``."""
    from capslib.training import path_of

    return path_of(recipe.steps) == "compiled"


# ------------------------------------------------------------------------------ what it takes


def networks_of(trial: Trial) -> frozenset[tuple[str, str]]:
    """Return the networks that a trial trains, each with its routing."""
    return frozenset((recipe.network, recipe.routing) for recipe in recipes(trial))


class Experience:
    """What earlier trials took on one class of machines: CPU cores, or cards."""

    def __init__(self, records: Iterable[Record], device: str):
        self.on_cpu = device == "cpu"
        self.machine = CPU_CORE if self.on_cpu else CARD
        self.overlap = 1.0
        """How many trials ran at once on cards of one kind, on the average."""
        self._by_step: dict[tuple, list[Record]] = {}
        self._by_step_of_paper: dict[tuple, list[Record]] = {}
        self._by_network: dict[tuple, list[Record]] = {}
        self._untrained: dict[tuple, list[Record]] = {}
        self._rehearsed: dict[tuple, Record] = {}
        self._paces: dict[tuple, dict[tuple[str, ...], float]] = {}
        ended: list[Record] = []
        for record in records:
            if record.environment.device.startswith("CPU") != self.on_cpu:
                continue
            trial = record.trial
            if record.exit == "cut" and not record.message:
                self._rehearsed[trial.paper, step_names(trial)] = record
            elif record.exit == "ok":
                ended.append(record)
                self._remember(record)
        if not self.on_cpu:
            self.overlap = overlap(ended)

    def _remember(self, record: Record) -> None:
        trial = record.trial
        names = step_names(trial)
        if not names:
            kind = trial.paper, trial.experiment, trial.scale
            self._untrained.setdefault(kind, []).append(record)
            return
        step = trial.paper, trial.experiment, names
        self._by_step.setdefault(step, []).append(record)
        self._by_step_of_paper.setdefault((trial.paper, names), []).append(record)
        network = trial.paper, networks_of(trial)
        self._by_network.setdefault(network, []).append(record)

    def estimate(self, trial: Trial) -> Estimate:
        """Return what a trial will take, by the best that is known of it.

        First: records of the same training step, in the same experiment, then in others, by
        the median of their seconds a step. Second: a rehearsal of the same step
        (``--max-steps``). Third: the work that its steps do, at the pace of records of the same
        network in other sizes, if there are any. Raise UserError where its network cannot be
        built.
        """
        if not papers.known(trial):
            return UNKNOWN
        names = step_names(trial)
        if not names:
            return self._untrained_estimate(trial)
        records = self._by_step.get((trial.paper, trial.experiment, names))
        if records:
            return self._by_records(trial, records, BY_RECORDS)
        records = self._by_step_of_paper.get((trial.paper, names))
        if records:
            return self._by_records(trial, records, BY_OTHERS)
        return self._by_rehearsal(trial, names) or self._by_work(trial)

    def _untrained_estimate(self, trial: Trial) -> Estimate:
        records = self._untrained.get((trial.paper, trial.experiment, trial.scale))
        if not records:
            wide = UNTRAINED_SECONDS / 10, UNTRAINED_SECONDS * 10
            return Estimate(UNTRAINED_SECONDS, None, BY_GUESS, *wide)
        low, middle, high = quartiles([record.wall_seconds for record in records])
        memory = max(record.peak_memory_bytes for record in records)
        return Estimate(middle, memory, BY_KIND, low, high)

    def _by_records(self, trial: Trial, records: Sequence[Record], basis: str) -> Estimate:
        seconds = [record.wall_seconds / steps(record.trial) for record in records]
        low, middle, high = (steps(trial) * second for second in quartiles(seconds))
        memory = max(record.peak_memory_bytes for record in records)
        if self.overlap <= 1:
            return Estimate(middle, memory, basis, low, high)
        # Trials that share a card wait for each other. Divided by the overlap, their seconds
        # are those in which one trial keeps the card busy. Alone it also needs its start.
        busy = middle / self.overlap
        seconds = START_SECONDS + busy
        low = START_SECONDS + low / self.overlap
        high = START_SECONDS + high / self.overlap
        return Estimate(seconds, memory, basis, low, high, seconds / busy)

    def _by_rehearsal(self, trial: Trial, names: tuple[str, ...]) -> Estimate | None:
        record = self._rehearsed.get((trial.paper, names))
        if record is None or not record.series.get("seconds_of_steps"):
            return None
        step = statistics.median(record.series["seconds_of_steps"])
        seconds = record.wall_seconds + step * steps(trial)
        return Estimate(
            seconds,
            record.peak_memory_bytes,
            BY_REHEARSAL,
            seconds / MEASURED_DOUBT,
            seconds * MEASURED_DOUBT,
        )

    def _by_work(self, trial: Trial, compiled: bool | None = None) -> Estimate:
        """Return an estimate from counted work, at the pace of the network's other steps.

        Records of the same step are left out: :meth:`comparisons` tests against them.
        """
        line = roofline(recipes(trial), self.machine, compiled)
        same_step = step_names(trial)
        paces = [pace for step, pace in self._paces_of(trial).items() if step != same_step]
        if paces:
            basis = BY_PACE
            low_pace, pace, high_pace = quartiles(paces)
            low = line.middle * min(low_pace, pace / MEASURED_DOUBT)
            high = line.middle * max(high_pace, pace * MEASURED_DOUBT)
        else:
            basis = BY_WORK
            pace = 1.0
            low = line.low / DOUBT
            high = line.high * DOUBT
        seconds = START_SECONDS + line.middle * pace
        together = 1.0 if self.on_cpu else seconds / (line.busy * pace)
        return Estimate(
            seconds, None, basis, START_SECONDS + low, START_SECONDS + high, together
        )

    def _paces_of(self, trial: Trial) -> dict[tuple[str, ...], float]:
        """Return measured over counted seconds of the same networks, by their step names."""
        key = trial.paper, networks_of(trial)
        if key not in self._paces:
            by_step: dict[tuple[str, ...], list[float]] = {}
            for record in self._by_network.get(key, []):
                compiled = record.routing_path == "compiled"
                expected = roofline(recipes(record.trial), self.machine, compiled).middle
                pace = seconds_of_all_epochs(record) / (self.overlap * expected)
                by_step.setdefault(step_names(record.trial), []).append(pace)
            self._paces[key] = {step: statistics.median(p) for step, p in by_step.items()}
        return self._paces[key]

    def comparisons(self) -> Iterator[Comparison]:
        """Yield each measured step against its estimate as if nothing had measured it."""
        for records in self._by_step_of_paper.values():
            trial = records[0].trial
            seconds = [seconds_of_all_epochs(r) / steps(r.trial) for r in records]
            measured = statistics.median(seconds) * steps(trial) / self.overlap
            estimate = self._by_work(trial, records[0].routing_path == "compiled")
            names = sorted(f"{network}, {routing}" for network, routing in networks_of(trial))
            ratio = estimate.device_seconds / measured
            yield Comparison(" and ".join(names), len(records), ratio, estimate.basis)


class Comparison(NamedTuple):
    """How many times longer an estimate is than what so many records of a step measured."""

    networks: str
    records: int
    ratio: float
    basis: str

    @property
    def within_two(self) -> bool:
        """Whether estimate and measurement lie within a factor of two."""
        return 0.5 <= self.ratio <= 2


def seconds_of_all_epochs(record: Record) -> float:
    """Return what a training would have taken that had not stopped itself."""
    return record.wall_seconds / share_of_epochs(record)


def share_of_epochs(record: Record) -> float:
    """Return the share of its epochs that a training ran, which may have stopped itself."""
    epochs, limit = record.metrics.get("epochs"), record.config.get("epochs")
    return epochs.value / limit if epochs and limit and epochs.value else 1.0


def quartiles(numbers: Sequence[float]) -> tuple[float, float, float]:
    """Return the first quartile, the median and the third quartile.

    >>> quartiles([1.0, 2.0, 3.0, 4.0, 5.0])
    (2.0, 3.0, 4.0)
    >>> quartiles([4.0])
    (4.0, 4.0, 4.0)
    """
    if len(numbers) < 2:
        return (numbers[0],) * 3
    return tuple(statistics.quantiles(numbers, n=4, method="inclusive"))


def overlap(records: Iterable[Record]) -> float:
    """Return how many of these records were made at once, averaged over the time they took.

    Only those on devices of one name count together. Records do not tell two cards of one kind
    apart.
    """
    spans: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        span = record.started.timestamp(), record.finished.timestamp()
        spans.setdefault(record.environment.device, []).append(span)
    busy = shared = 0.0
    for spans_of_device in spans.values():
        end = -math.inf
        for started, finished in sorted(spans_of_device):
            shared += finished - started
            busy += max(0.0, finished - max(started, end))
            end = max(end, finished)
    return shared / busy if busy else 1.0


class Outlook(NamedTuple):
    """What is left of an experiment: trials, FLOPs, and time of one card and of one core."""

    experiment: str
    trials: int
    waiting: int
    flops: int
    card: Total
    core: Total


def outlook(stem: str, scale: Scale, store: Store) -> Iterator[Outlook]:
    """Yield what is left of every experiment of a paper that still has something to train."""
    records = list(store.records(stem))
    done = {record.key for record in records}
    on_cards, on_cores = Experience(records, "cuda"), Experience(records, "cpu")
    for name, experiment in papers.experiments(stem).items():
        trials = experiment.trials(scale)
        waiting = [trial for trial in trials if trial.key not in done]
        flops_left = sum(map(flops, waiting))
        if flops_left:
            card = total(map(on_cards.estimate, waiting))
            core = total(map(on_cores.estimate, waiting))
            yield Outlook(name, len(trials), len(waiting), flops_left, card, core)
