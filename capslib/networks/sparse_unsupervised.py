"""The networks of Rawlinson et al. (2018): capsules that learn without labels."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capslib.errors import check_name
from capslib.layers import (
    DenseCapsules,
    PrimaryCapsules,
    as_capsules,
    dense_decoder,
    grid_size,
    mask_of_one,
)
from capslib.shapes import check_images, check_labels, check_positive, check_shapes

__all__ = [
    "Autoencoder",
    "Grouping",
    "LifetimeBoost",
    "Mask",
    "ReleasedPrimaryCapsules",
    "SparseCapsNet",
    "SparseOutput",
    "rank_mask",
    "ranks",
    "routing_support",
]

Mask = Literal["none", "label", "longest", "winner", "ranks"]
"""With "none" the decoder sees all latent capsules; with "label" that of the label, or without
one the longest; with "longest" the longest; with "winner" the one with the most support. With
"ranks" it sees all, weighed by their ranks (eq. 4), as SPARSECAPS."""
Grouping = Literal["position", "released"]
"""The children among which the support takes the best (:func:`routing_support`)."""


class SparseOutput(NamedTuple):
    """The output for N images and L latent capsules of D dimensions.

    ``pose`` v is [N, L, D]; ``activation`` ‖v‖, ``support`` ψ and ``mask`` m are [N, L];
    ``reconstruction`` is [N, C·H·W], in 0…1.
    """

    pose: Tensor
    activation: Tensor
    support: Tensor
    mask: Tensor
    reconstruction: Tensor


def routing_support(coupling: Tensor, types: int, grouping: Grouping = "position") -> Tensor:
    """Return the support ψ [N, L] of latent capsules by their couplings (§2.2, eq. 1).

    Couplings are [N, types·H·W, L]. At every position the best of the ``types`` counts, and
    positions add up. The released code mixes types and positions up: it takes the best of
    ``types`` consecutive children, most of them neighbours of one type.

    >>> coupling = torch.tensor([0.75, 0.25, 0.5, 0.125])  # 2 types, 2 positions
    >>> coupling = coupling.reshape(1, 4, 1)
    >>> routing_support(coupling, 2).item(), routing_support(coupling, 2, "released").item()
    (1.0, 1.25)
    """
    check_shapes(coupling=(coupling, "N I L"))
    check_name("grouping", grouping, get_args(Grouping))
    if coupling.shape[1] % types:
        children = coupling.shape[1]
        raise ValueError(f"{children} children are not of {types} types at every position")
    if grouping == "position":
        best = coupling.unflatten(1, (types, -1)).amax(dim=1)
    else:
        best = coupling.unflatten(1, (-1, types)).amax(dim=2)
    return best.sum(dim=1)


def ranks(strength: Tensor) -> Tensor:
    """Return the rank [..., L] of each capsule: 0 for the strongest, of equal ones the first.

    >>> ranks(torch.tensor([[0.3, 0.9, 0.3]])).tolist()
    [[1, 0, 2]]
    """
    check_shapes(strength=(strength, "... L"))
    return strength.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)


def rank_mask(strength: Tensor, gamma: float = 12.0) -> Tensor:
    """Return the mask m = exp(−γ·r/(L − 1)) of ranks r [..., L] (§2.2, eqs. 2–4).

    Below 0.01 it is zero: of 16 capsules and γ = 12, six are left. No gradient flows through a
    rank.

    >>> rank_mask(-torch.arange(16.0))[:7]
    tensor([1.0000, 0.4493, 0.2019, 0.0907, 0.0408, 0.0183, 0.0000])
    """
    last = max(1, strength.shape[-1] - 1)  # the rank of the weakest; a single one keeps all
    mask = torch.exp(-gamma * ranks(strength) / last)
    return torch.where(mask < 0.01, 0.0, mask).to(strength.dtype)


class LifetimeBoost(nn.Module):
    """Boosts capsules that seldom rank first (§2.3, eqs. 5–7): support [N, L] to z = ψ·g.

    Only training updates the frequencies μ and the gains g: a gain grows by ``STEP`` where its
    frequency lies below ``band``, and shrinks where it lies above, but not below one. With
    ``relative``, which the paper does not try, the step is a share of the gain, and the
    smallest gain is one.
    """

    DECAY = 0.99  # of the frequency, in each batch
    EVERY = 50  # batches between changes of the gains
    STEP = 0.1  # by which a gain changes

    def __init__(
        self,
        capsules: int,
        band: tuple[float, float] = (0.04, 0.1),
        relative: bool = False,
    ):
        super().__init__()
        self.band, self.relative = band, relative
        self.register_buffer("frequency", torch.zeros(capsules))
        self.register_buffer("gain", torch.ones(capsules))
        # an integer, because a bfloat16 counter would stop at 256
        self.register_buffer("batches", torch.tensor(0))

    def forward(self, support: Tensor) -> Tensor:
        strength = support * self.gain
        if self.training:
            self._update(strength.detach())
        return strength

    @torch.no_grad()
    def _update(self, strength: Tensor) -> None:
        """Update μ and g in place and without branches: a captured CUDA step does so, too."""
        first = F.one_hot(strength.argmax(dim=-1), strength.shape[-1]).float()  # [N, L]
        keep = torch.where(self.batches == 0, 0.0, self.DECAY)
        self.frequency.copy_(keep * self.frequency + (1 - keep) * first.mean(dim=0))  # μ
        self.batches += 1
        due = (self.batches % self.EVERY == 0).float()
        low = (self.frequency < self.band[0]).float()
        high = (self.frequency > self.band[1]).float()
        step = due * self.STEP * (low - high)
        if self.relative:
            step = step * self.gain
        gain = self.gain + step
        gain = torch.where((due * high).bool(), gain.clamp_min(1), gain)
        if self.relative:
            gain = gain * (1 / gain.min())
        self.gain.copy_(gain)


class ReleasedPrimaryCapsules(PrimaryCapsules):
    """Primary capsules of Sabour's released code, which routes from one input to all types.

    Its softmax over the types divides what the convolution gives, but not the bias, by their
    number.
    """

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        types = self.conv.out_channels // self.dim
        return super().forward(features / types)  # the bias is not divided


class SparseCapsNet(nn.Module):
    """CapsNet whose latent capsules reconstruct the image, masked by what its routing supports.

    Convolution, primary capsules, ``hidden`` capsule layers (number, dimension) and latent
    capsules; ``mask`` says what the decoder sees. With mask "label" and ten capsules it is
    SUPCAPS, with "none" a plain autoencoder (§2.1), with "ranks" SPARSECAPS, whose lifetimes
    ``boost`` evens out. The decoder has hidden layers of the widths ``decoder``.
    ``weight_std`` is the initial standard deviation of W. ``options`` go to the ``routing``.
    For 1 × 40 × 40 the paper's sizes make 4,608 primary capsules. Convolutions and decoder
    start as released.

    >>> small = dict(filters=8, kernel=5, primary_types=4, primary_kernel=5)
    >>> network = SparseCapsNet((1, 20, 20), **small)
    >>> network(torch.rand(3, 1, 20, 20)).mask.sum(dim=1)
    tensor([1.8010, 1.8010, 1.8010])
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        *,
        capsules: int = 16,
        dim: int = 16,
        filters: int = 256,
        kernel: int = 9,
        primary_types: int = 32,
        primary_dim: int = 8,
        primary_kernel: int = 9,
        hidden: Sequence[tuple[int, int]] = (),
        decoder: tuple[int, ...] = (512, 1024),
        mask: Mask = "ranks",
        gamma: float = 12.0,
        boost: bool = True,
        band: tuple[float, float] = (0.04, 0.1),
        relative_boost: bool = False,
        grouping: Grouping = "position",
        weight_std: float = 0.1,
        routing: str = "dynamic",
        bias: float | None = 0.1,
        **options: object,
    ):
        super().__init__()
        check_name("mask", mask, get_args(Mask))
        check_name("grouping", grouping, get_args(Grouping))
        self.mask, self.gamma, self.grouping = mask, gamma, grouping
        self.conv = nn.Conv2d(shape[0], filters, kernel)
        self.primary = ReleasedPrimaryCapsules(
            filters, primary_types, primary_dim, kernel=primary_kernel
        )
        rows, columns = grid_size(shape[1:], [(kernel, 1), (primary_kernel, 2)])
        self.image_axes = ("N", *shape)
        self.types = 1 if hidden else primary_types  # a hidden capsule has no position
        sizes = [(primary_types * rows * columns, primary_dim), *hidden, (capsules, dim)]
        options |= {"routing": routing, "bias": bias, "weight_std": weight_std}
        self.layers = nn.ModuleList(
            DenseCapsules(children, parents, child_dim, parent_dim, **options)
            for (children, child_dim), (parents, parent_dim) in itertools.pairwise(sizes)
        )
        boost = boost and mask in ("winner", "ranks")
        self.boost = LifetimeBoost(capsules, band, relative=relative_boost) if boost else None
        self.decoder = dense_decoder(capsules * dim, decoder, shape)
        for module in (self.conv, self.primary.conv, *self.decoder):
            std = 0.05 if module is self.conv else 0.1
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
                nn.init.constant_(module.bias, 0.1)

    def latent(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return poses [N, L, D], activations and support [N, L] of the latent capsules."""
        check_images(images, self.image_axes)
        pose, activation = self.primary(F.relu(self.conv(images)))
        for layer in self.layers:
            pose, activation, coupling = layer(pose, activation)
        return pose, activation, routing_support(coupling, self.types, self.grouping)

    def masked(self, activation: Tensor, support: Tensor, labels: Tensor | None) -> Tensor:
        """Return the mask m [N, L]."""
        check_shapes(
            activation=(activation, "N L"), support=(support, "N L"), labels=(labels, "N")
        )
        strength = support if self.boost is None else self.boost(support)
        if self.mask == "none":
            return torch.ones_like(support)
        if self.mask == "ranks":
            return rank_mask(strength, self.gamma)
        if self.mask == "label" and labels is not None:
            check_labels(labels, support.shape[1])
            visible = labels
        elif self.mask == "winner":
            visible = strength.argmax(dim=-1)
        else:
            visible = activation.argmax(dim=-1)
        return mask_of_one(support, visible)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> SparseOutput:
        pose, activation, support = self.latent(images)
        mask = self.masked(activation, support, labels)
        return SparseOutput(pose, activation, support, mask, self.decode(pose, mask))

    def decode(self, pose: Tensor, mask: Tensor) -> Tensor:
        """Return reconstructions [N, pixels] of poses [N, L, D] under a mask [N, L]."""
        check_shapes(pose=(pose, "N L D"), mask=(mask, "N L"))
        return self.decoder((pose * mask[..., None]).flatten(1))


class Autoencoder(nn.Module):
    """Dense encoder and decoder, with as many numbers between them as the capsules have.

    It gives what :class:`SparseCapsNet` gives: ``capsules`` × ``dim`` numbers, none of them
    masked.

    >>> Autoencoder((1, 12, 12), capsules=4, dim=2)(torch.rand(3, 1, 12, 12)).pose.shape
    torch.Size([3, 4, 2])
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        *,
        capsules: int = 16,
        dim: int = 16,
        decoder: tuple[int, ...] = (512, 1024),
    ):
        super().__init__()
        check_positive(capsules=capsules, dim=dim)
        self.capsules, self.image_axes = capsules, ("N", *shape)
        widths = [shape[0] * shape[1] * shape[2], *reversed(decoder), capsules * dim]
        self.encoder = nn.Sequential()
        for sizes in itertools.pairwise(widths):
            self.encoder.extend([nn.Linear(*sizes), nn.ReLU()])
        del self.encoder[-1]
        self.decoder = dense_decoder(capsules * dim, decoder, shape)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> SparseOutput:
        check_images(images, self.image_axes)
        numbers = self.encoder(images.flatten(1))
        pose, activation = as_capsules(numbers.unflatten(1, (self.capsules, -1)))
        ones = torch.ones_like(activation)
        return SparseOutput(pose, activation, activation, ones, self.decode(pose, ones))

    decode = SparseCapsNet.decode
