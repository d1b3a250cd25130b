"""Experiments and trials: what a paper runs, and what one run of it is.

An *experiment* has named arms, the seeds of every scale, and a function that runs one arm. A
*trial* is one such run: paper, experiment, revision, scale, configuration and seed. It leaves
one record behind (``capslib.lab.records``).

Nothing here imports torch: bad input has to be answered in a moment.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError

from capslib.config import Config, Model, hash_of, matches
from capslib.data import DataFingerprint
from capslib.errors import UserError, check_name
from capslib.recipes import BaseRecipe, Training

if TYPE_CHECKING:
    from capslib.training import Context

Scale = Literal["smoke", "cpu", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
LARGEST = 1e100
"""No number of a record is larger, so that sums of squares of them are finite."""
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
# beyond 2**53, not every program reads JSON exactly
Count = Annotated[int, Field(ge=0, le=2**53)]
Plain = bool | Annotated[int, Field(ge=-(10**100), le=10**100)] | Number | str | None
Fields = dict[str, Plain | list[Plain | list[Plain]]]
"""Fields of a configuration, as JSON has them."""


class Trial(Model):
    """One run of one experiment. Its :attr:`key` names its record."""

    paper: str
    experiment: str
    revision: int = Field(
        ge=1, le=2**53, description="raised when the meaning of the experiment changes"
    )
    scale: Scale
    config: Fields = Field(
        description="the fields that differ from the defaults of the configuration"
    )
    seed: Count

    @property
    def key(self) -> str:
        """A hash of everything above. A new option with a default leaves it as it is."""
        return hash_of(self.model_dump())

    def __str__(self) -> str:
        fields = " ".join(f"{k}={v}" for k, v in self.config.items())
        return f"{self.paper}/{self.experiment} [{self.scale}] {fields} seed={self.seed}"


class Deviation(Model):
    """One difference from the paper: what, what the paper says, what is done here, and why."""

    what: str
    paper: str
    ours: str
    why: str


class Metric(Model):
    """A measured number, what it was measured on (``n``), and its unit in words."""

    value: Number
    n: Count
    unit: str


@dataclass
class Outcome:
    """What the ``run`` function of an experiment returns."""

    metrics: dict[str, Metric]
    series: dict[str, list[float]] = field(default_factory=dict)
    data: list[DataFingerprint] = field(default_factory=list)
    parameters: int = 0
    routing_path: str = "none"


TWICE = "/twice"
"""How the name of an arm with twice the budget ends."""


@dataclass(frozen=True)
class Arm:
    """A named variation of an experiment: a recipe, and options of what is measured."""

    name: str
    recipe: BaseRecipe | None = None
    options: Config = Config()  # noqa: RUF009  it is frozen
    paper_size: Arm | None = None
    """The arm of the paper's size that this one is a copy of."""

    @property
    def parts(self) -> list[Config]:
        """The recipe, if there is one, and the options."""
        return [self.options] if self.recipe is None else [self.recipe, self.options]

    @property
    def data(self) -> str | None:
        """The data set that the arm names, if it names one."""
        return self.values().get("data")

    def values(self, mode: Literal["python", "json"] = "python") -> dict[str, Any]:
        """Return the value of every field of recipe and options."""
        values: dict[str, Any] = {}
        for part in self.parts:
            values |= part.model_dump(mode=mode)
        return values

    def fields(self) -> dict[str, Any]:
        """Return the value of every field as JSON has it, and the name as ``arm``."""
        return {**self.values("json"), "arm": self.name}

    def differences(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, as JSON has them."""
        differences: dict[str, Any] = {}
        for part in self.parts:
            differences |= part.differences()
        return differences

    def titles(self) -> dict[str, str]:
        """Return the title of every field, for readers."""
        titles = {}
        for part in self.parts:
            for name, info in type(part).model_fields.items():
                titles[name] = info.title or name
        return titles

    def matches(self, where: Mapping[str, Any]) -> bool:
        """Return whether these fields have these values; ``arm`` is the name.

        A list equals a tuple.
        """
        return matches(self.fields(), where)

    def with_values(self, values: Mapping[str, Any]) -> Arm:
        """Return a copy with these values, and defaults for all other fields.

        Raise what pydantic raises for an unknown field or a value out of range.
        """
        option_values, recipe_values = {}, {}
        for name, value in values.items():
            if self.recipe is None or name in type(self.options).model_fields:
                option_values[name] = value
            else:
                recipe_values[name] = value
        recipe = self.recipe
        if recipe is not None:
            recipe = type(recipe).model_validate(recipe_values)
        options = type(self.options).model_validate(option_values)
        return replace(self, recipe=recipe, options=options)

    def changed(self, changes: Mapping[str, Any]) -> Arm:
        """Return a copy with other values of some fields. Raise as :meth:`with_values` does."""
        return self.with_values({**self.values(), **changes})


SEEDS: dict[Scale, tuple[int, ...]] = dict(smoke=(0,), cpu=(0, 1, 2), paper=(0, 1, 2))
"""The seeds of an experiment whose paper does not say how often it ran."""


def own_training(arm: Arm, seed: int) -> list[Training]:
    """Return the training of an arm's own recipe; none where the arm has no recipe."""
    return [] if arm.recipe is None else [Training(arm.recipe, seed)]


def no_training(arm: Arm, seed: int) -> list[Training]:
    """Return no training, where a recipe only says which examples there are."""
    return []


def all_seeds(arm: Arm, seeds: Sequence[int]) -> Sequence[int]:
    """Return all seeds of a scale."""
    return seeds


def same_size(scale: Scale, arm: Arm) -> Mapping[str, Any]:
    """Return no changes: an arm has the same size at every scale."""
    return {}


@dataclass(frozen=True, eq=False)
class Experiment:
    """An experiment of a paper: named arms, and what is measured of each.

    ``arms(scale)`` yields the arms of a scale in the paper's size, and ``smaller(scale, arm)``
    returns the fields that the scale makes smaller. ``run(arm, context)`` trains and measures.
    """

    name: str
    paper: str
    arms: Callable[[Scale], Iterable[Arm]]
    run: Callable[[Arm, Context], Outcome]
    seeds: Mapping[Scale, Sequence[int]] = field(default_factory=SEEDS.copy)
    revision: int = 1
    smaller: Callable[[Scale, Arm], Mapping[str, Any]] = same_size
    trainings: Callable[[Arm, int], list[Training]] = own_training
    """What a trial trains. Experiments that name the same training share it."""
    replicates: Callable[[Arm, Sequence[int]], Sequence[int]] = all_seeds
    """The seeds that an arm runs with, of those of a scale: fewer where a run takes days."""
    budget_fields: tuple[str, ...] = ("epochs",)
    """The fields that say for how long an arm trains."""

    @functools.cached_property
    def _arms(self) -> dict[Scale, dict[str, Arm]]:
        scales: dict[Scale, dict[str, Arm]] = {}
        for scale in SCALES:
            arms: dict[str, Arm] = {}
            for arm in self.arms(scale):
                if arm.name in arms:
                    raise ValueError(f"{self.name} has two arms {arm.name!r} at scale {scale}")
                reduced = arm.changed(self.smaller(scale, arm))
                arms[arm.name] = replace(reduced, paper_size=arm)
            scales[scale] = arms
        return scales

    @functools.cached_property
    def _arm_of_config(self) -> dict[tuple[Scale, str], Arm]:
        """All arms, those with twice the budget too, by scale and hash of their fields."""
        arms: dict[tuple[Scale, str], Arm] = {}
        for scale in SCALES:
            arms_of_scale = self.at(scale).values()
            doubles = filter(None, map(self.twice, arms_of_scale))
            for arm in [*arms_of_scale, *doubles]:
                arms.setdefault((scale, hash_of(arm.differences())), arm)
        return arms

    def at(self, scale: Scale) -> dict[str, Arm]:
        """Return the arms of a scale, by name."""
        return self._arms[scale]

    @property
    def _first(self) -> Arm:
        """The first arm of the paper's scale."""
        return next(iter(self.at("paper").values()))

    @property
    def fields(self) -> list[str]:
        """The names of the fields of an arm."""
        return [*self._first.fields()]

    @functools.cached_property
    def varied(self) -> set[str]:
        """The fields in which the arms of a scale differ, in the paper's size."""
        varied: set[str] = set()
        for scale in SCALES:
            first, *settings = [arm.paper_size.values() for arm in self.at(scale).values()]
            for values in settings:
                varied |= {name for name, value in values.items() if value != first[name]}
        return varied

    def twice(self, arm: Arm) -> Arm | None:
        """Return the arm with twice the budget; None where it has no field that sets one.

        Where shorter trainings are its beginning, the paper sets no length, so the double is
        its own ``paper_size``.
        """
        values = arm.values()
        has_budget = all(name in values for name in self.budget_fields)
        if not self.budget_fields or not has_budget:
            return None
        double = arm.changed({name: 2 * values[name] for name in self.budget_fields})
        is_on_curve = bool(double.recipe and double.recipe.shorter())
        return replace(
            double,
            name=f"{arm.name}{TWICE}",
            paper_size=double if is_on_curve else arm.paper_size,
        )

    def arm(self, scale: Scale, config: Mapping[str, Any]) -> Arm:
        """Return the arm with these fields, as a trial of this scale has them.

        Fields that are no arm of the scale, such as those of ``--set``, give an arm without a
        name. Its ``paper_size`` is that of the first arm, with its own values of the fields in
        which arms differ. Raise what pydantic raises for fields that are not valid today.
        """
        arm = self._arm_of_config.get((scale, hash_of(config)))
        if arm is not None:
            return arm
        first = self._first
        arm = first.with_values(config)
        values = arm.values()
        varied = {name: values[name] for name in self.varied}
        return replace(arm, name="", paper_size=first.paper_size.changed(varied))

    def budget(self, trial: Trial) -> int:
        """Return how many times the budget of its arm a trial has: 1 or 2.

        Return 0 for a trial of another revision, arm or seed than those of its scale.
        """
        if trial.revision != self.revision:
            return 0
        arm = self._arm_of_config.get((trial.scale, hash_of(trial.config)))
        if arm is None or trial.seed not in self.replicates(arm, self.seeds[trial.scale]):
            return 0
        return 2 if arm.name.endswith(TWICE) else 1

    def trial(self, scale: Scale, arm: Arm, seed: int) -> Trial:
        """Return the trial of an arm at a scale with a seed."""
        return Trial(
            paper=self.paper,
            experiment=self.name,
            revision=self.revision,
            scale=scale,
            config=arm.differences(),
            seed=seed,
        )

    def trials(
        self,
        scale: Scale,
        *,
        seeds: Sequence[int] | None = None,
        where: Mapping[str, Any] | None = None,
        change: Mapping[str, Any] | None = None,
    ) -> list[Trial]:
        """Return the trials of a scale, seed by seed.

        With ``seeds`` every arm runs with these, also one that has fewer by itself. ``where``
        keeps the arms with these values: ``arm`` is the name, which may be one with twice the
        budget, and ``seed`` keeps one seed. ``change`` then sets fields of these arms. Raise
        :class:`UserError` for an unknown field, a value out of range, or a ``where`` that
        leaves nothing.
        """
        where = dict(where or {})
        only_seed = where.pop("seed", None)
        arms = self._arms_where(scale, where)
        if change:
            arms = self._changed(arms, change)
        trials: list[Trial] = []
        for seed in self.seeds[scale] if seeds is None else seeds:
            for arm in arms:
                if seeds is not None or seed in self.replicates(arm, self.seeds[scale]):
                    trials.append(self.trial(scale, arm, seed))
        if only_seed is None:
            return trials
        chosen = [trial for trial in trials if trial.seed == only_seed]
        if not chosen:
            listed = ", ".join(dict.fromkeys(str(trial.seed) for trial in trials))
            raise UserError(
                f"{self.name} at scale {scale} has no seed {only_seed}. There are: {listed}."
            )
        return chosen

    def _arms_where(self, scale: Scale, where: Mapping[str, Any]) -> list[Arm]:
        """Return the arms of a scale that have these values."""
        for name in where:
            check_name(f"field of {self.name}", name, [*self.fields, "seed"])
        arms = list(self.at(scale).values())
        if str(where.get("arm", "")).endswith(TWICE):
            arms = list(filter(None, map(self.twice, arms)))
        chosen = [arm for arm in arms if arm.matches(where)]
        if chosen:
            return chosen
        selections: dict[str, None] = {}
        for arm in arms:
            fields = arm.fields()
            selections[typed({name: fields[name] for name in where})] = None
        raise UserError(
            f"No configuration of {self.name} at scale {scale} has {typed(where)}. "
            f"There are: {'; '.join(selections) or 'none'}."
        )

    def _changed(self, arms: Sequence[Arm], change: Mapping[str, Any]) -> list[Arm]:
        """Return arms with other values, each once."""
        if "seed" in change and "seed" not in self.fields:
            raise UserError(
                "A seed is chosen, not set: --where seed=2 is that one alone, "
                "--seeds 3 are 0, 1 and 2."
            )
        if "arm" in change:
            raise UserError("An arm is chosen, not set: --where arm=NAME is that one alone.")
        for name in change:
            check_name(f"field of {self.name}", name, self.fields)
        changed: dict[str, Arm] = {}
        for arm in arms:
            try:
                variation = arm.changed(change)
            except ValidationError as error:
                raise UserError(f"Configuration of {self.name}: {messages(error)}") from None
            changed.setdefault(hash_of(variation.differences()), variation)
        return list(changed.values())


def typed(fields: Mapping[str, Any]) -> str:
    """Return fields as one types them after ``--where``: ``sizes=[32, 8]``, ``routing=em``."""
    parts = []
    for name, value in fields.items():
        parts.append(f"{name}={value if isinstance(value, str) else json.dumps(value)}")
    return ", ".join(parts)


def messages(error: ValidationError) -> str:
    """Return an error as one reads it: ``points = -3: Input should be greater than 2``."""
    parts = []
    for fault in error.errors():
        name = ".".join(map(str, fault["loc"]))
        message = fault["msg"].removeprefix("Value error, ")
        parts.append(f"{name} = {fault['input']!r}: {message}" if name else message)
    return "; ".join(parts)
