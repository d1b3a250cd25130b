"""What a reviewer is told: one line for each thing that is wrong with the records, and nothing about sound ones."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest

from capslib.data import SETS
from capslib.lab import review as reviewing
from capslib.lab.ledger.deviations import deviations
from capslib.lab.records import Code, Record
from capslib.lab.review import review, together
from capslib.lab.store import Store
from capslib.papers import arm, experiments, known
from capslib.papers.experiment import DataFingerprint, Deviation, Metric, Trial

PAPER = "negation_limitation"
EXPERIMENTS = experiments(PAPER)
SIGN = EXPERIMENTS["sign"].trials("cpu")
OF_IMAGES = experiments("inequality_anomaly")["baselines"].trials(
    "paper", where={"data": "mnist"}
)[0]
"""Of an experiment with ten seeds, of which its images run with three."""
DEPTH = EXPERIMENTS["depth"].trials("cpu", where={"data": "mnist"})[0]
MNIST = DataFingerprint(
    name="mnist", sha256=SETS["mnist"].manifest, stand_in=False, complete=True
)


@pytest.fixture(autouse=True)
def history(monkeypatch) -> None:
    """A whole history of one revision, whatever checkout runs the tests."""
    monkeypatch.setattr(reviewing, "revisions", lambda: frozenset({"a" * 40}))


@pytest.fixture
def sound(make_record):
    """A record with which nothing is wrong; keywords replace its fields."""

    def make(trial: Trial = SIGN[0], **changes: object):
        data = [MNIST] if trial.experiment == "depth" else []
        named = deviations(trial.paper, trial.experiment, arm(trial)) if known(trial) else []
        return make_record(
            trial,
            **{
                "data": data,
                "deviations": named,
                "code": Code(revision="a" * 40, dirty=False, capslib="0" * 64),
                **changes,
            },
        )

    return make


PROSE = Deviation(what="<b>buy</b>\x1b", paper="a", ours="b", why="c")


def changed(trial: Trial, **fields: object) -> Trial:
    return trial.model_copy(update=fields)


def code(**fields: object) -> dict:
    return {
        "code": Code(**{"revision": "a" * 40, "dirty": False, "capslib": "0" * 64, **fields})
    }


def seen(**fields: object) -> dict:
    return {"data": [MNIST.model_copy(update=fields)]}


def metric(value: float, n: int = 20) -> dict:
    return {"metrics": {"train_accuracy": Metric(value=value, n=n, unit="fraction")}}


def test_nothing_is_said_about_sound_records(store, sound):
    assert review(store) == ([], [])
    for record in (
        *map(sound, SIGN[:3]),
        sound(DEPTH),
        sound(SIGN[3], exit="nan", metrics={}, series={}, message="step 3"),
        sound(
            SIGN[4],
            series={
                "epochs": [1, 2],
                "accuracy": [0, 1],
                "steps": [10, 20, 25],
                "loss": [3, 2, 1],
            },
        ),
        sound(
            SIGN[5],
            series={
                "steps": [10, 20, 25],
                "loss": [3, 2, 1],
                "picture_of_all": [0, 255, 3, 1],
                "turned": [0, 9],
            },
        ),
        sound(
            SIGN[6],
            series={
                "steps": [10, 20, 25],
                "loss": [3, 2, 1],
                "by_distance_classes_1": [2, 1],
                "theta1_classes": [0],
            },
        ),
    ):
        store.put(record)
    store.path(DEPTH).with_suffix(".npz").touch()  # arrays of a figure
    for hidden in (store.trainings / f"{DEPTH.key}.pt", store.log(DEPTH)):
        hidden.parent.mkdir()
        hidden.touch()
    assert review(store) == review(store, PAPER) == review(store, "em_routing") == ([], [])


PROBLEMS = {
    "ends before it starts": (
        lambda r: r(finished=r().started - timedelta(seconds=1)),
        "finished before it started",
    ),
    "no metric": (lambda r: r(metrics={}), "ended well but holds no metric"),
    "failed with a metric": (
        lambda r: r(exit="oom", message="too large"),
        "ended in oom, so it needs a message and no metric",
    ),
    "failed without a word": (
        lambda r: r(exit="nan", metrics={}),
        "ended in nan, so it needs a message",
    ),
    "a rehearsal": (
        lambda r: r(exit="cut", series={"steps": [1, 2, 3], "loss": [1]}),
        "a rehearsal (--max-steps), which is no result",
    ),
    "a rehearsal that failed": (
        lambda r: r(exit="cut", metrics={}, message="nan: step 3"),
        "a rehearsal",
    ),
    "measured on nothing": (
        lambda r: r(**metric(0.5, n=0)),
        "metric train_accuracy was measured on nothing",
    ),
    "more than all": (
        lambda r: r(**metric(1.5)),
        "metric train_accuracy = 1.5 is out of the range of its unit, fraction",
    ),
    "less than none": (
        lambda r: r(**metric(-0.5)),
        "is out of the range of its unit, fraction",
    ),
    "a curve too short": (
        lambda r: r(series={"steps": [1, 2, 3], "loss": [1, 2]}),
        "curve loss has 2 points over 3 steps",
    ),
    "steps that fall": (
        lambda r: r(series={"steps": [1, 3, 2], "loss": [1, 2, 3]}),
        "steps do not rise",
    ),
    "another key": (lambda r: r(key="0" * 16), "its trial hashes to"),
    "unknown paper": (
        lambda r: r(changed(SIGN[0], paper="em_routin")),
        "there is no experiment em_routin/sign",
    ),
    "chapter to come": (
        lambda r: r(changed(SIGN[0], paper="learned_routing")),
        "there is no experiment learned_routing/sign",
    ),
    "unknown experiment": (
        lambda r: r(changed(SIGN[0], experiment="sing")),
        f"there is no experiment {PAPER}/sing",
    ),
    "revision to come": (
        lambda r: r(changed(SIGN[0], revision=99)),
        "of revision 99, but the experiment is at",
    ),
    "unknown field": (
        lambda r: r(changed(SIGN[0], config={**SIGN[0].config, "hiden": 1})),
        "Unknown field of SignRecipe 'hiden'. Did you mean 'hidden'?",
    ),
    "out of range": (
        lambda r: r(changed(SIGN[0], config={**SIGN[0].config, "hidden": 0})),
        "not a configuration of sign (hidden: ",
    ),
    "unknown data": (
        lambda r: r(data=[MNIST.model_copy(update={"name": "mnits"})]),
        "there is no data set mnits",
    ),
    "a stand-in": (lambda r: r(DEPTH, **seen(stand_in=True)), "mnist is no stand-in"),
    "data not named": (
        lambda r: r(DEPTH, data=[]),
        "trained on mnist, but holds no fingerprint of it",
    ),
    "a deviation in words of his own": (
        lambda r: r(deviations=[*r().deviations, PROSE]),
        "its deviation '<b>buy</b>\\x1b' is not in the ledger",
    ),
    "a deviation in other words": (
        lambda r: r(deviations=[r().deviations[0].model_copy(update={"why": "so"})]),
        "is not in the ledger in these words",
    ),
    "a deviation that nobody can check": (
        lambda r: r(
            changed(EXPERIMENTS["symmetry"].trials("cpu")[0], revision=1, config={"old": 1}),
            deviations=[PROSE],
        ),
        "is not in the ledger",
    ),
    "an edited configuration": (
        lambda r: r(config={**r().config, "routing": "em"}),
        "its config is not that of its trial (routing), so it was edited",
    ),
    "no revision": (
        lambda r: r(**code(revision=None, dirty=None)),
        "not run from a checkout of this project, so nobody can look up the code",
    ),
    "perhaps dirty": (lambda r: r(**code(dirty=None)), "uncommitted changes: commit them"),
    "dirty": (
        lambda r: r(**code(dirty=True)),
        "uncommitted changes: commit them, delete the file, and run its trial again",
    ),
}


@pytest.mark.parametrize("what", PROBLEMS)
def test_each_problem_is_named_once_with_its_file(store, sound, what):
    make, says = PROBLEMS[what]
    path = store.put(make(sound))
    (problem,) = review(store).problems
    assert problem.startswith(f"{path.relative_to(store.root)}: ")
    assert says in problem


def edited(old: str, new: str):
    return lambda store, path: path.write_text(
        path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8"
    )


def moved(place: str):
    def move(store: Store, path: Path) -> None:
        target = store.root / place.format(key=path.stem)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)

    return move


SPOILT = {
    "cut in half": (
        lambda store, path: path.write_bytes(path.read_bytes()[:100]),
        "damaged (Invalid JSON: EOF",
    ),
    "empty": (lambda store, path: path.write_bytes(b""), "damaged (Invalid JSON: EOF"),
    "not UTF-8": (
        lambda store, path: path.write_bytes(path.read_bytes().replace(b'"ok"', b'"\xff"')),
        "damaged (Invalid",
    ),
    "infinite": (
        edited('"value": 0.5', '"value": Infinity'),
        "damaged (metrics.train_accuracy.value: Input should be a finite",
    ),
    "unknown field": (edited('"exit"', '"exits"'), "damaged (exit: Field required)"),
    "data without a hash": (
        edited(
            '"data": []',
            f'"data": [{MNIST.model_dump_json()}]'.replace(MNIST.sha256, "unknown"),
        ),
        "damaged (data.0.sha256: String should match",
    ),
    "no hash of the code": (
        edited("0" * 64, "12 digits"),
        "damaged (code.capslib: String should match",
    ),
    "an option of git": (
        edited("a" * 40, "--output=x"),
        "damaged (code.revision: String should match",
    ),
    "a newer schema": (
        edited('"schema_version": 2', '"schema_version": 3'),
        "was written by a newer capslib: update capslib",
    ),
    "a merge conflict": (
        lambda store, path: path.write_text(
            "<<<<<<< HEAD\n" + path.read_text(encoding="utf-8"), encoding="utf-8"
        ),
        "the markers of a merge conflict",
    ),
    "another seed": (edited('"seed": 0', '"seed": 1'), "its trial hashes to"),
    "renamed": (moved(f"{PAPER}/sign/0123456789abcdef.json"), "its trial hashes to"),
    "another experiment": (
        moved(PAPER + "/depth/{key}.json"),
        "belongs in negation_limitation/sign: move it there",
    ),
    "another paper": (
        moved("em_routing/sign/{key}.json"),
        "belongs in negation_limitation/sign",
    ),
    "set aside": (
        moved(PAPER + "/sign/{key}.json.damaged-1"),
        "set aside as damaged: delete it, and run its trial again",
    ),
    "no ending": (moved(PAPER + "/sign/{key}"), "not a record"),
    "too high": (moved(PAPER + "/{key}.json"), "not a record"),
    "too deep": (moved(PAPER + "/sign/more/{key}.json"), "not a record"),
    "at the root": (moved("{key}.json"), "not a record"),
    "arrays without a record": (
        moved(PAPER + "/sign/{key}.npz"),
        "not a record: move it out of this folder",
    ),
}


@pytest.mark.parametrize("what", SPOILT)
def test_each_file_that_is_not_right_is_named_and_left_where_it_is(store, sound, what):
    spoil, says = SPOILT[what]
    spoil(store, store.put(sound()))
    ((path, content),) = {
        p: p.read_bytes() for p in store.root.rglob("*") if p.is_file()
    }.items()
    (problem,) = review(store).problems
    assert problem.startswith(f"{path.relative_to(store.root)}: ")
    assert says in problem
    assert path.read_bytes() == content


def test_a_row_that_was_narrowed_since_is_no_problem(store, sound):
    """The ledger has it, of other configurations; some of which want to write a number that this one lacks."""
    trial = experiments("em_routing")["test_error"].trials("cpu")[0]
    everywhere = deviations(trial.paper, trial.experiment, arm(trial), everywhere=True)
    assert len(everywhere) > len(deviations(trial.paper, trial.experiment, arm(trial)))
    store.put(
        sound(trial, deviations=everywhere, exit="nan", metrics={}, series={}, message="step 3")
    )
    assert review(store).problems == []


def test_a_pipe_hangs_nobody(store, sound):
    path = store.put(sound())
    path.unlink()
    os.mkfifo(path)
    (problem,) = review(store).problems
    assert problem.endswith(
        ": cannot be read (it is no file but a pipe or a device): make it readable, or delete it"
    )


def test_two_files_of_one_trial(store, sound):
    path = store.put(sound())
    twin = path.parent.with_name("depth") / path.name
    twin.parent.mkdir()
    twin.write_bytes(path.read_bytes())
    assert [problem.partition(": ")[2] for problem in review(store).problems] == [
        "belongs in negation_limitation/sign: move it there",
        f"a second record of the trial of {twin.relative_to(store.root)}: keep one",
    ]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        (metric(0.5, n=21), "train_accuracy"),
        ({"metrics": {"other": Metric(value=1, n=20, unit="x")}}, "other, train_accuracy"),
        ({"parameters": 8}, "parameters"),
    ],
)
def test_seeds_of_one_configuration_are_measured_alike(store, sound, changes, what):
    again = changed(SIGN[0], seed=1)
    names = sorted(
        str(store.put(record).relative_to(store.root))
        for record in (sound(), sound(again, **changes))
    )
    (problem,) = review(store).problems
    assert problem.startswith(
        f"{names[1]}: not measured like another seed, in {names[0]} ({what})"
    )


def test_a_seed_of_other_code_may_measure_more_but_nothing_otherwise(store, sound):
    def of_other_code(**values: Metric) -> Record:
        first = sound()
        code = first.code.model_copy(update={"revision": "b" * 40})
        return sound(changed(SIGN[0], seed=1), code=code, metrics=first.metrics | values)

    store.put(sound())
    store.put(of_other_code(other=Metric(value=1, n=20, unit="x")))
    assert not review(store).problems
    store.put(of_other_code(train_accuracy=Metric(value=1, n=21, unit="fraction")))
    (problem,) = review(store).problems
    assert "not measured like another seed" in problem
    assert "(train_accuracy)" in problem


def test_a_seed_that_stopped_early_is_measured_like_the_others(store, sound):
    def moved(steps: int) -> dict:
        return {
            "metrics": sound().metrics
            | {"loss_change_last_quarter": Metric(value=0.01, n=steps, unit="share")}
        }

    for seed, steps in ((0, 100), (1, 80)):
        store.put(sound(changed(SIGN[0], seed=seed), **moved(steps)))
    assert not review(store).problems


def test_what_a_killed_write_left_is_a_problem(store, sound):
    path = store.put(sound())
    left, written = (
        path.with_name(f".{path.name}.{drawn}.part") for drawn in ("abcd_123", "efgh_456")
    )
    left.touch()
    os.utime(left, times=(0, 0))
    written.touch()  # just now
    assert review(store).problems == [
        f"{left.relative_to(store.root)}: left by a write that was killed: delete it"
    ]


FIRST = deviations(PAPER, "sign", arm(SIGN[0]))[0].what
NOTES = {
    "an earlier revision": (
        lambda r: r(changed(EXPERIMENTS["symmetry"].trials("cpu")[0], revision=1)),
        "of revision 1; the experiment is at 2",
    ),
    "not in the grid": (
        lambda r: r(changed(SIGN[0], config={**SIGN[0].config, "points": 20})),
        "not one of the trials that sign names for scale cpu",
    ),
    "more seeds": (
        lambda r: r(changed(SIGN[0], seed=999)),
        "not one of the trials that sign names for scale cpu, with this configuration and seed",
    ),
    "a seed of other arms": (
        lambda r: r(changed(OF_IMAGES, seed=7), **seen()),
        "not one of the trials that baselines names for scale paper, with this configuration and seed",
    ),
    "twice the budget": (
        lambda r: r(
            changed(
                SIGN[0], config={**SIGN[0].config, "epochs": 2 * arm(SIGN[0]).recipe.epochs}
            ),
            **code(revision="b" * 40),
        ),
        "revision bbbbbbbbbb is not in the history",
    ),
    "a row that came later": (
        lambda r: r(deviations=r().deviations[1:]),
        f"does not name a deviation that the ledger names today: {FIRST}",
    ),
    "a failure": (
        lambda r: r(exit="oom", metrics={}, message="too large"),
        "ended in oom; --retry-failed",
    ),
    "other data": (
        lambda r: r(DEPTH, **seen(sha256="b" * 64)),
        "its mnist is not the one that `capslib data fetch mnist` prepares",
    ),
    "a revision of elsewhere": (
        lambda r: r(**code(revision="b" * 40)),
        "revision bbbbbbbbbb is not in the history",
    ),
    "smoke": (lambda r: r(EXPERIMENTS["sign"].trials("smoke")[0]), "of smoke scale"),
}


@pytest.mark.parametrize("what", NOTES)
def test_what_is_unusual_but_not_wrong_is_a_note(store, sound, what):
    make, says = NOTES[what]
    path = store.put(make(sound))
    problems, (note,) = review(store)
    assert problems == []
    assert note.startswith(f"{path.relative_to(store.root)}: ")
    assert says in note


def test_a_partial_set_and_a_shallow_checkout_are_no_matter(store, sound, monkeypatch):
    monkeypatch.setattr(reviewing, "revisions", lambda: None)
    store.put(
        sound(
            DEPTH,
            **seen(sha256="b" * 64, complete=False, deviations=("a part",)),
            **code(revision="b" * 40),
        )
    )
    assert review(store) == ([], [])


def test_code_that_was_renamed_since_makes_no_record_a_problem(store, sound):
    """The revision proves the code. Its hash is of a package whose modules had other names and ends of lines."""
    store.put(sound(**code(capslib="1" * 64)))
    assert review(store) == ([], [])


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
