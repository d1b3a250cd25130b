"""Reading the files that publishers give out. They come from outside, so nothing in them is taken on trust."""

from __future__ import annotations

import math
import zlib
from pathlib import Path

import numpy as np

from capslib.errors import UserError

IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
LIMIT = 2**30  # unpacked bytes; more than any set here holds, little enough to survive a gzip bomb


def _unpack(path: Path) -> tuple[bytes, str]:
    """The bytes of a file, unpacked if it is gzip, and what is wrong with its gzip stream (empty: nothing).

    A cut stream gives all bytes up to the cut, which is what makes an exact message possible; `gzip.open` would lose them.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    if raw[:2] != b"\x1f\x8b":
        return raw, ""
    stream = zlib.decompressobj(wbits=31)
    try:
        data = stream.decompress(raw, LIMIT)
    except zlib.error as error:
        raise UserError(f"{path} is not a sound gzip file ({error}). Get it again.") from None
    if stream.unconsumed_tail:
        raise UserError(f"{path} unpacks to more than {LIMIT:,} bytes, which no set here does. Get it again.")
    if not stream.eof:
        return data, " (the gzip stream is cut)"
    return data, f" ({len(stream.unused_data):,} bytes follow the gzip stream)" if stream.unused_data else ""


def read_idx(path: str | Path, *, dtype: str | None = None, shape: tuple[int | None, ...] | None = None) -> np.ndarray:
    """An IDX file, gzipped or not, as an array in native byte order.

    The magic number, the dimensions and the number of bytes must all be right. ``dtype`` (such as ``"uint8"``) and ``shape``
    (None for a dimension that is free) are what the caller needs. Raises :class:`~capslib.errors.UserError` with the file,
    what was expected and what was found.
    """
    path = Path(path)
    data, flaw = _unpack(path)
    if len(data) < 4:
        raise UserError(f"{path} is truncated: expected at least the 4 bytes of an IDX magic number, found {len(data)}{flaw}.")
    if data[:2] != b"\0\0" or data[2] not in IDX_TYPES or data[3] == 0:
        raise UserError(f"{path} is not an IDX file: it starts with {data[:4].hex(' ')}, not with 00 00, a type and a rank.")
    kind, rank = np.dtype(IDX_TYPES[data[2]]), data[3]
    start = 4 + 4 * rank
    if len(data) < start:
        raise UserError(f"{path} is truncated: expected {start} bytes of IDX header, found {len(data)}{flaw}.")
    dims = tuple(int.from_bytes(data[k : k + 4], "big") for k in range(4, start, 4))
    if dtype is not None and kind != np.dtype(dtype):
        raise UserError(f"{path} holds {kind.newbyteorder('=')} values, expected {np.dtype(dtype)}.")
    if shape is not None and (len(dims) != len(shape) or any(b not in (None, a) for a, b in zip(dims, shape, strict=True))):
        wanted = ", ".join("any" if d is None else str(d) for d in shape)
        raise UserError(f"{path} has shape {list(dims)}, expected [{wanted}].")
    expected = start + math.prod(dims) * kind.itemsize
    if len(data) != expected or flaw:
        trouble = "truncated" if len(data) < expected else "too long" if len(data) > expected else "damaged"
        raise UserError(f"{path} is {trouble}: expected {expected:,} bytes unpacked, found {len(data):,}{flaw}. Get it again.")
    return np.frombuffer(data, kind, offset=start).reshape(dims).astype(kind.newbyteorder("="), copy=False)
