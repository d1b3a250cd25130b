"""Controls that the paper lacks: encodings without any network, and attacks on what the encodings are read by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from capslib.papers.common import in_unit, outcome
from capslib.papers.experiment import Metric, Outcome, Scale
from capslib.papers.sparse_unsupervised.encodings import (
    CNN,
    DENSE,
    SPARSE,
    SUPCAPS,
    SVM,
    EncodingConfig,
    classified,
    digits,
    encode,
)
from capslib.papers.sparse_unsupervised.recipe import REDUCED, SparseRecipe
from capslib.recipes import train

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from capslib.training import Context

EPSILONS = (0.0, 0.02, 0.05, 0.1, 0.2)
"""Largest changes of a pixel in 0…1."""


class CodeConfig(EncodingConfig):
    """What the classifier sees instead of capsules: as many principal components as they have numbers, or the pixels."""

    ARM = EncodingConfig.ARM | {"code"}

    code: Literal["pca", "pixels"]


def run(config: CodeConfig, context: Context) -> Outcome:
    """The classifiers of :mod:`encodings` on principal components of shifted training digits, or on pixels."""
    import torch

    sets, fingerprint = digits(config, context)
    seen = {
        name: torch.cat([config.framed(x).flatten(1) for x in of.images.split(5000)])
        for name, of in sets.items()
    }
    metrics = {}
    if config.code == "pca":
        mean, basis = components(config, sets["train"].images, context.seed)
        coded = {name: (x - mean) @ basis for name, x in seen.items()}
        errors = {
            name: ((coded[of] @ basis.T + mean - seen[of]) ** 2).sum(dim=1)
            for name, of in (("mnist", "test"), ("affnist", "affnist"))
        }
        metrics = in_unit(
            {f"error_{k}": float(e.mean()) for k, e in errors.items()},
            len(seen["test"]),
            "squared error",
        )
    else:
        coded = seen
    codes = {name: x.cpu().numpy() for name, x in coded.items()}
    metrics |= classified(codes, sets, config, "_raw", context)
    return Outcome(metrics=metrics, data=[fingerprint])


def components(config: SparseRecipe, framed: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Mean [pixels] and principal components [pixels, capsules·dim] of training digits, each shifted once as in training."""
    import torch

    from capslib.training import augmentation

    inner = torch.nn.functional.pad(framed, [-config.edge] * 4)
    generator = augmentation(seed, 0, framed.device)
    x = torch.cat(
        [config.prepare(some, generator).flatten(1) for some in inner.split(5000)]
    ).double()
    mean = x.mean(dim=0)
    _, vectors = torch.linalg.eigh((x - mean).T @ (x - mean))
    return mean.float(), vectors.flip(1)[:, : config.capsules * config.dim].float()


class AttackConfig(SparseRecipe):
    """A trained network of Table 1, and how many test digits are attacked."""

    head_fit: int = Field(
        20_000, ge=100, title="encodings that the linear classifier learns from"
    )
    attacked: int = Field(2000, ge=10, title="attacked test images")


def attack(config: AttackConfig, context: Context) -> Outcome:
    """FGSM on MNIST through the encoder: accuracy of a linear classifier of the encodings, and of the CNN's own classes.

    The released logistic regression, C = 100, stands in for the support vector machine, through which no gradient flows in torch.
    """
    from torch.nn import functional as F

    from capslib.attacks import robustness

    trained = train(config, context.seed, context)
    network = trained.network
    sets, _ = digits(config, context)
    test = sets["test"][: config.attacked]
    x, y = config.framed(test.images), test.labels
    scores = network if config.network == "cnn" else head(network, config, sets, context.device)
    loss = lambda x, y: F.cross_entropy(scores(x), y)  # noqa: E731
    left = robustness(scores, loss, x, y, EPSILONS, bounds=(0.0, 1.0))
    kept = Metric(
        value=left[EPSILONS.index(0.1)] / max(left[0], 1e-9), n=len(x), unit="fraction"
    )
    return outcome(
        trained,
        {"kept": kept},
        {"epsilons": list(EPSILONS), "accuracy_left": left},
        [*trained.history.epochs],
    )


def head(
    network: nn.Module, config: AttackConfig, sets: dict[str, Any], device: str | torch.device
) -> Any:
    """Class scores [N, 10] of images [N, C, H, W], linear in the encodings under their mask, fitted to training digits."""
    import torch
    from sklearn.linear_model import LogisticRegression

    train = sets["train"][
        torch.linspace(
            0, len(sets["train"].images) - 1, min(config.head_fit, len(sets["train"].images))
        ).long()
    ]
    codes, labels = encode(network, config, train)["masked"], train.labels.cpu().numpy()
    found = LogisticRegression(C=100, max_iter=300).fit(codes, labels)
    weight, bias = (
        torch.tensor(a, dtype=torch.float32, device=device)
        for a in (found.coef_.T, found.intercept_)
    )

    def scores(images: Tensor) -> Tensor:
        output = network(images)
        return (output.pose * output.mask[..., None]).flatten(1) @ weight + bias

    return scores


def grid(scale: Scale) -> list[CodeConfig]:
    """Both codes; a network's options mean nothing to them."""
    kept = ("data", "shift", "downsample", "dim", "batch_size")
    reduced = {name: value for name, value in REDUCED[scale].items() if name in kept}
    return [CodeConfig(**{**reduced, **SVM[scale], "code": code}) for code in ("pca", "pixels")]


def attack_grid(scale: Scale) -> list[AttackConfig]:
    """The networks of Table 1; they are trained once for both."""
    small = dict(head_fit=300, attacked=60) if scale == "smoke" else {}
    return [
        AttackConfig(**{**REDUCED[scale], **small, **arm})
        for arm in (SPARSE, DENSE, SUPCAPS, CNN)
    ]
