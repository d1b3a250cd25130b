"""Read the publishers' files. They come from outside, so nothing in them is trusted.

A function ``…_splits(files, shapes)`` takes a publisher's files in the registry's order and yields the arrays of one split after
another. ``shapes`` are the shapes of the resulting images, [N, C, H, W] by split.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import math
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import numpy as np

from capslib.errors import UserError

Shapes = dict[str, tuple[int, int, int, int]]
Splits = Iterator[tuple[str, dict[str, np.ndarray]]]


@contextlib.contextmanager
def _unpacked(path: Path) -> Iterator[BinaryIO]:
    """Open a file, gzipped or not, for reading. Raises UserError if it is missing or its stream is damaged."""
    try:
        with path.open("rb") as file:
            packed = file.peek(2)[:2] == b"\x1f\x8b"
            with gzip.open(file) if packed else file as content:
                yield content
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:  # EOFError: a truncated stream
        raise UserError(f"{path} cannot be read: {error}") from None


def read_idx(path: Path, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """Read an IDX file of unsigned bytes, gzipped or not, as uint8 of the shape it states: ``shape``, if given.

    Raises :class:`~capslib.errors.UserError` if magic number, shape or number of bytes is wrong, and says which file, what was
    expected and what was found.
    """
    with _unpacked(path) as file:
        data = file.read()
    if len(data) < 4 or data[:3] != b"\0\0\x08" or len(data) < 4 + 4 * data[3]:  # 08: bytes; rank; as many 32-bit lengths
        raise UserError(f"{path} is not an IDX file of bytes: it starts with {data[:4].hex(' ')}, not with 00 00 08 and a rank.")
    start = 4 + 4 * data[3]
    found = tuple(int.from_bytes(data[k : k + 4], "big") for k in range(4, start, 4))
    if shape is not None and found != shape:
        raise UserError(f"{path} has shape {list(found)}, expected {list(shape)}.")
    if len(data) != (expected := start + math.prod(found)):
        trouble = "truncated" if len(data) < expected else "too long"
        raise UserError(f"{path} is {trouble}: expected {expected:,} bytes unpacked, found {len(data):,}.")
    return np.frombuffer(data, np.uint8, offset=start).reshape(found)


def idx_splits(files: list[Path], shapes: Shapes) -> Splits:
    """MNIST and the sets in its format: for each split a file of images [N, H, W] and a file of labels [N]."""
    paths = iter(files)
    for split, (n, _, height, width) in shapes.items():
        images, labels = read_idx(next(paths), (n, height, width)), read_idx(next(paths), (n,))
        yield split, {"images": images[:, None], "labels": labels.astype(np.int64)}


MATRIX = {"uint8": 0x1E3D4C55, "int32": 0x1E3D4C54}  # magic number of a binary matrix by the type of its entries


def read_matrix(path: Path, dtype: str, shape: tuple[int, ...], rows: int | None = None) -> Iterator[np.ndarray]:
    """Read a file in NORB's binary matrix format, gzipped or not, in slabs of ``rows`` rows; None reads it at once.

    ``dtype`` is uint8 or int32. Raises :class:`~capslib.errors.UserError` as :func:`read_idx` does. Only the end of the iterator
    shows that nothing follows the last row.
    """
    rows = rows or shape[0]
    row = np.dtype(dtype).itemsize * math.prod(shape[1:])
    lengths = max(3, len(shape))  # the format always stores at least three
    expected = 8 + 4 * lengths + shape[0] * row
    magic = MATRIX[dtype].to_bytes(4, "little")
    with _unpacked(path) as file:

        def read(size: int, dtype: str) -> np.ndarray:
            if len(data := file.read(size)) < size:
                raise UserError(f"{path} is truncated: expected {expected:,} bytes unpacked, found {file.tell():,}.")
            return np.frombuffer(data, np.dtype(dtype).newbyteorder("<"))

        if (head := file.read(4)) != magic:
            raise UserError(f"{path} is not a matrix of {dtype}: it starts with {head.hex(' ')}, not with {magic.hex(' ')}.")
        rank, *found = read(4 + 4 * lengths, "int32").tolist()
        if rank != len(shape) or tuple(found[:rank]) != shape:
            raise UserError(f"{path} has rank {rank} and lengths {found}, expected shape {list(shape)}.")
        for start in range(0, shape[0], rows):
            count = min(rows, shape[0] - start)
            yield read(count * row, dtype).reshape(count, *shape[1:])
        if file.read(1):
            raise UserError(f"{path} is too long: expected {expected:,} bytes unpacked, found more.")


def halve(images: np.ndarray) -> np.ndarray:
    """Average every 2 × 2 pixels and round halves up: uint8 [..., 2H, 2W] to uint8 [..., H, W]."""
    wide = images.astype(np.uint16)
    rows = wide[..., ::2, :] + wide[..., 1::2, :]
    return ((rows[..., ::2] + rows[..., 1::2] + 2) // 4).astype(np.uint8)


def norb_splits(files: list[Path], shapes: Shapes) -> Splits:
    """smallNORB: for each split the files ``dat`` (pairs of images), ``cat`` (classes) and ``info`` (the other factors).

    Halves the images one slab at a time, so the 450 MB of a split are never in memory.
    """
    paths = iter(files)
    for split, (n, cameras, height, width) in shapes.items():
        images, done = np.empty((n, cameras, height, width), np.uint8), 0
        for slab in read_matrix(next(paths), "uint8", (n, cameras, 2 * height, 2 * width), rows=500):
            images[done : done + len(slab)] = halve(slab)
            done += len(slab)
        [labels] = read_matrix(next(paths), "int32", (n,))
        [info] = read_matrix(next(paths), "int32", (n, 4))
        factors = zip(("instance", "elevation", "azimuth", "lighting"), info.astype(np.int64).T, strict=True)
        yield split, {"images": images, "labels": labels.astype(np.int64), **dict(factors)}


CIFAR = {"train": [f"data_batch_{k}.bin" for k in range(1, 6)], "test": ["test_batch.bin"]}


def cifar_splits(files: list[Path], shapes: Shapes) -> Splits:
    """The binary version of CIFAR-10: one archive of batches, each record one byte of label and C·H·W bytes of image.

    Extracts nothing to disk. Reads only members with the right names, and only plain files of the right size.
    """
    [path] = files
    records = {split: np.empty((n, 1 + math.prod(image)), np.uint8) for split, (n, *image) in shapes.items()}
    wanted = {}  # the rows that a member fills
    for split, names in CIFAR.items():
        parts = np.split(records[split], len(names))
        wanted |= {f"cifar-10-batches-bin/{name}": part for name, part in zip(names, parts, strict=True)}
    with _unpacked(path) as file:
        with tarfile.open(fileobj=file, mode="r|") as archive:  # as a stream: no seeking, so it unpacks only once
            for member in archive:
                if (part := wanted.pop(member.name, None)) is None:
                    continue
                if not member.isreg() or member.size != part.size:
                    raise UserError(f"{path}: its {member.name} is not a plain file of {part.size:,} bytes.")
                part[:] = np.frombuffer(archive.extractfile(member).read(), np.uint8).reshape(part.shape)
        while file.read(2**20):  # the checksum is at the end
            pass
    if wanted:
        raise UserError(f"{path} is truncated, or a different archive: it has no {', '.join(wanted)}.")
    for split, rows in records.items():
        yield split, {"images": rows[:, 1:].reshape(shapes[split]), "labels": rows[:, 0].astype(np.int64)}


BLOCK = 6  # pixels of a published image of HAM10000 along each side of one of ours


def shrink(images: np.ndarray) -> np.ndarray:
    """Blur and sample at every sixth place, uint8 [H, W, C] to uint8 [H/6, W/6, C].

    The released code of Kirillov and Panov (2022) does it with ``skimage.transform.resize``, and does not round.
    """
    from scipy.ndimage import gaussian_filter

    half, blur = BLOCK // 2, (BLOCK - 1) / 2  # the middle of a block lies between two pixels; scikit-image chooses this blur
    x = gaussian_filter(images.astype(np.float32), (blur, blur, 0), mode="mirror")
    rows = (x[half - 1 :: BLOCK] + x[half::BLOCK]) / 2
    return np.round((rows[:, half - 1 :: BLOCK] + rows[:, half::BLOCK]) / 2).astype(np.uint8)


def lesion_splits(files: list[Path], shapes: Shapes) -> Splits:
    """HAM10000: a table of images, their diagnoses and lesions, and archives of JPEG files. Rows are in the order of the names.

    Extracts nothing to disk. Raises UserError where table and archives do not name the same images, or one has another form.
    """
    from PIL import Image
    from tqdm import tqdm

    table, *archives = files
    [(split, (n, channels, height, width))] = shapes.items()
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if missing := [name for name in ("image_id", "dx", "lesion_id") if not rows or name not in rows[0]]:
        raise UserError(f"{table} has no column {' or '.join(missing)}.")
    rows.sort(key=lambda row: row["image_id"])
    images, wanted = np.empty((n, channels, height, width), np.uint8), ("RGB", BLOCK * width, BLOCK * height)
    with contextlib.ExitStack() as stack:
        try:
            there: dict[str, tuple[zipfile.ZipFile, str]] = {}
            for archive in (stack.enter_context(zipfile.ZipFile(path)) for path in archives):
                paths = [path for path in map(PurePosixPath, archive.namelist()) if path.match("ISIC_*.jpg")]
                there |= {path.stem: (archive, str(path)) for path in paths}
            if len(rows) != n or {row["image_id"] for row in rows} != there.keys():
                raise UserError(f"{table} names {len(rows):,} images, the archives hold {len(there):,}; expected the same {n:,}.")
            for k, row in enumerate(tqdm(rows, "ham10000", unit=" images", disable=None)):
                archive, name = there[row["image_id"]]
                with Image.open(io.BytesIO(archive.read(name)), formats=["JPEG"]) as image:
                    if (image.mode, *image.size) != wanted:
                        raise UserError(f"{name} in {archive.filename} is {image.mode} {image.size}, expected {wanted}.")
                    images[k] = shrink(np.asarray(image)).transpose(2, 0, 1)
        except (OSError, zipfile.BadZipFile) as error:
            raise UserError(f"{' or '.join(map(str, archives))} cannot be read: {error}") from None
    (_, labels), (_, lesions) = (np.unique([row[of] for row in rows], return_inverse=True) for of in ("dx", "lesion_id"))
    yield split, {"images": images, "labels": labels.astype(np.int64), "lesion": lesions.astype(np.int64)}
