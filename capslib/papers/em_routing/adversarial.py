"""Adversarial images (Fig. 3, B.3, §6).

FGSM with and without a target, BIM, a black box, and gradients that are zero.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from capslib.config import Config
from capslib.data.registry import SETS
from capslib.papers.common import cross_entropy, in_unit, outcome
from capslib.papers.em_routing.recipe import SMALLER, EMRecipe, recipes_beside, trainings_beside
from capslib.papers.experiment import Arm, Experiment, Metric, Outcome, Scale
from capslib.recipes import Training, train

if TYPE_CHECKING:
    from torch import Tensor

    from capslib.attacks import Loss
    from capslib.training import Context


class AttackOptions(Config):
    """How networks are attacked."""

    epsilons: tuple[float, ...] = Field(
        (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5), title="steps ε, in standard deviations"
    )
    attacked: int = Field(2000, ge=1, title="test images that are attacked")
    bim_steps: int = Field(10, ge=2, title="steps of the basic iterative method")

    @field_validator("epsilons")
    @classmethod
    def _from_zero(cls, epsilons: tuple[float, ...]) -> tuple[float, ...]:
        if len(epsilons) < 2 or epsilons[0] != 0:
            raise ValueError(
                "the first step is 0, for the accuracy without an attack; others follow it"
            )
        return epsilons


SOURCE_SEED = 1000
"""What is added to the seed for the CNN that makes the images of the black-box attack."""


def trainings(arm: Arm, seed: int) -> list[Training]:
    """Return the trainings of the CNN, the CNN behind the black box, and the capsules.

    An arm without capsules has that of the CNN alone.
    """
    cnn, *capsules = trainings_beside(arm, seed)
    if not capsules:
        return [cnn]
    return [cnn, cnn._replace(seed=seed + SOURCE_SEED), *capsules]


def spread(scores: Callable[[Tensor], Tensor]) -> Loss:
    """Return the spread loss of class scores [N, C], image by image.

    Its margin is the paper's last, 0.9; that of our trainings ends near 0.98.
    """
    from capslib.losses import spread_loss

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return spread_loss(scores(images), labels, 0.9)

    return loss


def greys(recipe: EMRecipe, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return what black and white become in each of these images, [N, 1, 1, 1]."""
    from capslib.data.transforms import black_and_white, center_crop, to_float

    pixels = to_float(inputs)
    if recipe.standardise == "crop":
        pixels = center_crop(pixels, recipe.crop)
    return black_and_white(pixels)


def run(arm: Arm, context: Context) -> Outcome:
    """Train the networks and attack the same test images.

    FGSM, targeted and not, BIM, and images made with the other CNN.
    """
    import torch

    from capslib import attacks
    from capslib.networks.em_routing import MatrixCapsNet

    recipe: EMRecipe = arm.recipe
    options: AttackOptions = arm.options
    trained = [train(*training, context) for training in trainings(arm, context.seed)]
    names = ("cnn", "source", "capsules")[: len(trained)]
    scores = {}
    for name, result in zip(names, trained, strict=True):
        scores[name] = functools.partial(recipe.scores, result.network)
    examples = trained[-1].splits["test"].at_most(options.attacked)
    images, labels = recipe.seen(examples.inputs), examples.labels
    # a gradient takes what training takes
    limits = dict(bounds=greys(recipe, examples.inputs), batch_size=recipe.batch_size)

    def accuracies(victim: str, loss: Loss, steps: int = 1) -> list[float]:
        return attacks.robustness(
            scores[victim], loss, images, labels, options.epsilons, **limits, steps=steps
        )

    reach = MatrixCapsNet.reach(recipe.crop)
    classes = range(len(SETS[recipe.data].classes))
    curves = {"epsilons": list(options.epsilons)}
    metrics: dict[str, Metric] = {}
    gradients: dict[str, float] = {}
    for name in ("capsules", "cnn"):
        if name not in scores:
            continue
        loss = cross_entropy(scores[name])
        curves[f"fgsm_{name}"] = accuracies(name, loss)
        curves[f"bim_{name}"] = accuracies(name, loss, options.bim_steps)
        if "source" in scores:
            curves[f"transfer_{name}"] = accuracies(name, cross_entropy(scores["source"]))
        curves[f"targeted_{name}"] = attacks.targeted_success(
            scores[name], loss, images, classes, options.epsilons, **limits
        )
        batches = zip(
            images.split(recipe.batch_size), labels.split(recipe.batch_size), strict=True
        )
        gradient = torch.cat([attacks.input_gradient(loss, *batch) for batch in batches])
        # the capsules' strides leave out the last rows and columns
        gradient = gradient[..., :reach, :reach]
        gradients[name] = float(gradient.abs().mean().clamp_min(1e-30))
        share = {f"zero_share_{name}": attacks.zero_share(gradient)}
        metrics |= in_unit(share, len(labels), "fraction")
    if "capsules" not in scores:
        return outcome(trained[-1], metrics, curves)

    curves["fgsm_spread_capsules"] = accuracies("capsules", spread(scores["capsules"]))
    gap = metrics["zero_share_cnn"].value - metrics["zero_share_capsules"].value
    lowest = min(*curves["fgsm_capsules"], *curves["fgsm_spread_capsules"])
    orders = math.log10(gradients["cnn"] / gradients["capsules"])
    metrics |= in_unit({"zero_gap": gap}, len(labels), "difference of fractions")
    metrics |= in_unit({"least_fgsm_accuracy": lowest}, len(labels), "fraction")
    metrics |= in_unit({"gradient_orders": orders}, len(labels), "count")
    return outcome(trained[-1], metrics, curves, rival=trained[0])


def arms(scale: Scale) -> Iterator[Arm]:
    """Yield the networks that are attacked."""
    for name, recipe in recipes_beside(scale).items():
        yield Arm(name, recipe, AttackOptions())


FEWER = {
    "smoke": dict(attacked=40, bim_steps=2, epsilons=(0.0, 0.1, 0.2, 0.5)),
    "cpu": dict(attacked=500, bim_steps=5),
    "paper": {},
}
"""What makes the attacks of a scale fewer than ours at paper scale."""


def smaller(scale: Scale, arm: Arm) -> dict[str, Any]:
    """Return the fields that a scale makes smaller, of networks and of attacks."""
    return SMALLER[scale] | FEWER[scale]


ATTACKS = Experiment(
    name="attacks",
    paper="em_routing",
    arms=arms,
    smaller=smaller,
    run=run,
    revision=2,
    trainings=trainings,
)
