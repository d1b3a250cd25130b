"""What a reviewer must know before merging records: ``capslib records check``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple

from capslib import papers
from capslib.data.registry import SETS
from capslib.files import leftovers
from capslib.lab.ledger.deviations import deviations_of
from capslib.lab.provenance import revisions
from capslib.lab.records import Record
from capslib.lab.store import Damaged, Newer, Store, read_record


class Review(NamedTuple):
    """Problems, each a line that starts with its file, and notes, each with its file.

    A problem says how to fix it; a note asks for nothing.
    """

    problems: list[str]
    notes: list[tuple[str, str]]


def review(store: Store, paper: str | None = None) -> Review:
    """Check the records of one paper, or of all. Changes no file.

    Each is checked by itself, against the others, and against experiments, data and code. Only
    one record is in memory at a time.
    """
    unreadable, problems, differences, notes = [], [], [], []
    seen = _Seen()
    for path in store.paths(paper):
        name = str(path.relative_to(store.root))
        try:
            record = read_record(path)
        except Damaged as reason:
            unreadable.append(
                f"{name}: damaged ({reason}): "
                "restore it, or set it aside with --repair and run its trial again"
            )
        except Newer:
            unreadable.append(f"{name}: was written by a newer capslib: update capslib")
        except OSError as error:
            unreadable.append(
                f"{name}: cannot be read ({error.strerror}): make it readable, or delete it"
            )
        else:
            problems += [f"{name}: {text}" for text in store.objections(path, record)]
            problems += [f"{name}: {text}" for text in _problems(record)]
            differences += [f"{name}: {text}" for text in seen.compare(name, record)]
            notes += [(name, text) for text in _notes(record)]
    strays = _strays(store, paper)
    return Review([*unreadable, *problems, *differences, *strays], notes)


def grouped_notes(notes: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line for each note, and one for what notes say of several records alike.

    ``notes`` are files with what is said of them. Only records of one experiment share a line.
    """
    names_of_notes: dict[tuple[PurePosixPath, str], list[str]] = {}
    for name, text in notes:
        names_of_notes.setdefault((PurePosixPath(name).parent, text), []).append(name)
    lines = []
    for (folder, text), names in names_of_notes.items():
        subject = names[0]
        if len(names) > 1:
            subject = f"{folder}, {len(names)} records, such as {PurePosixPath(subject).name}"
        lines.append(f"{subject}: {text}")
    return lines


def _problems(record: Record) -> Iterator[str]:
    """Yield what is wrong with one sound record, beside the objections of the store."""
    if record.exit == "cut":
        yield (
            "a rehearsal (--max-steps), which is no result: "
            "run it without --max-steps, or delete the file"
        )
    ledger = set(deviations_of(record.trial, everywhere=True))
    for deviation in record.deviations:
        if deviation not in ledger:
            yield (
                f"its deviation {deviation.what!r} is not in the ledger in these words: "
                "add it there, or delete the file and run its trial again"
            )
    if record.code.revision is None:
        yield (
            "not run from a checkout of this project, so nobody can look up the code that ran: "
            "delete the file, and run its trial again from a clone"
        )
    elif record.code.dirty is not False:
        yield (
            "run from a checkout with uncommitted changes: "
            "commit them, delete the file, and run its trial again"
        )


class _ArmFile(NamedTuple):
    """A file of an arm, and what the files of its other seeds have to share with it."""

    name: str
    revision: str | None
    measures: dict[str, tuple[int, str]]


@dataclass
class _Seen:
    """The files of the trials that were read so far, and the first of each arm, by key."""

    trials: dict[str, str] = field(default_factory=dict)
    arms: dict[str, _ArmFile] = field(default_factory=dict)

    def compare(self, name: str, record: Record) -> Iterator[str]:
        """Yield whether a record is the second of its trial, or measured unlike its arm."""
        twin = self.trials.setdefault(record.key, name)
        if twin != name:
            yield f"a second record of the trial of {twin}: keep one"
        if record.exit != "ok":
            return
        arm = record.trial.model_copy(update={"seed": 0}).key
        here = _ArmFile(name, record.code.revision, _measures(record))
        first = self.arms.setdefault(arm, here)
        names = here.measures.keys() & first.measures.keys()
        if here.revision == first.revision:  # other code may measure more
            names = here.measures.keys() | first.measures.keys()
        differences = [n for n in names if here.measures.get(n) != first.measures.get(n)]
        if differences:
            yield (
                f"not measured like another seed, in {first.name} "
                f"({', '.join(sorted(differences))}): raise the experiment's revision"
            )


def _measures(record: Record) -> dict[str, tuple[int, str]]:
    """Return what is the same for all seeds: the number of parameters, units, and ``n``."""
    measures = {}
    for name, metric in record.metrics.items():
        # n of a change over the last quarter counts steps, and a seed may stop early
        n = 0 if name.endswith("_last_quarter") else metric.n
        measures[name] = (n, metric.unit)
    measures["parameters"] = (record.parameters, "")
    return measures


def _strays(store: Store, paper: str | None) -> Iterator[str]:
    """Yield files that are neither records nor the arrays of their figures (``KEY.npz``).

    Hidden folders hold checkpoints and logs.
    """
    records = set(store.paths(paper))
    folders = {store.root, *(store.root / (paper or ".")).rglob("**/")}
    for folder in sorted(folders):
        name = folder.relative_to(store.root)
        if not folder.is_dir() or any(part.startswith(".") for part in name.parts):
            continue
        for path in leftovers(folder):
            yield f"{name / path.name}: left by a write that was killed: delete it"
        for path in sorted(folder.iterdir()):
            if path in records or path.name.startswith(".") or not path.is_file():
                continue
            if ".damaged-" in path.name:
                yield (
                    f"{name / path.name}: set aside as damaged: "
                    "delete it, and run its trial again"
                )
            elif path.suffix != ".npz" or path.with_suffix(".json") not in records:
                yield f"{name / path.name}: not a record: move it out of this folder"


def _notes(record: Record) -> Iterator[str]:
    """Yield what is unusual about a record and not wrong."""
    trial = record.trial
    experiment = papers.experiment_of(trial)
    if experiment is not None and trial.revision < experiment.revision:
        yield (
            f"of revision {trial.revision}; the experiment is at {experiment.revision}, "
            "so it counts for no claim"
        )
    elif experiment is not None and not experiment.budget(trial):
        yield (
            f"not one of the trials that {trial.experiment} names for scale {trial.scale}, "
            "with this configuration and seed, so it counts for no claim"
        )
    if trial.scale == "smoke":
        yield "of smoke scale, which counts for no claim"
    if record.exit not in ("ok", "nan", "cut"):
        yield f"ended in {record.exit}; --retry-failed runs it again"
    for data in record.data:
        manifest = SETS[data.name].manifest if data.name in SETS else ""
        is_whole = data.complete and not data.deviations
        if manifest and is_whole and data.sha256 != manifest:
            yield (
                f"its {data.name} is not the one that `capslib data fetch {data.name}` "
                "prepares; ask where it comes from"
            )
    stated = set(record.deviations)
    missing = [deviation.what for deviation in deviations_of(trial) if deviation not in stated]
    if missing:
        yield f"does not name a deviation that the ledger names today: {'; '.join(missing)}"
    revision, history = record.code.revision, revisions()
    if revision is not None and history is not None and revision not in history:
        yield f"revision {revision[:10]} is not in the history of this checkout"
