"""The network of Faria (2019), for any routing (§5, Tables 1 and 2; released code)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from capslib.errors import check_name
from capslib.layers import (
    ConvCapsules,
    bounded_votes,
    grid_size,
    near_identity,
    with_coordinates,
    with_transposed_poses,
)
from capslib.networks.em_routing import PRESETS, MatrixCapsNet
from capslib.routing import LazyVotes, RoutingResult, make_routing
from capslib.shapes import check_images, check_positive, check_shapes

__all__ = ["ROUTING_OPTIONS", "ConsensusCapsNet", "FlatCapsules"]

ROUTING_OPTIONS: Mapping[str, tuple[dict[str, Any], ...]] = {
    "similarity": ({"kernels": 4}, {"kernels": 4}, {"kernels": 10}),
    "connectionist": ({}, {"g": (32, 32), "f": (64, 64)}, {"g": (64, 64), "f": (124, 124)}),
    "em": (PRESETS["calibrated"][0],) * 3,
}
"""Keywords of the routings of the two convolutional layers and of the class layer (Table 2)."""


class FlatCapsules(nn.Module):
    """Class capsules of a grid, each capsule of it with its own matrices.

    Takes poses [N, H, W, types, 4, 4] and activations [N, H, W, types], of H·W·types =
    ``children``. Votes are W M/‖W‖ (:func:`capslib.layers.bounded_votes`). Returns poses
    [N, parents, 16], activations [N, parents] and couplings [N, children, parents].
    """

    def __init__(
        self,
        children: int,
        parents: int,
        *,
        routing: str,
        coordinates: bool = True,
        **options: Any,
    ):
        super().__init__()
        check_positive(children=children, parents=parents)
        self.coordinates = coordinates
        self.weight = nn.Parameter(near_identity(children, parents))
        self.routing = make_routing(routing, parents, 16, **options)

    def lazy_votes(self, pose: Tensor) -> LazyVotes:
        """Return the votes of a grid of poses, not yet formed."""
        if self.coordinates:
            pose = with_coordinates(pose)
        return bounded_votes(self.weight, pose.flatten(1, 3))

    def votes(self, pose: Tensor) -> Tensor:
        """Return the votes [N, I, J, 16], transposed, of a grid of poses."""
        return self.lazy_votes(pose).form()

    def forward(self, pose: Tensor, activation: Tensor) -> RoutingResult:
        check_shapes(pose=(pose, "N H W types 4 4"), activation=(activation, "N H W types"))
        return with_transposed_poses(self.routing(self.lazy_votes(pose), activation.flatten(1)))


class ConsensusCapsNet(MatrixCapsNet):
    """Convolution, primary capsules, two convolutional capsule layers, flat class capsules.

    Images [N, *shape] become class capsules, as a :class:`capslib.routing.RoutingResult`
    with activations [N, classes]. ``sizes`` are filters and the capsule types of the three
    layers; (64, 8, 16, 16) has 86,344 parameters besides those of routing for 1 × 32 × 32 and
    five classes. Votes are W M/‖W‖, and ``coordinates`` are added to poses. Primary poses are
    those of the released code, which lets them through a ReLU and divides them by their norms,
    unless ``raw_poses``. With ``logits`` a routing that learns leaves the logistic function of
    the classes out; the loss then has it. ``options`` are for the routings. Without
    ``trained`` the parameters of a routing stay as they start; with ``theta="columns"`` θ of
    similarity routing belongs to the columns of a grid, as released. Raises ValueError for
    images that are too small.

    >>> network = ConsensusCapsNet((1, 32, 32), routing="connectionist")
    >>> network(torch.randn(3, 1, 32, 32)).activation.shape, network.routing_parameters()
    (torch.Size([3, 5]), 39818)
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int = 5,
        sizes: tuple[int, int, int, int] = (64, 8, 16, 16),
        *,
        routing: str = "connectionist",
        iterations: int = 3,
        coordinates: bool = True,
        raw_poses: bool = False,
        logits: bool = False,
        trained: bool = True,
        theta: Literal["types", "columns"] = "types",
        **options: object,
    ):
        check_name("theta", theta, ("types", "columns"))
        nn.Module.__init__(self)  # the order of layers is inherited, the layers are others
        A, B, C, D = sizes
        channels, *size = shape
        rows2, columns2 = grid_size(size, self.WINDOWS)
        _, columns1 = grid_size(size, self.WINDOWS[:3])
        self.image_axes = ("N", *shape)
        self.raw_poses = raw_poses
        self.conv = nn.Conv2d(channels, A, *self.WINDOWS[0])
        self.norm = nn.BatchNorm2d(A, eps=1e-3, momentum=0.01)
        self.norm.register_parameter("bias", None)  # a scale, but no shift
        self.poses, self.logits = nn.Conv2d(A, 16 * B, 1), nn.Conv2d(A, B, 1)
        for layer in (self.conv, self.poses, self.logits):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        nn.init.trunc_normal_(self.logits.bias, mean=0.8, std=0.1, a=0.6, b=1.0)
        shared = dict(routing=routing, iterations=iterations, coordinates=coordinates)
        presets = ROUTING_OPTIONS.get(routing, ({}, {}, {}))
        options1, options2, class_options = (shared | preset | options for preset in presets)
        if theta == "columns":
            options1["columns"], options2["columns"] = columns1, columns2
            class_options["columns"] = 1
        if logits and routing in ("similarity", "connectionist"):
            class_options["logistic"] = False
        bounded = dict(kernel=3, transform="bounded")
        self.capsules1 = ConvCapsules(B, C, stride=2, **bounded, **options1)
        self.capsules2 = ConvCapsules(C, D, stride=1, **bounded, **options2)
        self.classes = FlatCapsules(rows2 * columns2 * D, classes, **class_options)
        if not trained:
            for layer in (self.capsules1, self.capsules2, self.classes):
                layer.routing.requires_grad_(False)

    def routing_parameters(self) -> int:
        """Return how many parameters the three routings have."""
        layers = (self.capsules1, self.capsules2, self.classes)
        routings = nn.ModuleList(layer.routing for layer in layers)
        return sum(parameter.numel() for parameter in routings.parameters())

    def primary_capsules(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return primary capsules: poses [N, H, W, B, 4, 4] and activations [N, H, W, B]."""
        check_images(images, self.image_axes)
        features = self.norm(F.relu(self.conv(images)))
        pose = rearrange(self.poses(features), "n (b d) h w -> n h w b d", d=16)
        if not self.raw_poses:
            pose = pose.relu()
            pose = pose / (torch.linalg.vector_norm(pose, dim=-1, keepdim=True) + 1e-7)
        logits = rearrange(self.logits(features), "n b h w -> n h w b")
        return pose.unflatten(-1, (4, 4)), logits.sigmoid()
