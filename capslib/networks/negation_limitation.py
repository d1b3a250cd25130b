"""The networks of Peer et al. (2021): dense vector capsules on a scalar and on images (§5)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from capslib.layers import (
    DenseCapsules,
    PrimaryCapsules,
    as_capsules,
    dense_decoder,
    grid_size,
)
from capslib.shapes import check_images, check_shapes

__all__ = ["CapsNetOutput", "CapsuleStack", "DeepCapsNet", "SignNetwork"]


class CapsuleStack(nn.Module):
    """Dense capsule layers with one kind of routing; both theorems are about it.

    ``sizes`` lists (capsules, dimension) of the input and of every layer. Poses [N, I, d]
    become poses [N, J, D] and activations [N, J]. ``options`` go to all :class:`DenseCapsules`.

    >>> CapsuleStack([(5, 3), (4, 2), (3, 6)], routing="em")(torch.randn(7, 5, 3))[0].shape
    torch.Size([7, 3, 6])
    """

    def __init__(self, sizes: Sequence[tuple[int, int]], **options: object):
        super().__init__()
        self.layers = nn.ModuleList(
            DenseCapsules(children, parents, child_dim, parent_dim, **options)
            for (children, child_dim), (parents, parent_dim) in itertools.pairwise(sizes)
        )

    @torch.no_grad()
    def start_at_unit_length(self, pose: Tensor) -> None:
        """Scale W, layer by layer, until s_j = Σ_i û_{j|i}/J of these poses has mean norm 1."""
        pose, activation = as_capsules(pose)
        for layer in self.layers:
            s = layer.votes(pose).sum(dim=1) / layer.weight.shape[1]
            layer.weight /= torch.linalg.vector_norm(s, dim=-1).mean()
            pose, activation, _ = layer(pose, activation)

    @torch.no_grad()
    def start_near_identity(self) -> None:
        """Add the identity to every W_ij: a layer then passes on the mean pose of its children.

        Without a bias the stack stays odd. Where dimensions differ, the last ones are dropped
        or start empty.
        """
        for layer in self.layers:
            layer.weight += torch.eye(*layer.weight.shape[2:], device=layer.weight.device)

    def forward(self, pose: Tensor) -> tuple[Tensor, Tensor]:
        check_shapes(pose=(pose, "N I d"))
        pose, activation = as_capsules(pose)
        for layer in self.layers:
            pose, activation, _ = layer(pose, activation)
        return pose, activation


class SignNetwork(CapsuleStack):
    """Tells the sign of a scalar (Fig. 1): one 1-D capsule → ``hidden`` 1-D capsules → two.

    Scalars [N] become activations [N, 2].

    >>> SignNetwork(20, bias=0.1)(torch.randn(7)).shape
    torch.Size([7, 2])
    """

    def __init__(self, hidden: int = 20, **options: object):
        super().__init__([(1, 1), (hidden, 1), (2, 1)], **options)

    def forward(self, x: Tensor) -> Tensor:
        check_shapes(x=(x, "N"))
        return super().forward(x[:, None, None])[1]


class CapsNetOutput(NamedTuple):
    """Class poses [N, C, 16], activations [N, C] and reconstructions [N, pixels]."""

    pose: Tensor
    activation: Tensor
    reconstruction: Tensor


class DeepCapsNet(nn.Module):
    """The CapsNet of the depth experiments (§5.2).

    Convolution, primary capsules, hidden capsule layers, class capsules for images
    [N, *shape]; ``depth`` counts the primary and the class layer. ``bias`` in ``options``
    is that of the capsule layers only; ``weight_std`` is the initial standard deviation of W.
    The decoder sees all class capsules, without a mask; its hidden layers have the widths
    ``decoder``.
    Convolutions and decoder start as in Keras. With ``odd``, convolutions without a bias and
    tanh for ReLU, −x gives the negated capsules. Raises ValueError for a depth below two.

    >>> DeepCapsNet((1, 28, 28), depth=3, filters=8)(torch.randn(2, 1, 28, 28)).pose.shape
    torch.Size([2, 10, 16])
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        *,
        depth: int,
        classes: int = 10,
        filters: int = 256,
        kernel: int = 9,
        primary_types: int = 32,
        primary_kernel: int = 9,
        hidden: tuple[int, int] = (16, 12),
        decoder: tuple[int, ...] = (512, 1024),
        odd: bool = False,
        weight_std: float = 0.1,
        **options: object,
    ):
        super().__init__()
        if depth < 2:
            raise ValueError(f"depth counts primary and class layer: at least 2, not {depth}")
        rows, columns = grid_size(shape[1:], [(kernel, 1), (primary_kernel, 2)])
        children = primary_types * rows * columns
        self.image_axes = ("N", *shape)
        self.conv = nn.Conv2d(shape[0], filters, kernel, bias=not odd)
        self.nonlinearity = nn.Tanh() if odd else nn.ReLU()
        convolution = dict(kernel=primary_kernel, stride=2, bias=not odd)
        self.primary = PrimaryCapsules(filters, primary_types, 8, **convolution)
        capsules = [(children, 8), *[hidden] * (depth - 2), (classes, 16)]
        self.capsules = CapsuleStack(capsules, weight_std=weight_std, **options)
        self.decoder = dense_decoder(classes * 16, decoder, shape)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def primary_capsules(self, images: Tensor) -> Tensor:
        """Return the poses [N, I, 8] of the primary capsules."""
        check_images(images, self.image_axes)
        return self.primary(self.nonlinearity(self.conv(images)))[0]

    def forward(self, images: Tensor) -> CapsNetOutput:
        pose, activation = self.capsules(self.primary_capsules(images))
        return CapsNetOutput(pose, activation, self.decoder(pose.flatten(1)))
