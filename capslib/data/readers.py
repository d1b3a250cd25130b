"""Reading the files that publishers give out. They come from outside, so nothing in them is taken on trust."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from capslib.errors import UserError


def read_idx(path: Path, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """An IDX file of unsigned bytes, gzipped or not, as uint8 of the shape that it states, which must be ``shape`` if given.

    The magic number, the shape and the number of bytes must all be right. Raises :class:`~capslib.errors.UserError` that says
    which file, what was expected and what was found.
    """
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:  # EOFError: the stream is cut
        raise UserError(f"{path} cannot be read: {error}") from None
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
