"""Tensor functions between a data set and a network: a whole batch [B, C, H, W] at once, on the device that it is on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def to_float(images: Tensor) -> Tensor:
    """uint8 0…255 to float32 0…1. Raises TypeError for any other type, which would be scaled twice."""
    if images.dtype != torch.uint8:
        raise TypeError(f"images must be uint8, not {images.dtype}")
    return images.to(torch.float32) / 255


def standardise(x: Tensor) -> Tensor:
    """Each image to mean 0 and standard deviation 1 over its own pixels and channels.

    The deviation is at least 1/√(C·H·W), so an image of one grey becomes zeros and not NaN.
    """
    mean = x.mean(dim=(1, 2, 3), keepdim=True)
    std = x.std(dim=(1, 2, 3), keepdim=True, correction=0)
    return (x - mean) / std.clamp_min(x[0].numel() ** -0.5)


def downsample(x: Tensor, factor: int) -> Tensor:
    """Average over ``factor`` × ``factor`` pixels: float [B, C, H, W] to [B, C, H/factor, W/factor].

    Raises ValueError if ``factor`` does not divide both sides.
    """
    if factor < 1 or x.shape[-2] % factor or x.shape[-1] % factor:
        raise ValueError(f"factor {factor} does not divide images of {x.shape[-2]} × {x.shape[-1]} pixels")
    return F.avg_pool2d(x, factor)


def random_crop(x: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """From each image of [B, C, H, W] ``size`` × ``size`` pixels, at a place of its own: all places are equally likely."""
    windows = x.unfold(2, size, 1).unfold(3, size, 1)  # [B, C, places, places, size, size], a view
    images = torch.arange(len(x), device=x.device)
    top, left = (torch.randint(n, (len(x),), generator=generator, device=x.device) for n in windows.shape[2:4])
    return windows[images, :, top, left]


CENTRE_AND_DIAGONALS = ((0, 0), *((k * a, k * b) for k in (1, 2, 3) for a in (1, -1) for b in (1, -1)))
"""Offsets of the 13 crops over which the released code of EM routing averages (rows down, columns to the right).

Its TensorFlow halves them and drops the fraction, so it sees only the rows and columns −2, −1, 0 and 1 from the centre.
"""


def crops(x: Tensor, size: int, offsets: Sequence[tuple[int, int]] = CENTRE_AND_DIAGONALS) -> Tensor:
    """For each offset from the centre the ``size`` × ``size`` pixels there: [B, C, H, W] to [offsets, B, C, size, size].

    Raises ValueError if a crop does not lie within the image.
    """
    top, left = ((n - size) // 2 for n in x.shape[-2:])
    if any(not (0 <= top + a <= x.shape[-2] - size and 0 <= left + b <= x.shape[-1] - size) for a, b in offsets):
        raise ValueError(f"not all crops of {size} × {size} lie within images of {x.shape[-2]} × {x.shape[-1]} pixels")
    return torch.stack([x[..., top + a : top + a + size, left + b : left + b + size] for a, b in offsets])


def center_crop(x: Tensor, size: int) -> Tensor:
    """The ``size`` × ``size`` pixels in the middle: [B, C, H, W] to [B, C, size, size]. Raises ValueError if there are fewer."""
    return crops(x, size, [(0, 0)])[0]


def jitter(
    x: Tensor, generator: torch.Generator, brightness: float = 63 / 255, contrast: tuple[float, float] = (0.2, 1.8)
) -> Tensor:
    """Each image brighter or darker by up to ``brightness``, then with its contrast times a factor within ``contrast``.

    Float [B, C, H, W], grey values 0…1, not clipped. Both are drawn once for an image, uniformly; contrast is what the pixels of
    a channel differ from that channel's mean. After :func:`standardise` nothing is left of the brightness, and of the contrast
    only how it changes the weight of the difference between the channels' means.
    """
    shift, factor = torch.rand(2, len(x), 1, 1, 1, generator=generator, device=x.device)
    x = x + brightness * (2 * shift - 1)
    mean = x.mean(dim=(2, 3), keepdim=True)
    low, high = contrast
    return mean + (low + (high - low) * factor) * (x - mean)
