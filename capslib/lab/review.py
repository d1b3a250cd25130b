"""What a reviewer must know before merging records: ``capslib records check``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import NamedTuple

from capslib import papers
from capslib.data.registry import SETS
from capslib.files import leftovers
from capslib.lab.ledger.deviations import deviations
from capslib.lab.records import Record
from capslib.lab.runs import revisions
from capslib.lab.store import Damaged, Newer, Store, read_record
from capslib.papers.experiment import Deviation, Trial


class Review(NamedTuple):
    """One line per finding, which starts with the file.

    A problem says how to fix it; a note asks for nothing.
    """

    problems: list[str]
    notes: list[str]


def review(store: Store, paper: str | None = None) -> Review:
    """Check the records of one paper, or of all. Changes no file.

    Each is checked by itself, against the others, and against experiments, data and code.
    """
    problems = []
    notes = []
    records = {}
    for path in store.paths(paper):
        name = str(path.relative_to(store.root))
        try:
            records[name] = read_record(path)
        except Damaged as reason:
            problems.append(
                f"{name}: damaged ({reason}): "
                "restore it, or set it aside with --repair and run its trial again"
            )
        except Newer:
            problems.append(f"{name}: was written by a newer capslib: update capslib")
        except OSError as error:
            problems.append(
                f"{name}: cannot be read ({error.strerror}): make it readable, or delete it"
            )
    for name, record in records.items():
        for objection in store.objections(store.root / name, record):
            problems.append(f"{name}: {objection}")
        for problem in _problems(record):
            problems.append(f"{name}: {problem}")
        for note in _notes(record):
            notes.append(f"{name}: {note}")
    problems += _problems_between(records)
    problems += _strays(store, paper)
    return Review(problems, notes)


def together(notes: list[str]) -> list[str]:
    """Return the notes, those that say the same of several records of an experiment as one."""
    names_of_notes = {}
    for note in notes:
        name, _, text = note.partition(": ")
        names_of_notes.setdefault((PurePosixPath(name).parent, text), []).append(name)
    lines = []
    for (folder, text), names in names_of_notes.items():
        subject = names[0]
        if len(names) > 1:
            subject = f"{folder}, {len(names)} records, such as {PurePosixPath(subject).name}"
        lines.append(f"{subject}: {text}")
    return lines


def _ledger(trial: Trial, *, everywhere: bool = False) -> list[Deviation]:
    """Return the ledger's deviations of a trial; none if nobody knows its configuration now."""
    if not papers.known(trial):
        return []
    arm = papers.arm(trial)
    return deviations(trial.paper, trial.experiment, arm, everywhere=everywhere)


def _problems(record: Record) -> Iterator[str]:
    """Yield what is wrong with one sound record, beside the objections of the store."""
    if record.exit == "cut":
        yield (
            "a rehearsal (--max-steps), which is no result: "
            "run it without --max-steps, or delete the file"
        )
    ledger = set(_ledger(record.trial, everywhere=True))
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


def _problems_between(records: Mapping[str, Record]) -> Iterator[str]:
    """Yield which records have the same trial, or are not measured like another seed."""
    first_of_trial = {}
    first_of_arm = {}
    for name, record in records.items():
        first = first_of_trial.setdefault(record.key, name)
        if first != name:
            yield f"{name}: a second record of the trial of {first}: keep one"
        if record.exit != "ok":
            continue
        arm = record.trial.model_copy(update={"seed": 0}).key
        first = first_of_arm.setdefault(arm, name)
        differences = _differences(record, records[first])
        if differences:
            yield (
                f"{name}: not measured like another seed, in {first} "
                f"({', '.join(differences)}): raise the experiment's revision"
            )


def _differences(record: Record, reference: Record) -> list[str]:
    """Return the names of what two records measure differently.

    What only one of them measures is no difference if it ran other code.
    """
    first, second = _measures(record), _measures(reference)
    names = first.keys() & second.keys()
    if record.code.revision == reference.code.revision:
        names = first.keys() | second.keys()
    return sorted(name for name in names if first.get(name) != second.get(name))


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
    experiment = None
    if trial.paper in papers.PAPERS:
        experiment = papers.experiments(trial.paper).get(trial.experiment)
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
    missing = [deviation.what for deviation in _ledger(trial) if deviation not in stated]
    if missing:
        yield f"does not name a deviation that the ledger names today: {'; '.join(missing)}"
    revision, history = record.code.revision, revisions()
    if revision is not None and history is not None and revision not in history:
        yield f"revision {revision[:10]} is not in the history of this checkout"
