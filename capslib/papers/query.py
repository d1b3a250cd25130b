"""What a claim asks of the records: small, declarative questions. Each chapter lists its own;
``capslib.lab.judging`` answers them.

A query never holds a result. It says which records to look at and what to compare; the answer
is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from capslib.papers.experiment import Metric, Scale

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

Decision = Literal["for", "against", "open"]


class Measured(Protocol):
    """What a query reads of a record."""

    metrics: Mapping[str, Metric]
    series: Mapping[str, Sequence[float]]
    parameters: int


@dataclass(frozen=True)
class Derived:
    """A quantity that a record holds in its curves and not among its metrics. ``of`` computes
    it from the record.
    """

    name: str
    of: Callable[[Measured], Metric]
    metrics: tuple[str | Derived, ...] = ()
    """The quantities that it compares, where it is their difference."""
    note: Callable[[Sequence[Measured]], str] = lambda records: ""
    """What a reader has to know of these records beside the number, such as that a score is
    inverted. Empty where nothing.
    """

    def __str__(self) -> str:
        return self.name


def at_the_end(curve: str) -> Derived:
    """The last point of a curve, where the metric of its name is that of another moment."""
    return Derived(
        f"{curve} at the end",
        lambda r: r.metrics[curve].model_copy(update={"value": r.series[curve][-1]}),
    )


def difference(one: str, other: str, size: bool = False) -> Derived:
    """By how much one metric of a record lies above another; with ``size`` how far they lie
    apart.
    """

    def of(record: Measured) -> Metric:
        a, b = record.metrics[one], record.metrics[other]
        apart = a.value - b.value
        return Metric(
            value=abs(apart) if size else apart, n=a.n, unit="difference of fractions"
        )

    return Derived(f"{one} {'apart from' if size else 'minus'} {other}", of, (one, other))


def read(what: str | Derived, record: Measured) -> Metric | None:
    """What a record says about a quantity; None where it does not. ``parameters`` is the
    record's own field.
    """
    if isinstance(what, Derived):
        try:
            return what.of(record)
        except (
            LookupError,
            ValueError,
            ArithmeticError,
        ):  # no such curve, no such point on it, or a share of nothing
            return None
    counted = (
        Metric(value=record.parameters, n=0, unit="count") if what == "parameters" else None
    )
    return record.metrics.get(what, counted)


def training_accuracy(record: Measured) -> float | None:
    """The mean training accuracy over the last twentieth of a run's steps, the least of all
    networks of a record whose curves it has; None where it has none.
    """
    curves = [
        curve
        for name, curve in record.series.items()
        if name.startswith("batch_accuracy") and curve
    ]
    ends = (curve[-max(1, len(curve) // 20) :] for curve in curves)
    return min((sum(end) / len(end) for end in ends), default=None)


def stopped_itself(record: Any) -> bool:
    """Whether a training ended by a rule before its epochs were over: more of them would change
    nothing.
    """
    ran = record.metrics.get("epochs")
    return ran is not None and ran.value < record.config.get("epochs", 0)


GUESSING = 0.5
"""A network that is right on fewer of its training images guesses or died."""


@dataclass(frozen=True)
class Select:
    """The records of one experiment whose configuration has these field values."""

    experiment: str
    where: Mapping[str, Any] = field(default_factory=dict)
    learned: float = 0.0
    """The floor: a network whose :func:`training_accuracy` ends below it has not learned, and
    decides nothing.
    """
    at_most: Mapping[str, float] = field(default_factory=dict)
    """Metrics above these limits make a run that decides nothing, such as networks that were
    matched at too high an error.
    """
    over: str = ""
    """A field that is left open: a replicate is the mean over the runs of one seed that differ
    in it, such as those of ten classes.
    """
    cells: int = 1
    """How many these are. A seed that does not have all of them yet is no replicate."""
    arm: str | tuple[str, ...] = ()
    """The arm by name. Of several, a replicate is the mean over the runs of one seed."""
    cpu: str = ""
    """The arm that it asks for at cpu scale, where that is another one."""

    @property
    def arms(self) -> tuple[str, ...]:
        """The names of its arms."""
        return (self.arm,) if isinstance(self.arm, str) else self.arm

    @property
    def label(self) -> str:
        """Its arms as one name, ``mnist/*/em``: an asterisk stands where they differ."""
        parts = []
        for names in zip(*(arm.split("/") for arm in self.arms), strict=False):
            parts.append(names[0] if len(set(names)) == 1 else "*")
        return "/".join(parts)

    def arms_at(self, scale: Scale) -> tuple[str, ...]:
        """Return the names of its arms at a scale."""
        return (self.cpu,) if scale == "cpu" and self.cpu else self.arms

    def apart_from(self, other: Select) -> str:
        """What tells it from another selection at any scale: ``routing em``, or else its
        experiment; empty where nothing does.
        """
        if self.arms and self.arms != other.arms:
            return self.label
        if self.arms:
            return self.experiment if self.experiment != other.experiment else ""
        fields = [
            f"{name} {value}"
            for name, value in self.where.items()
            if other.where.get(name) != value
        ]
        return ", ".join(fields) or self.experiment * (self.experiment != other.experiment)

    def unfit(self, record: Measured, *, decides: bool = True) -> list[str]:
        """Return why a record of this selection decides nothing; if nothing is to be decided,
        why it goes into no mean.
        """
        learned, why = training_accuracy(record) or 0.0, []
        floor = self.learned if decides else min(self.learned, GUESSING)
        if learned < floor:
            why.append(
                f"did not learn (training accuracy {learned:.0%}, and the floor is {floor:.0%})"
            )
        for name, most in self.at_most.items():
            metric = record.metrics.get(name)
            if metric is None or metric.value > most:
                why.append(
                    f"has {name} = {metric and f'{metric.value:.1f}'}, and the limit is {most:g}"
                )
        return why


T = TypeVar("T")


class Index(Generic[T]):
    """Finds what a selection takes without a look at everything: things, each with its
    experiment, its scale and all fields of its configuration.
    """

    def __init__(self, things: Iterable[tuple[str, Scale, Mapping[str, Any], T]] = ()):
        self._things = list(things)
        self._by: dict[tuple[str, ...], dict[tuple, list[T]]] = {}

    def of(self, select: Select, scale: Scale) -> list[T]:
        """In the order in which they were given."""
        if select.arms:
            found: list[T] = []
            for arm in select.arms_at(scale):
                found += self._with(select.experiment, scale, {"arm": arm})
            return found
        return self._with(select.experiment, scale, select.where)

    def _with(self, experiment: str, scale: Scale, where: Mapping[str, Any]) -> list[T]:
        """Return what has these field values."""
        names = tuple(sorted(where))
        if names not in self._by:
            self._by[names] = found = {}
            for *place, fields, thing in self._things:
                if all(name in fields for name in names):
                    found.setdefault(
                        (*place, *(_hashable(fields[name]) for name in names)), []
                    ).append(thing)
        return self._by[names].get(
            (experiment, scale, *(_hashable(where[name]) for name in names)), []
        )


def _hashable(value: Any) -> Any:
    """A tuple stands for a list."""
    return tuple(map(_hashable, value)) if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True)
class Value:
    """A table cell: the mean of a metric over the selected records (one a seed)."""

    select: Select
    metric: str | Derived
    final: bool = True
    """Whether it speaks of the end of training, so that twice the budget has to give the same
    decision. Not where the paper says when it stops.
    """
    better_counts: bool = True
    """Whether beating the paper's value is *better*. Not where the claim is that something
    fails: there it is a failure to fail.
    """
    bounded: bool = True
    """Whether a fraction or percentage is a share, which cannot lie below nothing or above
    everything.
    """
    unlike: str = ""
    """Why ours cannot be held against the paper's value, in a few words: it is shown, and
    decides nothing. Empty where it can.
    """
    paper_scale_only: ClassVar[str] = ""

    @property
    def arms(self) -> tuple[Select, ...]:
        """The selections that it compares."""
        return (self.select,)

    def rests(self, scale: Scale) -> bool:
        """Whether twice the budget has to give the same decision at this scale."""
        return self.final and scale == "paper"

    def replicate(self, values: Sequence[float]) -> float:
        """One replicate, from what each arm measured with one seed."""
        return values[0]

    def bounds(self, unit: str) -> tuple[float, float] | None:
        """What a replicate cannot leave, if its metric has this unit."""
        return BOUNDS.get(unit) if self.bounded else None


@dataclass(frozen=True)
class Order:
    """``better`` beats ``worse`` in a metric by more than ``margin``: the interval of the
    difference, paired by seed.

    With ``equal=True`` it asks instead whether the two differ by no more than ``margin``. With
    ``beyond`` it asks for a difference of differences: whether ``better`` is further ahead of
    ``worse`` than the first of these two is ahead of the second.
    """

    better: Select
    worse: Select
    metric: str | Derived
    higher_is_better: bool = True
    margin: float = 0.0
    equal: bool = False
    ours: bool = False
    """Whether the margin is ours. A lead, or a deficit, that only our margin puts against the
    claim then decides nothing.
    """
    final: bool | Literal["reduced"] = True
    """Whether it speaks of the end of training. *reduced*: at paper scale the end is where the
    paper stops, and only a reduced run has to come to rest.
    """
    beyond: tuple[Select, Select] | None = None
    paper_scale_only: str = ""
    """Why a reduced setting cannot answer this, in a few words; empty where it can."""

    @property
    def arms(self) -> tuple[Select, ...]:
        return (self.better, self.worse, *(self.beyond or ()))

    def rests(self, scale: Scale) -> bool:
        return self.final is True or (self.final == "reduced" and scale == "cpu")

    def replicate(self, values: Sequence[float]) -> float:
        ahead = values[0] - values[1] - (values[2] - values[3] if self.beyond else 0)
        return ahead if self.higher_is_better else -ahead

    def bounds(self, unit: str) -> tuple[float, float] | None:
        return None if self.beyond else BOUNDS.get(DIFFERENCES.get(unit, unit))

    @property
    def mean(self) -> str:
        """What the mean replicate is: the lead of ``better``, as first − second."""
        one, other = (
            (self.better, self.worse) if self.higher_is_better else (self.worse, self.better)
        )
        sides = one.apart_from(other), other.apart_from(one)
        lead = f"lead in {self.metric}" + f" ({' − '.join(sides)})" * all(sides)
        return (f"{lead} beyond that of the other two" if self.beyond else lead).replace(
            "_", " "
        )

    def asked(self, factor: float = 1) -> str:
        """Where the interval of the mean has to lie; ``factor`` takes the metric's unit to the
        one that is shown.
        """
        return f"{'within ±' if self.equal else 'above '}{self.margin * factor:.4g}"

    def decide(self, low: float, high: float, factor: float = 1) -> Decision:
        """On which side an interval lies. A lead between nothing and the margin decides
        nothing.

        With a negative margin, a deficit that is no larger counts as equal.
        """
        margin = self.margin * factor
        if self.equal:
            inside, outside = -margin <= low and high <= margin, low > margin or high < -margin
        else:
            inside, outside = low > margin, high < min(margin, 0)
        if inside:
            return "for"
        only_ours = self.ours and (self.equal or margin < 0)
        return "against" if outside and not only_ours else "open"


@dataclass(frozen=True)
class Above:
    """The mean of a metric lies above (or with ``below=True`` under) a bound by more than
    ``margin``: the interval has to clear it.
    """

    select: Select
    metric: str | Derived
    bound: float
    below: bool = False
    margin: float = 0.0
    reached: bool = False
    """Whether the bound itself is enough."""
    sides: tuple[str, ...] = ()
    """The metrics whose difference the metric is, where a record holds that."""
    ours: bool = False
    """Whether the bound is ours and not the paper's. Then it never speaks against the claim."""
    against: float | None = None
    """The bound of the paper's beyond which a mean speaks against the claim, where ``bound`` is
    ours.
    """
    final: bool | Literal["reduced"] = True
    paper_scale_only: str = ""

    arms = Value.arms
    rests = Order.rests
    replicate = Value.replicate

    @property
    def mean(self) -> str:
        """What the mean replicate is."""
        return f"mean of {self.metric}".replace("_", " ")

    def bounds(self, unit: str) -> tuple[float, float] | None:
        return BOUNDS.get(unit)

    def _edge(self, factor: float) -> float:
        return (self.bound - self.margin if self.below else self.bound + self.margin) * factor

    def asked(self, factor: float = 1) -> str:
        return f"{'below' if self.below else 'above'} {self._edge(factor):.4g}"

    def decide(self, low: float, high: float, factor: float = 1) -> Decision:
        edge = self._edge(factor)
        if self.below:
            edge, low, high = -edge, -high, -low
        if low > edge or (self.reached and low == edge):
            return "for"
        turn = self.against if self.ours else self.bound
        if turn is None:
            return "open"
        turn *= -factor if self.below else factor
        return "against" if high < turn else "open"


@dataclass(frozen=True)
class Property:
    """A theorem or an exact count: the worst record keeps the metric at or below ``bound``
    (``above=True``: at or above).

    ``test`` names the test that holds code and statement together.
    """

    select: Select
    metric: str | Derived
    bound: float
    test: str
    above: bool = False
    paper_scale_only: ClassVar[str] = ""

    arms = Value.arms


@dataclass(frozen=True)
class Count:
    """A claim over many cells: how many of ``parts`` must hold (all, by default). Each part's
    decision is listed.
    """

    parts: Mapping[str, Query]
    at_least: int | None = None
    errata: Mapping[str, str] = field(default_factory=dict)
    """Parts that the paper's own numbers contradict, and how. They are listed, and decide
    nothing.
    """


@dataclass(frozen=True)
class Erratum:
    """A claim that the paper's own numbers contradict, and how. No run decides it."""

    why: str


Query = Value | Order | Above | Property | Count | Erratum
Leaf = Value | Order | Above | Property


def compared(query: Leaf) -> tuple[str | Derived, ...]:
    """Return the quantities that have to be at rest: both sides of a difference, else the
    metric itself.
    """
    behind = (
        query.metric.metrics
        if isinstance(query.metric, Derived)
        else getattr(query, "sides", ())
    )
    return behind or (query.metric,)


def leaves(query: Query) -> Iterator[Leaf]:
    """The plain queries that a query is made of."""
    if isinstance(query, Count):
        for part in query.parts.values():
            yield from leaves(part)
    elif not isinstance(query, Erratum):
        yield query


def selects(query: Query) -> Iterator[Select]:
    """What a query looks at, its parts' selections included."""
    for leaf in leaves(query):
        yield from leaf.arms


def selects_at_rest(query: Query, scale: Scale) -> Iterator[Select]:
    """What of it is decided at this scale only with runs of twice the budget: the arms of what
    speaks of the end of training.
    """
    for leaf in leaves(query):
        if (
            not isinstance(leaf, Property)
            and leaf.rests(scale)
            and (scale == "paper" or not leaf.paper_scale_only)
        ):
            yield from leaf.arms
