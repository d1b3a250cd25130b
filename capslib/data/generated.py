"""Small generated stand-ins for CIFAR-10, HAM10000 and the CRISPR pairs.

They have the arrays and factors of these sets, and nothing of their difficulty. All numbers
come from ``RandomState``, whose draws are the same in every release of numpy.
"""

from __future__ import annotations

import numpy as np

__all__ = ["PER_LESION", "Splits", "guides", "moles", "tints"]

Splits = dict[str, dict[str, np.ndarray]]
PER_LESION = (20, 20, 40, 20, 40, 140, 20)
"""Images of each class of HAM10000, akiec to vasc: nevi are common there too."""


def tints() -> Splits:
    """Draw a disc of one of ten colours on grey.

    Each split has ``images``, uint8 [N, 3, 16, 16], and ``labels``, int64 [N].
    """
    draw = np.random.RandomState(0)

    def split(n: int) -> dict[str, np.ndarray]:
        labels = np.arange(n) % 10
        angle = 2 * np.pi * (labels[:, None] / 10 + np.array([0, 1 / 3, 2 / 3]))  # [N, 3]
        colour = 0.5 + 0.35 * np.cos(angle) + 0.05 * draw.randn(n, 3)
        disc = _ellipse(draw, n, (16, 16), (3, 5))[:, None]  # [N, 1, 16, 16]
        images = np.where(disc, colour[:, :, None, None], 0.4) + 0.08 * draw.randn(n, 3, 16, 16)
        return {"images": _bytes(images), "labels": labels}

    return {"train": split(1000), "test": split(300)}


def moles() -> Splits:
    """Draw dark spots on skin. Malignant ones are larger, bluer and less regular.

    The split ``all`` has ``images``, uint8 [N, 3, 18, 24], ``labels``, int64 [N], and
    ``lesion``, int64 [N]. Two images show each lesion.
    """
    draw = np.random.RandomState(1)
    labels = np.repeat(np.arange(len(PER_LESION)), PER_LESION)
    n, malignant = len(labels), np.isin(labels, [0, 1, 4])
    spot = _ellipse(draw, n, (18, 24), (3, 5))
    bulge = _ellipse(draw, n, (18, 24), (3, 4))
    spot |= malignant[:, None, None] & bulge
    skin = np.array([0.8, 0.6, 0.55])
    dark = np.array([0.45, 0.25, 0.2]) + 0.15 * malignant[:, None] * np.array([-1, 0, 1])
    images = np.where(spot[:, None], dark[:, :, None, None], skin[:, None, None])
    images = images + 0.05 * draw.randn(n, 3, 18, 24)
    return {"all": {"images": _bytes(images), "labels": labels, "lesion": np.arange(n) // 2}}


def guides() -> Splits:
    """Draw pairs of guide and site, uint8 [N, 23] with letters 0…3 (A, C, G, T).

    The split ``all`` has the arrays of the prepared CRISPR set. An off-target (label 1) differs
    from its guide in few letters, far from the PAM. The others differ in three to six letters;
    half of them keep the last two.
    """
    draw, n, length = np.random.RandomState(2), 800, 23
    guide = draw.randint(4, size=(20, length))[draw.randint(20, size=n)]
    guide[:, -2:] = 2
    labels = (np.arange(n) % 10 == 0).astype(np.int64)
    order = draw.rand(n, length)  # letters with the smallest numbers change
    keeps_pam = draw.rand(n, 1) < 0.5
    order[:, -2:] = np.where(keeps_pam, 2.0, order[:, -2:])
    order[labels == 1, 10:] = 2.0
    count = np.where(labels == 1, 1 + draw.randint(3, size=n), 3 + draw.randint(4, size=n))
    changes = order.argsort(axis=1).argsort(axis=1) < count[:, None]
    target = np.where(changes, (guide + 1 + draw.randint(3, size=guide.shape)) % 4, guide)
    pam = (target[:, -1] == 2) & np.isin(target[:, -2], (0, 2))
    arrays = {
        "guide": guide.astype(np.uint8),
        "target": target.astype(np.uint8),
        "labels": labels,
    }
    return {"all": {**arrays, "mismatches": changes.sum(axis=1), "nrg_pam": pam}}


def _ellipse(
    draw: np.random.RandomState, n: int, size: tuple[int, int], radii: tuple[float, float]
) -> np.ndarray:
    """Draw ellipses near the middle, bool [N, H, W]."""
    y, x = np.mgrid[: size[0], : size[1]]
    middle = np.array(size) / 2 + draw.uniform(-2, 2, (n, 2))
    a, b = draw.uniform(*radii, (2, n, 1, 1))
    rows = (y - middle[:, 0, None, None]) / a
    columns = (x - middle[:, 1, None, None]) / b
    return rows**2 + columns**2 <= 1


def _bytes(images: np.ndarray) -> np.ndarray:
    return np.round(255 * images.clip(0, 1)).astype(np.uint8)
