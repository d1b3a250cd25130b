"""The networks of Peer et al. (2021): stacks of dense vector capsules, on a scalar (§5.1) and behind two convolutions (§5.2)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from capslib.layers import DenseCapsules, PrimaryCapsules, as_capsules


class CapsuleStack(nn.Module):
    """Dense capsule layers one after another, all with one routing; the object of both theorems.

    ``sizes`` lists (capsules, dimension) of the input and of every layer. Takes poses [N, I, d] of vector capsules, gives the
    poses [N, J, D] and activations [N, J] of the last layer. ``options`` go to every :class:`DenseCapsules`.
    """

    def __init__(self, sizes: Sequence[tuple[int, int]], **options: object):
        super().__init__()
        self.layers = nn.ModuleList(
            DenseCapsules(children, parents, child_dim, parent_dim, **options)
            for (children, child_dim), (parents, parent_dim) in itertools.pairwise(sizes)
        )

    @torch.no_grad()
    def start_at_unit_length(self, pose: Tensor) -> None:
        """Scale W layer by layer, so that for these poses s_j = Σ_i û_{j|i}/J, of equal couplings, has mean length one."""
        pose, activation = as_capsules(pose)
        for layer in self.layers:
            s = layer.votes(pose).sum(dim=1) / layer.weight.shape[1]
            layer.weight /= torch.linalg.vector_norm(s, dim=-1).mean()
            pose, activation, _ = layer(pose, activation)

    def forward(self, pose: Tensor) -> tuple[Tensor, Tensor]:
        pose, activation = as_capsules(pose)
        for layer in self.layers:
            pose, activation, _ = layer(pose, activation)
        return pose, activation


class SignNetwork(CapsuleStack):
    """Tells the sign of a scalar: one 1-D capsule → ``hidden`` 1-D capsules → two (Fig. 1). Scalars [N] → activations [N, 2]."""

    def __init__(self, hidden: int = 20, **options: object):
        super().__init__([(1, 1), (hidden, 1), (2, 1)], **options)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, None, None])[1]


class CapsNetOutput(NamedTuple):
    """Class poses [N, C, D], class activations [N, C] and, with a decoder, the reconstruction [N, pixels]."""

    pose: Tensor
    activation: Tensor
    reconstruction: Tensor | None


class DeepCapsNet(nn.Module):
    """The CapsNet of the depth experiments (§5.2): convolution, primary capsules, hidden capsule layers, class capsules.

    ``depth`` counts the primary and the class layer. Images [N, channels, H, W] of ``image_shape`` = (channels, H, W).
    Convolution, primary layer and decoder have biases in every arm; ``bias`` in ``options`` switches the capsule layers only.
    The decoder sees all class capsules, without a mask. Convolutions and decoder start as in Keras (Glorot uniform, zero bias).
    ``odd`` takes the biases out of both convolutions and puts tanh in the place of ReLU: then −x gives the negated capsules.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        *,
        depth: int,
        classes: int = 10,
        filters: int = 256,
        kernel: int = 9,
        stride: int = 1,
        primary_types: int = 32,
        primary_kernel: int = 9,
        hidden: tuple[int, int] = (16, 12),
        class_dim: int = 16,
        decoder: tuple[int, ...] = (512, 1024),
        odd: bool = False,
        **options: object,
    ):
        super().__init__()
        if depth < 2:
            raise ValueError(f"depth counts the primary and the class layer, so it is at least 2, not {depth}")
        channels, height, width = image_shape
        self.conv = nn.Conv2d(channels, filters, kernel, stride, bias=not odd)
        self.nonlinearity = nn.Tanh() if odd else nn.ReLU()
        self.primary = PrimaryCapsules(filters, primary_types, 8, kernel=primary_kernel, stride=2, bias=not odd)
        with torch.no_grad():
            shapes = self.primary(self.conv(torch.zeros(1, *image_shape)))[0].shape  # [1, I, 8]
        self.capsules = CapsuleStack([shapes[1:], *[hidden] * (depth - 2), (classes, class_dim)], **options)
        widths = [classes * class_dim, *decoder, channels * height * width]
        dense = [m for a, b in itertools.pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())]
        self.decoder = nn.Sequential(*dense[:-1], nn.Sigmoid()) if decoder else None
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def primary_capsules(self, images: Tensor) -> Tensor:
        """Poses [N, I, 8] of the primary capsules."""
        return self.primary(self.nonlinearity(self.conv(images)))[0]

    def forward(self, images: Tensor) -> CapsNetOutput:
        pose, activation = self.capsules(self.primary_capsules(images))
        return CapsNetOutput(pose, activation, None if self.decoder is None else self.decoder(pose.flatten(1)))
