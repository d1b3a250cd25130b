"""Verdicts: each rule by itself on made-up records, and what must not matter to any of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import (
    AHEAD,
    BAD,
    DIGITS,
    GOOD,
    MNIST,
    NO,
    NOT_THERE,
    ORDER,
    PART,
    THEOREM,
    UNCLEAR,
    VALUE,
    YES,
    A,
    B,
    both_arms,
    claim,
    metric,
    record,
    records,
    twice,
    with_budgets,
)

from capslib.data.registry import SETS
from capslib.lab.claims import our_value
from capslib.lab.decisions import AT_REST
from capslib.lab.judging import judge
from capslib.lab.ledger import ledger, number
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
from capslib.papers import checks_of
from capslib.papers.check import (
    BOTH_SCALES,
    AtLeast,
    Check,
    Derived,
    Erratum,
    Select,
    difference,
    recorded_difference,
)

FLOOR = replace(A, learned=0.5)


def cpu(values: list[float], **fields: object) -> list[Record]:
    return records(values, scale="cpu", **fields)


# ------------------------------------------------------------------------------------- values


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
    verdict = judge(claim(value=paper), VALUE, records(GOOD))
    assert (verdict.status, verdict.n, verdict.scale) == (status, 3, "paper")
    assert (verdict.ours, verdict.unit) == (pytest.approx(95.5), "percent")
    # of the logit: 95.5 ± 1.2421, bent away from 100
    assert verdict.interval == pytest.approx((94.081, 96.591), abs=1e-3)
    assert verdict.records == tuple(r.key for r in records(GOOD))
    assert number(paper) in verdict.reason


@pytest.mark.parametrize(("paper", "status"), [(94.2, "reproduced"), (94.21, "not reproduced")])
def test_an_edge_of_the_tolerance_counts_as_inside(paper, status):
    """In binary 93.9 + 0.3 is less than 94.2."""
    asked = claim(value=paper, tolerance=0.3)
    assert judge(asked, VALUE, records([0.939] * 3)).status == status


@pytest.mark.parametrize(
    ("name", "values", "status"),
    [
        ("AUROC", GOOD, "better"),
        ("test error", GOOD, "not reproduced"),
        ("parameters", GOOD, "not reproduced"),
        ("test error", BAD, "better"),
        ("AUROC", BAD, "not reproduced"),
    ],
)
def test_better_depends_on_the_direction_of_the_metric(name, values, status):
    assert judge(claim(value=50, metric=name), VALUE, records(values)).status == status
    beaten = replace(VALUE, better_counts=False)
    verdict = judge(claim(value=50, metric=name), beaten, records(values))
    assert verdict.status == "not reproduced"


def test_units_meet_in_the_unit_of_the_paper():
    in_percent = records([100 * value for value in GOOD], unit="percent")
    asked = claim(value=0.955, unit="fraction", tolerance=0.005)
    verdict = judge(asked, VALUE, in_percent)
    assert (verdict.status, verdict.ours) == ("reproduced", pytest.approx(0.955))
    verdict = judge(claim(value=95.5), VALUE, records(GOOD, unit="steps"))
    assert (verdict.status, verdict.interval) == ("inconclusive", None)
    assert "in steps, the paper in percent" in verdict.reason
    mixed = [*records(GOOD), record(1, seed=3, unit="steps")]
    assert "in different units: fraction, steps" in judge(ORDER, YES, mixed).reason


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        ([], "No record"),
        (records(GOOD, scale="smoke"), "No record"),
        (records(GOOD, data=[MNIST, DIGITS]), "No record"),
        (records(GOOD[:2]), "needs 3 seeds; there are 2."),
        (records(GOOD[:1]), "needs 3 seeds; there is 1."),
        (records(GOOD, arm="b"), "No record"),
        (records(GOOD, experiment="sign"), "No record"),
        (records(GOOD, paper="em_routing"), "No record"),
        (records([None] * 3), "lack the metric 'accuracy'"),
        (records(GOOD, exit="interrupted"), "No record"),
        (records(GOOD, exit="cut"), "No record"),
    ],
)
def test_a_value_without_three_real_runs_at_paper_scale_waits(runs, reason):
    verdict = judge(claim(value=95.5), VALUE, runs)
    assert (verdict.status, verdict.ours, verdict.interval) == ("waiting", None, None)
    assert verdict.scale is None
    assert reason in verdict.reason


@pytest.mark.parametrize(("n", "paper"), list(product([1, 2, 3], [95.5, 10])))
def test_a_value_in_a_reduced_setting_stands_beside_the_papers_and_decides_nothing(n, paper):
    verdict = judge(claim(value=paper), VALUE, cpu(GOOD[:n]))
    assert (verdict.status, verdict.n, verdict.scale) == ("measured", n, "cpu")
    assert verdict.ours == pytest.approx(100 * np.mean(GOOD[:n]))
    assert (verdict.interval is None) == (n == 1)
    assert "decides nothing" in verdict.reason


def test_an_interval_wider_than_six_tolerances_decides_no_value():
    """57 ± 99 points would reproduce anything."""
    spread = records([0.2, 0.5, 0.9])
    verdict = judge(claim(value=50), VALUE, spread)
    assert verdict.status == "inconclusive"
    assert "wider than 6 tolerances" in verdict.reason
    assert judge(claim(value=53.3, tolerance=20), VALUE, spread).status == "reproduced"


def test_an_incomparable_value_is_shown_and_decides_nothing():
    """Not even where it lies on the paper's value, or is better."""
    check = replace(VALUE, incomparable="its test set is another")
    for paper in (95.5, 50):
        verdict = judge(claim(value=paper, metric="AUROC"), check, records(GOOD))
        assert (verdict.status, verdict.ours) == ("inconclusive", pytest.approx(95.5))
        assert verdict.reason.endswith("decides nothing: its test set is another.")
    assert judge(claim(value=50), check, cpu(GOOD)).status == "measured"


def test_a_quantity_may_be_computed_from_the_curves_of_a_record():
    end = Derived("the end", lambda r: metric(1 / r.series["batch_accuracy"][-1]))
    asked, check = claim(value=125), Check(A, end)
    verdict = judge(asked, check, records(GOOD, learned=0.8))
    assert (verdict.status, verdict.ours) == ("reproduced", pytest.approx(125))
    no_curve = [r.model_copy(update={"series": {}}) for r in records(GOOD)]
    for without in (no_curve, records(GOOD, learned=0)):
        verdict = judge(asked, check, without)
        assert verdict.status == "waiting"
        assert "lack the metric 'the end'" in verdict.reason
    parameters = claim(value=316_650, unit="count", metric="trainable parameters")
    verdict = judge(parameters, Check(A, "parameters"), records(GOOD, parameters=316_650))
    assert (verdict.status, verdict.ours) == ("reproduced", 316_650)


# ------------------------------------------------------------------- runs that decide nothing


def test_a_network_that_guesses_decides_nothing_and_is_listed_seed_by_seed():
    runs = [*records([0.2, 0.2], learned=0.21), record(0.95, seed=2)]
    check = replace(VALUE, arms=FLOOR)
    verdict = judge(claim(value=95), check, runs)
    assert (verdict.status, verdict.ours, verdict.interval) == ("inconclusive", None, None)
    assert verdict.listed == pytest.approx((20, 20, 95))
    assert our_value(verdict) == "20 · 20 · 95\N{NO-BREAK SPACE}%"
    reason = "seed 0 did not learn (training accuracy 21%, and the floor is 50%); seed 1 did"
    assert reason in verdict.reason
    reduced = judge(claim(value=95), check, cpu([0.2, 0.2, 0.95], learned=0.21))
    assert (reduced.status, reduced.ours, len(reduced.listed)) == ("measured", None, 3)
    verdict = judge(ORDER, Check((FLOOR, B), "accuracy", ">"), runs + records(BAD, arm="b"))
    assert (verdict.status, verdict.listed) == ("inconclusive", ())
    assert "seed 0 of a did not learn" in verdict.reason
    no_curve = [r.model_copy(update={"series": {}}) for r in records(GOOD)]
    assert judge(claim(value=95), check, no_curve).ours is None


def test_of_two_networks_in_a_record_each_has_to_learn():
    curves = {"batch_accuracy": [0.99], "batch_accuracy_beside": [0.2]}
    rival = record(0.95).model_copy(update={"series": curves})
    reason = "did not learn (training accuracy 20%, and the floor is 50%)"
    assert FLOOR.unfit(rival) == [reason]


def test_what_breaks_a_limit_of_its_selection_decides_nothing():
    check = Check(replace(A, at_most={"familiar": 8}), "accuracy", ">", 0.5)
    for familiar, status in ((8, "reproduced"), (15.12, "inconclusive")):
        verdict = judge(ORDER, check, records(GOOD, metrics={"familiar": metric(familiar)}))
        assert verdict.status == status
    assert "familiar = 15.1, and the limit is 8" in verdict.reason
    assert judge(ORDER, check, records(GOOD)).status == "inconclusive", "not measured"


@pytest.mark.parametrize("end", FAILED)
def test_a_failed_replicate_is_named_and_not_dropped(end):
    """To drop it would be to choose runs by their outcome."""
    failed = record(seed=8, exit=end, data=[])
    reason = f"Failed replicates: seed 8 ended in {end}."
    verdict = judge(claim(value=95.5), VALUE, [*records(GOOD), failed])
    assert (verdict.status, verdict.n, verdict.ours) == ("inconclusive", 3, None)
    assert verdict.listed == pytest.approx([95, 96, 95.5])
    assert (verdict.reason, failed.key in verdict.records) == (reason, True)
    for check in (AHEAD, replace(AHEAD, arms=(B, A)), YES):
        verdict = judge(ORDER, check, [*both_arms(), failed])
        assert (verdict.status, verdict.reason) == ("inconclusive", reason)
    verdict = judge(THEOREM, at_most(1e-12), [*violations(1e-13), failed])
    assert (verdict.status, verdict.reason) == ("undecided", reason)
    verdict = judge(claim(value=95.5), VALUE, records([None] * 3, exit=end, data=[]))
    assert verdict.reason == f"Failed replicates: seeds 0, 1, 2 ended in {end}."


def test_each_end_of_failed_replicates_is_named_with_its_seeds():
    ends = {3: "oom", 4: "nan", 5: "oom", 6: "error", 7: "interrupted", 8: "cut"}
    failed = [record(seed=seed, exit=end, data=[]) for seed, end in ends.items()]
    verdict = judge(claim(value=95.5), VALUE, [*records(GOOD), *failed])
    reason = "seed 4 ended in nan; seeds 3, 5 ended in oom; seed 6 ended in error."
    assert verdict.reason == f"Failed replicates: {reason}"


def test_a_record_that_is_none_of_its_scales_own_does_not_count():
    """Such as one of an earlier revision."""
    runs = Runs(
        records([*BAD, 0.2, 0.3]) + records(GOOD, revision=2),
        lambda r: int(r.trial.revision == 2),
    )
    verdict = judge(claim(value=95.5), VALUE, runs)
    assert (verdict.status, verdict.n) == ("reproduced", 3)
    assert "5 of the experiment have another" in judge(ORDER, NO, runs).reason


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("Quoted from other literature (X): not theirs.", "quoted"),
        ("The set is not among those of this book.", "not to be had"),
    ],
)
def test_what_the_ledger_rules_out_stays_so_with_its_reason(reason, status):
    verdict = judge(claim(value=95.5, not_run=reason), VALUE, records(GOOD))
    assert (verdict.status, verdict.reason) == (status, reason)
    assert judge(claim(value=95.5), None, records(GOOD)).status == "waiting"


# ---------------------------------------------------------------------------- means of arms

TWO_KINDS = replace(VALUE, arms=Select("depth", arm=("mnist/kind_0", "mnist/kind_1")))


def kinds(first: list[float], second: list[float]) -> list[Record]:
    return records(first, arm="mnist/kind_0") + records(second, arm="mnist/kind_1")


def test_the_mean_over_the_arms_of_a_seed_is_one_replicate():
    runs = kinds([0.99, 0.98, 0.995], [0.81, 0.82, 0.805])
    verdict = judge(claim(value=90), TWO_KINDS, runs)
    assert (verdict.status, verdict.n, len(verdict.records)) == ("reproduced", 3, 6)
    assert verdict.interval == pytest.approx((90, 90))


def test_a_seed_without_all_of_its_arms_is_no_replicate():
    runs = kinds([0.99] * 4, [0.81] * 3)
    assert judge(claim(value=90), TWO_KINDS, runs).n == 3
    few = judge(claim(value=90), TWO_KINDS, runs[:4])
    assert (few.status, few.n) == ("waiting", 0)
    assert "No seed has a record of all 2 arms of depth (mnist/*) yet." in few.reason


def test_one_arm_may_stand_for_several_at_cpu_scale():
    several = replace(TWO_KINDS.arms, cpu="small")
    runs = Runs(records([0.9] * 3, arm="small", scale="cpu") + kinds([0.99] * 3, [0.81] * 3))
    picked = runs.pick("negation_limitation", several, "cpu", "paper")
    assert [len(run.records) for run in picked] == [1, 1, 1, 2, 2, 2]


def test_of_the_arms_of_a_seed_the_one_that_is_at_fault_is_named():
    runs = kinds([0.99] * 3, [0.81] * 2)
    failed = record(seed=2, arm="mnist/kind_1", exit="nan", data=[])
    verdict = judge(claim(value=90), TWO_KINDS, [*runs, failed])
    assert verdict.reason == "Failed replicates: seed 2 ended in nan."
    picky = replace(TWO_KINDS, arms=replace(TWO_KINDS.arms, learned=0.5))
    dead = record(0.1, seed=2, arm="mnist/kind_1", learned=0.1)
    reason = judge(claim(value=90), picky, [*runs, dead]).reason
    assert reason.startswith("Decides nothing: seed 2, arm mnist/kind_1 did not learn")


def test_a_run_that_stopped_itself_and_its_longer_double_are_one():
    """Both are of twice the budget, and of one arm."""
    stopped = {"epochs": metric(3, "count")}
    own = records([0.99] * 3, arm="mnist/kind_0", metrics=stopped)
    own += records([0.81] * 3, arm="mnist/kind_1", metrics=stopped)
    longer = records([0.99] * 3, arm="mnist/kind_0/twice", epochs=8)
    runs = with_budgets([*own, *longer])
    for budget in (1, 2):
        picked = runs.pick("negation_limitation", TWO_KINDS.arms, "paper", budget=budget)
        assert [len(run.records) for run in picked] == [2, 2, 2]


# -------------------------------------------------------------------------------- comparisons


@pytest.mark.parametrize(
    ("check", "status"),
    [
        (AHEAD, "reproduced"),
        (Check((B, A), "accuracy", ">"), "contradicted"),
        (Check((B, A), "accuracy", "<"), "reproduced"),
        (Check((A, B), "accuracy", ">", margin=0.5), "reproduced"),
        # ahead, by less than was said: neither order
        (Check((A, B), "accuracy", ">", margin=0.9), "inconclusive"),
        (Check((A, B), "accuracy", ">", margin=0.85), "inconclusive"),
        (Check((B, A), "accuracy", ">", margin=0.9), "contradicted"),
        # behind, by less than counts as equal
        (Check((B, A), "accuracy", ">", margin=-0.9), "reproduced"),
        (Check((B, A), "accuracy", ">", margin=-0.85), "inconclusive"),
        (Check((B, A), "accuracy", ">", margin=-0.5), "contradicted"),
        (Check((A, B, A, A), "accuracy", ">"), "reproduced"),
        (Check((A, B, A, B), "accuracy", ">"), "inconclusive"),
        (Check((A, A, A, B), "accuracy", ">"), "contradicted"),
        (Check((A, B, A, A), "accuracy", "<"), "contradicted"),
        (Check(A, "accuracy", ">", 0.5), "reproduced"),
        (Check(B, "accuracy", ">", 0.5), "contradicted"),
        (Check(A, "accuracy", ">", 0.955), "inconclusive"),
        (Check(A, "accuracy", ">", 0.5, 0.3), "reproduced"),
        (Check(A, "accuracy", ">", 0.5, 0.46), "inconclusive"),
        (Check(B, "accuracy", "<", 0.5), "reproduced"),
        (Check(A, "accuracy", "<", 0.5), "contradicted"),
        (Check(A, "accuracy", "<", 0.955), "inconclusive"),
        (Check(B, "accuracy", "<", 0.5, 0.3), "reproduced"),
        (Check(B, "accuracy", "<", 0.5, 0.39), "inconclusive"),
    ],
)
def test_an_interval_lies_beyond_the_margin_for_a_claim_and_beyond_the_bound_against_it(
    check, status
):
    # ahead by 0.85, 0.86, 0.84
    verdict = judge(ORDER, check, both_arms([0.95, 0.97, 0.96], [0.10, 0.11, 0.12]))
    assert (verdict.status, verdict.n, verdict.scale) == (status, 3, "paper")
    assert verdict.interval is not None


def test_a_bound_that_is_reached_may_be_enough():
    level = records([0.2] * 3)
    for op, status in ((">", "inconclusive"), ("≥", "reproduced"), ("≤", "reproduced")):
        assert judge(ORDER, Check(A, "accuracy", op, 0.2), level).status == status


@pytest.mark.parametrize(
    "check",
    [
        Check(B, "accuracy", ">", 0.5),
        Check(A, "accuracy", "<", 0.5),
        Check((B, A), "accuracy", ">", margin=-0.1),
    ],
)
def test_a_bound_of_ours_never_speaks_against_a_claim(check):
    assert judge(ORDER, check, both_arms()).status == "contradicted"
    assert judge(ORDER, replace(check, refuted_at=None), both_arms()).status == "inconclusive"
    in_favour = replace(YES, refuted_at=None)
    assert judge(ORDER, in_favour, both_arms()).status == "reproduced"


@pytest.mark.parametrize(
    ("check", "refuted_at", "status"),
    [
        (NO, 0.2, "contradicted"),
        (NO, 0.05, "inconclusive"),
        (Check(A, "accuracy", "<", 0.5), 0.7, "contradicted"),
        (Check(A, "accuracy", "<", 0.5), 0.99, "inconclusive"),
    ],
)
def test_beside_a_bound_of_ours_the_papers_own_speaks_against_a_claim(
    check, refuted_at, status
):
    check = replace(check, refuted_at=refuted_at)
    assert judge(ORDER, check, both_arms()).status == status


def test_an_order_is_decided_by_pairs_of_one_seed():
    """The arms overlap, yet within every seed one is ahead by the same amount."""
    a, b = [0.5, 0.7, 0.9], [0.49, 0.69, 0.89]
    verdict = judge(ORDER, AHEAD, both_arms(a, b))
    assert (verdict.status, verdict.ours) == ("reproduced", pytest.approx(0.01))
    crossed = both_arms(a, [b[2], b[0], b[1]])
    assert judge(ORDER, AHEAD, crossed).status == "inconclusive"
    assert judge(ORDER, AHEAD, both_arms(GOOD, GOOD)).status == "inconclusive"


def test_fewer_than_three_pairs_decide_nothing():
    verdict = judge(ORDER, AHEAD, both_arms(GOOD, BAD[:2]))
    assert (verdict.status, verdict.n, verdict.interval) == ("inconclusive", 2, None)
    assert "needs 3 pairs of runs with one seed; there are 2" in verdict.reason
    apart = [*records(GOOD), record(BAD[0], seed=9, arm="b")]
    verdict = judge(ORDER, AHEAD, apart)
    assert (verdict.status, verdict.reason) == (
        "waiting",
        "The two arms have no seed in common.",
    )


def test_an_interval_stays_in_the_limits_of_its_metric():
    near = [0.9999, 0.9995, 0.99]
    assert judge(claim(value=99), VALUE, records(near)).interval[1] < 100
    assert judge(ORDER, YES, records(near)).interval[1] < 1
    assert judge(ORDER, AHEAD, both_arms([0.9, 0.1, 0.5], [0.1, 0.9, 0.2])).interval[0] > -1
    reduction = replace(VALUE, is_share=False)
    assert judge(claim(value=99), reduction, records(near)).interval[1] > 100
    assert judge(ORDER, YES, records(near, unit="steps")).interval[1] > 1


def test_a_comparison_is_shown_in_the_unit_of_the_paper_or_else_in_its_own():
    chance = claim("order", value=20, unit="percent")
    verdict = judge(chance, Check(A, "accuracy", ">", 0.2), records(GOOD))
    assert (verdict.ours, verdict.unit) == (pytest.approx(95.5), "percent")
    assert "above 20." in verdict.reason
    other = claim("order", value=0.2, unit="pixel intensity")
    verdict = judge(other, YES, records(GOOD))
    assert (verdict.ours, verdict.unit) == (pytest.approx(0.955), "fraction")
    a, b = ([100 * value for value in values] for values in (GOOD, BAD))
    verdict = judge(ORDER, AHEAD, both_arms(a, b, unit="percent"))
    assert (verdict.ours, verdict.unit) == (pytest.approx(85), "points")


def test_a_lead_says_whose_it_is_and_of_what():
    """First − second, so that a reader need not guess what a number below zero means."""
    runs = both_arms([0.10, 0.11, 0.105], [0.30, 0.29, 0.31], scale="cpu")
    behind = judge(ORDER, replace(AHEAD, margin=0.05), runs)
    assert behind.measures == "lead in accuracy (a − b), above 0.05 for the claim"
    assert our_value(behind) == "lead −0.195"
    assert "] of the lead in accuracy (a − b) over 3 seeds" in behind.reason
    fewer = judge(ORDER, replace(AHEAD, op="<"), runs)
    assert fewer.measures.startswith("lead in accuracy (b − a)"), "who has fewer leads"
    assert (our_value(fewer), fewer.ours) == ("lead 0.195", pytest.approx(0.195))
    four = Check((A, Select("sign", arm="c"), A, B), "test_error", ">")
    assert four.mean == "lead in test error (a − c) beyond that of the other two"
    mean = judge(ORDER, Check(A, "accuracy", "<", 0.5), runs)
    assert (mean.measures, our_value(mean)) == (
        "mean of accuracy, below 0.5 for the claim",
        "0.105",
    )


# ------------------------------------------------------------------------------ scale and data


def test_the_scale_of_the_paper_is_preferred_where_it_has_enough_and_scales_never_mix():
    check = replace(AHEAD, at_rest=())
    small, full = both_arms(BAD, GOOD, scale="cpu"), both_arms()
    assert judge(ORDER, check, small).status == "opposite order"
    assert judge(ORDER, check, small + full).status == "reproduced"
    two_seeds = [run for run in full if run.trial.seed < 2]
    verdict = judge(ORDER, check, small + two_seeds)
    assert verdict.scale == "cpu"
    assert set(verdict.records) == {run.key for run in small}
    one_arm_each = records(GOOD, arm="a") + cpu(BAD, arm="b")
    assert judge(ORDER, check, one_arm_each).status == "waiting"


def test_a_claim_may_need_the_scale_of_the_paper():
    only = replace(YES, paper_scale_only="it counts steps")
    verdict = judge(ORDER, only, cpu(GOOD))
    assert verdict.status == "waiting"
    assert "a reduced setting cannot tell: it counts steps" in verdict.reason
    assert judge(ORDER, only, records(GOOD)).status == "reproduced"
    parts = {"any scale": replace(YES, at_rest=()), "paper scale": only}
    verdict = judge(ORDER, AtLeast("all", parts), cpu(GOOD))
    assert [part.status for part in verdict.parts] == ["same order", "waiting"]


def test_all_parts_of_a_claim_are_judged_at_one_scale():
    parts = {"a": YES, "b": Check(B, "accuracy", "<", 0.5)}
    parts = {name: replace(part, at_rest=()) for name, part in parts.items()}
    runs = records(GOOD) + both_arms(scale="cpu")
    verdict = judge(ORDER, AtLeast("all", parts), runs)
    assert (verdict.status, verdict.scale) == ("same order", "cpu")
    assert {part.scale for part in verdict.parts} == {"cpu"}


WHOLE = MNIST.model_copy(
    update={
        "name": "smallnorb",
        "sha256": SETS["smallnorb"].whole[0],
        "complete": False,
        "deviations": ["averaged to 48x48"],
    }
)


@pytest.mark.parametrize(
    "data",
    [
        PART,
        PART.model_copy(update={"deviations": []}),
        WHOLE.model_copy(update={"sha256": "2" * 64}),
        WHOLE.model_copy(update={"name": "mine"}),
    ],
    ids=["a part", "in silence", "another form of a set", "a name that nobody knows"],
)
def test_a_part_of_the_papers_data_gives_no_word_of_the_papers_size(data):
    value = judge(claim(value=95.5), VALUE, records(GOOD, data=[data, MNIST]))
    assert (value.word, value.group, value.scale) == ("measured", REDUCED, "paper")
    assert value.reason.endswith("or stand in for them: it decides nothing.")
    runs = both_arms(data=[data])
    assert judge(ORDER, AHEAD, runs).status == "same order"
    assert judge(ORDER, replace(AHEAD, arms=(B, A)), runs).status == "opposite order"
    assert judge(ORDER, AtLeast(1, {"a": YES, "b": NO}), runs).group == REDUCED
    how = f"{data.name}: {', '.join(data.deviations).rstrip('.') or 'incomplete'}"
    assert value.derived == how


def test_a_set_with_all_of_its_examples_made_smaller_is_whole():
    assert judge(claim(value=95.5), VALUE, records(GOOD, data=[WHOLE])).group == CAPSULES


def test_a_network_without_capsules_is_a_baseline_and_counted_apart():
    capsules = judge(claim(value=95.5), VALUE, records(GOOD))
    baseline = judge(claim(value=95.5), VALUE, records(GOOD, routing_path="none"))
    assert (capsules.group, baseline.group) == (CAPSULES, BASELINES)
    mixed = records(GOOD) + records(BAD, arm="b", routing_path="none")
    assert judge(ORDER, AHEAD, mixed).group == CAPSULES, "capsules are compared with one"
    by_group = counts([baseline, capsules, capsules])
    assert by_group[BASELINES]["reproduced"] == 1
    assert by_group[CAPSULES]["reproduced"] == 2


# ------------------------------------------------------------------------------------ at rest


@pytest.mark.parametrize(
    ("asked", "check", "scale", "undone", "done"),
    [
        (ORDER, AHEAD, "cpu", "undecided", "same order"),
        (ORDER, YES, "cpu", "undecided", "same order"),
        (ORDER, Check(B, "accuracy", "<", 0.5), "cpu", "undecided", "same order"),
        (ORDER, AHEAD, "paper", "inconclusive", "reproduced"),
        (ORDER, YES, "paper", "inconclusive", "reproduced"),
        (claim(value=95.5), VALUE, "paper", "inconclusive", "reproduced"),
    ],
)
def test_the_end_of_training_needs_a_run_with_twice_the_budget_that_agrees(
    asked, check, scale, undone, done
):
    check = replace(check, at_rest=BOTH_SCALES)
    runs = both_arms(scale=scale)
    alone = judge(asked, check, runs)
    assert (alone.status, alone.interval is not None) == (undone, True)
    assert "no run with twice the budget yet" in alone.reason
    confirmed = judge(asked, check, with_budgets(runs + twice(scale=scale)))
    assert (confirmed.status, confirmed.n) == (done, 3)
    assert "with twice the budget (" in confirmed.reason
    assert set(confirmed.records) > set(alone.records)
    turned = judge(asked, check, with_budgets(runs + twice(0.1, 0.95, scale=scale)))
    assert (turned.status, "another" in turned.reason) == (undone, True)
    assert judge(asked, replace(check, at_rest=()), runs).status == done


def test_at_paper_scale_a_paper_may_say_when_it_stops():
    assert AHEAD.at_rest == ("cpu",)
    assert judge(ORDER, AHEAD, both_arms()).status == "reproduced"
    assert judge(ORDER, AHEAD, both_arms(scale="cpu")).status == "undecided"


@pytest.mark.parametrize(("check", "arm"), [(AHEAD, "a"), (AHEAD, "b"), (YES, "a")])
@pytest.mark.parametrize("sign", [-1, 1])
def test_twice_the_budget_moves_an_arm_at_rest_by_a_tenth_at_most(check, arm, sign):
    start = {"a": 0.85, "b": 0.1}
    runs = both_arms([0.85, 0.86, 0.855], scale="cpu")
    for share, status in ((0.9 * AT_REST, "same order"), (1.1 * AT_REST, "undecided")):
        end = start | {arm: start[arm] * (1 + sign * share)}
        verdict = judge(ORDER, check, with_budgets(runs + twice(**end)))
        assert verdict.status == status, share
    assert "but accuracy moved from" in verdict.reason
    assert "by more than a tenth" in verdict.reason


@pytest.mark.parametrize(
    ("longer", "reason"),
    [
        (twice()[:1], "no run with twice the budget yet"),
        ([*twice()[:1], record(0.1, 1, "b", "cpu", epochs=8)], "no run with twice the budget"),
        (twice(seed=7), "no run of the usual budget has its seed"),
        (twice(None, None, metrics={"loss": metric(1)}), "no run with twice the budget yet"),
        (
            [*twice()[:1], record(arm="b", scale="cpu", epochs=8, exit="nan")],
            "but with twice the budget: failed replicates: seed 0 ended in nan",
        ),
        (twice(learned=0.2), "but with twice the budget: decides nothing: seed 0 of a did not"),
    ],
)
def test_a_longer_run_has_to_be_sound(longer, reason):
    check = replace(AHEAD, arms=(FLOOR, B))
    runs = both_arms(scale="cpu")
    assert judge(ORDER, check, with_budgets(runs + twice())).status == "same order"
    verdict = judge(ORDER, check, with_budgets(runs + longer))
    assert (verdict.status, verdict.listed) == ("undecided", ())
    assert reason in verdict.reason
    assert "[0.85, 0.85] of the lead in accuracy (a − b) over 3 seeds" in verdict.reason


def test_a_longer_run_on_other_data_shows_no_rest():
    check = replace(AHEAD, at_rest=BOTH_SCALES)
    longer = twice(scale="paper", data=[PART])
    verdict = judge(ORDER, check, with_budgets(both_arms() + longer))
    assert (verdict.status, verdict.group) == ("inconclusive", CAPSULES)
    assert "with twice the budget are on data that" in verdict.reason


def test_runs_with_twice_the_budget_are_no_replicates_of_the_others():
    longer = [record(0.5, seed, "a", "cpu", epochs=8) for seed in range(9)]
    verdict = judge(ORDER, YES, with_budgets(cpu(GOOD) + longer))
    assert verdict.n == 3


def test_a_training_that_a_rule_stopped_is_its_own_with_twice_the_epochs():
    for epochs, status in ((3, "same order"), (4, "undecided")):
        ran = {"epochs": metric(epochs, "count")}
        assert judge(ORDER, YES, Runs(cpu(GOOD, metrics=ran))).status == status


@pytest.mark.parametrize(
    ("gap", "rest", "unrest"),
    [
        # recorded or computed, the gap of 0.02 more than doubles each time
        (recorded_difference("gap", "left", "right"), 0.55, 0.6),
        (difference("left", "right"), 0.55, 0.6),
    ],
)
def test_of_a_difference_each_side_has_to_be_at_rest(gap, rest, unrest):
    def sides(left: float) -> dict:
        values = {"left": left, "right": 0.5, "gap": left - 0.5}
        return {name: metric(value) for name, value in values.items()}

    runs = cpu([0.5] * 3, metrics=sides(0.52))
    for left, status in ((rest, "same order"), (unrest, "undecided")):
        longer = record(0.5, scale="cpu", epochs=8, metrics=sides(left))
        verdict = judge(ORDER, Check(A, gap, ">"), with_budgets([*runs, longer]))
        assert verdict.status == status


@pytest.mark.parametrize(
    ("after", "status"), [(0.94, "not reproduced"), (0.961, "not reproduced"), (0.98, "open")]
)
def test_a_value_that_is_not_the_papers_stays_so_unless_twice_the_budget_brings_it_there(
    after, status
):
    check = replace(VALUE, at_rest=BOTH_SCALES)
    runs = with_budgets(both_arms() + twice(after, scale="paper"))
    verdict = judge(claim(value=98), check, runs)
    assert verdict.status == status.replace("open", "inconclusive")


# ------------------------------------------------------------------------- theorems and counts


def at_most(bound: float) -> Check:
    return Check(A, "violation", "≤", bound, test="tests/test_x.py::test_y")


def at_least(bound: float) -> Check:
    return replace(at_most(bound), op="≥")


def violations(*values: float, **fields: object) -> list[Record]:
    runs = []
    for seed, value in enumerate(values):
        metrics = {"violation": metric(value, "difference")}
        runs.append(record(seed=seed, data=[], metrics=metrics, **fields))
    return runs


@pytest.mark.parametrize(
    ("check", "status", "worst"),
    [
        (at_most(1e-12), "fails", 2e-12),
        (at_most(2e-12), "holds", 2e-12),
        (at_least(1e-13), "holds", 1e-13),
        (at_least(1e-12), "fails", 1e-13),
    ],
)
def test_a_theorem_is_held_by_its_worst_record(check, status, worst):
    verdict = judge(THEOREM, check, violations(1e-13, 2e-12, scale="cpu"))
    assert (verdict.status, verdict.ours, verdict.n) == (status, worst, 2)
    assert (verdict.scale, verdict.interval) == ("cpu", None)
    assert "tests/test_x.py::test_y" in verdict.reason


def test_a_theorem_has_to_hold_at_both_scales_and_what_both_drew_alike_counts_once():
    holds = violations(1e-13, 1e-13)
    assert (
        judge(THEOREM, at_most(1e-12), holds + violations(1.0, scale="cpu")).status == "fails"
    )
    alike = holds + violations(1e-13, 1e-13, scale="cpu")
    assert judge(THEOREM, at_most(1e-12), alike).n == 2
    smoke = violations(1e-13, scale="smoke")
    assert judge(THEOREM, at_most(1e-12), smoke).status == "waiting"


def test_a_count_that_is_off_by_nothing_shows_the_papers_number():
    asked = claim("property", 1113.0, unit="count")
    exact = judge(asked, at_most(0), violations(0.0))
    assert (exact.status, exact.ours, our_value(exact)) == ("holds", 1113.0, "1113")
    missed = judge(asked, at_most(0), violations(0.0, 2.0))
    assert (missed.status, missed.ours) == ("fails", 2.0)
    assert our_value(judge(THEOREM, at_most(0), violations(0.0))) == "no exception"


def test_a_network_that_is_built_and_not_trained_is_a_count():
    built = claim("property", 310_000, unit="count", tolerance=10_000, printed="310 000")
    check = Check(A, "parameters")
    for parameters, status in ((316_650, "holds"), (320_001, "fails")):
        verdict = judge(built, check, records([None], parameters=parameters, data=[]))
        assert (verdict.status, verdict.group) == (status, EXACT)
        assert (verdict.ours, verdict.interval) == (parameters, None)
    reduced = judge(built, check, cpu([None], data=[]))
    assert reduced.status == "waiting", "a reduced network has other counts"


# -------------------------------------------------------------------- claims of several parts


def of(*parts: Check | AtLeast, needed: int | str = "all") -> AtLeast:
    return AtLeast(needed, {f"part {place}": part for place, part in enumerate(parts)})


@pytest.mark.parametrize(
    ("check", "word"),
    [
        (of(YES, YES), "reproduced"),
        (of(NO, NO), "contradicted"),
        (of(YES, NO), "fails in part (1 of 2)"),
        (of(YES, YES, NO), "holds in part (2 of 3)"),
        (of(NO, NO, YES), "contradicted"),
        (of(NO, NO, YES, UNCLEAR), "fails in part (2 of 4)"),
        (of(NO, UNCLEAR, UNCLEAR, UNCLEAR), "fails in part (1 of 4)"),
        (of(YES, NO, needed=1), "reproduced"),
        (of(NO, UNCLEAR, needed=1), "inconclusive"),
        (of(YES, UNCLEAR), "holds in part (1 of 2)"),
        (of(UNCLEAR, UNCLEAR), "inconclusive"),
        (of(YES, NOT_THERE), "holds in part (1 of 2)"),
        (of(UNCLEAR, NOT_THERE), "waiting"),
        (of(YES, NOT_THERE, needed=1), "reproduced"),
        (of(NO, NOT_THERE), "fails in part (1 of 2)"),
        (of(NO, NO, UNCLEAR, needed=2), "contradicted"),
        (of(NO, YES, UNCLEAR, needed=2), "holds in part (1 of 3)"),
        (of(of(YES, NO, needed=1), YES), "reproduced"),
        (of(of(YES, NO), UNCLEAR, UNCLEAR), "fails in part (1 of 3)"),
        (of(of(YES, UNCLEAR), UNCLEAR), "inconclusive"),
        (of(of(YES, YES, NO), of(YES, NO), needed=1), "fails in part (2 of 2)"),
        (of(of(NO, YES, NO), of(YES, NO), needed=1), "contradicted"),
    ],
)
def test_a_claim_of_several_parts_says_how_many_hold_or_fail(check, word):
    """And only most of the parts contradict it."""
    verdict = judge(ORDER, check, both_arms())
    assert verdict.word == word
    assert [part.name for part in verdict.parts] == list(check.parts)


def test_a_claim_of_several_parts_tallies_them():
    verdict = judge(ORDER, of(YES, NO), both_arms())
    assert our_value(verdict) == "1 of 2 parts holds, 1 fails"
    assert verdict.reason.endswith("the claim needs 2; against it: part 1.")
    verdict = judge(ORDER, of(UNCLEAR, NOT_THERE), both_arms())
    assert verdict.reason.endswith("not run: part 1.")
    assert our_value(judge(ORDER, of(NOT_THERE), both_arms())) == ""


@pytest.mark.parametrize(
    ("statuses", "text"),
    [
        (["same order"], "its only part holds"),
        (["same order"] * 2, "all 2 parts hold"),
        (["undecided", "opposite order"], "1 of 2 parts fails, 1 is undecided"),
        (["undecided"] * 3, "3 of 3 parts are undecided"),
    ],
)
def test_a_tally_says_how_many_parts_hold_fail_and_are_open(statuses, text):
    assert tally([Verdict(ORDER, status, "", scale="cpu") for status in statuses]) == text


def test_theorems_of_several_parts_hold_or_fail():
    check = AtLeast("all", {"low": at_most(1e-12), "high": at_least(1e-14)})
    assert judge(THEOREM, check, violations(1e-13, 2e-13)).status == "holds"
    assert judge(THEOREM, check, violations(1e-13, 2e-12)).word == "fails in part (1 of 2)"
    assert judge(THEOREM, check, violations(1e-15, 2e-12)).status == "fails"


def test_what_the_paper_itself_contradicts_decides_nothing_and_is_listed():
    verdict = judge(ORDER, Erratum("It prints both."), both_arms())
    assert (verdict.word, verdict.group) == ("erratum", ERRATA)
    assert (verdict.reason, our_value(verdict)) == ("It prints both.", "")
    check = AtLeast("all", {"a": YES}, errata={"b rises": "it prints 0.2 and 0.1"})
    verdict = judge(ORDER, check, both_arms())
    assert verdict.word == "reproduced"
    left_out = "the paper's own numbers contradict it: b rises (it prints 0.2 and 0.1)."
    assert verdict.reason.endswith(f"Left out, since {left_out}")


@pytest.mark.parametrize(
    ("asked", "check"),
    [
        (claim(value=1), AHEAD),
        (claim(value=1), of(AHEAD)),
        (ORDER, VALUE),
        (ORDER, at_most(1)),
        (THEOREM, AHEAD),
        (ORDER, of(VALUE)),
        (THEOREM, of(YES)),
        (ORDER, of()),
        (ORDER, of(YES, needed=2)),
        (ORDER, of(YES, needed=0)),
    ],
)
def test_a_check_that_does_not_fit_its_claim_is_a_mistake(asked, check):
    with pytest.raises(ValueError, match="NEG-X-test"):
        judge(asked, check, both_arms())


# ---------------------------------------------------------------------- what must not matter

shares = st.floats(0, 1).map(lambda value: round(value, 4))
samples = st.lists(shares, min_size=3, max_size=6)
ASKED = [
    (claim(value=60.0), VALUE),
    (ORDER, AHEAD),
    (ORDER, YES),
    (ORDER, of(YES, AHEAD, needed=1)),
]
some = settings(max_examples=40, deadline=None)


def words_and_numbers(verdict: Verdict) -> tuple:
    return (
        verdict.status,
        verdict.reason,
        verdict.ours,
        verdict.interval,
        verdict.records,
        verdict.n,
    )


@some
@given(samples, samples, samples, st.randoms())
def test_neither_order_nor_smoke_records_nor_stand_ins_change_a_verdict(a, b, noise, random):
    runs = both_arms(a, b)
    others = both_arms(noise, noise, scale="smoke", revision=3)
    others += both_arms(noise, noise, data=[DIGITS], revision=2)
    others += [record(seed=50, scale="smoke", exit="nan", data=[])]
    shuffled = random.sample(runs + others, len(runs + others))
    for asked, check in ASKED:
        expected = words_and_numbers(judge(asked, check, runs))
        assert words_and_numbers(judge(asked, check, shuffled + shuffled)) == expected


@some
@given(samples, samples, st.floats(0, 0.3))
def test_swapping_the_arms_turns_reproduced_into_contradicted(a, b, margin):
    check = replace(AHEAD, margin=margin)
    swapped = replace(check, arms=(B, A))
    runs = both_arms(a, b)
    verdict, other = judge(ORDER, check, runs), judge(ORDER, swapped, runs)
    if verdict.status == "reproduced":
        assert other.status == "contradicted"
    assert other.ours == pytest.approx(-verdict.ours)
    mirrored = judge(ORDER, replace(swapped, op="<"), runs)
    assert (mirrored.status, mirrored.ours) == (verdict.status, pytest.approx(verdict.ours))


@some
@given(samples, st.floats(0, 100), st.floats(0, 50), st.floats(0, 50))
def test_widening_the_tolerance_never_undoes_a_reproduction(a, value, tolerance, more):
    narrow = judge(claim(value=value, tolerance=tolerance), VALUE, records(a))
    wide = judge(claim(value=value, tolerance=tolerance + more), VALUE, records(a))
    if narrow.status == "reproduced":
        assert wide.status == "reproduced"


@some
@given(samples, samples, st.sampled_from(BOTH_SCALES), st.booleans(), st.floats(0, 100))
def test_no_reduced_record_gives_a_word_of_the_papers_size(a, b, other, rests, value):
    """Whatever is asked, and whatever the records say."""
    runs = both_arms(a, b, scale="cpu") + records(b[:2], scale=other)
    if rests:
        runs += twice(a[0], b[0])
    asked = [*ASKED, (claim(value=value), VALUE)]
    asked += [
        (ORDER, replace(AHEAD, at_rest=())),
        (ORDER, Check((A, B, B, A), "accuracy", ">")),
    ]
    for claimed, check in asked:
        for verdict in with_parts(judge(claimed, check, with_budgets(runs))):
            assert verdict.group in (REDUCED, NOT_RUN), check
            assert (verdict.scale == "cpu") == (verdict.group == REDUCED)


def with_parts(verdict: Verdict) -> Iterator[Verdict]:
    yield verdict
    for part in verdict.parts:
        yield from with_parts(part)


def test_no_claim_gets_a_word_of_the_papers_size_from_reduced_records():
    """Every check of every paper, over the committed records as if all had run at cpu scale,
    and as if each had rested.
    """
    reduced, longer = [], []
    for run in Store(Path(__file__).parents[2] / "results").records():
        if run.trial.scale != "smoke":
            trial = run.trial.model_copy(update={"scale": "cpu"})
            reduced.append(run.model_copy(update={"trial": trial}))
            longer.append(reduced[-1].model_copy(update={"key": f"{run.key}-2"}))
    assert len(reduced) > 400
    seen = set()
    rested = Runs([*reduced, *longer], lambda r: 1 + r.key.endswith("-2"))
    for runs in (Runs(reduced), rested):
        for asked in ledger().values():
            check = checks_of(asked.paper).get(asked.id)
            if check is not None:
                statuses = {v.status for v in with_parts(judge(asked, check, runs))}
                assert not statuses & OWN_SIZE, asked.id
                seen |= statuses
    assert {"same order", "undecided", "measured", "waiting", *IN_PART} <= seen


# ---------------------------------------------------------------------------------- words

OWN_SIZE = set(GROUPS[CAPSULES]) - set(IN_PART)


def test_no_word_of_the_papers_size_is_one_of_a_reduced_setting():
    assert not OWN_SIZE & set(GROUPS[REDUCED])
    assert set(STATUSES) == {word for words in GROUPS.values() for word in words}
    assert GROUPS[CAPSULES] == GROUPS[BASELINES]


@pytest.mark.parametrize("status", sorted(OWN_SIZE))
@pytest.mark.parametrize(
    "fields", [{"scale": "cpu"}, {"scale": None}, {"partial": True}, {"exact": True}]
)
def test_a_word_of_the_papers_size_cannot_be_said_of_less(status, fields):
    assert Verdict(ORDER, status, "", scale="paper").status == status
    assert Verdict(ORDER, status, "", scale="paper", baseline=True).group == BASELINES
    with pytest.raises(ValueError, match=status):
        Verdict(ORDER, status, "", **{"scale": "paper"} | fields)


@pytest.mark.parametrize("status", ["same order", "opposite order", "measured"])
def test_a_word_of_a_reduced_setting_cannot_be_said_of_the_papers_size(status):
    assert Verdict(ORDER, status, "", scale="cpu").status == status
    with pytest.raises(ValueError, match=status):
        Verdict(ORDER, status, "", scale="paper")
