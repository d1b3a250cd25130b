"""Does a routing help on viewpoints that training never saw?

The protocol was fixed before any run at cpu scale. It is that of
:mod:`capslib.papers.which_routing.comparison`, with these differences:

* *Data.* smallNORB alone. Training images have the six familiar azimuths of Hinton et al.
  (2018, §5.1), of eighteen; so have the images of the instance that is held out.
* *Budget.* 40 passes over the 6,480 training images, as many as in the comparison. An epoch is
  such a pass, of 102 steps.
* *Measured.* Accuracy on test images with familiar and with novel azimuths. The learning rate
  with the higher held-out accuracy counts, here too, and novel azimuths choose nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from capslib.data.registry import SETS
from capslib.data.viewpoints import familiar
from capslib.papers.common import outcome
from capslib.papers.experiment import Arm, Experiment, Outcome, Scale
from capslib.papers.which_routing.comparison import (
    CNN,
    RATES,
    UNIFORM,
    accuracies,
    networks,
)
from capslib.papers.which_routing.recipe import INSTANCES, ComparisonRecipe
from capslib.recipes import train

if TYPE_CHECKING:
    from capslib.data import DataSplit
    from capslib.training import Context

EPOCHS = 40
"""Passes over the training images that all networks train for."""


class ViewpointRecipe(ComparisonRecipe):
    """A network of the comparison, trained on familiar azimuths alone."""

    def choose(self, split: DataSplit) -> dict[str, Any]:
        """Return familiar images to train on and held out, and test images of both kinds."""
        is_familiar = familiar(split, "azimuth")
        if split.split == "test":
            return {"familiar": is_familiar, "novel": ~is_familiar}
        return {part: mask & is_familiar for part, mask in super().choose(split).items()}

    @property
    def train_size(self) -> int:
        """The number of training images: a third of those that are not held out."""
        size = SETS[self.data].train_shape[0]
        size = (size - size // INSTANCES) // 3
        return min(size, self.images or size)


def arms(scale: Scale) -> Iterator[Arm]:
    """Yield every network with every learning rate."""
    names = ("em", UNIFORM, CNN) if scale == "smoke" else networks()
    for name, rate in itertools.product(names, RATES):
        recipe = ViewpointRecipe(
            data="smallnorb",
            resize=32,
            learning_rate=rate,
            epochs=EPOCHS,
            measured_after=(EPOCHS,),
            **networks()[name],
        )
        yield Arm(f"{name}/{rate:g}", recipe)


def smaller(scale: Scale, arm: Arm) -> dict[str, Any]:
    """Return stand-ins and fewer images and steps for smoke scale."""
    if scale != "smoke":
        return {}
    return dict(
        data="toys",
        epochs=4,
        measured_after=(4,),
        epoch_steps=5,
        images=200,
        filters=8,
        primary_types=2,
    )


def run(arm: Arm, context: Context) -> Outcome:
    """Train a network on familiar azimuths, and measure it on familiar and on novel ones."""
    trained = train(arm.recipe, context.seed, context)
    metrics = accuracies(arm.recipe, trained, "steps")
    return outcome(trained, metrics, curves=["held_out_accuracy"])


VIEWPOINTS = Experiment(
    name="viewpoints",
    paper="which_routing",
    arms=arms,
    smaller=smaller,
    run=run,
    budget_fields=(),
)
