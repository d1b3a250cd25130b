"""What each routing costs in the network of the paper: parameters, operations, memory and time (Table 1; §5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from capslib.config import Config, RoutingName
from capslib.papers.common import in_unit
from capslib.papers.experiment import Metric, Outcome, Scale
from capslib.papers.learned_routing.recipe import REDUCED, ConsensusRecipe
from capslib.recipes import flops, new_network

if TYPE_CHECKING:
    from torch import Tensor, nn

    from capslib.training import Context


class CostsConfig(Config):
    """The network of a scale with a routing, tried on a batch of its training, and what the definition keeps, on a smaller one."""

    routing: RoutingName
    size: Scale = Field("paper", title="scale whose network it is")
    images: int = Field(8, ge=1, title="images of the batch of which the definition keeps all")


def run(config: CostsConfig, context: Context) -> Outcome:
    """Parameters and FLOPs of the network; what autograd keeps of an image, and the time of a step beside that with EM routing.

    FLOPs are those of products and convolutions. Bytes are counted by the definition, which keeps all, and by the fast path with a
    whole batch, of which it computes a part again; each tensor once. Times are the least of three with a whole batch, in one
    process: both routings on the fast path, and both on the path of a training, where that of EM routing is compiled.
    """
    import torch

    from capslib.routing import use_path
    from capslib.training import path_of

    name = "toys" if config.size == "smoke" else "smallnorb"
    recipe = ConsensusRecipe(data=name, routing=config.routing, **REDUCED[config.size][name])
    shape = recipe.input_shape
    network = new_network(recipe, shape, context.seed)
    rival = new_network(recipe.model_copy(update={"routing": "em"}), shape, context.seed)
    total, routing = sum(p.numel() for p in network.parameters()), network.of_routing()
    counts = {
        "parameters": total,
        "parameters_of_routing": routing,
        "parameters_without_routing": total - routing,
    }
    metrics = in_unit(counts, 1, "count")
    n = recipe.batch_size
    metrics["flops_of_an_image"] = Metric(value=flops(recipe) / n, n=n, unit="operations")
    images = torch.randn(n, *shape, generator=torch.Generator().manual_seed(context.seed))
    for path, some in (("eager", images[: config.images]), ("fast", images)):
        use_path(network, path)
        metrics[f"bytes_{path}"] = Metric(
            value=kept(network, some) / len(some), n=len(some), unit="bytes of an image"
        )
    for times_em, path in (
        ("times_em", "fast"),
        ("times_em_in_training", path_of(recipe.steps)),
    ):
        taken = use_path(network, path)
        use_path(rival, path)
        rounds = [(seconds(network, images), seconds(rival, images)) for _ in range(4)]
        own, em = (
            min(times) for times in zip(*rounds[1:], strict=True)
        )  # the first round compiles
        metrics[times_em] = Metric(value=own / em, n=n, unit="ratio")
    metrics["seconds_of_a_step"] = Metric(value=own, n=n, unit="seconds of one core")
    return Outcome(metrics=metrics, parameters=total, routing_path=taken)


def kept(network: nn.Module, images: Tensor) -> int:
    """Bytes that the forward pass keeps for the gradient, besides parameters; storage that tensors share counts once."""
    import torch

    own = {p.untyped_storage().data_ptr() for p in network.parameters()}
    found = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = network(images)
    del output
    return sum(size for at, size in found.items() if at not in own)


def seconds(network: nn.Module, images: Tensor) -> float:
    """CPU time of one forward and one backward pass."""
    import time

    start = time.process_time()
    network(images).square().sum().backward()
    return time.process_time() - start


def hours(recipe: ConsensusRecipe, seconds_of_a_step: float) -> float:
    """Core-hours of a whole training, if a step on smallNORB takes one core so many seconds and time grows with operations."""
    measured = ConsensusRecipe(routing=recipe.routing)
    seconds = seconds_of_a_step * flops(recipe) / flops(measured)
    return recipe.steps * seconds / 3600


def grid(scale: Scale) -> list[CostsConfig]:
    return [
        CostsConfig(routing=name, size=scale)
        for name in ("connectionist", "similarity", "em", "dynamic")
    ]
