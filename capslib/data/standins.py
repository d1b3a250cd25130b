"""Stand-ins need no files: everything runs without real data. Results with one say so."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import numpy as np

from capslib.data import generated, toys

__all__ = ["STAND_INS", "digits", "sha256", "splits"]


def digits() -> dict[str, dict[str, np.ndarray]]:
    """Return scikit-learn's 1,797 scans: images uint8 [N, 1, 8, 8] and labels int64 [N].

    Grey values 0…16 become 0…255. Every fifth scan of a class, from the first, is a test image.
    The same 13 people wrote both splits, so test accuracy says nothing about the handwriting of
    anybody else.
    """
    from sklearn.datasets import load_digits  # heavy, and only this stand-in needs it

    scans = load_digits()
    images = np.round(scans.images * (255 / 16)).astype(np.uint8)[:, None]
    labels = scans.target.astype(np.int64)
    test = np.zeros(len(labels), bool)
    for k in range(10):
        test[np.flatnonzero(labels == k)[::5]] = True
    return {
        "train": {"images": images[~test], "labels": labels[~test]},
        "test": {"images": images[test], "labels": labels[test]},
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
    """Return all splits of a stand-in, in the types of a prepared folder.

    They are read-only, as those of a real set: all callers share them.
    """
    arrays_by_split = STAND_INS[name]()
    for arrays in arrays_by_split.values():
        for key, array in arrays.items():
            if isinstance(array, np.ndarray):  # the images of toys are read-only as they are
                if array.dtype.kind == "i":
                    array = array.astype(np.int64)
                array.flags.writeable = False
                arrays[key] = array
    return arrays_by_split


def sha256(splits: dict[str, dict[str, np.ndarray]]) -> str:
    """Return a hash of names, types, shapes and bytes of all arrays, in a fixed order.

    Images of toys count by their recipe.
    """
    digest = hashlib.sha256()
    for split, arrays in sorted(splits.items()):
        for key, array in sorted(arrays.items()):
            content = array.tobytes() if isinstance(array, np.ndarray) else array.recipe()
            header = f"{split}/{key} {array.dtype.str} {list(array.shape)}\n"
            digest.update(header.encode() + content)
    return digest.hexdigest()
