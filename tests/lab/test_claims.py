"""Claims as a whole: verdicts from a store, what claims wait for, tables and JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from made_up import metric

from capslib import papers
from capslib.errors import UserError
from capslib.lab import claims
from capslib.lab.chapter import Chapter
from capslib.lab.claims import COLUMNS, to_json, verdicts
from capslib.lab.ledger import ledger, number
from capslib.lab.records import Record
from capslib.lab.store import Store
from capslib.lab.words import CAPSULES, ERRATA, GROUPS, NOT_RUN, Verdict, counts
from capslib.papers import checks_of, experiments, fields
from capslib.papers.experiment import DataFingerprint, Metric, Trial

RESULTS = Path(__file__).parents[2] / "results"
STEM = "negation_limitation"
CLAIM = "NEG-T1-rba-bias"
DEPTH = experiments(STEM)["depth"]
ARM = "mnist/dynamic/4/no_bias"
MNIST = DataFingerprint(name="mnist", sha256="0" * 64, stand_in=False, complete=True)


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path)


def judged(store: Store, stem: str = STEM) -> dict[str, Verdict]:
    return {verdict.claim.id: verdict for verdict in verdicts(stem, store=store)}


@pytest.fixture
def record_of(make_record):
    def make(trial: Trial, metrics: dict[str, Metric]) -> Record:
        learned = {"batch_accuracy": [0.9]}
        return make_record(
            trial, metrics=metrics, series=learned, data=[MNIST], routing_path="fast"
        )

    return make


@pytest.fixture
def answer(store, record_of):
    """Put records into the store that give a claim the paper's value, and return them."""

    def put(**change: int) -> list[Record]:
        check = checks_of(STEM)[CLAIM]
        share = metric(ledger()[CLAIM].value / 100)
        where = {"arm": check.arms.arm}
        trials = experiments(STEM)[check.arms.experiment].trials(
            "paper", where=where, seeds=range(4), change=change
        )
        records = [record_of(trial, {check.metric: share}) for trial in trials]
        for record in records:
            store.put(record)
        return records

    return put


def test_without_records_every_claim_is_not_run_and_says_what_it_waits_for(store):
    found = verdicts(store=store)
    assert [verdict.claim.id for verdict in found] == list(ledger())
    assert {verdict.group for verdict in found} == {NOT_RUN, ERRATA}
    assert all(verdict.reason.endswith(".") for verdict in found)
    reasons = {verdict.claim.id: verdict.reason for verdict in found}
    assert reasons["EM-T1-cnn"].endswith(
        "4 trials at paper scale, 1 of them with twice the budget, would decide it."
    )
    assert reasons["LR-W-1"].endswith(
        "18 trials at paper scale, or 24 trials at cpu scale, 6 of them with twice the budget, "
        "would decide it."
    )
    by_group = counts(found)
    assert list(by_group) == list(GROUPS)
    assert sum(sum(words.values()) for words in by_group.values()) == len(found)
    with pytest.raises(UserError, match="Did you mean"):
        verdicts("negation_limitatio", store=store)


def test_records_in_a_store_become_verdicts_tables_and_json(store, answer):
    records = answer()
    found = judged(store)
    assert found[CLAIM].status == "reproduced"
    cells = dict(zip(COLUMNS, claims.row(found[CLAIM]), strict=True))
    assert cells["Verdict"] == "reproduced"
    assert cells["Paper"] == f"{ledger()[CLAIM].printed}\N{NO-BREAK SPACE}%"
    assert cells["95 % interval"] == "(all equal)"
    rows = {row["id"]: row for row in json.loads(to_json(found.values()))}
    of_parts = next(verdict for verdict in found.values() if verdict.parts)
    parts = {part.name: part.word for part in of_parts.parts}
    assert rows[of_parts.claim.id]["parts"] == parts
    row = rows[CLAIM]
    assert row["headlines"] == ["NEG-H-sign"]
    assert (row["verdict"], row["verdict_is"]) == ("reproduced", CAPSULES)
    assert row["our_value"] == pytest.approx(row["paper_value"])
    assert sorted(row["records"]) == sorted(record.key for record in records)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (4253349, "4 253 349"),
        (-12345, "−12 345"),
        (68618.0, "68 618"),
        (1024, "1024"),
        (12.345, "12.35"),
        (0.04567, "0.04567"),
        (-6.14523e-05, "−6.145·10⁻⁵"),
    ],
)
def test_numbers_are_written_for_readers(value, text):
    assert number(value) == text.replace(" ", "\N{NO-BREAK SPACE}")


def test_a_changed_configuration_does_not_pass_for_the_scale(store, answer):
    """``--scale paper`` with fewer epochs makes a sound record, but not one of the paper's
    setting.
    """
    records = answer(epochs=1)
    verdict = judged(store)[CLAIM]
    assert verdict.status == "waiting"
    assert f"{len(records)} of the experiment" in verdict.reason


def test_a_seed_that_nobody_named_counts_for_nothing(store, answer, record_of):
    records = answer()
    before = judged(store)[CLAIM]
    trial = records[0].trial.model_copy(update={"seed": 999})
    store.put(record_of(trial, dict.fromkeys(records[0].metrics, metric(1))))
    after = judged(store)[CLAIM]
    assert (after.ours, after.n, after.records) == (before.ours, before.n, before.records)


def test_no_single_file_takes_the_verdicts_down(store, answer, caplog):
    def numbers() -> dict:
        return {name: (v.word, v.ours, v.records) for name, v in judged(store).items()}

    trial = answer()[0].trial
    before = numbers()
    path = store.path(trial.model_copy(update={"seed": 4}))
    sound = store.path(trial).read_text()
    for content in (
        sound.replace('"n": 9', '"n": 1' + "0" * 400),
        sound.replace('"wall_seconds": 1.5', '"wall_seconds": 1e308'),
        sound.replace('"peak_memory_bytes": 1', '"peak_memory_bytes": 1' + "0" * 400),
        sound.replace('"value": ', '"value": 1e308, "was": '),
        sound.replace(STEM, "nobody"),
        "{}",
    ):
        path.write_text(content)
        caplog.clear()
        assert numbers() == before
        assert str(path) in caplog.text
        path.unlink()
    for make in (os.mkfifo, Path.mkdir):
        make(path)
        assert numbers() == before
        assert f"{path} cannot be read" in caplog.text
        path.unlink() if path.is_fifo() else path.rmdir()


def test_claims_that_use_the_same_records_name_each_other():
    found = judged(Store(RESULTS), "em_routing")
    assert {"EM-T1-iter3", "EM-W-14", "EM-W-17"} <= set(found["EM-W-10"].shares)
    assert "EM-W-10" in found["EM-T1-iter1"].shares
    assert "EM-W-4" not in found["EM-W-10"].shares
    assert all(verdict.claim.id not in verdict.shares for verdict in found.values())


def test_a_trial_with_twice_the_epochs_tells_whether_an_order_rests(store, record_of):
    """From the store, by the experiment's own arms: 8 epochs where the scale has 4."""

    def add(**selection: object) -> None:
        for trial in DEPTH.trials("cpu", where={"arm": ARM}, **selection):
            store.put(record_of(trial, {"test_accuracy": metric(0.1)}))

    def part() -> Verdict:
        parts = judged(store)["NEG-W-5-rba-mnist"].parts
        return next(p for p in parts if p.name == "4 layers without bias do not train")

    add()
    assert (part().status, part().n) == ("undecided", 3)
    add(seeds=[0], change={"epochs": 16})
    assert part().status == "undecided", "four times the epochs is another setting"
    add(seeds=[0], change={"epochs": 8})
    assert (part().status, part().n, len(part().records)) == ("same order", 3, 4)


def test_a_reduced_order_waits_for_one_seed_of_twice_the_budget_too():
    """Of the seeds that lacks the fewest, and not of a training that stopped itself."""
    stem, name = "learned_routing", "LR-W-1"
    own = papers.needs(stem, "cpu")[name]
    first, second, third = papers.longer(stem, "cpu")[name]
    assert len(first) == len(second) == len(third)
    for trial, twice in first:
        assert twice.config["epochs"] == 2 * fields(trial)["epochs"]

    def waits(*trials: Trial, stopped: tuple[Trial, ...] = ()) -> tuple[int, int]:
        done, ended = ({trial.key for trial in group} for group in (trials, stopped))
        waiting = papers.waits(stem, done, ended)[name]["cpu"]
        return len(waiting.own), len(waiting.twice)

    number = len(first)
    assert waits() == (len(own), number)
    assert waits(*own) == (0, number)
    longer = first[0][1], second[0][1], second[1][1]
    assert waits(*own, *longer) == (0, number - 2)
    assert waits(*own, stopped=tuple(trial for trial, _ in first)) == (0, 0)


@pytest.mark.parametrize(
    ("stem", "scale", "name", "sizes"),
    [
        ("em_routing", "cpu", "EM-T1-iter3", []),  # a reduced value is not decided
        ("em_routing", "paper", "EM-T1-iter3", [1, 1, 1]),  # it does not say when it stops
        ("learned_routing", "paper", "LR-T3-conn-mnist", []),  # it does
    ],
)
def test_a_claim_needs_twice_the_budget_where_no_end_of_training_is_given(
    stem, scale, name, sizes
):
    assert [len(seed) for seed in papers.longer(stem, scale)[name]] == sizes


def test_figures_show_a_seed_once_and_not_again_with_twice_the_budget(store, record_of):
    """What stands in a chapter's tables would otherwise be a mean over a seed counted twice."""
    where = {"arm": ARM}
    own = DEPTH.trials("cpu", where=where, seeds=[0])
    twice = DEPTH.trials("cpu", where=where, seeds=[0], change={"epochs": 8})
    for trial in (*own, *twice):
        store.put(record_of(trial, {"test_accuracy": metric(0.1)}))
    shown = Chapter(STEM, store.root).records
    assert [record.key for record in shown] == [trial.key for trial in own]
