"""Stand-ins need no files, so everything runs without real data. Every result made with one says so."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import numpy as np

from capslib.data import generated, toys

__all__ = ["STAND_INS", "digits", "sha256", "splits"]


def digits() -> dict[str, dict[str, np.ndarray]]:
    """Scikit-learn's 1,797 scans as ``{split: {"images": uint8 [N, 1, 8, 8], "labels": int64 [N]}}``.

    Grey values 0…16 become 0…255. Every fifth scan of a class, from the first, is a test image. The same 13 people wrote both
    parts, so test accuracy says nothing about other people's handwriting.
    """
    from sklearn.datasets import load_digits  # heavy, and only this stand-in needs it

    scans = load_digits()
    images = np.round(scans.images * (255 / 16)).astype(np.uint8)[:, None]
    labels = scans.target.astype(np.int64)
    test = np.zeros(len(labels), bool)
    for k in range(10):
        test[np.flatnonzero(labels == k)[::5]] = True
    return {
        s: {"images": images[rows], "labels": labels[rows]}
        for s, rows in (("train", ~test), ("test", test))
    }


STAND_INS = {
    "digits": digits,
    "toys": toys.splits,
    "tints": generated.tints,
    "moles": generated.moles,
    "guides": generated.guides,
}


@functools.cache
def splits(name: str) -> dict[str, dict[str, Any]]:
    """All splits of a stand-in, in the types of a prepared folder and read-only: all callers share them, as those of a real set."""
    found = STAND_INS[name]()
    for group in found.values():
        for key, array in group.items():
            if isinstance(array, np.ndarray):  # the images of toys are read-only as they are
                group[key] = array.astype(np.int64) if array.dtype.kind == "i" else array
                group[key].flags.writeable = False
    return found


def sha256(splits: dict[str, dict[str, np.ndarray]]) -> str:
    """One hash over names, types, shapes and bytes of all arrays, in a fixed order. Images of toys count by their recipe."""
    digest = hashlib.sha256()
    for split, arrays in sorted(splits.items()):
        for key, a in sorted(arrays.items()):
            content = a.tobytes() if isinstance(a, np.ndarray) else a.recipe()
            digest.update(f"{split}/{key} {a.dtype.str} {list(a.shape)}\n".encode() + content)
    return digest.hexdigest()
