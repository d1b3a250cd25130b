"""Find, check and download the publishers' own files, and prepare folders from them."""

from __future__ import annotations

import time
from pathlib import Path

import pooch
from tqdm import tqdm

from capslib.data import prepared
from capslib.data.readers import Splits
from capslib.data.registry import DataSet
from capslib.errors import UserError
from capslib.files import locked

__all__ = ["STALL_BYTES", "STALL_SECONDS", "prepare", "survey"]


def survey(spec: DataSet, root: Path) -> dict[str, str]:
    """Return a line for each file that is missing or damaged below ``root``, by its name."""
    problems = {}
    for name, published in spec.files.items():
        path = root / spec.name / name
        if not path.exists():
            problems[name] = f"{name} is missing"
        elif not path.is_file():
            problems[name] = f"{path} is no regular file: remove it"
        elif published:
            algorithm, expected = published.split(":")
            actual = pooch.file_hash(path, algorithm)
            if actual != expected:
                problems[name] = (
                    f"{path} is truncated or corrupted: expected {algorithm} {expected}, "
                    f"found {actual} ({path.stat().st_size:,} bytes)"
                )
    return problems


def prepare(spec: DataSet, root: Path, download: bool) -> Path:
    """Prepare a set from the publishers' files below ``root`` and return its folder.

    ``download`` allows fetching missing files. Raises UserError if files are missing or damaged
    or nothing can be written; the message says which files, where they come from, how to get
    them and where to put them.
    """
    folder = root / spec.name
    if not spec.files:
        raise UserError(
            f"The data set {spec.name} is not in {root}, and `capslib data fetch` cannot get "
            "it yet. Put a prepared folder (SPLIT/ARRAY.npy and manifest.json) at "
            f"{folder}; the set comes from {spec.source}."
        )
    try:
        problems = survey(spec, root)
        if problems and not (download and spec.mirrors):
            raise _incomplete(spec, root, problems)
        folder.mkdir(parents=True, exist_ok=True)
        with locked(root / f".{spec.name}.lock"):
            if not prepared.exists(folder):  # another process may have been quicker
                for name in problems:
                    _download(spec, name, folder)
                fields = {
                    "source": spec.source,
                    "licence": spec.licence,
                    "complete": True,
                    "deviations": list(spec.deviations),
                }
                prepared.write(folder, fields, _read(spec, folder))
    except OSError as error:
        raise UserError(
            f"{spec.name} cannot be prepared in {folder}: {error}. "
            "Choose another data folder with --data-dir or $CAPSLIB_DATA."
        ) from None
    return folder


def _incomplete(spec: DataSet, root: Path, problems: dict[str, str]) -> UserError:
    lines = "\n  ".join(problems.values())
    sources = " or ".join(spec.mirrors or [spec.source])
    advice = "Get them by hand, and put them"
    if spec.mirrors:
        advice = (
            f"Run `capslib data fetch {spec.name}`, "
            "load the set in Python with download=True, or put them"
        )
    return UserError(
        f"The data set {spec.name} is missing from {root}, or incomplete.\n  {lines}\n"
        f"The files come from {sources}\n"
        f"{advice} into {root / spec.name}. "
        "Name another data folder with --data-dir or $CAPSLIB_DATA."
    )


def _read(spec: DataSet, folder: Path) -> Splits:
    """Yield the arrays of each split. Raises UserError where the files have another form."""
    try:
        yield from spec.read([folder / name for name in spec.files], spec.splits)
    except Exception as error:  # whatever the bytes of a foreign file happen to break
        reason = f"{type(error).__name__}: {error}"
        raise UserError(
            f"The files of {spec.name} in {folder} cannot be read: {reason}"
        ) from error


STALL_SECONDS = 60
STALL_BYTES = 2**16
"""A transfer that brings fewer bytes than that in so many seconds has stalled."""


def _transfer(address: str, path: str, largest: int) -> None:
    """Write what an address delivers into a file.

    Raises OSError for more than ``largest`` bytes. Where the transfer breaks off or stalls,
    raises OSError or urllib3's HTTPError.
    """
    import requests  # takes a moment, and only a download needs it

    def leave_body(response: requests.Response, **_: object) -> None:
        if response.is_redirect:  # whose body requests would read to its end
            response.close()

    # A server that compresses in transit would deliver other bytes than those whose hash is
    # published.
    headers = {"Accept-Encoding": "identity"}
    timeouts = 5, STALL_SECONDS  # to connect, and between two parts
    hooks = {"response": leave_body}
    options = dict(headers=headers, timeout=timeouts, stream=True, hooks=hooks)
    with requests.get(address, **options) as response:
        response.raise_for_status()
        promised = int(response.headers.get("Content-Length", 0))
        received, required = 0, STALL_BYTES
        deadline = time.monotonic() + STALL_SECONDS
        bar = tqdm(total=promised, unit="B", unit_scale=True, ncols=79)
        with open(path, "wb") as file, bar:
            while part := response.raw.read1(2**16):
                file.write(part)
                bar.update(len(part))
                received += len(part)
                if max(received, promised) > largest:
                    raise OSError(
                        f"it has more than {largest:,} bytes, so it is not the publisher's file"
                    )
                if time.monotonic() > deadline:
                    if received < required:
                        raise OSError(f"the transfer has stalled after {received:,} bytes")
                    required = received + STALL_BYTES
                    deadline = time.monotonic() + STALL_SECONDS


def _download(spec: DataSet, name: str, folder: Path) -> None:
    """Download one file from the first mirror that delivers it intact.

    Raises UserError if none does, and keeps no damaged file.
    """
    from urllib3.exceptions import HTTPError

    def transfer(address: str, path: str, _: object) -> None:
        _transfer(address, path, spec.largest)

    path = folder / name
    if path.exists() and not path.is_file():
        raise UserError(
            f"{path} is no regular file: remove it, and run `capslib data fetch {spec.name}` "
            "again."
        )
    failures = ""
    for base in spec.mirrors:
        address = base + spec.paths.get(name, name)
        try:
            pooch.retrieve(
                address, spec.files[name], fname=name, path=folder, downloader=transfer
            )
            return
        # requests' errors are OSErrors; a wrong hash is a ValueError
        except (OSError, ValueError, HTTPError) as error:
            failures += f"\n  {address}\n    {error}"
    algorithm, published = spec.files[name].split(":")
    raise UserError(
        f"{name} of {spec.name} could not be downloaded:{failures}\n"
        f"Get it another way, put it into {folder}, and run `capslib data fetch {spec.name}` "
        f"again; its {algorithm} must be {published}."
    )
