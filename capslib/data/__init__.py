"""Named data sets as memory-mapped arrays.

Each real set has a prepared folder in the data folder, which is ``data_dir``, else
``$CAPSLIB_DATA``, else the user's cache. If it holds the publishers' own files instead, the
first use checks and prepares them. Nothing is downloaded unless asked for, and a stand-in
never replaces a real set. Only :mod:`capslib.data.transforms` and ``capslib.data.affnist``
import torch.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

with warnings.catch_warnings():  # pooch's progress bar asks for notebook widgets
    warnings.filterwarnings("ignore", "IProgress not found")
    import pooch

from capslib.data import prepared, publishers, standins
from capslib.data.registry import SETS, DataSet
from capslib.errors import UserError, check_name
from capslib.files import as_folder

__all__ = [
    "SETS",
    "DataFingerprint",
    "DataSplit",
    "Row",
    "data_root",
    "describe",
    "fetch",
    "load",
    "prepared_folder",
    "require",
    "verify",
]


class DataFingerprint(BaseModel):
    """The data that a trial saw.

    ``sha256`` is that of the set's manifest, or of the arrays of a stand-in.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    stand_in: bool
    complete: bool
    deviations: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class DataSplit:
    """One split of a set: read-only arrays of equal length. A real set's are memory-mapped."""

    name: str
    split: str
    arrays: Mapping[str, np.ndarray]
    classes: tuple[str, ...]
    fingerprint: DataFingerprint

    @property
    def images(self) -> np.ndarray:
        """uint8 [N, C, H, W]. Reading images of ``toys`` renders those that are read."""
        return self["images"]

    @property
    def labels(self) -> np.ndarray:
        """int64 [N], indices into ``classes``."""
        return self["labels"]

    def __getitem__(self, array: str) -> np.ndarray:
        """Return the array of this name, or raise UserError for an unknown one."""
        check_name(f"array of {self.name}/{self.split}", array, self.arrays)
        return self.arrays[array]

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))


class Row(NamedTuple):
    """One line of ``capslib data list``. ``folder`` is empty where ``state`` is "no"."""

    name: str
    kind: str  # real, stand-in
    state: str  # yes, in part, damaged, to prepare (the publishers' files are there), no
    splits: str
    licence: str
    folder: str


def load(
    name: str, split: str, *, data_dir: str | Path | None = None, download: bool | None = None
) -> DataSplit:
    """Load one split of a named set, whose arrays have the SHA-256 that its manifest gives.

    For that an array is read once, and again when its file has changed; :func:`verify` always
    reads all of them. ``download`` allows (True) or forbids (False) fetching a missing set;
    None leaves this to ``$CAPSLIB_DOWNLOAD``. Raises :class:`~capslib.errors.UserError` for
    an unknown name or split and for missing or damaged data.

    >>> train = load("digits", "train")
    >>> train.images.shape, train.images.dtype  # [N, C, H, W]
    ((1433, 1, 8, 8), dtype('uint8'))
    >>> train.labels[:5]
    array([0, 1, 2, 3, 4])
    >>> train.fingerprint.stand_in  # the fingerprint goes into the record of every run
    True
    """
    spec = SETS[name]
    check_name(f"split of {name}", split, spec.splits)  # before any file is looked for
    if spec.stand_in:
        splits = standins.splits(name)
        sha256 = standins.sha256(splits)
        fingerprint = DataFingerprint(name=name, sha256=sha256, stand_in=True, complete=True)
        return DataSplit(name, split, splits[split], spec.classes, fingerprint)
    folder = _folder(spec, data_dir, download)
    manifest, sha256 = prepared.read_manifest(folder)
    check_name(f"split of {name}", split, manifest.splits)
    fingerprint = DataFingerprint(
        name=name,
        sha256=sha256,
        stand_in=False,
        complete=manifest.complete,
        deviations=manifest.deviations,
    )
    arrays = prepared.open_split(folder, manifest, split)
    classes = tuple(manifest.classes) or spec.classes
    prepared.check_contents(folder, manifest, split)
    prepared.check_labels(folder, split, arrays, len(classes))
    return DataSplit(name, split, arrays, classes, fingerprint)


def require(
    name: str, data_dir: str | Path | None = None, *, download: bool | None = None
) -> None:
    """Raise UserError unless :func:`load` will give every split of a set.

    >>> require("digits")
    """
    if SETS[name].stand_in:
        return
    for split in SETS[name].splits:
        load(name, split, data_dir=data_dir, download=download)


def fetch(name: str, data_dir: str | Path | None = None) -> Path:
    """Download the publishers' missing files of a set, prepare it, and return its folder.

    Raises UserError if the download fails (the message says what to do by hand) or the folder
    holds only a part of the set.
    """
    spec = SETS[name]
    if spec.stand_in:
        raise UserError(f"There is nothing to fetch: {name} is already installed.")
    folder = _folder(spec, data_dir, download=True)
    manifest = prepared.check(folder)
    if spec.files and not manifest.complete:
        deviations = "; ".join(manifest.deviations)
        raise UserError(
            f"{folder} holds only part of {name} ({deviations}). "
            "Delete it to fetch the whole set."
        )
    require(name, data_dir, download=False)
    return folder


def prepared_folder(name: str, data_dir: str | Path | None = None) -> Path:
    """Return the prepared folder of a set. Raises UserError if it is missing; never downloads.

    >>> prepared_folder("digits")
    Traceback (most recent call last):
    capslib.errors.UserError: digits is embedded in capslib: it has no folder.
    """
    if SETS[name].stand_in:
        raise UserError(f"{name} is embedded in capslib: it has no folder.")
    return _folder(SETS[name], data_dir, download=False)


def verify(name: str, data_dir: str | Path | None = None) -> list[str]:
    """Read all arrays of a set again, and compare them with its manifest.

    A manifest that calls a set complete is compared with the one that is known. Returns one
    line for each problem. Raises UserError if the set is missing.

    >>> verify("digits")
    []
    """
    spec = SETS[name]
    return [] if spec.stand_in else prepared.problems(_folder(spec, data_dir, download=False))


def describe(data_dir: str | Path | None = None) -> list[Row]:
    """Return a row for every set, reading headers only.

    It hashes publishers' files that are not prepared yet.

    >>> print(*(row.name for row in describe() if row.kind == "stand-in"))
    digits toys tints moles guides
    """
    return [_row(spec, data_root(data_dir)) for spec in SETS.values()]


def data_root(data_dir: str | Path | None = None) -> Path:
    """Return the data folder: ``data_dir``, else ``$CAPSLIB_DATA``, else the user's cache.

    >>> print(data_root("sets"))
    sets
    """
    root = data_dir or os.environ.get("CAPSLIB_DATA") or pooch.os_cache("capslib")
    return as_folder(str(root))


def _folder(spec: DataSet, data_dir: str | Path | None, download: bool | None) -> Path:
    """Return the prepared folder of a set, prepared now if it has to be."""
    if download is None:
        download = os.environ.get("CAPSLIB_DOWNLOAD", "").lower() in ("1", "true", "yes")
    root = data_root(data_dir)
    if prepared.exists(root / spec.name):
        return root / spec.name
    return publishers.prepare(spec, root, download)


def _row(spec: DataSet, root: Path) -> Row:
    if spec.stand_in:
        return Row(spec.name, "stand-in", "yes", _sizes(spec.splits), spec.licence, "")
    folder, state, shapes = root / spec.name, "no", spec.splits
    if prepared.exists(folder):
        try:
            manifest = prepared.check(folder)
            state = "yes" if manifest.complete else "in part"
            shapes = {}
            for split, arrays in manifest.splits.items():
                array = arrays.get("images") or next(iter(arrays.values()))
                shapes[split] = array.shape
        except UserError:
            state = "damaged"
    elif spec.files and not publishers.survey(spec, root):
        state = "to prepare"
    path = "" if state == "no" else str(folder)
    return Row(spec.name, "real", state, _sizes(shapes), spec.licence, path)


def _sizes(shapes: Mapping[str, Sequence[int]]) -> str:
    """Return for example "train 60,000×1×28×28, test 10,000×1×28×28"."""
    sizes = []
    for split, shape in shapes.items():
        size = "×".join(f"{n:,}" for n in shape)
        sizes.append(f"{split} {size}")
    return ", ".join(sizes)
