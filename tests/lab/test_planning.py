"""What runs, what it will take and where it fits: arithmetic on records and devices that are
made up, so no GPU is needed.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from capslib import papers
from capslib.errors import UserError
from capslib.lab import estimates, planning
from capslib.lab import store as storing
from capslib.lab.estimates import UNKNOWN, Estimate, Experience, Outlook, outlook, work
from capslib.lab.planning import GIB, pinned, plan, plan_workers
from capslib.lab.records import Record
from capslib.lab.settings import Settings
from capslib.papers.experiment import Trial
from capslib.recipes import flops

NEGATION = papers.experiments("negation_limitation")

# ----------------------------------------------------------------------------------- devices


@pytest.fixture
def machine(monkeypatch):
    """A machine with 16 cores, 24 GiB of memory and two cards."""
    free = {"cpu": 24 * GIB, "cuda:0": 33 * GIB, "cuda:1": 34 * GIB}
    monkeypatch.setattr("dask.system.cpu_count", lambda: 16)
    monkeypatch.setattr(planning, "cuda_devices", lambda: 2)
    monkeypatch.setattr(planning, "free_memory", free.__getitem__)


@pytest.mark.parametrize(
    ("settings", "memory", "devices"),
    [
        ({"device": "cuda"}, None, ["cuda:0", "cuda:1"]),  # nothing known: one on each
        # 8 × 1.25 and one for the process: 11 of 33 GiB
        ({"device": "cuda"}, 8 * GIB, ["cuda:0", "cuda:1"] * 3),
        ({"device": "cuda", "workers": 3}, 8 * GIB, ["cuda:0", "cuda:1", "cuda:0"]),
        ({"device": "cpu"}, None, ["cpu"] * 16),
        ({"device": "cpu"}, 4 * GIB, ["cpu"] * 6),
        ({"device": "cpu", "threads": 4}, None, ["cpu"] * 4),
    ],
)
def test_which_workers_there_are(machine, settings, memory, devices):
    settings = Settings(**{"scale": "cpu", **settings})
    trials = [Estimate(1.0, memory, "")] * 100
    assert plan_workers(settings, trials) == devices


def test_the_largest_trial_decides_and_an_unknown_one_is_reason_for_care(machine):
    settings = Settings(scale="cpu", device="cuda:0")
    small = [Estimate(1.0, GIB, "")] * 100
    large = Estimate(1.0, 8 * GIB, "")
    devices = plan_workers(settings, [*small, large])
    assert len(devices) == 3
    devices = plan_workers(settings, [*small, UNKNOWN])
    assert len(devices) == 1


def test_a_process_sees_its_own_device_only(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    assert pinned("cuda:1") == {"CUDA_VISIBLE_DEVICES": "GPU-b"}
    assert pinned("cpu") == {}
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert pinned("cuda:1") == {"CUDA_VISIBLE_DEVICES": "1"}


# --------------------------------------------------------------------------------- estimates


def estimate(trial: Trial, records: Iterable[Record], device: str = "cpu") -> Estimate:
    return Experience(records, device).estimate(trial)


@pytest.fixture
def ran(trial, make_record):
    """``ran(seconds, bytes, config={}, device="")``: the record of a trial like the first."""

    def make(
        seconds: float, memory: int, seed: int = 0, config: dict | None = None, **fields: object
    ) -> Record:
        config = {**trial.config, **(config or {})}
        device = fields.pop("device", "CPU (x86_64)")
        changed = trial.model_copy(update={"config": config, "seed": seed})
        measured = {"wall_seconds": seconds, "peak_memory_bytes": memory}
        record = make_record(changed, **measured, **fields)
        environment = record.environment.model_copy(update={"device": device})
        return record.model_copy(update={"environment": environment})

    return make


def test_an_estimate_is_the_median_of_records_of_the_same_step(trial, ran):
    """Epochs and data change the number of steps; a network changes the step."""
    records = [ran(10, 300), ran(20, 500), ran(60, 400)]
    misleading = [ran(1, 1, exit="nan"), ran(1, 1, exit="cut"), ran(2, 2, device="H200")]
    assert estimate(trial, misleading) == UNKNOWN
    by_steps = estimate(trial, records + misleading)
    assert by_steps.seconds == pytest.approx(20)
    assert by_steps.memory == 500
    assert by_steps.basis == "3 records of the same step"
    on_cuda = estimate(trial, records + misleading, "cuda")
    assert on_cuda.seconds == pytest.approx(2)
    epochs = papers.arm(trial).recipe.epochs
    four_times = ran(20, 70, config={"epochs": 4 * epochs})
    by_steps = estimate(trial, [four_times])
    assert by_steps.seconds == pytest.approx(5)


def test_a_step_of_another_experiment_tells_where_its_own_has_none(make_record):
    where = {"data": "mnist", "depth": 3, "routing": "dynamic"}
    waiting = NEGATION["depth"].trials("cpu", where=where)[0]
    pairs = NEGATION["negated"].trials("cpu", where={"routing": "dynamic"})[0]
    config = {**waiting.config, "epochs": 8, "front": None}
    trial = pairs.model_copy(update={"config": config})
    record = make_record(trial, wall_seconds=100)
    by_steps = estimate(waiting, [record])
    assert by_steps.seconds == pytest.approx(50)
    assert by_steps.basis == "1 record of the same step of other experiments"


def test_a_rehearsal_tells_step_for_step(trial, ran):
    steps = work(trial).steps
    assert steps == papers.arm(trial).recipe.epochs  # 22 points make one batch
    series = {"seconds_of_steps": [0.1, 7, 0.1]}
    cut = ran(3, 70, trial.seed, exit="cut", series=series)
    rehearsed = estimate(trial, [cut])
    assert rehearsed.seconds == pytest.approx(3 + 0.1 * steps), "its start-up comes once"
    assert rehearsed.basis.startswith("by the steps of its rehearsal")
    complete = ran(5, 70)
    assert estimate(trial, [cut, complete]).basis == "1 record of the same step"
    broken = cut.model_copy(update={"message": "nan: step 1"})
    assert estimate(trial, [broken]) == UNKNOWN


def test_flops_tell_where_no_record_has_the_same_step(trial, ran):
    """A trial with three times the FLOPs takes three times as long."""
    records = [ran(100, 70), ran(1, 70), ran(10, 70)]
    hidden = papers.arm(trial).recipe.hidden + 1
    config = {**trial.config, "hidden": hidden}
    wider = trial.model_copy(update={"config": config})
    by_flops = estimate(wider, records)
    ratio = work(wider).flops / work(trial).flops
    assert by_flops.seconds == pytest.approx(10 * ratio)
    assert by_flops.basis.startswith("by its FLOPs, at the ")
    depth = NEGATION["depth"].trials("cpu")[0]
    assert estimate(depth, records) == UNKNOWN, "steps so small tell nothing of large ones"
    untrained = NEGATION["symmetry"].trials("cpu")[0]
    assert estimate(untrained, records) == UNKNOWN


def test_the_time_of_another_network_tells_less_than_that_of_the_same(make_record):
    """A CNN reaches forty times the operations a second of capsules."""

    def trial(scale: str, routing: str, depth: int) -> Trial:
        where = {"data": "mnist", "routing": routing, "depth": depth}
        return NEGATION["depth"].trials(scale, where=where)[0]

    waiting = trial("paper", "em_vector", 6)
    records = []
    for routing, seconds in (("dynamic", 1), ("em_vector", 100)):
        nearest = trial("cpu", routing, 5)
        records.append(make_record(nearest, wall_seconds=seconds))
        expected = seconds * work(waiting).flops / work(nearest).flops
        by_flops = estimate(waiting, records)
        assert by_flops.seconds == pytest.approx(expected)


def test_a_step_is_counted_where_the_cache_cannot_be_written(trial, tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setattr(estimates, "_counted", {})
    (recipe,) = estimates.recipes(trial)
    estimates._kept_count.cache_clear()
    assert estimates.flops_of_step(recipe) == flops(recipe)
    estimates._kept_count.cache_clear()


def work_of(stem: str, experiment: str, **change: object) -> None:
    trial, *_ = papers.experiments(stem)[experiment].trials("smoke", change=change)
    work(trial)


def test_what_does_not_go_together_is_said_when_it_is_counted():
    with pytest.raises(UserError, match="dynamic routing and"):
        work_of("negation_limitation", "sign", network="matrix_capsnet")
    with pytest.raises(UserError, match=r"digits .* division by zero"):
        work_of("learned_routing", "errors", sizes=(0, 0, 0, 0))
    with pytest.raises(UserError, match="inputs of 4 × 23 are too"):
        work_of("inequality_anomaly", "detection", data="crispr")
    with pytest.raises(UserError, match="affnist is not split into"):
        work_of("inequality_anomaly", "detection", data="affnist")


def test_a_record_whose_configuration_nobody_knows_is_no_experience(trial, make_record):
    """It may be old, or a stranger's."""
    fields = {"experiment": "symmetry", "config": {"gone": 1}}
    stranger = make_record(trial.model_copy(update=fields))
    assert estimate(trial, [stranger]) == UNKNOWN


# ------------------------------------------------------------------------------------- plans


def seeds(trial: Trial, first: int, last: int) -> list[Trial]:
    return [trial.model_copy(update={"seed": seed}) for seed in range(first, last)]


def test_a_plan_reads_each_record_once(trial, store, make_record, monkeypatch):
    finished = seeds(trial, 0, 20)
    for seeded in finished:
        store.put(make_record(seeded))
    reads = []
    read_record = storing.read_record

    def read_and_count(path):
        reads.append(path)
        return read_record(path)

    monkeypatch.setattr(storing, "read_record", read_and_count)
    trials = [*finished, *seeds(trial, 1000, 1020)]
    settings = Settings(scale="cpu", workers=1)
    planned = plan(trials, store, settings)
    assert len(planned.todo) == 20
    assert len(reads) == 20
    bases = {estimate.basis for estimate in planned.estimates.values()}
    assert bases == {"20 records of the same step"}


def test_a_plan_has_what_is_missing_and_what_has_failed(trial, store, make_record):
    trials = seeds(trial, 0, 5)
    for seeded, exit in zip(trials, ("ok", "nan", "interrupted", "cut"), strict=False):
        store.put(make_record(seeded, exit=exit))
    settings = Settings(scale="cpu", workers=2)
    first = plan(trials, store, settings)
    assert first.todo == trials[2:]
    assert first.total == 5
    assert first.devices == ["cpu", "cpu"]
    assert list(first.failed) == [trial.key for trial in trials[1:4]]
    repetition = plan(trials, store, settings, retry_failed=True)
    assert repetition.todo == trials[1:]
    nothing = plan(trials[:2], store, settings)
    assert nothing.devices == []
    scheduled = Settings(scale="cpu", scheduler="tcp://there:8786")
    elsewhere = plan(trials, store, scheduled)
    assert elsewhere.devices is None


def test_the_outlook_of_a_chapter_is_what_its_trials_still_take(store, make_record):
    first, *trials = NEGATION["sign"].trials("smoke")

    def lines() -> dict[str, Outlook]:
        rows = outlook("negation_limitation", "smoke", store)
        return {row.experiment: row for row in rows}

    assert "symmetry" not in lines(), "it trains nothing"
    assert lines()["sign"].hours is None
    for trial in trials:
        store.put(make_record(trial, wall_seconds=1800))
    row = lines()["sign"]
    assert row.trials == 1 + len(trials)
    assert row.waiting == 1
    assert row.flops == work(first).flops
    assert row.hours == pytest.approx(0.5, rel=0.5)
    store.put(make_record(first))
    assert "sign" not in lines(), "it is done"
