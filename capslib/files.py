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

__all__ = [
    "as_folder",
    "check_writable",
    "leftovers",
    "locked",
    "set_aside",
    "write_atomically",
]


def as_folder(name: Any) -> Any:
    """Return the folder of this name. None, or a path, is returned as it is.

    Raises :class:`UserError` for a name that is empty (which would stand for the working
    folder), that is no Unicode text (no record could hold it), or that begins with an unknown
    user, ``~somebody``.
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
            f"{name!r} names no folder: give one to --data-dir, --results-dir or its variable, "
            "or leave it out."
        )
    return path


@contextlib.contextmanager
def locked(path: Path, **options: Any) -> Iterator[None]:
    """Hold the lock file at ``path``, which any user may take.

    ``options`` go to :meth:`filelock.FileLock.acquire`, which may raise Timeout. The system
    releases the lock if the process dies. Raises :class:`UserError` where the file cannot be
    opened.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path, mode=0o666)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(**options)
    except Timeout:
        raise
    except OSError as error:
        raise UserError(
            f"{path} cannot be locked: {error.strerror or error}. "
            "Let it be written, or name another folder."
        ) from None
    try:
        yield
    finally:
        lock.release()


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: beside its place, flushed to disk, then moved there.

    Removes what processes that were killed an hour ago or earlier left of writes of this file.
    Raises :class:`UserError` where the file cannot be written; what was at ``path`` before is
    then still there.
    """
    try:
        try:
            _write(path, data)
        except FileNotFoundError:
            _write(path, data)  # somebody may clean up around us
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror or error}. "
            "What was there before is untouched. Make room there, or see to it that the "
            "folder can be written; then give the same command again, and it goes on from what "
            "it finds."
        ) from None


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in leftovers(path.parent, path.name):
        leftover.unlink(missing_ok=True)
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


def check_writable(folder: Path, content: str, advice: str) -> None:
    """Raise :class:`UserError` unless files can be written in a folder, there or to be made.

    The message says that the ``content`` cannot be written there, and gives the ``advice``.
    Leaves nothing behind.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            folder.lstat()  # raises OSError for a name that is too long
        parent = folder.absolute()
        while not os.path.lexists(parent):
            parent = parent.parent
        # Only trying it gives a reliable answer, and a full disk still accepts an empty file.
        with tempfile.TemporaryFile(dir=parent) as file:
            file.write(bytes(65_536))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UserError(
            f"{content} cannot be written to {folder}: {error.strerror}. {advice}"
        ) from None


def leftovers(folder: Path, name: str = "") -> list[Path]:
    """Return the temporary files that killed processes left of the file ``name``, or of all.

    Only files older than an hour count: no write takes that long.
    """
    paths = []
    for path in folder.glob(f".{glob.escape(name) or '*'}.*.part"):
        with contextlib.suppress(FileNotFoundError):  # it has been moved into place
            if time.time() - path.stat().st_mtime > 3_600:
                paths.append(path)
    return paths


def set_aside(path: Path, reason: str) -> None:
    """Move a damaged file out of the way, never over an earlier one, and notify the user."""
    target = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
    result = f"it was set aside as {target.name} and is not used"
    try:
        os.replace(path, target)
    except FileNotFoundError:
        result = "another process has set it aside"
    except OSError as error:
        result = f"it is not used, and could not be set aside: {error.strerror}"
    notify(f"{path} cannot be used ({reason}); {result}.")
