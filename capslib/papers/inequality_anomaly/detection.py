"""Train a two-class capsule network once, and let all scores judge its test set (§4; Tables 2
to 4, Fig. 2).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from capslib.data.anomalies import DIVERSE
from capslib.papers.common import in_unit, outcome
from capslib.papers.experiment import Metric, Outcome, Scale
from capslib.papers.inequality_anomaly.recipe import REDUCED, AnomalyRecipe
from capslib.recipes import train

if TYPE_CHECKING:
    from capslib.recipes import Trained
    from capslib.training import Context, Examples


def run(config: AnomalyRecipe, context: Context) -> Outcome:
    """Train one network and measure AUROC and average precision of every score on the whole
    test set, in its own composition.
    """
    from capslib.papers.inequality_anomaly.scores import judged, look, thinned

    trained = train(config, context.seed, context)
    test = trained.splits["test"]
    found, spread = look(trained.network, test, config.BATCH_OF_TEST)
    labels = test.labels.cpu().numpy()
    metrics = in_unit(judged(found, labels), len(labels), "fraction") | about(trained)
    return outcome(trained, metrics, {**thinned(found, labels), **spread}, ["stop_loss"])


def about(trained: Trained) -> dict[str, Metric]:
    """What was trained and tested on and for how long, and how much of the loss of the first
    steps the last epoch still had.

    A network that still had more than 0.6 of it has not learned; that floor was set before the
    runs.
    """
    history, counts = trained.history, composition(trained.splits)
    curve = history.epochs["stop_loss"]
    counts |= {"epochs": len(curve), "best_epoch": 1 + curve.index(min(curve))}
    losses = history.terms["loss"]
    first, last = (
        losses[: max(1, len(losses) // 20)],
        losses[-max(1, len(losses) // len(curve)) :],
    )
    left = Metric(
        value=fmean(last) / fmean(first), n=len(last), unit="share of the initial loss"
    )
    return in_unit(counts, 1, "count") | {"loss_left": left}


def composition(splits: Mapping[str, Examples]) -> dict[str, int]:
    """How many normal examples and anomalies there are in training and test set; their share is
    what guessing gets.
    """
    counts = {
        name: (len(splits[name].labels), int(splits[name].labels.sum()))
        for name in ("train", "test")
    }
    return {
        f"{name}_{of}": k
        for name, (n, a) in counts.items()
        for of, k in (("normals", n - a), ("anomalies", a))
    }


LIKE_MNIST = ("mnist", "fashion_mnist", "kmnist", "cifar10")
PERCENTS = (0.1, 1.0, 10.0)


def cells(
    scale: Scale,
    data: Sequence[str] = LIKE_MNIST,
    percents: Sequence[float] = PERCENTS,
    classes: int = 10,
    setups: Sequence[str] = DIVERSE,
    **arm: Any,
) -> list[AnomalyRecipe]:
    """Models of Tables 2 and 3: set by set, setup by setup, fraction by fraction, and there the
    first classes.
    """
    if scale == "smoke":
        data, percents, classes = ["digits", "tints"][: len(data)], (10.0,), 1
    return [
        AnomalyRecipe(
            data=name,
            setup=setup,
            percent=percent,
            kind=kind,
            **{**REDUCED[scale][name], **arm},
        )
        for name, setup, percent, kind in itertools.product(
            data, setups, percents, range(classes)
        )
    ]


def replicates(config: AnomalyRecipe, seeds: Sequence[int]) -> Sequence[int]:
    """All on lesions and pairs, of which the paper ran ten, and three of each class of the
    other sets.
    """
    return seeds if config.percent is None else seeds[:3]


def lesion_grid(scale: Scale) -> list[AnomalyRecipe]:
    """The four setups of Table 4."""
    name = "moles" if scale == "smoke" else "ham10000"
    return [
        AnomalyRecipe(data=name, setup=setup, **REDUCED[scale][name])
        for setup in ("AD" if scale == "smoke" else "ABCD")
    ]


def off_target_grid(scale: Scale) -> list[AnomalyRecipe]:
    """All pairs as prepared; only sites with a PAM, as in the paper's search; and what a
    network finds that sees the PAM only.
    """
    name = "guides" if scale == "smoke" else "crispr"
    arms = ({}, {"nrg_pam": True}, {"sees": "pam"})
    return [
        AnomalyRecipe(data=name, setup="off_targets", **REDUCED[scale][name], **arm)
        for arm in arms
    ]


REPAIRS = (
    {},
    {"stop_on": "held_out"},
    {"keep": "best"},
    {"stop_on": "held_out", "keep": "best"},
    {"divisor": "own"},
)
"""As released; early stopping that does not see the test set; the best weights, of the leak and
without it; the repaired loss.
"""
ROUTINGS = ({}, {"routing": "dynamic", "weight_std": 0.1}, {"routing": "em", "weight_std": 0.1})
"""W starts smaller where couplings do not sum to one over the children: sums of so many votes
would be as long at once as they get.
"""


def repairs_grid(scale: Scale) -> list[AnomalyRecipe]:
    """What the slips of the release change: in one set both setups, and in KMNIST, where
    reduced networks do stop early, outliers.
    """
    places = [dict(data=["fashion_mnist"], percents=[1.0])]
    if scale != "smoke":
        places.append(dict(data=["kmnist"], percents=[10.0], setups=["outliers"]))
    every = [
        c
        for place in places
        for arm in REPAIRS
        for c in cells(scale, classes=4, **place, **arm)
    ]
    if scale == "paper":  # beside off_targets: of this size a CPU can train them
        every.append(
            AnomalyRecipe(
                data="crispr",
                setup="off_targets",
                stop_on="held_out",
                **REDUCED["paper"]["crispr"],
            )
        )
    return every


def routings_grid(scale: Scale) -> list[AnomalyRecipe]:
    """Whether the couplings of other routings tell anomalies apart, too."""
    return [
        c
        for arm in ROUTINGS
        for c in cells(scale, ["mnist", "fashion_mnist"], [10.0], 4, **arm)
    ]


def draws_grid(scale: Scale) -> list[AnomalyRecipe]:
    """Other draws of the six outliers, for networks that are the same at the start."""
    draws = range(2 if scale == "smoke" else 5)
    return [
        c for draw in draws for c in cells(scale, ["mnist"], [0.1], 4, ["outliers"], draw=draw)
    ]
