"""affNIST: test digits of MNIST under affine maps, as published or generated as they were."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from capslib.data import SETS, DataFingerprint, data_root, load, prepared
from capslib.data.readers import VARIANTS
from capslib.errors import UserError

__all__ = ["DEGREES", "SCALES", "SHEAR", "affine_variants", "affnist"]

DEGREES, SHEAR, SCALES = 20.0, 0.2, (0.8, 1.2)
"""Rotations, shears and scales of each axis are uniform within these."""


def affine_variants(images: Tensor, variant: int, side: int) -> Tensor:
    """Map each image [N, 1, H, W], uint8, into a frame [N, 1, side, side], uint8.

    The digit is scaled by 0.8 to 1.2 along each axis, sheared by up to 0.2, turned by up to
    20°, and moved to where all of its ink lies inside the frame; all places are equally
    likely. The maps depend on ``variant`` and an image's number only.
    """
    maps = _maps(len(images), variant)  # from the digit to the frame, about their middles
    positions = torch.from_numpy(np.random.RandomState(7919 + variant).rand(len(images), 2))
    batches = zip(images.split(1000), maps.split(1000), positions.split(1000), strict=True)
    return torch.cat([_mapped(*batch, side) for batch in batches])


def _mapped(images: Tensor, linear: Tensor, position: Tensor, side: int) -> Tensor:
    """Map images by matrices [N, 2, 2], each to its position [N, 2], 0…1, in the frame."""
    height, width = images.shape[2:]
    y, x = torch.meshgrid(_centred(height), _centred(width), indexing="ij")
    pixels = linear @ torch.stack([x.flatten(), y.flatten()]).double()  # [N, 2, H·W]
    ink = images.flatten(1)[:, None] > 0  # [N, 1, H·W]
    low = torch.where(ink, pixels, np.inf).amin(dim=2) - 0.5
    high = torch.where(ink, pixels, -np.inf).amax(dim=2) + 0.5
    room = (side - (high - low)).clamp_min(0)
    offset = -side / 2 - low + position * room
    offset = torch.where(low.isfinite(), offset, 0.0)  # an image without ink does not move
    inverse = linear.inverse()
    theta = torch.cat([side * inverse, -2 * inverse @ offset[..., None]], dim=2)  # [N, 2, 3]
    size = torch.tensor([[width], [height]], dtype=theta.dtype)  # a grid runs from −1 to 1
    grid = F.affine_grid(theta / size, (len(images), 1, side, side), align_corners=False)
    mapped = F.grid_sample(images.double(), grid, mode="bilinear", align_corners=False)
    return mapped.round().clamp(0, 255).byte()


def _centred(size: int) -> Tensor:
    """Return the coordinates of pixels about their middle."""
    return torch.arange(size) - (size - 1) / 2


def _maps(count: int, variant: int) -> Tensor:
    """Draw rotation · shear · scales, float64 [count, 2, 2]."""
    turn, shear, x, y = np.random.RandomState(variant).uniform(-1, 1, (count, 4)).T
    angle = np.deg2rad(DEGREES * turn)
    low, high = SCALES
    scale_x = (low + high) / 2 + (high - low) / 2 * x
    scale_y = (low + high) / 2 + (high - low) / 2 * y
    cosine, sine, zero = np.cos(angle), np.sin(angle), np.zeros(count)
    rotation = np.stack([cosine, -sine, sine, cosine], axis=1).reshape(-1, 2, 2)
    upper = np.stack([scale_x, SHEAR * shear * scale_y, zero, scale_y], axis=1)
    return torch.from_numpy(rotation @ upper.reshape(-1, 2, 2))


def affnist(
    digits: str, count: int, side: int, data_dir: str | Path | None = None
) -> tuple[Tensor, Tensor, Tensor, DataFingerprint]:
    """Return the first ``count`` test images, their labels, their digits, and the fingerprint.

    Images are uint8 [count, 1, side, side]; a digit is its number in the test split. For
    MNIST the publisher's images are taken, where they are; else images are generated, and the
    fingerprint says so. Variant by variant, each has every test digit once. Raises UserError
    for more than 32 variants, and for a published set that is damaged, smaller or of another
    size.
    """
    folder = data_root(data_dir) / "affnist"
    files = [folder / name for name in (prepared.MANIFEST, *SETS["affnist"].files)]
    if digits == "mnist" and any(file.is_file() for file in files):
        split = load("affnist", "test", data_dir=data_dir)
        if len(split) < count:
            raise UserError(
                f"{folder} holds {len(split):,} test images, and {count:,} are wanted."
            )
        published = split.images.shape[-1]
        if published != side:
            raise UserError(
                f"{folder} holds images of {published} pixels a side, and {side} are wanted: "
                f"ask for {published}, or move the folder away to have them generated."
            )
        images, labels, numbers = (
            torch.as_tensor(np.array(split[name][:count]))
            for name in ("images", "labels", "digit")
        )
        return images, labels, numbers, split.fingerprint
    split = load(digits, "test", data_dir=data_dir)
    if count > VARIANTS * len(split):
        raise UserError(
            f"affNIST has {VARIANTS} variants of each of {len(split):,} test digits, "
            f"not {count:,} images."
        )
    originals = torch.tensor(np.asarray(split.images))
    variants = math.ceil(count / len(split))
    images = torch.cat([affine_variants(originals, k, side) for k in range(variants)])
    numbers = torch.arange(count) % len(split)
    deviation = (
        f"affNIST generated from {digits} by the published ranges: "
        "the publisher's file was not there"
    )
    deviations = (*split.fingerprint.deviations, deviation)
    changes = {"complete": False, "deviations": deviations}
    fingerprint = split.fingerprint.model_copy(update=changes)
    labels = torch.tensor(np.asarray(split.labels))
    return images[:count], labels[numbers], numbers, fingerprint
