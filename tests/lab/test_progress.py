"""What a user sees of a run, on a terminal and in a file."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from capslib import papers
from capslib.lab import progress
from capslib.lab.planning import Estimate, Plan
from capslib.lab.settings import Settings
from capslib.lab.store import Store


@pytest.fixture
def shown(trial, make_record):
    """Play a run of three trials, in which one fails, to a console; its display and what it has
    written.
    """

    def play(
        terminal: bool, seconds: tuple[float | None, ...] = (10, 20, 30)
    ) -> tuple[str, str]:
        trials = [trial.model_copy(update={"seed": seed}) for seed in range(3)]
        known = {
            t.key: Estimate(s, s and 10**8, "") for t, s in zip(trials, seconds, strict=True)
        }
        clock = [100.0]
        console = progress.Terminal(
            file=io.StringIO(), force_terminal=terminal, width=120, get_time=lambda: clock[0]
        )
        with progress.RunDisplay(console) as display:
            display.plan(Plan(5, trials, {}, known, ["cpu", "cpu"]))
            for one in trials:
                display.step(one, 0, 0, "")
            display.step(trials[2], 15, 30, "loss [0.1]")
            clock[0] = 145.0
            display.finish(trials[0], make_record(trials[0]))
            clock[0] = 190.0
            display.finish(
                trials[1],
                make_record(trials[1], exit="nan", metrics={}, message="step 3 [of 1]"),
            )
            display.step(trials[1], 29, 30, "said before its record came")
            state = display.state()
            display.progress.refresh() if terminal else None
        return state, console.file.getvalue()

    return play


def test_lines_for_a_file(shown):
    state, text = shown(False)
    assert text.isascii()
    assert text.replace("\n", "").isprintable()
    lines = text.splitlines()
    planned = "5 trials at scale cpu: 2 have a record, 3 to run."
    assert (
        lines[0]
        == f"{planned} Expected: 60 s in all, 30 s on 2 workers, at most 100.0 MB each."
    )
    assert lines[1:4] == [f"start  sign seed={seed}  [0/3]" for seed in range(3)]
    assert lines[4].startswith("   ok  sign seed=0  train_accuracy=0.5  1.5 s  [1/3")
    assert lines[5].startswith("  nan  sign seed=1  step 3 [of 1]  1.5 s  [2/3")
    assert len(lines) == 6
    assert state.startswith("2/3, ")


def test_bars_on_a_terminal(shown):
    _, text = shown(True)
    assert "15/30 loss [0.1]" in text
    assert "all trials" in text
    assert "\x1b[" in text


def test_the_time_left_goes_by_what_the_trials_are_expected_to_take(shown):
    """The third trial is half done at 100 s, the others end at 145 s and 190 s. Rich's estimate
    starts with the first progress.
    """
    assert shown(False)[0] == "2/3, 45 s left"  # 10 + 20 of 60 in 90 s, 15 to go
    assert (
        shown(False, (10, None, 30))[0] == "2/3, 23 s left"
    )  # trials alike: 2 of 3 in 90 s, half of one to go


def test_the_end_of_the_first_trial_alone_says_nothing_of_the_time_left(trial, make_record):
    """A rehearsal tells of one step per trial, the last one: what its record takes after that
    is no measure of a trial.
    """
    trials = [trial.model_copy(update={"seed": seed}) for seed in range(3)]
    clock = [100.0]
    console = progress.Terminal(file=io.StringIO(), width=120, get_time=lambda: clock[0])
    with progress.RunDisplay(console) as display:
        display.plan(
            Plan(3, trials, {}, {t.key: Estimate(None, None, "") for t in trials}, ["cpu"])
        )
        for one, state in zip(trials, ("1/3", "2/3, 10 s left", "3/3"), strict=True):
            clock[0] += 9
            display.step(one, 20, 20, "loss 0.1")
            assert display.state().startswith(f"{len(display.ended)}/3"), (
                "its record is not there yet"
            )
            clock[0] += 1
            display.finish(one, make_record(one))
            assert display.state() == state


def test_a_log_that_was_quiet_for_long_says_how_far_a_trial_is(trial):
    clock = [100.0]
    console = progress.Terminal(file=io.StringIO(), width=120, get_time=lambda: clock[0])
    with progress.RunDisplay(console) as display:
        display.plan(Plan(1, [trial], {}, {trial.key: Estimate(None, None, "")}, ["cpu"]))
        for step in range(11):
            display.step(trial, step, 40, "loss [0.1]")
            clock[0] += 300
    lines = console.file.getvalue().splitlines()[2:]
    assert lines[0] == "   at  sign seed=3  2/40 loss [0.1]  [0/1, 3 h 10 min left]"
    assert [line.split()[3] for line in lines] == ["2/40", "4/40", "6/40", "8/40", "10/40"]


def test_under_a_cell_each_line_covers_the_one_before_and_none_stays(
    trial, make_record, capsys
):
    with progress.CellLine() as display:
        display.plan(Plan(2, [trial], {}, {trial.key: Estimate(None, None, "")}, ["cpu"]))
        display.step(trial, 0, 0, "")
        display.finish(trial, make_record(trial))
    print("1 record loaded")
    text = capsys.readouterr().out
    *lines, after = text.split("\r")
    assert [line.split()[0] for line in lines[:-1]] == ["2", "start", "ok"]
    assert lines[-1].isspace()
    assert sorted(map(len, lines)) == list(map(len, lines)), (
        "each is as long as the one before, at least"
    )
    assert progress.OVERWRITTEN.sub("", text) == after == "1 record loaded\n"
    assert progress.OVERWRITTEN.sub("", "a line of Windows\r\n") == "a line of Windows\r\n"


def test_under_a_cell_a_run_of_nothing_says_nothing(capsys):
    with progress.CellLine() as display:
        display.plan(Plan(2, [], {}, {}, []))
    assert capsys.readouterr().out == ""


def test_what_is_not_known_is_said(trial, make_record):
    def summary(all_seconds: tuple[float | None, ...], **fields: object) -> list[str]:
        trials, estimates = [], {}
        for seed, seconds in enumerate(all_seconds):
            trials.append(trial.model_copy(update={"seed": seed}))
            estimates[trials[-1].key] = Estimate(seconds, seconds and 10**9, "")
        defaults = {"failed": {}, "estimates": estimates, "devices": ["cpu"]}
        return progress.summary(Plan(total=3, todo=trials, **{**defaults, **fields}))

    assert summary(()) == ["3 trials: 3 have a record, 0 to run."]
    said = summary((), failed={"x": make_record(trial)})[0]
    assert said.endswith(
        "3 have a record (1 of a failure; --retry-failed runs those again), 0 to run."
    )
    assert summary((None, None))[1] == "On 1 worker; no record tells how long they take."
    assert summary((7200.0, None))[1].endswith(
        "at most 1.0 GB each; 1 without an estimate come on top."
    )
    assert "shared by the workers elsewhere" in summary((60.0,), devices=None)[1]
    assert (
        progress.describe(Estimate(7200, 3 * 10**8, "2 records"))
        == "about 2 h 0 min, 300.0 MB (2 records)"
    )
    assert (
        summary((60.0,), estimates={"x": Estimate(60, None, "")})[1]
        == "Expected: 60 s in all, 60 s on 1 worker."
    )
    assert (
        progress.describe(Estimate(7200, None, "by its FLOPs"))
        == "about 2 h 0 min (by its FLOPs)"
    )
    assert progress.describe(Estimate(None, None, "no record to go by")) == "no record to go by"


def test_a_plan_says_which_claims_a_larger_scale_has_judged(monkeypatch, tmp_path):
    stem, judged = (
        "negation_limitation",
        {"NEG-T1-rba-bias": "paper", "NEG-T1-em-bias": "cpu", "NEG-W-1": None},
    )
    verdicts = [
        SimpleNamespace(claim=SimpleNamespace(id=name), scale=scale)
        for name, scale in judged.items()
    ]
    monkeypatch.setattr(progress, "verdicts", lambda *_, **__: verdicts)
    for scale, expected in (("cpu", ["NEG-T1-rba-bias"]), ("paper", [])):
        trials = papers.experiments(stem)["sign"].trials(scale, seeds=[0])
        plan = Plan(
            len(trials), trials, {}, {t.key: Estimate(None, None, "") for t in trials}, ["cpu"]
        )
        lines = list(progress.costs(plan, Settings(scale=scale), Store(tmp_path)))
        assert [
            line.partition(":")[0]
            for line in lines
            if line.endswith("; judged at paper scale already")
        ] == expected


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (12, "12 s"),
        (89, "89 s"),
        (91, "2 min"),
        (5000, "83 min"),
        (12000, "3 h 20 min"),
    ],
)
def test_how_long_something_takes_in_words(seconds, words):
    assert progress.duration(seconds) == words
