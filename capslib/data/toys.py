"""Toys, a stand-in for smallNORB: stereo pairs of 50 random toys on a turntable.

The factors of variation are the same. A toy is a few boxes, balls and tubes with random
proportions. Each pixel is one ray, which meets a part in closed form. Light adds: a view is
rendered once under each lamp, and a lighting is a weighted sum. Points are [3, …]: forwards,
to the left, up.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np

__all__ = [
    "AXLE",
    "BALL",
    "BASELINE",
    "BLOCK",
    "DISTANCE",
    "FACTORS",
    "FIELD",
    "INSTANCES",
    "LAMPS",
    "LIGHTINGS",
    "PARTS",
    "PILLOW",
    "POST",
    "REVISION",
    "SIZE",
    "VIEWS",
    "Renderings",
    "render",
    "splits",
    "toy",
]

REVISION = 3  # part of the fingerprint: raise it with any change that changes a pixel
INSTANCES = {"train": (4, 6, 7, 8, 9), "test": (0, 1, 2, 3, 5)}  # as in smallNORB
# The number of values of each factor of a split; the last changes fastest.
FACTORS = {"labels": 5, "instance": 5, "elevation": 9, "azimuth": 18, "lighting": 6}
VIEWS = (50, 9, 18)  # toys, elevations and azimuths
SIZE = 48  # pixels
# From toy to cameras and between cameras, where the radius of a toy is 1.
DISTANCE, BASELINE = 6.0, 0.8
FIELD = 0.22  # half of what a camera sees at distance 1
# Directions of lamps, the last of which is the sky, and how bright they are in each lighting.
LAMPS = np.array([(0.4, 0.5, 0.77), (0.5, -0.6, 0.62), (-0.6, 0.1, 0.79), (0, 0, 1)])
LIGHTINGS = np.array(
    [
        (0.6, 0, 0, 0.4),
        (0, 0.6, 0, 0.4),
        (0, 0, 0.6, 0.4),
        (0.3, 0.3, 0.2, 0.3),
        (0.3, 0.1, 0, 0.4),
        (0, 0.25, 0.1, 0.25),
    ],
    np.float32,
)

# A part fills a box as far as Σ bend · (its coordinates, −1…1)² ≤ 1.
BLOCK, PILLOW, BALL, POST, AXLE = (0, 0, 0), (0.5, 0.5, 0.5), (1, 1, 1), (1, 1, 0), (1, 0, 1)
# Parts of each category: middle and sides of the box, bend, brightness. A part with y ≠ 0 has a
# mirror image.
PARTS = (
    [  # animal: trunk, neck, head, tail, legs
        ((0, 0, 0.8), (1.5, 0.55, 0.6), BALL, 1),
        ((0.6, 0, 1.05), (0.4, 0.3, 0.8), BALL, 1),
        ((0.8, 0, 1.35), (0.6, 0.3, 0.32), BALL, 1),
        ((-0.75, 0, 0.75), (0.1, 0.1, 0.6), BALL, 0.8),
        ((0.45, 0.16, 0.35), (0.17, 0.17, 0.7), POST, 0.9),
        ((-0.45, 0.16, 0.35), (0.17, 0.17, 0.7), POST, 0.9),
    ],
    [  # human: trunk, head, hat, legs, arms
        ((0, 0, 1.2), (0.32, 0.6, 0.8), PILLOW, 1),
        ((0, 0, 1.78), (0.32, 0.3, 0.42), BALL, 1.2),
        ((0, 0, 1.95), (0.4, 0.4, 0.14), POST, 0.6),
        ((0, 0.14, 0.45), (0.2, 0.2, 0.9), POST, 0.7),
        ((0.12, 0.37, 1.15), (0.2, 0.16, 0.7), BALL, 0.9),
    ],
    [  # airplane: hull, wings, tail, fin, engines
        ((0, 0, 0.35), (2, 0.3, 0.3), BALL, 1),
        ((0.15, 0, 0.37), (0.45, 2, 0.07), PILLOW, 0.9),
        ((-0.85, 0, 0.42), (0.3, 0.8, 0.06), PILLOW, 0.9),
        ((-0.85, 0, 0.55), (0.3, 0.06, 0.45), PILLOW, 0.8),
        ((0.25, 0.45, 0.3), (0.45, 0.17, 0.17), BALL, 0.6),
    ],
    [  # truck: bed, cab, window, load, wheels
        ((0, 0, 0.3), (2, 0.6, 0.12), BLOCK, 0.5),
        ((0.75, 0, 0.6), (0.5, 0.68, 0.65), BLOCK, 1),
        ((0.82, 0, 0.75), (0.4, 0.72, 0.2), BLOCK, 0.3),
        ((-0.25, 0, 0.7), (1.5, 0.72, 0.75), PILLOW, 0.8),
        ((0.65, 0, 0.18), (0.36, 0.7, 0.36), AXLE, 0.3),
        ((-0.7, 0, 0.18), (0.36, 0.7, 0.36), AXLE, 0.3),
    ],
    [  # car: body, cabin, roof, wheels
        ((0, 0, 0.33), (2, 0.78, 0.34), PILLOW, 1),
        ((-0.1, 0, 0.5), (1.2, 0.68, 0.6), PILLOW, 0.35),
        ((-0.12, 0, 0.8), (0.7, 0.55, 0.06), BLOCK, 1),
        ((0.6, 0, 0.19), (0.38, 0.82, 0.38), AXLE, 0.3),
        ((-0.6, 0, 0.19), (0.38, 0.82, 0.38), AXLE, 0.3),
    ],
)


@functools.cache
def toy(number: int) -> tuple[list[tuple], np.ndarray]:
    """Return the parts of toy 10 · category + instance, and half the sides of its box.

    It is stretched at random and scaled into a ball of radius 1. The ground is the lower side
    of its box.
    """
    draw = np.random.RandomState(number).uniform  # the same numbers in every release of numpy
    stretch, paint, parts = draw(0.7, 1.4, 3), draw(0.45, 0.85), []
    for middle, sides, bend, grey in PARTS[number // 10]:
        size = stretch * sides * draw(0.8, 1.25, 3) / 2
        grey = min(0.95, paint * grey * draw(0.8, 1.2))
        parts.append((stretch * middle, size, bend, grey))
        if middle[1]:
            parts.append((stretch * middle * (1, -1, 1), size, bend, grey))
    low = np.min([middle - size for middle, size, _, _ in parts], axis=0)
    high = np.max([middle + size for middle, size, _, _ in parts], axis=0)
    low[2] = 0
    centre, half = (low + high) / 2, (high - low) / 2
    scale = 1 / np.hypot.reduce(half)
    scaled = []
    for middle, size, bend, grey in parts:
        scaled.append(((middle - centre) * scale, size * scale, bend, grey))
    return scaled, half * scale


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    # A matrix product may round differently in a larger batch.
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _views(
    elevation: np.ndarray, azimuth: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return cameras, their rays and the lamps, as a turned toy sees them.

    Of V views they are [3, C, 1, 1], [3, C, 48, 48] and [3, 4, C, 1, 1], with C = 2·V.
    """
    up = np.radians(30 + 5 * elevation).repeat(2)
    turn = np.exp(np.radians(20 * azimuth) * -1j).repeat(2)

    def turned(x, y, z) -> np.ndarray:
        xy = (x + 1j * y) * turn
        return np.stack([xy.real, xy.imag, z + 0 * up]).astype(np.float32)[..., None, None]

    sideways = np.tile([-BASELINE / 2, BASELINE / 2], len(elevation))
    camera = turned(DISTANCE * np.cos(up), sideways, DISTANCE * np.sin(up))
    ahead = -camera / np.sqrt(_dot(camera, camera))
    right = np.stack([ahead[1], -ahead[0], 0 * ahead[2]]) / np.hypot(ahead[0], ahead[1])
    grid = (FIELD * (2 * np.arange(SIZE) + 1 - SIZE) / SIZE).astype(np.float32)
    rays = ahead + grid * right + grid[:, None] * np.cross(ahead, right, axis=0)
    return camera, rays, np.stack([turned(*lamp) for lamp in LAMPS], axis=1)


def _lit(number: int, elevation: np.ndarray, azimuth: np.ndarray) -> np.ndarray:
    """Render views [V] of a toy and the ground under each lamp: float32 [4, V, 2, 48, 48]."""
    parts, half = toy(number)
    camera, rays, lamps = _views(elevation, azimuth)
    ground = _ground(half.astype(np.float32), camera, rays, lamps)
    surface = np.zeros_like(ground)
    nearest, thickness = np.full_like(rays[0], np.inf), np.zeros_like(rays[0])
    for *geometry, grey in parts:
        middle, size, bend = (np.float32(numbers)[:, None, None, None] for numbers in geometry)
        with np.errstate(divide="ignore", invalid="ignore"):
            part = _meet((camera - middle) / size, rays / size, bend)
            thickness += np.fmax(part.last - part.first, 0)
            hit = (part.first < part.last) & (part.first < nearest)  # [C, 48, 48]
        nearest[hit] = part.first[hit]
        normal = part.normal(hit, bend) / size[..., 0, 0]
        normal /= np.sqrt(_dot(normal, normal))
        lamp = lamps[:, :, hit.nonzero()[0], 0, 0]
        brightness = 0.3 + 0.7 * _dot(normal[:, None], lamp)
        surface[:, hit] = np.float32(grey) * np.maximum(brightness, 0.1)
    cover = np.minimum(thickness / 0.06, 1)  # thin parts let light through: edges are smooth
    return (ground + cover * (surface - ground)).reshape(4, -1, 2, SIZE, SIZE)


def _ground(
    half: np.ndarray, camera: np.ndarray, rays: np.ndarray, lamps: np.ndarray
) -> np.ndarray:
    """Return the light of the ground under each lamp [4, C, 48, 48].

    The shadow is a blot of the toy's size; ``half`` are half the sides of its box.
    """
    ground = camera - (half[2] + camera[2]) / rays[2] * rays  # where each ray meets it
    x, y = ground[:2, None] + half[2] / 2 * lamps[:2] / lamps[2]
    shadow = np.exp(-((x / (half[0] + 0.1)) ** 2) - (y / (half[1] + 0.1)) ** 2)
    return lamps[2] * (0.95 - 0.5 * shadow)


class _Meeting(NamedTuple):
    """Where rays meet a part of a toy, in units of its half sides: it is the box −1…1."""

    start: np.ndarray  # [3, C, 1, 1]  of the rays
    direction: np.ndarray  # [3, C, 48, 48]
    walls: np.ndarray  # [3, C, 48, 48]  the length of a ray at the nearer wall of each axis
    first: np.ndarray  # [C, 48, 48]  the length of a ray where it enters
    last: np.ndarray  # [C, 48, 48]  and where it leaves; a ray that misses leaves first

    def normal(self, hit: np.ndarray, bend: np.ndarray) -> np.ndarray:
        """Return normals [3, H] of the surface where the H rays of a mask enter.

        A ray comes in through the wall that it meets last, or through the bent surface.
        """
        direction, length = self.direction[:, hit], self.first[hit]
        wall = np.where(self.walls[:, hit] == length, -np.sign(direction), 0)
        start = self.start[:, hit.nonzero()[0], 0, 0]
        bent = bend[..., 0, 0] * (start + length * direction)
        return np.where(wall.any(0), wall, bent)


def _meet(start: np.ndarray, direction: np.ndarray, bend: np.ndarray) -> _Meeting:
    """Return where rays meet a part, whose surface is also Σ bend · x² = 1 if it is bent."""
    centre, reach = -start / direction, 1 / np.abs(direction)
    walls = centre - reach
    first, last = walls.max(0), (centre + reach).min(0)
    if bend.any():
        a, b = _dot(bend * direction, direction), _dot(bend * direction, start)
        c = _dot(bend * start, start) - 1
        root = np.sqrt(b * b - a * c)  # not a number where a ray misses
        first = np.maximum(first, (-b - root) / a)
        last = np.minimum(last, (root - b) / a)
    return _Meeting(start, direction, walls, first, last)


def render(
    toys: np.ndarray, elevation: np.ndarray, azimuth: np.ndarray, lighting: np.ndarray
) -> np.ndarray:
    """Render stereo pairs, uint8 [N, 2, 48, 48], left first.

    A toy is 10 · category + instance; the factors are 0, 1, 2, …; all are int [N].
    """
    images = np.empty((len(toys), 2, SIZE, SIZE), np.uint8)
    view = np.ravel_multi_index((toys, elevation, azimuth), VIEWS)
    for number in np.unique(toys):
        views = np.unique(view[toys == number])
        # Eight views at a time fit a processor's cache.
        for batch in np.array_split(views, math.ceil(len(views) / 8)):
            rows = np.flatnonzero(np.isin(view, batch))
            weights = LIGHTINGS[lighting[rows]].T[..., None, None, None]
            _, *angles = np.unravel_index(batch, VIEWS)
            lit = _lit(number, *angles)
            light = lit[:, np.searchsorted(batch, view[rows])]
            images[rows] = np.minimum(255 * sum(weights * light) + 0.5, 255).astype(np.uint8)
    return images


class Renderings:
    """The images of one split, uint8 [24300, 2, 48, 48], read like an array.

    Each is rendered when it is first read, and kept. ``factors`` are what :func:`render` takes.
    """

    dtype, ndim = np.dtype(np.uint8), 4

    def __init__(self, *factors: np.ndarray) -> None:
        self.factors, self.shape = factors, (len(factors[0]), 2, SIZE, SIZE)
        self._images = np.empty(self.shape, np.uint8)  # no memory where nothing was written
        self._rendered = np.zeros(len(self), bool)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key) -> np.ndarray:
        """Return images by any index of an array. A view is read-only."""
        rows = np.unique(np.arange(len(self))[key[0] if isinstance(key, tuple) else key])
        rows = rows[~self._rendered[rows]]
        self._images[rows] = render(*(factor[rows] for factor in self.factors))
        self._rendered[rows] = True
        images = self._images.view()
        images.flags.writeable = False
        return images[key]

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return np.array(self[:], dtype, copy=copy)

    def recipe(self) -> bytes:
        """Return what determines the images: a fingerprint needs no rendering."""
        factors = [factor.astype("<i8").tobytes() for factor in self.factors]
        return b"".join([f"toys {REVISION}".encode(), *factors])


def splits() -> dict[str, dict[str, np.ndarray | Renderings]]:
    """Return ``images``, uint8 [24300, 2, 48, 48], and ``FACTORS``, int64 [24300], by split.

    Values are those of smallNORB: azimuth in tens of degrees, 0, 2, …, 34; elevation 0…8, for
    30° to 70°; lighting 0…5. Rows are in the order of the factors, lighting changing fastest.
    No toy is in both splits.
    """
    arrays = {}
    for split, instances in INSTANCES.items():
        factors = np.indices(tuple(FACTORS.values()), np.int64).reshape(len(FACTORS), -1)
        label, instance, elevation, azimuth, lighting = factors
        instance = np.array(instances)[instance]
        arrays[split] = {
            "labels": label,
            "instance": instance,
            "elevation": elevation,
            "azimuth": 2 * azimuth,
            "lighting": lighting,
            "images": Renderings(10 * label + instance, elevation, azimuth, lighting),
        }
    return arrays
