"""Adversarial images (Fig. 3, B.3, §6): FGSM with and without a target, BIM, a black box, and gradients that are zero."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pydantic import Field, field_validator

from capslib.data.registry import SETS
from capslib.papers.common import in_unit, outcome
from capslib.papers.em_routing.recipe import EMRecipe, at_scale
from capslib.papers.experiment import Metric, Outcome, Scale
from capslib.recipes import Training, train

if TYPE_CHECKING:
    from torch import Tensor

    from capslib.training import Context


class AttackConfig(EMRecipe):
    """Capsules and a CNN, and a second CNN that makes the images of the black-box attack; or a CNN alone."""

    epsilons: tuple[float, ...] = Field(
        (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5), title="steps ε, in standard deviations"
    )
    attacked: int = Field(2000, ge=1, title="test images that are attacked")
    bim_steps: int = Field(10, ge=2, title="steps of the basic iterative method")

    @field_validator("epsilons")
    @classmethod
    def _from_zero(cls, steps: tuple[float, ...]) -> tuple[float, ...]:
        if len(steps) < 2 or steps[0] != 0:
            raise ValueError(
                "the first step is 0, for the accuracy without an attack; others follow it"
            )
        return steps


def trainings(config: AttackConfig, seed: int) -> list[Training]:
    """Those of the CNN, of the CNN that makes images for a black-box attack, and of the capsules; or of the CNN alone."""
    cnn = config.recipe(network="cnn")
    others = (
        [Training(cnn, seed + 1000), Training(config.recipe(), seed)]
        if config.network != "cnn"
        else []
    )
    return [Training(cnn, seed), *others]


def run(config: AttackConfig, context: Context) -> Outcome:
    """Train the networks and attack the same test images: FGSM, targeted and not, BIM, and from the other CNN."""
    import torch
    from torch.nn import functional as F

    from capslib import attacks
    from capslib.data.transforms import center_crop, standardise, to_float
    from capslib.losses import spread_loss
    from capslib.networks.em_routing import MatrixCapsNet

    found = (train(*training, context) for training in trainings(config, context.seed))
    networks = dict(zip(("cnn", "source", "capsules"), found, strict=False))
    last = networks[next(reversed(networks))]
    some = last.splits["test"].some(config.attacked)
    x, y = config.seen(some.inputs), some.labels
    pixels = to_float(some.inputs)
    pixels = pixels if config.standardise == "image" else center_crop(pixels, config.crop)
    bounds = tuple(
        standardise(torch.full_like(pixels[:, :1, :1, :1], grey), of=pixels) for grey in (0, 1)
    )
    limits = dict(
        bounds=bounds, batch_size=config.batch_size
    )  # a gradient takes what training takes

    def cross_entropy(name: str) -> attacks.Loss:
        return lambda images, labels: F.cross_entropy(
            networks[name].network(images), labels, reduction="none"
        )

    def spread(images: Tensor, labels: Tensor) -> Tensor:
        return spread_loss(networks["capsules"].network(images), labels, 0.9)

    def untargeted(name: str, loss: attacks.Loss, **more: int) -> list[float]:
        return attacks.robustness(
            networks[name].network, loss, x, y, config.epsilons, **limits, **more
        )

    reach, classes = MatrixCapsNet.reach(config.crop), range(len(SETS[config.data].classes))
    curves, metrics, sizes = {"epsilons": list(config.epsilons)}, {}, {}
    for name in [n for n in ("capsules", "cnn") if n in networks]:
        net, loss = networks[name].network, cross_entropy(name)
        curves[f"fgsm_{name}"] = untargeted(name, loss)
        curves[f"bim_{name}"] = untargeted(name, loss, steps=config.bim_steps)
        if "source" in networks:
            curves[f"transfer_{name}"] = untargeted(name, cross_entropy("source"))
        curves[f"targeted_{name}"] = attacks.targeted_success(
            net, loss, x, classes, config.epsilons, **limits
        )
        parts = zip(x.split(config.batch_size), y.split(config.batch_size), strict=True)
        gradient = torch.cat([attacks.input_gradient(loss, *part) for part in parts])
        gradient = gradient[
            ..., :reach, :reach
        ]  # the capsules' strides leave out the last rows and columns
        sizes[name] = float(gradient.abs().mean().clamp_min(1e-30))
        metrics |= in_unit(
            {f"zero_share_{name}": attacks.zero_share(gradient)}, len(y), "fraction"
        )
    if len(networks) == 1:
        return outcome(last, metrics, curves)
    curves["fgsm_spread_capsules"] = untargeted("capsules", spread)
    values = (
        (
            "zero_gap",
            metrics["zero_share_cnn"].value - metrics["zero_share_capsules"].value,
            "difference of fractions",
        ),
        (
            "least_fgsm_accuracy",
            min(*curves["fgsm_capsules"], *curves["fgsm_spread_capsules"]),
            "fraction",
        ),
        ("gradient_orders", math.log10(sizes["cnn"] / sizes["capsules"]), "count"),
    )
    metrics |= {name: Metric(value=value, n=len(y), unit=unit) for name, value, unit in values}
    return outcome(last, metrics, curves, beside=networks["cnn"])


def grid(scale: Scale) -> list[AttackConfig]:
    smoke = dict(attacked=40, bim_steps=2, epsilons=(0.0, 0.1, 0.2, 0.5))
    fewer = {"smoke": smoke, "cpu": dict(attacked=500, bim_steps=5), "paper": {}}
    networks = (
        ("matrix_capsnet", "cnn") if scale == "paper" else ("matrix_capsnet",)
    )  # alone it takes a hundredth of the time
    return [
        AttackConfig(**at_scale(scale, **fewer[scale], network=network)) for network in networks
    ]
