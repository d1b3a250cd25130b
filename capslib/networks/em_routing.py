"""The networks of Hinton et al. (2018): matrix capsules with EM routing, and the convolutional baseline (§4, §5)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from capslib.layers import ClassCapsules, ConvCapsules, MatrixPrimaryCapsules, Pose, field_centres
from capslib.routing import Normalise, RoutingResult

Preset = Literal["printed", "released", "calibrated"]
CODE_TO_PAPER = (0.5 * (1 + math.log(2 * math.pi)), -2500.0)
"""What β_u and β_a are of the biases b_u and b_a that the released code learns."""
PRESETS: Mapping[Preset, tuple[dict, dict]] = {
    "printed": ({"beta_std": 0.0}, {"beta_std": 0.0}),
    "released": (
        dict(beta=(0.5, 0.5), beta_std=0.0, beta_scale=CODE_TO_PAPER, inverse_temperature=0.02, variance_offset=5e-4, smoothing=0.1),
        dict(beta=(2.0, 1.0), beta_std=0.0, beta_scale=CODE_TO_PAPER, inverse_temperature=0.005, variance_offset=5e-4, smoothing=0.1),
    ),
    "calibrated": ({"beta_std": 0.0, "variance_offset": 5e-4}, {"beta_std": 0.0, "variance_offset": 5e-4}),
}  # fmt: skip
"""Keywords of EM routing in convolutional layers and in the class layer: Procedure 1 as printed, which has no constants, with β = 0
and λ = 0.01; the constants of the released code, in the symbols of the paper; Procedure 1 with the released floor of the variance,
and β and λ from a first batch (:meth:`MatrixCapsNet.start_at_half`)."""


class Routed(NamedTuple):
    """One layer's capsules and how they came about: poses and activations of the parents, couplings of the children."""

    name: str
    result: RoutingResult


class MatrixCapsNet(nn.Module):
    """Convolution, primary capsules, two convolutional capsule layers, class capsules (Fig. 1).

    Images [N, channels, H, W] of ``image_shape`` = (channels, H, W) to class activations [N, classes]. ``sizes`` are the paper's
    A (filters), B, C, D (capsule types). Parameters: A=B=C=D=32 has 316 650 and A=64, B=8, C=D=16 has 68 618 for pairs of
    images and five classes. Raises ValueError where an image is too small.
    """

    WINDOWS = ((5, 2), (1, 1), (3, 2), (3, 1))
    """Kernel and stride of the layers below the class capsules."""

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        classes: int = 5,
        sizes: tuple[int, int, int, int] = (32, 32, 32, 32),
        *,
        iterations: int = 3,
        pose: Pose = "matrix",
        coordinates: bool = True,
        normalise: Normalise = "types+positions",
        preset: Preset = "calibrated",
        mixing: bool = False,
    ):
        super().__init__()
        A, B, C, D = sizes
        (channels, *size), (inner, last) = image_shape, PRESETS[preset]
        self.conv = nn.Conv2d(channels, A, *self.WINDOWS[0])
        nn.init.trunc_normal_(self.conv.weight, std=0.05, a=-0.1, b=0.1)
        nn.init.constant_(self.conv.bias, 0.1)
        self.primary = MatrixPrimaryCapsules(A, B, pose=pose)
        shared = dict(pose=pose, iterations=iterations, mixing=mixing)
        std = 0.3 if pose == "matrix" else 0.15  # a 16×16 matrix sums four times as many products
        self.capsules1 = ConvCapsules(B, C, kernel=3, stride=2, normalise=normalise, weight_std=std, **inner, **shared)
        self.capsules2 = ConvCapsules(C, D, kernel=3, stride=1, normalise=normalise, weight_std=std, **inner, **shared)
        try:
            centres = field_centres(tuple(size), self.WINDOWS)
        except RuntimeError:
            raise ValueError(
                f"images of {size[0]} × {size[1]} pixels are too small for the four layers: 17 is the least"
            ) from None
        self.classes = ClassCapsules(D, classes, coordinates=centres if coordinates else None, **last, **shared)

    @classmethod
    def reach(cls, side: int) -> int:
        """How many of ``side`` pixels, from the first, some class capsule can see: where strides do not fit, the last are left out."""
        places = side
        for kernel, stride in cls.WINDOWS:
            places = (places - kernel) // stride + 1
        for kernel, stride in reversed(cls.WINDOWS):
            places = (places - 1) * stride + kernel
        return places

    def primary_capsules(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The grid of primary capsules: poses [N, H, W, B, 4, 4] and activations [N, H, W, B]."""
        return self.primary(F.relu(self.conv(images)))

    def layers(self, images: Tensor) -> list[Routed]:
        """All capsule layers, for a look inside."""
        pose, activation = self.primary_capsules(images)
        found = []
        for name in ("capsules1", "capsules2", "classes"):
            found.append(Routed(name, getattr(self, name)(pose, activation)))
            pose, activation, _ = found[-1].result
        return found

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)[-1].result.activation

    @torch.no_grad()
    def start_at_half(self, images: Tensor) -> None:
        """Set β and λ layer by layer so that about half of the capsules are active on these images."""
        pose, activation = self.primary_capsules(images)
        for layer in (self.capsules1, self.capsules2):
            votes, of_field, competition = layer.fields(pose, activation)
            layer.routing.start_at_half(votes.form(), of_field, competition)
            pose, activation, _ = layer(pose, activation)
        self.classes.routing.start_at_half(self.classes.votes(pose), activation.flatten(1))


class BaselineCNN(nn.Module):
    """The paper's convolutional network (§5): two convolutions with pooling, a dense layer with dropout, class logits.

    Images [N, channels, H, W] to logits [N, classes]. "Same" padding gives the 4 253 349 parameters that the paper rounds; the
    rate of dropout is not stated.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        classes: int = 5,
        sizes: tuple[int, int, int] = (32, 64, 1024),
        dropout: float = 0.5,
    ):
        super().__init__()
        (channels, height, width), (first, second, hidden) = image_shape, sizes
        self.conv1 = nn.Conv2d(channels, first, 5, padding="same")
        self.conv2 = nn.Conv2d(first, second, 5, padding="same")
        self.hidden = nn.Linear(second * (height // 4) * (width // 4), hidden)
        self.dropout = nn.Dropout(dropout)
        self.classes = nn.Linear(hidden, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(images)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.classes(self.dropout(F.relu(self.hidden(rearrange(x, "n c h w -> n (c h w)")))))
