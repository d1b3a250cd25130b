"""What latent capsules say of digits, and what a classifier makes of it (Tables 1 and 2, Figs. 2 to 5, §3.5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic import Field

from capslib.errors import Interrupted
from capslib.papers.common import in_unit, outcome
from capslib.papers.experiment import Metric, Outcome, Scale
from capslib.papers.sparse_unsupervised.recipe import REDUCED, SparseRecipe, squared_error
from capslib.recipes import train

if TYPE_CHECKING:
    from torch import Tensor, nn

    from capslib.data import DataFingerprint
    from capslib.training import Context

FOLLOWS = 0.01
"""A capsule contributes to an image if without it the squared length of the reconstruction changes by more than this share."""
SHOWN = 4
"""Parameters of the winning capsule that a record shows, those that move the picture most."""


class EncodingConfig(SparseRecipe):
    """A network, and how many of its encodings the classifier sees."""

    svm_fit: int = Field(60_000, ge=100, title="encodings that the classifier learns from")
    svm_test: int = Field(10_000, ge=100, title="encodings that the classifier is tested on")


class Digits(NamedTuple):
    """Images that fill the frame, uint8 [N, 1, side, side], their labels [N], and which digits they show [N]."""

    images: Tensor
    labels: Tensor
    digit: Tensor

    def __getitem__(self, rows: Any) -> Digits:
        return Digits(*(t[rows] for t in self))


def digits(config: SparseRecipe, context: Context) -> tuple[dict[str, Digits], DataFingerprint]:
    """``train`` and ``test`` in the middle of the frame, and ``affnist``: seven variants of each test digit, as many as the paper uses.

    In a rehearsal about a thousand of each.
    """
    import torch

    from capslib import data
    from capslib.data.affnist import affnist

    found = {}
    for part in ("train", "test"):
        split = data.load(config.data, part, data_dir=context.data_dir)
        images = torch.nn.functional.pad(
            torch.tensor(np.asarray(split.images)), [config.edge] * 4
        )
        found[part] = Digits(
            images, torch.tensor(np.asarray(split.labels)), torch.arange(len(images))
        )
    count = 7 * len(found["test"].images)
    *of_affnist, fingerprint = affnist(config.data, count, config.frame(), context.data_dir)
    found["affnist"] = Digits(*of_affnist)
    if context.max_steps is not None:
        found = {name: of[:: max(1, len(of.images) // 1000)] for name, of in found.items()}
    return {
        name: Digits(*(t.to(context.device) for t in of)) for name, of in found.items()
    }, fingerprint


def run(config: EncodingConfig, context: Context) -> Outcome:
    """Train one network, encode MNIST and affNIST with it, fit the classifiers, and look at who is active."""
    from capslib.training import Examples, accuracy

    trained = train(config, context.seed, context)
    sets, fingerprint = digits(config, context)
    network, metrics, series, curves = trained.network, {}, {}, [*trained.history.epochs]
    if config.supervised:
        last = sets["affnist"][-len(sets["test"].images) :]  # the seventh variant
        for name, of in (("mnist", sets["test"]), ("affnist", last)):
            examples = Examples(of.images, of.labels)
            right = accuracy(
                lambda images: config.scores(network, config.framed(images)),
                examples,
                config.BATCH_OF_TEST,
            )
            metrics |= in_unit({f"{name}_accuracy": right}, len(of.images), "fraction")
    if config.network != "cnn":
        codes = {name: encode(network, config, of) for name, of in sets.items()}
        for kind in ("masked", "raw"):
            metrics |= classified(
                {name: of[kind] for name, of in codes.items()},
                sets,
                config,
                f"_{kind}",
                context,
            )
        for name, of in (("mnist", "test"), ("affnist", "affnist")):
            metrics |= in_unit(
                {f"error_{name}": float(codes[of]["error"].mean())},
                len(sets[of].images),
                "squared error",
            )
        seen = config.framed(sets["test"].images)
        guess = float((seen - seen.mean(dim=0)).square().sum(dim=(1, 2, 3)).mean())
        left = metrics["error_mnist"].value / guess
        metrics |= in_unit(
            {"unexplained": left}, len(seen), "share of the error of the mean image"
        )
        if config.network == "sparse_capsnet":
            found, curves_of_ranks = activity(codes, len(seen))
            metrics |= found | contributions(network, config, sets["test"])
            series |= curves_of_ranks
            if context.seed == 0:
                series |= pictures(network, config, sets["test"])
    result = outcome(trained, metrics, series, curves)
    result.data.append(fingerprint)
    return result


def encode(network: nn.Module, config: SparseRecipe, of: Digits) -> dict[str, np.ndarray]:
    """Of each image: poses of the latent capsules under their mask and without it [N, L·D], support and rank [N, L], error [N]."""
    import torch

    from capslib.networks.sparse_unsupervised import ranks

    found: dict[str, list[Tensor]] = {}
    with torch.no_grad():
        for images in of.images.split(config.BATCH_OF_TEST):
            output = network(x := config.framed(images))
            boost = getattr(network, "boost", None)
            one = {
                "raw": output.pose.flatten(1),
                "masked": (output.pose * output.mask[..., None]).flatten(1),
                "support": output.support,
                "rank": ranks(output.support if boost is None else boost(output.support)),
                "error": squared_error(output, x),
            }
            for name, value in one.items():
                found.setdefault(name, []).append(value)
    return {name: torch.cat(values).cpu().numpy() for name, values in found.items()}


# ----------------------------------------------------------------------------------------------------- the classifier


def classified(
    codes: Mapping[str, np.ndarray],
    sets: Mapping[str, Digits],
    config: EncodingConfig,
    suffix: str,
    context: Context,
) -> dict[str, Metric]:
    """Accuracy of a classifier on MNIST; on affNIST if fitted to affNIST (a), to other digits of it, or to MNIST (b) (§3.2)."""
    labels = {name: of.labels.cpu().numpy() for name, of in sets.items()}
    digit = sets["affnist"].digit.cpu().numpy()
    last, few = (
        np.arange(len(digit)) >= len(digit) * 6 // 7,
        digit >= (digit.max() + 1) * 6 // 7,
    )

    def spread(rows: np.ndarray, most: int) -> np.ndarray:
        places = np.linspace(0, len(rows) - 1, min(most, len(rows)))
        return rows[places.astype(int)]

    every = {name: np.arange(len(of)) for name, of in labels.items()}
    fits: list[tuple[str, np.ndarray, dict[str, tuple[str, np.ndarray]]]] = [
        (
            "train",
            every["train"],
            {
                "mnist": ("test", every["test"]),
                "affnist_b": ("affnist", every["affnist"][last]),
            },
        ),
        (
            "affnist",
            every["affnist"][~last],
            {"affnist_a": ("affnist", every["affnist"][last])},
        ),
        (
            "affnist",
            every["affnist"][~few],
            {"affnist_by_digit": ("affnist", every["affnist"][few])},
        ),
    ]
    found = {}
    for source, rows, tests in fits:
        fit = spread(rows, config.svm_fit)
        if context.progress is not None:
            context.progress(
                1, 1, f"trained; a classifier learns from {len(fit):,} encodings of {source}"
            )
        machine = classifier().fit(codes[source][fit], labels[source][fit])
        for name, (where, tested) in tests.items():
            chosen = spread(tested, config.svm_test)
            share = float(machine.score(codes[where][chosen], labels[where][chosen]))
            found[f"{name}{suffix}"] = Metric(value=share, n=len(chosen), unit="fraction")
        if context.stop():
            raise Interrupted
    return found


def classifier() -> Any:
    """The released one: a support vector machine with an RBF kernel (classifier.py)."""
    from sklearn.svm import SVC

    return SVC(C=100, gamma=0.1, tol=1e-3, cache_size=1000, random_state=42)


# ------------------------------------------------------------------------------------------------------- who is active


def activity(
    codes: Mapping[str, Mapping[str, np.ndarray]], n: int
) -> tuple[dict[str, Metric], dict[str, list[float]]]:
    """Figs. 3 and 4: mean support by rank, as shares of that of the first, and how often each capsule has each rank on affNIST."""
    ranked = -np.sort(-codes["test"]["support"], axis=1)
    ranked = ranked.mean(axis=0) / ranked[:, 0].mean()
    rank = codes["affnist"]["rank"]
    L = rank.shape[1]
    often = np.stack([(rank == k).mean(axis=0) for k in range(L)], axis=1)  # [capsules, ranks]
    first = often[:, 0]
    metrics = {
        "support_left": Metric(value=float(ranked[1:].mean()), n=n, unit="fraction"),
        "largest_first_share": Metric(value=float(first.max()), n=len(rank), unit="fraction"),
        "smallest_first_share": Metric(value=float(first.min()), n=len(rank), unit="fraction"),
        "winners": Metric(value=float((first > 0.001).sum()), n=L, unit="capsules"),
    }
    rounded = {"ranked_support": ranked, "rank_shares": often.flatten()}
    return metrics, {
        "ranks": [float(k) for k in range(L)],
        **{k: [round(float(x), 5) for x in v] for k, v in rounded.items()},
    }


def without_each(network: nn.Module, pose: Tensor, mask: Tensor) -> Tensor:
    """Reconstructions [N, L, pixels] without each capsule."""
    import torch

    kept = 1 - torch.eye(mask.shape[1], device=mask.device)
    return torch.stack([network.decode(pose, mask * row) for row in kept], dim=1)


def contributions(network: nn.Module, config: SparseRecipe, of: Digits) -> dict[str, Metric]:
    """Fig. 2 in numbers: how many capsules an image needs, and how much of it the most important one holds."""
    import torch

    with torch.no_grad():
        output = network(config.framed(of.images[:500]))
        change = (
            (without_each(network, output.pose, output.mask) - output.reconstruction[:, None])
            .square()
            .sum(dim=2)
        )
        share = change / output.reconstruction.square().sum(dim=1, keepdim=True)  # [N, L]
    return {
        "contributing": Metric(
            value=float((share > FOLLOWS).sum(dim=1).float().mean()),
            n=len(share),
            unit="capsules",
        ),
        "largest_change": Metric(
            value=float(share.amax(dim=1).mean()),
            n=len(share),
            unit="share of the squared picture",
        ),
    }


def pictures(network: nn.Module, config: SparseRecipe, of: Digits) -> dict[str, list[float]]:
    """Figs. 2 and 5 of the first test digit: it, its reconstruction by all, by each and without each capsule; and the winner turned.

    Grey values 0…255. ``turned`` has, for each of the parameters that move the picture most, eleven pictures from −1 to 1.
    """
    import torch

    with torch.no_grad():
        image = config.framed(of.images[:1])
        output = network(image)
        pose, mask = output.pose, output.mask
        each = torch.cat(
            [
                network.decode(pose, mask * row)
                for row in torch.eye(mask.shape[1], device=mask.device)
            ]
        )
        winner = int((mask * output.activation).argmax())
        turned = pose.repeat(pose.shape[2], 11, 1, 1)  # [D, 11, L, D]
        for parameter in range(len(turned)):
            turned[parameter, :, winner, parameter] += torch.linspace(
                -1, 1, 11, device=pose.device
            )
        drawn = network.decode(
            turned.flatten(0, 1), mask.expand(len(turned) * 11, -1)
        ).unflatten(0, (-1, 11))
        moves = (drawn - output.reconstruction).square().sum(dim=(1, 2))
        chosen = moves.argsort(descending=True)[:SHOWN]
    shown = {
        "picture": image.flatten(),
        "picture_of_all": output.reconstruction.flatten(),
        "picture_of_each": each.flatten(),
        "picture_without_each": without_each(network, pose, mask).flatten(),
        "turned": drawn[chosen].flatten(),
    }
    return {
        name: (255 * pixels).round().clamp(0, 255).tolist() for name, pixels in shown.items()
    }


# -------------------------------------------------------------------------------------------------------------- grids

SVM: dict[Scale, dict[str, int]] = {
    "smoke": dict(svm_fit=300, svm_test=100),
    "cpu": dict(svm_fit=20_000),
    "paper": {},
}
DENSE, SPARSE, UNBOOSTED = (
    dict(mask="none"),
    dict(mask="ranks"),
    dict(mask="ranks", boost=False),
)
SUPCAPS = dict(mask="label", capsules=10)
CNN = dict(network="cnn", loss="cross_entropy")


def grid(scale: Scale) -> list[EncodingConfig]:
    """Table 1 and its figures: dense, sparse with and without boosting, SUPCAPS and a CNN."""
    return [
        EncodingConfig(**{**REDUCED[scale], **SVM[scale], **arm})
        for arm in (SPARSE, DENSE, UNBOOSTED, SUPCAPS, CNN)
    ]


def options_grid(scale: Scale) -> list[EncodingConfig]:
    """What the released code does otherwise: another grouping, a wider band, few digits in a batch."""
    arms = (dict(grouping="released"), dict(band=(0.03, 0.12)), dict(distinct=30))
    return [
        EncodingConfig(**{**REDUCED[scale], **SVM[scale], **arm})
        for arm in (arms[:1] if scale == "smoke" else arms)
    ]


def beyond_grid(scale: Scale) -> list[EncodingConfig]:
    """The conjectures of §4 and two controls: a deeper sparse and dense network, both with EM routing; steps of boosting that grow
    with the gains; a plain autoencoder.
    """
    deep, em = dict(hidden=(32,)), dict(routing="em_vector")
    arms = [{**sparse, **other} for other in (deep, em) for sparse in (SPARSE, DENSE)]
    arms += [{**SPARSE, "relative_boost": True}, dict(network="autoencoder", mask="none")]
    return [
        EncodingConfig(**{**REDUCED[scale], **SVM[scale], **arm})
        for arm in (arms[-3:] if scale == "smoke" else arms)
    ]
