"""Batched tensor functions between a data set and a network. Whatever is random takes its generator as an argument.

All of them take and return ``[B, C, H, W]`` and work on a whole batch at once, on the device that it is on.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Size = int | tuple[int, int]


def as_tensor(array: np.ndarray, device: str | torch.device = "cpu") -> Tensor:
    """A copy of an array, memory-mapped or not, as a tensor of the same type and shape on ``device``."""
    return torch.tensor(np.asarray(array), device=device)


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


def _pair(size: Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def _crop_range(x: Tensor, size: Size) -> tuple[int, int, int, int]:
    """Height and width of a crop and how many places there are for its top and its left edge."""
    height, width = _pair(size)
    if not (0 < height <= x.shape[-2] and 0 < width <= x.shape[-1]):
        raise ValueError(f"a crop of {height} × {width} does not fit into {x.shape[-2]} × {x.shape[-1]} pixels")
    return height, width, x.shape[-2] - height + 1, x.shape[-1] - width + 1


def random_crop(x: Tensor, size: Size, generator: torch.Generator) -> Tensor:
    """A crop of [B, C, *size] at a place of its own in each image, uniform over all places. Raises ValueError if too large."""
    height, width, tops, lefts = _crop_range(x, size)
    b, device = len(x), x.device
    top = torch.randint(tops, (b,), generator=generator, device=generator.device).to(device)
    left = torch.randint(lefts, (b,), generator=generator, device=generator.device).to(device)
    rows = top[:, None] + torch.arange(height, device=device)  # [B, height]
    columns = left[:, None] + torch.arange(width, device=device)  # [B, width]
    image = torch.arange(b, device=device)[:, None, None, None]
    channel = torch.arange(x.shape[1], device=device)[:, None, None]
    return x[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def centre_crop(x: Tensor, size: Size) -> Tensor:
    """The middle [B, C, *size]; of two middles, the upper left one. Raises ValueError if too large."""
    height, width, tops, lefts = _crop_range(x, size)
    top, left = (tops - 1) // 2, (lefts - 1) // 2
    return x[..., top : top + height, left : left + width]


def pad(x: Tensor, size: Size) -> Tensor:
    """Zeros around each image up to [B, C, *size]; an odd row or column of them goes below or to the right.

    Raises ValueError if the images are larger than that.
    """
    height, width = _pair(size)
    rows, columns = height - x.shape[-2], width - x.shape[-1]
    if rows < 0 or columns < 0:
        raise ValueError(f"images of {x.shape[-2]} × {x.shape[-1]} pixels cannot be padded to {height} × {width}")
    return F.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
