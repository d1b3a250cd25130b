"""The folder that keeps records."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from capslib import papers
from capslib.data.registry import SETS
from capslib.errors import UserError, notify
from capslib.files import as_folder, check_writable, set_aside, write_atomically
from capslib.lab.records import UNFINISHED, Record, faults, key_count
from capslib.papers.experiment import Trial

STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
"""A string in JSON."""
LARGEST_FILE = 2**26
"""Bytes that a record can have: hundreds of times as many as any has."""
TABLE_OF_CONTENTS = "_toc.yml"
"""The file that tells the folder of a book from others."""
REPAIR = (
    "`capslib records check --repair` sets it aside; "
    "`capslib run` sets it aside and runs its trial again."
)


def book_above() -> Path | None:
    """Return the nearest folder with a table of contents, from the working folder upwards."""
    working = Path.cwd()
    for parent in (working, *working.parents):
        if (parent / TABLE_OF_CONTENTS).exists():
            return parent
    return None


def project_root() -> Path:
    """Return the folder of the book.

    It is above the working folder, or else the checkout that capslib comes from. Where there is
    no book, it is the working folder.
    """
    checkout = Path(__file__).parents[2]
    if not (checkout / TABLE_OF_CONTENTS).exists():
        checkout = Path.cwd()
    return book_above() or checkout


class Damaged(ValueError):
    """A file that is not the record its name promises. The message says why."""


class Newer(UserError):
    """A record whose schema this capslib does not know yet."""


def read_record(path: Path) -> Record:
    """Return the record in a file. Changes nothing.

    Raises :class:`Damaged`, :class:`Newer`, or :class:`OSError` where the file cannot be read.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        # Reading it might never end.
        raise OSError(errno.EINVAL, "it is no file but a pipe or a device")
    size = path.stat().st_size
    if size > LARGEST_FILE:
        raise Damaged(f"it has {size:,} bytes, and no record has more than {LARGEST_FILE:,}")
    content = path.read_bytes()
    try:
        record = Record.model_validate_json(content, strict=True)
    except ValidationError as error:
        if _is_newer(error):
            message = f"{path} was written by a newer capslib; update capslib to use it."
            raise Newer(message) from None
        if re.search(rb"^<<<<<<< ", content, re.MULTILINE):
            raise Damaged("it holds the markers of a merge conflict") from None
        raise Damaged(reason(error)) from None
    # The parser keeps the last of two equal keys. A colon outside strings ends a key.
    if STRING.sub(b"", content).count(b":") > key_count(record):
        raise Damaged("it says something twice: a key occurs again")
    if not record.trial.key == record.key == path.stem:
        raise Damaged(
            f"its trial hashes to {record.trial.key}, its key is {record.key}: "
            "it was edited or renamed"
        )
    return record


def _is_newer(error: ValidationError) -> bool:
    """Return whether a record has a later schema than this capslib knows."""
    for fault in error.errors():
        if fault["loc"] == ("schema_version",):
            version = fault["input"]
            latest = Record.model_fields["schema_version"].default
            return isinstance(version, int) and version > latest
    return False


def reason(error: ValidationError) -> str:
    """Return the first fault of a record in one line: ``exit: Field required``."""
    fault = error.errors(include_url=False)[0]
    field = ".".join(map(str, fault["loc"]))
    return f"{field}: {fault['msg']}" if field else fault["msg"]


@functools.lru_cache(maxsize=32_768)
def _remembered(path: Path, *state: int) -> Record:
    """Return the record in a file.

    It is read once as long as inode, time and size of the file stay the same.
    """
    return read_record(path)


class Store:
    """A folder of records, ``ROOT/PAPER/EXPERIMENT/KEY.json``.

    Reading changes no file. Only writing and repair set a damaged record aside.
    ``remember`` keeps what was read in memory, for whoever looks several times.
    """

    def __init__(self, root: str | os.PathLike[str] | None = None, *, remember: bool = True):
        name = os.environ.get("CAPSLIB_RESULTS") if root is None else root
        self.root = as_folder(project_root() / "results" if name is None else name)
        self.remember = remember
        self.is_default = name is None
        if self.is_default and book_above() is None:
            notify(
                f"No book is above this folder, so records are those in {self.root}: "
                "name --results-dir for others."
            )

    def path(self, trial: Trial) -> Path:
        """Return the file of a trial's record."""
        return self.root / trial.paper / trial.experiment / f"{trial.key}.json"

    def paths(self, paper: str | None = None) -> list[Path]:
        """Return the files of all records, sound or not, in a fixed order."""
        return sorted(self.root.glob(f"{paper or '*'}/*/*.json"))

    @property
    def trainings(self) -> Path:
        """The folder of checkpoints and final weights, by the key of recipe and seed.

        It may be deleted at any time.
        """
        return self.root / ".trainings"

    def lock(self, trial: Trial) -> Path:
        """Return the file that a process locks while it runs the trial."""
        return self.root / ".locks" / f"{trial.key}.lock"

    def log(self, trial: Trial) -> Path:
        """Return the file with the tracebacks of a trial that failed."""
        return self.root / ".logs" / f"{trial.key}.log"

    def check_writable(self) -> None:
        """Raise :class:`UserError` unless records can be written here. Makes no folder."""
        check_writable(
            self.root,
            "Results",
            "Make that folder writable, "
            "or choose another one with --results-dir or results_dir.",
        )

    def check_not_empty(self) -> Store:
        """Return the store. Raise UserError if a folder that the user named has no records.

        Its name is probably mistyped. Records that were set aside count.
        """
        if not self.is_default and not any(self.root.glob("*/*/*.json*")):
            raise UserError(
                f"There are no records in {self.root}: "
                "check --results-dir and $CAPSLIB_RESULTS, or leave them out."
            )
        return self

    def get(self, trial: Trial) -> Record | None:
        """Return the record of a trial.

        Return None where there is none, or, with a warning, where it is damaged. Raises
        :class:`UserError` for a record of a newer capslib, whose trial must not run again, and
        for a file that cannot be read.
        """
        return self._read(self.path(trial))

    def ended(self, trial: Trial) -> Record | None:
        """Return the record of a trial that ended, well or not.

        Return None of one that still has to run.
        """
        record = self.get(trial)
        return None if record is None or record.exit in UNFINISHED else record

    def put(self, record: Record) -> Path:
        """Write a record, one line a field, and return its file.

        A damaged file in its place is set aside first. Raises :class:`Newer` if a record of a
        newer capslib is there.
        """
        lines = []
        for name, value in record.model_dump(mode="json").items():
            lines.append(f" {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}")
        text = ",\n".join(lines)
        return self._write(record.trial, f"{{\n{text}\n}}\n".encode())

    def copy(self, source: Path, trial: Trial) -> Path:
        """Copy the sound record of a trial byte for byte, and return its file.

        What is in its place is treated as in :meth:`put`.
        """
        return self._write(trial, source.read_bytes())

    def _write(self, trial: Trial, content: bytes) -> Path:
        """Write the record of a trial, whole, and return its file."""
        path = self.path(trial)
        self.repair(path)
        write_atomically(path, content)
        return path

    def repair(self, path: Path) -> None:
        """Set a record aside if it is damaged, and warn.

        Raises :class:`Newer` for a record of a newer capslib.
        """
        try:
            read_record(path)
        except Damaged as damage:
            set_aside(path, str(damage))
        except OSError:
            pass  # There is no file, or nobody can tell whether it is damaged.

    def repair_all(self, paper: str | None = None) -> None:
        """Set the damaged records of a paper (of all papers) aside.

        Leaves those of a newer capslib alone.
        """
        for path in self.paths(paper):
            with contextlib.suppress(Newer):
                self.repair(path)

    def records(self, paper: str | None = None, *, cut: bool = False) -> Iterator[Record]:
        """Yield all records that are used, as :meth:`files` does, without their files."""
        for _, record in self.files(paper, cut=cut):
            yield record

    def files(
        self, paper: str | None = None, *, cut: bool = False
    ) -> Iterator[tuple[Path, Record]]:
        """Yield the files of all records that are used, in a fixed order, with these records.

        ``cut`` adds rehearsals. Warns of each other file that it leaves out: one that is
        damaged, unreadable or of a newer capslib, or one with :meth:`objections`.
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
                yield path, record
            else:
                notify(f"{path} is not used: {objection}.")

    def objections(self, path: Path, record: Record) -> Iterator[str]:
        """Yield why the sound file at ``path`` counts for nothing, and what to do about it.

        The record contradicts itself, lies in another folder than its trial names, or cannot
        have seen the data that it names. Or it was edited, or is of an experiment or a revision
        that this code lacks. A record of an earlier revision counts for no claim, and nothing
        objects to its configuration.
        """
        trial = record.trial
        if path.parent != self.path(trial).parent:
            yield f"belongs in {trial.paper}/{trial.experiment}: move it there"
        yield from faults(record)
        yield from _faults_of_data(record)
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
        if trial.revision != revision:
            return  # its fields and their defaults may have been others
        try:
            fields = papers.fields(trial)
        except ValidationError as error:
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
                f"its config is not that of its trial ({', '.join(changed)}), "
                "so it was edited: restore it, or delete the file and run its trial again"
            )

    def _read(self, path: Path) -> Record | None:
        """Return the record in a file; its ``config`` has fields that were added later, too.

        Such a field has the value of the arm today. Return None where there is no file, or,
        with a warning, where it is damaged. Raise :class:`UserError` where it cannot be read or
        is of a newer capslib.
        """
        try:
            if self.remember:
                state = path.stat()
                record = _remembered(path, state.st_ino, state.st_mtime_ns, state.st_size)
            else:
                record = read_record(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise UserError(
                f"{path} cannot be read: {error.strerror}. "
                "Make it readable first: nobody knows yet whether it is sound."
            ) from None
        except Damaged as damage:
            notify(f"{path} is damaged ({damage}) and is not used. {REPAIR}")
            return None
        if not papers.known(record.trial):
            return record
        config = {**papers.fields(record.trial), **record.config}
        return record.model_copy(update={"config": config})


def _faults_of_data(record: Record) -> Iterator[str]:
    """Yield why the data that a record names cannot be what its trial saw."""
    for data in record.data:
        if data.name not in SETS:
            yield f"there is no data set {data.name}: delete the file, or add the data set"
        elif data.stand_in != SETS[data.name].stand_in:
            article = "no" if data.stand_in else "a"
            yield (
                f"{data.name} is {article} stand-in, but the record says otherwise: "
                "delete the file, and run its trial again"
            )
    name = record.config.get("data")
    seen = [data.name for data in record.data]
    if record.exit == "ok" and name is not None and name not in seen:
        yield (
            f"trained on {name}, but holds no fingerprint of it: "
            "delete the file, and run its trial again"
        )
