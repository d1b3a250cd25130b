"""The networks of Hinton et al. (2018): matrix capsules, and a CNN to compare with (§4, §5)."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from capslib.layers import (
    ClassCapsules,
    ConvCapsules,
    MatrixPrimaryCapsules,
    Pose,
    field_centres,
    grid_size,
)
from capslib.registry import Registry
from capslib.routing import ROUTINGS, EMRouting, Normalise, RoutingResult
from capslib.routing.em import INVERSE_TEMPERATURE
from capslib.shapes import check_images, check_positive

__all__ = [
    "CODE_TO_PAPER",
    "PRESETS",
    "BaselineCNN",
    "CNNResult",
    "MatrixCapsNet",
    "Preset",
]

Preset = Literal["printed", "released", "calibrated"]
CODE_TO_PAPER = (0.5 * (1 + math.log(2 * math.pi)), -2500.0)
"""β_u and β_a of the paper, divided by the biases b_u and b_a that the released code learns."""
_PRINTED = dict(beta_std=0.0, inverse_temperature=INVERSE_TEMPERATURE)
_RELEASED = dict(beta_std=0.0, beta_scale=CODE_TO_PAPER, variance_offset=5e-4, smoothing=0.1)
_CALIBRATED = dict(beta_std=0.0, variance_offset=5e-4)
PRESETS = Registry(
    "preset",
    {
        "printed": (_PRINTED, _PRINTED),
        "released": (
            dict(beta=(0.5, 0.5), inverse_temperature=0.02, **_RELEASED),
            dict(beta=(2.0, 1.0), inverse_temperature=0.005, **_RELEASED),
        ),
        "calibrated": (_CALIBRATED, _CALIBRATED),
    },
)
"""Keywords of EM routing in convolutional layers and in the class layer.

``printed`` is Procedure 1, which states no constants, with β = 0 and λ = 0.01. ``released`` has
the constants of the released code. ``calibrated`` is Procedure 1 with the released floor of the
variance, and leaves β and λ to a first batch: :func:`capslib.networks.create_network` sets them
from the first that the network trains on, and :meth:`MatrixCapsNet.start_at_half` from one that
you give it.
"""


class MatrixCapsNet(nn.Module):
    """Convolution, primary capsules, two convolutional capsule layers, class capsules (Fig. 1).

    Images [N, *shape] become class capsules, as a :class:`capslib.routing.RoutingResult`
    with activations [N, classes]. ``sizes`` are the paper's A (filters), B, C, D (capsule
    types): (32, 32, 32, 32) has 316,650 parameters for pairs of images and five classes.
    ``preset``, one of ``PRESETS``, and ``mixing`` are for EM routing only; other ``options`` go
    to every routing.
    Raises ValueError if an image is too small, or if the routing cannot normalise as asked
    (:class:`capslib.layers.ConvCapsules`).

    >>> network = MatrixCapsNet((2, 32, 32), sizes=(64, 8, 16, 16))
    >>> pose, activation, coupling = network(torch.randn(3, 2, 32, 32))
    >>> pose.shape, activation.shape
    (torch.Size([3, 5, 16]), torch.Size([3, 5]))
    """

    WINDOWS = ((5, 2), (1, 1), (3, 2), (3, 1))
    """Kernel and stride of the layers below the class capsules."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int = 5,
        sizes: tuple[int, int, int, int] = (32, 32, 32, 32),
        *,
        routing: str = "em",
        iterations: int = 3,
        pose: Pose = "matrix",
        coordinates: bool = True,
        normalise: Normalise | None = None,
        preset: Preset = "calibrated",
        **options: object,
    ):
        super().__init__()
        A, B, C, D = sizes
        channels, *size = shape
        centres = field_centres(tuple(size), self.WINDOWS)
        self.image_axes = ("N", *shape)
        self.conv = nn.Conv2d(channels, A, *self.WINDOWS[0])
        nn.init.trunc_normal_(self.conv.weight, std=0.05, a=-0.1, b=0.1)
        nn.init.constant_(self.conv.bias, 0.1)
        self.primary = MatrixPrimaryCapsules(A, B, pose=pose)
        window_preset, class_preset = {}, {}
        if issubclass(ROUTINGS[routing], EMRouting):
            window_preset, class_preset = PRESETS[preset]
        options |= dict(pose=pose, routing=routing, iterations=iterations)
        std = 0.3 if pose == "matrix" else 0.15  # W u sums four times as many products as M W
        windows = dict(kernel=3, normalise=normalise, weight_std=std, **window_preset | options)
        self.capsules1 = ConvCapsules(B, C, stride=2, **windows)
        self.capsules2 = ConvCapsules(C, D, stride=1, **windows)
        if not coordinates:
            centres = None
        self.classes = ClassCapsules(D, classes, coordinates=centres, **class_preset | options)

    @classmethod
    def reach(cls, side: int) -> int:
        """Return how many of ``side`` pixels, from the first, some class capsule can see.

        >>> [MatrixCapsNet.reach(side) for side in (17, 18, 24, 32)]
        [17, 17, 21, 29]
        """
        size, _ = grid_size((side, side), cls.WINDOWS)
        for kernel, stride in reversed(cls.WINDOWS):
            size = (size - 1) * stride + kernel
        return size

    def primary_capsules(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return primary capsules: poses [N, H, W, B, 4, 4] and activations [N, H, W, B]."""
        check_images(images, self.image_axes)
        return self.primary(F.relu(self.conv(images)))

    def layers(self, images: Tensor) -> dict[str, RoutingResult]:
        """Return the results of all capsule layers, by name."""
        pose, activation = self.primary_capsules(images)
        results = {}
        for name in ("capsules1", "capsules2", "classes"):
            results[name] = getattr(self, name)(pose, activation)
            pose, activation, _ = results[name]
        return results

    def forward(self, images: Tensor) -> RoutingResult:
        return self.layers(images)["classes"]

    @torch.no_grad()
    def start_at_half(self, images: Tensor) -> None:
        """Set β and λ so that all capsules are about half active, if the routing is EM."""
        if not hasattr(self.classes.routing, "start_at_half"):
            return
        pose, activation = self.primary_capsules(images)
        for layer in (self.capsules1, self.capsules2):
            votes, child_activation, competition = layer.fields(pose, activation)
            layer.routing.start_at_half(votes.form(), child_activation, competition)
            pose, activation, _ = layer(pose, activation)
        self.classes.routing.start_at_half(self.classes.votes(pose), activation.flatten(1))


class CNNResult(NamedTuple):
    """Class scores of N images: logits [N, classes], as ``activation``."""

    activation: Tensor


class BaselineCNN(nn.Module):
    """The paper's convolutional network (§5): images [N, *shape] to logits [N, classes].

    The paper states neither padding nor dropout; "same" gives the parameters that it counts.

    >>> network = BaselineCNN((2, 32, 32), sizes=(4, 8, 16))
    >>> network(torch.randn(3, 2, 32, 32)).activation.shape
    torch.Size([3, 5])
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int = 5,
        sizes: tuple[int, int, int] = (32, 64, 1024),
    ):
        super().__init__()
        (channels, height, width), (first, second, hidden) = shape, sizes
        check_positive(classes=classes)
        rows, columns = grid_size((height, width), [(2, 2), (2, 2)])  # of the poolings
        self.image_axes = ("N", *shape)
        self.conv1 = nn.Conv2d(channels, first, 5, padding="same")
        self.conv2 = nn.Conv2d(first, second, 5, padding="same")
        self.hidden = nn.Linear(second * rows * columns, hidden)
        self.dropout = nn.Dropout()
        self.classes = nn.Linear(hidden, classes)

    def forward(self, images: Tensor) -> CNNResult:
        check_images(images, self.image_axes)
        x = F.max_pool2d(F.relu(self.conv1(images)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.hidden(rearrange(x, "n c h w -> n (c h w)")))
        return CNNResult(self.classes(self.dropout(x)))
