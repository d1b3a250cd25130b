"""What a reviewer is told: a line for each thing that is wrong, and none for sound records."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from capslib.data import SETS
from capslib.lab import review as reviewing
from capslib.lab.ledger.deviations import deviations
from capslib.lab.records import Code
from capslib.lab.review import review, together
from capslib.papers import arm, experiments, known
from capslib.papers.experiment import DataFingerprint, Deviation, Metric, Trial

PAPER = "negation_limitation"
SIGN = experiments(PAPER)["sign"].trials("cpu")
DEPTH = experiments(PAPER)["depth"].trials("cpu", where={"data": "mnist"})[0]
SYMMETRY = experiments(PAPER)["symmetry"].trials("cpu")[0].model_copy(update={"revision": 1})
BASELINES = experiments("inequality_anomaly")["baselines"]
MNIST = DataFingerprint(
    name="mnist", sha256=SETS["mnist"].manifest, stand_in=False, complete=True
)
CODE = Code(revision="a" * 40, dirty=False, capslib="0" * 64)
PROSE = Deviation(what="<b>buy</b>\x1b", paper="a", ours="b", why="c")
NAN = {"exit": "nan", "metrics": {}, "series": {}, "message": "step 3"}


def ledger(trial: Trial, **options: bool) -> list[Deviation]:
    if not known(trial):
        return []
    return deviations(trial.paper, trial.experiment, arm(trial), **options)


NAMED = ledger(SIGN[0])


@pytest.fixture(autouse=True)
def history(monkeypatch) -> None:
    """A whole history of one revision, whatever checkout runs the tests."""
    monkeypatch.setattr(reviewing, "revisions", lambda: frozenset({"a" * 40}))


@pytest.fixture
def put(store, make_record):
    """``put(trial, of={"seed": 1}, metrics={})``: write a record that is sound but for these.

    ``of`` replaces fields of its trial, and keywords its own.
    """

    def write(trial: Trial = SIGN[0], of: Mapping = {}, **changes: object) -> Path:
        trial = trial.model_copy(update=of)
        data = [MNIST] if trial.experiment == "depth" else []
        fields = {"data": data, "deviations": ledger(trial), "code": CODE, **changes}
        return store.put(make_record(trial, **fields))

    return write


def code(**fields: object) -> dict[str, Code]:
    return {"code": CODE.model_copy(update=fields)}


def seen(**fields: object) -> dict[str, list[DataFingerprint]]:
    return {"data": [MNIST.model_copy(update=fields)]}


def series(**curves: list[float]) -> dict[str, dict[str, list[float]]]:
    return {"series": {"steps": [10, 20, 25], "loss": [3, 2, 1], **curves}}


def metric(n: int = 20, unit: str = "fraction", **measures: Metric) -> dict[str, dict]:
    return {"metrics": {"train_accuracy": Metric(value=0.5, n=n, unit=unit), **measures}}


OTHER = Metric(value=1, n=20, unit="x")


def test_nothing_is_said_about_sound_records(store, put):
    assert review(store) == ([], [])
    put(SIGN[0])
    put(SIGN[1], **NAN)
    put(SIGN[2], **series(epochs=[1, 2], accuracy=[0, 1]))
    put(SIGN[3], **series(picture_of_all=[0, 255, 3, 1], turned=[0, 9]))
    put(SIGN[4], **series(by_distance_classes_1=[2, 1], theta1_classes=[0]))
    # the revision proves the code: the hash is of a package whose modules had other names
    put(SIGN[5], **code(capslib="1" * 64))
    put(DEPTH).with_suffix(".npz").touch()  # arrays of a figure
    for hidden in (store.trainings / f"{DEPTH.key}.pt", store.log(DEPTH)):
        hidden.parent.mkdir()
        hidden.touch()
    assert review(store) == review(store, PAPER) == review(store, "em_routing") == ([], [])


PROBLEMS = {
    "ended in oom, so it needs a message and no metric": dict(exit="oom", message="too large"),
    "ended in nan, so it needs a message": dict(exit="nan", metrics={}),
    "a rehearsal (--max-steps), which is no result": dict(exit="cut", series={"loss": [1]}),
    "steps do not rise": dict(series={"steps": [1, 3, 2]}),
    "its trial hashes to": dict(key="0" * 16),
    "Unknown field of SignRecipe 'hiden'. Did you mean 'hidden'?": dict(
        of={"config": {"hiden": 1}}
    ),
    "its config is not that of its trial (routing)": dict(
        trial=SIGN[0], config={"routing": "em"}
    ),
    "there is no data set mnits": seen(name="mnits"),
    "mnist is no stand-in": dict(trial=DEPTH, **seen(stand_in=True)),
    "trained on mnist, but holds no fingerprint of it": dict(trial=DEPTH, data=[]),
    "its deviation '<b>buy</b>\\x1b' is not in the ledger": dict(deviations=[*NAMED, PROSE]),
    "is not in the ledger in these words": dict(
        deviations=[NAMED[0].model_copy(update={"why": "so"})]
    ),
    "is not in the ledger": dict(trial=SYMMETRY, of={"config": {"old": 1}}, deviations=[PROSE]),
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
    "of revision 1; the experiment is at 2": dict(trial=SYMMETRY),
    "not one of the trials that sign names for scale cpu": dict(
        of={"config": {**SIGN[0].config, "points": 20}}
    ),
    "not one of the trials that sign names for scale cpu, with this": dict(of={"seed": 999}),
    # ten seeds, of which images run with three
    "not one of the trials that baselines names for scale paper": dict(
        trial=BASELINES.trials("paper", where={"data": "mnist"})[0], of={"seed": 7}, **seen()
    ),
    "revision bbbbbbbbbb is not in the history": code(revision="b" * 40),
    "revision bbbbbbbbbb is not": dict(  # and twice the budget is one of the trials
        of={"config": {**SIGN[0].config, "epochs": 2 * arm(SIGN[0]).recipe.epochs}},
        **code(revision="b" * 40),
    ),
    f"does not name a deviation that the ledger names today: {NAMED[0].what}": dict(
        deviations=NAMED[1:]
    ),
    "ended in oom; --retry-failed": {**NAN, "exit": "oom"},
    "its mnist is not the one that `capslib data fetch mnist` prepares": dict(
        trial=DEPTH, **seen(sha256="b" * 64)
    ),
    "of smoke scale": dict(trial=experiments(PAPER)["sign"].trials("smoke")[0]),
}


@pytest.mark.parametrize("note", NOTES)
def test_what_is_unusual_but_not_wrong_is_a_note(store, put, note):
    path = put(**NOTES[note])
    problems, (line,) = review(store)
    assert problems == []
    assert line.startswith(f"{path.relative_to(store.root)}: ")
    assert note in line


def test_a_partial_set_and_a_shallow_checkout_are_no_matter(store, put, monkeypatch):
    monkeypatch.setattr(reviewing, "revisions", lambda: None)
    partial = seen(sha256="b" * 64, complete=False, deviations=("a part",))
    put(DEPTH, **partial, **code(revision="b" * 40))
    assert review(store) == ([], [])


EDITS = {
    "damaged (Invalid JSON: EOF": lambda text: text[:100],
    "damaged (data.0.sha256: String should match": lambda text: text.replace(
        '"data": []', f'"data": [{MNIST.model_dump_json()}]'.replace(MNIST.sha256, "unknown")
    ),
    "damaged (code.capslib: String should match": lambda text: text.replace("0" * 64, "12"),
    "damaged (code.revision: String should match": lambda text: text.replace(
        "a" * 40, "--output=x"
    ),
    "was written by a newer capslib: update capslib": lambda text: text.replace(
        '"schema_version": 2', '"schema_version": 3'
    ),
}


@pytest.mark.parametrize("problem", EDITS)
def test_an_edited_file_is_named_and_left_as_it_is(store, put, problem):
    path = put()
    edited = EDITS[problem](path.read_text(encoding="utf-8"))
    path.write_text(edited, encoding="utf-8")
    (line,) = review(store).problems
    assert line.startswith(f"{path.relative_to(store.root)}: {problem}")
    assert path.read_text(encoding="utf-8") == edited


PLACES = {
    f"{PAPER}/sign/0123456789abcdef.json": "damaged (its trial hashes to",
    f"{PAPER}/depth/KEY.json": "belongs in negation_limitation/sign: move it there",
    "em_routing/sign/KEY.json": "belongs in negation_limitation/sign",
    f"{PAPER}/sign/KEY.json.damaged-1": "set aside as damaged: delete it",
    f"{PAPER}/sign/KEY": "not a record",
    f"{PAPER}/KEY.json": "not a record",
    f"{PAPER}/sign/more/KEY.json": "not a record",
    "KEY.json": "not a record",
    f"{PAPER}/sign/KEY.npz": "not a record: move it out of this folder",
}


@pytest.mark.parametrize("place", PLACES)
def test_a_file_in_a_wrong_place_is_named_and_left_there(store, put, place):
    path = put()
    target = store.root / place.replace("KEY", path.stem)
    target.parent.mkdir(parents=True, exist_ok=True)
    path.rename(target)
    (line,) = review(store).problems
    assert line.startswith(f"{target.relative_to(store.root)}: {PLACES[place]}")
    assert target.exists()


def test_a_row_that_was_narrowed_since_is_no_problem(store, put):
    """The ledger has it, of other configurations; some write a number that this one lacks."""
    trial = experiments("em_routing")["test_error"].trials("cpu")[0]
    everywhere = ledger(trial, everywhere=True)
    assert len(everywhere) > len(ledger(trial))
    put(trial, deviations=everywhere, **NAN)
    assert review(store).problems == []


def test_a_pipe_hangs_nobody(store, put):
    path = put()
    path.unlink()
    os.mkfifo(path)
    (problem,) = review(store).problems
    assert (
        ": cannot be read (it is no file but a pipe or a device): make it readable" in problem
    )


def test_two_files_of_one_trial(store, put):
    path = put()
    twin = path.parent.with_name("depth") / path.name
    twin.parent.mkdir()
    twin.write_bytes(path.read_bytes())
    assert [problem.partition(": ")[2] for problem in review(store).problems] == [
        "belongs in negation_limitation/sign: move it there",
        f"a second record of the trial of {twin.relative_to(store.root)}: keep one",
    ]


@pytest.mark.parametrize(
    ("changes", "differences"),
    [
        (metric(n=21), "train_accuracy"),
        ({"metrics": {"other": OTHER}}, "other, train_accuracy"),
        ({"parameters": 8}, "parameters"),
        (metric(n=21, unit="x", other=OTHER) | code(revision="b" * 40), "train_accuracy"),
    ],
)
def test_seeds_of_one_configuration_are_measured_alike(store, put, changes, differences):
    paths = [put(), put(of={"seed": 1}, **changes)]
    first, second = sorted(str(path.relative_to(store.root)) for path in paths)
    (problem,) = review(store).problems
    assert problem.startswith(
        f"{second}: not measured like another seed, in {first} ({differences})"
    )


def test_a_seed_of_other_code_may_measure_more_and_one_may_stop_early(store, put):
    put()
    put(of={"seed": 1}, **metric(other=OTHER), **code(revision="b" * 40))
    for seed, steps in ((2, 100), (3, 80)):
        change = Metric(value=0.01, n=steps, unit="share")
        put(SIGN[-1], {"seed": seed}, **metric(loss_change_last_quarter=change))
    assert not review(store).problems


def test_what_a_killed_write_left_is_a_problem(store, put):
    path = put()
    leftover = path.with_name(f".{path.name}.abcd_123.part")
    leftover.touch()
    os.utime(leftover, times=(0, 0))
    path.with_name(f".{path.name}.efgh_456.part").touch()  # just now
    assert review(store).problems == [
        f"{leftover.relative_to(store.root)}: left by a write that was killed: delete it"
    ]


def test_notes_that_say_the_same_are_one_line():
    notes = [
        "p/e/1.json: of smoke scale: no",
        "p/e/2.json: its seed is odd",
        "p/e/3.json: of smoke scale: no",
        "p/f/4.json: of smoke scale: no",
    ]
    assert together(notes) == [
        "p/e, 2 records, such as 1.json: of smoke scale: no",
        notes[1],
        notes[3],
    ]
