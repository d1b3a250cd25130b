"""Whether a CapsNet can tell an image from its negative: the depth experiment with both, under other labels (a hypothesis of §6)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Literal

from capslib.costs import Work
from capslib.papers.negation_limitation import depth
from capslib.papers.negation_limitation.depth import ARMS, DepthConfig
from capslib.trials import Context, Deviation, Outcome, Scale


class NegatedConfig(DepthConfig):
    """The depth experiment on images and their negatives, which have other labels. ``front="odd"`` keeps −x a negative.

    With ``front="relu"`` the convolution has a bias and a ReLU, as in the paper, and x and −x do not arrive as opposites.
    """

    front: Literal["relu", "odd"]


def run(config: NegatedConfig, context: Context) -> Outcome:
    """Train one CapsNet on x with its label y and −x with the label (y + 5) mod 10, in training and in the test."""
    import torch

    *splits, fingerprint = depth.load_splits(config, context)
    pairs = [(torch.cat([x, -x]), torch.cat([y, (y + 5) % 10])) for x, y in splits]
    return depth.fit_capsnet(config, context, *pairs, fingerprint, odd=config.front == "odd")


def grid(scale: Scale) -> list[NegatedConfig]:
    """At a depth that trains without a bias; half the epochs of the depth experiment, since there are two images for one."""

    def configs() -> Iterator[NegatedConfig]:
        data = "digits" if scale == "smoke" else "mnist"
        for routing in ("dynamic", "em_vector"):
            budget = depth.budget(scale, data, routing)
            epochs = budget.get("epochs", DepthConfig.model_fields["epochs"].default) // 2
            for front, arm in itertools.product(("relu", "odd"), ARMS):
                yield NegatedConfig(data=data, routing=routing, depth=3, front=front, **{**budget, **arm, "epochs": epochs})

    return list(configs())


def work(config: NegatedConfig) -> Work:
    return depth.work(config, images=2)


def deviations(config: NegatedConfig) -> list[Deviation]:
    return [
        Deviation(what="images and their negatives", paper="a hypothesis (§6)", ours="−x has the label (y + 5) mod 10",
                  why="the paper has no experiment on it"),
        *depth.deviations(config),
    ]  # fmt: skip
