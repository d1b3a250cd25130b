"""What runs and where it fits: arithmetic on records and devices that are made up, so no GPU
is needed.
"""

from __future__ import annotations

import subprocess

import pytest
from helpers import make_record

from capslib.errors import UserError
from capslib.lab import planning
from capslib.lab import store as storing
from capslib.lab.estimates import BY_RECORDS, UNKNOWN, Estimate
from capslib.lab.planning import (
    GIB,
    Crew,
    expected,
    largest_memory,
    pinned,
    plan,
    plan_workers,
)
from capslib.lab.settings import Settings
from capslib.papers.experiment import Trial

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
    assert plan_workers(settings, 100, memory) == devices


def test_the_largest_trial_decides_and_on_a_card_an_unknown_one_may_be_it():
    small, large = Estimate(1.0, GIB, ""), Estimate(1.0, 8 * GIB, "")
    assert largest_memory([small, large, small], "cuda:0") == 8 * GIB
    assert largest_memory([small, UNKNOWN], "cuda:0") is None
    assert largest_memory([small, UNKNOWN], "cpu") == GIB
    assert largest_memory([UNKNOWN], "cpu") is None


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("CUDA error: out of memory\nCUDA kernel", "CUDA error: out of memory"),
        ("", "no reason"),
    ],
)
def test_a_device_that_does_not_answer_is_a_user_error(monkeypatch, output, reason):
    answer = subprocess.CompletedProcess([], 1, stdout=output)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    message = rf"^PyTorch cannot use cuda:0: .*{reason}\. Free memory .* or use device cpu\.$"
    with pytest.raises(UserError, match=message):
        planning.free_memory("cuda:0")


def test_a_process_sees_its_own_device_only(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    assert pinned("cuda:1") == {"CUDA_VISIBLE_DEVICES": "GPU-b"}
    assert pinned("cpu") == {}
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert pinned("cuda:1") == {"CUDA_VISIBLE_DEVICES": "1"}


# ------------------------------------------------------------------------------------- plans


def seeds(trial: Trial, first: int, last: int) -> list[Trial]:
    return [trial.model_copy(update={"seed": seed}) for seed in range(first, last)]


def test_a_plan_reads_each_record_once(trial, store, monkeypatch):
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
    assert bases == {BY_RECORDS}


def test_a_plan_has_what_is_missing_and_what_has_failed(trial, store):
    trials = seeds(trial, 0, 5)
    for seeded, exit in zip(trials, ("ok", "nan", "interrupted", "cut"), strict=False):
        store.put(make_record(seeded, exit=exit))
    settings = Settings(scale="cpu", workers=2)
    first = plan(trials, store, settings)
    assert first.todo == trials[2:]
    assert first.total == 5
    assert first.devices == ["cpu", "cpu"]
    assert list(first.not_ok) == [trial.key for trial in trials[1:4]]
    repetition = plan(trials, store, settings, retry_failed=True)
    assert repetition.todo == trials[1:]
    nothing = plan(trials[:2], store, settings)
    assert nothing.devices == []
    scheduled = Settings(scale="cpu", scheduler="tcp://there:8786")
    elsewhere = plan(trials, store, scheduled)
    assert elsewhere.devices is None


def test_a_crew_is_cores_or_cards_with_workers_on_each():
    assert Crew.on(["cpu"] * 3) == Crew(3, 1)
    assert Crew.on(["cuda:0", "cuda:1"] * 4) == Crew(2, 4)
    assert Crew.on(None) == Crew.on([]) == Crew(1, 1)
    assert Crew(2, 4).workers == 8


def test_a_plan_takes_what_its_workers_share(trial, store):
    """On a card no more trials count at once than it has room for."""
    planned = plan(seeds(trial, 0, 12), store, Settings(scale="cpu", workers=3))
    one = planned.estimates[planned.todo[0].key].seconds
    assert expected(planned).seconds == pytest.approx(4 * one)
    together = dict.fromkeys(planned.estimates, Estimate(60.0, GIB, "x", together=2.0))
    on_card = planning.Plan(12, planned.todo, {}, together, ["cuda:0"] * 3)
    assert expected(on_card).seconds == pytest.approx(12 * 60 / 2)
