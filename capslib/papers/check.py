"""What a claim asks of the records.

Each paper lists its checks, and ``capslib.lab.judging`` judges by them. A check never holds a
result: it says which records to look at, and what to compare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from capslib.papers.experiment import Metric, Scale, Trial
from capslib.papers.names import difference_title, metric_title

BOUNDS = {
    "fraction": (0, 1),
    "percent": (0, 100),
    "share of the run": (0, 1),
    "difference of fractions": (-1, 1),
    "points": (-100, 100),
}
"""What a metric of a unit cannot leave."""
DIFFERENCES = {"fraction": "difference of fractions", "percent": "points"}
"""The units of differences of shares."""
GUESSING = 0.5
"""A network that is right on fewer of its training images guesses or died."""

Answer = Literal["for", "against", "open"]
"""What an interval says to a claim."""


class Measured(Protocol):
    """What checks and pages read of a record."""

    trial: Trial
    config: Mapping[str, Any]
    metrics: Mapping[str, Metric]
    series: Mapping[str, Sequence[float]]
    parameters: int


# ----------------------------------------------------------------------- quantities of a record


@dataclass(frozen=True)
class Quantity:
    """A number that is computed from a record, by ``measure``."""

    name: str
    measure: Callable[[Measured], Metric | None]
    sides: tuple[str | Quantity, ...] = ()
    """The quantities that must be at rest in its place, such as both sides of a difference.

    If there are none, it has to be at rest itself.
    """
    note: Callable[[Sequence[Measured]], str] = lambda records: ""
    """What a reader has to know of records beside the number: that a score is inverted."""

    def __str__(self) -> str:
        return self.name


def at_the_end(curve: str) -> Quantity:
    """Return a quantity: the last point of a curve.

    Use it where the metric of the same name was measured at another moment of the training.
    """

    def last(record: Measured) -> Metric:
        return record.metrics[curve].model_copy(update={"value": record.series[curve][-1]})

    return Quantity(f"{curve} at the end", last)


def difference(
    first: str | Quantity, second: str | Quantity, name: str = "", absolute: bool = False
) -> Quantity:
    """Return a quantity: ``first − second`` in one record, or its ``absolute`` value.

    A record that lacks either of them has no such quantity.
    """

    def lead(record: Measured) -> Metric | None:
        minuend, subtrahend = read(first, record), read(second, record)
        if minuend is None or subtrahend is None:
            return None
        value = minuend.value - subtrahend.value
        unit = DIFFERENCES.get(minuend.unit, minuend.unit)
        return Metric(value=abs(value) if absolute else value, n=minuend.n, unit=unit)

    verb = "apart from" if absolute else "minus"
    return Quantity(name or f"{first} {verb} {second}", lead, (first, second))


def read(quantity: str | Quantity, record: Measured) -> Metric | None:
    """Return a quantity of a record; None where it lacks that.

    ``parameters`` is the record's own field.
    """
    if isinstance(quantity, Quantity):
        try:
            return quantity.measure(record)
        except (LookupError, ValueError, ArithmeticError):
            # no such curve, no such point on it, or a share of nothing
            return None
    if quantity == "parameters" and quantity not in record.metrics:
        return Metric(value=record.parameters, n=0, unit="count")
    return record.metrics.get(quantity)


def training_accuracy(record: Measured) -> float | None:
    """Return the mean training accuracy over the last twentieth of a run; None without a curve.

    Of several networks in a record it is the least.
    """
    accuracies = []
    for name, curve in record.series.items():
        if name.startswith("batch_accuracy") and curve:
            end = curve[-max(1, len(curve) // 20) :]
            accuracies.append(sum(end) / len(end))
    return min(accuracies, default=None)


def stopped_itself(record: Measured) -> bool:
    """Return whether a training was ended by a rule before its epochs were over.

    More epochs would change nothing. Experiments with such a rule record how many they took, as
    the metric ``epochs``.
    """
    epochs = record.metrics.get("epochs")
    return epochs is not None and epochs.value < record.config.get("epochs", 0)


# ----------------------------------------------------------------------------------------- arms


def common_name(names: Iterable[str]) -> str:
    """Return names as one: an asterisk stands for a part in which they differ.

    >>> common_name(["mnist/dynamic/em", "mnist/static/em"])
    'mnist/*/em'
    """
    parts = []
    for words in zip(*(name.split("/") for name in names), strict=False):
        parts.append(words[0] if len(set(words)) == 1 else "*")
    return "/".join(parts)


@dataclass(frozen=True)
class Select:
    """The runs of an arm of an experiment; of several arms, the mean over those of a seed."""

    experiment: str
    arm: str | tuple[str, ...]
    cpu: str = ""
    """The arm to take at cpu scale, where that is another one."""
    learned: float = 0.0
    """The floor of the :func:`training_accuracy`: a network below it decides nothing."""
    at_most: Mapping[str, float] = field(default_factory=dict)
    """Metrics above these limits make a run that decides nothing.

    For example networks that were matched at too high an error.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its arms."""
        return (self.arm,) if isinstance(self.arm, str) else self.arm

    @property
    def label(self) -> str:
        """The :func:`common_name` of its arms."""
        return common_name(self.names)

    def at(self, scale: Scale) -> Select:
        """Return what it selects at a scale."""
        return replace(self, arm=self.cpu, cpu="") if scale == "cpu" and self.cpu else self

    def apart_from(self, rival: Select) -> str:
        """Return what tells it from another selection; nothing if they have the same arms."""
        if self.names != rival.names:
            return self.label
        return self.experiment if self.experiment != rival.experiment else ""

    def unfit(self, record: Measured, *, decides: bool = True) -> list[str]:
        """Return why the networks of a record are unfit to judge by; empty where they are fit.

        They have to reach the floor ``learned``, and each metric of ``at_most`` its limit or
        less; a missing metric is unfit. ``decides=False`` lowers the floor to ``GUESSING``.
        """
        reasons = []
        accuracy = training_accuracy(record) or 0.0
        floor = self.learned if decides else min(self.learned, GUESSING)
        if accuracy < floor:
            reasons.append(
                f"did not learn (training accuracy {accuracy:.1%}, "
                f"and the floor is {floor:.0%})"
            )
        for name, limit in self.at_most.items():
            metric = record.metrics.get(name)
            if metric is None or metric.value > limit:
                value = None if metric is None else f"{metric.value:.1f}"
                reasons.append(
                    f"is above a limit ({metric_title(name)} {value}, "
                    f"and the limit is {limit:g})"
                )
        return reasons


# --------------------------------------------------------------------------------------- checks

Op = Literal["≈", ">", "<", "≥", "≤"]
BOTH_SCALES: tuple[Scale, ...] = ("cpu", "paper")


@dataclass(frozen=True)
class Check:
    """Ask how the mean of a metric compares with a bound, or with the paper's value.

    One arm gives the metric itself. Two arms give their difference, paired by seed. Four arms
    give the difference of two differences, (1st − 2nd) − (3rd − 4th).

    ``≈`` asks whether the mean is the value that the claim has in the ledger. The other
    operators ask where its 95 % interval lies. For one arm, ``>`` and ``<`` ask whether it lies
    beyond ``bound`` by more than ``margin``; with ``≥`` and ``≤`` it may touch that edge. For
    several arms, ``>`` asks whether the first leads by more than ``margin``. ``<`` asks the
    same of a metric whose smaller values are better. With a negative margin, being that much
    behind counts as equal.

    A check with a ``test`` asks for a theorem: every record has to keep to ``bound``, by ``≥``
    or ``≤``.
    """

    arms: Select | tuple[Select, ...]
    metric: str | Quantity
    op: Op = "≈"
    bound: float = 0.0
    margin: float = 0.0
    refuted_at: float | Literal["bound"] | None = "bound"
    """The value that refutes the claim: an interval wholly on its wrong side speaks against it.

    ``"bound"`` means ``bound``, or the edge that a negative ``margin`` gives. Where we chose
    ``bound``, give a number of the paper, or None: then no interval speaks against the claim.
    """
    at_rest: tuple[Scale, ...] = ("cpu",)
    """The scales at which a decision has to stand after trainings of twice the budget.

    Not those where a claim speaks of a time during training, nor paper scale where the paper
    says when it stops.
    """
    paper_scale_only: str = ""
    """Why a reduced setting cannot answer this, in a few words; empty where it can."""
    test: str = ""
    """The test that holds code and theorem together. It makes the check one of a theorem."""
    is_share: bool = True
    """Whether a fraction or percentage is one of a whole: its interval then stays in it."""
    better_counts: bool = True
    """Whether a value that beats the paper's is *better*. Not where a claim is that something
    fails.
    """
    incomparable: str = ""
    """Why our value cannot be compared with the paper's, in a few words; empty where it can."""

    def __post_init__(self) -> None:
        if len(self.selects) not in (1, 2, 4):
            raise ValueError(f"a check compares one, two or four arms, not {len(self.selects)}")
        if self.compares_arms and self.op not in (">", "<"):
            raise ValueError(f"arms are compared by > or <, not by {self.op}")
        if self.test and self.op not in ("≥", "≤"):
            raise ValueError(f"a theorem is checked by ≥ or ≤, not by {self.op}")

    @property
    def selects(self) -> tuple[Select, ...]:
        """Its arms."""
        return self.arms if isinstance(self.arms, tuple) else (self.arms,)

    def at(self, scale: Scale) -> Check:
        """Return what it asks at a scale."""
        return replace(self, arms=tuple(select.at(scale) for select in self.selects))

    @property
    def compares_arms(self) -> bool:
        """Whether it asks for a difference of arms."""
        return len(self.selects) > 1

    @property
    def metrics_at_rest(self) -> tuple[str | Quantity, ...]:
        """The metrics that have to be at rest: both sides of a difference, else the metric."""
        sides = self.metric.sides if isinstance(self.metric, Quantity) else ()
        return sides or (self.metric,)

    def has_to_rest(self, scale: Scale) -> bool:
        """Return whether twice the budget has to give the same decision at a scale.

        A value is decided at paper scale alone.
        """
        return scale in self.at_rest and not (self.op == "≈" and scale == "cpu")

    def replicate(self, values: Sequence[float]) -> float:
        """Return one replicate, from what each arm measured with one seed."""
        if not self.compares_arms:
            return values[0]
        lead = values[0] - values[1]
        if len(values) == 4:
            lead -= values[2] - values[3]
        return -lead if self.op == "<" else lead

    def limits(self, unit: str) -> tuple[float, float] | None:
        """Return what a replicate in this unit cannot leave; None where nothing limits it."""
        if not self.is_share or len(self.selects) == 4:
            return None
        return BOUNDS.get(DIFFERENCES.get(unit, unit) if self.compares_arms else unit)

    @property
    def label(self) -> str:
        """The quantity whose interval is judged.

        It is the ``mean of accuracy``, or the ``lead in accuracy (a − b)``.
        """
        name = metric_title(str(self.metric))
        if not self.compares_arms:
            return f"mean of {name}"
        first, second = self.selects[:2]
        if self.op == "<":
            first, second = second, first
        names = first.apart_from(second), second.apart_from(first)
        lead = f"lead in {name}"
        if all(names):
            lead += f" ({difference_title(*names)})"
        return f"{lead} beyond that of the other two" if len(self.selects) == 4 else lead

    def asked(self, factor: float = 1) -> str:
        """Return where the interval has to lie: ``above 0.5``.

        ``factor`` takes the metric's unit to the one that is shown.
        """
        side = "above" if self._direction > 0 else "below"
        return f"{side} {self._edge * factor:.4g}"

    def decide(self, low: float, high: float, factor: float = 1) -> Answer:
        """Return whether an interval speaks for the claim, against it, or leaves it open.

        It speaks for the claim where all of it lies beyond the bound with its margin. It speaks
        against it where all of it lies on the wrong side of ``refuted_at``.
        """
        direction = self._direction
        weakest, strongest = (low, high) if direction > 0 else (high, low)
        excess = direction * (weakest - self._edge * factor)
        if excess > 0 or (excess == 0 and self.op in ("≥", "≤")):
            return "for"
        limit = self.refuted_at
        if limit == "bound":
            limit = self._edge if self.margin < 0 else self.bound
        is_refuted = limit is not None and direction * (strongest - limit * factor) < 0
        return "against" if is_refuted else "open"

    @property
    def _direction(self) -> int:
        """−1 where the mean has to lie below the bound, else 1. A lead has to lie above it."""
        return -1 if self.op in ("<", "≤") and not self.compares_arms else 1

    @property
    def _edge(self) -> float:
        """The bound with its margin."""
        return self.bound + self._direction * self.margin


@dataclass(frozen=True)
class AtLeast:
    """Ask how many of ``parts`` hold: a number, or all. Each part is judged by itself."""

    number: int | Literal["all"]
    parts: Mapping[str, Check | AtLeast]
    errata: Mapping[str, str] = field(default_factory=dict)
    """Parts that the paper's own numbers contradict, and how. They decide nothing."""

    @property
    def needed(self) -> int:
        """How many parts have to hold."""
        return len(self.parts) if self.number == "all" else self.number


@dataclass(frozen=True)
class Erratum:
    """A claim that the paper's own numbers contradict, and how. No run decides it."""

    reason: str


AnyCheck = Check | AtLeast | Erratum


def leaves(check: AnyCheck) -> Iterator[Check]:
    """Yield the single checks that a check is made of."""
    if isinstance(check, AtLeast):
        for part in check.parts.values():
            yield from leaves(part)
    elif isinstance(check, Check):
        yield check


def selects(check: AnyCheck) -> Iterator[Select]:
    """Yield the arms of a check, and of its parts."""
    for leaf in leaves(check):
        yield from leaf.selects


def selects_at_rest(check: AnyCheck, scale: Scale) -> Iterator[Select]:
    """Yield the arms that need a run of twice the budget for a decision at a scale."""
    for leaf in leaves(check):
        is_judged = not leaf.test and (scale == "paper" or not leaf.paper_scale_only)
        if is_judged and leaf.has_to_rest(scale):
            yield from leaf.selects
