"""What runs, what it will take and where it fits: arithmetic on records and devices that are
made up, so no GPU is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from capslib import papers
from capslib.errors import UserError
from capslib.lab import estimates, planning
from capslib.lab import store as storing
from capslib.lab.estimates import UNKNOWN, Estimate, Experience, Outlook, outlook, work
from capslib.lab.planning import GIB, pinned, plan, plan_workers, slots
from capslib.lab.records import Record
from capslib.lab.settings import Settings
from capslib.papers.experiment import Trial
from capslib.recipes import flops


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
    result = slots(trials, free, need, cores)
    assert result == devices
    assert all(
        result.count(n) * need <= bytes_ or result.count(n) == 1
        for n, bytes_ in enumerate(free)
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


# ------------------------------------------------------------------------------------------
# estimates


def estimate(trial: Trial, device: str, records: Iterable[Record]) -> Estimate:
    return Experience(records, device).estimate(trial)


@pytest.fixture
def ran(trial, make_record):
    """A record of the trial with another seed: how long it took, what it held, how it ended,
    where; and other fields.
    """

    def make(
        seconds: float,
        memory: int,
        seed: int,
        exit: str = "ok",
        device: str = "CPU (x86_64)",
        config=(),
        **more: object,
    ):
        changed = trial.model_copy(
            update={"config": {**trial.config, **dict(config)}, "seed": seed}
        )
        made = make_record(
            changed, wall_seconds=seconds, peak_memory_bytes=memory, exit=exit, **more
        )
        return made.model_copy(
            update={"environment": made.environment.model_copy(update={"device": device})}
        )

    return make


def test_an_estimate_is_the_median_of_records_of_the_same_step(trial, ran):
    """Epochs and data change the number of steps; a network changes the step."""
    points = [ran(*took, n) for n, took in enumerate([(10, 300), (20, 500), (60, 400)])]
    misleading = [
        ran(1, 1, 7, exit="nan"),
        ran(1, 1, 6, exit="cut"),
        ran(2, 2, 8, device="NVIDIA H200"),
    ]
    assert estimate(trial, "cpu", []) == estimate(trial, "cpu", misleading) == UNKNOWN
    result = estimate(trial, "cpu", points + misleading)
    assert (result.seconds, result.memory) == (pytest.approx(20), 500)
    assert result.basis == "3 records of the same step"
    assert estimate(trial, "cuda", points + misleading).seconds == pytest.approx(2)
    doubled = ran(20, 70, 9, config={"epochs": 4 * papers.arm(trial).recipe.epochs})
    assert estimate(trial, "cpu", [doubled]).seconds == pytest.approx(5)
    without_bias = ran(99, 900, 0, config={"bias": False})
    assert estimate(trial, "cpu", [without_bias]).basis.startswith("by its FLOPs")


def test_a_step_of_another_experiment_tells_where_its_own_has_none(make_record):
    experiments = papers.experiments("negation_limitation")
    depth, negated = (experiments[name].trials("cpu") for name in ("depth", "negated"))
    waiting = next(t for t in depth if t.config["data"] == "mnist" and t.config["depth"] == 3)
    pairs = next(t for t in negated if t.config["routing"] == waiting.config["routing"])
    same_step = {**waiting.config, "epochs": 8}
    elsewhere = pairs.model_copy(update={"config": {**same_step, "front": None}})
    record = make_record(elsewhere, wall_seconds=100)
    result = estimate(waiting, "cpu", [record])
    assert result.seconds == pytest.approx(50)
    assert result.basis == "1 record of the same step of other experiments"


def test_the_time_of_another_network_tells_less_than_that_of_the_same(make_record):
    """A CNN reaches forty times the operations a second of capsules."""
    experiment = papers.experiments("negation_limitation")["depth"]
    dynamic, em = (
        experiment.trials("cpu", where={"data": "mnist", "routing": routing, "depth": 5})[0]
        for routing in ("dynamic", "em_vector")
    )
    waiting = experiment.trials("paper", where={"routing": "em_vector", "depth": 6})[0]
    records = [make_record(dynamic, wall_seconds=1), make_record(em, wall_seconds=100)]
    for known, nearest in ((records[:1], dynamic), (records, em)):
        seconds = known[-1].wall_seconds * work(waiting).flops / work(nearest).flops
        assert estimate(waiting, "cpu", known).seconds == pytest.approx(seconds)


def test_a_step_is_counted_where_the_cache_cannot_be_written(trial, tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setattr(estimates, "_counted", {})
    (recipe,) = estimates.recipes(trial)
    expected = flops(recipe)
    estimates._kept_count.cache_clear()
    assert estimates.flops_of_step(recipe) == expected
    estimates._kept_count.cache_clear()


def test_a_rehearsal_tells_step_for_step(trial, ran):
    steps = work(trial)[0]
    assert steps == papers.arm(trial).recipe.epochs  # 22 points make one batch
    cut = ran(3, 70, trial.seed, exit="cut", series={"seconds_of_steps": [0.1, 7, 0.1]})
    result = estimate(trial, "cpu", [cut])
    assert (result.seconds, result.memory) == (pytest.approx(3 + 0.1 * steps), 70), (
        "its start-up comes once"
    )
    assert result.basis == "by the steps of its rehearsal, without evaluations between epochs"
    assert estimate(trial, "cpu", [cut, ran(5, 70, 9)]).basis == "1 record of the same step", (
        "a whole run says more"
    )
    assert estimate(trial, "cuda", [cut]) == UNKNOWN
    failed = cut.model_copy(update={"message": "nan: step 1"})
    assert estimate(trial, "cpu", [failed]) == UNKNOWN


def test_flops_tell_where_no_record_has_the_same_step(trial, ran, make_record):
    """A trial with three times the FLOPs takes three times as long."""
    seconds = [ran(seconds, 70, seed) for seed, seconds in enumerate([100, 1, 10])]
    config = {**trial.config, "hidden": papers.arm(trial).recipe.hidden + 1}
    wider = trial.model_copy(update={"config": config})
    result = estimate(wider, "cpu", seconds)
    ratio = work(wider).flops / work(trial).flops
    assert (result.seconds, result.memory) == (pytest.approx(10 * ratio), None)
    assert re.fullmatch(
        r"by its FLOPs, at the [\d.]+ GFLOP/s of the paper's records", result.basis
    )
    depth = papers.experiments("negation_limitation")["depth"].trials("cpu")[0]
    assert estimate(depth, "cpu", seconds) == UNKNOWN, (
        "steps so small tell nothing of large ones"
    )
    untrained = papers.experiments("negation_limitation")["symmetry"].trials("cpu")[0]
    assert work(untrained) == (0, 0)
    assert estimate(untrained, "cpu", seconds) == UNKNOWN


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
        == UNKNOWN
    )


def test_a_plan_reads_each_record_once(trial, store, make_record, monkeypatch):
    """A hundred trials and as many records, of six configurations."""
    arms = [{**trial.config, "hidden": hidden} for hidden in range(1, 7)]

    def trials(seeds: range) -> list[Trial]:
        return [
            trial.model_copy(update={"config": arm, "seed": seed})
            for seed in seeds
            for arm in arms
        ]

    records = [make_record(t) for t in trials(range(20))]
    for record in records:
        store.put(record)
    reads: list[Path] = []
    read_record = storing.read_record

    def reading(path: Path) -> Record:
        reads.append(path)
        return read_record(path)

    monkeypatch.setattr(storing, "read_record", reading)
    planned = plan(trials(range(1000, 1020)), store, Settings(scale="cpu", workers=1))
    assert len(planned.todo) == 120
    assert len(reads) == len(records)
    assert {e.basis for e in planned.estimates.values()} == {"20 records of the same step"}


def test_a_plan_has_what_is_missing_and_what_has_failed(trial, store, make_record):
    trials = [trial.model_copy(update={"seed": seed}) for seed in range(7)]
    for made, exit in zip(
        trials, ("ok", "nan", "oom", "error", "interrupted", "cut"), strict=False
    ):
        store.put(make_record(made, exit=exit))
    settings = Settings(scale="cpu", workers=2)
    first, repetition = (
        plan(trials, store, settings),
        plan(trials, store, settings, retry_failed=True),
    )
    assert [t.seed for t in first.todo] == [4, 5, 6]
    assert [t.seed for t in repetition.todo] == [1, 2, 3, 4, 5, 6]
    assert first.failed.keys() == repetition.failed.keys() == {t.key for t in trials[1:6]}
    assert first.estimates.keys() == {t.key for t in first.todo}
    assert (first.total, first.devices) == (7, ["cpu", "cpu"])
    assert plan(trials[:4], store, settings).devices == []
    assert (
        plan(trials, store, Settings(scale="cpu", scheduler="tcp://there:8786")).devices is None
    )


def test_the_outlook_of_a_chapter_is_what_its_trials_still_take(store, make_record):
    trials = papers.experiments("negation_limitation")["sign"].trials("smoke")

    def lines() -> dict[str, Outlook]:
        return {
            line.experiment: line for line in outlook("negation_limitation", "smoke", store)
        }

    first = lines()
    assert "symmetry" not in first, "it trains nothing"
    flops = sum(work(trial).flops for trial in trials)
    assert first["sign"] == ("sign", len(trials), len(trials), flops, None)
    for trial in trials[1:]:
        store.put(make_record(trial, wall_seconds=1800))
    assert lines()["sign"].waiting == 1
    assert lines()["sign"].flops == work(trials[0]).flops
    assert lines()["sign"].hours == pytest.approx(0.5, rel=0.5)
    store.put(make_record(trials[0]))
    assert "sign" not in lines(), "it is done"
