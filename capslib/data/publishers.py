"""Find, check and download the publishers' own files, and prepare folders from them."""

from __future__ import annotations

import os
from pathlib import Path

import pooch
from filelock import FileLock

from capslib.data import prepared
from capslib.data.readers import Splits
from capslib.data.registry import DataSet
from capslib.errors import UserError


def survey(spec: DataSet, root: Path) -> tuple[dict[str, Path], list[str]]:
    """Paths of the sound files below ``root`` by name, and one line for each missing or damaged file."""
    sound, problems = {}, []
    for name, known in spec.files.items():
        algorithm, _, expected = known.partition(":")
        places = (root / spec.name / name, root / spec.name.replace("_", "-") / name)  # some publishers write a hyphen
        path = next((p for p in places if p.is_file()), None)
        if path is None:
            problems.append(f"{name} is missing")
        elif not known or (found := pooch.file_hash(path, algorithm)) == expected:
            sound[name] = path
        else:
            size = f"{path.stat().st_size:,} bytes"
            problems.append(f"{path} is truncated or corrupted: expected {algorithm} {expected}, found {found} ({size})")
    return sound, problems


def prepare(spec: DataSet, root: Path, download: bool) -> Path:
    """Prepare a set from the publishers' files below ``root`` and return its folder, in the cache if ``root`` is read-only.

    ``download`` allows fetching missing files. Raises UserError if files are missing or damaged or nothing can be written; the
    message says which files, where they come from, how to get them and where to put them.
    """
    place = root / spec.name
    if not spec.files:
        raise UserError(
            f"The data set {spec.name} is not in {root}, and `capslib data fetch` cannot get it yet. "
            f"Put a prepared folder (SPLIT/ARRAY.npy and manifest.json) at {place}; the set comes from {spec.source}."
        )
    try:
        sound, problems = survey(spec, root)
        if problems and not (download and spec.mirrors):
            lines = "".join(f"\n  {line}" for line in problems)
            how = f"Run `capslib data fetch {spec.name}`, or put them" if spec.mirrors else "Get them by hand, and put them"
            raise UserError(
                f"The data set {spec.name} is missing from {root}, or incomplete.{lines}\n"
                f"The files come from {' or '.join(spec.mirrors or [spec.source])}\n"
                f"{how} into {place}. Name another data folder with --data-dir or $CAPSLIB_DATA."
            )
        if problems and _read_only(place):
            raise UserError(f"{place} cannot be written. Choose another folder with --data-dir or $CAPSLIB_DATA.")
        folder = pooch.os_cache("capslib") / spec.name if _read_only(place) else place
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / f".{spec.name}.lock"):  # the system releases it if the process dies
            if not prepared.exists(folder):  # another process may have been quicker
                files = [sound.get(name) or _download(spec, name, folder) for name in spec.files]
                about = {"source": spec.source, "licence": spec.licence, "complete": True, "deviations": list(spec.deviations)}
                prepared.write(folder, about, _read(spec, files))
    except OSError as error:
        raise UserError(f"{spec.name} cannot be prepared in {root}: {error}.") from None
    return folder


def _read(spec: DataSet, files: list[Path]) -> Splits:
    """The arrays of one split after another. Raises UserError where the files have another form than the publishers'."""
    try:
        yield from spec.read(files, spec.splits)
    except Exception as error:  # whatever the bytes of a foreign file happen to break
        raise UserError(
            f"The files of {spec.name} in {files[0].parent} cannot be read: {type(error).__name__}: {error}"
        ) from error


def _read_only(place: Path) -> bool:
    # Respect the mark even as root, who could write anyway.
    folders = [p for p in (place, place.parent) if p.exists()]
    return any(not os.access(p, os.W_OK) or not p.stat().st_mode & 0o222 for p in folders)


def _download(spec: DataSet, name: str, folder: Path) -> Path:
    """Download one file from the first mirror that delivers it intact. Raises UserError if none does, and keeps no damaged file."""
    # Without this header a server may compress in transit, and the client would unpack the .gz itself.
    headers = {"Accept-Encoding": "identity"}
    http = pooch.HTTPDownloader(progressbar=True, chunk_size=2**16, timeout=(5, 60), headers=headers)
    failures = ""
    for base in spec.mirrors:
        address = base + spec.paths.get(name, name)
        try:
            return Path(pooch.retrieve(address, spec.files[name], fname=name, path=folder, downloader=http))
        except (OSError, ValueError) as error:  # requests' errors are OSErrors; a wrong hash is a ValueError
            failures += f"\n  {address}\n    {error}"
    raise UserError(
        f"{name} of {spec.name} could not be downloaded:{failures}\n"
        f"Get it another way, put it into {folder}, and run `capslib data fetch {spec.name}` again; "
        f"its {spec.files[name].replace(':', ' must be ')}."
    )
