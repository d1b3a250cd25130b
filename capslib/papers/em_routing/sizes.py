"""The networks of the paper, built and counted (§2, §5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from capslib.config import Config
from capslib.papers.em_routing.recipe import SMALL
from capslib.papers.experiment import Metric, Outcome, Scale

if TYPE_CHECKING:
    from torch import nn

    from capslib.training import Context


class SizesConfig(Config):
    """A network of the paper."""

    network: Literal["main", "small", "cnn"]


def run(config: SizesConfig, context: Context) -> Outcome:
    """Build the networks and count their parameters."""
    from capslib.networks.em_routing import BaselineCNN, MatrixCapsNet

    def count(module: nn.Module) -> int:
        return sum(p.numel() for p in module.parameters())

    shape = (2, 32, 32)
    main, small, cnn = (
        MatrixCapsNet(shape),
        MatrixCapsNet(shape, sizes=SMALL),
        BaselineCNN(shape),
    )
    network = {"main": main, "small": small, "cnn": cnn}[config.network]
    metrics = {"parameters": Metric(value=count(network), n=1, unit="count")}
    if config.network == "cnn":
        metrics["times_main"] = Metric(value=count(cnn) / count(main), n=1, unit="ratio")
    else:
        metrics["ciresan_times"] = Metric(value=2.7e6 / count(network), n=1, unit="ratio")
        layers = [network.capsules1, network.capsules2, network.classes]
        beside = sum(
            abs(count(layer) - layer.weight.numel() - 2 * layer.weight.shape[-3])
            for layer in layers
        )
        metrics["beside_matrices_and_two_biases"] = Metric(
            value=beside, n=len(layers), unit="count"
        )
    return Outcome(metrics=metrics, parameters=count(network), routing_path="none")


def grid(scale: Scale) -> list[SizesConfig]:
    return [SizesConfig(network=n) for n in ("main", "small", "cnn")]
