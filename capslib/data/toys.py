"""Toys: a stand-in for smallNORB. Stereo pairs of 50 random toys on a turntable, with the same factors of variation.

A toy is a few boxes, balls and tubes with random proportions. Each pixel is one ray, which meets a part in closed form. Light
adds: a view is rendered once under each lamp, and a lighting is a weighted sum. Points are [3, …]: forwards, to the left, up.
"""

from __future__ import annotations

import functools

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
    "Renderings",
    "render",
    "splits",
    "toy",
]

REVISION = 3  # part of the fingerprint: raise it with any change that changes a pixel
INSTANCES = {"train": (4, 6, 7, 8, 9), "test": (0, 1, 2, 3, 5)}  # as in smallNORB
FACTORS = {
    "labels": 5,
    "instance": 5,
    "elevation": 9,
    "azimuth": 18,
    "lighting": 6,
}  # of a split; the last changes fastest
SIZE, DISTANCE, BASELINE = (
    48,
    6.0,
    0.8,
)  # pixels; toy to cameras and between cameras, where the radius of a toy is 1
FIELD = 0.22  # half of what a camera sees at distance 1
LAMPS = np.array(
    [(0.4, 0.5, 0.77), (0.5, -0.6, 0.62), (-0.6, 0.1, 0.79), (0, 0, 1)]
)  # directions; the last one is the sky
LIGHTINGS = np.array(
    [  # how bright each lamp is
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
PARTS = (  # of each category: middle and sides of the box, bend, brightness; a part with y ≠ 0 has a mirror image
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
def toy(k: int) -> tuple[list[tuple], np.ndarray]:
    """Parts of toy 10 · category + instance, stretched at random and scaled into a ball of radius 1, and half the sides of its box.
    The ground is the lower side of that box."""
    draw = np.random.RandomState(k).uniform  # the same numbers in every release of numpy
    whole, paint, parts = draw(0.7, 1.4, 3), draw(0.45, 0.85), []
    for at, sides, bend, grey in PARTS[k // 10]:
        size = whole * sides * draw(0.8, 1.25, 3) / 2
        grey = min(0.95, paint * grey * draw(0.8, 1.2))
        parts += [
            (whole * at * (1, side, 1), size, bend, grey)
            for side in ((1, -1) if at[1] else (1,))
        ]
    low = np.min([at - size for at, size, *_ in parts], axis=0)
    high = np.max([at + size for at, size, *_ in parts], axis=0)
    low[2] = 0
    middle, half = (low + high) / 2, (high - low) / 2
    scale = 1 / np.hypot.reduce(half)
    return [
        ((at - middle) * scale, size * scale, *rest) for at, size, *rest in parts
    ], half * scale


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (
        a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
    )  # a matrix product may round differently in a larger batch


def _views(
    elevation: np.ndarray, azimuth: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As a turned toy sees them: cameras [3, C, 1, 1], their rays [3, C, 48, 48] and lamps [3, 4, C, 1, 1]. C = 2·V."""
    up, turn = (
        np.radians(30 + 5 * elevation).repeat(2),
        np.exp(np.radians(20 * azimuth) * -1j).repeat(2),
    )

    def turned(x, y, z) -> np.ndarray:
        xy = (x + 1j * y) * turn
        return np.stack([xy.real, xy.imag, z + 0 * up]).astype(np.float32)[..., None, None]

    camera = turned(
        DISTANCE * np.cos(up),
        np.tile([-BASELINE / 2, BASELINE / 2], len(elevation)),
        DISTANCE * np.sin(up),
    )
    ahead = -camera / np.sqrt(_dot(camera, camera))
    right = np.stack([ahead[1], -ahead[0], 0 * ahead[2]]) / np.hypot(ahead[0], ahead[1])
    grid = (FIELD * (2 * np.arange(SIZE) + 1 - SIZE) / SIZE).astype(np.float32)
    rays = ahead + grid * right + grid[:, None] * np.cross(ahead, right, axis=0)
    return camera, rays, np.stack([turned(*lamp) for lamp in LAMPS], axis=1)


def _lit(k: int, elevation: np.ndarray, azimuth: np.ndarray) -> np.ndarray:
    """Views [V] of a toy and of the ground under each lamp: float32 [4, V, 2, 48, 48]. A shadow is a blot of the toy's size."""
    (parts, half), (camera, rays, lamps) = toy(k), _views(elevation, azimuth)
    half = half.astype(np.float32)
    x, y = (camera - (half[2] + camera[2]) / rays[2] * rays)[:2, None] + half[2] / 2 * lamps[
        :2
    ] / lamps[2]
    ground = lamps[2] * (
        0.95 - 0.5 * np.exp(-((x / (half[0] + 0.1)) ** 2) - (y / (half[1] + 0.1)) ** 2)
    )
    shown, nearest, through = (
        np.zeros_like(ground),
        np.full_like(rays[0], np.inf),
        np.zeros_like(rays[0]),
    )
    for at, size, bend, grey in parts:
        at, size, bend = (np.float32(x)[:, None, None, None] for x in (at, size, bend))
        place, speed = (camera - at) / size, rays / size  # the box is −1…1
        with np.errstate(divide="ignore", invalid="ignore"):
            middle, reach = -place / speed, 1 / np.abs(speed)
            walls = middle - reach
            first, last = walls.max(0), (middle + reach).min(0)
            if bend.any():
                a, b, c = (
                    _dot(bend * speed, speed),
                    _dot(bend * speed, place),
                    _dot(bend * place, place) - 1,
                )
                root = np.sqrt(b * b - a * c)  # not a number where a ray misses
                first, last = (
                    np.maximum(first, (-b - root) / a),
                    np.minimum(last, (root - b) / a),
                )
            through += np.fmax(last - first, 0)
            hit = (first < last) & (first < nearest)  # [C, 48, 48]
        nearest[hit] = far = first[hit]
        speed, walls, c = speed[:, hit], walls[:, hit], hit.nonzero()[0]
        wall = np.where(
            walls == far, -np.sign(speed), 0
        )  # the one that a ray came through, if it did
        normal = (
            np.where(wall.any(0), wall, bend[..., 0, 0] * (place[:, c, 0, 0] + far * speed))
            / size[..., 0, 0]
        )
        normal /= np.sqrt(_dot(normal, normal))
        shown[:, hit] = np.float32(grey) * np.maximum(
            0.3 + 0.7 * _dot(normal[:, None], lamps[:, :, c, 0, 0]), 0.1
        )
    cover = np.minimum(
        through / 0.06, 1
    )  # what is thin lets light through, so edges are smooth
    return (ground + cover * (shown - ground)).reshape(4, -1, 2, SIZE, SIZE)


def render(
    toys: np.ndarray, elevation: np.ndarray, azimuth: np.ndarray, lighting: np.ndarray
) -> np.ndarray:
    """Stereo pairs uint8 [N, 2, 48, 48], left first. Toy 10 · category + instance; the factors as 0, 1, 2, …; all int [N]."""
    images = np.empty((len(toys), 2, SIZE, SIZE), np.uint8)
    view = (toys * 9 + elevation) * 18 + azimuth
    for k in np.unique(toys):
        views = np.unique(view[toys == k])
        for some in np.array_split(
            views, -(-len(views) // 8)
        ):  # few enough for a processor's cache
            rows = np.flatnonzero(np.isin(view, some))
            weights = LIGHTINGS[lighting[rows]].T[..., None, None, None]
            light = _lit(k, *divmod(some % 162, 18))[:, np.searchsorted(some, view[rows])]
            images[rows] = np.minimum(255 * sum(weights * light) + 0.5, 255).astype(np.uint8)
    return images


class Renderings:
    """The images of one split, uint8 [24300, 2, 48, 48], read like an array. Each is rendered when it is first read, and kept."""

    dtype, ndim = np.dtype(np.uint8), 4

    def __init__(self, *factors: np.ndarray) -> None:
        """What :func:`render` takes."""
        self.factors, self.shape = factors, (len(factors[0]), 2, SIZE, SIZE)
        self._images = np.empty(
            self.shape, np.uint8
        )  # takes no memory where nothing was written
        self._there = np.zeros(len(self), bool)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key) -> np.ndarray:
        """Takes any index of an array. A view that it returns is read-only."""
        rows = np.unique(np.arange(len(self))[key[0] if isinstance(key, tuple) else key])
        rows = rows[~self._there[rows]]
        self._images[rows] = render(*(factor[rows] for factor in self.factors))
        self._there[rows] = True
        images = self._images.view()
        images.flags.writeable = False
        return images[key]

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return np.array(self[:], dtype, copy=copy)

    def recipe(self) -> bytes:
        """What determines the images: a fingerprint needs no rendering."""
        return b"".join(
            [
                f"toys {REVISION}".encode(),
                *(factor.astype("<i8").tobytes() for factor in self.factors),
            ]
        )


def splits() -> dict[str, dict[str, np.ndarray | Renderings]]:
    """``{split: {"images": uint8 [24300, 2, 48, 48], "labels", "instance", "elevation", "azimuth", "lighting": int64 [24300]}}``.

    Values are those of smallNORB: azimuth in tens of degrees, 0, 2, …, 34; elevation 0…8, for 30° to 70°; lighting 0…5. Rows are
    in the order of the factors, lighting changing fastest. No toy is in both splits.
    """
    found = {}
    for split, instances in INSTANCES.items():
        label, instance, elevation, azimuth, lighting = np.indices(
            tuple(FACTORS.values()), np.int64
        ).reshape(len(FACTORS), -1)
        instance = np.array(instances)[instance]
        found[split] = dict(
            zip(FACTORS, (label, instance, elevation, 2 * azimuth, lighting), strict=True)
        )
        found[split]["images"] = Renderings(10 * label + instance, elevation, azimuth, lighting)
    return found
