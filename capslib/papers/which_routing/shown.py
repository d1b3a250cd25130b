"""What the page of the study shows of its runs: those whose learning rate counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from statistics import fmean
from typing import NamedTuple

from capslib.papers.which_routing.comparison import (
    CNN,
    UNIFORM,
    Budget,
    Run,
    chosen_rates,
    name_of,
    networks,
)

NAMES = {
    "dynamic": "dynamic (RBA)",
    "dynamic_over_children": "dynamic, over children",
    "em": "EM",
    "em_vector": "EM, vector poses",
    UNIFORM: "no routing",
    CNN: "CNN",
}
"""Names of networks on the page; another routing has that of the registry."""
SETS = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "smallnorb": "smallNORB"}
"""Names of data sets on the page."""


class Place(NamedTuple):
    """A network on a data set."""

    data: str
    network: str


def label(network: str) -> str:
    """Return the name of a network on the page."""
    return NAMES.get(network, network.replace("_", " "))


def counted(
    runs: Iterable[Run], budget: Budget, seeds: Sequence[int] = (0, 1, 2)
) -> dict[Place, list[Run]]:
    """Return the runs whose learning rate counts, by data set and network, in order of seeds.

    A network is there once both learning rates have run with all seeds.
    """
    runs = list(runs)
    rates = chosen_rates(runs, budget, seeds)
    order = [(data, name) for data in data_sets(runs) for name in networks()]
    by_place: dict[Place, list[Run]] = {Place(*key): [] for key in order if key in rates}
    for run in sorted(runs, key=lambda run: run.trial.seed):
        key = run.config["data"], name_of(run.config)
        if run.trial.seed in seeds and rates.get(key) == run.config["learning_rate"]:
            by_place[Place(*key)].append(run)
    return by_place


def data_sets(runs: Iterable[Run]) -> list[str]:
    """Return the data sets of runs, those of ``SETS`` first and in its order."""
    sets = dict.fromkeys(run.config["data"] for run in runs)
    order = [*SETS, *sets]
    return sorted(sets, key=order.index)


def values(runs: Iterable[Run], metric: str) -> list[float]:
    """Return a metric of runs; 100 times a fraction. A run without it is left out."""
    numbers = []
    for run in runs:
        if metric in run.metrics:
            measured = run.metrics[metric]
            factor = 100 if measured.unit == "fraction" else 1
            numbers.append(factor * measured.value)
    return numbers


def leading(values_of: Mapping[str, Sequence[float]], best: Set[str]) -> str:
    """Return the network with the highest mean, and others that are among the ``best``.

    >>> leading({"em": [97.0], "dynamic": [98.0], "cnn": [90.0]}, {"em", "dynamic"})
    'dynamic (RBA) 98.0, EM'
    """
    first, *others = sorted(best, key=lambda name: -fmean(values_of[name]))
    highest = f"{label(first)} {fmean(values_of[first]):.1f}"
    if others and len(best) == len(values_of):
        return f"no difference; {highest}"
    return ", ".join([highest, *map(label, others)])


def have_trained(runs: Iterable[Run], budget: Budget) -> bool:
    """Return whether all of these networks have learned their training images."""
    metric = f"trained_at_{budget}"
    return all(metric in run.metrics and run.metrics[metric].value == 1 for run in runs)


def trained_share(runs: Iterable[Run], network: str) -> tuple[int, int]:
    """Return how many runs of a network trained, and how many there are.

    They are those of all data sets, learning rates and seeds, at equal steps.
    """
    of_network = [run for run in runs if name_of(run.config) == network]
    return sum(have_trained([run], "steps") for run in of_network), len(of_network)
