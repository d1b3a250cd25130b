"""A control that the paper lacks: attacks on what the encodings are read by."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pydantic import Field

from capslib.config import Config
from capslib.papers.common import cross_entropy, in_unit, outcome
from capslib.papers.experiment import Arm, Experiment, Outcome, Scale
from capslib.papers.sparse_unsupervised.encodings import Digits, digits, encode
from capslib.papers.sparse_unsupervised.recipe import (
    TABLE_1,
    SparseRecipe,
    full_recipe,
    smaller,
)
from capslib.recipes import train

if TYPE_CHECKING:
    from torch import Tensor, nn

    from capslib.training import Context

EPSILONS = (0.0, 0.02, 0.05, 0.1, 0.2)
"""Largest changes of a pixel in 0…1."""


class AttackOptions(Config):
    """How many encodings the linear classifier learns from, and how many digits are changed."""

    head_fit: int = Field(
        20_000, ge=100, title="encodings that the linear classifier learns from"
    )
    attacked: int = Field(2000, ge=10, title="attacked test images")


def run(arm: Arm, context: Context) -> Outcome:
    """Attack MNIST by FGSM through the encoder.

    Measure what is left of the accuracy of a linear classifier of the encodings, or of the
    CNN's own classes. The released logistic regression, C = 100, stands in for the support
    vector machine, through which no gradient flows in torch.
    """
    from capslib.attacks import robustness

    recipe: SparseRecipe = arm.recipe
    trained = train(recipe, context.seed, context)
    sets, _ = digits(recipe, context)
    test = sets["test"].rows(slice(arm.options.attacked))
    images = recipe.framed(test.images)
    if recipe.network == "cnn":
        scores = functools.partial(recipe.scores, trained.network)
    else:
        scores = head(trained.network, recipe, sets["train"], arm.options.head_fit)

    loss = cross_entropy(scores)
    accuracies = robustness(scores, loss, images, test.labels, EPSILONS, bounds=(0.0, 1.0))
    share = accuracies[EPSILONS.index(0.1)] / max(accuracies[0], 1e-9)
    return outcome(
        trained,
        in_unit({"kept": share}, len(images), "fraction"),
        {"epsilons": list(EPSILONS), "accuracy_left": accuracies},
        [*trained.history.epochs],
    )


def head(
    network: nn.Module, recipe: SparseRecipe, examples: Digits, count: int
) -> Callable[[Tensor], Tensor]:
    """Return class scores [N, 10] of images [N, C, H, W], linear in their masked encodings.

    They are fitted to so many training digits, from everywhere.
    """
    import torch
    from sklearn.linear_model import LogisticRegression

    last = len(examples.images) - 1
    rows = torch.linspace(0, last, min(count, len(examples.images))).long()
    fitted = examples.rows(rows)
    codes = encode(network, recipe, fitted)["masked"]
    model = LogisticRegression(C=100, max_iter=300).fit(codes, fitted.labels.cpu().numpy())
    device = examples.images.device
    weight = torch.tensor(model.coef_.T, dtype=torch.float32, device=device)
    bias = torch.tensor(model.intercept_, dtype=torch.float32, device=device)

    def scores(images: Tensor) -> Tensor:
        output = network(images)
        return (output.pose * output.mask[..., None]).flatten(1) @ weight + bias

    return scores


def arms(scale: Scale) -> Iterator[Arm]:
    """Yield networks of Table 1, which are trained once for both experiments."""
    for name in ("sparse", "dense", "supcaps", "cnn"):
        yield Arm(name, full_recipe(scale, **TABLE_1[name]), AttackOptions())


ATTACKS = Experiment(
    name="attacks",
    paper="sparse_unsupervised",
    arms=arms,
    smaller=smaller,
    run=run,
)
