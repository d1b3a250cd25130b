"""Experiments whose configurations are flat models. They give way to
:class:`capslib.papers.experiment.Experiment`, whose arms have names.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from capslib.config import Config, hash_of
from capslib.errors import UserError, check_name
from capslib.papers.experiment import SCALES, Outcome, Scale, Trial, messages, typed
from capslib.recipes import Recipe, Training

if TYPE_CHECKING:
    from capslib.training import Context


def doubled(config: Config) -> Config | None:
    """The configuration with twice the budget: twice the fields that its class names in
    ``BUDGET``, its epochs where it names none.

    None for a configuration that has no such field: what it runs does not train.
    """
    names = getattr(config, "BUDGET", ("epochs",))
    if not all(hasattr(config, name) for name in names):
        return None
    return config.model_copy(update={name: 2 * getattr(config, name) for name in names})


def own_training(config: Config, seed: int) -> list[Training]:
    """The training of an experiment that trains its own configuration; none where that is no
    recipe.
    """
    return [Training(config.recipe(), seed)] if isinstance(config, Recipe) else []


@dataclass(frozen=True, eq=False)
class FlatExperiment:
    """One experiment of a paper: a configuration model, the configurations and seeds of each
    scale, and ``run``.
    """

    name: str
    paper: str
    revision: int
    config: type[Config]
    grid: Callable[[Scale], Sequence[Config]]
    seeds: Mapping[Scale, Sequence[int]]
    run: Callable[[Any, Context], Outcome]
    trainings: Callable[[Any, int], list[Training]] = own_training
    """What a trial with this configuration and seed trains. Experiments that name the same
    training share it.
    """
    replicates: Callable[[Any, Sequence[int]], Sequence[int]] = lambda config, seeds: seeds
    """Those of a scale's seeds that a configuration runs with, where the paper ran some of them
    more often than others.
    """

    @functools.cached_property
    def _budgets(self) -> dict[tuple[Scale, str, int], int]:
        """The budget of each trial that the experiment names, by scale, hash of the
        configuration, and seed.
        """
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

    @property
    def kind(self) -> Any:
        """What the configurations of experiments that can be compared have in common."""
        return self.config

    @property
    def fields(self) -> list[str]:
        """The names of the fields of a configuration."""
        return list(self.config.model_fields)

    @property
    def varied(self) -> frozenset[str]:
        """The fields that change nothing."""
        return self.config.UNUSED

    def at(self, scale: Scale) -> dict[str, Config]:
        """The configurations of a scale, by their place."""
        return {str(place): config for place, config in enumerate(self.grid(scale))}

    def arm(self, scale: Scale, config: Mapping[str, Any]) -> Config:
        """Return the configuration with these fields."""
        return self.config.model_validate(config)

    def twice(self, config: Config) -> Config | None:
        """Return the configuration with twice the budget."""
        return doubled(config)

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

        ``where`` keeps the configurations with these field values, and the seed that it may
        name; ``change`` then sets fields. Raises :class:`UserError` for an unknown field, a
        value out of range, or a ``where`` that leaves nothing.
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
                typed(where),
                [typed(c.model_dump(mode="json", include=set(where))) for c in every],
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
                raise UserError(f"Configuration of {self.name}: {messages(error)}") from None
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
