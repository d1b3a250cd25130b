"""Named data sets, as memory-mapped arrays.

    train = load("mnist", "train")
    train.images      # uint8 [N, C, H, W]
    train.labels      # int64 [N]
    train.fingerprint # goes into the record of whatever is computed from it

A real set lives in a prepared folder, ``DATA/NAME/SPLIT/ARRAY.npy`` with ``DATA/NAME/manifest.json``; ``DATA`` is ``data_dir``,
else ``$CAPSLIB_DATA``, else the user's cache. Where a folder holds the publishers' own files instead, they are checked and
prepared on first use. Nothing is downloaded unless it is asked for. A stand-in never takes the place of a real set.

This module does not import torch; what turns arrays into tensors is in :mod:`capslib.data.transforms`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from capslib.data import prepared, publishers, standins
from capslib.data.registry import SETS, DataSet, dataset
from capslib.errors import UserError, unknown

__all__ = [
    "SETS",
    "DataSet",
    "DataSplit",
    "Fingerprint",
    "Row",
    "data_root",
    "dataset",
    "describe",
    "fetch",
    "load",
    "require",
    "verify",
]

PathLike = str | os.PathLike[str]


class Fingerprint(NamedTuple):
    """Which data was seen. ``sha256`` is that of the manifest's bytes, or of all arrays of an embedded stand-in."""

    name: str
    sha256: str
    stand_in: bool
    complete: bool
    deviations: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class DataSplit:
    """One split of a set: read-only arrays of equal length, memory-mapped where they come from files."""

    name: str
    split: str
    arrays: Mapping[str, np.ndarray]
    classes: tuple[str, ...]
    fingerprint: Fingerprint

    @property
    def images(self) -> np.ndarray:
        """uint8 [N, C, H, W]."""
        return self["images"]

    @property
    def labels(self) -> np.ndarray:
        """int64 [N], indices into ``classes``."""
        return self["labels"]

    def __getitem__(self, array: str) -> np.ndarray:
        """Any array of the split by name, such as ``instance``. Raises :class:`~capslib.errors.UserError` if it has none."""
        if array not in self.arrays:
            raise unknown(f"array of {self.name}/{self.split}", array, self.arrays)
        return self.arrays[array]

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))


class Row(NamedTuple):
    """One line of ``capslib data list``. ``splits`` says shapes as far as they are known; ``note`` says what is wrong, if so."""

    name: str
    kind: str  # "real" or "stand-in"
    present: bool
    complete: bool | None  # None: not there, so not known
    splits: dict[str, str]
    licence: str
    source: str
    folder: Path | None
    note: str


def data_root(data_dir: PathLike | None = None) -> Path:
    """The folder of prepared sets: ``data_dir``, else ``$CAPSLIB_DATA``, else the user's cache. It need not exist."""
    if given := data_dir or os.environ.get("CAPSLIB_DATA"):
        return Path(given).expanduser()
    return _cache()


def _cache() -> Path:
    import pooch

    return Path(pooch.os_cache("capslib"))


def _allowed(download: bool | None) -> bool:
    return download if download is not None else os.environ.get("CAPSLIB_DOWNLOAD", "").lower() in ("1", "true", "yes")


def _ready(spec: DataSet, root: Path, download: bool | None) -> Path | dict[str, Path]:
    """The prepared folder of a set, or the publishers' files that it can be prepared from."""
    if folder := prepared.find(root, spec.name):
        prepared.check(folder, spec)
        return folder
    try:
        return publishers.locate(spec, root)
    except UserError:
        if not (spec.files and _allowed(download)):
            raise
    return publishers.fetch(spec, root)


def require(name: str, data_dir: PathLike | None = None, *, download: bool | None = None) -> None:
    """Make sure that a set is there, without reading its arrays, before anything long is started.

    Raises :class:`~capslib.errors.UserError` for an unknown name and for a set that is missing or damaged; the message says
    which file, where from, which command, and where to put it. Downloads only as :func:`load` does.
    """
    spec = dataset(name)
    if not spec.embedded:
        _ready(spec, data_root(data_dir), download)


def load(name: str, split: str, *, data_dir: PathLike | None = None, download: bool | None = None) -> DataSplit:
    """One split of a named set.

    ``download`` allows (True) or forbids (False) fetching a set that is missing; None leaves it to ``$CAPSLIB_DOWNLOAD``.
    Raises :class:`~capslib.errors.UserError` for an unknown name or split and for data that is missing or damaged.
    """
    spec = dataset(name)
    if spec.splits and split not in spec.splits:
        raise unknown(f"split of {name}", split, spec.splits)
    if spec.embedded:
        splits = standins.digits()
        fingerprint = Fingerprint(name, standins.sha256(splits), stand_in=True, complete=True, deviations=())
        return DataSplit(name, split, splits[split], spec.classes, fingerprint)
    root = data_root(data_dir)
    place = _ready(spec, root, download)
    folder = place if isinstance(place, Path) else publishers.prepare(spec, place, (root, _cache()))
    found, sha256 = prepared.manifest(folder)
    if split not in found.splits:
        raise unknown(f"split of {name}", split, found.splits)
    fingerprint = Fingerprint(name, sha256, spec.stand_in, found.complete, tuple(found.deviations))
    arrays = prepared.open_split(folder, found, split, spec)
    return DataSplit(name, split, arrays, tuple(found.classes) or spec.classes, fingerprint)


def fetch(name: str, data_dir: PathLike | None = None, progress: bool = True) -> Path:
    """Get a set from its publishers, prepare it, and return its folder. Complete sets that are there are left alone.

    Raises :class:`~capslib.errors.UserError` if it cannot be had; the message lists what failed and what to do by hand.
    """
    spec, root = dataset(name), data_root(data_dir)
    if spec.embedded:
        raise UserError(f"There is nothing to fetch: {name} ships inside a package that is already installed.")
    if not spec.files and (folder := prepared.find(root, name)):
        prepared.check(folder, spec)
        return folder
    return publishers.fetch(spec, root, progress)


def verify(name: str, data_dir: PathLike | None = None) -> list[str]:
    """Read all arrays of a set again and compare them with its manifest: one line for each problem, none if it is sound.

    Raises :class:`~capslib.errors.UserError` if the set is not there.
    """
    spec, root = dataset(name), data_root(data_dir)
    if spec.embedded:
        found = standins.sha256(standins.digits())
        expected = standins.DIGITS_SHA256
        return [] if found == expected else [f"{name}: SHA-256 {found}, expected {expected}; scikit-learn ships other scans"]
    if folder := prepared.find(root, name):
        return prepared.problems(folder, spec)
    publishers.locate(spec, root)  # the publishers' files: their hashes are all there is to check
    return []


def describe(data_dir: PathLike | None = None) -> list[Row]:
    """All sets, present or not. Looks at headers only, except that publishers' files that are not yet prepared are hashed."""
    return [_row(spec, data_root(data_dir)) for spec in SETS.values()]


def _row(spec: DataSet, root: Path) -> Row:
    known = {k: str([n, *(spec.shape or ())]) for k, n in spec.splits.items()}
    kind = "stand-in" if spec.stand_in else "real"

    def row(present: bool, complete: bool | None, splits: dict[str, str], folder: Path | None, note: str) -> Row:
        return Row(spec.name, kind, present, complete, splits, spec.licence, spec.source, folder, note)

    if spec.embedded:
        return row(True, True, known, None, "inside scikit-learn")
    if folder := prepared.find(root, spec.name):
        try:
            found = prepared.check(folder, spec)
        except UserError as error:
            return row(False, None, known, folder, str(error))
        shapes = {k: str((a.get("images") or next(iter(a.values()))).shape) for k, a in found.splits.items()}
        return row(True, found.complete, shapes, folder, "; ".join(found.deviations))
    sound, damaged, absent = publishers.survey(spec, root)
    if sound and not damaged and not absent:
        folder = next(iter(sound.values())).parent
        return row(True, True, known, folder, "the publishers' files; prepared on first use")
    get = f"capslib data fetch {spec.name}" if spec.files else "cannot be fetched yet"
    found = [*damaged, *(f"{name} is missing" for name in absent)] if damaged or sound else [get]
    return row(False, None, known, None, "; ".join(found))
