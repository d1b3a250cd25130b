"""The network of Sabour et al. (2017), with any routing: CapsNet."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from capslib.layers import (
    DenseCapsules,
    PrimaryCapsules,
    dense_decoder,
    grid_size,
    mask_of_one,
)
from capslib.routing import start_on_first_batch
from capslib.shapes import check_images, check_labels, check_positive

__all__ = ["WEIGHT_STD", "CapsNet", "CapsNetResult"]

WEIGHT_STD = {"dynamic_over_children": 1.0}
"""Initial standard deviations of W, of routings that learn slowly from the default of 0.1.

Couplings that sum to one over the children make s_j the mean of its votes. Such a mean is
short, and squash makes it shorter. Kirillov & Panov (2022) start from N(0, 1).
"""


class CapsNetResult(NamedTuple):
    """Class capsules of N images, their couplings, and what the decoder makes of them.

    ``pose`` is [N, classes, class_dim], ``activation`` [N, classes] and ``coupling``
    [N, I, classes], for I primary capsules. ``reconstruction`` is [N, C, H, W], in 0…1, or None
    without a decoder.
    """

    pose: Tensor
    activation: Tensor
    coupling: Tensor
    reconstruction: Tensor | None


class CapsNet(nn.Module):
    """Convolution, primary capsules, class capsules, decoder (Sabour et al. 2017, Figs. 1, 2).

    Images [N, *shape] in 0…1 become a :class:`CapsNetResult`. The first convolution has
    the ``kernel`` and the ``stride``, the primary capsules have the ``kernel`` and a stride of
    two. ``decoder`` has the widths of its hidden layers; ``()`` leaves it out. It sees the
    capsule of the label, or without ``labels`` [N] the most active one. The initial standard
    deviation of W is ``weight_std``, by default ``WEIGHT_STD`` of the routing or 0.1.
    ``options`` are keywords of the ``routing``, which sets its parameters from the first batch
    if it needs to (:func:`capslib.routing.start_on_first_batch`). For 1 × 28 × 28 and ten
    classes the defaults are the paper's network, of 8,215,568 parameters. Raises ValueError,
    with the least size, if images are too small.

    >>> import torch
    >>> network = CapsNet((3, 40, 28), classes=4, filters=16, primary_types=4, routing="em")
    >>> pose, activation, coupling, reconstruction = network(torch.rand(2, 3, 40, 28))
    >>> pose.shape, activation.shape, reconstruction.shape
    (torch.Size([2, 4, 16]), torch.Size([2, 4]), torch.Size([2, 3, 40, 28]))
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int = 10,
        *,
        filters: int = 256,
        kernel: int = 9,
        stride: int = 1,
        primary_types: int = 32,
        primary_dim: int = 8,
        class_dim: int = 16,
        decoder: tuple[int, ...] = (512, 1024),
        weight_std: float | None = None,
        routing: str = "dynamic",
        **options: object,
    ):
        super().__init__()
        check_positive(filters=filters, primary_types=primary_types)
        channels, *size = shape
        rows, columns = grid_size(size, [(kernel, stride), (kernel, 2)])
        children = primary_types * rows * columns
        self.image_axes = ("N", *shape)
        self.conv = nn.Conv2d(channels, filters, kernel, stride)
        self.primary = PrimaryCapsules(filters, primary_types, primary_dim, kernel=kernel)
        if weight_std is None:
            weight_std = WEIGHT_STD.get(routing, 0.1)
        options |= {"routing": routing, "weight_std": weight_std}
        self.classes = DenseCapsules(children, classes, primary_dim, class_dim, **options)
        self.decoder = None
        if decoder:
            self.decoder = dense_decoder(classes * class_dim, decoder, shape)
        start_on_first_batch(self)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> CapsNetResult:
        check_images(images, self.image_axes, labels)
        if labels is not None:
            check_labels(labels, self.classes.weight.shape[1])
        features = F.relu(self.conv(images))
        pose, activation, coupling = self.classes(*self.primary(features))
        if self.decoder is None:
            return CapsNetResult(pose, activation, coupling, None)
        visible = activation.argmax(dim=-1) if labels is None else labels  # [N]
        mask = mask_of_one(activation, visible)  # [N, classes]
        pixels = self.decoder((pose * mask[..., None]).flatten(1))
        reconstruction = pixels.unflatten(1, self.image_axes[1:])
        return CapsNetResult(pose, activation, coupling, reconstruction)
