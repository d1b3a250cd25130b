"""Find, check and download the publishers' own files, and prepare folders from them."""

from __future__ import annotations

from pathlib import Path

import pooch

from capslib.data import prepared
from capslib.data.readers import Splits
from capslib.data.registry import DataSet
from capslib.errors import UserError
from capslib.files import locked

__all__ = ["prepare", "survey"]


def survey(spec: DataSet, root: Path) -> dict[str, str]:
    """One line for each file that is missing or damaged in the set's folder below ``root``, by name."""
    problems = {}
    for name, known in spec.files.items():
        algorithm, _, expected = known.partition(":")
        path = root / spec.name / name
        if not path.is_file():
            problems[name] = f"{name} is missing"
        elif known and (found := pooch.file_hash(path, algorithm)) != expected:
            size = f"{path.stat().st_size:,} bytes"
            problems[name] = f"{path} is truncated or corrupted: expected {algorithm} {expected}, found {found} ({size})"
    return problems


def prepare(spec: DataSet, root: Path, download: bool) -> Path:
    """Prepare a set from the publishers' files below ``root`` and return its folder.

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
        problems = survey(spec, root)
        if problems and not (download and spec.mirrors):
            lines = "".join(f"\n  {line}" for line in problems.values())
            how = f"Run `capslib data fetch {spec.name}`, or put them" if spec.mirrors else "Get them by hand, and put them"
            raise UserError(
                f"The data set {spec.name} is missing from {root}, or incomplete.{lines}\n"
                f"The files come from {' or '.join(spec.mirrors or [spec.source])}\n"
                f"{how} into {place}. Name another data folder with --data-dir or $CAPSLIB_DATA."
            )
        place.mkdir(parents=True, exist_ok=True)
        with locked(root / f".{spec.name}.lock"):
            if not prepared.exists(place):  # another process may have been quicker
                for name in problems:
                    _download(spec, name, place)
                about = {"source": spec.source, "licence": spec.licence, "complete": True, "deviations": list(spec.deviations)}
                prepared.write(place, about, _read(spec, place))
    except OSError as error:
        raise UserError(
            f"{spec.name} cannot be prepared in {place}: {error}. Choose another data folder with --data-dir or $CAPSLIB_DATA."
        ) from None
    return place


def _read(spec: DataSet, place: Path) -> Splits:
    """The arrays of one split after another. Raises UserError where the files have another form than the publishers'."""
    try:
        yield from spec.read([place / name for name in spec.files], spec.splits)
    except Exception as error:  # whatever the bytes of a foreign file happen to break
        raise UserError(f"The files of {spec.name} in {place} cannot be read: {type(error).__name__}: {error}") from error


def _download(spec: DataSet, name: str, folder: Path) -> None:
    """Download one file from the first mirror that delivers it intact. Raises UserError if none does, and keeps no damaged file."""
    # Without this header a server may compress in transit, and the client would unpack the .gz itself.
    headers = {"Accept-Encoding": "identity"}
    http = pooch.HTTPDownloader(progressbar=True, chunk_size=2**16, timeout=(5, 60), headers=headers)
    failures = ""
    for base in spec.mirrors:
        address = base + spec.paths.get(name, name)
        try:
            pooch.retrieve(address, spec.files[name], fname=name, path=folder, downloader=http)
            return
        except (OSError, ValueError) as error:  # requests' errors are OSErrors; a wrong hash is a ValueError
            failures += f"\n  {address}\n    {error}"
    raise UserError(
        f"{name} of {spec.name} could not be downloaded:{failures}\n"
        f"Get it another way, put it into {folder}, and run `capslib data fetch {spec.name}` again; "
        f"its {spec.files[name].replace(':', ' must be ')}."
    )
