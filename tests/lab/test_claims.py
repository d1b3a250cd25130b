"""Verdicts: each rule by itself on small made-up records, and what must not matter to any of
them.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import make_record
from hypothesis import given, settings
from hypothesis import strategies as st

from capslib import papers
from capslib.data.registry import SETS
from capslib.errors import UserError
from capslib.lab import claims
from capslib.lab.chapter import Chapter
from capslib.lab.claims import COLUMNS, describe, our_value, to_json, verdicts
from capslib.lab.judging import AT_REST, SEEDS, judge
from capslib.lab.ledger import Claim, ledger, number
from capslib.lab.records import Record
from capslib.lab.replicates import FAILED, Runs
from capslib.lab.store import Store
from capslib.lab.words import (
    BASELINES,
    CAPSULES,
    ERRATA,
    EXACT,
    GROUPS,
    IN_PART,
    NOT_RUN,
    REDUCED,
    STATUSES,
    Verdict,
    counts,
    tally,
)
from capslib.papers import experiments, fields, queries
from capslib.papers.experiment import DataFingerprint, Metric, Trial
from capslib.papers.query import (
    Above,
    Count,
    Derived,
    Erratum,
    Order,
    Property,
    Select,
    Value,
    difference,
)

REAL = DataFingerprint(name="mnist", sha256="0" * 64, stand_in=False, complete=True)
STAND_IN = DataFingerprint(name="digits", sha256="0" * 64, stand_in=True, complete=True)
DERIVED = DataFingerprint(
    name="kmnist",
    sha256="0" * 64,
    stand_in=False,
    complete=False,
    deviations=["7,011 of 60,000 images."],
)


def record(
    value=None,
    seed=0,
    scale="paper",
    arm="a",
    exit="ok",
    data=(REAL,),
    unit="fraction",
    config=None,
    revision=1,
    paper="negation_limitation",
    experiment="depth",
    metrics=None,
    parameters=7,
    learned=0.9,
    epochs=4,
    routing_path="fast",
) -> Record:
    """A record of one made-up trial."""
    trial = Trial(
        paper=paper,
        experiment=experiment,
        revision=revision,
        scale=scale,
        config=config or {"arm": arm, "size": 3, "epochs": epochs},
        seed=seed,
    )
    found = {} if value is None else {"accuracy": Metric(value=value, n=10_000, unit=unit)}
    return make_record(
        trial,
        config=trial.config,
        metrics=({} if exit != "ok" else found | (metrics or {})),
        series={"batch_accuracy": [learned]},
        data=list(data),
        parameters=parameters,
        exit=exit,
        routing_path=routing_path,
    )


def runs(values, **more) -> list[Record]:
    return [record(v, seed=s, **more) for s, v in enumerate(values)]


def claim(
    kind="value", value=None, tolerance=0.5, unit="percent", metric="test accuracy", **more
) -> Claim:
    row = dict(
        id="NEG-X-test",
        paper="negation_limitation",
        where="Table 1",
        kind=kind,
        statement="A is so.",
        dataset="MNIST",
        setting="",
        metric=metric,
        unit=unit,
        value=value,
        std=None,
        tolerance=tolerance,
        not_run="",
        notes="",
        printed=str(value or ""),
    )
    return Claim(**(row | more))


A, B = Select("depth", {"arm": "a"}), Select("depth", {"arm": "b"})
VALUE = Value(A, "accuracy", final=False)
ORDER = Order(A, B, "accuracy", final="reduced")
ordered = claim("order", unit="", metric="")
exact = claim("property", unit="", metric="")
GOOD, BAD = [0.95, 0.96, 0.955], [0.10, 0.11, 0.105]


def arms(a=GOOD, b=BAD, **more) -> list[Record]:
    return runs(a, arm="a", **more) + runs(b, arm="b", **more)


def longer(records, values=None) -> list[Record]:
    """One run of each arm with twice the epochs: the first of each, with its value or another."""
    first = {
        r.config["arm"]: r.metrics["accuracy"].value
        for r in reversed(records)
        if r.trial.seed == 0
    }
    return [
        record(v, arm=arm, scale=records[0].trial.scale, epochs=8)
        for arm, v in (first | (values or {})).items()
    ]


def with_longer(records) -> Runs:
    """Records of which those with eight epochs have twice the budget."""
    return Runs(records, lambda r: 2 if r.config.get("epochs") == 8 else 1)


# ---------------------------------------------------------------------------------------------------------------
# value


@pytest.mark.parametrize(
    ("paper", "status"),
    [
        (95.5, "reproduced"),
        (97.0, "reproduced"),
        (93.6, "reproduced"),
        (97.2, "not reproduced"),
        (93.5, "better"),
    ],
)
def test_a_value_is_reproduced_inside_the_widened_interval(paper, status):
    found = judge(
        claim(value=paper), VALUE, runs(GOOD)
    )  # 94.08 to 96.59 percent, widened by 0.5
    assert (found.status, found.n, found.scale, found.unit) == (status, 3, "paper", "percent")
    assert found.ours == pytest.approx(95.5)
    assert found.interval == pytest.approx(
        (94.081, 96.591), abs=1e-3
    )  # of the logit: 95.5 ± 1.2421 bent away from 100
    assert found.records == tuple(r.key for r in runs(GOOD))
    assert number(paper) in found.reason


def test_an_edge_of_the_tolerance_counts_as_inside():
    """In binary 93.9 + 0.3 is less than 94.2."""
    assert (
        judge(claim(value=94.2, tolerance=0.3), VALUE, runs([0.939] * 3)).status == "reproduced"
    )
    assert (
        judge(claim(value=94.21, tolerance=0.3), VALUE, runs([0.939] * 3)).status
        == "not reproduced"
    )


@pytest.mark.parametrize(
    ("metric", "status"),
    [("test error", "not reproduced"), ("AUROC", "better"), ("parameters", "not reproduced")],
)
def test_better_depends_on_the_direction_of_the_metric(metric, status):
    assert judge(claim(value=50, metric=metric), VALUE, runs(GOOD)).status == status


def test_a_lower_error_is_better():
    assert judge(claim(value=50, metric="test error"), VALUE, runs(BAD)).status == "better"


def test_units_meet_in_the_unit_of_the_paper():
    percent = judge(claim(value=95.5), VALUE, runs(GOOD))
    fraction = judge(
        claim(value=0.955, unit="fraction", tolerance=0.005),
        VALUE,
        runs([100 * v for v in GOOD], unit="percent"),
    )
    assert percent.status == fraction.status == "reproduced"
    assert (percent.ours, fraction.ours) == pytest.approx((95.5, 0.955))
    odd = judge(claim(value=95.5), VALUE, runs(GOOD, unit="steps"))
    assert (odd.status, odd.interval) == ("inconclusive", None)
    assert "steps" in odd.reason


def test_the_parameters_of_a_network_are_a_metric_of_every_record():
    asked = Value(A, "parameters", final=False)
    found = judge(
        claim(value=310_000, unit="count", metric="trainable parameters", tolerance=10_000),
        asked,
        runs(GOOD, parameters=316_650),
    )
    assert (found.status, found.ours) == ("reproduced", 316_650)


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ([], "No record"),
        (runs(GOOD, scale="smoke"), "No record"),
        (runs(GOOD, data=[STAND_IN]), "No record"),
        (runs(GOOD, data=[REAL, STAND_IN]), "No record"),
        (runs(GOOD[:2]), "needs 3 seeds; there are 2."),
        (runs(GOOD[:1]), "needs 3 seeds; there is 1."),
        (runs(GOOD, arm="b"), "No record"),
        (runs(GOOD, experiment="sign"), "No record"),
        (runs(GOOD, paper="em_routing"), "No record"),
        (runs([None] * 3), "lack the metric 'accuracy'"),
        (runs(GOOD, exit="interrupted"), "No record"),
        (runs(GOOD, exit="cut"), "No record"),
    ],
)
def test_a_value_without_three_real_runs_at_paper_scale_waits(records, why):
    found = judge(claim(value=95.5), VALUE, records)
    assert (found.status, found.ours, found.interval, found.scale) == (
        "waiting",
        None,
        None,
        None,
    )
    assert why in found.reason


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("paper", [95.5, 10, 99.99])
def test_a_value_in_a_reduced_setting_is_shown_beside_the_papers_and_decides_nothing(n, paper):
    found = judge(claim(value=paper), VALUE, runs(GOOD[:n], scale="cpu"))
    assert (found.status, found.n, found.scale) == ("measured", n, "cpu")
    assert found.ours == pytest.approx(100 * np.mean(GOOD[:n]))
    assert (found.interval is None) == (n == 1)
    assert "decides nothing" in found.reason


def test_an_interval_wider_than_six_tolerances_decides_no_value():
    """57 ± 99 points would reproduce anything."""
    for paper in (10, 50, 95):
        found = judge(claim(value=paper), VALUE, runs([0.2, 0.5, 0.9]))
        assert (found.status, "wider than 6 tolerances" in found.reason) == (
            "inconclusive",
            True,
        )
        assert found.interval[0] > 0
        assert found.interval[1] < 100
    assert (
        judge(claim(value=53.3, tolerance=20), VALUE, runs([0.2, 0.5, 0.9])).status
        == "reproduced"
    )


def test_a_value_that_is_unlike_the_papers_is_shown_and_decides_nothing():
    """Not even where it lies on the paper's value, or is better."""
    for paper in (95.5, 50):
        found = judge(
            claim(value=paper, metric="AUROC"),
            replace(VALUE, unlike="its test set is another"),
            runs(GOOD),
        )
        assert (found.status, found.ours) == ("inconclusive", pytest.approx(95.5))
        assert found.reason.endswith("decides nothing: its test set is another.")
    assert (
        judge(claim(value=50), replace(VALUE, unlike="so"), runs(GOOD, scale="cpu")).status
        == "measured"
    )


FLOOR = replace(A, learned=0.5)


def test_a_network_that_guesses_decides_nothing_and_is_listed_seed_by_seed():
    records = [*runs([0.2, 0.2], learned=0.21), record(0.95, seed=2)]
    found = judge(claim(value=95), replace(VALUE, select=FLOOR), records)
    assert (found.status, found.ours, found.interval, found.n) == (
        "inconclusive",
        None,
        None,
        3,
    )
    assert found.listed == pytest.approx((20, 20, 95))
    assert our_value(found) == "20 · 20 · 95\N{NO-BREAK SPACE}%"
    assert (
        "seed 0 did not learn (training accuracy 21%, and the floor is 50%); seed 1 did not"
        in found.reason
    )
    rival = record(0.95, seed=0).model_copy(
        update={"series": {"batch_accuracy": [0.99], "batch_accuracy_beside": [0.2]}}
    )
    assert FLOOR.unfit(rival) == [
        "did not learn (training accuracy 20%, and the floor is 50%)"
    ], "of two networks one guesses"
    reduced = [
        r.model_copy(update={"trial": r.trial.model_copy(update={"scale": "cpu"})})
        for r in records
    ]
    found = judge(claim(value=95), replace(VALUE, select=FLOOR), reduced)
    assert (found.status, found.ours, len(found.listed)) == ("measured", None, 3)
    assert (
        judge(ordered, Order(FLOOR, B, "accuracy"), records + runs(BAD, arm="b")).status
        == "inconclusive"
    )
    assert (
        judge(
            claim(value=95),
            replace(VALUE, select=FLOOR),
            [r.model_copy(update={"series": {}}) for r in runs(GOOD)],
        ).ours
        is None
    )


def test_what_breaks_a_limit_of_its_selection_decides_nothing():
    above = Above(replace(A, at_most={"familiar": 8}), "accuracy", 0.5, final=False)

    def at(familiar):
        return runs(GOOD, metrics={"familiar": Metric(value=familiar, n=9, unit="percent")})

    assert judge(ordered, above, at(8)).status == "reproduced"
    found = judge(ordered, above, at(15.12))
    assert (found.status, found.ours) == ("inconclusive", None)
    assert "familiar = 15.1, and the limit is 8" in found.reason
    assert judge(ordered, above, runs(GOOD)).status == "inconclusive", "not measured"


def test_a_quantity_may_be_computed_from_the_curves_of_a_record():
    last = Derived(
        "the end", lambda r: Metric(value=r.series["batch_accuracy"][-1], n=5, unit="fraction")
    )
    found = judge(claim(value=90), Value(A, last, final=False), runs(GOOD))
    assert (found.status, found.ours) == ("reproduced", pytest.approx(90))
    gone = judge(
        claim(value=90),
        Value(A, last, final=False),
        [r.model_copy(update={"series": {}}) for r in runs(GOOD)],
    )
    assert (gone.status, "lack the metric 'the end'" in gone.reason) == ("waiting", True)
    share = Derived(
        "the end", lambda r: Metric(value=1 / r.series["nothing"][-1], n=5, unit="fraction")
    )
    of_nothing = [r.model_copy(update={"series": {"nothing": [0.0]}}) for r in runs(GOOD)]
    found = judge(claim(value=90), Value(A, share, final=False), of_nothing)
    assert (found.status, "lack the metric 'the end'" in found.reason) == ("waiting", True)


@pytest.mark.parametrize("end", FAILED)
def test_a_failed_replicate_is_named_and_not_dropped(end):
    """To drop it would be to choose runs by their outcome."""
    failed = record(seed=8, exit=end, data=[])
    found = judge(claim(value=95.5), VALUE, [*runs(GOOD), failed])
    assert (found.status, found.n, found.ours) == ("inconclusive", 3, None)
    assert found.listed == pytest.approx([95, 96, 95.5])
    assert found.reason == f"Failed replicates: seed 8 ended in {end}."
    assert failed.key in found.records
    for query in (
        ORDER,
        replace(ORDER, better=B, worse=A),
        YES,
        Count({"x": YES}),
    ):  # the other arm has no run of that seed
        found = judge(ordered, query, [*arms(), failed])
        assert found.status == "inconclusive"
        assert f"seed 8 ended in {end}" in (found.parts[0] if found.parts else found).reason
    found = judge(exact, exactly(1e-12), [*violations(1e-13), failed])
    assert (found.status, found.reason) == (
        "undecided",
        f"Failed replicates: seed 8 ended in {end}.",
    )


def test_each_end_of_failed_replicates_is_named_with_its_seeds():
    ends = {3: "oom", 4: "nan", 5: "oom", 6: "error", 7: "interrupted", 8: "cut"}
    found = judge(
        claim(value=95.5),
        VALUE,
        [*runs(GOOD), *(record(seed=s, exit=e, data=[]) for s, e in ends.items())],
    )
    assert (
        found.reason
        == "Failed replicates: seed 4 ended in nan; seeds 3, 5 ended in oom; seed 6 ended in error."
    )


@pytest.mark.parametrize("end", FAILED)
def test_a_claim_whose_runs_all_failed_says_so(end):
    found = judge(claim(value=95.5), VALUE, runs([None] * 3, exit=end, data=[]))
    assert (found.status, found.ours) == ("inconclusive", None)
    assert found.reason == f"Failed replicates: seeds 0, 1, 2 ended in {end}."


def test_records_of_different_configurations_are_no_replicates():
    records = [record(v, seed=s, config={"arm": "a", "size": s}) for s, v in enumerate(GOOD)]
    found = judge(claim(value=95.5), VALUE, records)
    assert (found.status, "differ in size" in found.reason) == ("inconclusive", True)


def test_a_record_that_is_none_of_its_scales_own_does_not_count():
    """Such as one of an earlier revision."""
    records = runs([*BAD, 0.2, 0.3]) + runs(GOOD, revision=2)
    found = judge(claim(value=95.5), VALUE, Runs(records, lambda r: int(r.trial.revision == 2)))
    assert (found.status, found.n) == ("reproduced", 3)


def test_a_verdict_on_derived_data_says_how():
    found = judge(claim(value=95.5), VALUE, runs(GOOD, data=[DERIVED, REAL]))
    assert found.derived == "kmnist: 7,011 of 60,000 images"
    assert (found.status, found.group, found.scale) == ("measured", REDUCED, "paper")
    assert judge(claim(value=95.5), VALUE, runs(GOOD)).derived == ""
    silent = DERIVED.model_copy(update={"deviations": []})
    assert (
        judge(claim(value=95.5), VALUE, runs(GOOD, data=[silent])).derived
        == "kmnist: incomplete"
    )


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("Quoted from other literature (X): not theirs.", "quoted"),
        ("The set is not among those of this book.", "not to be had"),
    ],
)
def test_what_the_ledger_rules_out_stays_so_with_its_reason(reason, status):
    found = judge(claim(value=95.5, not_run=reason), VALUE, runs(GOOD))
    assert (found.status, found.reason) == (status, reason)
    assert judge(claim(value=95.5), None, runs(GOOD)).status == "waiting"


# ---------------------------------------------------------------------------------------------------
# order and above


def cells(values, **more) -> list[Record]:
    """For each seed a record of each kind."""
    return [
        record(v, seed=seed, config={"arm": "a", "kind": kind, "epochs": 4}, **more)
        for seed, row in enumerate(values)
        for kind, v in enumerate(row)
    ]


OVER = Value(Select("depth", {"arm": "a"}, over="kind", cells=2), "accuracy", final=False)


def test_the_mean_over_the_runs_of_a_seed_is_one_replicate():
    found = judge(claim(value=90), OVER, cells([[0.99, 0.81], [0.98, 0.82], [0.995, 0.805]]))
    assert (found.status, found.n) == ("reproduced", 3)
    assert found.interval == pytest.approx((90, 90))
    assert found.ours == pytest.approx(90)
    assert len(found.records) == 6


def test_runs_of_one_replicate_that_differ_in_more_are_not_mixed():
    sizes = [
        record(0.9, seed=s, config={"arm": "a", "size": 3 + k, "kind": k})
        for s in range(3)
        for k in (0, 1)
    ]
    found = judge(claim(value=90), OVER, sizes)
    assert found.status == "inconclusive"
    assert "differ in size, which the query does not fix" in found.reason


def test_a_seed_without_all_of_its_runs_is_no_replicate():
    records = cells([[0.99, 0.81]] * 4)
    assert judge(claim(value=90), OVER, records[:-1]).n == 3
    few = judge(claim(value=90), OVER, records[::2])
    assert (few.status, few.n) == ("waiting", 0)
    assert (
        "No seed has a record of all 2 of depth (arm=a) yet, each with another kind."
        in few.reason
    )


def test_of_the_runs_of_a_seed_the_one_that_is_at_fault_is_named():
    good = [[0.99, 0.81]] * 3
    failed = judge(
        claim(value=90), OVER, [*cells(good)[:-1], *cells([[0, 0]] * 3, exit="nan")[-1:]]
    )
    assert (failed.status, failed.reason) == (
        "inconclusive",
        "Failed replicates: seed 2 ended in nan.",
    )
    picky = replace(OVER, select=replace(OVER.select, learned=0.5))
    dead = judge(claim(value=90), picky, [*cells(good)[:-1], *cells(good, learned=0.1)[-1:]])
    assert dead.reason.startswith("Decides nothing: seed 2, kind 1 did not learn")


def test_a_training_that_a_rule_stopped_is_its_own_with_twice_the_epochs():
    ran = {n: {"epochs": Metric(value=n, n=1, unit="count")} for n in (3, 4)}
    query = Above(A, "accuracy", 0.5)
    for epochs, status in {3: "same order", 4: "undecided"}.items():
        found = runs(GOOD, scale="cpu", metrics=ran[epochs])
        assert judge(claim("order"), query, Runs(found)).status == status, epochs


def test_an_order_is_decided_by_pairs_of_one_seed():
    """The arms overlap, yet within every seed one is ahead by the same amount."""
    a, b = [0.5, 0.7, 0.9], [0.49, 0.69, 0.89]
    found = judge(ordered, ORDER, arms(a, b))
    assert found.status == "reproduced"
    assert found.ours == pytest.approx(0.01)
    crossed = [record(v, seed=s, arm="b") for s, v in zip((1, 2, 0), b, strict=True)]
    assert judge(ordered, ORDER, runs(a) + crossed).status == "inconclusive"


@pytest.mark.parametrize(
    ("query", "status"),
    [
        (ORDER, "reproduced"),
        (Order(B, A, "accuracy"), "contradicted"),
        (Order(B, A, "accuracy", higher_is_better=False), "reproduced"),
        (Order(A, B, "accuracy", margin=0.5), "reproduced"),
        (
            Order(A, B, "accuracy", margin=0.9),
            "inconclusive",
        ),  # ahead, by less than was said: neither order
        (Order(B, A, "accuracy", margin=0.9), "contradicted"),
        (Order(A, B, "accuracy", margin=0.85), "inconclusive"),
        (
            Order(B, A, "accuracy", margin=-0.9),
            "reproduced",
        ),  # behind, by less than counts as equal
        (Order(B, A, "accuracy", margin=-0.85), "inconclusive"),
        (Order(B, A, "accuracy", margin=-0.5), "contradicted"),
        (Order(A, B, "accuracy", margin=0.9, equal=True), "reproduced"),
        (Order(B, A, "accuracy", margin=0.9, equal=True), "reproduced"),
        (Order(A, B, "accuracy", margin=0.5, equal=True), "contradicted"),
        (Order(B, A, "accuracy", margin=0.5, equal=True), "contradicted"),
        (Order(A, B, "accuracy", margin=0.85, equal=True), "inconclusive"),
        (Above(A, "accuracy", 0.5), "reproduced"),
        (Above(B, "accuracy", 0.5), "contradicted"),
        (Above(A, "accuracy", 0.955), "inconclusive"),
        (Above(B, "accuracy", 0.5, below=True), "reproduced"),
        (Above(A, "accuracy", 0.5, below=True), "contradicted"),
        (Above(A, "accuracy", 0.955, below=True), "inconclusive"),
        (Above(A, "accuracy", 0.5, margin=0.3), "reproduced"),
        (Above(A, "accuracy", 0.5, margin=0.46), "inconclusive"),
        (Above(B, "accuracy", 0.5, below=True, margin=0.3), "reproduced"),
        (Above(B, "accuracy", 0.5, below=True, margin=0.39), "inconclusive"),
        (Order(A, B, "accuracy", beyond=(A, A)), "reproduced"),
        (Order(A, B, "accuracy", beyond=(A, B)), "inconclusive"),
        (Order(A, A, "accuracy", beyond=(A, B)), "contradicted"),
        (Order(A, B, "accuracy", beyond=(A, A), higher_is_better=False), "contradicted"),
    ],
)
def test_comparisons(query, status):
    query = replace(query, final="reduced")
    found = judge(
        ordered, query, arms([0.95, 0.97, 0.96], [0.10, 0.11, 0.12])
    )  # ahead by 0.85, 0.86, 0.84
    assert (found.status, found.n, found.scale) == (status, 3, "paper")
    assert found.interval is not None


def test_a_bound_is_shown_in_the_unit_of_the_paper():
    chance = claim("order", value=20, unit="percent")
    found = judge(chance, Above(A, "accuracy", 0.2, final=False), runs(GOOD))
    assert (found.status, found.ours, found.unit) == (
        "reproduced",
        pytest.approx(95.5),
        "percent",
    )
    assert "above 20." in found.reason


def test_a_bound_on_something_else_than_the_claims_number_keeps_its_own_unit():
    found = judge(
        claim("order", value=0.2, unit="pixel intensity"),
        Above(A, "accuracy", 0.96, final=False),
        runs(GOOD),
    )
    assert (found.status, found.ours, found.unit) == (
        "inconclusive",
        pytest.approx(0.955),
        "fraction",
    )
    assert found.interval is not None


def test_an_interval_stays_in_the_bounds_of_its_metric():
    near = [0.9999, 0.9995, 0.99]
    assert judge(claim(value=99), VALUE, runs(near)).interval[1] < 100
    assert judge(ordered, Above(A, "accuracy", 0.5, final=False), runs(near)).interval[1] < 1
    assert judge(ordered, ORDER, arms([0.9, 0.1, 0.5], [0.1, 0.9, 0.2])).interval[0] > -1
    assert judge(claim(value=99), replace(VALUE, bounded=False), runs(near)).interval[1] > 100
    assert (
        judge(
            ordered, Above(A, "accuracy", 0.5, final=False), runs(near, unit="steps")
        ).interval[1]
        > 1
    )


def test_a_difference_of_percentages_is_in_points():
    a, b = (
        runs([100 * v for v in values], arm=arm, unit="percent")
        for values, arm in ((GOOD, "a"), (BAD, "b"))
    )
    found = judge(claim("order"), ORDER, a + b)
    assert (found.unit, found.ours) == (
        "points",
        pytest.approx(100 * (np.mean(GOOD) - np.mean(BAD))),
    )
    for unit in ("points", "percent"):  # a metric that is a difference comes with its unit
        assert (
            judge(ordered, Above(A, "accuracy", 0, final=False), runs(GOOD, unit=unit)).unit
            == unit
        )


def test_two_equal_arms_do_not_show_an_order():
    assert judge(ordered, ORDER, arms(GOOD, GOOD)).status == "inconclusive"


def test_fewer_than_three_pairs_decide_nothing():
    found = judge(ordered, ORDER, arms(GOOD, BAD[:2]))
    assert (found.status, found.n, found.interval) == ("inconclusive", 2, None)
    assert "needs 3 pairs of runs with one seed; there are 2" in found.reason
    apart = judge(
        ordered, ORDER, runs(GOOD) + [record(v, seed=9 + s, arm="b") for s, v in enumerate(BAD)]
    )
    assert (apart.status, "no seed in common" in apart.reason) == ("waiting", True)


def test_the_scale_of_the_paper_is_preferred_where_it_has_enough_and_scales_never_mix():
    small, full = arms(BAD, GOOD, scale="cpu"), arms(scale="paper")
    query = replace(ORDER, final=False)
    assert [
        (v.status, v.scale)
        for v in (judge(ordered, query, small), judge(ordered, query, small + full))
    ] == [
        ("opposite order", "cpu"),
        ("reproduced", "paper"),
    ]
    two = [r for r in full if r.trial.seed < 2]
    assert (found := judge(ordered, ORDER, small + two)).scale == "cpu"
    assert set(found.records) == {r.key for r in small}
    half = runs(GOOD, arm="a", scale="paper") + runs(BAD, arm="b", scale="cpu")
    assert judge(ordered, ORDER, half).status == "waiting"


def test_a_claim_may_need_the_scale_of_the_paper():
    only = Above(A, "accuracy", 0.5, final=False, paper_scale_only="it counts steps")
    found = judge(ordered, only, runs(GOOD, scale="cpu"))
    assert (found.status, "a reduced setting cannot tell: it counts steps" in found.reason) == (
        "waiting",
        True,
    )
    assert judge(ordered, only, runs(GOOD)).status == "reproduced"
    mixed = Count({"any scale": replace(YES, final=False), "paper scale": only})
    assert [p.status for p in judge(ordered, mixed, runs(GOOD, scale="cpu")).parts] == [
        "same order",
        "waiting",
    ]


# -------------------------------------------------------------------------------------------------------------
# at rest


def assert_decided_only_with_twice_the_budget(asked, query, records, undone, decided) -> None:
    """And only if the longer runs agree."""
    found = judge(asked, query, records)
    assert (found.status, found.interval is not None) == (undone, True)
    assert "no run with twice the budget yet" in found.reason
    rests = judge(asked, query, with_longer(records + longer(records)))
    assert (rests.status, "with twice the budget (" in rests.reason, rests.n) == (
        decided,
        True,
        3,
    )
    assert set(rests.records) > set(found.records)
    turned = judge(asked, query, with_longer(records + longer(records, {"a": 0.1, "b": 0.95})))
    assert (turned.status, "another" in turned.reason) == (undone, True)


@pytest.mark.parametrize(
    ("query", "arm"), [(ORDER, "a"), (ORDER, "b"), (Above(A, "accuracy", 0.5), "a")]
)
@pytest.mark.parametrize("sign", [-1, 1])
def test_an_arm_is_at_rest_if_twice_the_budget_moves_it_by_a_tenth_at_most(query, arm, sign):
    small = arms(a=[0.85, 0.86, 0.855], scale="cpu")
    first = {r.config["arm"]: r.metrics["accuracy"].value for r in small if r.trial.seed == 0}
    for share, status in ((0.9 * AT_REST, "same order"), (1.1 * AT_REST, "undecided")):
        found = judge(
            ordered,
            query,
            with_longer(small + longer(small, {arm: first[arm] * (1 + sign * share)})),
        )
        assert found.status == status, share
    assert "but accuracy moved from" in found.reason
    assert "by more than a tenth" in found.reason


@pytest.mark.parametrize(
    "query",
    [
        ORDER,
        Above(A, "accuracy", 0.5),
        Above(B, "accuracy", 0.5, below=True),
        replace(ORDER, final=True),
    ],
)
def test_a_reduced_order_about_the_end_needs_a_run_with_twice_the_budget(query):
    small = arms(scale="cpu")
    assert_decided_only_with_twice_the_budget(ordered, query, small, "undecided", "same order")
    assert judge(ordered, replace(query, final=False), small).status == "same order"


def test_each_deciding_arm_needs_its_longer_run_on_one_seed_and_it_has_to_be_sound():
    small = arms(scale="cpu")
    one, other = sorted(longer(small), key=lambda r: r.config["arm"])
    assert judge(ordered, ORDER, with_longer([*small, one])).status == "undecided"
    elsewhere = record(0.1, arm="b", seed=1, scale="cpu", epochs=8)
    assert judge(ordered, ORDER, with_longer([*small, one, elsewhere])).status == "undecided", (
        "of another seed"
    )
    assert judge(ordered, ORDER, with_longer([*small, one, other])).status == "same order"
    failed = judge(
        ordered,
        ORDER,
        with_longer([*small, one, record(arm="b", scale="cpu", epochs=8, exit="nan")]),
    )
    assert failed.status == "undecided"
    assert (
        "[0.85, 0.85] of the lead in accuracy (arm a − arm b) over 3 seeds" in failed.reason
    ), "what the grid's own budget says stays"
    assert "but with twice the budget: failed replicates: seed 0 ended in nan" in failed.reason
    guesses = Order(FLOOR, B, "accuracy")
    dead = record(0.95, arm="a", scale="cpu", epochs=8, learned=0.2)
    died = judge(ordered, guesses, with_longer([*small, dead, other]))
    assert (died.status, died.listed) == ("undecided", ()), (
        "the networks of the grid's own budget did not die"
    )
    assert "but with twice the budget: decides nothing: seed 0" in died.reason


def test_a_run_with_twice_the_budget_that_lacks_the_metric_is_none():
    other = [
        record(
            None,
            arm=arm,
            scale="cpu",
            epochs=8,
            metrics={"loss": Metric(value=1, n=1, unit="count")},
        )
        for arm in "ab"
    ]
    found = judge(ordered, ORDER, with_longer(arms(scale="cpu") + other))
    assert "no run with twice the budget yet" in found.reason


def test_runs_with_twice_the_budget_are_no_replicates_of_the_others():
    small = arms(scale="cpu")
    many = small + [record(0.5, seed=s, arm="a", scale="cpu", epochs=8) for s in range(9)]
    assert judge(ordered, Above(A, "accuracy", 0.9), with_longer(many)).n == 3


@pytest.mark.parametrize(
    ("query", "asked"),
    [(VALUE, claim(value=95.5)), (ORDER, ordered), (Above(A, "accuracy", 0.5), ordered)],
)
def test_at_the_papers_size_the_end_of_training_needs_twice_the_budget_unless_the_paper_says_when_it_stops(
    query, asked
):
    full = arms()
    assert_decided_only_with_twice_the_budget(
        asked, replace(query, final=True), full, "inconclusive", "reproduced"
    )
    for where_it_stops in (False,) if isinstance(query, Value) else (False, "reduced"):
        assert judge(asked, replace(query, final=where_it_stops), full).status == "reproduced"


def test_a_longer_run_of_another_seed_shows_no_rest():
    small = arms(scale="cpu")
    elsewhere = [
        record(v, arm=arm, seed=7, scale="cpu", epochs=8) for arm, v in (("a", 0.6), ("b", 0.1))
    ]
    found = judge(ordered, ORDER, with_longer(small + elsewhere))
    assert (found.status, "no run of the usual budget has its seed" in found.reason) == (
        "undecided",
        True,
    )


def test_a_longer_run_on_other_data_shows_no_rest():
    full = arms()
    again = [
        record(v, arm=arm, epochs=8, data=[DERIVED]) for arm, v in (("a", 0.95), ("b", 0.1))
    ]
    found = judge(ordered, replace(ORDER, final=True), with_longer(full + again))
    assert (
        found.status,
        found.group,
        "with twice the budget are on data that" in found.reason,
    ) == (
        "inconclusive",
        CAPSULES,
        True,
    )


def test_of_a_difference_that_a_record_holds_each_side_has_to_be_at_rest():
    def metrics(left: float) -> dict[str, Metric]:
        values = {"left": left, "right": 0.5, "gap": left - 0.5}
        return {
            name: Metric(value=value, n=9, unit="fraction") for name, value in values.items()
        }

    records = runs([0.5] * 3, scale="cpu", metrics=metrics(0.52))
    gap = Above(A, "gap", 0, sides=("left", "right"))
    for left, status in (
        (0.55, "same order"),
        (0.6, "undecided"),
    ):  # the gap more than doubles in both
        again = [record(0.5, scale="cpu", epochs=8, metrics=metrics(left))]
        assert judge(ordered, gap, with_longer(records + again)).status == status


def test_of_a_difference_each_side_has_to_be_at_rest():
    """And not the difference, which is small where both are large."""
    metrics = {
        name: Metric(value=v, n=9, unit="fraction")
        for name, v in (("left", 0.9), ("right", 0.88))
    }
    records = runs([0.5] * 3, scale="cpu", metrics=metrics)
    ahead = Above(A, difference("left", "right"), 0, final="reduced")
    for left, status in ((0.93, "same order"), (0.999, "undecided")):
        moved = {**metrics, "left": Metric(value=left, n=9, unit="fraction")}
        again = [record(0.5, scale="cpu", epochs=8, metrics=moved)]
        assert judge(ordered, ahead, with_longer(records + again)).status == status


@pytest.mark.parametrize(
    ("after", "status"),
    [(0.94, "not reproduced"), (0.961, "not reproduced"), (0.98, "inconclusive")],
)
def test_a_value_that_is_not_the_papers_stays_so_if_twice_the_budget_does_not_bring_it_there(
    after, status
):
    full = arms()
    query = replace(VALUE, final=True)
    assert (
        judge(claim(value=98), query, with_longer(full + longer(full, {"a": after}))).status
        == status
    )


def test_a_nan_in_either_arm_leaves_an_order_open():
    records = [
        *arms(),
        record(seed=3, arm="a", exit="nan", data=[]),
        record(0.1, seed=3, arm="b"),
    ]
    found = judge(ordered, ORDER, records)
    assert (found.status, "seed 3 ended in nan" in found.reason) == ("inconclusive", True)


# --------------------------------------------------------------------------------------------------
# property and count


def exactly(bound, above=False, select=A):
    return Property(select, "violation", bound, "tests/test_x.py::test_y", above=above)


def violations(*values, **more):
    return [
        record(
            seed=s,
            data=[],
            metrics={"violation": Metric(value=v, n=64, unit="difference")},
            **more,
        )
        for s, v in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        (exactly(1e-12), "fails"),
        (exactly(2e-12), "holds"),
        (exactly(1e-13, above=True), "holds"),
        (exactly(1e-12, above=True), "fails"),
    ],
)
def test_a_property_is_held_by_its_worst_record(query, status):
    found = judge(exact, query, violations(1e-13, 2e-12, scale="cpu"))
    assert (found.status, found.n, found.scale, found.interval) == (status, 2, "cpu", None)
    assert "tests/test_x.py::test_y" in found.reason
    assert found.ours == (1e-13 if query.above else 2e-12)


def test_a_property_has_to_hold_at_both_scales_and_never_at_smoke_scale():
    both = violations(1e-13, scale="paper") + violations(1.0, scale="cpu")
    assert judge(exact, exactly(1e-12), both).status == "fails"
    assert judge(exact, exactly(1e-12), violations(1e-13, scale="smoke")).status == "waiting"
    assert (
        judge(exact, exactly(1e-12), [*both, record(seed=7, exit="nan", data=[])]).status
        == "undecided"
    )


def test_what_both_scales_drew_alike_counts_once():
    both = violations(1e-13, 1e-13, scale="paper") + violations(1e-13, 1e-13, scale="cpu")
    assert len({r.key for r in both}) == 4
    assert judge(exact, exactly(1e-12), both).n == 2
    assert (
        judge(exact, exactly(1e-12), both + violations(1e-13, config={"arm": "a", "size": 4})).n
        == 3
    )


YES, NO, OPEN, NONE = (
    Above(A, "accuracy", 0.5, final="reduced"),
    Above(B, "accuracy", 0.5, final="reduced"),
    Above(A, "accuracy", 0.955, final="reduced"),
    Above(Select("depth", {"arm": "c"}), "accuracy", 0.5, final="reduced"),
)


@pytest.mark.parametrize(
    ("parts", "at_least", "status"),
    [
        ([YES, YES], None, "reproduced"),
        ([NO, NO], None, "contradicted"),
        ([YES, NO], None, "fails in part (1 of 2)"),
        ([YES, YES, NO], None, "holds in part (2 of 3)"),
        ([NO, NO, YES], None, "contradicted"),
        ([NO, NO, YES, OPEN], None, "fails in part (2 of 4)"),
        ([NO, OPEN, OPEN, OPEN], None, "fails in part (1 of 4)"),
        ([YES, NO], 1, "reproduced"),
        ([NO, OPEN], 1, "inconclusive"),
        ([YES, OPEN], None, "holds in part (1 of 2)"),
        ([OPEN, OPEN], None, "inconclusive"),
        ([YES, NONE], None, "holds in part (1 of 2)"),
        ([OPEN, NONE], None, "waiting"),
        ([YES, NONE], 1, "reproduced"),
        ([NO, NONE], None, "fails in part (1 of 2)"),
        ([NO, NO, OPEN], 2, "contradicted"),
        ([NO, YES, OPEN], 2, "holds in part (1 of 3)"),
        ([Count({"x": YES, "y": NO}, at_least=1), YES], None, "reproduced"),
        ([Count({"x": YES, "y": NO}), OPEN, OPEN], None, "fails in part (1 of 3)"),
        ([Count({"x": YES, "y": OPEN}), OPEN], None, "inconclusive"),
        ([Count({"x": YES, "y": YES, "z": NO}), OPEN, OPEN], None, "fails in part (1 of 3)"),
        (
            [Count({"x": YES, "y": YES, "z": NO}), Count({"x": YES, "y": NO})],
            1,
            "fails in part (2 of 2)",
        ),
        ([Count({"x": NO, "y": YES, "z": NO}), Count({"x": YES, "y": NO})], 1, "contradicted"),
    ],
)
def test_a_claim_of_several_parts_says_how_many_hold_or_fail(parts, at_least, status):
    """And only most of the parts contradict it."""
    query = Count({f"part {k}": p for k, p in enumerate(parts)}, at_least)
    found = judge(ordered, query, arms())
    assert found.word == status
    assert [p.name for p in found.parts] == list(query.parts)
    if status == "waiting":
        assert "not run: part" in found.reason


def test_an_exact_count_that_is_off_by_nothing_shows_the_papers_number():
    counted = judge(claim("property", 1113.0, unit="count"), exactly(0), violations(0.0))
    assert (counted.status, counted.ours, our_value(counted)) == ("holds", 1113.0, "1113")
    missed = judge(claim("property", 1113.0, unit="count"), exactly(0), violations(0.0, 2.0))
    assert (missed.status, missed.ours) == ("fails", 2.0)
    assert our_value(judge(exact, exactly(0), violations(0.0))) == "no exception"


def test_a_count_says_how_many_of_its_parts_hold():
    assert (
        our_value(judge(ordered, Count({"a": YES, "b": NO}), arms()))
        == "1 of 2 parts holds, 1 fails"
    )
    assert (
        our_value(judge(ordered, Count({"a": YES, "b": NONE}), arms()))
        == "1 of 2 parts holds, 1 is not run"
    )
    assert our_value(judge(ordered, Count({"a": NONE}), arms())) == ""


def test_a_count_of_properties_holds_or_fails():
    both = Count({"low": exactly(1e-12), "high": exactly(1e-14, above=True)})
    assert judge(exact, both, violations(1e-13, 2e-13)).status == "holds"
    assert judge(exact, both, violations(1e-13, 2e-12)).word == "fails in part (1 of 2)"
    assert judge(exact, both, violations(1e-15, 2e-12)).status == "fails"


def test_all_parts_of_a_count_are_judged_at_one_scale():
    query = Count(
        {
            "a": replace(YES, final=False),
            "b": Above(B, "accuracy", 0.5, below=True, final=False),
        }
    )
    found = judge(ordered, query, runs(GOOD, scale="paper") + arms(scale="cpu"))
    assert (found.status, found.scale, {p.scale for p in found.parts}) == (
        "same order",
        "cpu",
        {"cpu"},
    )


@pytest.mark.parametrize(
    ("asked", "query"),
    [
        (claim(value=1), ORDER),
        (ordered, VALUE),
        (exact, ORDER),
        (ordered, Count({"x": VALUE})),
        (exact, Count({"x": YES})),
        (ordered, Count({})),
        (ordered, Count({"x": YES}, at_least=2)),
        (ordered, Count({"x": YES}, at_least=0)),
    ],
)
def test_a_query_that_does_not_fit_its_claim_is_a_mistake(asked, query):
    with pytest.raises(ValueError, match="NEG-X-test"):
        judge(asked, query, arms())


# -----------------------------------------------------------------------------------------------------
# what must not matter

shares = st.floats(0, 1).map(lambda v: round(v, 4))
samples = st.lists(shares, min_size=3, max_size=6)
QUERIES = [
    (claim(value=60.0), VALUE),
    (ordered, ORDER),
    (ordered, YES),
    (ordered, Count({"x": YES, "y": ORDER}, at_least=1)),
]
fast = settings(max_examples=60, deadline=None)


def said(v: Verdict) -> tuple:
    return v.status, v.reason, v.ours, v.interval, v.records, v.scale, v.n


@fast
@given(samples, samples, st.randoms())
def test_the_order_of_the_records_does_not_matter(a, b, rng):
    records = arms(a, b)
    shuffled = rng.sample(records, len(records))
    for asked, query in QUERIES:
        assert said(judge(asked, query, records)) == said(
            judge(asked, query, shuffled + shuffled)
        )


@fast
@given(samples, samples, samples)
def test_smoke_records_and_stand_ins_never_change_a_verdict(a, b, noise):
    records = arms(a, b)
    others = arms(noise, noise, scale="smoke", revision=3) + arms(
        noise, noise, data=[STAND_IN], revision=2
    )
    others += [record(seed=50, scale="smoke", exit="nan", data=[])]
    for asked, query in QUERIES:
        assert said(judge(asked, query, others + records)) == said(judge(asked, query, records))


@fast
@given(samples, samples, st.floats(0, 0.3))
def test_swapping_the_arms_turns_reproduced_into_contradicted(a, b, margin):
    query = Order(A, B, "accuracy", margin=margin)
    found, swapped = (
        judge(ordered, q, arms(a, b)) for q in (query, replace(query, better=B, worse=A))
    )
    if found.status == "reproduced":
        assert swapped.status == "contradicted"
    if found.status != "waiting":
        assert swapped.ours == pytest.approx(-found.ours)
    mirrored = judge(
        ordered, replace(query, better=B, worse=A, higher_is_better=False), arms(a, b)
    )
    assert (mirrored.status, mirrored.ours) == (found.status, pytest.approx(found.ours))


@fast
@given(samples, st.floats(0, 100), st.floats(0, 50), st.floats(0, 50))
def test_widening_the_tolerance_never_undoes_a_reproduction(a, value, tolerance, more):
    narrow, wide = (
        judge(claim(value=value, tolerance=t), VALUE, runs(a))
        for t in (tolerance, tolerance + more)
    )
    if narrow.status == "reproduced":
        assert wide.status == "reproduced"


@fast
@given(samples, st.floats(0, 100))
def test_a_value_far_from_the_paper_is_better_on_one_side_only(a, value):
    up, down = (
        judge(claim(value=value, metric=m), VALUE, runs(a)).status
        for m in ("test accuracy", "test error")
    )
    alike = {(status, status) for status in ("reproduced", "inconclusive")}
    assert (up, down) in {*alike, ("better", "not reproduced"), ("not reproduced", "better")}


# ----------------------------------------------------------------------------------------------------------
# words with weight


OWN_SIZE = set(GROUPS[CAPSULES]) - set(IN_PART)


def test_no_word_of_the_papers_size_is_one_of_a_reduced_setting():
    assert not OWN_SIZE & set(GROUPS[REDUCED])
    assert set(STATUSES) == {word for words in GROUPS.values() for word in words}
    assert GROUPS[CAPSULES] == GROUPS[BASELINES]


@pytest.mark.parametrize(
    "status", [s for s in STATUSES if s in {*OWN_SIZE, *GROUPS[REDUCED]} - set(IN_PART)]
)
def test_a_word_cannot_be_said_of_the_wrong_scale(status):
    right = "paper" if status in OWN_SIZE else "cpu"
    assert Verdict(ordered, status, "", scale=right).status == status
    for wrong in (
        {"paper", "cpu", "smoke", None}
        - {right}
        - ({"smoke", None} if right == "cpu" else set())
    ):
        with pytest.raises(ValueError, match=status):
            Verdict(ordered, status, "", scale=wrong)
    if right == "paper":
        assert Verdict(ordered, status, "", scale="paper", baseline=True).group == BASELINES
        for more in ({"partial": True}, {"exact": True}):
            with pytest.raises(ValueError, match=status):
                Verdict(ordered, status, "", scale="paper", **more)


WHOLE = DataFingerprint(
    name="smallnorb",
    sha256=SETS["smallnorb"].whole[0],
    stand_in=False,
    complete=False,
    deviations=["averaged to 48x48"],
)
OTHERS = {
    "a part": DERIVED,
    "substitutes": DataFingerprint(
        name="crispr",
        sha256="1" * 64,
        stand_in=False,
        complete=False,
        deviations=["other negatives"],
    ),
    "generated": DataFingerprint(
        name="mnist",
        sha256="0" * 64,
        stand_in=False,
        complete=False,
        deviations=["affNIST generated"],
    ),
    "another form of a set": WHOLE.model_copy(update={"sha256": "2" * 64}),
    "a name that nobody knows": WHOLE.model_copy(update={"name": "mine"}),
}


@pytest.mark.parametrize("data", OTHERS.values(), ids=OTHERS)
def test_a_part_of_the_papers_data_or_a_stand_in_gives_no_word_of_the_papers_size(data):
    value = judge(claim(value=95.5), VALUE, runs(GOOD, data=[data, REAL]))
    assert (value.word, value.group, value.scale) == ("measured", REDUCED, "paper")
    assert value.reason.endswith(
        "on data that are a part of the paper's or stand in for them: it decides nothing."
    )
    assert judge(ordered, ORDER, arms(data=[data])).status == "same order"
    assert (
        judge(ordered, replace(ORDER, better=B, worse=A), arms(data=[data])).status
        == "opposite order"
    )
    assert (
        judge(ordered, Count({"a": YES, "b": NO}, at_least=1), arms(data=[data])).group
        == REDUCED
    )


def test_a_set_with_all_of_its_examples_made_smaller_is_whole():
    assert judge(claim(value=95.5), VALUE, runs(GOOD, data=[WHOLE])).group == CAPSULES


def test_a_network_without_capsules_is_a_baseline_and_counted_apart():
    baseline, capsules = (
        judge(claim(value=95.5), VALUE, runs(GOOD, routing_path=path))
        for path in ("none", "compiled")
    )
    assert [v.group for v in (baseline, capsules)] == [BASELINES, CAPSULES]
    mixed = runs(GOOD, arm="a") + runs(BAD, arm="b", routing_path="none")
    assert judge(ordered, ORDER, mixed).group == CAPSULES, "capsules are compared with one"
    found = counts([baseline, capsules, capsules])
    assert (found[BASELINES]["reproduced"], found[CAPSULES]["reproduced"]) == (1, 2)


def test_a_network_that_is_built_and_not_trained_is_a_count():
    built = claim(
        "property",
        value=310_000,
        unit="count",
        metric="trainable parameters",
        tolerance=10_000,
        printed="310 000",
    )
    asked = Value(A, "parameters", final=False)
    for parameters, status in ((316_650, "holds"), (320_001, "fails")):
        found = judge(built, asked, runs([None], parameters=parameters, data=[]))
        assert (found.status, found.group, found.ours, found.interval) == (
            status,
            EXACT,
            parameters,
            None,
        )
    assert judge(built, asked, runs([None], scale="cpu", data=[])).status == "waiting", (
        "a reduced network has other counts"
    )


# -------------------------------------------------------------------------------------
# thresholds of ours, and errata


@pytest.mark.parametrize(
    "query",
    [
        Above(B, "accuracy", 0.5, ours=True),
        Above(A, "accuracy", 0.5, below=True, ours=True),
        Order(A, B, "accuracy", margin=0.5, equal=True, ours=True),
        Order(B, A, "accuracy", margin=-0.1, ours=True),
    ],
)
def test_a_threshold_of_ours_never_speaks_against_a_claim(query):
    query = replace(query, final=False)
    assert judge(ordered, replace(query, ours=False), arms()).status == "contradicted"
    assert judge(ordered, query, arms()).status == "inconclusive"


def test_a_bound_of_ours_still_speaks_for_a_claim_and_the_papers_own_against_it():
    assert (
        judge(ordered, Above(A, "accuracy", 0.5, ours=True, final=False), arms()).status
        == "reproduced"
    )
    for own, status in ((0.2, "contradicted"), (0.05, "inconclusive")):
        found = judge(
            ordered, Above(B, "accuracy", 0.5, ours=True, against=own, final=False), arms()
        )
        assert found.status == status
    below = Above(A, "accuracy", 0.5, below=True, ours=True, against=0.7, final=False)
    assert judge(ordered, below, arms()).status == "contradicted"
    assert judge(ordered, replace(below, against=0.99), arms()).status == "inconclusive"


def test_an_order_the_other_way_round_speaks_against_a_claim_whoever_chose_the_margin():
    assert (
        judge(
            ordered, Order(B, A, "accuracy", margin=0.1, ours=True, final=False), arms()
        ).status
        == "contradicted"
    )


def test_a_bound_that_is_reached_may_be_enough():
    level = runs([0.2] * 3)
    assert (
        judge(ordered, Above(A, "accuracy", 0.2, reached=True, final=False), level).status
        == "reproduced"
    )
    assert (
        judge(ordered, Above(A, "accuracy", 0.2, final=False), level).status == "inconclusive"
    )


def test_what_the_paper_itself_contradicts_decides_nothing_and_is_listed():
    found = judge(ordered, Erratum("It prints both."), arms())
    assert (found.word, found.group, found.reason, our_value(found)) == (
        "erratum",
        ERRATA,
        "It prints both.",
        "",
    )
    part = judge(
        ordered, Count({"a": YES}, errata={"b rises": "it prints 0.2 and 0.1"}), arms()
    )
    assert part.word == "reproduced"
    assert part.reason.endswith(
        "Left out, since the paper's own numbers contradict it: b rises (it prints 0.2 and 0.1)."
    )


def every(v: Verdict) -> list[Verdict]:
    return [v, *(found for part in v.parts for found in every(part))]


@fast
@given(samples, samples, st.sampled_from(["paper", "cpu"]), st.booleans(), st.floats(0, 100))
def test_no_reduced_record_reproduces_contradicts_or_beats_anything(a, b, other, rests, value):
    """Whatever is asked, and whatever the records say."""
    small = arms(a, b, scale="cpu")
    some = with_longer(small + (longer(small) if rests else []) + runs(b[:2], scale=other))
    asks = [
        VALUE,
        ORDER,
        replace(ORDER, equal=True, margin=0.1),
        replace(ORDER, final=False),
        YES,
        replace(YES, below=True, final=False),
    ]
    asks += [
        Count({"x": replace(ORDER, final=False), "y": YES}, at_least=1),
        replace(ORDER, beyond=(B, A)),
    ]
    for query in asks:
        asked = claim(value=value) if query is VALUE else ordered
        for v in every(judge(asked, query, some)):
            assert v.group in (REDUCED, NOT_RUN), query
            assert (v.scale == "cpu") == (v.group == REDUCED)


def committed() -> list[Record]:
    return [
        r
        for r in Store(Path(__file__).parents[2] / "results").records()
        if r.trial.scale != "smoke"
    ]


def test_no_claim_gets_a_word_of_the_papers_size_from_reduced_records():
    """Every query of every chapter, over the committed records as if all had run at cpu scale,
    and as if each had rested.
    """
    reduced = [
        r.model_copy(update={"trial": r.trial.model_copy(update={"scale": "cpu"})})
        for r in committed()
    ]
    assert len(reduced) > 400
    seen = set()
    for doubled in (Runs(reduced), _rested(reduced)):
        for claim in (c for c in ledger().values() if not c.not_run):
            if (query := queries(claim.paper).get(claim.id)) is not None:
                found = every(judge(claim, query, doubled))
                seen |= {v.status for v in found}
                assert not {v.status for v in found} & OWN_SIZE, claim.id
    assert {"same order", "undecided", "measured", "waiting", *IN_PART} <= seen, (
        "all of which occur"
    )


def _rested(records: list[Record]) -> Runs:
    """These records, each of them also with twice the budget and the same numbers."""
    again = [r.model_copy(update={"key": r.key + "-2"}) for r in records]
    return Runs([*records, *again], lambda r: 1 + r.key.endswith("-2"))


# -------------------------------------------------------------------------------------------------
# the ledger as a whole


def test_without_records_every_claim_is_not_run_and_says_why_and_what_it_waits_for(tmp_path):
    found = verdicts(store=Store(tmp_path))
    assert [v.claim.id for v in found] == list(ledger())
    assert {v.group for v in found} == {NOT_RUN, ERRATA}
    assert all(v.reason.endswith(".") for v in found)
    reasons = {v.claim.id: v.reason for v in found}
    assert reasons["EM-T1-cnn"].endswith(
        "4 trials at paper scale, 1 of them with twice the budget, would decide it."
    )
    told = "18 trials at paper scale, or 24 trials at cpu scale, 6 of them with twice the budget, would decide it."
    assert reasons["LR-W-1"].endswith(told)
    assert list(counts(found)) == list(GROUPS)
    assert sum(n for words in counts(found).values() for n in words.values()) == len(found)
    with pytest.raises(UserError, match="Did you mean"):
        verdicts("negation_limitatio", store=Store(tmp_path))


CHAPTER = "negation_limitation"


def answered(store: Store, **more) -> tuple[str, list[Record]]:
    """Records at paper scale for the first value claim of the chapter, from the chapter's own
    grid, on the paper's value.
    """
    name, query = next((n, q) for n, q in queries(CHAPTER).items() if isinstance(q, Value))
    experiment = experiments(CHAPTER)[query.select.experiment]
    share = ledger()[name].value / 100
    records = []
    for trial in experiment.trials(
        "paper", where={"arm": query.select.arm}, seeds=range(4), **more
    ):
        records.append(
            record(
                seed=trial.seed,
                paper=trial.paper,
                experiment=trial.experiment,
                revision=trial.revision,
                config=trial.config,
                metrics={query.metric: Metric(value=share, n=100, unit="fraction")},
            )
        )
        store.put(records[-1])
    return name, records


def test_records_in_a_store_become_verdicts_tables_and_json(tmp_path):
    store = Store(tmp_path)
    name, records = answered(store)
    found = {v.claim.id: v for v in verdicts(CHAPTER, store=store)}
    assert found[name].status == "reproduced"
    shown = dict(zip(COLUMNS, claims.row(found[name]), strict=True))
    assert shown["Verdict"] == "reproduced"
    assert shown["Paper"] == ledger()[name].printed + "\N{NO-BREAK SPACE}%"
    assert shown["95 % interval"] == "(all equal)"
    rows = {r["id"]: r for r in json.loads(to_json(found.values()))}
    many = next(v for v in found.values() if v.parts)
    assert list(rows[many.claim.id]["parts"].items()) == [(p.name, p.word) for p in many.parts]
    assert rows["NEG-T1-em-bias"]["headlines"] == ["NEG-H-sign"]
    row = rows[name]
    assert (row["verdict"], row["verdict_is"]) == ("reproduced", CAPSULES)
    assert set(row) >= {
        "id",
        "paper",
        "kind",
        "paper_value",
        "our_value",
        "interval",
        "n",
        "scale",
        "verdict",
        "reason",
        "records",
        "shares_records_with",
        "derived",
    }
    assert row["our_value"] == pytest.approx(row["paper_value"])
    assert sorted(row["records"]) == sorted(r.key for r in records)


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


def test_a_lead_says_whose_it_is_and_of_what():
    """First − second, so that a reader need not guess what a number below zero means."""
    small = arms([0.10, 0.11, 0.105], [0.30, 0.29, 0.31])
    behind = judge(ordered, replace(ORDER, margin=0.05), small)
    assert behind.measures == "lead in accuracy (arm a − arm b), above 0.05 for the claim"
    assert our_value(behind) == "lead −0.195"
    assert "] of the lead in accuracy (arm a − arm b) over 3 seeds" in behind.reason
    assert describe(behind).endswith(f" · {behind.measures}")
    assert json.loads(to_json([behind]))[0]["our_value_is"] == behind.measures
    errors = judge(ordered, replace(ORDER, higher_is_better=False), small)
    assert errors.measures.startswith("lead in accuracy (arm b − arm a)"), (
        "who makes fewer errors leads"
    )
    assert (our_value(errors), errors.ours) == ("lead 0.195", pytest.approx(0.195))
    wide = Order(
        A,
        Select("sign"),
        Derived("what", lambda r: r.metrics["accuracy"]),
        equal=True,
        beyond=(A, B),
    )
    assert wide.mean == "lead in what (arm a − sign) beyond that of the other two"
    start = Select("depth", arm="a", cpu="copy/a")
    assert start.apart_from(Select("depth", arm="b")) == "a", "a reduced network is another arm"
    mean = judge(ordered, Above(A, "accuracy", 0.5, below=True), small)
    assert (mean.measures, our_value(mean)) == (
        "mean of accuracy, below 0.5 for the claim",
        "0.105",
    )


def test_a_tally_says_how_many_parts_hold_are_open_and_fail():
    claim = ledger()["NEG-W-4"]
    parts = [
        Verdict(claim, status, "", scale="cpu")
        for status in ("same order", "same order", "undecided", "opposite order")
    ]
    assert tally(parts[:1]) == "its only part holds"
    assert tally(parts[:2]) == "all 2 parts hold"
    assert tally(parts[2:]) == "1 of 2 parts fails, 1 is undecided"
    assert tally(parts[2:3] * 3) == "3 of 3 parts are undecided"
    assert (
        tally([*parts, Verdict(claim, "waiting", "")])
        == "2 of 5 parts hold, 1 fails, 1 is undecided, 1 is not run"
    )


def test_a_changed_configuration_does_not_pass_for_the_scale(tmp_path):
    """``--scale paper`` with fewer epochs makes a sound record, but not one of the paper's
    setting.
    """
    store = Store(tmp_path)
    name, records = answered(store, change={"epochs": 1})
    found = {v.claim.id: v for v in verdicts(CHAPTER, store=store)}[name]
    assert found.status == "waiting"
    assert f"{len(records)} of the experiment" in found.reason


def test_a_seed_that_nobody_named_counts_for_nothing(tmp_path):
    store = Store(tmp_path)
    name, records = answered(store)
    before = {v.claim.id: v for v in verdicts(CHAPTER, store=store)}[name]
    trial = records[0].trial.model_copy(update={"seed": 999})
    better = {metric: Metric(value=1, n=100, unit="fraction") for metric in records[0].metrics}
    store.put(
        records[0].model_copy(update={"trial": trial, "key": trial.key, "metrics": better})
    )
    after = {v.claim.id: v for v in verdicts(CHAPTER, store=store)}[name]
    assert (after.status, after.ours, after.n, after.records) == (
        before.status,
        before.ours,
        before.n,
        before.records,
    )


def test_no_single_file_takes_the_verdicts_down(tmp_path, caplog):
    store = Store(tmp_path)
    _, records = answered(store)
    before = {v.claim.id: (v.word, v.ours, v.records) for v in verdicts(CHAPTER, store=store)}
    spare = records[0].trial.model_copy(update={"seed": 4})
    path = store.path(spare)
    sound = store.path(records[0].trial).read_text()
    for content in (
        sound.replace('"n": 100', '"n": 1' + "0" * 400),
        sound.replace('"wall_seconds": 1.5', '"wall_seconds": 1e308'),
        sound.replace('"peak_memory_bytes": 1', '"peak_memory_bytes": 1' + "0" * 400),
        sound.replace('"value": ', '"value": 1e308, "was": '),
        sound.replace(CHAPTER, "nobody"),
        "{}",
    ):
        path.write_text(content)
        caplog.clear()
        assert {
            v.claim.id: (v.word, v.ours, v.records) for v in verdicts(CHAPTER, store=store)
        } == before
        assert str(path) in caplog.text
        path.unlink()
    for make in (os.mkfifo, Path.mkdir):
        make(path)
        assert {
            v.claim.id: (v.word, v.ours, v.records) for v in verdicts(CHAPTER, store=store)
        } == before
        assert f"{path} cannot be read" in caplog.text
        path.unlink() if path.is_fifo() else path.rmdir()


def test_claims_that_use_the_same_records_name_each_other():
    found = {
        v.claim.id: v
        for v in verdicts("em_routing", store=Store(Path(__file__).parents[2] / "results"))
    }
    assert {"EM-T1-iter3", "EM-W-14", "EM-W-17"} <= set(found["EM-W-10"].shares)
    assert "EM-W-10" in found["EM-T1-iter1"].shares
    assert "EM-W-4" not in found["EM-W-10"].shares
    assert all(v.claim.id not in v.shares for v in found.values())


def test_a_trial_of_the_grid_with_twice_its_epochs_tells_whether_an_order_rests(tmp_path):
    """From the store, by the experiment's own grid: 8 epochs where the scale has 4."""
    store, want = (
        Store(tmp_path),
        {
            "data": "mnist",
            "routing": "dynamic",
            "depth": 4,
            "bias": False,
            "weight_std": 0.1,
            "iterations": 3,
        },
    )
    depth = experiments(CHAPTER)["depth"]
    measured = {"test_accuracy": Metric(value=0.1, n=100, unit="fraction")}

    def add(trials):
        for t in trials:
            made = record(seed=t.seed, scale="cpu", config=t.config, metrics=measured)
            store.put(made.model_copy(update={"key": t.key, "trial": t, "config": fields(t)}))

    def part():
        (of,) = (v for v in verdicts(CHAPTER, store=store) if v.claim.id == "NEG-W-5-rba-mnist")
        return next(p for p in of.parts if p.name == "4 layers without bias do not train")

    add(depth.trials("cpu", where=want))
    assert (part().status, part().n) == ("undecided", SEEDS)
    add(depth.trials("cpu", where=want, seeds=[0], change={"epochs": 16}))
    assert part().status == "undecided", "four times the epochs is another setting"
    add(depth.trials("cpu", where=want, seeds=[0], change={"epochs": 8}))
    assert (part().status, part().n, len(part().records)) == ("same order", SEEDS, SEEDS + 1)


def test_a_reduced_order_waits_for_one_seed_of_twice_the_budget_too_but_not_of_a_training_that_stopped_itself():
    """Of the seeds that lacks the fewest; an arm that the claim asks only of the paper's size
    needs none.
    """
    stem, claim, own = (
        "learned_routing",
        "LR-W-1",
        lambda scale: papers.needs("learned_routing", scale)["LR-W-1"],
    )
    first, *others = papers.longer(stem, "cpu")[claim]
    assert {two.config["epochs"] / fields(one)["epochs"] for one, two in first} == {2}
    assert [len(of) for of in others] == [len(first)] * 2

    def waits(*trials, stopped=()):
        ended = {"epochs": Metric(value=1, n=1, unit="count")}
        made = [
            record(config=fields(t), metrics=ended if t in stopped else {}).model_copy(
                update={"key": t.key}
            )
            for t in trials
        ]
        return {
            scale: tuple(map(len, of)) for scale, of in papers.waits(stem, made)[claim].items()
        }

    n, k = len(own("cpu")), len(first)
    assert waits() == {"paper": (len(own("paper")), 0), "cpu": (n, k)}
    assert waits(*own("cpu"))["cpu"] == (0, k)
    assert waits(*own("cpu"), first[0][1], others[0][0][1], others[0][1][1])["cpu"] == (
        0,
        k - 2,
    )
    assert waits(*own("cpu"), stopped=[one for one, _ in first])["cpu"] == (0, 0)
    assert papers.longer("em_routing", "cpu")["EM-T1-iter3"] == [], (
        "a reduced value is not decided"
    )
    assert [len(of) for of in papers.longer("em_routing", "paper")["EM-T1-iter3"]] == [
        1,
        1,
        1,
    ], "the paper does not say when it stops"
    assert papers.longer(stem, "paper")["LR-T3-conn-mnist"] == [], "this one does"


def test_figures_show_a_seed_once_and_not_again_with_twice_the_budget(tmp_path):
    """What stands in a chapter's tables would otherwise be a mean over a seed counted twice."""
    store, want = (
        Store(tmp_path),
        {
            "data": "mnist",
            "routing": "dynamic",
            "depth": 4,
            "bias": False,
            "weight_std": 0.1,
            "iterations": 3,
        },
    )
    depth = experiments(CHAPTER)["depth"]
    own, twice = (
        depth.trials("cpu", where=want, seeds=[0], change=change)
        for change in ({}, {"epochs": 8})
    )
    for trial in (*own, *twice):
        metrics = {"test_accuracy": Metric(value=0.1, n=100, unit="fraction")}
        told = {"key": trial.key, "trial": trial, "config": fields(trial), "metrics": metrics}
        store.put(record(seed=0).model_copy(update=told))
    assert [r.key for r in Chapter(CHAPTER, store.root).records] == [t.key for t in own]
