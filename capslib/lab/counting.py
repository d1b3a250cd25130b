"""Count what a training step does: FLOPs, memory traffic and launches, without data.

The step runs on torch's ``meta`` device, where tensors have shapes and no numbers.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from capslib.recipes import BaseRecipe, step_on_meta
from capslib.routing import Routing

PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "convolution", "convolution_backward")
"""Operations that a compiler leaves alone; it fuses what stands between them."""
NO_WORK = ("detach", "lift_fresh", "_unsafe_view", "empty", "empty_like", "empty_strided")
"""Operations that move no bytes, beside views."""


class Traffic(TorchDispatchMode):
    """Add up the bytes and the launches of every operation, and those of products alone."""

    def __init__(self):
        super().__init__()
        self.bytes = self.launches = 0
        self.product_bytes = self.product_launches = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if func.is_view or name in NO_WORK:
            return result
        tensors: dict[int, Tensor] = {}
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, Tensor):
                tensors[id(leaf)] = leaf
        moved = sum(map(bytes_of, tensors.values()))
        self.bytes += moved
        self.launches += 1
        if name in PRODUCTS:
            self.product_bytes += moved
            self.product_launches += 1
        return result


def bytes_of(tensor: Tensor) -> int:
    """Return the bytes of memory that a tensor stands for; an expanded one repeats its own.

    >>> import torch
    >>> bytes_of(torch.zeros(3, 1)), bytes_of(torch.zeros(3, 1).expand(3, 100))
    (12, 12)
    """
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def count_step(recipe: BaseRecipe) -> dict[str, int]:
    """Return what one training step of a recipe does: forward, backward and optimizer.

    ``bytes`` and ``launches`` count every operation as if none were fused. ``product_bytes``
    and ``product_launches`` count matrix products, convolutions and the optimizer alone, which
    no compiler fuses with their neighbours. ``fuses`` is 1 if the network has a routing that a
    long training compiles.
    """
    network, backward = step_on_meta(recipe)
    optimizer = recipe.optimizer(network)
    with FlopCounterMode(display=False) as arithmetic, Traffic() as step:
        backward()
    with Traffic() as update:
        optimizer.step()
    return {
        "flops": arithmetic.get_total_flops(),
        "bytes": step.bytes + update.bytes,
        "product_bytes": step.product_bytes + update.bytes,
        "launches": step.launches + update.launches,
        "product_launches": step.product_launches + update.launches,
        "fuses": int(any(map(compilable, network.modules()))),
    }


def compilable(module: nn.Module) -> bool:
    """Return whether a module is a routing that can be compiled where a compiler works."""
    if not isinstance(module, Routing):
        return False
    has_core = getattr(type(module).function, "core", None) is not None
    return has_core and not list(module.children())
