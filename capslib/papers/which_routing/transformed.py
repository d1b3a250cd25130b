"""Shifts, rotations and scales that no training of the study has seen."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F


def mapped(images: Tensor, linear: Tensor, shift: tuple[float, float] = (0, 0)) -> Tensor:
    """Map float images [N, C, H, W] by a matrix [2, 2] about their middle, then shift them.

    ``shift`` is in pixels to the right and down. Between pixels they are interpolated
    bilinearly; what comes in from outside has the colour of the border.
    """
    size = torch.tensor([images.shape[3], images.shape[2]], dtype=torch.float64)
    inverse = linear.double().inverse()
    # a grid runs from −1 to 1, whatever the size
    of_grid = inverse * size[None, :] / size[:, None]  # [2, 2]
    offset = -(inverse @ torch.tensor(shift, dtype=torch.float64)) * 2 / size  # [2]
    theta = torch.cat([of_grid, offset[:, None]], dim=1).to(images)
    theta = theta.expand(len(images), 2, 3)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def shifts(images: Tensor, pixels: float) -> Iterator[Tensor]:
    """Yield the images shifted by so many pixels to the right, left, down and up."""
    for direction in ((1, 0), (-1, 0), (0, 1), (0, -1)):
        across, down = direction
        yield mapped(images, torch.eye(2), (pixels * across, pixels * down))


def rotations(images: Tensor, degrees: float) -> Iterator[Tensor]:
    """Yield the images turned by so many degrees, either way."""
    for angle in (math.radians(degrees), -math.radians(degrees)):
        cosine, sine = math.cos(angle), math.sin(angle)
        yield mapped(images, torch.tensor([[cosine, -sine], [sine, cosine]]))


def scaled(images: Tensor, factor: float) -> Tensor:
    """Return the images enlarged by a factor; below one they shrink."""
    return mapped(images, factor * torch.eye(2))
