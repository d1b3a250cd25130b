"""Train a two-class capsule network once, and let all scores judge its test set.

See §4, Tables 2 to 4 and Figure 2.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from capslib.data.anomalies import DIVERSE
from capslib.papers.common import in_unit, outcome
from capslib.papers.experiment import SEEDS, Arm, Experiment, Metric, Outcome, Scale
from capslib.papers.inequality_anomaly.recipe import paper_recipe, smaller
from capslib.recipes import train

if TYPE_CHECKING:
    from capslib.recipes import Trained
    from capslib.training import Context, Examples

LIKE_MNIST = ("mnist", "fashion_mnist", "kmnist", "cifar10")
PERCENTS = (0.1, 1.0, 10.0)
CLASSES = 10
"""The classes of each of these sets."""
FEW_CLASSES = 4
"""The classes of experiments of ours."""
TEN_SEEDS = SEEDS | {"paper": tuple(range(10))}


def arm_name(data: str, setup: str, percent: float, kind: int) -> str:
    """Return the name of a network of Table 2 or 3: ``mnist/outliers/1_percent/kind_3``."""
    return f"{data}/{setup}/{percent:g}_percent/kind_{kind}"


def network_arms(
    scale: Scale,
    data: Sequence[str] = LIKE_MNIST,
    setups: Sequence[str] = DIVERSE,
    percents: Sequence[float] = PERCENTS,
    classes: int = CLASSES,
) -> Iterator[Arm]:
    """Yield the networks of Tables 2 and 3, or of some of their cells.

    At smoke scale there are at most two stand-ins, one class of each, and ten percent of
    anomalies.
    """
    if scale == "smoke":
        data, percents, classes = ["digits", "tints"][: len(data)], (10.0,), 1
    for cell in itertools.product(data, setups, percents, range(classes)):
        data_name, setup, percent, kind = cell
        recipe = paper_recipe(data_name, setup, percent=percent, kind=kind)
        yield Arm(arm_name(*cell), recipe)


def variations(
    networks: Iterable[Arm], changes_by_name: Mapping[str, Mapping[str, Any]]
) -> Iterator[Arm]:
    """Yield networks in some variations: ``…/kind_3/held_out``."""
    networks = list(networks)
    for name, changes in changes_by_name.items():
        for network in networks:
            yield replace(network.changed(changes), name=f"{network.name}/{name}")


def lesion_arms(scale: Scale) -> Iterator[Arm]:
    """Yield the four setups of Table 4: ``setup_A`` …"""
    for setup in "AD" if scale == "smoke" else "ABCD":
        data = "moles" if scale == "smoke" else "ham10000"
        yield Arm(f"setup_{setup}", paper_recipe(data, setup))


SITES: dict[str, dict[str, Any]] = {
    "as_prepared": {},
    "nrg_pam": {"nrg_pam": True},
    "pam_only": {"sees": "pam"},
}
"""All pairs as prepared; only sites with a PAM, as in the paper's search; and what a network
finds that sees the PAM only.
"""


def off_target_arms(scale: Scale) -> Iterator[Arm]:
    """Yield networks on pairs of guide and site."""
    data = "guides" if scale == "smoke" else "crispr"
    for name, changes in SITES.items():
        yield Arm(name, paper_recipe(data, "off_targets", **changes))


RULES: dict[str, dict[str, Any]] = {
    "as_released": {},
    "held_out": {"stop_on": "held_out"},
    "best": {"keep": "best"},
    "held_out_best": {"stop_on": "held_out", "keep": "best"},
    "own_divisor": {"divisor": "own"},
}
"""As released; early stopping that does not see the test set; the best weights, of the leak and
without it; the repaired loss.
"""


def repair_arms(scale: Scale) -> Iterator[Arm]:
    """Yield networks with and without the slips of the release.

    They are of one set in both setups, and of outliers in KMNIST, where reduced networks do
    stop early. At the paper's size there is also the network of off-targets, with early
    stopping that does not see the test set.
    """
    fashion = network_arms(scale, data=["fashion_mnist"], percents=[1.0], classes=FEW_CLASSES)
    yield from variations(fashion, RULES)
    if scale != "smoke":
        kmnist = network_arms(
            scale,
            data=["kmnist"],
            setups=["outliers"],
            percents=[10.0],
            classes=FEW_CLASSES,
        )
        yield from variations(kmnist, RULES)
    if scale == "paper":
        recipe = paper_recipe("crispr", "off_targets", stop_on="held_out")
        yield Arm("off_targets/held_out", recipe)


PARENTS_COMPETE = {"weight_std": 0.1}
"""Start W smaller where parents compete: sums of so many votes would reach full length at
once.
"""
ROUTED: dict[str, dict[str, Any]] = {
    "over_children": {},
    "rba": {"routing": "dynamic", **PARENTS_COMPETE},
    "em": {"routing": "em", **PARENTS_COMPETE},
}


def routing_arms(scale: Scale) -> Iterator[Arm]:
    """Yield networks that ask whether other routings' couplings tell anomalies apart, too."""
    data = ["mnist", "fashion_mnist"]
    yield from variations(
        network_arms(scale, data, percents=[10.0], classes=FEW_CLASSES), ROUTED
    )


def draw_arms(scale: Scale) -> Iterator[Arm]:
    """Yield networks that start alike and draw other outliers: six or seven, by digit."""
    draws = {f"draw_{draw}": {"draw": draw} for draw in range(2 if scale == "smoke" else 5)}
    few_outliers = network_arms(scale, ["mnist"], ["outliers"], [0.1], FEW_CLASSES)
    yield from variations(few_outliers, draws)


def replicates(arm: Arm, seeds: Sequence[int]) -> Sequence[int]:
    """Return the seeds of an arm.

    These are all on lesions and pairs, of which the paper ran ten, and three of each class of
    the other sets.
    """
    return seeds if arm.recipe.percent is None else seeds[:3]


def run(arm: Arm, context: Context) -> Outcome:
    """Train one network; measure AUROC and average precision of every score.

    They are of the whole test set, in its own composition.
    """
    from capslib.papers.inequality_anomaly.scores import areas, look, quantiles_by_input

    trained = train(arm.recipe, context.seed, context)
    test = trained.splits["test"]
    scores, spread = look(trained.network, test, arm.recipe.BATCH_OF_TEST)
    labels = test.labels.cpu().numpy()
    metrics = in_unit(areas(scores, labels), len(labels), "fraction")
    metrics |= training_summary(trained)
    series = {**quantiles_by_input(scores, labels), **spread}
    return outcome(trained, metrics, series, ["stop_loss"])


def training_summary(trained: Trained) -> dict[str, Metric]:
    """Return what was trained and tested on, for how long, and how much of the loss is left.

    ``loss_left`` is the last epoch's mean loss divided by that of the first twentieth. A
    network with more than 0.6 has not learned; that limit was set before the runs.
    """
    history = trained.history
    counts: dict[str, float] = {**composition(trained.splits)}
    curve = history.epochs["stop_loss"]
    counts |= {"epochs": len(curve), "best_epoch": 1 + curve.index(min(curve))}
    losses = history.terms["loss"]
    first_steps = losses[: max(1, len(losses) // 20)]
    last_epoch = losses[-max(1, len(losses) // len(curve)) :]
    share = fmean(last_epoch) / fmean(first_steps)
    metrics = in_unit(counts, 1, "count")
    metrics["loss_left"] = Metric(
        value=share, n=len(last_epoch), unit="share of the initial loss"
    )
    return metrics


def composition(splits: Mapping[str, Examples]) -> dict[str, int]:
    """Return the numbers of normal examples and anomalies in training and test set.

    The share of anomalies is what guessing gets.
    """
    counts = {}
    for name in ("train", "test"):
        labels = splits[name].labels
        anomalies = int(labels.sum())
        counts[f"{name}_normals"] = len(labels) - anomalies
        counts[f"{name}_anomalies"] = anomalies
    return counts


DETECTION = Experiment(
    name="detection",
    paper="inequality_anomaly",
    arms=network_arms,
    smaller=smaller,
    run=run,
)
LESIONS = Experiment(
    name="lesions",
    paper="inequality_anomaly",
    arms=lesion_arms,
    smaller=smaller,
    run=run,
    seeds=TEN_SEEDS,
)
OFF_TARGETS = Experiment(
    name="off_targets",
    paper="inequality_anomaly",
    arms=off_target_arms,
    smaller=smaller,
    run=run,
    seeds=TEN_SEEDS,
)
REPAIRS = Experiment(
    name="repairs",
    paper="inequality_anomaly",
    arms=repair_arms,
    smaller=smaller,
    run=run,
    seeds=TEN_SEEDS,
    replicates=replicates,
)
ROUTINGS = Experiment(
    name="routings",
    paper="inequality_anomaly",
    arms=routing_arms,
    smaller=smaller,
    run=run,
)
DRAWS = Experiment(
    name="draws",
    paper="inequality_anomaly",
    arms=draw_arms,
    smaller=smaller,
    run=run,
)
