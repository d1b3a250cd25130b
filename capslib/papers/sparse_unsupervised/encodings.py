"""The encodings that latent capsules give, and what a classifier makes of them.

Tables 1 and 2, Figs. 2 to 5, §3.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic import Field

from capslib.config import Config
from capslib.errors import Interrupted
from capslib.papers.common import in_unit, outcome, rounded, squared_error
from capslib.papers.experiment import Arm, Experiment, Metric, Outcome, Scale
from capslib.papers.sparse_unsupervised.recipe import (
    TABLE_1,
    SparseRecipe,
    full_recipe,
    smaller,
)
from capslib.recipes import train

if TYPE_CHECKING:
    from torch import Tensor, nn

    from capslib.data import DataFingerprint
    from capslib.training import Context

CONTRIBUTION = 0.01
"""A capsule contributes to an image if without it the reconstruction changes by more than this.

It is a share of the squared length of the reconstruction.
"""
TURNED = 4
"""The number of parameters of the winning capsule that a record shows.

They are those that move the picture most.
"""


class ClassifierOptions(Config):
    """How many encodings the classifier sees."""

    svm_fit: int = Field(60_000, ge=100, title="encodings that the classifier learns from")
    svm_test: int = Field(10_000, ge=100, title="encodings that the classifier is tested on")


class Digits(NamedTuple):
    """Images that fill the frame, uint8 [N, 1, side, side], their labels, and their digits [N].

    Variants of one digit have one number in ``digit``.
    """

    images: Tensor
    labels: Tensor
    digit: Tensor

    def rows(self, index: Any) -> Digits:
        """Return the digits that ``index`` selects: row numbers or a slice."""
        return Digits(*(tensor[index] for tensor in self))


def digits(recipe: SparseRecipe, context: Context) -> tuple[dict[str, Digits], DataFingerprint]:
    """Return ``train``, ``test`` and ``affnist`` on the device, and the fingerprint of affNIST.

    The first two stand in the middle of the frame. The third has seven variants of each test
    digit, as many as the paper uses. In a rehearsal there are about a thousand of each.
    """
    import torch

    from capslib import data
    from capslib.data.affnist import affnist

    sets = {}
    for part in ("train", "test"):
        split = data.load(recipe.data, part, data_dir=context.data_dir)
        images = torch.tensor(np.asarray(split.images))
        images = torch.nn.functional.pad(images, [recipe.shift] * 4)
        labels = torch.tensor(np.asarray(split.labels))
        sets[part] = Digits(images, labels, torch.arange(len(images)))
    count = 7 * len(sets["test"].images)
    *variants, fingerprint = affnist(recipe.data, count, recipe.frame(), context.data_dir)
    sets["affnist"] = Digits(*variants)
    for part, split in sets.items():
        if context.max_steps is not None:
            split = split.rows(slice(None, None, max(1, len(split.images) // 1000)))
        sets[part] = Digits(*(tensor.to(context.device) for tensor in split))
    return sets, fingerprint


def run(arm: Arm, context: Context) -> Outcome:
    """Train a network, classify its encodings of MNIST and affNIST, and see who is active."""
    recipe: SparseRecipe = arm.recipe
    trained = train(recipe, context.seed, context)
    network = trained.network
    sets, fingerprint = digits(recipe, context)
    metrics: dict[str, Metric] = {}
    series: dict[str, list[float]] = {}
    if recipe.supervised:
        metrics |= own_accuracy(network, recipe, sets)
    if recipe.network != "cnn":
        codes = {name: encode(network, recipe, split) for name, split in sets.items()}
        for kind in ("masked", "raw"):
            encodings = {name: code[kind] for name, code in codes.items()}
            metrics |= classified(encodings, sets, arm.options, f"_{kind}", context)
        metrics |= errors(codes, recipe, sets["test"])
    if recipe.network == "sparse_capsnet":
        active, series = activity(codes)
        metrics |= active | contributions(network, recipe, sets["test"])
        if context.seed == 0:
            series |= pictures(network, recipe, sets["test"])
    result = outcome(trained, metrics, series, [*trained.history.epochs])
    result.data.append(fingerprint)
    return result


def own_accuracy(
    network: nn.Module, recipe: SparseRecipe, sets: Mapping[str, Digits]
) -> dict[str, Metric]:
    """Return the accuracy of a network's own classes.

    It is that on MNIST, and on the seventh variants of affNIST.
    """
    from capslib.training import Examples, accuracy

    def scores(images: Tensor) -> Tensor:
        return recipe.scores(network, recipe.framed(images))

    metrics: dict[str, Metric] = {}
    seventh = sets["affnist"].rows(slice(-len(sets["test"].images), None))
    for name, tested in (("mnist", sets["test"]), ("affnist", seventh)):
        examples = Examples(tested.images, tested.labels)
        share = accuracy(scores, examples, recipe.BATCH_OF_TEST)
        metrics |= in_unit({f"{name}_accuracy": share}, len(tested.images), "fraction")
    return metrics


def encode(network: nn.Module, recipe: SparseRecipe, examples: Digits) -> dict[str, np.ndarray]:
    """Return the encodings of images.

    ``masked`` and ``raw`` are the poses of the latent capsules under their mask and without it
    [N, L·D]; with them come ``support`` and ``rank`` [N, L], and ``error`` [N].
    """
    import torch

    from capslib.networks.sparse_unsupervised import ranks

    boost = getattr(network, "boost", None) or torch.nn.Identity()
    batches: dict[str, list[Tensor]] = {}
    with torch.no_grad():
        for batch in examples.images.split(recipe.BATCH_OF_TEST):
            images = recipe.framed(batch)
            output = network(images)
            code = {
                "raw": output.pose.flatten(1),
                "masked": (output.pose * output.mask[..., None]).flatten(1),
                "support": output.support,
                "rank": ranks(boost(output.support)),
                "error": squared_error(output, images),
            }
            for name, values in code.items():
                batches.setdefault(name, []).append(values)
    return {name: torch.cat(values).cpu().numpy() for name, values in batches.items()}


def errors(
    codes: Mapping[str, Mapping[str, np.ndarray]], recipe: SparseRecipe, test: Digits
) -> dict[str, Metric]:
    """Return the mean squared errors, and that of MNIST as a share of the mean image's."""
    metrics: dict[str, Metric] = {}
    for name, part in (("mnist", "test"), ("affnist", "affnist")):
        error = codes[part]["error"]
        metrics |= in_unit({f"error_{name}": float(error.mean())}, len(error), "squared error")
    images = recipe.framed(test.images)
    guess = (images - images.mean(dim=0)).square().sum(dim=(1, 2, 3)).mean()
    share = metrics["error_mnist"].value / float(guess)
    unit = "share of the error of the mean image"
    return metrics | in_unit({"unexplained": share}, len(images), unit)


Rows = tuple[str, np.ndarray]
"""A part of the digits, and rows of it."""


class Protocol(NamedTuple):
    """What a classifier learns from, and what it is tested on, by the name of the test."""

    fitted: Rows
    tests: dict[str, Rows]


def protocols(sets: Mapping[str, Digits]) -> list[Protocol]:
    """Return what is fitted and tested (§3.2).

    A classifier of MNIST is tested on MNIST and on affNIST (b), one of affNIST on other
    variants of the same digits (a), and one on variants of other digits.
    """
    digit = sets["affnist"].digit.cpu().numpy()
    rows = np.arange(len(digit))
    is_seventh = rows >= len(digit) * 6 // 7
    is_new_digit = digit >= (digit.max() + 1) * 6 // 7
    seventh = "affnist", rows[is_seventh]
    mnist = "test", np.arange(len(sets["test"].labels))
    return [
        Protocol(
            ("train", np.arange(len(sets["train"].labels))),
            {"mnist": mnist, "affnist_b": seventh},
        ),
        Protocol(("affnist", rows[~is_seventh]), {"affnist_a": seventh}),
        Protocol(
            ("affnist", rows[~is_new_digit]),
            {"affnist_by_digit": ("affnist", rows[is_new_digit])},
        ),
    ]


def evenly_chosen(rows: np.ndarray, limit: int) -> np.ndarray:
    """Return at most so many rows, from everywhere."""
    places = np.linspace(0, len(rows) - 1, min(limit, len(rows)))
    return rows[places.astype(int)]


def classified(
    codes: Mapping[str, np.ndarray],
    sets: Mapping[str, Digits],
    options: ClassifierOptions,
    suffix: str,
    context: Context,
) -> dict[str, Metric]:
    """Return the accuracies of classifiers of encodings; their names end with a suffix."""
    labels = {name: split.labels.cpu().numpy() for name, split in sets.items()}
    metrics: dict[str, Metric] = {}

    def examples(part: str, rows: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
        rows = evenly_chosen(rows, limit)
        return codes[part][rows], labels[part][rows]

    for fitted, tests in protocols(sets):
        code, label = examples(*fitted, options.svm_fit)
        if context.progress is not None:
            text = f"a classifier learns from {len(code):,} encodings of {fitted[0]}"
            context.progress(1, 1, text)
        machine = classifier().fit(code, label)
        for name, tested in tests.items():
            code, label = examples(*tested, options.svm_test)
            share = {f"{name}{suffix}": float(machine.score(code, label))}
            metrics |= in_unit(share, len(code), "fraction")
        if context.stop():
            raise Interrupted
    return metrics


def classifier() -> Any:
    """Return the released one: a support vector machine with an RBF kernel (classifier.py)."""
    from sklearn.svm import SVC

    return SVC(C=100, gamma=0.1, tol=1e-3, cache_size=1000, random_state=42)


def activity(
    codes: Mapping[str, Mapping[str, np.ndarray]],
) -> tuple[dict[str, Metric], dict[str, list[float]]]:
    """Return which capsules are active, as metrics and as series (Figs. 3 and 4).

    ``ranked_support`` is the mean over test images of their supports, sorted from the largest,
    as a share of the largest; without boosting. ``rank_shares`` is how often each capsule has
    each rank on affNIST.
    """
    images = len(codes["test"]["support"])
    support = -np.sort(-codes["test"]["support"], axis=1)
    ranked_support = support.mean(axis=0) / support[:, 0].mean()
    rank = codes["affnist"]["rank"]
    capsules = rank.shape[1]
    shares = [(rank == position).mean(axis=0) for position in range(capsules)]
    rank_shares = np.stack(shares, axis=1)  # [capsules, ranks]
    first = rank_shares[:, 0]
    winners = float((first > 0.001).sum())
    metrics = in_unit({"support_left": float(ranked_support[1:].mean())}, images, "fraction")
    extremes = {
        "largest_first_share": float(first.max()),
        "smallest_first_share": float(first.min()),
    }
    metrics |= in_unit(extremes, len(rank), "fraction")
    metrics |= in_unit({"winners": winners}, capsules, "capsules")
    series = {
        "ranks": [float(position) for position in range(capsules)],
        "ranked_support": rounded(ranked_support),
        "rank_shares": rounded(rank_shares.flatten()),
    }
    return metrics, series


def without_each(network: nn.Module, pose: Tensor, mask: Tensor) -> Tensor:
    """Return reconstructions [N, L, pixels] without each capsule."""
    import torch

    complement = 1 - torch.eye(mask.shape[1], device=mask.device)
    return torch.stack([network.decode(pose, mask * row) for row in complement], dim=1)


def contributions(
    network: nn.Module, recipe: SparseRecipe, examples: Digits
) -> dict[str, Metric]:
    """Return Fig. 2 in numbers.

    They are how many capsules an image needs, and how much of it the most important one holds.
    """
    import torch

    with torch.no_grad():
        output = network(recipe.framed(examples.images[:500]))
        drawn = without_each(network, output.pose, output.mask)
        change = (drawn - output.reconstruction[:, None]).square().sum(dim=2)
        share = change / output.reconstruction.square().sum(dim=1, keepdim=True)  # [N, L]
    contributing = float((share > CONTRIBUTION).sum(dim=1).float().mean())
    largest = float(share.amax(dim=1).mean())
    return {
        **in_unit({"contributing": contributing}, len(share), "capsules"),
        **in_unit({"largest_change": largest}, len(share), "share of the squared picture"),
    }


def pictures(
    network: nn.Module, recipe: SparseRecipe, examples: Digits
) -> dict[str, list[float]]:
    """Return pictures of the first test digit, in grey values 0…255 (Figs. 2 and 5).

    It is drawn by all capsules, by each and without each. ``turned`` has, for each of the
    parameters of the winner that move the picture most, eleven pictures from −1 to 1.
    """
    import torch

    with torch.no_grad():
        image = recipe.framed(examples.images[:1])
        output = network(image)
        pose, mask = output.pose, output.mask
        identity = torch.eye(mask.shape[1], device=mask.device)
        single = torch.cat([network.decode(pose, mask * row) for row in identity])
        winner = int((mask * output.activation).argmax())
        poses = pose.repeat(pose.shape[2], 11, 1, 1)  # [D, 11, L, D]
        steps = torch.linspace(-1, 1, 11, device=pose.device)
        for parameter in range(len(poses)):
            poses[parameter, :, winner, parameter] += steps
        drawn = network.decode(poses.flatten(0, 1), mask.expand(len(poses) * 11, -1))
        drawn = drawn.unflatten(0, (-1, 11))  # [D, 11, pixels]
        moves = (drawn - output.reconstruction).square().sum(dim=(1, 2))
        largest = moves.argsort(descending=True)[:TURNED]
    by_name = {
        "picture": image,
        "picture_of_all": output.reconstruction,
        "picture_of_each": single,
        "picture_without_each": without_each(network, pose, mask),
        "turned": drawn[largest],
    }
    grey = {}
    for name, pixels in by_name.items():
        grey[name] = (255 * pixels.flatten()).round().clamp(0, 255).tolist()
    return grey


def encoder(name: str, scale: Scale, **changes: Any) -> Arm:
    """Return an arm whose encodings are classified."""
    return Arm(name, full_recipe(scale, **changes), ClassifierOptions())


def encodings_arms(scale: Scale) -> Iterator[Arm]:
    """Yield the networks of Table 1 and its figures."""
    for name, changes in TABLE_1.items():
        yield encoder(name, scale, **changes)


def options_arms(scale: Scale) -> Iterator[Arm]:
    """Yield what the released code does otherwise."""
    yield encoder("released_support", scale, grouping="released")
    if scale != "smoke":
        yield encoder("released_band", scale, band=(0.03, 0.12))
        yield encoder("30_digits_a_batch", scale, distinct=30)


def beyond_arms(scale: Scale) -> Iterator[Arm]:
    """Yield the conjectures of §4, and two controls.

    The conjectures are of a deeper sparse and dense network, and of both with EM routing. The
    controls are steps of boosting that grow with the gains, and a plain autoencoder.
    """
    sparse, dense = TABLE_1["sparse"], TABLE_1["dense"]
    if scale != "smoke":
        yield encoder("sparse/one_layer_more", scale, **sparse, hidden=(32,))
        yield encoder("dense/one_layer_more", scale, **dense, hidden=(32,))
        yield encoder("sparse/em", scale, **sparse, routing="em_vector")
    yield encoder("dense/em", scale, **dense, routing="em_vector")
    yield encoder("shares_of_the_gain", scale, **sparse, relative_boost=True)
    yield encoder("autoencoder", scale, network="autoencoder", mask="none")


ENCODINGS = Experiment(
    name="encodings",
    paper="sparse_unsupervised",
    arms=encodings_arms,
    smaller=smaller,
    run=run,
)
OPTIONS = Experiment(
    name="options",
    paper="sparse_unsupervised",
    arms=options_arms,
    smaller=smaller,
    run=run,
)
BEYOND = Experiment(
    name="beyond",
    paper="sparse_unsupervised",
    arms=beyond_arms,
    smaller=smaller,
    run=run,
)
