"""What a reviewer must know before merging records: ``capslib records check``. Reading them changes no file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

from capslib import papers
from capslib.data.registry import SETS
from capslib.files import leftovers
from capslib.lab.ledger.deviations import deviations
from capslib.lab.records import Record
from capslib.lab.runs import revisions
from capslib.lab.store import Damaged, Newer, Store, read_record
from capslib.papers.experiment import Experiment


class Review(NamedTuple):
    """One line per finding, which starts with the file. A problem says how to fix it; a note asks for nothing."""

    problems: list[str]
    notes: list[str]


def review(store: Store, paper: str | None = None) -> Review:
    """Check the records of one paper, or of all: each by itself, against each other, and against experiments, data and code."""
    problems, records = [], {}
    for path in store.paths(paper):
        name = str(path.relative_to(store.root))
        try:
            records[name] = read_record(path)
        except Damaged as why:
            problems.append(
                f"{name}: damaged ({why}): restore it, or set it aside with --repair and run its trial again"
            )
        except Newer:
            problems.append(f"{name}: was written by a newer capslib: update capslib")
        except OSError as error:
            problems.append(
                f"{name}: cannot be read ({error.strerror}): make it readable, or delete it"
            )
    for name, record in records.items():
        checks = _rehearsal, _deviations, _code
        found = (
            *store.objections(store.root / name, record),
            *(what for check in checks for what in check(record)),
        )
        problems += [f"{name}: {what}" for what in found]
    problems += [*_each_other(records), *_strays(store, paper)]
    return Review(
        problems,
        [f"{name}: {what}" for name, record in records.items() for what in _notes(record)],
    )


def together(notes: list[str]) -> list[str]:
    """The notes, those that say the same of several records of an experiment in one line, so that the others can be seen."""
    alike: dict[tuple[str, str], list[str]] = {}
    for note in notes:
        name, _, what = note.partition(": ")
        alike.setdefault((str(PurePosixPath(name).parent), what), []).append(name)
    return [
        f"{names[0]}: {what}"
        if len(names) == 1
        else f"{place}, {len(names)} records, such as {PurePosixPath(names[0]).name}: {what}"
        for (place, what), names in alike.items()
    ]


def _of(record: Record) -> Experiment | None:
    known = record.trial.paper in papers.PAPERS
    return (
        papers.experiments(record.trial.paper).get(record.trial.experiment) if known else None
    )


def _rehearsal(record: Record) -> Iterator[str]:
    if record.exit == "cut":
        yield "a rehearsal (--max-steps), which is no result: run it without --max-steps, or delete the file"


def _deviations(record: Record) -> Iterator[str]:
    trial = record.trial
    known = (
        deviations(trial.paper, trial.experiment, papers.arm(trial), everywhere=True)
        if papers.known(trial)
        else []
    )
    for what in (d.what for d in record.deviations if d not in known):
        yield f"its deviation {what!r} is not in the ledger in these words: add it there, or delete the file and run its trial again"


def _code(record: Record) -> Iterator[str]:
    if record.code.revision is None:
        yield (
            "not run from a checkout of this project, so nobody can look up the code that ran: "
            "delete the file, and run its trial again from a clone"
        )
    elif record.code.dirty is not False:
        yield "run from a checkout with uncommitted changes: commit them, delete the file, and run its trial again"


def _each_other(records: dict[str, Record]) -> Iterator[str]:
    trials: dict[str, str] = {}
    arms: dict[str, tuple[str, str | None, dict]] = {}
    for name, record in records.items():
        if (first := trials.setdefault(record.key, name)) != name:
            yield f"{name}: a second record of the trial of {first}: keep one"
        if record.exit == "ok":
            # n of a change over the last quarter counts steps, and a seed may stop early
            measures = {
                k: (0 if k.endswith("_last_quarter") else m.n, m.unit)
                for k, m in record.metrics.items()
            }
            measures["parameters"] = record.parameters
            arm = record.trial.model_copy(update={"seed": 0}).key
            other, revision, theirs = arms.setdefault(
                arm, (name, record.code.revision, measures)
            )
            both = measures.keys() & theirs.keys()  # other code may measure more
            compared = (
                both if revision != record.code.revision else measures.keys() | theirs.keys()
            )
            if odd := sorted(k for k in compared if measures.get(k) != theirs.get(k)):
                yield f"{name}: not measured like another seed, in {other} ({', '.join(odd)}): raise the experiment's revision"


def _strays(store: Store, paper: str | None) -> Iterator[str]:
    """Files that are neither records nor the arrays of their figures (``KEY.npz``). Hidden folders hold checkpoints and logs."""
    records = set(store.paths(paper))
    for folder in sorted({store.root, *(store.root / (paper or ".")).rglob("**/")}):
        place = folder.relative_to(store.root)
        if not folder.is_dir() or any(part.startswith(".") for part in place.parts):
            continue
        yield from (
            f"{place / path.name}: left by a write that was killed: delete it"
            for path in leftovers(folder)
        )
        for path in sorted(
            p
            for p in folder.iterdir()
            if p.is_file() and not p.name.startswith(".") and p not in records
        ):
            if ".damaged-" in path.name:
                yield f"{place / path.name}: set aside as damaged: delete it, and run its trial again"
            elif path.suffix != ".npz" or path.with_suffix(".json") not in records:
                yield f"{place / path.name}: not a record: move it out of this folder"


def _notes(record: Record) -> Iterator[str]:
    trial, experiment, revision = record.trial, _of(record), record.code.revision
    if experiment is not None and trial.revision < experiment.revision:
        yield f"of revision {trial.revision}; the experiment is at {experiment.revision}, so it counts for no claim"
    elif experiment is not None and not experiment.budget(trial):
        yield (
            f"not one of the trials that {trial.experiment} names for scale {trial.scale}, "
            "with this configuration and seed, so it counts for no claim"
        )
    if trial.scale == "smoke":
        yield "of smoke scale, which counts for no claim"
    if record.exit not in ("ok", "nan", "cut"):
        yield f"ended in {record.exit}; --retry-failed runs it again"
    for seen in record.data:
        known = SETS[seen.name].manifest if seen.name in SETS else ""
        if known and seen.complete and not seen.deviations and seen.sha256 != known:
            yield f"its {seen.name} is not the one that `capslib data fetch {seen.name}` prepares; ask where it comes from"
    today = (
        deviations(trial.paper, trial.experiment, papers.arm(trial))
        if papers.known(trial)
        else []
    )
    if missing := [d.what for d in today if d not in record.deviations]:
        yield f"does not name a deviation that the ledger names today: {'; '.join(missing)}"
    known_revisions = revisions()
    if revision is not None and known_revisions is not None and revision not in known_revisions:
        yield f"revision {revision[:10]} is not in the history of this checkout"
