"""What a user sees of a run, on a terminal and in a file."""

from __future__ import annotations

import io

import pytest
from helpers import make_record

from capslib import papers
from capslib.lab import progress
from capslib.lab.budget import Bundle, Cost, Waiting, choose
from capslib.lab.estimates import UNKNOWN, Estimate
from capslib.lab.planning import Crew, Plan
from capslib.papers.experiment import Trial


def planned(trials: list[Trial], *estimates: Estimate, **fields: object) -> Plan:
    """Return a plan to run all these trials on one worker; without estimates none is known."""
    estimates = estimates or [UNKNOWN] * len(trials)
    by_key = dict(zip([trial.key for trial in trials], estimates, strict=True))
    return Plan(
        **{"total": len(trials), "todo": trials, "not_ok": {}} | fields, estimates=by_key
    )


@pytest.fixture
def trials(trial) -> list[Trial]:
    return [trial.model_copy(update={"seed": seed}) for seed in range(3)]


class Screen:
    """A console with a clock of its own, that keeps what is written."""

    def __init__(self, terminal: bool = False):
        self.now = 100.0
        self.state = ""
        """What the display said of its state before it ended."""
        self.file = io.StringIO()
        console = progress.Terminal(
            file=self.file, force_terminal=terminal, width=120, get_time=lambda: self.now
        )
        self.display = progress.RunDisplay(console)

    @property
    def lines(self) -> list[str]:
        return self.file.getvalue().splitlines()


@pytest.fixture
def play(trials):
    """Play a run of three trials, in which one fails, and return its screen."""

    def run(*seconds: float | None, terminal: bool = False) -> Screen:
        estimates = [Estimate(s, s and 10**8, "a guess") for s in seconds]
        screen = Screen(terminal)
        with screen.display as display:
            display.plan(planned(trials, *estimates, total=5, devices=["cpu", "cpu"]))
            for trial in trials:
                display.step(trial, 0, 0, "")
            display.step(trials[2], 15, 30, "loss [0.1]")
            screen.now = 145.0
            display.finish(trials[0], make_record(trials[0]))
            screen.now = 190.0
            failed = make_record(trials[1], exit="nan", metrics={}, message="step 3 [of 1]")
            display.finish(trials[1], failed)
            display.step(trials[1], 29, 30, "said before its record came")
            screen.state = display.state()
            if terminal:
                display.progress.refresh()
        return screen

    return run


def test_lines_for_a_file(play):
    lines = play(10, 20, 30).lines
    assert "".join(lines).isascii()
    assert lines[0] == (
        "5 trials at scale cpu: 2 have a record, 3 to run. "
        "Expected on 2 workers: about 30 s, 3 by a guess, at most 100.0 MB each."
    )
    assert lines[1:4] == [f"start  sign seed={seed}  [0/3]" for seed in range(3)]
    assert lines[4].startswith("   ok  sign seed=0  train_accuracy=0.5  1.5 s  [1/3")
    assert lines[5].startswith("  nan  sign seed=1  step 3 [of 1]  1.5 s  [2/3")
    assert len(lines) == 6


def test_bars_on_a_terminal(play):
    text = play(10, 20, 30, terminal=True).file.getvalue()
    assert "15/30 loss [0.1]" in text
    assert "all trials" in text


def test_the_time_left_goes_by_what_the_trials_are_expected_to_take(play):
    """The third trial is half done at 100 s, the others end at 145 s and 190 s. Rich's estimate
    starts with the first progress.
    """
    # 10 + 20 of 60 in 90 s, 15 to go
    assert play(10, 20, 30).state == "2/3, 45 s left"
    # trials alike: 2 of 3 in 90 s, half of one to go
    assert play(10, None, 30).state == "2/3, 23 s left"


def test_the_end_of_the_first_trial_alone_says_nothing_of_the_time_left(trials):
    """A rehearsal tells of one step per trial, the last one: what its record takes after that
    is no measure of a trial.
    """
    screen = Screen()
    states = []
    with screen.display as display:
        display.plan(planned(trials, devices=["cpu"]))
        for trial in trials:
            screen.now += 9
            display.step(trial, 20, 20, "loss 0.1")
            screen.now += 1
            display.finish(trial, make_record(trial))
            states.append(display.state())
    assert states == ["1/3", "2/3, 10 s left", "3/3"]


def test_a_log_that_was_quiet_for_long_says_how_far_a_trial_is(trial):
    screen = Screen()
    with screen.display as display:
        display.plan(planned([trial], devices=["cpu"]))
        for step in range(5):
            display.step(trial, step, 40, "loss [0.1]")
            screen.now += 300
    first, second = screen.lines[2:]
    assert first == "   at  sign seed=3  2/40 loss [0.1]  [0/1, 3 h 10 min left]"
    assert second.startswith("   at  sign seed=3  4/40")


def test_under_a_cell_each_line_covers_the_one_before_and_none_stays(trial, capsys):
    with progress.CellLine() as display:
        display.plan(planned([trial], devices=["cpu"]))
        display.step(trial, 0, 0, "")
        display.finish(trial, make_record(trial))
    print("1 record loaded")
    text = capsys.readouterr().out
    *lines, _ = text.split("\r")
    assert [line.split()[0] for line in lines[:-1]] == ["1", "start", "ok"]
    lengths = [len(line) for line in lines]
    assert lengths == sorted(lengths)
    assert progress.OVERWRITTEN.sub("", text) == "1 record loaded\n"


def test_under_a_cell_a_run_of_nothing_says_nothing(capsys):
    with progress.CellLine() as display:
        display.plan(planned([], devices=[]))
    assert capsys.readouterr().out == ""


def test_what_is_not_known_is_said(trials):
    def summary(*estimates: Estimate, **fields: object) -> str:
        fields = {"total": 3, "devices": ["cpu"]} | fields
        plan = planned(trials[: len(estimates)], *estimates, **fields)
        return " ".join(progress.summary(plan))

    long = Estimate(7200, 10**9, "records", 3600, 9000)
    assert summary() == "3 trials: 3 have a record, 0 to run."
    failed = {"x": make_record(trials[0])}
    assert "(1 of a failure; --retry-failed runs those again)" in summary(not_ok=failed)
    assert "No record tells how long they take on 1 worker." in summary(UNKNOWN)
    rehearsal = "1 to run. They are rehearsed: 20 steps of each training."
    assert summary(long, max_steps=20).endswith(rehearsal), "not the time of the whole run"
    both = summary(long, UNKNOWN)
    assert "2 h 0 min (60 min to 2 h 30 min), 1 by records; 1 without an estimate come" in both
    assert "Expected on a worker elsewhere: about 2 h" in summary(long, devices=None)
    expected = "about 2 h 0 min (60 min to 2 h 30 min), 1.0 GB; by records"
    assert progress.describe(long) == expected
    assert progress.describe(UNKNOWN) == UNKNOWN.basis


# -------------------------------------------------------------------------- plans in lines


@pytest.fixture
def depth() -> list[Trial]:
    """The three seeds of two networks."""
    experiment = papers.experiments("negation_limitation")["depth"]
    where = {"data": "mnist", "routing": "dynamic", "depth": 2}
    return experiment.trials("cpu", where=where)


def in_lines(trials: list[Trial], *bundles: Bundle, list_trials: bool = False) -> list[str]:
    estimates = [Estimate(60.0, None, "records", 30.0, 90.0)] * len(trials)
    plan = planned(trials, *estimates, devices=["cpu", "cpu"])
    waiting = Waiting(list(bundles), {trial.key: trial for trial in trials})
    costs = {key: Cost(estimate) for key, estimate in plan.estimates.items()}
    return list(progress.plan_lines(plan, waiting, costs, list_trials=list_trials))


def test_a_plan_has_a_line_for_each_group_and_one_for_what_decides_nothing(depth):
    rest = [trial.key for trial in depth[1:]]
    group = Bundle(("NEG-W-5", "NEG-W-6"), frozenset(rest))
    lines = in_lines(depth * 3, group)
    assert len(lines) == 4
    assert lines[0] == progress.HEAD
    names = "negation_limitation/depth mnist/dynamic/2/*: NEG-W-5, NEG-W-6; 5 by records"
    assert lines[1].endswith(names)
    assert lines[1].split()[:2] == ["5", "2"], "trials, and workers"
    assert "about 2 min (75 s to 4 min)" in lines[1]
    assert lines[2].split()[0] == "1"
    assert "NEG" not in lines[2], "it decides nothing by itself"
    assert "; 1 by records" in lines[2]
    assert lines[3].startswith("all: 18 trials, about ")
    assert "TFLOP" in lines[3]


def test_few_trials_are_listed_one_by_one_and_many_if_asked(depth):
    assert len(depth) <= progress.FEW_TRIALS < 3 * len(depth)
    assert str(depth[0]) in in_lines(depth)[0]
    assert str(depth[0]) not in in_lines(depth * 3)[0]
    assert str(depth[0]) in in_lines(depth * 3, list_trials=True)[0]


def test_a_choice_says_what_it_decides_what_it_begins_and_what_it_leaves_out(depth):
    keys = [trial.key for trial in depth]
    bundles = [Bundle((f"NEG-W-{n}",), frozenset([key])) for n, key in enumerate(keys, 1)]
    costs = {key: Cost(Estimate(60.0, None, "records")) for key in keys}
    trials = {trial.key: trial for trial in depth}
    choice = choose(bundles, costs, 200, lambda _: Crew(1, 1))
    lines = list(progress.choice_lines(choice, trials, most=1))
    first_words = [line.split()[0] for line in lines]
    assert first_words == ["trials", "1", "1", "1", "all:", "The", "1", "Left", "1"]
    assert "3 trials to decide 3 claims, " in lines[4]
    assert lines[4].endswith("headline claims, in about 3 min, 3 by records.")
    assert lines[-2].startswith("Left out, 3 claims in all")
    assert (
        list(progress.choice_lines(choice, trials, most=0))[-1] == "Left out, 3 claims in all."
    )
    one = choose(bundles, costs, 60)
    assert "all: 1 trial to decide 1 claim, " in list(progress.choice_lines(one, trials))[2]
    nothing = choose(bundles, costs, 30)
    first = next(progress.choice_lines(nothing, trials))
    assert first.startswith("The time that is left")


def test_a_label_has_stars_where_arms_differ(depth):
    assert progress.label_of(depth[:1]) == "negation_limitation/depth mnist/dynamic/2/no_bias"
    assert progress.label_of(depth) == "negation_limitation/depth mnist/dynamic/2/*"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(9.94, "9.9 s"), (89, "89 s"), (91, "2 min"), (12000, "3 h 20 min")],
)
def test_how_long_something_takes_in_words(seconds, words):
    assert progress.duration(seconds) == words
