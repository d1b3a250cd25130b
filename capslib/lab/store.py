"""The folder that keeps records."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from capslib import papers
from capslib.data.registry import SETS
from capslib.errors import UserError, notify
from capslib.files import check_writable, folder, set_aside, write_atomically
from capslib.lab.records import Record, faults
from capslib.papers.experiment import Trial


def book_above() -> Path | None:
    """Return the nearest folder with a ``_toc.yml``, from the working folder upwards, or None."""
    here = Path.cwd()
    return next(
        (folder for folder in (here, *here.parents) if (folder / "_toc.yml").exists()), None
    )


def project_root() -> Path:
    """Return the book's folder: the one above the working folder, else the checkout that
    capslib comes from, else the working folder.
    """
    above, checkout = book_above(), Path(__file__).parents[2]
    if above is not None:
        return above
    return checkout if (checkout / "_toc.yml").exists() else Path.cwd()


LARGEST_FILE = 2**26
"""Bytes that a record can have: hundreds of times as many as any has."""


class Damaged(ValueError):
    """A file that is not the record its name promises. The message says why."""


class Newer(UserError):
    """A record whose schema this capslib does not know yet."""


def read_record(path: Path) -> Record:
    """Read one record. Changes nothing.

    Raises :class:`Damaged`, :class:`Newer`, or :class:`OSError` where the file cannot be read.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(
            errno.EINVAL, "it is no file but a pipe or a device"
        )  # reading which might never end
    size = path.stat().st_size
    if size > LARGEST_FILE:
        raise Damaged(f"it has {size:,} bytes, and no record has more than {LARGEST_FILE:,}")
    content = path.read_bytes()
    try:
        record = Record.model_validate_json(content, strict=True)
    except ValidationError as error:
        version = next(
            (e["input"] for e in error.errors() if e["loc"] == ("schema_version",)), 0
        )
        if isinstance(version, int) and version > Record.model_fields["schema_version"].default:
            raise Newer(
                f"{path} was written by a newer capslib; update capslib to use it."
            ) from None
        conflict = content.startswith(b"<<<<<<< ") or b"\n<<<<<<< " in content
        raise Damaged(
            "it holds the markers of a merge conflict" if conflict else reason(error)
        ) from None
    json.loads(content, object_pairs_hook=_each_once)
    if not record.trial.key == record.key == path.stem:
        raise Damaged(
            f"its trial hashes to {record.trial.key}, its key is {record.key}: it was edited or renamed"
        )
    return record


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(fields := dict(pairs)) < len(pairs):
        raise Damaged("it says something twice: a key occurs again")
    return fields


@functools.lru_cache(maxsize=4096)
def _unchanged(path: Path, *state: int) -> Record:
    """The record in a file, read once as long as inode, time and size of the file stay the
    same.
    """
    return read_record(path)


class Store:
    """A folder of records, ``ROOT/PAPER/EXPERIMENT/KEY.json``.

    Reading changes no file. Only :meth:`put` and :meth:`repair` set a damaged record aside.
    """

    def __init__(self, root: str | os.PathLike[str] | None = None):
        named = root if root is not None else os.environ.get("CAPSLIB_RESULTS")
        self.root = folder(named if named is not None else project_root() / "results")
        if named is None and book_above() is None:
            notify(
                f"No book is above this folder, so records are those in {self.root}: name --results-dir for others."
            )

    def path(self, trial: Trial) -> Path:
        return self.root / trial.paper / trial.experiment / f"{trial.key}.json"

    def paths(self, paper: str | None = None) -> list[Path]:
        """The files of all records, sound or not, in a fixed order."""
        return sorted(self.root.glob(f"{paper or '*'}/*/*.json"))

    @property
    def trainings(self) -> Path:
        """The folder of checkpoints and final weights, by the key of recipe and seed. It may be
        deleted at any time.
        """
        return self.root / ".trainings"

    def lock(self, trial: Trial) -> Path:
        """The file that a process locks while it runs the trial."""
        return self.root / ".locks" / f"{trial.key}.lock"

    def log(self, trial: Trial) -> Path:
        """The tracebacks of a trial that failed."""
        return self.root / ".logs" / f"{trial.key}.log"

    def check_writable(self) -> None:
        """Raise :class:`UserError` unless records can be written here. Makes no folder."""
        check_writable(
            self.root,
            "Results",
            "Make that folder writable, or choose another one with --results-dir or results_dir.",
        )

    def check_there(self) -> Store:
        """Itself. Raises :class:`UserError` for a folder that somebody named and that is not
        there, or is empty: the name is mistyped.
        """
        if self.root != project_root() / "results" and not any(self.root.glob("*")):
            raise UserError(
                f"There are no records in {self.root}: check --results-dir and $CAPSLIB_RESULTS, or leave them out."
            )
        return self

    def get(self, trial: Trial) -> Record | None:
        """The record of a trial; None where there is none, or, with a warning, where it is
        damaged.

        Raises :class:`Newer`, a :class:`UserError`, for a record of a newer capslib: its trial
        must not run again.
        """
        return self._read(self.path(trial))

    def put(self, record: Record) -> Path:
        """Write a record. A damaged file in its place is set aside first; a record of a newer
        capslib raises :class:`Newer`.
        """
        path = self.path(record.trial)
        self.repair(path)
        fields = record.model_dump(
            mode="json"
        )  # one line per field: easy to read, and a curve does not fill a thousand lines
        lines = ",\n".join(
            f" {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}"
            for name, value in fields.items()
        )
        write_atomically(path, f"{{\n{lines}\n}}\n".encode())
        return path

    def repair(self, path: Path) -> None:
        """Set a record aside if it is damaged, and warn. Raises :class:`Newer` for a record of
        a newer capslib.
        """
        try:
            read_record(path)
        except Damaged as why:
            set_aside(path, str(why))
        except OSError:  # there is no file, or nobody can tell whether it is damaged
            pass

    def repair_all(self, paper: str | None = None) -> None:
        """Set the damaged records of a paper (of all papers) aside. Leaves those of a newer
        capslib alone.
        """
        for path in self.paths(paper):
            with contextlib.suppress(Newer):
                self.repair(path)

    def records(self, paper: str | None = None, *, cut: bool = False) -> Iterator[Record]:
        """Yield all records that are used, in a fixed order; with ``cut`` also those of
        rehearsals.

        Warns of each file that it leaves out: one that is damaged, unreadable or of a newer
        capslib, or one with :meth:`objections`.
        """
        for path in self.paths(paper):
            try:
                record = self._read(path)
            except UserError as error:
                notify(str(error))
                continue
            if record is None or (record.exit == "cut" and not cut):
                continue
            objection = next(self.objections(path, record), None)
            if objection is None:
                yield record
            else:
                notify(f"{path} is not used: {objection}.")

    def objections(self, path: Path, record: Record) -> Iterator[str]:
        """Yield why the sound file at ``path`` counts for nothing, and what to do about it.

        The record contradicts itself, lies in another folder than its trial names, cannot have
        seen the data that it names, or is not what its experiment runs today. A record of an
        earlier revision may have a configuration that nobody knows any more.
        """
        trial = record.trial
        if path.parent != self.path(trial).parent:
            yield f"belongs in {trial.paper}/{trial.experiment}: move it there"
        yield from faults(record)
        yield from _of_data(record)
        experiment = papers.experiment_of(trial)
        if experiment is None:
            yield (
                f"there is no experiment {trial.paper}/{trial.experiment}: "
                "delete the file, or add the experiment"
            )
            return
        revision = experiment.revision
        if trial.revision > revision:
            yield (
                f"of revision {trial.revision}, but the experiment is at {revision}: "
                "add the newer experiment"
            )
        try:
            fields = papers.fields(trial)
        except ValidationError as error:
            if trial.revision == revision:
                yield (
                    f"not a configuration of {trial.experiment} ({reason(error)}): "
                    "raise its revision, or delete the file and run its trial again"
                )
            return
        changed = [
            name for name, value in record.config.items() if value != fields.get(name, value)
        ]
        if changed:
            yield (
                f"its config is not that of its trial ({', '.join(changed)}), so it was edited: "
                "restore it, or delete the file and run its trial again"
            )

    def _read(self, path: Path) -> Record | None:
        try:
            at = path.stat()
            record = _unchanged(path, at.st_ino, at.st_mtime_ns, at.st_size)
            new = (
                papers.fields(record.trial) if papers.known(record.trial) else {}
            )  # options that its experiment has had since
            return record.model_copy(update={"config": {**new, **record.config}})
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise UserError(
                f"{path} cannot be read: {error.strerror}. Make it readable first: nobody knows yet whether it is sound."
            ) from None
        except Damaged as why:
            notify(f"{path} is damaged ({why}) and is not used. {REPAIR}")
            return None


def _of_data(record: Record) -> Iterator[str]:
    """Yield why the data that a record names cannot be what its trial saw."""
    for data in record.data:
        if data.name not in SETS:
            yield f"there is no data set {data.name}: delete the file, or add the data set"
        elif data.stand_in != SETS[data.name].stand_in:
            kind = "no" if data.stand_in else "a"
            yield f"{data.name} is {kind} stand-in, but the record says otherwise: delete the file, and run its trial again"
    named = record.config.get("data")
    if (
        record.exit == "ok"
        and named is not None
        and named not in [data.name for data in record.data]
    ):
        yield f"trained on {named}, but holds no fingerprint of it: delete the file, and run its trial again"


REPAIR = "`capslib records check --repair` sets it aside; `capslib run` sets it aside and runs its trial again."


def reason(error: ValidationError) -> str:
    """Name the first fault of a record in one line: ``exit: Field required``."""
    first = error.errors(include_url=False)[0]
    return ": ".join(part for part in (".".join(map(str, first["loc"])), first["msg"]) if part)
