"""What a budget buys: bundles and choices on small made-up ledgers, and on the real papers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import timedelta
from itertools import product
from pathlib import Path

import pytest
from helpers import make_record
from made_up import MNIST

from capslib import papers
from capslib.errors import UserError
from capslib.lab import batch, budget, cli, planning
from capslib.lab.budget import (
    Bundle,
    Choice,
    Cost,
    Waiting,
    choose,
    schedule,
    seconds_of,
    waiting_for,
)
from capslib.lab.estimates import Estimate
from capslib.lab.planning import GIB, Crew
from capslib.lab.records import Record
from capslib.lab.settings import Settings
from capslib.lab.store import Store

RESULTS = Path(__file__).parents[2] / "results"
HEADLINE = "NEG-T1-rba-bias"
"""A claim that a headline rests on; the ids below are of none."""


def bundle(claims: str, trials: str) -> Bundle:
    return Bundle(tuple(claims.split()), frozenset(trials.split()))


def costs(**seconds: float) -> dict[str, Cost]:
    return {key: Cost(Estimate(value, None, "made up")) for key, value in seconds.items()}


def claims_of(choice: Choice) -> list[str]:
    return [claim for group in choice.groups for claim in group.claims]


# ---------------------------------------------------------------------------------- durations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("15m", 900),
        ("12h", 43_200),
        ("1h30m", 5400),
        ("0.5h", 1800),
        (" 2m ", 120),
    ],
)
def test_a_duration_is_read(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "15", "m", "15 min", "-5m", "0s", "1e3s", "20000h", "5m5h", "9" * 5000 + "h"]
)
def test_what_is_no_duration_is_refused_with_one_that_is(text):
    with pytest.raises(UserError, match="as in 12h, 15m, 90s or 1h30m"):
        seconds_of(text)


# ------------------------------------------------------------------------------------ choices


def test_most_claims_a_second_come_first_and_only_whole_bundles():
    bundles = [bundle("a", "slow"), bundle("b c", "quick"), bundle("d", "part quick")]
    cost = costs(slow=100, quick=10, part=50)
    everything = choose(bundles, cost, math.inf)
    assert claims_of(everything) == ["b", "c", "d", "a"]
    assert [group.trials for group in everything.groups] == [("quick",), ("part",), ("slow",)]
    assert everything.groups[1].time.seconds == 50, "what is chosen already costs nothing"
    short = choose(bundles, cost, 59)
    assert claims_of(short) == ["b", "c"]
    assert short.begun.trials == ("part",)
    assert [group.claims for group in short.left_out] == [("d",), ("a",)]


def test_headline_claims_come_before_more_claims_that_are_none():
    bundles = [bundle("a b c d", "other"), bundle(HEADLINE, "main")]
    choice = choose(bundles, costs(other=1, main=100), 100)
    assert claims_of(choice)[0] == HEADLINE
    assert choice.groups[0].headlines == 1


def test_a_bundle_decides_what_it_contains_and_its_parts_go_first():
    whole = bundle("all", "x y z")
    parts = [bundle(letter, letter) for letter in "xyz"]
    choice = choose([whole, *parts], costs(x=10, y=10, z=10), math.inf)
    assert sorted(claims_of(choice)) == ["all", "x", "y", "z"]
    assert len(choice.groups) == 3
    assert choice.groups[-1].claims == ("all", choice.groups[-1].trials[0])
    expensive = choose([whole], costs(x=10, y=10, z=10), 29)
    assert not expensive.groups
    assert expensive.begun.trials == ("x", "y", "z")


def test_time_that_is_nearly_over_begins_nothing():
    bundles = [bundle("a", "x"), bundle("b", "y")]
    full = choose(bundles, costs(x=46, y=50), 100)
    assert claims_of(full) == ["a", "b"]
    assert full.begun is None
    assert choose(bundles, costs(x=96, y=500), 100).begun is None
    assert choose(bundles, costs(x=46, y=500), 100).begun.claims == ("b",)


def test_workers_share_trials_and_the_longest_counts():
    trials = {f"t{number}": 10.0 for number in range(6)}
    six = bundle("a", " ".join(trials))
    assert choose([six], costs(**trials), 30, lambda _: Crew(2, 1)).groups[0].ends == 30
    assert not choose([six], costs(**trials), 29, lambda _: Crew(2, 1)).groups
    one = bundle("a", "long")
    assert not choose([one], costs(long=40), 30, lambda _: Crew(8, 1)).groups


def test_a_card_takes_no_more_at_once_than_pay():
    """Nine side by side where the estimate is of nine: the card gives each a ninth."""
    estimate = Estimate(90.0, GIB, "made up", together=9.0)
    cost = {f"t{number}": Cost(estimate) for number in range(18)}
    all_trials = bundle("a", " ".join(cost))
    for each, ends in ((9, 180), (18, 180), (3, 540)):
        (group,) = choose([all_trials], cost, math.inf, lambda _, n=each: Crew(1, n)).groups
        assert group.ends == pytest.approx(ends)
        assert group.time.seconds == pytest.approx(ends)


def test_another_crew_begins_when_the_one_before_has_ended():
    assert schedule([3.0, 7.0], [1.0, 1.0], Crew(2, 1)) == [5.0, 7.0]
    assert schedule([3.0, 7.0], [1.0], Crew(1, 1)) == [8.0]


def test_a_training_that_two_trials_share_counts_once():
    shared = Cost(Estimate(100.0, None, "made up"), {"training": 1.0})
    bundles = [bundle("a", "x"), bundle("b", "y")]
    choice = choose(bundles, {"x": shared, "y": shared}, math.inf)
    assert [group.time.seconds for group in choice.groups] == [100, pytest.approx(5)]
    together = choose(
        [bundle("a", "x y"), bundle("b", "z")],
        {**dict.fromkeys("xy", shared), **costs(z=200)},
        math.inf,
    )
    assert [group.ends for group in together.groups] == [pytest.approx(105), pytest.approx(305)]
    half = Cost(Estimate(100.0, None, "made up"), {"training": 0.5, "own": 0.5})
    assert half.without({"training"}).seconds == 50
    assert half.without({"other"}).seconds == 100


# ---------------------------------------------------------------------------- the real papers


@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_every_bundle_is_what_a_claim_needs_with_all_its_seeds(store, scale):
    waiting = waiting_for(papers.PAPERS, scale, store)
    needed = {}
    for stem in papers.PAPERS:
        needed |= papers.needs(stem, scale)
    assert len(waiting.bundles) > 10
    for item in waiting.bundles:
        for claim in item.claims:
            assert (
                {trial.key for trial in needed[claim]} <= item.trials <= waiting.trials.keys()
            )
    ids = waiting.claims
    assert len(ids) == len(set(ids))


def test_a_reduced_setting_decides_no_value_and_nothing_that_was_decided(store):
    claims = set(waiting_for(["negation_limitation"], "cpu", store).claims)
    assert "NEG-T2-mnist-bias-4" not in claims, "a value"
    assert "NEG-W-5" in claims
    assert "NEG-T2-mnist-bias-4" in waiting_for(["negation_limitation"], "paper", store).claims
    assert waiting_for(["which_routing"], "cpu", store).bundles == [], "a study claims nothing"


def test_of_committed_records_only_what_is_missing_waits(store):
    full = waiting_for(["inequality_anomaly"], "paper", Store(RESULTS))
    empty = waiting_for(["inequality_anomaly"], "paper", store)
    assert len(full.trials) < len(empty.trials)
    done = {record.key for record in Store(RESULTS).records("inequality_anomaly")}
    assert not done & full.trials.keys()
    assert not set(full.claims) - set(empty.claims)


def test_a_claim_with_a_record_that_is_left_out_waits_for_nothing_that_could_run(store):
    """A run leaves that trial alone, and would not decide the claim."""
    waiting = waiting_for(["negation_limitation"], "cpu", store)
    (of_claim,) = [item for item in waiting.bundles if "NEG-W-5" in item.claims]
    record = make_record(waiting.trials[min(of_claim.trials)])
    ended = record.started - timedelta(seconds=1)
    path = store.put(record.model_copy(update={"finished": ended}))
    assert "NEG-W-5" not in waiting_for(["negation_limitation"], "cpu", store).claims
    newer = path.read_text().replace('"schema_version": 2', '"schema_version": 3')
    path.write_text(newer)
    claims = waiting_for(["negation_limitation"], "cpu", store).claims
    assert claims
    assert "NEG-W-5" not in claims, "a newer version wrote it"


def cells_of_table_2() -> Waiting:
    """Return a group for each of six cells: ten kinds of anomalies with three seeds each."""
    detection = papers.experiments("inequality_anomaly")["detection"]
    waiting = Waiting()
    for name, percent in product(("mnist", "kmnist"), (0.1, 1.0, 10.0)):
        where = {"data": name, "setup": "outliers", "percent": percent}
        trials = {trial.key: trial for trial in detection.trials("paper", where=where)}
        claim = f"INQ-T2-{name}-{percent:g}pct-palma"
        waiting.bundles.append(Bundle((claim,), frozenset(trials)))
        waiting.trials.update(trials)
    return waiting


def ten_at_once_on_a_card() -> Iterator[Record]:
    """Yield what a card measured of one of those networks, with seeds that no claim needs."""
    experiment = papers.experiments("inequality_anomaly")["detection"]
    where = {"arm": "mnist/outliers/1_percent/kind_0"}
    for trial in experiment.trials("paper", where=where, seeds=range(90, 100)):
        record = make_record(trial, data=[MNIST], wall_seconds=60, peak_memory_bytes=10**9)
        environment = record.environment.model_copy(update={"device": "NVIDIA H100"})
        finished = record.started + timedelta(seconds=60)
        yield record.model_copy(update={"environment": environment, "finished": finished})


def test_a_quarter_of_an_hour_on_a_card_decides_whole_cells_of_a_table(store, monkeypatch):
    monkeypatch.setattr(budget, "cuda_devices", lambda: 0)
    settings = Settings(scale="paper", device="cuda")
    for record in ten_at_once_on_a_card():
        store.put(record)
    waiting = cells_of_table_2()
    choice = budget.plan_budget(waiting, store, settings, 900)
    assert choice.groups
    assert max(group.ends for group in choice.groups) <= 900
    assert {len(group.trials) for group in choice.groups} == {30}
    assert choice.groups[0].headlines > 0
    assert choice.groups[0].crew.workers > 1
    longer = budget.plan_budget(waiting, store, settings, 9000)
    assert len(claims_of(longer)) > len(claims_of(choice))


def test_a_budget_in_which_every_claim_lacks_data_names_them(tmp_path, monkeypatch):
    """Some trials could run, but no claim has all of its own."""
    negation = papers.experiments("negation_limitation")
    trials = [negation[name].trials("cpu")[0] for name in ("sign", "depth")]
    by_key = {trial.key: trial for trial in trials}
    waiting = Waiting([Bundle(("NEG-W-1",), frozenset(by_key))], by_key)
    monkeypatch.setattr(budget, "waiting_for", lambda *_: waiting)
    folders = {"data_dir": str(tmp_path / "none"), "results_dir": str(tmp_path / "records")}
    session = batch.Session.for_plans(scale="cpu", **folders)
    with pytest.raises(UserError, match=r"idx3-ubyte\.gz is missing"):
        cli.run_in_time(["negation_limitation"], session, 60.0, 0.0, dry_run=False)


def test_what_has_run_waits_no_more(store):
    waiting = waiting_for(["negation_limitation"], "cpu", store)
    first = min(waiting.bundles, key=lambda item: len(item.trials))
    left = waiting.without(first.trials)
    assert not set(first.claims) & set(left.claims)
    assert not first.trials & left.trials.keys()
    assert waiting.among(first.trials).claims == list(first.claims)


def test_a_training_with_a_checkpoint_has_less_to_do(store, trial):
    import torch

    (training,) = papers.experiment_of(trial).trainings(papers.arm(trial), trial.seed)
    estimate = Estimate(100.0, None, "made up")
    assert budget.cost_of(trial, estimate, store).estimate.seconds == 100
    store.trainings.mkdir(parents=True)
    path = training.path(store.trainings)
    code = budget.code_hash(type(training.recipe).__module__)
    state = {"code": code, "finished": False, "step": training.recipe.steps // 4}
    torch.save(state, path)
    expected = 100 * (1 - state["step"] / training.recipe.steps)
    cost = budget.cost_of(trial, estimate, store)
    assert cost.estimate.seconds == pytest.approx(expected)
    assert sum(cost.trainings.values()) == pytest.approx(1)
    torch.save({**state, "finished": True}, path)
    assert budget.cost_of(trial, estimate, store).estimate.seconds == pytest.approx(5)
    torch.save({**state, "code": "another"}, path)
    assert budget.cost_of(trial, estimate, store).estimate.seconds == 100
    path.write_bytes(b"damaged")
    assert budget.cost_of(trial, estimate, store).estimate.seconds == 100


def test_a_card_runs_one_at_a_time_where_memory_is_not_known(monkeypatch):
    monkeypatch.setattr(budget, "cuda_devices", lambda: 2)
    monkeypatch.setattr(planning, "cuda_devices", lambda: 2)
    monkeypatch.setattr(planning, "free_memory", lambda device: 33 * GIB)
    monkeypatch.setattr("dask.system.cpu_count", lambda: 16)
    crew = budget.crews(Settings(scale="paper", device="cuda"))
    known, unknown = Estimate(1.0, 8 * GIB, ""), Estimate(1.0, None, "")
    assert crew([known]) == Crew(2, 3)
    assert crew([known, unknown]) == Crew(2, 1)
    assert budget.crews(Settings(scale="paper", device="cuda:1"))([known]) == Crew(1, 3)


@pytest.mark.parametrize(
    ("device", "workers", "crew"),
    [("cuda", 0, Crew(1, 7)), ("cuda", 2, Crew(1, 2)), ("mps", 0, Crew(1, 1))],
)
def test_on_a_machine_without_cuda_only_a_cuda_device_is_elsewhere(
    monkeypatch, device, workers, crew
):
    monkeypatch.setattr(budget, "cuda_devices", lambda: 0)
    monkeypatch.setattr(planning, "cuda_devices", lambda: 0)
    settings = Settings(scale="paper", device=device, workers=workers)
    # 8 × 1.25 and one for the process: 11 of 80 GiB
    assert budget.crews(settings)([Estimate(1.0, 8 * GIB, "")]) == crew
