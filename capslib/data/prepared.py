"""Prepared folders: ``ROOT/NAME/SPLIT/ARRAY.npy`` and ``ROOT/NAME/manifest.json``, memory-mapped and shared by all processes.

The manifest is written last and moved into its place, so a folder with a manifest is whole and one without is nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from capslib.data.registry import DataSet
from capslib.errors import UserError

MANIFEST = "manifest.json"


class Array(BaseModel):
    model_config = ConfigDict(strict=True)
    shape: list[int]
    dtype: str
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Manifest(BaseModel):
    """What a prepared folder says about itself. Unknown fields are allowed: a set may say more, such as its letters."""

    model_config = ConfigDict(strict=True)
    name: str
    source: str
    licence: str
    complete: bool
    deviations: list[str]
    classes: list[str] = []
    arrays: dict[str, Array] = Field(min_length=1)

    @property
    def splits(self) -> dict[str, dict[str, Array]]:
        """``{split: {array: entry}}``."""
        found: dict[str, dict[str, Array]] = {}
        for path, entry in self.arrays.items():
            split, _, file = path.partition("/")
            found.setdefault(split, {})[file.removesuffix(".npy")] = entry
        return found


def spellings(root: Path, name: str) -> tuple[Path, ...]:
    """The folders that a set may lie in: its name, and the hyphenated form that some publishers use."""
    return tuple(dict.fromkeys((root / name, root / name.replace("_", "-"))))


def find(root: Path, name: str) -> Path | None:
    """The prepared folder of a set, sound or not; None if there is none."""
    return next((folder for folder in spellings(root, name) if (folder / MANIFEST).is_file()), None)


def _damaged(folder: Path, what: str) -> UserError:
    return UserError(
        f"The prepared data in {folder} is damaged: {what}. `capslib data verify` checks all of it; "
        f"delete the folder and prepare or fetch the set again (`capslib data fetch {folder.name.replace('-', '_')}`)."
    )


def manifest(folder: Path) -> tuple[Manifest, str]:
    """The validated manifest of a prepared folder and the SHA-256 of its bytes. Raises UserError if it is damaged."""
    try:
        raw = (folder / MANIFEST).read_bytes()
        found = Manifest.model_validate_json(raw)
    except OSError as error:
        raise _damaged(folder, f"{MANIFEST} cannot be read ({error.strerror})") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise _damaged(folder, f"{MANIFEST} is not valid{f' at {where}' if where else ''} ({first['msg']})") from None
    for path in found.arrays:  # these become paths: nothing that could leave the folder is let through
        split, _, file = path.partition("/")
        if not (split.isidentifier() and file.endswith(".npy") and file.removesuffix(".npy").isidentifier()):
            raise _damaged(folder, f"{MANIFEST} lists {path!r}, which is not SPLIT/ARRAY.npy")
    if found.name != folder.name.replace("-", "_"):
        raise _damaged(folder, f"{MANIFEST} is that of {found.name!r}")
    return found, hashlib.sha256(raw).hexdigest()


def open_split(folder: Path, found: Manifest, split: str, spec: DataSet | None = None) -> dict[str, np.ndarray]:
    """The arrays of a split, memory-mapped read-only. Headers and file sizes are checked, contents are not read.

    ``spec`` gives the shapes that a complete set must have. Raises UserError for anything that is not as the manifest says.
    """
    arrays = {}
    for key, entry in found.splits[split].items():
        path = folder / split / f"{key}.npy"
        try:
            array = np.lib.format.open_memmap(path, mode="r")  # never unpickles: an array of objects is a ValueError
        except FileNotFoundError:
            raise _damaged(folder, f"{split}/{key}.npy is missing") from None
        except (OSError, ValueError, EOFError) as error:
            raise _damaged(folder, f"{split}/{key}.npy cannot be mapped ({error})") from None
        if list(array.shape) != entry.shape or str(array.dtype) != entry.dtype:
            raise _damaged(
                folder, f"{split}/{key}.npy is {array.dtype} {list(array.shape)}, the manifest says {entry.dtype} {entry.shape}"
            )
        if (size := path.stat().st_size) != array.offset + array.nbytes:
            raise _damaged(folder, f"{split}/{key}.npy has {size:,} bytes, expected {array.offset + array.nbytes:,}")
        arrays[key] = array
    images, labels = arrays.get("images"), arrays.get("labels")
    if images is not None and (images.dtype != np.uint8 or images.ndim != 4):
        raise _damaged(folder, f"{split}/images.npy is {images.dtype} {list(images.shape)}, expected uint8 [N, C, H, W]")
    if labels is not None and (labels.dtype != np.int64 or labels.ndim != 1):
        raise _damaged(folder, f"{split}/labels.npy is {labels.dtype} {list(labels.shape)}, expected int64 [N]")
    if len({len(a) for a in arrays.values()}) != 1:
        raise _damaged(folder, f"the arrays of {split} differ in length ({ {k: len(a) for k, a in arrays.items()} })")
    if spec is not None and found.complete and images is not None and split in spec.splits:
        whole = (spec.splits[split], *(spec.shape or images.shape[1:]))
        if images.shape != whole:
            raise _damaged(folder, f"{split}/images.npy has shape {list(images.shape)}, the complete set has {list(whole)}")
    return arrays


def check(folder: Path, spec: DataSet) -> Manifest:
    """The cheap checks of all splits. Raises UserError for the first thing that is wrong."""
    found, _ = manifest(folder)
    for split in found.splits:
        open_split(folder, found, split, spec)
    return found


def problems(folder: Path, spec: DataSet) -> list[str]:
    """Everything that is wrong with a prepared folder, its contents read and hashed: one line each, none if it is sound."""
    try:
        found, _ = manifest(folder)
    except UserError as error:
        return [str(error)]
    wrong = []
    for split, entries in found.splits.items():
        try:
            arrays = open_split(folder, found, split, spec)
        except UserError as error:
            wrong.append(str(error))
            continue
        for key, entry in entries.items():
            with (folder / split / f"{key}.npy").open("rb") as file:
                if (digest := hashlib.file_digest(file, "sha256").hexdigest()) != entry.sha256:
                    wrong.append(f"{folder}: {split}/{key}.npy has SHA-256 {digest}, the manifest says {entry.sha256}")
        labels, classes = arrays.get("labels"), found.classes or spec.classes
        if labels is not None and classes and len(labels) and not 0 <= labels.min() <= labels.max() < len(classes):
            wrong.append(
                f"{folder}: {split}/labels.npy runs from {labels.min()} to {labels.max()}, there are {len(classes)} classes"
            )
    return wrong


def writable(folder: Path) -> bool:
    """Whether files can be made in a folder, or in the nearest one above it that exists.

    The mode is asked first: a folder that is marked read-only is left alone even when root could write to it.
    """
    try:
        place = next(p for p in (folder, *folder.absolute().parents) if p.exists())
        if not place.is_dir() or not place.stat().st_mode & 0o222:
            return False
        with tempfile.TemporaryFile(dir=place):
            return True
    except (OSError, StopIteration):
        return False


@contextlib.contextmanager
def lock(root: Path, name: str) -> Iterator[None]:
    """Hold a set for this process. The system frees it when the process dies, so a killed run blocks nobody."""
    root.mkdir(parents=True, exist_ok=True)
    held = FileLock(root / f".{name}.lock")
    try:
        held.acquire(timeout=0)
    except Timeout:
        print(f"Another process is preparing {name} in {root}; waiting for it.", file=sys.stderr)
        held.acquire()
    try:
        yield
    finally:
        held.release()


def write(root: Path, name: str, about: dict, splits: Iterable[tuple[str, dict[str, np.ndarray]]]) -> Path:
    """Write a prepared folder whole or not at all and return it. The caller holds :func:`lock`.

    ``about`` has the manifest's ``source``, ``licence``, ``complete`` and ``deviations``. Same arrays, same bytes: the
    manifest holds no date and no machine. A prepared set that is already in the place is replaced; other files, such as the
    publishers' own, stay. Raises UserError if the disk refuses.
    """
    final, tmp = root / name, root / f".{name}.tmp-{os.getpid()}"
    try:
        for stale in root.glob(f".{name}.tmp-*"):  # left by a process that was killed; nobody else writes while we hold the lock
            shutil.rmtree(stale, ignore_errors=True)
        tmp.mkdir()
        arrays = {}
        for split, group in splits:
            (tmp / split).mkdir()
            for key, array in group.items():
                path = tmp / split / f"{key}.npy"
                with path.open("wb") as file:
                    np.save(file, np.ascontiguousarray(array), allow_pickle=False)
                    file.flush()
                    os.fsync(file.fileno())
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                arrays[f"{split}/{key}.npy"] = {"shape": list(array.shape), "dtype": str(array.dtype), "sha256": digest}
        (tmp / MANIFEST).write_text(json.dumps({"name": name, **about, "arrays": arrays}, indent=1), encoding="utf-8")
        _install(tmp, final)
    except OSError as error:
        raise UserError(f"{name} cannot be prepared in {root}: {error.strerror or error}.") from None
    finally:
        shutil.rmtree(tmp, ignore_errors=True)
    return final


def _install(tmp: Path, final: Path) -> None:
    if not final.exists():
        tmp.rename(final)
        return
    (final / MANIFEST).unlink(missing_ok=True)
    for split in [p for p in tmp.iterdir() if p.is_dir()]:
        shutil.rmtree(final / split.name, ignore_errors=True)
        split.rename(final / split.name)
    (tmp / MANIFEST).replace(final / MANIFEST)
