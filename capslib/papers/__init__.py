"""The papers, and studies of our own. Each has a module with ``EXPERIMENTS`` and ``CHECKS``.

A study has trials and records as a paper has them, but no claims, and no row among the papers.
Torch is imported where an experiment runs: configurations and claims are looked at without it.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from capslib.errors import UserError, check_name
from capslib.papers.check import selects, selects_at_rest
from capslib.registry import Registry

if TYPE_CHECKING:
    from capslib.papers.check import AnyCheck
    from capslib.papers.experiment import Arm, Experiment, Scale, Trial


@dataclass(frozen=True)
class Paper:
    """A paper as the book speaks of it.

    ``cite`` is its key in ``book/references.bib``, and ``links`` leads to the paper and its
    code. A name without an address, ``"public code": None``, says that there is none.
    """

    stem: str
    short: str
    title: str
    authors: str
    year: int
    cite: str
    claim: str
    links: Mapping[str, str | None]


PAPERS: Mapping[str, Paper] = Registry(
    "paper",
    {
        p.stem: p
        for p in (
            Paper(
                "em_routing",
                "EM routing",
                "Matrix capsules with EM routing",
                "Hinton, Sabour, Frosst",
                2018,
                "hinton2018",
                "Matrix capsules with EM routing nearly halve the error on smallNORB. They "
                "generalise to new viewpoints, and resist attacks, better than a convolutional "
                "network. Every update of routing lowers a free energy.",
                {
                    "paper on OpenReview": "https://openreview.net/forum?id=HJWLfGWRb",
                    "official code": "https://github.com/google-research/google-research/tree/10bf941a5a0625bf27bb8443aa849e9b48fdd5f9/capsule_em",
                    "independent code by Gritzman": "https://github.com/IBM/matrix-capsules-with-em-routing/tree/2da9cdf9e1787f0b0984f7673f644d47b08f220c",
                },
            ),
            Paper(
                "negation_limitation",
                "Negation",
                "Limitation of capsule networks",
                "Peer, Stabinger, Rodríguez-Sánchez",
                2021,
                "peer2021",
                "Without a bias, capsule layers cannot tell an input from its negative, so "
                "deep capsule networks do not train. With a bias they do.",
                {
                    "paper": "https://doi.org/10.1016/j.patrec.2021.01.017",
                    "arXiv": "https://arxiv.org/abs/1905.08744",
                    "official code, second release": "https://github.com/peerdavid/capsnet-limitations/tree/9b6ee64d382712f0e5491f9426af9303c00b9716",
                    "first release": "https://github.com/peerdavid/limitation-of-capsule-networks/tree/3d874cb2e4538c3b34fccec9e33f6a747bd5ac49",
                },
            ),
            Paper(
                "sparse_unsupervised",
                "Sparse capsules",
                "Sparse unsupervised capsules generalize better",
                "Rawlinson, Ahmed, Kowadlo",
                2018,
                "rawlinson2018",
                "Capsules trained without labels, but with a sparsity rule, generalise better "
                "than supervised ones to affine-transformed digits (affNIST).",
                {
                    "arXiv": "https://arxiv.org/abs/1804.06094",
                    "official code": "https://github.com/Cerenaut/sparse-unsupervised-capsules/tree/5b98fbb84408d566ae4ef0878008931a65832386",
                },
            ),
            Paper(
                "learned_routing",
                "Learned routing",
                "Learning to compute inner consensus",
                "Faria",
                2019,
                "faria2019",
                "An LSTM that learns to route equals or beats the open implementations of EM "
                "routing; a learned kernel does not.",
                {
                    "paper on arXiv": "https://arxiv.org/abs/1909.12737",
                    "official code": "https://github.com/Goncalo-Faria/learning-inner-consensus/tree/ace32c683b6d393edd0b7175a272a8bf65b57680",
                },
            ),
            Paper(
                "inequality_anomaly",
                "Inequality",
                "Measuring internal inequality in capsule networks for supervised anomaly "
                "detection",
                "Kirillov, Panov",
                2022,
                "kirillov2022",
                "The inequality of a network's couplings, measured by Gini or Palma, tells "
                "anomalies from normal inputs better than its output does.",
                {
                    "paper": "https://doi.org/10.1038/s41598-022-17734-7",
                    "official code": "https://github.com/bakirillov/capsule_ad/tree/af07add40ff33c1a32606ca4c4a656a05cece360",
                },
            ),
        )
    },
)
STEMS = tuple(PAPERS)
STUDIES: Mapping[str, str] = {"which_routing": "Which routing should I use?"}
"""The question of each study of our own, by its stem."""
WITH_TRIALS = (*PAPERS, *STUDIES)
"""The stems of everything that has trials and records: the papers, then the studies."""


def module(stem: str) -> ModuleType:
    """Return the module of a paper or a study. Raises :class:`UserError` for another stem."""
    check_name("paper", stem, WITH_TRIALS)
    return importlib.import_module(f"{__name__}.{stem}")


@functools.cache
def experiments(stem: str) -> Mapping[str, Experiment]:
    """Return the experiments of a paper or a study by name.

    Raises :class:`UserError` for an unknown stem; the mapping raises it for an unknown name.
    """
    return Registry(f"experiment of {stem}", module(stem).EXPERIMENTS)


def experiment_of(trial: Trial) -> Experiment | None:
    """Return the experiment of a trial; None where there is none of its name today."""
    if trial.paper not in WITH_TRIALS:
        return None
    return experiments(trial.paper).get(trial.experiment)


def checks_of(stem: str) -> Mapping[str, AnyCheck]:
    """Return the check of each claim of a paper that has one, by the claim's id."""
    return module(stem).CHECKS


def arm(trial: Trial) -> Arm:
    """Return the arm of a trial.

    Raise what pydantic does where its experiment knows no such configuration today.
    """
    return experiments(trial.paper)[trial.experiment].arm(trial.scale, trial.config)


def data_sets(trials: Iterable[Trial]) -> list[str]:
    """Return the names of the data sets that trials need, in alphabetical order."""
    return sorted(filter(None, {arm(trial).data for trial in trials}))


def known(trial: Trial) -> bool:
    """Return whether its experiment knows such a configuration today.

    A record may be old, or a stranger's.
    """
    try:
        arm(trial)
    except (UserError, ValidationError):
        return False
    return True


def fields(trial: Trial) -> dict[str, Any]:
    """Return every field of its arm, as JSON has them. Raise as :func:`arm` does."""
    return arm(trial).fields()


def budget(trial: Trial) -> int:
    """Return how many times the budget of its arm a trial has: 1 or 2.

    Return 0 for a trial of another revision, and for one that no arm of today has.
    """
    experiment = experiment_of(trial)
    return experiment.budget(trial) if experiment else 0


def needs(stem: str, scale: Scale, *, at_rest: bool = False) -> dict[str, list[Trial]]:
    """Return the trials that each claim of a paper is judged by at a scale, in their order.

    Claims share trials. With ``at_rest``, only those of which a claim needs a run with twice
    the budget.
    """
    trials: list[Trial] = []
    numbers_of_arm: dict[tuple[str, str], list[int]] = {}
    for experiment in experiments(stem).values():
        for trial in experiment.trials(scale):
            name = experiment.name, arm(trial).name
            numbers_of_arm.setdefault(name, []).append(len(trials))
            trials.append(trial)
    selected = {}
    for claim, check in checks_of(stem).items():
        numbers: set[int] = set()
        for select in selects_at_rest(check, scale) if at_rest else selects(check):
            for arm_name in select.at(scale).names:
                numbers.update(numbers_of_arm.get((select.experiment, arm_name), ()))
        selected[claim] = [trials[number] for number in sorted(numbers)]
    return selected


PairsOfSeed = list[tuple["Trial", "Trial"]]
"""The trials of one seed that a claim asks at rest, each with its trial of twice the budget."""


def longer(stem: str, scale: Scale) -> dict[str, list[PairsOfSeed]]:
    """Return, for each claim and seed, each trial with its trial of twice the budget.

    One seed of all arms is enough to decide a claim about the end of training.
    """
    at_rest = needs(stem, scale, at_rest=True)
    pairs = {}
    for claim, trials in at_rest.items():
        seeds: dict[int, PairsOfSeed] = {}
        for trial in trials:
            experiment = experiments(stem)[trial.experiment]
            double = experiment.twice(arm(trial))
            if double is not None:
                pair = trial, experiment.trial(scale, double, trial.seed)
                seeds.setdefault(trial.seed, []).append(pair)
        # a seed that lacks an arm compares nothing
        largest = max(map(len, seeds.values()), default=0)
        pairs[claim] = [seed for seed in seeds.values() if len(seed) == largest]
    return pairs


class Waits(NamedTuple):
    """The trials that a claim waits for at a scale: of its arms, and of twice their budget."""

    trials: list[Trial]
    doubles: list[Trial]


def waits(stem: str, done: Set[str], stopped: Set[str]) -> dict[str, dict[Scale, Waits]]:
    """Return what each claim waits for at the scales that judge it.

    ``done`` has the keys of the trials that have a record. ``stopped`` has the keys of trials
    whose training stopped itself: twice the budget would change nothing. Of trials with twice
    the budget, a claim waits for those of one seed, the one that lacks the fewest.
    """
    by_claim: dict[str, dict[Scale, Waits]] = {}
    scales: tuple[Scale, ...] = ("paper", "cpu")
    for scale in scales:
        trials = needs(stem, scale)
        for claim, seeds in longer(stem, scale).items():
            missing = []
            for seed in seeds:
                doubles = [double for trial, double in seed if trial.key not in stopped]
                missing.append([double for double in doubles if double.key not in done])
            by_claim.setdefault(claim, {})[scale] = Waits(
                [trial for trial in trials[claim] if trial.key not in done],
                min(missing, key=len, default=[]),
            )
    return by_claim
