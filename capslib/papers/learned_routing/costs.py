"""What each routing costs in the paper's network: size, work, memory and time (Table 1; §5)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic import Field

from capslib.config import Config, RoutingName
from capslib.papers.common import bytes_kept, in_unit, number_of_parameters
from capslib.papers.experiment import Arm, Experiment, Metric, Outcome, Scale
from capslib.papers.learned_routing.recipe import REDUCED, ConsensusRecipe
from capslib.recipes import flops, new_network

if TYPE_CHECKING:
    from torch import Tensor, nn

    from capslib.training import Context


KEPT_IMAGES = 8
"""The images of the batch of which the definition keeps all."""


class CostsOptions(Config):
    """A routing in the network of a scale, tried on a batch of its training."""

    routing: RoutingName
    size: Scale = Field("paper", title="scale whose network it is")


def run(arm: Arm, context: Context) -> Outcome:
    """Measure parameters, FLOPs, what autograd keeps of an image, and the time of a step.

    FLOPs are those of products and convolutions. Saved bytes are counted on two paths: eager
    with 8 images, fast with a whole batch. Shared storage counts once. Times are ratios to
    those of the same network with EM routing: both on the fast path, and both on the path of a
    training, where all but the LSTM are compiled.
    """
    import torch

    from capslib.routing import use_path
    from capslib.training import path_of

    options: CostsOptions = arm.options
    data = "toys" if options.size == "smoke" else "smallnorb"
    recipe = ConsensusRecipe(data=data, routing=options.routing, **REDUCED[options.size][data])
    em_recipe = recipe.model_copy(update={"routing": "em"})
    shape = recipe.input_shape
    network = new_network(recipe, shape, context.seed)
    em_network = new_network(em_recipe, shape, context.seed)
    parameters = number_of_parameters(network)
    parameters_of_routing = network.routing_parameters()
    counts = {
        "parameters": parameters,
        "parameters_of_routing": parameters_of_routing,
        "parameters_without_routing": parameters - parameters_of_routing,
    }
    metrics = in_unit(counts, 1, "count")
    n = recipe.batch_size
    metrics["flops_of_an_image"] = Metric(value=flops(recipe) / n, n=n, unit="operations")
    generator = torch.Generator().manual_seed(context.seed)
    images = torch.randn(n, *shape, generator=generator)
    for path, batch in (("eager", images[:KEPT_IMAGES]), ("fast", images)):
        use_path(network, path)
        size = bytes_kept(network, functools.partial(network, batch)) / len(batch)
        metrics[f"bytes_{path}"] = Metric(value=size, n=len(batch), unit="bytes of an image")
    paths = {"times_em": "fast", "times_em_in_training": path_of(recipe.steps)}
    durations = {}
    for name, path in paths.items():
        use_path(network, path)
        use_path(em_network, path)
        duration, em_duration = least_seconds(network, em_network, images)
        durations[name] = duration
        metrics[name] = Metric(value=duration / em_duration, n=n, unit="ratio")
    metrics["seconds_of_a_step"] = Metric(
        value=durations["times_em_in_training"], n=n, unit="seconds of one core"
    )
    routing_path = use_path(network, path_of(recipe.steps))
    return Outcome(metrics=metrics, parameters=parameters, routing_path=routing_path)


def least_seconds(network: nn.Module, rival: nn.Module, images: Tensor) -> tuple[float, float]:
    """Return the least CPU time of three steps of each of two networks, which take turns."""
    times = []
    rival_times = []
    for _ in range(4):
        times.append(seconds(network, images))
        rival_times.append(seconds(rival, images))
    return min(times[1:]), min(rival_times[1:])  # the first round compiles


def seconds(network: nn.Module, images: Tensor) -> float:
    """Return the CPU time of one forward and one backward pass."""
    import time

    start = time.process_time()
    network(images).activation.square().sum().backward()
    return time.process_time() - start


def hours(recipe: ConsensusRecipe, seconds_of_a_step: float) -> float:
    """Return the core-hours of a whole training.

    ``seconds_of_a_step`` is one core's time on smallNORB. Assume that time grows with the
    number of operations.
    """
    measured = ConsensusRecipe(routing=recipe.routing)
    step_seconds = seconds_of_a_step * flops(recipe) / flops(measured)
    return recipe.steps * step_seconds / 3600


def arms(scale: Scale) -> Iterator[Arm]:
    """Yield each routing in the network of the paper."""
    for routing in ("connectionist", "similarity", "em", "dynamic"):
        yield Arm(routing, options=CostsOptions(routing=routing))


def smaller(scale: Scale, arm: Arm) -> dict[str, Any]:
    """Return the scale as that of the network."""
    return {"size": scale}


COSTS = Experiment(
    name="costs",
    paper="learned_routing",
    arms=arms,
    smaller=smaller,
    run=run,
    revision=2,
)
