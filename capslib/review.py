"""What a reviewer has to know before taking records in: ``capslib records check``. Looks, and moves nothing."""

from __future__ import annotations

import functools
import io
import itertools
import re
import tarfile
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

from pydantic import ValidationError

from capslib import papers
from capslib.data.registry import SETS
from capslib.runs import git, hash_of
from capslib.store import Store, leftovers, reason
from capslib.trials import Experiment, Record, Scale

ABSCISSAS = ("steps", "epochs", "depths", "distances", "epsilons", "half_steps")
"""The series of a record over which its curves are drawn: each curve is as long as one of them."""


class Review(NamedTuple):
    """One line each, that starts with the file. A problem says what to do about it; a note needs no more than to be known."""

    problems: list[str]
    notes: list[str]


def review(store: Store, paper: str | None = None) -> Review:
    """Check the records of one paper or of all: schema, hashes, place, and whether they agree with themselves, with each other,
    with their experiment, with the registry of data sets and with the history of the code."""
    problems, records = [], {}
    for path in store.paths(paper):
        name = str(path.relative_to(store.root))
        try:
            records[name] = Record.model_validate_json(path.read_bytes())
        except ValidationError as error:
            problems.append(f"{name}: not a valid record ({reason(error)}): delete it, and run its trial again")
        except OSError as error:
            problems.append(f"{name}: cannot be read: {error.strerror}")
    for name, record in records.items():
        found = (*faults(record), *_place(name, record), *_experiment(record), *_data(record), *_code(record))
        problems += [f"{name}: {what}" for what in found]
    problems += _each_other(records)
    problems += _strays(store, paper)
    return Review(problems, [f"{name}: {what}" for name, record in records.items() for what in _asides(record)])


def faults(record: Record) -> Iterator[str]:
    """What is wrong with a record that can be told from the record alone."""
    if record.exit == "cut":
        yield "a rehearsal (--max-steps), which is not for others: run it again without, or take the file out"
        return
    if record.finished < record.started:
        yield "finished before it started: set the clock, and run it again"
    if record.exit == "ok" and not record.metrics:
        yield "ended well but holds no metric: run it again"
    if record.exit != "ok" and (record.metrics or not record.message):
        yield f"ended in {record.exit}, which leaves a message and no metric: run it again"
    for name, metric in record.metrics.items():
        if metric.n < 1:
            yield f"metric {name} was measured on nothing: mend the experiment"
        if metric.unit == "fraction" and not 0 <= metric.value <= 1:
            yield f"metric {name} = {metric.value:g} is no fraction: mend the experiment"
    lengths = {name: len(record.series[name]) for name in ABSCISSAS if name in record.series}
    for name, curve in record.series.items():
        if lengths and len(curve) not in lengths.values():
            there = " and ".join(f"{length} {axis}" for axis, length in lengths.items())
            yield f"curve {name} has {len(curve)} points over {there}: mend the experiment"
        if name in lengths and any(a >= b for a, b in itertools.pairwise(curve)):
            yield f"{name} do not rise: mend the experiment"


def _place(name: str, record: Record) -> Iterator[str]:
    trial, path = record.trial, PurePosixPath(name)
    if not trial.key == record.key == path.stem:
        yield f"its trial hashes to {trial.key}, the file says {record.key}: edited or renamed; restore it, or run its trial again"
    if path.parent.as_posix() != f"{trial.paper}/{trial.experiment}":
        yield f"belongs in {trial.paper}/{trial.experiment}: move it there"


def _of(record: Record) -> Experiment | None:
    known = record.trial.paper in papers.PAPERS
    return papers.experiments(record.trial.paper).get(record.trial.experiment) if known else None


def _experiment(record: Record) -> Iterator[str]:
    trial, experiment = record.trial, _of(record)
    if experiment is None:
        yield f"there is no experiment {trial.paper}/{trial.experiment}: take the file out, or send the experiment too"
    elif trial.revision > experiment.revision:
        yield f"of revision {trial.revision}, but the experiment is at {experiment.revision}: send the experiment too"
    elif trial.revision == experiment.revision:
        try:
            experiment.config.model_validate(trial.config)
        except ValidationError as error:
            yield f"not a configuration of {trial.experiment} ({reason(error)}): raise its revision, or run the trial again"


def _data(record: Record) -> Iterator[str]:
    for seen in record.data:
        if seen.name not in SETS:
            yield f"there is no data set {seen.name}: take the file out, or send the data set too"
        elif seen.stand_in != SETS[seen.name].stand_in:
            yield f"{seen.name} is {'no' if seen.stand_in else 'a'} stand-in, the file says otherwise: run it again"
        if not re.fullmatch(r"[0-9a-f]{64}", seen.sha256):
            yield f"the hash of {seen.name} is no SHA-256: run it again"
    named = record.trial.config.get("data")
    if record.exit == "ok" and named is not None and named not in [seen.name for seen in record.data]:
        yield f"trained on {named}, but does not say which: run it again"


def _code(record: Record) -> Iterator[str]:
    code = record.code
    if code.dirty:
        yield "run from a checkout with uncommitted changes: commit them or put them away, and run it again"
    if not re.fullmatch(r"[0-9a-f]{64}", code.capslib):
        yield "its hash of the code is no SHA-256: run it again"
    elif not re.fullmatch(r"[0-9a-f]{40}|", code.revision or ""):
        yield f"{code.revision!r} is no revision of git: run it again"
    elif not code.dirty and code.revision and (_hash_at(code.revision) or code.capslib) != code.capslib:
        yield f"the code that ran is not capslib of revision {code.revision[:10]}: run it again from a clean checkout"


def _each_other(records: dict[str, Record]) -> Iterator[str]:
    trials: dict[str, str] = {}
    arms: dict[str, tuple[str, dict]] = {}
    for name, record in records.items():
        if (first := trials.setdefault(record.trial.key, name)) != name:
            yield f"{name}: a second record of the trial of {first}: keep one"
        if record.exit == "ok":
            measures = {k: (m.n, m.unit) for k, m in record.metrics.items()} | {"parameters": record.parameters}
            arm = record.trial.model_copy(update={"seed": 0}).key
            other, theirs = arms.setdefault(arm, (name, measures))
            if odd := sorted(k for k in measures.keys() | theirs.keys() if measures.get(k) != theirs.get(k)):
                yield f"{name}: not measured as with another seed in {other} ({', '.join(odd)}): raise the revision of the experiment"


def _strays(store: Store, paper: str | None) -> Iterator[str]:
    """What is neither a record nor the arrays of its figures (``KEY.npz``). Checkpoints and logs lie in hidden folders."""
    records = set(store.paths(paper))
    for folder in sorted({store.root, *(store.root / (paper or ".")).rglob("**/")}):
        place = folder.relative_to(store.root)
        if not folder.is_dir() or any(part.startswith(".") for part in place.parts):
            continue
        yield from (f"{place / path.name}: left by a write that was killed: delete it" for path in leftovers(folder))
        for path in sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith(".") and p not in records):
            if ".damaged-" in path.name:
                yield f"{place / path.name}: set aside as damaged: delete it, and run its trial again"
            elif path.suffix != ".npz" or path.with_suffix(".json") not in records:
                yield f"{place / path.name}: not a record: take it out of here"


def _asides(record: Record) -> Iterator[str]:
    trial, experiment, code = record.trial, _of(record), record.code
    if experiment is not None and trial.revision < experiment.revision:
        yield f"of revision {trial.revision}; the experiment is at {experiment.revision}, so it counts for no claim"
    elif experiment is not None and trial.key not in _grid(trial.paper, trial.experiment, trial.scale):
        yield f"not one of the trials that {trial.experiment} names for scale {trial.scale}, so it counts for no claim"
    if trial.scale == "smoke":
        yield "of smoke scale, which counts for no claim"
    if record.exit not in ("ok", "nan", "cut"):
        yield f"ended in {record.exit}; --retry-failed runs it again"
    for seen in record.data:
        known = SETS[seen.name].manifest if seen.name in SETS else ""
        if known and seen.complete and not seen.deviations and seen.sha256 != known:
            yield f"its {seen.name} is not the one that `capslib data fetch {seen.name}` prepares; ask where it comes from"
    if code.revision is None:
        yield "not run from a git checkout, so nobody can look at the code that ran"
    elif _whole_history() and re.fullmatch(r"[0-9a-f]{40}", code.revision) and _hash_at(code.revision) is None:
        yield f"revision {code.revision[:10]} is not in the history of this checkout"


@functools.cache
def _grid(paper: str, experiment: str, scale: Scale) -> frozenset[str]:
    return frozenset(trial.key for trial in papers.experiments(paper)[experiment].trials(scale))


@functools.cache
def _whole_history() -> bool:
    return (git("rev-parse", "--is-shallow-repository") or b"").strip() == b"false"


@functools.cache
def _hash_at(revision: str) -> str | None:
    """What ``capslib.runs.code_hash`` gave at a revision, None where this checkout does not have it."""
    archive = git("archive", "--format=tar", revision)  # of this folder
    if archive is None:
        return None
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        members = {PurePosixPath(m.name): m for m in files if m.isfile() and m.name.endswith(".py")}
        return hash_of((name.as_posix(), files.extractfile(members[name]).read()) for name in sorted(members))
