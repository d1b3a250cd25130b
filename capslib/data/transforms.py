"""Tensor functions between a data set and a network, each of a whole batch [B, C, H, W]."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from capslib.shapes import check_shapes

__all__ = [
    "CENTRE_AND_DIAGONALS",
    "black_and_white",
    "center_crop",
    "crops",
    "downsample",
    "jitter",
    "random_crop",
    "standardise",
    "to_float",
]


def to_float(images: Tensor) -> Tensor:
    """Convert uint8 0…255 to float32 0…1.

    Raises TypeError for any other type, which would be scaled twice.

    >>> to_float(torch.tensor([0, 51, 255], dtype=torch.uint8))
    tensor([0.0000, 0.2000, 1.0000])
    """
    if images.dtype != torch.uint8:
        raise TypeError(f"images must be uint8, not {images.dtype}")
    return images.to(torch.float32) / 255


def standardise(x: Tensor, of: Tensor | None = None) -> Tensor:
    """Subtract from each image the mean of its pixels and divide by their standard deviation.

    The deviation counts as at least 1/√(C·H·W), so an image of one grey becomes zeros. With
    ``of`` [B, C, h, w], both are of these images instead.

    >>> x = torch.tensor([[[[0.0, 0.0, 1.0, 1.0]]]])
    >>> standardise(x), standardise(torch.ones(1, 1, 1, 1), of=x)
    (tensor([[[[-1., -1.,  1.,  1.]]]]), tensor([[[[1.]]]]))
    """
    check_shapes(x=(x, "N C H W"), of=(of, "N channels h w"))
    of = x if of is None else of
    mean = of.mean(dim=(1, 2, 3), keepdim=True)
    std = of.std(dim=(1, 2, 3), keepdim=True, correction=0)
    least = of.shape[1:].numel() ** -0.5
    return (x - mean) / std.clamp_min(least)


def black_and_white(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return what black and white pixels of each image become when it is standardised.

    Takes float [B, C, H, W], grey values 0…1, and returns two tensors [B, 1, 1, 1]. They are
    the ``bounds`` of an attack on standardised images, see :mod:`capslib.attacks`.

    >>> black_and_white(torch.tensor([[[[0.0, 0.0, 1.0, 1.0]]]]))
    (tensor([[[[-1.]]]]), tensor([[[[1.]]]]))
    """
    check_shapes(x=(x, "N C H W"))
    black, white = (torch.full_like(x[:, :1, :1, :1], grey) for grey in (0, 1))
    return standardise(black, of=x), standardise(white, of=x)


def downsample(x: Tensor, factor: int) -> Tensor:
    """Average over blocks of ``factor`` × ``factor`` pixels.

    Takes float [B, C, H, W] and returns [B, C, H/factor, W/factor]. Raises ValueError if
    ``factor`` does not divide both sides.

    >>> downsample(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), 2)
    tensor([[[[2.5000]]]])
    """
    check_shapes(x=(x, "N C H W"))
    if factor < 1 or x.shape[-2] % factor or x.shape[-1] % factor:
        size = f"{x.shape[-2]} × {x.shape[-1]} pixels"
        raise ValueError(f"factor {factor} does not divide images of {size}")
    return F.avg_pool2d(x, factor)


def random_crop(x: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Crop ``size`` × ``size`` pixels from each image [N, C, H, W], at a place of its own.

    All places are equally likely. Raises ValueError if the images are smaller.

    >>> random_crop(torch.rand(4, 1, 28, 28), 24, torch.Generator().manual_seed(0)).shape
    torch.Size([4, 1, 24, 24])
    """
    check_shapes(x=(x, "N C H W"))
    if size > min(x.shape[2:]):
        raise ValueError(
            f"no crop of {size} × {size} lies within images of "
            f"{x.shape[2]} × {x.shape[3]} pixels"
        )
    windows = x.unfold(2, size, 1).unfold(3, size, 1)  # [B, C, rows, columns, size, size]
    _, _, rows, columns, _, _ = windows.shape
    draw = functools.partial(torch.randint, generator=generator, device=x.device)
    row, column = draw(rows, (len(x),)), draw(columns, (len(x),))
    return windows[torch.arange(len(x), device=x.device), :, row, column]


CENTRE_AND_DIAGONALS = (
    (0, 0),
    *[(1, 1), (1, -1), (-1, 1), (-1, -1)],
    *[(2, 2), (2, -2), (-2, 2), (-2, -2)],
    *[(3, 3), (3, -3), (-3, 3), (-3, -3)],
)
"""Offsets (rows down, columns to the right) of 13 crops that the released EM routing averages.

Its TensorFlow halves them and rounds down, so it uses only the rows and columns −2, −1, 0 and
1 from the centre.
"""


def crops(
    x: Tensor, size: int, offsets: Sequence[tuple[int, int]] = CENTRE_AND_DIAGONALS
) -> Tensor:
    """Crop ``size`` × ``size`` pixels of x [B, C, H, W] at each offset from the centre.

    Returns [offsets, B, C, size, size]. Raises ValueError if a crop leaves the image.

    >>> crops(torch.rand(4, 1, 48, 48), 32).shape
    torch.Size([13, 4, 1, 32, 32])
    """
    check_shapes(x=(x, "N C H W"))
    height, width = x.shape[-2:]
    images = []
    for down, right in offsets:
        row, column = (height - size) // 2 + down, (width - size) // 2 + right
        if min(row, column) < 0 or row + size > height or column + size > width:
            raise ValueError(
                f"not all crops of {size} × {size} lie within images of "
                f"{height} × {width} pixels"
            )
        images.append(x[..., row : row + size, column : column + size])
    return torch.stack(images)


def center_crop(x: Tensor, size: int) -> Tensor:
    """Crop the middle ``size`` × ``size`` pixels: [B, C, H, W] to [B, C, size, size].

    Raises ValueError if x is smaller.

    >>> center_crop(torch.arange(4.0).reshape(1, 1, 1, 4).expand(1, 1, 4, 4), 2)
    tensor([[[[1., 2.],
              [1., 2.]]]])
    """
    return crops(x, size, [(0, 0)])[0]


def jitter(
    x: Tensor,
    generator: torch.Generator,
    brightness: float = 63 / 255,
    contrast: tuple[float, float] = (0.2, 1.8),
) -> Tensor:
    """Shift brightness by up to ``brightness``, then multiply contrast by a factor.

    The factor lies in the range ``contrast``.

    Takes and returns float [B, C, H, W], grey values 0…1; it does not clip. Each image draws
    both numbers once, uniformly. Contrast is how far the pixels of a channel differ from that
    channel's mean. :func:`standardise` removes the brightness; of the contrast it keeps only
    a change in the weight of the difference between the channels' means.

    >>> x = torch.full((1, 1, 2, 2), 0.5)
    >>> bool((jitter(x, torch.Generator().manual_seed(0)) - x).abs().max() <= 63 / 255)
    True
    """
    check_shapes(x=(x, "N C H W"))
    shift, factor = torch.rand(2, len(x), 1, 1, 1, generator=generator, device=x.device)
    x = x + brightness * (2 * shift - 1)
    mean = x.mean(dim=(2, 3), keepdim=True)
    low, high = contrast
    return mean + (low + (high - low) * factor) * (x - mean)
