"""What each routing costs in the network of the paper: parameters, operations, memory and time (Table 1; §5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from capslib.papers.experiment import Metric, Outcome, Scale
from capslib.papers.learned_routing.recipe import REDUCED, ConsensusRecipe
from capslib.recipes import Config, RoutingName, flops, new_network

if TYPE_CHECKING:
    from torch import Tensor, nn

    from capslib.training import Context


class CostsConfig(Config):
    """The network of a scale with a routing, and a batch that it is tried on."""

    routing: RoutingName
    size: Scale = Field("paper", title="scale whose network it is")
    images: int = Field(8, ge=1, title="images of the batch whose time and memory are measured")


def run(config: CostsConfig, context: Context) -> Outcome:
    """Parameters and FLOPs of the network; what autograd keeps of an image, and the time of a step beside that with EM routing.

    FLOPs are those of products and convolutions. Bytes are counted by the definition, which keeps all, and by the fast path, which
    computes them again; each tensor once. Times are the least of three of the fast path, in one process.
    """
    import torch

    from capslib.routing import use_path

    name = "toys" if config.size == "smoke" else "smallnorb"
    recipe = ConsensusRecipe(data=name, routing=config.routing, **REDUCED[config.size][name])
    shape, _ = recipe.shape()
    network = new_network(recipe, shape, context.seed)
    rival = new_network(recipe.model_copy(update={"routing": "em"}), shape, context.seed)
    total, routing = network.of_all(), network.of_routing()
    counts = {"parameters": total, "parameters_of_routing": routing, "parameters_without_routing": total - routing}
    metrics = {key: Metric(value=value, n=1, unit="count") for key, value in counts.items()}
    metrics["flops_of_an_image"] = Metric(value=flops(recipe)[0] / recipe.batch_size, n=recipe.batch_size, unit="operations")
    images = torch.randn(config.images, *shape, generator=torch.Generator().manual_seed(context.seed))
    for path in ("eager", "fast"):
        use_path(network, path)
        metrics[f"bytes_{path}"] = Metric(value=kept(network, images) / len(images), n=len(images), unit="bytes of an image")
    use_path(rival, "fast")
    times = [(seconds(network, images), seconds(rival, images)) for _ in range(3)]
    own, em = (min(column) for column in zip(*times, strict=True))
    metrics["seconds_of_a_step"] = Metric(value=own, n=len(images), unit="seconds of one core")
    metrics["times_em"] = Metric(value=own / em, n=len(images), unit="ratio")
    return Outcome(metrics=metrics, parameters=total, routing_path="fast")


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


def hours(recipe: ConsensusRecipe, seconds_of_a_step: float, images: int, cores: int = 2) -> float:
    """How long ``cores`` take for a whole training, if a step of so many ``images`` takes one core so many seconds on smallNORB.

    The time grows with the operations, which a batch has more of, and the images of another set fewer.
    """
    measured = ConsensusRecipe(routing=recipe.routing)
    (step, steps), (of_measured, _) = flops(recipe), flops(measured)
    return steps * seconds_of_a_step * recipe.batch_size / images * step / of_measured / cores / 3600


def grid(scale: Scale) -> list[CostsConfig]:
    sizes = ("smoke",) if scale == "smoke" else (scale,)
    return [CostsConfig(routing=name, size=size) for size in sizes for name in ("connectionist", "similarity", "em", "dynamic")]
