"""The networks of the paper, built and counted (§2, §5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from capslib.config import Config
from capslib.papers.common import number_of_parameters
from capslib.papers.em_routing.recipe import SMALL
from capslib.papers.experiment import Arm, Experiment, Metric, Outcome, Scale

if TYPE_CHECKING:
    from torch import nn

    from capslib.training import Context

CIRESAN_PARAMETERS = 2.7e6
"""The parameters of the best network on smallNORB before the paper (Cireşan et al. 2011)."""


class SizesOptions(Config):
    """A network of the paper."""

    network: Literal["main", "small", "cnn"]


def run(arm: Arm, context: Context) -> Outcome:
    """Build the network and count its parameters."""
    from capslib.networks.em_routing import BaselineCNN, MatrixCapsNet

    shape = (2, 32, 32)
    main = MatrixCapsNet(shape)
    if arm.options.network == "cnn":
        size = number_of_parameters(BaselineCNN(shape))
        ratio = size / number_of_parameters(main)
        metrics = {"times_main": Metric(value=ratio, n=1, unit="ratio")}
    else:
        is_main = arm.options.network == "main"
        network = main if is_main else MatrixCapsNet(shape, sizes=SMALL)
        size = number_of_parameters(network)
        layers = [network.capsules1, network.capsules2, network.classes]
        metrics = {
            "ciresan_times": Metric(value=CIRESAN_PARAMETERS / size, n=1, unit="ratio"),
            "beside_matrices_and_two_biases": Metric(
                value=sum(map(surplus, layers)), n=len(layers), unit="count"
            ),
        }
    metrics = {"parameters": Metric(value=size, n=1, unit="count"), **metrics}
    return Outcome(metrics=metrics, parameters=size)


def surplus(layer: nn.Module) -> int:
    """Return by how many parameters a layer differs from matrices and two for each parent."""
    parents = layer.weight.shape[-3]
    return abs(number_of_parameters(layer) - layer.weight.numel() - 2 * parents)


def arms(scale: Scale) -> Iterator[Arm]:
    """Yield the three networks of the paper."""
    for network in ("main", "small", "cnn"):
        yield Arm(network, options=SizesOptions(network=network))


SIZES = Experiment(name="sizes", paper="em_routing", arms=arms, run=run)
