"""What runs, what it will take and where it fits: arithmetic on records and devices that are made up, so no GPU is needed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import pytest

from capslib import papers
from capslib.errors import UserError
from capslib.lab import planning
from capslib.lab import store as storing
from capslib.lab.planning import (
    GIB,
    Estimate,
    Experience,
    outlook,
    pinned,
    plan,
    plan_workers,
    slots,
    work,
)
from capslib.lab.records import Record
from capslib.lab.settings import Settings
from capslib.papers.experiment import Trial


@pytest.mark.parametrize(
    ("trials", "free", "need", "cores", "devices"),
    [
        (100, [80], 10, 64, [0] * 8),
        (100, [80], 79, 64, [0]),
        (100, [80], 81, 64, [0]),  # it may still fit; that is for the trial to find out
        (3, [80], 10, 64, [0] * 3),
        (100, [80], 10, 4, [0] * 4),
        (100, [80, 80], 30, 64, [0, 1, 0, 1]),
        (3, [80, 80], 30, 64, [0, 1, 0]),
        (100, [80, 20, 50], 25, 64, [0, 1, 2, 0, 2, 0]),  # where more is free, more run
        (1, [80, 80], 1, 64, [0]),
    ],
)
def test_as_many_processes_share_a_device_as_fit(trials, free, need, cores, devices):
    found = slots(trials, free, need, cores)
    assert found == devices
    assert all(
        found.count(n) * need <= bytes_ or found.count(n) == 1 for n, bytes_ in enumerate(free)
    )


@pytest.fixture
def machine(monkeypatch):
    """A machine with so many cores and so much free memory on each of its devices."""

    def make(cores: int, **free: int) -> None:
        monkeypatch.setattr("dask.system.cpu_count", lambda: cores)
        monkeypatch.setattr(
            planning, "cuda_devices", lambda: sum(name.startswith("cuda") for name in free)
        )
        monkeypatch.setattr(
            planning, "free_memory", lambda device: free[device.replace(":", "")]
        )

    return make


def known(memory: int | None, n: int = 100) -> list[Estimate]:
    return [Estimate(1.0, memory, "")] * n


@pytest.mark.parametrize(
    ("settings", "memory", "devices"),
    [
        (dict(device="cuda"), None, ["cuda:0", "cuda:1"]),  # nothing known: one on each
        (
            dict(device="cuda"),
            8 * GIB,
            ["cuda:0", "cuda:1"] * 3,
        ),  # 8 × 1.25 and one for the process: 11 of 33 GiB
        (dict(device="cuda:1"), 8 * GIB, ["cuda:1"] * 3),
        (dict(device="cuda", workers=3), 8 * GIB, ["cuda:0", "cuda:1", "cuda:0"]),
        (dict(device="cuda:1", workers=2), None, ["cuda:1"] * 2),
        (dict(device="cuda", scale="smoke"), 8 * GIB, ["cuda:0"]),
        (dict(device="cpu"), None, ["cpu"] * 16),
        (dict(device="cpu"), 4 * GIB, ["cpu"] * 6),
        (dict(device="cpu", workers=2), 4 * GIB, ["cpu"] * 2),
        (dict(device="cpu", threads=4), None, ["cpu"] * 4),
        (dict(device="cpu", threads=32), None, ["cpu"]),
        (dict(device="cpu", scale="smoke"), None, ["cpu"]),
        (dict(device="mps"), 4 * GIB, ["mps"]),
    ],
)
def test_which_workers_there_are(machine, settings, memory, devices):
    machine(16, cpu=24 * GIB, cuda0=33 * GIB, cuda1=34 * GIB)
    assert plan_workers(Settings(**{"scale": "cpu", **settings}), known(memory)) == devices


def test_the_largest_trial_decides_and_one_unknown_is_enough_to_be_careful(machine):
    machine(16, cuda0=33 * GIB)
    settings = Settings(scale="cpu", device="cuda")
    assert len(plan_workers(settings, [*known(GIB), *known(8 * GIB, 1)])) == 3
    assert len(plan_workers(settings, [*known(GIB), *known(None, 1)])) == 1


@pytest.mark.parametrize(
    ("visible", "device", "seen"),
    [
        (None, "cuda:1", "1"),
        ("4,6", "cuda:1", "6"),
        ("GPU-a,GPU-b", "cuda:0", "GPU-a"),
        ("4,6", "cpu", None),
        (None, "cuda", None),
    ],
)
def test_a_process_sees_its_own_device_only(monkeypatch, visible, device, seen):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert pinned(device) == ({} if seen is None else {"CUDA_VISIBLE_DEVICES": seen})


def test_the_free_memory_of_this_machine_is_a_number_of_bytes():
    assert GIB // 8 < planning.free_memory("cpu") < 1 << 50


# ------------------------------------------------------------------------------------------------------------ estimates


NOTHING = Estimate(None, None, "no record to go by; --max-steps 20 rehearses it")


def estimate(trial: Trial, device: str, records: Iterable[Record]) -> Estimate:
    return Experience(records, device).estimate(trial)


@pytest.fixture
def ran(trial, make_record):
    """A record of the trial with another seed: how long it took, what it held, how it ended, where; and other fields."""

    def make(
        seconds: float,
        memory: int,
        seed: int,
        exit: str = "ok",
        device: str = "CPU (x86_64)",
        config=(),
        **more: object,
    ):
        other = trial.model_copy(
            update={"config": {**trial.config, **dict(config)}, "seed": seed}
        )
        made = make_record(
            other, wall_seconds=seconds, peak_memory_bytes=memory, exit=exit, **more
        )
        return made.model_copy(
            update={"environment": made.environment.model_copy(update={"device": device})}
        )

    return make


def test_an_estimate_is_of_the_nearest_records(trial, ran):
    far = [ran(99, 900, 0, config={"points": 7, "bias": False})]
    near = [
        ran(*took, n, config={"points": 7})
        for n, took in enumerate([(10, 300), (20, 500), (60, 400)])
    ]
    same = [ran(5, 70, 9)]
    misleading = [
        ran(1, 1, 7, exit="nan"),
        ran(1, 1, 6, exit="cut"),
        ran(2, 2, 8, device="NVIDIA H200"),
    ]
    assert estimate(trial, "cpu", []) == estimate(trial, "cpu", misleading) == NOTHING
    more = 22 / 8  # so many inputs are seen in each epoch
    assert estimate(trial, "cpu", far + misleading) == Estimate(
        more * 99, 900, "1 record with other bias, points"
    )
    assert estimate(trial, "cpu", far + near + misleading) == Estimate(
        more * 20, 500, "3 records with other points"
    )
    assert estimate(trial, "cpu", far + near + same + misleading) == Estimate(5, 70, "1 record")
    assert estimate(trial, "cuda", far + near + same + misleading) == Estimate(2, 2, "1 record")
    longer = ran(20, 70, 9, config={"epochs": 4 * papers.arm(trial).recipe.epochs})
    assert estimate(trial, "cpu", [longer]) == Estimate(5, 70, "1 record with other epochs")


def test_the_most_similar_step_tells_the_time_whatever_experiment_it_is_of(make_record):
    """The variants of learned routing: an LSTM takes 70 times the FLOPs of a kernel, and the grid of errors has LSTMs."""
    errors, variants = (
        papers.experiments("learned_routing")[name].trials("cpu")
        for name in ("errors", "variants")
    )
    waiting = next(t for t in variants if t.config.get("reads") == "released")
    kernel = make_record(
        next(t for t in variants if t.config.get("routing") == "similarity"), wall_seconds=300
    )
    other = {"routing", "trained", "reads"}
    digits = (
        t for t in errors if t.config.get("data") == "mnist" and not other & t.config.keys()
    )
    lstm = make_record(next(digits), wall_seconds=1200)
    assert estimate(waiting, "cpu", [kernel]).seconds == 300
    found = estimate(waiting, "cpu", [kernel, lstm])
    assert found.seconds == 1200
    assert found.basis.startswith("1 record with other experiment, ")
    own = make_record(waiting.model_copy(update={"seed": 9}), wall_seconds=1100)
    assert estimate(waiting, "cpu", [kernel, lstm, own]) == Estimate(
        1100, own.peak_memory_bytes, "1 record"
    )


def test_the_time_of_another_network_tells_nothing(make_record):
    """A CNN reaches forty times the operations a second: capsules were to take as long as it, whatever their size."""
    every = papers.experiments("em_routing")["test_error"].trials(
        "paper", where={"data": "smallnorb"}
    )
    cnn, capsules = (
        next(t for t in every if (t.config.get("network") == "cnn") == plain)
        for plain in (True, False)
    )
    small = papers.experiments("em_routing")["test_error"].trials(
        "cpu", where={"data": "smallnorb", "network": "matrix_capsnet"}
    )[0]
    ran = [make_record(cnn, wall_seconds=100), make_record(small, wall_seconds=100)]
    assert estimate(capsules, "cpu", ran[:1]).basis.startswith("by its FLOPs")
    assert estimate(capsules, "cpu", ran).seconds == pytest.approx(
        100 * work(capsules)[1] / work(small)[1]
    )


def test_a_field_left_at_its_default_is_another_than_one_that_is_changed(trial, ran):
    """Trials hold only what they change."""
    plain = trial.model_copy(
        update={"config": {k: v for k, v in trial.config.items() if k != "learning_rate"}}
    )
    assert estimate(plain, "cpu", [ran(5, 70, 9)]).basis == "1 record with other learning_rate"


def test_a_rehearsal_tells_step_for_step(trial, ran):
    steps = work(trial)[0]
    assert steps == papers.arm(trial).recipe.epochs  # 22 points make one batch
    cut = ran(3, 70, trial.seed, exit="cut", series={"seconds_of_steps": [0.1, 7, 0.1]})
    found = estimate(trial, "cpu", [cut])
    assert (found.seconds, found.memory) == (pytest.approx(3 + 0.1 * steps), 70), (
        "its start-up comes once"
    )
    assert found.basis == "by the steps of its rehearsal, without evaluations between epochs"
    assert estimate(trial, "cpu", [cut, ran(5, 70, 9)]).basis == "1 record", (
        "a whole run says more"
    )
    assert estimate(trial, "cuda", [cut]) == NOTHING
    failed = cut.model_copy(update={"message": "nan: step 1"})
    assert estimate(trial, "cpu", [failed]) == NOTHING


def test_the_flops_of_a_trial_tell_where_only_other_experiments_have_run(
    trial, ran, make_record
):
    """A trial with three times the FLOPs takes three times as long."""
    other = trial.model_copy(update={"scale": "paper"})
    slow, fast, middle = (ran(seconds, 70, seed) for seed, seconds in enumerate([100, 1, 10]))
    found = estimate(other, "cpu", [slow, fast, middle])
    assert (found.seconds, found.memory) == (pytest.approx(10), None)
    assert re.fullmatch(
        r"by its FLOPs, at the [\d.]+ GFLOP/s of the paper's most similar records", found.basis
    )
    longer = other.model_copy(
        update={"config": {**other.config, "epochs": 3 * papers.arm(other).recipe.epochs}}
    )
    assert work(longer) == tuple(3 * n for n in work(other))
    assert estimate(longer, "cpu", [slow, fast, middle]).seconds == pytest.approx(30)
    deeper = ran(1000, 70, 3, config={"hidden": papers.arm(other).recipe.hidden + 1})
    assert estimate(other, "cpu", [deeper, fast]).seconds == pytest.approx(1), (
        "the network that differs less tells"
    )
    elsewhere = papers.experiments("negation_limitation")["depth"].trials("cpu")[0]
    assert estimate(elsewhere, "cpu", [fast]) == NOTHING, (
        "a network so small spends its time between its operations"
    )
    large = make_record(elsewhere.model_copy(update={"seed": 9}), wall_seconds=7.0)
    more = papers.experiments("negation_limitation")["depth"].trials("paper")[0]
    assert estimate(more, "cpu", [fast, large]).seconds == pytest.approx(
        7 * work(more)[1] / work(elsewhere)[1]
    ), "same experiment"
    untrained = papers.experiments("negation_limitation")["symmetry"].trials("cpu")[0]
    assert work(untrained) == (0, 0)
    assert estimate(untrained, "cpu", [slow, fast, middle]) == NOTHING


@pytest.mark.parametrize(
    ("stem", "experiment", "change", "says"),
    [
        (
            "em_routing",
            "test_error",
            dict(network="consensus_capsnet"),
            "consensus_capsnet, em routing and toys do not go together: .*'preset'",
        ),
        (
            "negation_limitation",
            "sign",
            dict(network="matrix_capsnet"),
            "matrix_capsnet, dynamic routing and its data do not go together",
        ),
        (
            "inequality_anomaly",
            "detection",
            dict(data="crispr"),
            "crispr do not go together: inputs of 4 × 23 are too small",
        ),
        (
            "negation_limitation",
            "depth",
            dict(kernel=17),
            "digits do not go together: images of 8 × 8 are too small",
        ),
        (
            "learned_routing",
            "errors",
            dict(sizes=(0, 0, 0, 0)),
            "connectionist routing and digits do not go together: .*division by zero",
        ),
        (
            "inequality_anomaly",
            "detection",
            dict(data="affnist"),
            "affnist is not split into train and test",
        ),
    ],
)
def test_what_does_not_go_together_is_said_when_it_is_counted(stem, experiment, change, says):
    """``--dry-run --set network=…`` ended in a traceback from inside a network."""
    trial = papers.experiments(stem)[experiment].trials("smoke", change=change)[0]
    with pytest.raises(UserError, match=says):
        work(trial)


def test_a_record_whose_configuration_nobody_knows_is_no_experience(trial, make_record):
    """It may be old, or a stranger's."""
    gone = [{"experiment": "symmetry", "config": {"gone": 1}}, {"experiment": "gone"}]
    assert (
        estimate(
            trial, "cpu", [make_record(trial.model_copy(update=change)) for change in gone]
        )
        == NOTHING
    )


def test_planning_is_linear_in_trials_and_records(trial, store, make_record, monkeypatch):
    """A thousand trials and as many records, of six configurations: each file is read, and each trial compared, a few times."""
    arms = [{**trial.config, "hidden": hidden} for hidden in range(1, 7)]
    records = [
        make_record(trial.model_copy(update={"config": arm, "seed": s}))
        for s in range(168)
        for arm in arms
    ]
    for record in records:
        store.put(record)
    trials = [
        trial.model_copy(update={"config": arm, "seed": s})
        for s in range(1000, 1167)
        for arm in arms
    ]
    counts: Counter[str] = Counter()

    def count(module: object, name: str) -> None:
        function = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *given: counts.update([name]) or function(*given)
        )

    class Fields(frozenset):
        def __xor__(self, other):
            counts["comparisons"] += 1
            return frozenset.__xor__(self, other)

    fields = planning._fields
    monkeypatch.setattr(planning, "_fields", lambda trial: Fields(fields(trial)))
    count(planning, "_fields")
    count(storing, "read_record")
    planned = plan(trials, store, Settings(scale="cpu", workers=1))
    assert len(planned.todo) == len(trials) == 1002
    assert counts["read_record"] == len(records), "each record once"
    assert counts["_fields"] == len(records) + len(trials)
    assert counts["comparisons"] == len(arms) * len(trials), (
        "with each configuration, not with each record"
    )
    assert {e.basis for e in planned.known.values()} == {"168 records"}


def test_a_plan_has_what_is_missing_and_what_has_failed(trial, store, make_record):
    trials = [trial.model_copy(update={"seed": seed}) for seed in range(7)]
    for made, exit in zip(
        trials, ("ok", "nan", "oom", "error", "interrupted", "cut"), strict=False
    ):
        store.put(make_record(made, exit=exit))
    settings = Settings(scale="cpu", workers=2)
    first, again = (
        plan(trials, store, settings),
        plan(trials, store, settings, retry_failed=True),
    )
    assert [t.seed for t in first.todo] == [4, 5, 6]
    assert [t.seed for t in again.todo] == [1, 2, 3, 4, 5, 6]
    assert first.failed.keys() == again.failed.keys() == {t.key for t in trials[1:6]}
    assert first.known.keys() == {t.key for t in first.todo}
    assert (first.total, first.devices) == (7, ["cpu", "cpu"])
    assert plan(trials[:4], store, settings).devices == []
    assert (
        plan(trials, store, Settings(scale="cpu", scheduler="tcp://there:8786")).devices is None
    )


def test_the_outlook_of_a_chapter_is_what_its_trials_still_take(store, make_record):
    experiment = papers.experiments("negation_limitation")["sign"]
    trials = experiment.trials("smoke")
    empty = {name: more for name, *more in outlook("negation_limitation", "smoke", store)}
    assert "symmetry" not in empty, "it trains nothing"
    assert empty["sign"] == [len(trials), len(trials), sum(work(t)[1] for t in trials), None]
    for trial in trials[1:]:
        store.put(make_record(trial, wall_seconds=1800))
    (count, waiting, flops, hours) = {
        name: more for name, *more in outlook("negation_limitation", "smoke", store)
    }["sign"]
    assert (count, waiting, flops, hours) == (len(trials), 1, work(trials[0])[1], 0.5)
    store.put(make_record(trials[0]))
    assert "sign" not in [
        name for name, *_ in outlook("negation_limitation", "smoke", store)
    ], "it is done"
