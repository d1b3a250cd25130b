"""Prepared folders: ``NAME/SPLIT/ARRAY.npy`` and ``NAME/manifest.json``, memory-mapped and shared by all processes.

Writing moves the manifest into place last, so a folder is complete if and only if it has a manifest.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import numpy as np
import pooch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from capslib.data.registry import SETS
from capslib.errors import UserError

__all__ = ["FORM", "MANIFEST", "Array", "Manifest", "check", "exists", "open_split", "problems", "read_manifest", "write"]

MANIFEST = "manifest.json"
FORM = {"images": ("uint8", 4), "labels": ("int64", 1)}  # dtype and number of dimensions, if a set has this array


class Array(BaseModel):
    model_config = ConfigDict(strict=True)
    shape: list[int]
    dtype: str
    sha256: str


class Manifest(BaseModel):
    """What a prepared folder says about itself. A set may add fields of its own, such as its letters."""

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
        found: dict[str, dict[str, Array]] = {}
        for path, entry in self.arrays.items():
            split, key = path.removesuffix(".npy").split("/")
            found.setdefault(split, {})[key] = entry
        return found


def exists(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def _damaged(folder: Path, what: str) -> UserError:
    how = f", for example with `capslib data fetch {folder.name}`" if folder.name in SETS and SETS[folder.name].files else ""
    return UserError(
        f"The prepared data in {folder} is damaged: {what}. Delete {folder / MANIFEST} and prepare the set again{how}."
    )


def read_manifest(folder: Path) -> tuple[Manifest, str]:
    """Read a manifest; return it with the SHA-256 of its bytes. Raises UserError if it is damaged, or not of the set that we know."""
    try:
        raw = (folder / MANIFEST).read_bytes()
        manifest = Manifest.model_validate_json(raw)
    except OSError as error:
        raise UserError(f"{folder / MANIFEST} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise _damaged(folder, f"{MANIFEST} is not valid: {'.'.join(map(str, first['loc']))} {first['msg']}") from None
    if manifest.name != folder.name:
        raise _damaged(folder, f"{MANIFEST} belongs to {manifest.name!r}")
    known = SETS.get(manifest.name)
    for split, shape in known.splits.items() if known else ():
        found = manifest.splits.get(split, {})
        if not found and not manifest.complete:
            continue
        if lacks := [name for name in known.arrays if name not in found]:
            raise _damaged(folder, f"{split} lacks {', '.join(lacks)}")
        ours, theirs = found[known.arrays[0]].shape, list(shape)  # of a part, the first dimension may be smaller
        if known.arrays[0] != "images":  # what is no picture is prepared in another form than a network sees
            theirs[1:] = ours[1:]
        if ours[1:] != theirs[1:] or ours[:1] > theirs[:1] or (manifest.complete and ours != theirs):
            raise _damaged(folder, f"{split}/{known.arrays[0]} has the shape {ours}; {manifest.name} has {theirs}")
    return manifest, hashlib.sha256(raw).hexdigest()


def open_split(folder: Path, manifest: Manifest, split: str) -> dict[str, np.ndarray]:
    """Memory-map the arrays of a split read-only. Checks headers and sizes only.

    Raises UserError for an array that is missing, truncated, or contradicts the manifest.
    """
    arrays = {}
    for key, entry in manifest.splits[split].items():
        path = f"{split}/{key}.npy"
        try:
            # An array of objects is a ValueError: nothing is unpickled.
            array = np.lib.format.open_memmap(folder / path, mode="r")
        except (OSError, ValueError) as error:
            raise _damaged(folder, f"{path} cannot be mapped ({error})") from None
        found, said = f"{array.dtype} {list(array.shape)}", f"{entry.dtype} {entry.shape}"
        if found != said:
            raise _damaged(folder, f"{path} is {found}, the manifest says {said}")
        if key in FORM and (str(array.dtype), array.ndim) != FORM[key]:
            raise _damaged(folder, f"{path} is {found}, expected {FORM[key][0]} with {FORM[key][1]} dimensions")
        arrays[key] = array
    if len({len(array) for array in arrays.values()}) != 1:
        raise _damaged(folder, f"the arrays of {split} differ in length")
    return arrays


def check(folder: Path) -> Manifest:
    """Run the checks of :func:`open_split` on all splits. Raises UserError for the first problem."""
    manifest, _ = read_manifest(folder)
    for split in manifest.splits:
        open_split(folder, manifest, split)
    return manifest


def problems(folder: Path) -> list[str]:
    """Read and hash everything in a prepared folder. Returns one line for each problem."""
    try:
        entries = check(folder).arrays
    except UserError as error:
        return [str(error)]
    wrong = [path for path, entry in entries.items() if pooch.file_hash(folder / path) != entry.sha256]
    return [str(_damaged(folder, f"{path} does not have the SHA-256 in the manifest")) for path in wrong]


def write(folder: Path, about: dict, splits: Iterable[tuple[str, dict[str, np.ndarray]]]) -> None:
    """Write a prepared folder completely or not at all. Other files in it stay. Only one process may write at a time.

    ``about`` holds the manifest's ``source``, ``licence``, ``complete`` and ``deviations``. The manifest names no date and no
    machine, so equal arrays give equal bytes.
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
                arrays[path] = {"shape": list(array.shape), "dtype": str(array.dtype), "sha256": pooch.file_hash(new / path)}
        (new / MANIFEST).write_text(json.dumps({"name": folder.name, **about, "arrays": arrays}, indent=1), encoding="utf-8")
        for split in {path.split("/")[0] for path in arrays}:
            shutil.rmtree(folder / split, ignore_errors=True)
            (new / split).rename(folder / split)
        (new / MANIFEST).rename(folder / MANIFEST)
    finally:
        shutil.rmtree(new, ignore_errors=True)
