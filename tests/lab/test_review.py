"""What a reviewer is told: a line for each thing that is wrong, and none for sound records."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers import make_record

from capslib.data import SETS
from capslib.lab import review as reviewing
from capslib.lab.ledger.deviations import deviations_of
from capslib.lab.records import Code
from capslib.lab.review import grouped_notes, review
from capslib.papers import experiments
from capslib.papers.experiment import DataFingerprint, Deviation, Metric, Trial

PAPER = "negation_limitation"
SIGN = experiments(PAPER)["sign"].trials("cpu")
DEPTH = experiments(PAPER)["depth"].trials("cpu", where={"data": "mnist"})[0]
SYMMETRY = experiments(PAPER)["symmetry"].trials("cpu")[0]
MNIST = DataFingerprint(
    name="mnist", sha256=SETS["mnist"].manifest, stand_in=False, complete=True
)
CODE = Code(revision="a" * 40, dirty=False, capslib="0" * 64)
NAN = {"exit": "nan", "metrics": {}, "series": {}, "message": "step 3"}


@pytest.fixture(autouse=True)
def history(monkeypatch) -> None:
    """A whole history of one revision, whatever checkout runs the tests."""
    monkeypatch.setattr(reviewing, "revisions", lambda: frozenset({"a" * 40}))


@pytest.fixture
def put(store):
    """``put(trial, metrics={})``: write a record that is sound but for these fields."""

    def write(trial: Trial = SIGN[0], **changes: object) -> Path:
        data = [MNIST] if trial.experiment == "depth" else []
        fields = {"data": data, "deviations": deviations_of(trial), "code": CODE}
        return store.put(make_record(trial, **{**fields, **changes}))

    return write


def like(trial: Trial, **changes: object) -> Trial:
    return trial.model_copy(update=changes)


def code(**changes: object) -> dict[str, Code]:
    return {"code": CODE.model_copy(update=changes)}


def mnist(**changes: object) -> dict[str, list[DataFingerprint]]:
    return {"data": [MNIST.model_copy(update=changes)]}


def metrics(n: int = 20, **metrics: Metric) -> dict[str, dict[str, Metric]]:
    return {"metrics": {"accuracy": Metric(value=0.5, n=n, unit="fraction"), **metrics}}


LOSS = Metric(value=1, n=20, unit="x")


def test_nothing_is_said_about_sound_records(store, put):
    put(SIGN[0])
    put(SIGN[1], **NAN)
    # the revision proves the code: the hash is of a package whose modules had other names
    put(SIGN[2], **code(capslib="1" * 64))
    put(DEPTH).with_suffix(".npz").touch()  # arrays of a figure
    store.trainings.mkdir()
    (store.trainings / f"{DEPTH.key}.pt").touch()
    assert review(store) == review(store, PAPER) == ([], [])


def test_a_set_that_says_it_is_a_part_needs_no_note(store, put):
    put(DEPTH, **mnist(sha256="b" * 64, complete=False, deviations=("a part",)))
    assert review(store) == ([], [])


def test_a_shallow_checkout_asks_for_no_revision(store, put, monkeypatch):
    monkeypatch.setattr(reviewing, "revisions", lambda: None)
    put(**code(revision="b" * 40))
    assert review(store) == ([], [])


PROBLEMS = {
    "its trial hashes to": {"key": "0" * 16},
    "a rehearsal (--max-steps), which is no result": {"exit": "cut"},
    "its deviation '<b>buy</b>\\x1b' is not in the ledger in these words": {
        "deviations": [Deviation(what="<b>buy</b>\x1b", paper="a", ours="b", why="c")]
    },
    "not run from a checkout of this project": code(revision=None, dirty=None),
    "uncommitted changes: commit them": code(dirty=None),
    "uncommitted changes: commit them, delete the file": code(dirty=True),
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_each_problem_is_named_once_with_its_file(store, put, problem):
    path = put(**PROBLEMS[problem])
    (line,) = review(store).problems
    assert line.startswith(f"{path.relative_to(store.root)}: ")
    assert problem in line


NOTES = {
    "of revision 1; the experiment is at 2": {"trial": like(SYMMETRY, revision=1)},
    "not one of the trials that sign names for scale cpu": {"trial": like(SIGN[0], seed=999)},
    "revision bbbbbbbbbb is not in the history": code(revision="b" * 40),
    "does not name a deviation that the ledger names today: ": {"deviations": []},
    "ended in oom; --retry-failed": {**NAN, "exit": "oom"},
    "its mnist is not the one that `capslib data fetch mnist` prepares": {
        "trial": DEPTH,
        **mnist(sha256="b" * 64),
    },
    "of smoke scale": {"trial": experiments(PAPER)["sign"].trials("smoke")[0]},
}


@pytest.mark.parametrize("note", NOTES)
def test_what_is_unusual_but_not_wrong_is_a_note(store, put, note):
    path = put(**NOTES[note])
    problems, ((name, text),) = review(store)
    assert problems == []
    assert name == str(path.relative_to(store.root))
    assert note in text


@pytest.mark.parametrize(
    ("text", "edit", "problem"),
    [
        ("a" * 40, "--output=x", "damaged (code.revision: String should match"),
        ('version": 2', 'version": 3', "was written by a newer capslib: update capslib"),
    ],
)
def test_an_edited_file_is_named_and_left_as_it_is(store, put, text, edit, problem):
    path = put()
    edited = path.read_text().replace(text, edit)
    path.write_text(edited)
    (line,) = review(store).problems
    assert line.startswith(f"{path.relative_to(store.root)}: {problem}")
    assert path.read_text() == edited


PLACES = {
    f"{PAPER}/depth/KEY.json": "belongs in negation_limitation/sign: move it there",
    f"{PAPER}/sign/KEY.json.damaged-1": "set aside as damaged: delete it",
    f"{PAPER}/sign/more/KEY.json": "not a record",
    f"{PAPER}/sign/KEY.npz": "not a record: move it out of this folder",
    "KEY.json": "not a record",
}


@pytest.mark.parametrize("address", PLACES)
def test_a_file_in_a_wrong_place_is_named_and_left_there(store, put, address):
    path = put()
    target = store.root / address.replace("KEY", path.stem)
    target.parent.mkdir(parents=True, exist_ok=True)
    path.rename(target)
    (line,) = review(store).problems
    assert line.startswith(f"{target.relative_to(store.root)}: {PLACES[address]}")
    assert target.exists()


def test_a_row_that_was_narrowed_since_is_no_problem(store, put):
    """The ledger has it, of other configurations; some write a number that this one lacks."""
    trial = experiments("em_routing")["test_error"].trials("cpu")[0]
    everywhere = deviations_of(trial, everywhere=True)
    assert len(everywhere) > len(deviations_of(trial))
    put(trial, deviations=everywhere, **NAN)
    assert review(store).problems == []


def test_a_pipe_hangs_nobody(store, put):
    path = put()
    path.unlink()
    os.mkfifo(path)
    (problem,) = review(store).problems
    assert ": cannot be read (it is no file but a pipe or a device): make it" in problem


def test_two_files_of_one_trial(store, put):
    path = put()
    twin = path.parent.with_name("depth") / path.name
    twin.parent.mkdir()
    twin.write_bytes(path.read_bytes())
    problem = f"a second record of the trial of {twin.relative_to(store.root)}: keep one"
    assert review(store).problems[1].endswith(problem)


@pytest.mark.parametrize(
    ("changes", "differences"),
    [
        (metrics(loss=LOSS), "loss"),
        ({**metrics(), "parameters": 8}, "parameters"),
        ({**metrics(n=21, loss=LOSS), **code(revision="b" * 40)}, "accuracy"),
    ],
)
def test_seeds_of_one_configuration_are_measured_alike(store, put, changes, differences):
    put(SIGN[0], **metrics())
    put(like(SIGN[0], seed=1), **changes)
    (problem,) = review(store).problems
    assert "not measured like another seed, in " in problem
    assert f".json ({differences})" in problem


def test_a_seed_of_other_code_may_measure_more_and_one_may_stop_early(store, put):
    def change(steps: int) -> Metric:
        return Metric(value=0.01, n=steps, unit="share")

    put(SIGN[0], **metrics(loss_change_last_quarter=change(100)))
    measured = metrics(loss=LOSS, loss_change_last_quarter=change(80))
    put(like(SIGN[0], seed=1), **measured, **code(revision="b" * 40))
    assert not review(store).problems


def test_what_a_killed_write_left_is_a_problem(store, put):
    path = put()
    leftover = path.with_name(f".{path.name}.abcd_123.part")
    leftover.touch()
    os.utime(leftover, times=(0, 0))
    path.with_name(f".{path.name}.efgh_456.part").touch()  # just now
    (problem,) = review(store).problems
    name = leftover.relative_to(store.root)
    assert problem == f"{name}: left by a write that was killed: delete it"


def test_notes_that_say_the_same_are_one_line():
    smoke, odd = "of smoke scale: no", "its seed is odd"
    notes = [("p/e/1.json", smoke), ("p/e/2.json", odd), ("p/e/3.json", smoke)]
    first, second = grouped_notes(notes)
    assert first == f"p/e, 2 records, such as 1.json: {smoke}"
    assert second == f"p/e/2.json: {odd}"
