"""The folder that keeps records, and how files get there: whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from capslib.errors import UserError
from capslib.trials import Record, Trial


def project_root() -> Path:
    """The book's folder: the nearest one above the working folder with a ``_toc.yml``, else the working folder."""
    here = Path.cwd()
    return next((p for p in (here, *here.parents) if (p / "_toc.yml").exists()), here)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: beside its place, flushed to the disk, then moved there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
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


def set_aside(path: Path, why: str) -> Path:
    """Move a damaged file out of the way, never over an earlier one, and say so in a warning."""
    place = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
    os.replace(path, place)
    warnings.warn(f"{path} is damaged ({why}); it was set aside as {place.name} and is not used.", stacklevel=3)
    return place


class Store:
    """A folder of records, ``ROOT/PAPER/EXPERIMENT/KEY.json``."""

    def __init__(self, root: str | os.PathLike[str] | None = None):
        self.root = Path(root) if root is not None else Path(os.environ.get("CAPSLIB_RESULTS", project_root() / "results"))

    def path(self, trial: Trial) -> Path:
        return self.root / trial.paper / trial.experiment / f"{trial.key}.json"

    def paths(self, paper: str | None = None) -> list[Path]:
        """The files of all records, sound or not, in a fixed order."""
        return sorted(self.root.glob(f"{paper or '*'}/*/*.json"))

    def checkpoint(self, trial: Trial) -> Path:
        return self.root / ".checkpoints" / f"{trial.key}.pt"

    def check_writable(self) -> None:
        """Raise :class:`UserError` unless a file can be made here. Asking the file system is the only test that holds."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.root):
                pass
        except OSError as error:
            raise UserError(
                f"Results cannot be written to {self.root}: {error.strerror}. Choose another folder with --results-dir."
            ) from None

    def get(self, trial: Trial) -> Record | None:
        """The record of a trial, or None. A record that cannot be read or belongs to another trial is set aside."""
        path = self.path(trial)
        if not path.exists():
            return None
        record = self._read(path)
        if record is not None and record.trial != trial:
            set_aside(path, "its trial is not the one that its name stands for")
            return None
        return record

    def done(self, trial: Trial) -> bool:
        """Whether the trial needs no further run: it ended, well or in a NaN that would come again."""
        record = self.get(trial)
        return record is not None and record.exit in ("ok", "nan")

    def put(self, record: Record) -> Path:
        path = self.path(record.trial)
        fields = record.model_dump(mode="json")  # one line a field: readable, and a curve is not a thousand lines
        lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in fields.items())
        write_atomically(path, f"{{\n{lines}\n}}\n".encode())
        return path

    def records(self, paper: str | None = None) -> Iterator[Record]:
        """All sound records, in a fixed order."""
        for path in self.paths(paper):
            if (record := self._read(path)) is not None:
                yield record

    def _read(self, path: Path) -> Record | None:
        try:
            return Record.model_validate_json(path.read_bytes())
        except (ValidationError, ValueError) as error:
            set_aside(path, str(error).splitlines()[0])
            return None

    def problems(self, paper: str | None = None) -> list[str]:
        """What a reviewer has to know before taking records in: one line for each thing that is wrong. Moves nothing."""
        found = []
        for path in self.paths(paper):
            name = path.relative_to(self.root)
            try:
                record = Record.model_validate_json(path.read_bytes())
            except ValueError as error:
                found.append(f"{name}: not a valid record: {str(error).splitlines()[0]}")
                continue
            trial = record.trial
            if trial.key != record.key or path.stem != record.key:
                found.append(f"{name}: its trial hashes to {trial.key}, the file says {record.key}")
            if path.parent != self.root / trial.paper / trial.experiment:
                found.append(f"{name}: belongs in {trial.paper}/{trial.experiment}")
            if record.finished < record.started:
                found.append(f"{name}: finished before it started")
            if record.exit == "ok" and not record.metrics:
                found.append(f"{name}: ended well but holds no metric")
            if record.code.dirty:
                found.append(f"{name}: run from a checkout with uncommitted changes")
        found += [f"{p.relative_to(self.root)}: set aside as damaged" for p in sorted(self.root.rglob("*.damaged-*"))]
        return found
