"""Experiments and trials: what a paper runs, and what one run of it is.

An *experiment* has a configuration model, the configurations and seeds of every scale, and a function that runs one. A *trial* is
one such run: paper, experiment, revision, scale, configuration and seed. It leaves one record behind (``capslib.lab.records``).

Nothing here imports torch: bad input has to be answered in a moment.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError

from capslib.config import Config, Model, hash_of
from capslib.data import DataFingerprint
from capslib.errors import UserError, check_name
from capslib.recipes import Recipe, Training

if TYPE_CHECKING:
    from capslib.training import Context

Scale = Literal["smoke", "cpu", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
LARGEST = 1e100
"""No number of a record is larger, so that sums of squares of them are finite."""
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Count = Annotated[
    int, Field(ge=0, le=2**53)
]  # beyond that, not every program reads JSON exactly
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
        """Sixteen hexadecimal digits of everything above. A new option that has a default leaves it as it is."""
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
    """A measured number. ``n`` is what it was measured on (test images, points, weights drawn); ``unit`` is in words."""

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


def doubled(config: Config) -> Config | None:
    """The configuration with twice the budget: twice the fields that its class names in ``BUDGET``, its epochs where it names none.

    None for a configuration that has no such field: what it runs does not train.
    """
    names = getattr(config, "BUDGET", ("epochs",))
    if not all(hasattr(config, name) for name in names):
        return None
    return config.model_copy(update={name: 2 * getattr(config, name) for name in names})


def own_training(config: Config, seed: int) -> list[Training]:
    """The training of an experiment that trains its own configuration; none where that is no recipe."""
    return [Training(config.recipe(), seed)] if isinstance(config, Recipe) else []


@dataclass(frozen=True)
class Experiment:
    """One experiment of a paper: a configuration model, the configurations and seeds of each scale, and ``run``."""

    name: str
    paper: str
    revision: int
    config: type[Config]
    grid: Callable[[Scale], Sequence[Config]]
    seeds: Mapping[Scale, Sequence[int]]
    run: Callable[[Any, Context], Outcome]
    trainings: Callable[[Any, int], list[Training]] = own_training
    """What a trial with this configuration and seed trains. Experiments that name the same training share it."""
    replicates: Callable[[Any, Sequence[int]], Sequence[int]] = lambda config, seeds: seeds
    """Those of a scale's seeds that a configuration runs with, where the paper ran some of them more often than others."""

    @functools.cached_property
    def _budgets(self) -> dict[tuple[Scale, str, int], int]:
        """The budget of each trial that the experiment names, by scale, hash of the configuration, and seed."""
        budgets: dict[tuple[Scale, str, int], int] = {}
        for scale in SCALES:
            for config in self.grid(scale):
                seeds = self.replicates(config, self.seeds[scale])
                twice = doubled(config)
                if twice is not None:
                    longer = hash_of(twice.differences())
                    for seed in seeds:
                        budgets.setdefault((scale, longer, seed), 2)
                own = hash_of(config.differences())
                budgets |= {(scale, own, seed): 1 for seed in seeds}
        return budgets

    def budget(self, trial: Trial) -> int:
        """Return 1 for a trial of its scale's grid and seeds at the current revision.

        Return 2 for one with twice that budget, and 0 for any other.
        """
        if trial.revision != self.revision:
            return 0
        return self._budgets.get((trial.scale, hash_of(trial.config), trial.seed), 0)

    def trial(self, scale: Scale, config: Config, seed: int) -> Trial:
        own = dict(paper=self.paper, experiment=self.name, revision=self.revision)
        return Trial(**own, scale=scale, config=config.differences(), seed=seed)

    def trials(
        self,
        scale: Scale,
        *,
        seeds: Sequence[int] | None = None,
        where: Mapping[str, Any] | None = None,
        change: Mapping[str, Any] | None = None,
    ) -> list[Trial]:
        """The trials of a scale, seed by seed.

        ``where`` keeps the configurations with these field values, and the seed that it may name; ``change`` then sets fields.
        Raises :class:`UserError` for an unknown field, a value out of range, or a ``where`` that leaves nothing.
        """
        every, where, fields = self.grid(scale), dict(where or {}), self.config.model_fields
        for name in where:  # of a trial, which has a seed beside its configuration
            check_name(f"field of {self.config.__name__}", name, [*fields, "seed"])
        if "seed" in (change or {}) and "seed" not in fields:
            raise UserError(
                "A seed is chosen, not set: --where seed=2 is that one alone, --seeds 3 are 0, 1 and 2."
            )
        seed = where.pop("seed", None)
        configs = [config for config in every if config.matches(where)]
        if not configs:
            wanted, there = (
                _typed(where),
                [_typed(c.model_dump(mode="json", include=set(where))) for c in every],
            )
            values = "; ".join(dict.fromkeys(there)) or "none"
            raise UserError(
                f"No configuration of {self.name} at scale {scale} has {wanted}. There are: {values}."
            )
        if change:
            configs[0].matches(dict.fromkeys(change))  # an unknown field is answered there
            try:
                configs = list(
                    dict.fromkeys(
                        self.config.model_validate({**c.model_dump(), **change})
                        for c in configs
                    )
                )
            except ValidationError as error:
                raise UserError(f"Configuration of {self.name}: {_messages(error)}") from None
        own = self.seeds[scale] if seeds is None else seeds
        found = [
            self.trial(scale, c, s)
            for s in own
            for c in configs
            if seeds is not None or s in self.replicates(c, own)
        ]
        if seed is not None and seed not in (
            there := list(dict.fromkeys(trial.seed for trial in found))
        ):
            raise UserError(
                f"{self.name} at scale {scale} has no seed {seed}. There are: {', '.join(map(str, there))}."
            )
        return [trial for trial in found if seed in (None, trial.seed)]


def _typed(fields: Mapping[str, Any]) -> str:
    """Fields as one types them after ``--where``: ``sizes=[32, 8]``, ``routing=em``."""
    return ", ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in fields.items()
    )


def _messages(error: ValidationError) -> str:
    """``points = -3: Input should be greater than or equal to 2``, one for each field; what is said of several fields alone."""
    told = [
        (".".join(map(str, e["loc"])), e["input"], e["msg"].removeprefix("Value error, "))
        for e in error.errors()
    ]
    return "; ".join(
        f"{field} = {value!r}: {message}" if field else message
        for field, value, message in told
    )
