"""How files get onto a disk: whole or not at all, and checked when they are read back."""

from __future__ import annotations

import contextlib
import glob
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from capslib.errors import UserError, notify

__all__ = ["check_writable", "folder", "leftovers", "locked", "set_aside", "write_atomically"]


def folder(name: Any) -> Any:
    """Return the folder of this name, which may also be None or a path already.

    Raises :class:`UserError` for a name that is empty (which would stand for the working folder), that is no Unicode text (no
    record could hold it), or that begins with an unknown user, ``~somebody``.
    """
    if not isinstance(name, str):
        return name
    try:
        name.encode()
        path = Path(name).expanduser()
    except (UnicodeError, RuntimeError):
        path = None
    if path is None or not name.strip() or "\0" in name:
        raise UserError(
            f"{name!r} names no folder: give one to --data-dir, --results-dir or its variable, or leave it out."
        )
    return path


@contextlib.contextmanager
def locked(path: Path, **how: Any) -> Iterator[None]:
    """Hold the lock file at ``path``, which any user may take; ``how`` is for :meth:`filelock.FileLock.acquire`, which may raise Timeout.

    The system releases it if the process dies. Raises :class:`UserError` where it cannot be opened.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path, mode=0o666)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(**how)
    except OSError as error:
        if isinstance(error, Timeout):
            raise
        raise UserError(
            f"{path} cannot be locked: {error.strerror or error}. Let it be written, or name another folder."
        ) from None
    try:
        yield
    finally:
        lock.release()


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: beside its place, flushed to the disk, then moved there.

    Removes what killed processes left of writes of the same file an hour ago or earlier. Raises :class:`UserError` where the file cannot be
    written; what was at ``path`` before is still there then.
    """
    try:
        with contextlib.suppress(
            FileNotFoundError
        ):  # someone cleans up around us: once more, and then it is an error
            return _write(path, data)
        _write(path, data)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror or error}. What was there before is untouched. Make room there, or see to it "
            "that the folder can be written; then give the same command again, and it goes on from what it finds."
        ) from None


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in leftovers(path.parent, path.name):
        left.unlink(missing_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def check_writable(folder: Path, what: str, fix: str) -> None:
    """Raise :class:`UserError` unless files can be written in a folder that is there or can be made. Leaves nothing behind."""
    try:
        with contextlib.suppress(FileNotFoundError):
            folder.lstat()  # raises OSError for a name that is too long
        there = next(
            place
            for place in (folder.absolute(), *folder.absolute().parents)
            if os.path.lexists(place)
        )
        with tempfile.TemporaryFile(
            dir=there
        ) as file:  # only trying it gives a reliable answer
            file.write(bytes(65_536))  # a full disk still accepts an empty file
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UserError(
            f"{what} cannot be written to {folder}: {error.strerror}. {fix}"
        ) from None


def leftovers(folder: Path, name: str = "") -> list[Path]:
    """The temporary files that killed processes left in a folder, of the file ``name`` or of all: no write takes an hour."""
    found = []
    for path in folder.glob(f".{glob.escape(name) or '*'}.*.part"):
        with contextlib.suppress(FileNotFoundError):  # it is in its place by now
            if time.time() - path.stat().st_mtime > 3_600:
                found.append(path)
    return found


def set_aside(path: Path, why: str) -> Path | None:
    """Move a damaged file out of the way, never over an earlier one, and notify the user. Return its place, or None where it cannot
    be moved."""
    place = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
    what = f"it was set aside as {place.name} and is not used"
    try:
        os.replace(path, place)
    except FileNotFoundError:
        place, what = None, "another process has set it aside"
    except OSError as error:
        place, what = None, f"it is not used, and could not be set aside: {error.strerror}"
    notify(f"{path} cannot be used ({why}); {what}.")
    return place
