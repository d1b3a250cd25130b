"""Train a two-class capsule network once, and let all scores judge its test set (§4; Tables 2 to 4, Fig. 2)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from statistics import fmean
from typing import TYPE_CHECKING, Any

from capslib.data.registry import dataset
from capslib.papers.common import in_unit, outcome
from capslib.papers.experiment import Metric, Outcome, Scale
from capslib.papers.inequality_anomaly.recipe import REDUCED, AnomalyRecipe
from capslib.recipes import train

if TYPE_CHECKING:
    from capslib.recipes import Trained
    from capslib.training import Context


def run(config: AnomalyRecipe, context: Context) -> Outcome:
    """Train one network and measure AUROC and average precision of every score on the whole test set, in its own composition."""
    from capslib.papers.inequality_anomaly.scores import judged, look, thinned

    trained = train(config, context.seed, context)
    test = trained.splits["test"]
    found, spread = look(trained.network, test, config.BATCH_OF_TEST)
    labels = test.labels.cpu().numpy()
    metrics = in_unit(judged(found, labels), len(labels), "fraction") | about(trained)
    return outcome(trained, metrics, {**thinned(found, labels), **spread}, ["stop_loss"])


def about(trained: Trained) -> dict[str, Metric]:
    """What was trained and tested on and for how long, and how much of the loss of the first steps the last epoch still had."""
    history, counts = trained.history, {}
    for name in ("train", "test"):
        labels = trained.splits[name].labels
        anomalies = int(labels.sum())
        counts |= {f"{name}_normals": len(labels) - anomalies, f"{name}_anomalies": anomalies}
    curve = history.epochs["stop_loss"]
    counts |= {"epochs": len(curve), "best_epoch": 1 + curve.index(min(curve))}
    losses = history.terms["loss"]
    first, last = losses[: max(1, len(losses) // 20)], losses[-max(1, len(losses) // len(curve)) :]
    left = Metric(value=fmean(last) / fmean(first), n=len(last), unit="share of the initial loss")
    return {name: Metric(value=value, n=1, unit="count") for name, value in counts.items()} | {"loss_left": left}


LIKE_MNIST = ("mnist", "fashion_mnist", "kmnist", "cifar10")
PERCENTS = (0.1, 1.0, 10.0)
SETUPS = ("outliers", "inliers")


def cells(
    scale: Scale, *, data: Any = LIKE_MNIST, kinds: Any = None, percents: Any = PERCENTS, **arm: Any
) -> Iterator[AnomalyRecipe]:
    """Models of Tables 2 and 3: set by set, setup by setup, fraction by fraction, and there the classes."""
    if scale == "smoke":
        data, percents = ("digits", "tints"), (10.0,)
    for name, setup, percent in itertools.product(data, SETUPS, percents):
        for kind in (0,) if scale == "smoke" else kinds or range(len(dataset(name).classes)):
            yield AnomalyRecipe(data=name, setup=setup, percent=percent, kind=kind, **{**REDUCED[scale][name], **arm})


def grid(scale: Scale) -> list[AnomalyRecipe]:
    return list(cells(scale))


def lesion_grid(scale: Scale) -> list[AnomalyRecipe]:
    """The four setups of Table 4."""
    name = "moles" if scale == "smoke" else "ham10000"
    return [AnomalyRecipe(data=name, setup=setup, **REDUCED[scale][name]) for setup in ("AD" if scale == "smoke" else "ABCD")]


def off_target_grid(scale: Scale) -> list[AnomalyRecipe]:
    """All pairs as prepared; only sites with a PAM, as in the paper's search; and what a network finds that sees the PAM only."""
    name = "guides" if scale == "smoke" else "crispr"
    arms = ({}, {"nrg_pam": True}, {"sees": "pam"})
    return [AnomalyRecipe(data=name, setup="off_targets", **REDUCED[scale][name], **arm) for arm in arms]
