"""Read the publishers' files, whose hashes :mod:`capslib.data.publishers` has checked.

A function ``…_splits(files, shapes)`` takes a publisher's files in the registry's order and
yields the arrays of one split after another. ``shapes`` are the shapes of the resulting images,
[N, C, H, W] by split. Nothing is extracted to disk. A file of another form, whose hash somebody
entered by mistake, makes a reader raise whatever its bytes happen to break.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import math
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np

__all__ = [
    "BLOCK",
    "CIFAR",
    "VARIANTS",
    "Shapes",
    "Splits",
    "affnist_splits",
    "cifar_splits",
    "halve",
    "idx_splits",
    "lesion_splits",
    "norb_splits",
    "shrink",
]

Shapes = dict[str, tuple[int, int, int, int]]
Splits = Iterator[tuple[str, dict[str, np.ndarray]]]


def _unpacked(path: Path, header: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return the array behind a header of so many bytes in a gzipped file.

    Raises ValueError for another size.
    """
    with gzip.open(path) as file:
        return np.frombuffer(file.read(), dtype, offset=header).reshape(shape)


def idx_splits(files: list[Path], shapes: Shapes) -> Splits:
    """Read MNIST and the sets in its format, IDX: for each split files of images and of labels.

    Their headers are a magic number and a length for each dimension, of 32 bits each.
    """
    paths = iter(files)
    for split, shape in shapes.items():
        images = _unpacked(next(paths), 4 + 4 * 3, "u1", shape)
        labels = _unpacked(next(paths), 4 + 4, "u1", shape[:1])
        yield split, {"images": images, "labels": labels.astype(np.int64)}


def halve(images: np.ndarray) -> np.ndarray:
    """Average 2 × 2 pixels, rounding halves up: uint8 [..., 2H, 2W] to uint8 [..., H, W]."""
    wide = images.astype(np.uint16)
    rows = wide[..., ::2, :] + wide[..., 1::2, :]
    return ((rows[..., ::2] + rows[..., 1::2] + 2) // 4).astype(np.uint8)


def norb_splits(files: list[Path], shapes: Shapes) -> Splits:
    """Read smallNORB: for each split the files ``dat``, ``cat`` and ``info``.

    They are pairs of images, classes, and the remaining factors. Their headers are a magic
    number, the number of dimensions and a length for each, but at least three, of 32 bits each.
    The images are halved one slab at a time, so the 450 MB of a split are never in memory.
    """
    paths = iter(files)
    for split, (n, cameras, height, width) in shapes.items():
        images = np.empty((n, cameras, height, width), np.uint8)
        with gzip.open(next(paths)) as file:
            file.seek(8 + 4 * 4)
            for slab in np.split(images, range(500, n, 500)):
                pairs = np.frombuffer(file.read(4 * slab.size), np.uint8)
                slab[:] = halve(pairs.reshape(len(slab), cameras, 2 * height, 2 * width))
        labels = _unpacked(next(paths), 8 + 4 * 3, "<i4", (n,)).astype(np.int64)
        info = _unpacked(next(paths), 8 + 4 * 3, "<i4", (n, 4)).astype(np.int64)
        arrays = {"images": images, "labels": labels}
        arrays |= zip(("instance", "elevation", "azimuth", "lighting"), info.T, strict=True)
        yield split, arrays


CIFAR = {"train": [f"data_batch_{k}.bin" for k in range(1, 6)], "test": ["test_batch.bin"]}


def cifar_splits(files: list[Path], shapes: Shapes) -> Splits:
    """Read the binary version of CIFAR-10: one archive of batches.

    Each record is one byte of label and C·H·W bytes of image.
    """
    [path] = files
    batches = {}
    with tarfile.open(path, "r|gz") as archive:  # a stream does not seek, so it unpacks once
        for member in archive:
            if member.isfile():
                batches[member.name] = archive.extractfile(member).read()
    for split, names in CIFAR.items():
        content = b"".join(batches.pop(f"cifar-10-batches-bin/{name}") for name in names)
        records = np.frombuffer(content, np.uint8).reshape(shapes[split][0], -1)
        images = records[:, 1:].reshape(shapes[split])
        yield split, {"images": images, "labels": records[:, 0].astype(np.int64)}


BLOCK = 6  # pixels of a published image of HAM10000 along each side of one of ours


def shrink(images: np.ndarray) -> np.ndarray:
    """Blur and sample at every sixth place, uint8 [H, W, C] to uint8 [H/6, W/6, C].

    The released code of Kirillov and Panov (2022) uses ``skimage.transform.resize``, and does
    not round.
    """
    from scipy.ndimage import gaussian_filter

    half = BLOCK // 2  # the middle of a block lies between two pixels
    blur = (BLOCK - 1) / 2  # the choice of scikit-image
    x = gaussian_filter(images.astype(np.float32), (blur, blur, 0), mode="mirror")
    rows = (x[half - 1 :: BLOCK] + x[half::BLOCK]) / 2
    return np.round((rows[:, half - 1 :: BLOCK] + rows[:, half::BLOCK]) / 2).astype(np.uint8)


def lesion_splits(files: list[Path], shapes: Shapes) -> Splits:
    """Read HAM10000: a table of images, diagnoses and lesions, and archives of JPEG files.

    Rows are in the order of the names.
    """
    from PIL import Image
    from tqdm import tqdm

    table, *archives = files
    [(split, shape)] = shapes.items()
    with table.open(encoding="utf-8", newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: row["image_id"])
    images = np.empty(shape, np.uint8)
    with contextlib.ExitStack() as stack:
        pictures: dict[str, tuple[zipfile.ZipFile, str]] = {}
        for path in archives:
            archive = stack.enter_context(zipfile.ZipFile(path))
            for name in map(PurePosixPath, archive.namelist()):
                if name.match("ISIC_*.jpg"):
                    pictures[name.stem] = archive, str(name)
        bar = tqdm(rows, "ham10000", unit=" images", disable=None)
        for image, row in zip(images, bar, strict=True):
            archive, name = pictures[row["image_id"]]
            with Image.open(io.BytesIO(archive.read(name)), formats=["JPEG"]) as picture:
                image[:] = shrink(np.asarray(picture)).transpose(2, 0, 1)
    arrays = {"images": images}
    for array, column in (("labels", "dx"), ("lesion", "lesion_id")):
        _, numbers = np.unique([row[column] for row in rows], return_inverse=True)
        arrays[array] = numbers.astype(np.int64)
    yield split, arrays


VARIANTS = 32  # of each test digit of MNIST, in affNIST


def affnist_splits(files: list[Path], shapes: Shapes) -> Splits:
    """Read affNIST's ``test.mat``: images as columns of pixels, row by row, and labels.

    Yields them variant by variant. The file has no published hash. Raises ValueError for
    another form, and for digits in neither of the two orders that tell which images show the
    same digit.
    """
    from scipy.io import loadmat

    [path], [(split, shape)] = files, shapes.items()
    fields = loadmat(path)["affNISTdata"][0, 0]
    columns = np.asarray(fields["image"])
    labels = np.asarray(fields["label_int"]).ravel().astype(np.int64)
    count, pixels = shape[0], math.prod(shape[1:])
    if columns.dtype != np.uint8 or columns.shape != (pixels, count) or len(labels) != count:
        actual = f"{columns.dtype} {list(columns.shape)} for {len(labels)} labels"
        raise ValueError(
            f"the images of {path.name} are {actual}, expected uint8 {[pixels, count]}"
        )
    rows = np.arange(count)
    by_variant, by_digit = rows.reshape(VARIANTS, -1), rows.reshape(-1, VARIANTS).T
    for order in (by_variant, by_digit):  # [variant, digit]
        if (labels[order] == labels[order[0]]).all():
            images = columns.T[order.ravel()].reshape(shape)
            digit = np.tile(rows[: count // VARIANTS], VARIANTS)
            yield split, {"images": images, "labels": labels[order.ravel()], "digit": digit}
            return
    raise ValueError(
        f"{path.name} has its digits neither variant by variant nor digit by digit, "
        "so no image tells which it shows"
    )
