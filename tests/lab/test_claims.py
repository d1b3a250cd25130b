"""Claims as a whole: verdicts from a store, what claims wait for, tables and JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from helpers import make_record
from made_up import MNIST, metric

from capslib import papers
from capslib.errors import UserError
from capslib.lab import claims
from capslib.lab.claims import COLUMNS, to_json, verdicts
from capslib.lab.ledger import ledger, number
from capslib.lab.store import Store
from capslib.lab.words import CAPSULES, ERRATA, NOT_RUN, Verdict, counts
from capslib.papers.experiment import Trial

ROOT = Path(__file__).parents[2]
STEM = "negation_limitation"
CLAIM = "NEG-T1-rba-bias"


def judged(store: Store, stem: str = STEM) -> dict[str, Verdict]:
    return {verdict.claim.id: verdict for verdict in verdicts(stem, store=store)}


def test_without_records_every_claim_is_not_run_and_says_what_it_waits_for(store):
    empty = verdicts(store=store)
    assert [verdict.claim.id for verdict in empty] == list(ledger())
    assert {verdict.group for verdict in empty} == {NOT_RUN, ERRATA}
    reasons = {verdict.claim.id: verdict.reason for verdict in empty}
    assert reasons["LR-W-1"].endswith(
        "18 trials at paper scale, or 24 trials at cpu scale, 6 of them with twice the budget, "
        "would decide it."
    )
    totals = [sum(words.values()) for words in counts(empty).values()]
    assert sum(totals) == len(empty)
    with pytest.raises(UserError, match="Did you mean"):
        verdicts("negation_limitatio", store=store)


def test_records_in_a_store_become_verdicts_tables_and_json(store, add_records):
    keys = add_records(store.root)
    by_id = judged(store)
    cells = dict(zip(COLUMNS, claims.row(by_id[CLAIM]), strict=True))
    assert cells["Verdict"] == "reproduced"
    assert cells["Paper"] == "99.70\N{NO-BREAK SPACE}%"
    assert cells["95 % interval"] == "[99.68, 99.73]"
    rows = {row["id"]: row for row in json.loads(to_json(by_id.values()))}
    row = rows[CLAIM]
    assert (row["verdict"], row["verdict_is"]) == ("reproduced", CAPSULES)
    assert (row["paper_value"], row["our_value"]) == (99.7, pytest.approx(99.71))
    assert row["headlines"] == ["NEG-H-sign"]
    assert sorted(row["records"]) == sorted(keys)
    assert rows["NEG-W-4"]["parts"] == {part.name: "waiting" for part in by_id["NEG-W-4"].parts}


@pytest.mark.parametrize(
    ("value", "text"),
    [(-12345, "−12,345"), (1024, "1,024"), (12.345, "12.35"), (-6.14523e-05, "−6.145·10⁻⁵")],
)
def test_numbers_are_written_for_readers(value, text):
    assert number(value) == text


@pytest.mark.parametrize("selection", [{"seeds": [999]}, {"change": {"epochs": 1}}])
def test_a_trial_that_no_scale_names_counts_for_nothing(store, add_records, selection):
    add_records(store.root)
    expected = judged(store)[CLAIM].records
    sign = papers.experiments(STEM)["sign"]
    for trial in sign.trials("paper", where={"arm": "dynamic/bias"}, **selection):
        store.put(make_record(trial))
    assert judged(store)[CLAIM].records == expected


def test_no_single_file_takes_the_verdicts_down(store, add_records, caplog):
    add_records(store.root)
    expected = judged(store)
    trial = next(store.records(STEM)).trial
    sound = store.path(trial).read_text()
    path = store.path(trial.model_copy(update={"seed": 4}))
    for content in ("{}", sound.replace('"n": ', '"n": 1' + "0" * 400)):
        path.write_text(content)
        caplog.clear()
        assert judged(store) == expected
        assert str(path) in caplog.text
    path.unlink()
    os.mkfifo(path)
    assert judged(store) == expected
    assert f"{path} cannot be read" in caplog.text


def test_claims_that_use_the_same_records_name_each_other():
    by_id = judged(Store(ROOT / "results"), "em_routing")
    assert {"EM-T1-iter3", "EM-W-14"} <= set(by_id["EM-W-10"].shares)
    assert "EM-W-10" in by_id["EM-T1-iter1"].shares
    assert not {"EM-W-4", "EM-W-10"} & set(by_id["EM-W-10"].shares)


def test_a_trial_with_twice_the_epochs_tells_whether_an_order_rests(store):
    """From the store, by the experiment's own arms: 8 epochs where the scale has 4."""
    depth = papers.experiments(STEM)["depth"]
    curve = {"batch_accuracy": [0.9]}

    def add(**selection: object) -> None:
        for trial in depth.trials("cpu", where={"arm": "mnist/dynamic/4/no_bias"}, **selection):
            metrics = {"test_accuracy": metric(0.1)}
            store.put(make_record(trial, metrics=metrics, series=curve, data=[MNIST]))

    def part() -> Verdict:
        (part,) = [
            part
            for part in judged(store)["NEG-W-5-rba-mnist"].parts
            if part.name == "4 layers without bias do not train"
        ]
        return part

    add()
    assert (part().status, part().n) == ("undecided", 3)
    add(seeds=[0], change={"epochs": 16})
    assert part().status == "undecided", "four times the epochs is another setting"
    add(seeds=[0], change={"epochs": 8})
    assert (part().status, part().n, len(part().records)) == ("same order", 3, 4)


def test_a_reduced_order_waits_for_one_seed_of_twice_the_budget_too():
    """Of the seeds that lacks the fewest, and not of a training that stopped itself."""
    stem, claim = "learned_routing", "LR-W-1"
    single = papers.needs(stem, "cpu")[claim]
    first, second, _ = papers.longer(stem, "cpu")[claim]

    def waits(*trials: Trial, stopped: tuple[Trial, ...] = ()) -> tuple[int, int]:
        done = {trial.key for trial in trials}
        ended = {trial.key for trial in stopped}
        waiting = papers.waits(stem, done, ended)[claim]["cpu"]
        return len(waiting.trials), len(waiting.doubles)

    count = len(first)
    assert waits() == (len(single), count)
    doubled = [first[0][1], second[0][1], second[1][1]]
    assert waits(*single, *doubled) == (0, count - 2)
    assert waits(*single, stopped=[trial for trial, _ in first]) == (0, 0)


def test_a_claim_needs_twice_the_budget_where_no_end_of_training_is_given():
    assert papers.longer("em_routing", "paper")["EM-T1-iter3"]
    assert not papers.longer("learned_routing", "paper")["LR-T3-conn-mnist"], "it stops itself"
    assert not papers.longer("em_routing", "cpu")["EM-T1-iter3"], "no reduced value is decided"
