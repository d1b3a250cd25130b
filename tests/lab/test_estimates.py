"""What trials take: arithmetic on records that are made up, and committed records against what
is counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from helpers import make_record

from capslib import papers
from capslib.errors import UserError
from capslib.lab import estimates
from capslib.lab.counting import Traffic, count_step
from capslib.lab.estimates import (
    BY_GUESS,
    BY_KIND,
    BY_OTHERS,
    BY_PACE,
    BY_RECORDS,
    BY_REHEARSAL,
    BY_WORK,
    CARD,
    CPU_CORE,
    START_SECONDS,
    UNKNOWN,
    Estimate,
    Experience,
    Outlook,
    StepCount,
    outlook,
    overlap,
    roofline,
    total,
)
from capslib.lab.records import Record
from capslib.lab.store import Store
from capslib.papers.experiment import Trial
from capslib.recipes import flops

NEGATION = papers.experiments("negation_limitation")


def estimate(trial: Trial, records: Iterable[Record], device: str = "cpu") -> Estimate:
    return Experience(records, device).estimate(trial)


@pytest.fixture
def ran(trial):
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
    assert estimate(trial, misleading).basis == BY_WORK
    by_steps = estimate(trial, records + misleading)
    assert by_steps.seconds == pytest.approx(20)
    assert by_steps.memory == 500
    assert by_steps.basis == BY_RECORDS
    assert (by_steps.low, by_steps.high) == pytest.approx((15, 40))
    on_cuda = estimate(trial, records + misleading, "cuda")
    assert on_cuda.seconds == pytest.approx(2)
    epochs = papers.arm(trial).recipe.epochs
    four_times = ran(20, 70, config={"epochs": 4 * epochs})
    by_steps = estimate(trial, [four_times])
    assert by_steps.seconds == pytest.approx(5)


def test_a_step_of_another_experiment_tells_where_its_own_has_none():
    where = {"data": "mnist", "depth": 3, "routing": "dynamic"}
    waiting = NEGATION["depth"].trials("cpu", where=where)[0]
    pairs = NEGATION["negated"].trials("cpu", where={"routing": "dynamic"})[0]
    config = {**waiting.config, "epochs": 8, "front": None}
    trial = pairs.model_copy(update={"config": config})
    record = make_record(trial, wall_seconds=100)
    by_steps = estimate(waiting, [record])
    assert by_steps.seconds == pytest.approx(50)
    assert by_steps.basis == BY_OTHERS


def test_a_rehearsal_tells_step_for_step(trial, ran):
    steps = estimates.steps(trial)
    assert steps == papers.arm(trial).recipe.epochs  # 22 points make one batch
    series = {"seconds_of_steps": [0.1, 7, 0.1]}
    cut = ran(3, 70, trial.seed, exit="cut", series=series)
    rehearsed = estimate(trial, [cut])
    assert rehearsed.seconds == pytest.approx(3 + 0.1 * steps), "its start-up comes once"
    assert rehearsed.basis == BY_REHEARSAL
    another_seed = trial.model_copy(update={"seed": trial.seed + 1})
    assert estimate(another_seed, [cut]) == rehearsed, "its step is the same"
    complete = ran(5, 70)
    assert estimate(trial, [cut, complete]).basis == BY_RECORDS
    broken = cut.model_copy(update={"message": "nan: step 1"})
    assert estimate(trial, [broken]).basis == BY_WORK


def test_counted_work_tells_where_no_record_has_the_same_step(trial, ran):
    """At the pace of the same network in other sizes, where records have that."""
    hidden = papers.arm(trial).recipe.hidden + 1
    wider = trial.model_copy(update={"config": {**trial.config, "hidden": hidden}})
    expected = roofline(estimates.recipes(wider), CPU_CORE)
    alone = estimate(wider, [])
    assert alone.basis == BY_WORK
    assert alone.seconds == pytest.approx(START_SECONDS + expected.middle)
    assert alone.low < alone.seconds < alone.high
    for path in ("eager", "compiled"):
        done = roofline(estimates.recipes(trial), CPU_CORE, path == "compiled")
        pace = 10 / done.middle
        records = [ran(seconds, 70, routing_path=path) for seconds in (100, 1, 10)]
        paced = estimate(wider, records)
        assert paced.basis == BY_PACE
        assert paced.seconds == pytest.approx(START_SECONDS + expected.middle * pace)


def test_records_of_another_network_tell_nothing_of_the_pace():
    """A CNN reaches forty times the operations a second of capsules."""

    def trial(scale: str, routing: str, depth: int) -> Trial:
        where = {"data": "mnist", "routing": routing, "depth": depth}
        return NEGATION["depth"].trials(scale, where=where)[0]

    waiting = trial("paper", "em_vector", 6)
    slow = make_record(trial("cpu", "dynamic", 5), wall_seconds=1e6)
    assert estimate(waiting, [slow]) == estimate(waiting, [])
    same = make_record(trial("cpu", "em_vector", 5), wall_seconds=1e6)
    assert estimate(waiting, [same]).seconds > 1e6


def test_a_training_that_stopped_itself_tells_what_all_its_epochs_take(trial):
    epochs = papers.arm(trial).recipe.epochs
    stopped = {"epochs": {"value": epochs / 4, "n": 1, "unit": "epochs"}}
    record = make_record(trial, wall_seconds=10, metrics=stopped)
    assert estimates.seconds_of_all_epochs(record) == pytest.approx(40)
    assert estimates.seconds_of_all_epochs(make_record(trial, wall_seconds=10)) == 10


def test_a_trial_that_trains_nothing_takes_what_its_experiment_took():
    trial = NEGATION["symmetry"].trials("cpu")[0]
    assert estimate(trial, []).basis == BY_GUESS
    by_kind = estimate(trial, [make_record(trial, wall_seconds=3)])
    assert (by_kind.seconds, by_kind.basis) == (3, BY_KIND)


# ------------------------------------------------------------------------------------ counting


def test_traffic_is_what_operations_read_and_write():
    """A product of [2, 3] and [3, 4], and a sum with a number: float32 has four bytes."""
    left, right = torch.zeros(2, 3, device="meta"), torch.zeros(3, 4, device="meta")
    with Traffic() as traffic:
        product = left @ right
        _ = product.view(8) + 1
    assert traffic.product_bytes == 4 * (6 + 12 + 8)
    assert traffic.bytes == traffic.product_bytes + 4 * (8 + 8)
    assert (traffic.launches, traffic.product_launches) == (2, 1), "a view moves nothing"


def test_a_step_counts_the_flops_of_its_recipe_and_its_optimizer(trial):
    (recipe,) = estimates.recipes(trial)
    count = StepCount(**count_step(recipe))
    assert count.flops == flops(recipe)
    assert 0 < count.product_bytes < count.bytes
    assert 0 < count.product_launches < count.launches


@pytest.mark.parametrize(
    ("stem", "experiment", "arm", "fuses"),
    [
        ("learned_routing", "errors", "toys/em", True),
        ("learned_routing", "errors", "toys/connectionist", False),
        ("em_routing", "test_error", "cnn", False),
    ],
)
def test_only_a_routing_with_a_core_is_compiled(stem, experiment, arm, fuses):
    trial, *_ = papers.experiments(stem)[experiment].trials("smoke", where={"arm": arm})
    (recipe,) = estimates.recipes(trial)
    assert bool(count_step(recipe)["fuses"]) is fuses


def test_estimates_grow_with_what_a_training_does():
    def seconds(device: str, **change: object) -> float:
        where = {"data": "mnist", "depth": 2, "routing": "dynamic", "bias": True}
        trial, *_ = NEGATION["depth"].trials("paper", where=where, change=change)
        guess = estimate(trial, [], device)
        assert 0 < guess.low < guess.seconds < guess.high
        return guess.seconds

    for device in ("cpu", "cuda"):
        usual = seconds(device, epochs=20)
        assert seconds(device, epochs=40) > 1.5 * usual
        assert seconds(device, epochs=20, filters=512) > usual
    assert seconds("cpu", epochs=20) > 20 * seconds("cuda", epochs=20)


def test_a_compiled_step_moves_less(trial):
    (recipe,) = estimates.recipes(trial)
    short = recipe.model_copy(update={"epochs": 999})
    long = recipe.model_copy(update={"epochs": 1000})
    assert roofline([long], CPU_CORE).traffic < roofline([short], CPU_CORE).traffic


def test_where_launches_leave_a_card_idle_trials_share_it(trial):
    (recipe,) = estimates.recipes(trial)
    line = roofline([recipe], CARD)
    assert line.low == line.launches > line.busy
    guess = estimate(trial, [], "cuda")
    assert guess.together > 10
    assert guess.device_seconds == pytest.approx(line.busy, rel=0.01)


def test_records_side_by_side_tell_how_many_a_card_takes(ran):
    first = ran(60, 300, device="H100")
    spans = []
    for start in (0, 0, 0, 30, 1000):
        started = first.started + timedelta(seconds=start)
        times = {"started": started, "finished": started + timedelta(seconds=60)}
        spans.append(first.model_copy(update=times))
    assert overlap(spans) == pytest.approx(5 * 60 / (90 + 60))
    environment = first.environment.model_copy(update={"device": "H200"})
    elsewhere = [span.model_copy(update={"environment": environment}) for span in spans]
    assert overlap(spans + elsewhere) == overlap(spans), "they share no card"
    assert overlap([]) == 1


def test_records_side_by_side_count_with_their_share_of_the_card(trial, ran):
    """Four at once took a minute each: the card gave a quarter of it to each."""
    record = ran(60, 300, device="H100")
    finished = record.started + timedelta(seconds=60)
    at_once = [record.model_copy(update={"finished": finished})] * 4
    shared = estimate(trial, at_once, "cuda")
    assert shared.device_seconds == pytest.approx(15)
    assert shared.seconds == pytest.approx(START_SECONDS + 15)
    alone = estimate(trial, at_once[:1], "cuda")
    assert alone.seconds == alone.device_seconds == pytest.approx(60)


def test_a_total_says_what_it_rests_on():
    time = total([Estimate(6.0, None, "a", 3.0, 9.0), Estimate(4.0, None, "b"), UNKNOWN], 2)
    assert (time.seconds, time.low, time.high) == (5, 3.5, 6.5)
    assert time.unknown == 1
    assert time.bases == {"a": 1, "b": 1, UNKNOWN.basis: 1}


def committed(stem: str) -> Iterable[Record]:
    return Store(Path(__file__).parents[2] / "results").records(stem)


def test_most_steps_that_a_card_measured_lie_within_two_of_their_estimate():
    """Up to ten ran side by side: their time is what the card gave to each."""
    rows = list(Experience(committed("inequality_anomaly"), "cuda").comparisons())
    assert rows
    assert sum(row.within_two for row in rows) >= 0.8 * len(rows)


@pytest.mark.parametrize("stem", ["em_routing", "sparse_unsupervised"])
def test_most_measured_steps_lie_within_two_of_what_others_tell(stem):
    """On one core; each step against the records of all others. What shared a machine with
    other work does not.
    """
    rows = list(Experience(committed(stem), "cpu").comparisons())
    assert sum(row.within_two for row in rows) >= 0.8 * len(rows) >= 8


def test_a_step_is_counted_where_the_cache_cannot_be_written(trial, tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setattr(estimates, "_counted", {})
    (recipe,) = estimates.recipes(trial)
    estimates._kept_count.cache_clear()
    assert estimates.counted(recipe).flops == flops(recipe)
    estimates._kept_count.cache_clear()


def count(stem: str, experiment: str, **change: object) -> None:
    trial, *_ = papers.experiments(stem)[experiment].trials("smoke", change=change)
    estimates.flops(trial)


def test_what_does_not_go_together_is_said_when_it_is_counted():
    with pytest.raises(UserError, match="dynamic routing and"):
        count("negation_limitation", "sign", network="matrix_capsnet")
    with pytest.raises(UserError, match=r"digits .* division by zero"):
        count("learned_routing", "errors", sizes=(0, 0, 0, 0))
    with pytest.raises(UserError, match="inputs of 4 × 23 are too"):
        count("inequality_anomaly", "detection", data="crispr")
    with pytest.raises(UserError, match="affnist is not split into"):
        count("inequality_anomaly", "detection", data="affnist")


def test_a_record_whose_configuration_nobody_knows_is_no_experience(trial):
    """It may be old, or a stranger's."""
    fields = {"experiment": "symmetry", "config": {"gone": 1}}
    stranger = make_record(trial.model_copy(update=fields))
    assert estimate(trial, [stranger]) == estimate(trial, [])
    assert estimate(stranger.trial, []) == UNKNOWN


def test_the_outlook_of_a_chapter_is_what_its_trials_still_take(store):
    first, *trials = NEGATION["sign"].trials("smoke")

    def lines() -> dict[str, Outlook]:
        rows = outlook("negation_limitation", "smoke", store)
        return {row.experiment: row for row in rows}

    assert "symmetry" not in lines(), "it trains nothing"
    assert lines()["sign"].core.bases == {BY_WORK: 1 + len(trials)}
    for trial in trials:
        store.put(make_record(trial, wall_seconds=1800))
    row = lines()["sign"]
    assert row.trials == 1 + len(trials)
    assert row.waiting == 1
    assert row.flops == estimates.flops(first)
    assert row.core.seconds == pytest.approx(1800, rel=0.5)
    assert row.core.bases == {BY_PACE: 1}
    assert row.card.bases == {BY_WORK: 1}
    store.put(make_record(first))
    assert "sign" not in lines(), "it is done"
