"""Tensor functions between a data set and a network: a whole batch [B, C, H, W] at once, on the device that it is on."""

from __future__ import annotations

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
