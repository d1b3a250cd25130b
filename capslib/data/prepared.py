"""Prepared folders: ``NAME/SPLIT/ARRAY.npy``, memory-mapped, and ``NAME/manifest.json``.

All processes share them. Writing moves the manifest into place last, so a folder is complete
if and only if it has a manifest.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import numpy as np
import pooch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from capslib.data.registry import SETS, DataSet
from capslib.errors import UserError
from capslib.files import write_atomically

__all__ = [
    "FORM",
    "HEADERS",
    "MANIFEST",
    "Array",
    "Manifest",
    "check",
    "check_contents",
    "check_labels",
    "exists",
    "open_array",
    "open_split",
    "problems",
    "read_manifest",
    "write",
]

MANIFEST = "manifest.json"
# dtype and number of dimensions, if a set has this array
FORM = {"images": ("uint8", 4), "labels": ("int64", 1)}
# The readers of the headers of .npy files that numpy writes for numbers, by version
HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


class Array(BaseModel):
    """What the manifest says of an array."""

    model_config = ConfigDict(strict=True)
    shape: list[int]
    dtype: str
    sha256: str


class Manifest(BaseModel):
    """What a prepared folder says about itself. A set may add fields of its own."""

    model_config = ConfigDict(strict=True)
    name: str
    source: str
    licence: str
    complete: bool
    deviations: list[str]
    classes: list[str] = []
    # The keys become paths, so the pattern admits nothing outside the folder.
    arrays: dict[Annotated[str, Field(pattern=r"^\w+/\w+\.npy$")], Array] = Field(min_length=1)

    @property
    def splits(self) -> dict[str, dict[str, Array]]:
        """``{split: {array: entry}}``."""
        splits: dict[str, dict[str, Array]] = {}
        for path, entry in self.arrays.items():
            split, key = path.removesuffix(".npy").split("/")
            splits.setdefault(split, {})[key] = entry
        return splits


def exists(folder: Path) -> bool:
    """Return whether a folder is prepared: its manifest is written last."""
    return (folder / MANIFEST).is_file()


def _damaged(folder: Path, reason: str) -> UserError:
    command = ""
    if folder.name in SETS and SETS[folder.name].files:
        command = f", for example with `capslib data fetch {folder.name}`"
    return UserError(
        f"The prepared data in {folder} is damaged: {reason}. "
        f"Delete {folder / MANIFEST} and prepare the set again{command}."
    )


def read_manifest(folder: Path) -> tuple[Manifest, str]:
    """Read a manifest; return it with the SHA-256 of its bytes.

    Raises UserError if it is damaged, or contradicts what the registry knows of the set.
    """
    try:
        raw = (folder / MANIFEST).read_bytes()
        manifest = Manifest.model_validate_json(raw)
    except OSError as error:
        raise UserError(f"{folder / MANIFEST} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        reason = f"{MANIFEST} is not valid: {field} {first['msg']}"
        raise _damaged(folder, reason) from None
    if manifest.name != folder.name:
        raise _damaged(folder, f"{MANIFEST} belongs to {manifest.name!r}")
    if manifest.name in SETS:
        _check_shapes(folder, manifest, SETS[manifest.name])
    return manifest, hashlib.sha256(raw).hexdigest()


def _check_shapes(folder: Path, manifest: Manifest, spec: DataSet) -> None:
    """Raise UserError unless a manifest names the arrays of a set, and its first has the shape.

    A set that is not complete may lack splits and examples.
    """
    for split, shape in spec.splits.items():
        arrays = manifest.splits.get(split, {})
        if not arrays and not manifest.complete:
            continue
        missing = [name for name in spec.arrays if name not in arrays]
        if missing:
            raise _damaged(folder, f"{split} lacks {', '.join(missing)}")
        first = spec.arrays[0]
        actual, expected = arrays[first].shape, list(shape)
        if first != "images":  # it is prepared in another form than a network sees
            expected[1:] = actual[1:]
        fits = actual == expected
        if not manifest.complete:
            fits = actual[1:] == expected[1:] and actual[:1] <= expected[:1]
        if not fits:
            reason = f"{split}/{first} has the shape {actual}; {spec.name} has {expected}"
            raise _damaged(folder, reason)


def open_array(path: Path, entry: Array) -> np.ndarray:
    """Memory-map an array read-only, once its file, header and entry in the manifest agree.

    Opens nothing but a regular file, and maps nothing that is not wholly there. Raises
    ValueError that says what contradicts what, and OSError for a file that cannot be read.
    """
    if not path.is_file():
        reason = "it is no regular file" if path.exists() else "there is no such file"
        raise ValueError(reason)
    with path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        if version not in HEADERS:
            raise ValueError(f"its format is {version[0]}.{version[1]}, expected 1.0 or 2.0")
        shape, in_columns, dtype = HEADERS[version](file)
        start = file.tell()
    header = f"{dtype} {list(shape)}"
    if header != f"{entry.dtype} {entry.shape}":
        raise ValueError(f"it is {header}, the manifest says {entry.dtype} {entry.shape}")
    if dtype.kind not in "biuf":
        raise ValueError(f"it holds {dtype}, not numbers")
    if min(shape, default=0) < 1:
        raise ValueError(f"it is {header}, which holds nothing")
    promised, size = start + math.prod(shape) * dtype.itemsize, path.stat().st_size
    if promised != size:
        raise ValueError(f"it has {size:,} bytes, and {header} takes {promised:,}")
    return np.memmap(path, dtype, "r", start, shape, "F" if in_columns else "C")


def open_split(folder: Path, manifest: Manifest, split: str) -> dict[str, np.ndarray]:
    """Memory-map the arrays of a split read-only. Checks headers and sizes only.

    Raises UserError for an array that is missing, truncated, or contradicts the manifest.
    """
    arrays = {}
    for key, entry in manifest.splits[split].items():
        path = f"{split}/{key}.npy"
        try:
            array = open_array(folder / path, entry)
        except (OSError, ValueError) as error:
            raise _damaged(folder, f"{path} cannot be mapped: {error}") from None
        form = str(array.dtype), array.ndim
        if form != FORM.get(key, form):
            dtype, dimensions = FORM[key]
            header = f"{array.dtype} {list(array.shape)}"
            raise _damaged(
                folder, f"{path} is {header}, expected {dtype} with {dimensions} dimensions"
            )
        arrays[key] = array
    if len({len(array) for array in arrays.values()}) != 1:
        raise _damaged(folder, f"the arrays of {split} differ in length")
    return arrays


def check(folder: Path) -> Manifest:
    """Check all splits as :func:`open_split` does. Raises UserError for the first problem."""
    manifest, _ = read_manifest(folder)
    for split in manifest.splits:
        open_split(folder, manifest, split)
    return manifest


def check_contents(folder: Path, manifest: Manifest, split: str) -> None:
    """Raise UserError unless each array of a split has the SHA-256 that the manifest gives.

    Reads a file once: not again as long as its inode, size and time of change stay the same.
    """
    for key, entry in manifest.splits[split].items():
        path = f"{split}/{key}.npy"
        if not _matches(folder / path, entry.sha256):
            raise _differs(folder, path)


def check_labels(folder: Path, split: str, arrays: dict[str, np.ndarray], classes: int) -> None:
    """Raise UserError for a label that is none of so many classes, from 0 on.

    A set may have no labels, or name no classes.
    """
    if "labels" not in arrays or not classes:
        return
    low, high = arrays["labels"].min(), arrays["labels"].max()
    if low < 0 or high >= classes:
        raise _damaged(
            folder,
            f"{split}/labels.npy has labels from {low} to {high}, "
            f"and there are {classes} classes",
        )


def _differs(folder: Path, path: str) -> UserError:
    verify = f"`capslib data verify {folder.name}` names every such array"
    return _damaged(folder, f"{path} does not have the SHA-256 in the manifest ({verify})")


def _matches(path: Path, sha256: str) -> bool:
    """Return whether a file has this SHA-256, and note in the user's cache that it does.

    The note is a file of its own, so processes cannot disturb each other. Where it cannot be
    written, the next call reads the array again.
    """
    status = path.stat()
    state = [str(path.resolve()), status.st_ino, status.st_size, status.st_mtime_ns, sha256]
    text = json.dumps(state).encode()
    note = pooch.os_cache("capslib") / ".checked" / hashlib.sha256(text).hexdigest()
    if note.is_file():
        return True
    if pooch.file_hash(path) != sha256:
        return False
    with contextlib.suppress(UserError):
        write_atomically(note, text)
    return True


def problems(folder: Path) -> list[str]:
    """Read and hash everything in a prepared folder. Return one line for each problem.

    Where the registry knows the manifest that :func:`write` makes of the publisher's files, a
    set that calls itself complete must have that one.
    """
    try:
        manifest = check(folder)
        _, sha256 = read_manifest(folder)
    except UserError as error:
        return [str(error)]
    lines = []
    for path, entry in manifest.arrays.items():
        if pooch.file_hash(folder / path) != entry.sha256:
            lines.append(str(_differs(folder, path)))
    spec = SETS.get(folder.name)
    classes = manifest.classes or (spec.classes if spec else ())
    for split in manifest.splits:
        try:
            check_labels(folder, split, open_split(folder, manifest, split), len(classes))
        except UserError as error:
            lines.append(str(error))
    expected = spec.manifest if spec else ""
    if expected and manifest.complete and not manifest.deviations and sha256 != expected:
        command = f"`capslib data fetch {folder.name}`"
        lines.append(
            f"{folder / MANIFEST} calls the set complete, but it is not the one that {command} "
            f"writes. Delete it and use {command}, or let it name what differs from the "
            "publisher's set."
        )
    return lines


def write(
    folder: Path, fields: dict, splits: Iterable[tuple[str, dict[str, np.ndarray]]]
) -> None:
    """Write a prepared folder completely or not at all. Other files in it stay.

    Only one process may write at a time. ``fields`` are the manifest's ``source``, ``licence``,
    ``complete`` and ``deviations``. The manifest names no date and no machine, so equal arrays
    give equal bytes.
    """
    new = folder / ".unfinished"
    shutil.rmtree(new, ignore_errors=True)  # a killed process may have left it
    try:
        arrays = {}
        for split, group in splits:
            (new / split).mkdir(parents=True)
            for key, array in group.items():
                path = f"{split}/{key}.npy"
                np.save(new / path, np.ascontiguousarray(array), allow_pickle=False)
                arrays[path] = {
                    "shape": list(array.shape),
                    "dtype": str(array.dtype),
                    "sha256": pooch.file_hash(new / path),
                }
        manifest = {"name": folder.name, **fields, "arrays": arrays}
        (new / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        (folder / MANIFEST).unlink(missing_ok=True)  # it would not fit the new arrays
        for split in {path.split("/")[0] for path in arrays}:
            shutil.rmtree(folder / split, ignore_errors=True)
            (new / split).rename(folder / split)
        (new / MANIFEST).rename(folder / MANIFEST)
    finally:
        shutil.rmtree(new, ignore_errors=True)
