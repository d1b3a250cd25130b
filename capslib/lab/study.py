"""Which routing should I use? What the page of the study shows of its records."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from capslib import papers
from capslib.lab import frames
from capslib.lab.ledger import listed, plural
from capslib.lab.records import Record
from capslib.lab.statistics import Standing, compared, leaders
from capslib.papers.check import Measured
from capslib.papers.experiment import Scale
from capslib.papers.names import DATA_SETS
from capslib.papers.which_routing import EXPERIMENTS
from capslib.papers.which_routing.comparison import (
    BUDGETS,
    CNN,
    DATA,
    REFERENCE,
    UNIFORM,
    Budget,
    chosen_rates,
    name_of,
    networks,
)

__all__ = [
    "QUESTIONS",
    "Study",
    "Tally",
    "budget_of",
    "chosen_runs",
    "have_trained",
    "label",
    "leader_or_ties",
    "title",
    "values",
]

LABELS = {
    "dynamic": "dynamic (RBA)",
    "dynamic_over_children": "dynamic over children",
    "em": "EM",
    "em_vector": "EM with vectors",
    "similarity": "similarity (kernel)",
    "connectionist": "connectionist (LSTM)",
    UNIFORM: "no routing",
    CNN: "CNN",
}
"""What the page calls the networks.

A routing that is missing here has its registered name, with spaces for underscores.
"""
TITLES = {data: DATA_SETS[data] for data in DATA}
"""What the page calls the data sets."""
QUESTIONS = {
    "after equally many steps": "test_accuracy_at_steps",
    "after equally many core-seconds": "test_accuracy_at_seconds",
    "shifted by 4 pixels": "shifted_4_accuracy",
    "turned by 30 degrees": "rotated_30_accuracy",
    "at three quarters of its size": "scaled_75_percent_accuracy",
    "attacked with epsilon 0.1": "pgd_0.1_accuracy",
    "from novel azimuths": "novel_accuracy_at_steps",
}
"""The accuracies that decide the recommendation, by what they say of a test image.

They were fixed when one seed on MNIST had run.
"""
OF_VIEWPOINTS = ("familiar_accuracy_at_steps", "novel_accuracy_at_steps")
"""Metrics that the experiment ``viewpoints`` measures, and not ``comparison``."""


class Tally(NamedTuple):
    """In how many comparisons a network is better than no routing, worse, or neither."""

    better: int = 0
    worse: int = 0
    undecided: int = 0

    def __str__(self) -> str:
        worse = self.worse or "none"
        return f"wins {self.better} of its {plural(sum(self), 'comparison')}, and loses {worse}"


class Study:
    """The records of the study, and those that count for each network.

    Those with the learning rate that has the higher held-out accuracy count, once both rates
    have run with all seeds. Records of another scale and of no arm of today are left out; one
    that ``records`` has twice counts once.
    """

    def __init__(self, records: Iterable[Record], scale: Scale = "cpu"):
        by_key = {r.key: r for r in records if papers.budget(r.trial) == 1}
        self.scale = scale
        self.records = {
            name: frames.select(by_key.values(), name, scale) for name in EXPERIMENTS
        }
        self._chosen = {}
        for name, experiment in EXPERIMENTS.items():
            for budget in BUDGETS:
                runs = chosen_runs(self.records[name], budget, experiment.seeds[scale])
                self._chosen[name, budget] = runs

    @property
    def data_sets(self) -> list[str]:
        """The data sets on which a network is complete."""
        complete: dict[str, None] = {}
        for runs in self._chosen.values():
            complete.update(dict.fromkeys(runs))
        in_order = [data for data in DATA if data in complete]
        stand_ins = [data for data in complete if data not in DATA]
        return in_order + stand_ins

    @property
    def networks(self) -> list[str]:
        """The names of the networks that are complete on a data set."""
        complete: set[str] = set()
        for runs in self._chosen.values():
            for by_network in runs.values():
                complete.update(by_network)
        return [name for name in networks() if name in complete]

    def runs(self, data: str, metric: str) -> dict[str, list[Measured]]:
        """Return each network's runs, by seed, of the experiment that measures a metric."""
        experiment = "viewpoints" if metric in OF_VIEWPOINTS else "comparison"
        return self._chosen[experiment, budget_of(metric)].get(data, {})

    def values(self, data: str, metric: str) -> dict[str, list[float]]:
        """Return a metric of each network on a data set, seed by seed; a fraction in percent.

        A network that has not trained is left out. On stand-ins, where none trains for long
        enough, all are there.
        """
        by_network = {}
        for network, runs in self.runs(data, metric).items():
            numbers = values(runs, metric)
            is_shown = self.scale == "smoke" or have_trained(runs, budget_of(metric))
            if numbers and is_shown:
                by_network[network] = numbers
        return by_network

    def highest(self, metric: str) -> str:
        """Return what :func:`leader_or_ties` says of each data set: ``CNN 99.4 on MNIST``."""
        parts = []
        for data in self.data_sets:
            of_network = self.values(data, metric)
            if of_network:
                parts.append(f"{leader_or_ties(of_network)} on {title(data)}")
        return listed(parts) if parts else ""

    def standings(self) -> dict[tuple[str, str], dict[str, Standing]]:
        """Return how each other network compares with no routing, by data set and question."""
        by_comparison = {}
        for data, (question, metric) in itertools.product(self.data_sets, QUESTIONS.items()):
            standings = compared(self.values(data, metric), UNIFORM)
            if standings:
                by_comparison[data, question] = standings
        return by_comparison

    def tallies(self) -> dict[str, Tally]:
        """Return in how many comparisons each other network is better than no routing."""
        counts: dict[str, dict[str, int]] = {}
        for standings in self.standings().values():
            for network, standing in standings.items():
                of_network = counts.setdefault(network, {})
                of_network[standing] = of_network.get(standing, 0) + 1
        return {name: Tally(**counts[name]) for name in networks() if name in counts}

    def mean(self, network: str, metric: str) -> float | None:
        """Return the mean of a metric over all data sets and seeds; None without a run."""
        numbers: list[float] = []
        for data in self.data_sets:
            numbers += self.values(data, metric).get(network, [])
        return fmean(numbers) if numbers else None

    def relative_cost(self, network: str, metric: str) -> float | None:
        """Return the mean cost of a step relative to dynamic routing; None without a run."""
        ratios = []
        for data in self.data_sets:
            costs = self.values(data, metric)
            if network in costs and REFERENCE in costs:
                ratios.append(fmean(costs[network]) / fmean(costs[REFERENCE]))
        return fmean(ratios) if ratios else None

    def path(self, network: str) -> str:
        """Return the path that the routing of a network took; nothing without a run."""
        paths = {run.routing_path for run in self._all_runs(network)} - {"none"}
        return " or ".join(sorted(paths))

    def trained_share(self, network: str) -> tuple[int, int]:
        """Return how many runs of a network trained, and how many there are.

        They are those of all data sets, learning rates and seeds, after equally many steps.
        """
        runs = self._all_runs(network)
        return sum(have_trained([run], "steps") for run in runs), len(runs)

    def _all_runs(self, network: str) -> list[Record]:
        """Return all runs of a network in the comparison, whatever their learning rate."""
        return [run for run in self.records["comparison"] if name_of(run.config) == network]

    def answer(self) -> str:
        """Return the routing to take, and how a CNN compares.

        It is the routing that wins most comparisons with no routing, less those that it loses;
        of equal ones, the one that wins more, then the one with the fastest step. It has to win
        more than it loses.
        """
        tallies = self.tallies()
        cnn = tallies.pop(CNN, None)
        if not tallies:
            return "Open: the networks are still training."

        def merit(network: str) -> tuple[float, ...]:
            tally = tallies[network]
            cost = self.relative_cost(network, "seconds_of_step") or 1.0
            return tally.better - tally.worse, tally.better, -cost

        best = max(tallies, key=merit)
        if self.finished == self.expected:
            scope = "In small CapsNets"
        else:
            sets = listed([title(data) for data in self.data_sets])
            scope = f"So far, in small CapsNets on {sets}"
        if merit(best)[0] > 0:
            sentences = f"{scope}, take {label(best)}: against no routing it {tallies[best]}."
        else:
            wins = sum(tally.better for tally in tallies.values())
            losses = sum(tally.worse for tally in tallies.values())
            comparisons = sum(map(sum, tallies.values()))
            # a 95 % interval lies wholly above zero by chance once in forty
            by_chance = comparisons / 40
            routings = plural(len(tallies), "routing")
            reason = (
                "So begin with one iteration of dynamic routing, which routes nothing. "
                f"In {plural(comparisons, 'comparison')} with it, routings win {wins} "
                f"and lose {losses}; "
                f"chance alone gives about {by_chance:.0f} of each."
            )
            sentences = f"{scope}, none of {routings} is shown to help. {reason}"
        if cnn:
            sentences += f" A CNN of the same size {cnn}."
        return sentences

    @property
    def expected(self) -> int:
        """The number of runs that the study is made of."""
        return sum(len(experiment.trials(self.scale)) for experiment in EXPERIMENTS.values())

    @property
    def finished(self) -> int:
        """The number of runs that have a record."""
        return sum(map(len, self.records.values()))


def chosen_runs(
    records: Iterable[Measured], budget: Budget, seeds: Sequence[int]
) -> dict[str, dict[str, list[Measured]]]:
    """Return the runs with the chosen learning rate, by data set and network.

    Runs are in the order of their seeds; data sets and networks in that of the study. A network
    is there once both learning rates have run with all seeds.
    """
    records = list(records)
    rates = chosen_rates(records, budget, seeds)
    runs: dict[tuple[str, str], dict[int, Measured]] = {}
    for record in records:
        network_on_data = record.config["data"], name_of(record.config)
        if record.config["learning_rate"] == rates.get(network_on_data):
            runs.setdefault(network_on_data, {})[record.trial.seed] = record
    chosen: dict[str, dict[str, list[Measured]]] = {}
    for data in dict.fromkeys([*DATA, *(data for data, _ in rates)]):
        for network in networks():
            if (data, network) in rates:
                by_seed = runs[data, network]
                chosen.setdefault(data, {})[network] = [by_seed[seed] for seed in seeds]
    return chosen


def budget_of(metric: str) -> Budget:
    """Return what was equal for all networks when a metric was measured."""
    return "seconds" if metric.endswith("_at_seconds") else "steps"


def have_trained(runs: Iterable[Measured], budget: Budget) -> bool:
    """Return whether all of these networks have learned their training images."""
    metric = f"trained_at_{budget}"
    return all(metric in run.metrics and run.metrics[metric].value == 1 for run in runs)


def values(runs: Iterable[Measured], metric: str) -> list[float]:
    """Return a metric of runs, a fraction in percent. A run without it is left out."""
    numbers = []
    for run in runs:
        if metric in run.metrics:
            measured = run.metrics[metric]
            factor = 100 if measured.unit == "fraction" else 1
            numbers.append(factor * measured.value)
    return numbers


def leader_or_ties(values_of: Mapping[str, Sequence[float]]) -> str:
    """Return the network with the highest mean, and those too close to tell apart, with theirs.

    If there are more than two of these, or if none can be told apart, there is no leader.

    >>> leader_or_ties({"em": [97.0, 97.4], "dynamic": [98.0, 98.2], "cnn": [90.0, 90.1]})
    'dynamic (RBA) 98.1 or EM 97.2'
    """
    if not values_of:
        return frames.MISSING
    best = leaders(values_of)
    in_order = [name for name in values_of if name in best]
    first, *rivals = sorted(in_order, key=lambda name: -fmean(values_of[name]))
    if len(rivals) > 2 or (rivals and len(best) == len(values_of)):
        return "no clear leader"
    means = [f"{label(name)} {fmean(values_of[name]):.1f}" for name in (first, *rivals)]
    return " or ".join(means)


def label(network: str) -> str:
    """Return what the page calls a network; by default its name with spaces for underscores."""
    return LABELS.get(network, network.replace("_", " "))


def title(data: str) -> str:
    """Return what the page calls a data set."""
    return TITLES.get(data, data)
