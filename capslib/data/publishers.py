"""The publishers' own files: finding them, checking them, downloading them, and preparing folders from them."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from capslib.data import prepared
from capslib.data.readers import read_idx
from capslib.data.registry import DataSet, File
from capslib.errors import UserError

TIMEOUT = (5, 60)  # seconds to connect, seconds of silence
DOWNLOADS = ".downloads"


def flaw(path: Path, file: File) -> str:
    """What is wrong with a copy of a file; empty if its size and hash are as published."""
    try:
        size = path.stat().st_size
        if file.size is not None and size != file.size:
            return f"{path} is damaged: expected {file.size:,} bytes, found {size:,}"
        algorithm, _, expected = file.hash.partition(":")
        with path.open("rb") as handle:
            found = hashlib.file_digest(handle, algorithm).hexdigest()
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return "" if found == expected else f"{path} is damaged: expected {algorithm} {expected}, found {found} ({size:,} bytes)"


def _copies(spec: DataSet, file: File, root: Path) -> list[Path]:
    """Where a copy of a file may lie, in order of preference: put there by hand, then left by an interrupted download."""
    places = (*prepared.spellings(root, spec.name), root / DOWNLOADS / spec.name)
    return [path for place in places if (path := place / file.name).exists()]


def survey(spec: DataSet, root: Path) -> tuple[dict[str, Path], list[str], list[str]]:
    """Sound copies of the publishers' files under ``root`` by name, what is wrong with other copies, and names without any."""
    sound, damaged, absent = {}, [], []
    for file in spec.all_files:
        copies = _copies(spec, file, root)
        flaws = [flaw(path, file) for path in copies]
        if "" in flaws:
            sound[file.name] = copies[flaws.index("")]
        elif flaws:
            damaged += flaws
        else:
            absent.append(file.name)
    return sound, damaged, absent


def locate(spec: DataSet, root: Path) -> dict[str, Path]:
    """Sound copies of all the publishers' files under ``root``, by name.

    Raises UserError that says what is missing or damaged, where it comes from, how to get it and where to put it.
    """
    sound, damaged, absent = survey(spec, root)
    place = root / spec.name
    if not spec.files:
        raise UserError(
            f"The data set {spec.name} is not in {root}, and `capslib data fetch` cannot get it yet. "
            f"Put a prepared folder (SPLIT/ARRAY.npy and manifest.json) at {place}; the set comes from {spec.source}."
        )
    if damaged or absent:
        lines = [
            f"The data set {spec.name} is not in {root}, or not whole.",
            *(f"  {line}" for line in damaged),
            *(f"  {name} is missing" for name in absent),
            f"The files come from {' or '.join(spec.mirrors)}",
            f"Run `capslib data fetch {spec.name}`, or put them into {place}. "
            "Data in another folder is found with --data-dir or $CAPSLIB_DATA.",
        ]
        raise UserError("\n".join(lines))
    return sound


def _read(spec: DataSet, files: dict[str, Path]) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    for split, (images_file, labels_file) in spec.files.items():
        count, (_, height, width) = spec.splits[split], spec.shape
        images = read_idx(files[images_file.name], dtype="uint8", shape=(count, height, width))
        labels = read_idx(files[labels_file.name], dtype="uint8", shape=(count,))
        if labels.max() >= len(spec.classes):
            raise UserError(f"{files[labels_file.name]} has label {labels.max()}, there are {len(spec.classes)} classes.")
        yield split, {"images": images[:, None], "labels": labels.astype(np.int64)}


def _write(spec: DataSet, files: dict[str, Path], root: Path) -> Path:
    about = {"source": spec.source, "licence": spec.licence, "complete": True, "deviations": []}
    return prepared.write(root, spec.name, about, _read(spec, files))


def _whole(spec: DataSet, root: Path) -> Path | None:
    """The prepared folder of a set if it is sound, as far as a quick check goes, and complete."""
    folder = prepared.find(root, spec.name)
    try:
        return folder if folder and prepared.check(folder, spec).complete else None
    except UserError:
        return None


def prepare(spec: DataSet, files: dict[str, Path], roots: tuple[Path, ...]) -> Path:
    """Prepare a set from sound files in the first of ``roots`` that can be written. What is already there is used.

    Raises UserError if none of ``roots`` can be written.
    """
    for root in roots:
        if prepared.writable(root) and prepared.writable(root / spec.name):
            with prepared.lock(root, spec.name):
                return _whole(spec, root) or _write(spec, files, root)
    raise UserError(f"{spec.name} cannot be prepared: none of {', '.join(map(str, roots))} can be written.")


def _download(spec: DataSet, file: File, root: Path, progress: bool) -> Path:
    """One file from the first mirror that gives it whole. Raises UserError if none does; nothing damaged stays behind."""
    import pooch
    from tqdm import tqdm

    folder, failures = root / DOWNLOADS / spec.name, [flaw(path, file) for path in _copies(spec, file, root)]
    for base in spec.mirrors:
        bar = tqdm(desc=file.name, total=file.size or 1, unit="B", unit_scale=True, disable=not progress)
        # Asked for as it is: a server that packs for transport would have the client unpack the .gz itself.
        http = pooch.HTTPDownloader(progressbar=bar, timeout=TIMEOUT, headers={"Accept-Encoding": "identity"}, chunk_size=2**16)
        level = pooch.get_logger().level
        pooch.get_logger().setLevel("WARNING")  # the bar already says what is going on
        try:
            return Path(pooch.retrieve(base + file.name, file.hash, fname=file.name, path=folder, downloader=http))
        except (OSError, ValueError) as error:  # requests' errors are OSErrors; a wrong hash is a ValueError
            bar.leave = False
            reason = getattr(error.args[0], "reason", error) if error.args else error  # the cause inside "max retries exceeded"
            failures.append(f"{base}{file.name}\n    {' '.join(str(reason).split())[:400]}")
        finally:
            bar.close()
            pooch.get_logger().setLevel(level)
    raise UserError(
        "\n".join(
            [
                f"{file.name} of {spec.name} could not be downloaded:",
                *(f"  {line}" for line in failures),
                f"Get it another way, put it into {root / spec.name}, and run `capslib data fetch {spec.name}` again; "
                f"its {file.hash.replace(':', ' must be ', 1)}.",
            ]
        )
    )


def fetch(spec: DataSet, root: Path, progress: bool = True) -> Path:
    """Download what is missing of a set, prepare it under ``root``, and return its folder.

    Files that were put into ``ROOT/NAME`` by hand are used if they are sound. A complete prepared set is left alone; a partial
    or damaged one is replaced once the new one is whole. Raises UserError if a file cannot be had or ``root`` cannot be written.
    """
    if not spec.files:
        locate(spec, root)  # says how the set is to be had
    if not (prepared.writable(root) and prepared.writable(root / spec.name)):
        raise UserError(f"{root} cannot be written. Choose another folder with --data-dir or $CAPSLIB_DATA.")
    with prepared.lock(root, spec.name):
        if folder := _whole(spec, root):
            return folder
        sound, _, _ = survey(spec, root)
        files = {f.name: sound.get(f.name) or _download(spec, f, root, progress) for f in spec.all_files}
        folder = _write(spec, files, root)
        shutil.rmtree(root / DOWNLOADS / spec.name, ignore_errors=True)  # the arrays have their own hashes now
    return folder
