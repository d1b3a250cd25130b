"""Trials and their keys, records and their form, and how a trial may end."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import toys
from helpers import make_record
from pydantic import ValidationError

from capslib.errors import NotFinite, UserError
from capslib.lab import provenance, runs
from capslib.lab.provenance import Checkout, code_of
from capslib.lab.records import Record
from capslib.lab.runs import run_trial
from capslib.papers import WITH_TRIALS, experiments
from capslib.papers.experiment import SCALES, TWICE, Arm, DataFingerprint, Metric, Trial
from capslib.training import Context


def make_experiment(run=toys.measured):
    """Return an experiment around ``run``; by default one that measures its own size."""
    return toys.experiment(toys.ToyOptions, run)


# ------------------------------------------------------------------------------------------
# keys


def test_the_key_of_a_trial_never_changes(trial):
    """If this fails, every committed record has lost its name. Raise the revision of an
    experiment instead.
    """
    config = {
        "routing": "dynamic",
        "bias": True,
        "points": 20,
        "learning_rate": 0.005,
        "decoder": [8, 16],
    }
    assert trial.model_copy(update={"config": config}).key == "2fe240753d98bbbe"


def test_the_key_knows_every_field(trial):
    changes = {
        "paper": "em_routing",
        "experiment": "depth",
        "revision": 2,
        "scale": "paper",
        "seed": 4,
        "config": {**trial.config, "points": 21},
    }
    assert set(changes) == set(Trial.model_fields), "a new field needs a line here"
    for name, value in changes.items():
        assert trial.model_copy(update={name: value}).key != trial.key


def test_the_key_does_not_know_the_order_of_fields_or_the_way_through_json(trial):
    backwards = trial.model_copy(update={"config": dict(reversed(trial.config.items()))})
    assert backwards.key == trial.key == Trial.model_validate_json(trial.model_dump_json()).key


def test_equal_settings_are_one_trial_however_they_are_written():
    experiment = make_experiment()
    keys = set()
    for fields in ({"size": 1}, {"size": "1"}, {}):  # a default may be written out
        arm = Arm("", options=toys.ToyOptions(**fields))
        keys.add(experiment.trial("cpu", arm, 0).key)
    assert len(keys) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"scale": "huge"},
        {"seed": -1},
        {"seed": 2**60},
        {"revision": 0},
        {"config": {"size": 10**101}},
    ],
)
def test_a_trial_out_of_range_is_refused(trial, change):
    with pytest.raises(ValidationError):
        Trial.model_validate({**trial.model_dump(), **change})


# ------------------------------------------------------------------------------------------
# selections


def test_where_selects_trials_and_change_sets_their_fields():
    experiment = make_experiment()
    trials = experiment.trials("cpu", seeds=(7, 5), where={"size": 2})
    assert [(trial.seed, trial.config) for trial in trials] == [
        (7, {"size": 2}),
        (5, {"size": 2}),
    ]
    trials = experiment.trials("cpu", where={"seed": 1})
    assert [trial.seed for trial in trials] == [1, 1, 1]
    (trial,) = experiment.trials("smoke", change={"size": "9"})
    assert trial.config == {"size": 9}, "three arms that became one"


@pytest.mark.parametrize(
    ("selection", "says"),
    [
        ({"where": {"siz": 1}}, "Unknown field of toy 'siz'. Did you mean 'size'"),
        ({"change": {"siz": 1}}, "Unknown field of toy 'siz'. Did you mean 'size'"),
        (
            {"where": {"size": 7}},
            "toy at scale smoke has size=7. There are: size=1; size=2; size=3.",
        ),
        ({"where": {"seed": 7}}, "toy at scale smoke has no seed 7. There are: 0."),
        ({"change": {"size": "many"}}, "Configuration of toy: size = 'many'"),
    ],
)
def test_a_bad_selection_is_a_user_error(selection, says):
    with pytest.raises(UserError) as error:
        make_experiment().trials("smoke", **selection)
    assert says in str(error.value)


def test_an_experiment_knows_the_budget_of_a_trial():
    sign = experiments("negation_limitation")["sign"]
    trial, *_ = sign.trials("cpu")
    assert sign.budget(trial) == 1
    arm = sign.arm("cpu", trial.config)
    double, *_ = sign.trials("cpu", where={"arm": f"{arm.name}{TWICE}"})
    assert sign.budget(double) == 2
    for change in ({"revision": 99}, {"seed": 99}, {"config": {**trial.config, "points": 99}}):
        assert sign.budget(trial.model_copy(update=change)) == 0


@pytest.mark.parametrize("stem", WITH_TRIALS)
def test_convolutions_in_bfloat16_count_for_no_claim(stem):
    for experiment in experiments(stem).values():
        if "convolutions" not in experiment.fields:
            continue
        for scale in SCALES:
            for trial in experiment.trials(scale, change={"convolutions": "bfloat16"}):
                assert trial.config["convolutions"] == "bfloat16"
                assert experiment.budget(trial) == 0


# ------------------------------------------------------------------------------------------
# records


@pytest.mark.parametrize("change", [{"exit": "fine"}, {"wall_seconds": -1}, {"config": None}])
def test_a_record_out_of_range_is_refused(trial, change):
    with pytest.raises(ValidationError):
        make_record(trial, **change)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_a_metric_is_a_finite_number(value):
    with pytest.raises(ValidationError):
        Metric(value=value, n=1, unit="fraction")


def test_a_record_survives_json_to_the_last_bit(trial):
    record = make_record(trial, series={"x": [1 / 3, 1e-300, 0.1 + 0.2]}, resumed_from=[3, 9])
    assert Record.model_validate_json(record.model_dump_json(indent=1)) == record


def test_a_record_is_real_unless_a_stand_in_was_seen(trial):
    real = DataFingerprint(name="x", sha256="0" * 64, stand_in=False, complete=True)
    stand_in = real.model_copy(update={"stand_in": True})
    assert make_record(trial, data=[real]).real
    assert not make_record(trial, data=[real, stand_in]).real


# ------------------------------------------------------------------------------------------
# machines


def test_the_device_of_a_record_is_the_one_it_ran_on(monkeypatch):
    """A record of an Apple GPU must not pass for one of its CPU."""
    monkeypatch.setattr(runs.platform, "machine", lambda: "arm64")
    gpu = runs._environment("mps")
    cpu = runs._environment("cpu")
    assert (gpu.device, gpu.deterministic) == ("MPS (arm64)", False)
    assert (cpu.device, cpu.deterministic) == ("CPU (arm64)", True)


# ------------------------------------------------------------------------------------------
# how a trial ends


def run(experiment, store, seed: int = 0) -> Record:
    (trial,) = experiment.trials("smoke", where={"size": 2}, seeds=[seed])
    return run_trial(experiment, trial, store, Context(seed=seed))


def weights(folder: Path, size: int = 2, seed: int = 0) -> Path:
    """Where the training of the toy of :func:`run` has its checkpoint or its final weights."""
    arm = Arm("", options=toys.ToyOptions(size=size))
    return toys.training(arm, seed).path(folder)


def raising(error: BaseException):
    def run(arm, context):
        path = weights(context.folder, arm.options.size)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"a long way already")
        raise error

    return run


def test_the_revision_of_a_record_is_that_at_the_start_of_its_trial(store, monkeypatch):
    """A commit or a pull while a trial runs does not change the code that it has loaded."""

    def looking(arm, context):
        moved = Checkout("b" * 40, False)
        monkeypatch.setattr(provenance, "checkout", lambda: moved)
        return toys.measured(arm, context)

    experiment = make_experiment(looking)
    code = code_of(experiment)
    assert run(experiment, store).code == code


def test_a_record_of_code_that_changed_meanwhile_says_so(store, monkeypatch):
    def edited(arm, context):
        monkeypatch.setattr(provenance, "hash_of_code", lambda *_: "f" * 64)
        return toys.measured(arm, context)

    experiment = make_experiment(edited)
    code = code_of(experiment)
    record = run(experiment, store)
    assert record.code == code.model_copy(update={"dirty": True})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"series": {"loss": [0.5, float("nan")]}}, r"series\.loss\.1: Input should be"),
        ({"routing_path": "slow"}, "routing_path: Input should be"),
        ({"parameters": -1}, "parameters: Input should be greater"),
    ],
)
@pytest.mark.parametrize("max_steps", [None, 3])
def test_what_no_record_can_hold_is_an_error_with_its_reason(store, change, reason, max_steps):
    """Other trials go on, and the record says why."""

    def measured(arm, context):
        return replace(toys.measured(arm, context), **change)

    experiment = make_experiment(measured)
    (trial,) = experiment.trials("smoke", where={"size": 2})
    record = run_trial(experiment, trial, store, Context(seed=0, max_steps=max_steps))
    assert record == store.get(trial)
    assert record.failed
    assert record.exit == ("cut" if max_steps else "error")
    assert re.search(f"no record can hold what it measured: {reason}", record.message)
    assert record.message.removeprefix("error: ") in store.log(trial).read_text("utf-8")


def test_a_message_that_is_no_unicode_is_kept_as_escapes(store):
    """As of a file whose name is in another encoding."""
    record = run(make_experiment(raising(OSError("caf\udce9"))), store)
    assert record.message.startswith("OSError: caf\\udce9 (")
    assert "caf\\udce9" in store.log(record.trial).read_text("utf-8")


def test_a_trial_that_ends_well_leaves_a_record(store):
    record = run(make_experiment(), store, seed=5)
    assert record == store.get(record.trial)
    assert (record.exit, record.message, record.metrics["size"].value) == ("ok", "", 7)
    assert record.key == record.trial.key
    assert record.environment.threads == torch.get_num_threads()
    assert record.code.capslib == code_of(make_experiment()).capslib
    assert record.peak_memory_bytes > 2**20
    assert record.started <= record.finished


@pytest.mark.parametrize(
    ("error", "exit", "message"),
    [
        (NotFinite("step 7: conv is not finite"), "nan", "step 7: conv is not finite"),
        (torch.OutOfMemoryError("CUDA out of memory.\nTried"), "oom", "CUDA out of memory."),
        (MemoryError(), "oom", "MemoryError"),
        (ZeroDivisionError("by nothing"), "error", "ZeroDivisionError: by nothing"),
        (SystemExit(3), "error", "SystemExit: 3"),
    ],
)
def test_a_trial_that_fails_is_recorded_with_its_reason(store, error, exit, message):
    record = run(make_experiment(raising(error)), store)
    reason, _, line = record.message.partition(" (")
    assert (record.exit, reason, record.metrics) == (exit, message, {})
    assert line.startswith("test_trials.py:") is (exit == "error")
    assert store.get(record.trial) == record
    assert weights(store.trainings).exists(), "another experiment may share the training"


@pytest.mark.parametrize("failed", [False, True])
def test_a_rehearsal_is_recorded_as_such_even_where_it_fails(store, failed):
    """A NaN in it would else pass for a result; and it has no say over the checkpoint of the
    whole run.
    """
    experiment = make_experiment(*([raising(NotFinite("step 7"))] if failed else []))
    (trial,) = experiment.trials("smoke", where={"size": 2})
    weights(store.trainings).parent.mkdir(parents=True)
    weights(store.trainings).write_bytes(b"a long way already")
    record = run_trial(experiment, trial, store, Context(seed=0, max_steps=3))
    assert (record.exit, record.message, record.failed) == (
        "cut",
        "nan: step 7" if failed else "",
        failed,
    )
    assert store.get(trial) == record
    assert weights(store.trainings).read_bytes() == b"a long way already"


@pytest.mark.parametrize("error", [UserError("no such data"), KeyboardInterrupt()])
def test_what_is_no_result_is_raised_and_the_checkpoint_stays(store, error):
    experiment = make_experiment(raising(error))
    with pytest.raises(type(error)):
        run(experiment, store)
    assert list(store.records()) == []
    assert weights(store.trainings).read_bytes() == b"a long way already"
