"""The network of Kirillov & Panov (2022): class capsules for normal inputs and anomalies."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from capslib.errors import check_name
from capslib.layers import (
    DenseCapsules,
    PrimaryCapsules,
    dense_decoder,
    grid_size,
    mask_of_one,
)
from capslib.shapes import check_images

__all__ = ["ANOMALY", "NORMAL", "AnomalyCapsNet", "AnomalyOutput"]

NORMAL, ANOMALY = 0, 1
"""The class capsules: 0 is normal, 1 is anomalous."""


class AnomalyOutput(NamedTuple):
    """Activations [N, 2] and couplings [N, I, 2] of the class capsules, reconstructed pixels.

    ``reconstruction`` is [N, C·H·W], in 0…1.
    """

    activation: Tensor
    coupling: Tensor
    reconstruction: Tensor


class AnomalyCapsNet(nn.Module):
    """Convolution, primary capsules, class capsules for normal and for anomalous, decoder.

    Inputs [N, *shape] in 0…1. Both convolutions have the ``kernel``; the second
    has a stride of two. The paper's parallel convolutions, one for each dimension of a primary
    capsule, are one here. The decoder, with hidden layers of the widths ``decoder``, sees the
    longer class capsule. ``options`` go to the
    ``routing``. For 1 × 28 × 28 the paper's sizes make 1,152 primary capsules and 23,781,136
    parameters. Raises ValueError for inputs that are smaller than the convolutions need.

    >>> import torch
    >>> network = AnomalyCapsNet((1, 28, 28), filters=8, primary_types=2)
    >>> output = network(torch.rand(4, 1, 28, 28))
    >>> output.activation.shape, output.coupling.shape, output.reconstruction.shape
    (torch.Size([4, 2]), torch.Size([4, 72, 2]), torch.Size([4, 784]))
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        *,
        filters: int = 256,
        kernel: int = 9,
        primary_types: int = 32,
        primary_dim: int = 32,
        decoder: tuple[int, ...] = (512, 1024),
        nonlinearity: Literal["relu", "elu"] = "relu",
        weight_std: float = 1.0,
        routing: str = "dynamic_over_children",
        **options: object,
    ):
        super().__init__()
        rows, columns = grid_size(shape[1:], [(kernel, 1), (kernel, 2)], "inputs")
        children = primary_types * rows * columns
        self.image_axes = ("N", *shape)
        self.conv = nn.Conv2d(shape[0], filters, kernel)
        functions = {"relu": F.relu, "elu": F.elu}
        check_name("nonlinearity", nonlinearity, functions)
        self.nonlinearity = functions[nonlinearity]
        self.primary = PrimaryCapsules(filters, primary_types, primary_dim, kernel=kernel)
        options |= {"routing": routing, "weight_std": weight_std}
        self.classes = DenseCapsules(children, 2, primary_dim, 16, **options)
        self.decoder = dense_decoder(2 * 16, decoder, shape)
        # A CPU is up to a tenth faster so; with larger convolutions up to a fifth slower.
        self.channels_last = self.primary.conv.weight.numel() < 2_000_000

    def forward(self, images: Tensor) -> AnomalyOutput:
        check_images(images, self.image_axes)
        features = self.nonlinearity(self.conv(images))
        pose, activation, coupling = self.classes(*self.primary(features))
        mask = mask_of_one(activation, activation.argmax(dim=1))  # [N, 2]
        reconstruction = self.decoder((pose * mask[..., None]).flatten(1))  # [N, pixels]
        return AnomalyOutput(activation, coupling, reconstruction)
