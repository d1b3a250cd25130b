"""Verdicts: each rule by itself on made-up records, and what must not matter to any of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up import (
    AHEAD,
    BAD,
    DIGITS,
    GOOD,
    MNIST,
    NO,
    NOT_RUN,
    ORDER,
    PART,
    THEOREM,
    UNCLEAR,
    VALUE,
    YES,
    A,
    B,
    both_arms,
    failed,
    metric,
    number,
    record,
    records,
    twice,
    with_budgets,
)

from capslib.data.registry import SETS
from capslib.lab import words
from capslib.lab.claims import our_value
from capslib.lab.judging import judge
from capslib.lab.records import Record
from capslib.lab.replicates import FAILED, Runs
from capslib.lab.words import Verdict
from capslib.papers.check import (
    BOTH_SCALES,
    AtLeast,
    Check,
    Erratum,
    Quantity,
    Select,
    difference,
)
from capslib.papers.experiment import DataFingerprint

REPLICATES = records(GOOD)
FLOOR = replace(A, learned=0.5)
BELOW = Check(A, "accuracy", "<", 0.5)


def cpu(values: list[float | None], **fields: object) -> list[Record]:
    return records(values, scale="cpu", **fields)


def order(check: Check | AtLeast | Erratum, runs: list[Record]) -> Verdict:
    return judge(ORDER, check, with_budgets(runs))


def value(paper: float, runs: list[Record], check: Check = VALUE, **fields: object) -> Verdict:
    return judge(number(paper, **fields), check, with_budgets(runs))


def assert_says(verdict: Verdict, status: str, reason: str) -> None:
    assert verdict.status == status
    assert reason in verdict.reason


# ------------------------------------------------------------------------------------- values


def test_a_value_is_reproduced_inside_the_widened_interval():
    verdict = value(97.0, REPLICATES)
    assert_says(verdict, "reproduced", "97")
    assert verdict.ours == pytest.approx(95.5)
    # of the logit: 95.5 ± 1.2421, bent away from 100
    assert verdict.interval == pytest.approx((94.081, 96.591), abs=1e-3)
    assert verdict.records == tuple(run.key for run in REPLICATES)
    verdict = value(97.2, REPLICATES)
    assert verdict.status == "not reproduced"
    verdict = value(93.6, REPLICATES)
    assert verdict.status == "reproduced"
    verdict = value(93.5, REPLICATES)
    assert verdict.status == "better"


def test_an_edge_of_the_tolerance_counts_as_inside():
    """In binary 93.9 + 0.3 is less than 94.2."""
    runs = records([0.939] * 3)
    verdict = value(94.2, runs, tolerance=0.3)
    assert verdict.status == "reproduced"
    verdict = value(94.21, runs, tolerance=0.3)
    assert verdict.status == "not reproduced"


def test_better_depends_on_the_direction_of_the_metric():
    verdict = value(50, records(BAD), metric="test error")
    assert verdict.status == "better"
    verdict = value(50, records(BAD), metric="AUROC")
    assert verdict.status == "not reproduced"
    verdict = value(50, REPLICATES, metric="parameters")
    assert verdict.status == "not reproduced"
    check = replace(VALUE, better_counts=False)
    verdict = value(50, REPLICATES, check)
    assert verdict.status == "not reproduced"


def test_units_meet_in_the_unit_of_the_paper():
    percent = records([95, 96, 95.5], unit="percent")
    verdict = value(0.955, percent, unit="fraction", tolerance=0.005)
    assert verdict.status == "reproduced"
    assert verdict.ours == pytest.approx(0.955)
    steps = records(GOOD, unit="steps")
    verdict = value(95.5, steps)
    assert_says(verdict, "inconclusive", "in steps, the paper in percent")
    mixed = [*REPLICATES, record(1, seed=3, unit="steps")]
    assert "in different units: fraction, steps" in order(YES, mixed).reason


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        (records(GOOD, scale="smoke"), "No record"),
        (records(GOOD, data=[MNIST, DIGITS]), "No record"),
        (records(GOOD, exit="interrupted"), "No record"),
        (records(GOOD[:2]), "needs 3 seeds; there are 2."),
        (records([None] * 3), "lack the metric 'accuracy'"),
    ],
)
def test_a_value_without_three_real_runs_at_paper_scale_waits(runs, reason):
    verdict = value(95.5, runs)
    assert_says(verdict, "waiting", reason)


def test_a_value_in_a_reduced_setting_stands_beside_the_papers_and_decides_nothing():
    verdict = value(10, cpu(GOOD))
    assert_says(verdict, "measured", "decides nothing")
    assert verdict.ours == pytest.approx(95.5)
    verdict = value(10, cpu([0.95]))
    assert verdict.ours == pytest.approx(95)


def test_an_interval_wider_than_six_tolerances_decides_no_value():
    """57 ± 99 points would reproduce anything."""
    spread = records([0.2, 0.5, 0.9])
    verdict = value(50, spread)
    assert_says(verdict, "inconclusive", "wider than 6 tolerances")
    verdict = value(53.3, spread, tolerance=20)
    assert verdict.status == "reproduced"


def test_an_incomparable_value_is_shown_and_decides_nothing():
    check = replace(VALUE, incomparable="its test set is another")
    verdict = value(50, REPLICATES, check)
    assert_says(verdict, "inconclusive", "decides nothing: its test set is another.")
    assert verdict.ours == pytest.approx(95.5)


def test_a_quantity_may_be_computed_from_the_curves_of_a_record():
    end = Quantity("the end", lambda run: metric(1 / run.series["batch_accuracy"][-1]))
    check = Check(A, end)
    verdict = value(125, records(GOOD, learned=0.8), check)
    assert verdict.ours == pytest.approx(125)
    no_curve = records(GOOD, series={})
    verdict = value(125, no_curve, check)
    assert_says(verdict, "waiting", "lack the metric 'the end'")


# ------------------------------------------------------------------- runs that decide nothing


def test_a_network_that_guesses_decides_nothing_and_is_listed_seed_by_seed():
    runs = [*records([0.2, 0.2], learned=0.21), record(0.95, seed=2)]
    check = replace(VALUE, arms=FLOOR)
    verdict = value(95, runs, check)
    reason = "seed 0 did not learn (training accuracy 21.0%, and the floor is 50%); seed 1 did"
    assert_says(verdict, "inconclusive", reason)
    assert verdict.ours is None
    assert verdict.interval is None
    assert our_value(verdict) == "20 · 20 · 95\N{NO-BREAK SPACE}%"
    verdict = value(95, cpu(GOOD, learned=0.21), check)
    assert verdict.ours is None
    two_networks = {"batch_accuracy": [0.99], "batch_accuracy_beside": [0.2]}
    verdict = value(95, records(GOOD, series=two_networks), check)
    assert verdict.ours is None
    check = replace(AHEAD, arms=(FLOOR, B))
    verdict = order(check, runs + records(BAD, arm="b"))
    assert_says(verdict, "inconclusive", "seed 0 of a did not learn")


def test_what_breaks_a_limit_of_its_selection_decides_nothing():
    limited = replace(A, at_most={"familiar": 8})
    check = replace(YES, arms=limited)
    within = records(GOOD, metrics={"familiar": metric(8)})
    beyond = records(GOOD, metrics={"familiar": metric(15.12)})
    assert order(check, within).status == "reproduced"
    reason = "familiar 15.1, and the limit is 8"
    verdict = order(check, beyond)
    assert_says(verdict, "inconclusive", reason)
    verdict = order(check, REPLICATES)
    assert verdict.status == "inconclusive", "not measured"


@pytest.mark.parametrize("end", FAILED)
def test_a_failed_replicate_is_named_and_not_dropped(end):
    """To drop it would be to choose runs by their outcome."""
    runs = [failed(3, end), failed(5, end)]
    reason = f"Failed replicates: seeds 3, 5 ended in {end}."
    verdict = value(95.5, REPLICATES + runs)
    assert_says(verdict, "inconclusive", reason)
    assert verdict.by_seed == pytest.approx([95, 96, 95.5])
    assert runs[0].key in verdict.records
    verdict = order(AHEAD, both_arms() + runs)
    assert_says(verdict, "inconclusive", reason)
    theorem = judge(THEOREM, at_most(1e-12), with_budgets(violations(1e-13) + runs))
    assert_says(theorem, "undecided", reason)


def test_a_record_of_an_earlier_revision_does_not_count():
    runs = records([*BAD, 0.2, 0.3]) + records(GOOD, revision=2)
    picked = Runs(runs, lambda run: run.trial.revision - 1)
    assert judge(number(95.5), VALUE, picked).n == 3
    assert "5 of the experiment have another" in judge(ORDER, NO, picked).reason


def test_what_the_ledger_rules_out_stays_so_with_its_reason():
    quoted = "Quoted from other literature (X): not theirs."
    absent = "The set is not among those of this book."
    verdict = value(95.5, REPLICATES, not_run=quoted)
    assert_says(verdict, "quoted", quoted)
    verdict = value(95.5, REPLICATES, not_run=absent)
    assert_says(verdict, "not to be had", absent)
    verdict = value(95.5, REPLICATES, None)
    assert verdict.status == "waiting"


# ---------------------------------------------------------------------------- means of arms

KINDS = replace(VALUE, arms=Select("depth", arm=("mnist/kind_0", "mnist/kind_1"), cpu="small"))


def kinds(first: list[float], second: list[float]) -> list[Record]:
    return records(first, arm="mnist/kind_0") + records(second, arm="mnist/kind_1")


def test_the_mean_over_the_arms_of_a_seed_is_one_replicate():
    runs = kinds([0.99, 0.98, 0.995, 0.9], [0.81, 0.82, 0.805])
    verdict = value(90, runs, KINDS)
    assert verdict.interval == pytest.approx((90, 90))
    assert verdict.n == 3
    assert len(verdict.records) == 6
    reason = "No seed has a record of all 2 arms of depth (mnist/*) yet."
    verdict = value(90, runs[:4], KINDS)
    assert_says(verdict, "waiting", reason)
    small = cpu([0.9] * 3, arm="small")
    verdict = value(90, small, KINDS)
    assert verdict.n == 3, "one arm at cpu scale"


def test_of_the_arms_of_a_seed_the_one_that_is_at_fault_is_named():
    runs = kinds([0.99] * 3, [0.81] * 2)
    runs.append(record(0.1, seed=2, arm="mnist/kind_1", learned=0.1))
    check = replace(KINDS, arms=replace(KINDS.arms, learned=0.5))
    reason = "Decides nothing: seed 2, arm mnist/kind_1 did not learn"
    assert reason in value(90, runs, check).reason


# -------------------------------------------------------------------------------- comparisons


def test_an_interval_lies_beyond_the_margin_for_a_claim_and_beyond_the_bound_against_it():
    def status(arms: Select | tuple[Select, ...], margin: float) -> str:
        check = Check(arms, "accuracy", ">", margin=margin)
        return order(check, both_arms()).status

    assert status((A, B), 0.5) == "reproduced"
    assert status((A, B), 0.9) == "inconclusive", "ahead, by less than was said: neither order"
    assert status((B, A), -0.9) == "reproduced", "behind, by less than counts as equal"
    assert status((B, A), -0.5) == "contradicted"
    assert status((A, B, A, B), 0) == "inconclusive"
    assert status(A, 0.4) == "reproduced"
    assert status(A, 0.96) == "inconclusive"


def test_fewer_may_be_better():
    assert order(BELOW, both_arms()).status == "contradicted"
    verdict = order(replace(BELOW, arms=B), both_arms())
    assert verdict.status == "reproduced"
    verdict = order(replace(AHEAD, op="<"), both_arms())
    assert verdict.status == "contradicted"


def test_a_bound_that_is_reached_may_be_enough():
    reached = records([0.5] * 3)
    assert order(YES, reached).status == "inconclusive"
    verdict = order(replace(YES, op="≥"), reached)
    assert verdict.status == "reproduced"


def test_a_bound_of_ours_never_speaks_against_a_claim_but_the_papers_own_beside_it_does():
    runs = both_arms()
    verdict = order(replace(NO, refuted_at=None), runs)
    assert verdict.status == "inconclusive"
    verdict = order(replace(YES, refuted_at=None), runs)
    assert verdict.status == "reproduced"
    verdict = order(replace(NO, refuted_at=0.2), runs)
    assert verdict.status == "contradicted"
    verdict = order(replace(NO, refuted_at=0.05), runs)
    assert verdict.status == "inconclusive"
    verdict = order(replace(BELOW, refuted_at=0.7), runs)
    assert verdict.status == "contradicted"


def test_an_order_is_decided_by_pairs_of_one_seed():
    """The arms overlap, yet within every seed one is ahead by the same amount."""
    runs = both_arms([0.5, 0.7, 0.9], [0.49, 0.69, 0.89])
    verdict = order(AHEAD, runs)
    assert verdict.status == "reproduced"
    assert verdict.ours == pytest.approx(0.01)
    reason = "needs 3 pairs of runs with one seed; there are 2"
    two_pairs = both_arms(GOOD, BAD[:2])
    verdict = order(AHEAD, two_pairs)
    assert_says(verdict, "inconclusive", reason)
    no_pair = [*REPLICATES, record(0.1, seed=9, arm="b")]
    verdict = order(AHEAD, no_pair)
    assert_says(verdict, "waiting", "The two arms have no seed in common.")


def test_an_interval_stays_in_the_limits_of_its_metric():
    near = records([0.9999, 0.9995, 0.99])
    verdict = value(99, near)
    assert verdict.interval[1] < 100
    reduction = replace(VALUE, is_share=False)
    verdict = value(99, near, reduction)
    assert verdict.interval[1] > 100


def test_a_comparison_is_shown_in_the_unit_of_the_paper_or_else_in_its_own():
    chance = ORDER.model_copy(update={"unit": "percent"})
    verdict = judge(chance, YES, with_budgets(REPLICATES))
    assert our_value(verdict) == "95.50\N{NO-BREAK SPACE}%"
    verdict = order(YES, REPLICATES)
    assert our_value(verdict) == "0.955"
    percent = both_arms([95] * 3, [10] * 3, unit="percent")
    assert our_value(order(AHEAD, percent)) == "lead 85\N{NO-BREAK SPACE}points"


def test_a_lead_says_whose_it_is_and_of_what():
    """First − second, so that a reader need not guess what a number below zero means."""
    runs = both_arms([0.1] * 3, [0.3] * 3)
    behind = order(replace(AHEAD, margin=0.05), runs)
    assert behind.quantity == "lead in accuracy (a − b)"
    assert behind.measures == "lead in accuracy (a − b), above 0.05 for the claim"
    assert our_value(behind) == "lead −0.2"
    fewer = order(replace(AHEAD, op="<"), runs)
    assert fewer.quantity == "lead in accuracy (b − a)", "who has fewer leads"
    assert our_value(fewer) == "lead 0.2"
    assert order(BELOW, runs).measures == "mean of accuracy, below 0.5 for the claim"


# ------------------------------------------------------------------------------ scale and data


def test_the_scale_of_the_paper_is_preferred_where_it_has_enough_and_scales_never_mix():
    check = replace(AHEAD, at_rest=())
    small = both_arms(BAD, GOOD, scale="cpu")
    verdict = order(check, small + both_arms())
    assert verdict.status == "reproduced"
    two_seeds = both_arms(GOOD[:2], BAD[:2])
    verdict = order(check, small + two_seeds)
    assert verdict.status == "opposite order"
    assert set(verdict.records) == {run.key for run in small}
    verdict = order(check, REPLICATES + cpu(BAD, arm="b"))
    assert verdict.status == "waiting"


def test_all_parts_of_a_claim_are_judged_at_one_scale():
    check = parts(YES, replace(BELOW, arms=B))
    runs = REPLICATES + both_arms(scale="cpu")
    first, second = order(check, runs).parts
    assert first.scale == second.scale == "cpu"


def test_an_arm_of_another_name_at_cpu_scale_is_sought_at_both_scales():
    check = parts(YES, replace(NO, arms=replace(B, cpu="small")))
    runs = [*cpu(GOOD), record(0.1, arm="b")]
    _, part = order(check, runs).parts
    assert_says(part, "waiting", "cpu scale, at which the other parts are judged")
    _, part = order(check, runs[:-1]).parts
    assert_says(part, "waiting", "No record on real data at cpu or paper scale.")


def test_a_claim_may_need_the_scale_of_the_paper():
    check = replace(YES, paper_scale_only="it counts steps")
    reason = "small networks cannot tell: it counts steps"
    verdict = order(check, cpu(GOOD))
    assert_says(verdict, "waiting", reason)
    verdict = order(check, REPLICATES)
    assert verdict.status == "reproduced"
    verdict = order(parts(YES, check), cpu(GOOD))
    assert [part.status for part in verdict.parts] == ["undecided", "waiting"]


SMALLER = DataFingerprint(
    name="smallnorb",
    sha256=SETS["smallnorb"].whole[0],
    stand_in=False,
    complete=False,
    deviations=["averaged to 48x48"],
)


@pytest.mark.parametrize("data", [PART, SMALLER.model_copy(update={"sha256": "2" * 64})])
def test_a_part_of_the_papers_data_gives_no_word_of_the_papers_size(data):
    verdict = value(95.5, records(GOOD, data=[data, MNIST]))
    assert_says(verdict, "measured", "on other data than the paper's: it decides nothing.")
    assert verdict.group == words.REDUCED
    assert verdict.scale == "paper"
    assert verdict.derived[0].startswith(f"{data.name}: ")
    verdict = order(AHEAD, both_arms(data=[data]))
    assert verdict.status == "same order"


def test_a_set_with_all_of_its_examples_made_smaller_is_whole():
    verdict = value(95.5, records(GOOD, data=[SMALLER]))
    assert verdict.group == words.CAPSULES


def test_a_network_without_capsules_is_a_baseline_and_counted_apart():
    capsules = value(95.5, REPLICATES)
    baseline = value(95.5, records(GOOD, routing_path="none"))
    by_group = words.counts([baseline, capsules, capsules])
    assert by_group[words.BASELINES]["reproduced"] == 1
    assert by_group[words.CAPSULES]["reproduced"] == 2
    mixed = REPLICATES + records(BAD, arm="b", routing_path="none")
    verdict = order(AHEAD, mixed)
    assert verdict.group == words.CAPSULES, "capsules are compared with one"


# ------------------------------------------------------------------------------------ at rest


def test_a_decision_needs_a_run_with_twice_the_budget_that_agrees():
    runs = both_arms(scale="cpu")
    single = order(AHEAD, runs)
    assert_says(single, "undecided", "no run with twice the budget yet")
    confirmed = order(AHEAD, runs + twice())
    assert_says(confirmed, "same order", "with twice the budget (")
    assert confirmed.n == 3
    assert set(confirmed.records) > set(single.records)
    turned = order(AHEAD, runs + twice(0.1, 0.95))
    assert_says(turned, "undecided", "another")


def test_a_value_that_is_not_the_papers_stays_open_if_twice_the_budget_brings_it_there():
    check = replace(VALUE, at_rest=BOTH_SCALES)
    steady = both_arms() + twice(0.961, scale="paper")
    assert value(98, steady, check).status == "not reproduced"
    risen = both_arms() + twice(0.98, scale="paper")
    assert value(98, risen, check).status == "inconclusive"


def test_at_paper_scale_a_paper_may_say_when_it_stops():
    assert order(AHEAD, both_arms()).status == "reproduced"
    verdict = order(AHEAD, both_arms(scale="cpu"))
    assert verdict.status == "undecided"


@pytest.mark.parametrize("arm", ["a", "b"])
def test_twice_the_budget_moves_an_arm_at_rest_by_a_tenth_at_most(arm):
    runs = both_arms([0.85, 0.86, 0.84], [0.1] * 3, scale="cpu")

    def after(factor: float) -> Verdict:
        ends = {"a": 0.85, "b": 0.1}
        ends[arm] *= factor
        return order(AHEAD, runs + twice(**ends))

    assert after(1.09).status == "same order"
    assert_says(after(1.11), "undecided", "but accuracy moved from")
    assert_says(after(0.89), "undecided", "but accuracy moved from")


@pytest.mark.parametrize(
    ("doubled", "reason"),
    [
        (twice(seed=7), "no run of the usual budget has its seed"),
        (twice(None, None, exit="nan"), "with twice the budget: failed replicates: 2 runs"),
        (twice(learned=0.2), "with twice the budget: decides nothing: seed 0 of a did not"),
    ],
)
def test_a_longer_run_has_to_be_sound(doubled, reason):
    check = replace(AHEAD, arms=(FLOOR, B))
    runs = both_arms(scale="cpu") + doubled
    verdict = order(check, runs)
    assert_says(verdict, "undecided", reason)


def test_a_longer_run_on_a_part_of_the_data_shows_no_rest():
    check = replace(AHEAD, at_rest=BOTH_SCALES)
    runs = both_arms() + twice(scale="paper", data=[PART])
    verdict = order(check, runs)
    assert_says(verdict, "inconclusive", "with twice the budget are on other data")


def test_a_training_that_a_rule_stopped_is_its_own_with_twice_the_epochs():
    stopped = cpu(GOOD, metrics={"epochs": metric(3, "count")})
    complete = cpu(GOOD, metrics={"epochs": metric(4, "count")})
    verdict = order(YES, stopped)
    assert verdict.status == "same order"
    assert verdict.records == tuple(run.key for run in stopped), "each once"
    assert order(YES, complete).status == "undecided"


def test_of_a_difference_each_side_has_to_be_at_rest():
    """The gap of 0.02 more than doubles each time."""

    def measured(end: float) -> dict:
        metrics = {"left": metric(end), "right": metric(0.5)}
        return {"metrics": metrics, "scale": "cpu"}

    runs = records([0.5] * 3, **measured(0.52))
    check = Check(A, difference("left", "right"), ">")
    resting = record(0.5, epochs=8, **measured(0.55))
    moving = record(0.5, epochs=8, **measured(0.6))
    verdict = order(check, [*runs, resting])
    assert verdict.status == "same order"
    verdict = order(check, [*runs, moving])
    assert verdict.status == "undecided"


# ------------------------------------------------------------------------- theorems and counts


def at_most(bound: float) -> Check:
    return Check(A, "violation", "≤", bound, test="tests/test_x.py::test_y")


def at_least(bound: float) -> Check:
    return replace(at_most(bound), op="≥")


def violations(*values: float, **fields: object) -> list[Record]:
    runs = []
    for seed, violation in enumerate(values):
        metrics = {"violation": metric(violation, "difference")}
        runs.append(record(seed=seed, data=[], metrics=metrics, **fields))
    return runs


def test_a_theorem_is_held_by_its_worst_record():
    runs = with_budgets(violations(1e-13, 2e-12, scale="cpu"))

    def judged(check: Check) -> Verdict:
        return judge(THEOREM, check, runs)

    broken = judged(at_most(1e-12))
    assert_says(broken, "fails", "tests/test_x.py::test_y")
    assert broken.ours == 2e-12
    assert broken.n == 2
    assert judged(at_most(2e-12)).status == "holds"
    assert judged(at_least(1e-13)).status == "holds"
    assert judged(at_least(1e-12)).status == "fails"


def test_a_theorem_has_to_hold_at_both_scales_and_what_both_drew_alike_counts_once():
    full = violations(1e-13, 1e-13)
    broken = full + violations(1.0, scale="cpu")
    verdict = judge(THEOREM, at_most(1e-12), with_budgets(broken))
    assert verdict.status == "fails"
    repeated = full + violations(1e-13, 1e-13, scale="cpu")
    verdict = judge(THEOREM, at_most(1e-12), with_budgets(repeated))
    assert verdict.n == 2


def test_a_count_that_is_off_by_nothing_shows_the_papers_number():
    count = number(1113, kind="property", unit="count")
    runs = with_budgets(violations(0))
    verdict = judge(count, at_most(0), runs)
    assert our_value(verdict) == "1,113"
    verdict = judge(THEOREM, at_most(0), runs)
    assert our_value(verdict) == "no exception"


def test_a_network_that_is_built_and_not_trained_is_a_count():
    count = number(310_000, kind="property", unit="count", tolerance=10_000)
    check = Check(A, "parameters")

    def judged(parameters: int, **fields: object) -> str:
        run = record(parameters=parameters, **fields)
        return judge(count, check, with_budgets([run])).status

    assert judged(316_650) == "holds"
    assert judged(320_001) == "fails"
    assert judged(316_650, scale="cpu") == "waiting", "a reduced network has other counts"


# -------------------------------------------------------------------- claims of several parts


def parts(*checks: Check | AtLeast, needed: int | str = "all") -> AtLeast:
    names = [f"part {number}" for number in range(len(checks))]
    return AtLeast(needed, dict(zip(names, checks, strict=True)))


PARTS = {"+": YES, "-": NO, "?": UNCLEAR, ".": NOT_RUN}
WORDS = {
    "++": "reproduced",
    "--+": "contradicted",
    "+-": "fails in part (1 of 2)",
    "++-": "holds in part (2 of 3)",
    "-??": "fails in part (1 of 3)",
    "+?": "holds in part (1 of 2)",
    "??": "inconclusive",
    "-.": "fails in part (1 of 2)",
    "?.": "waiting",
}


@pytest.mark.parametrize("signs", WORDS)
def test_a_claim_of_several_parts_says_how_many_hold_or_fail(signs):
    """And only most of the parts contradict it."""
    checks = [PARTS[sign] for sign in signs]
    verdict = order(parts(*checks), both_arms())
    assert verdict.word == WORDS[signs]


@pytest.mark.parametrize(
    ("check", "word"),
    [
        (parts(YES, NO, NOT_RUN, needed=1), "reproduced"),
        (parts(parts(YES, YES, NO), parts(YES, NO), needed=1), "fails in part (2 of 2)"),
        (parts(parts(NO, YES, NO), parts(YES, NO), needed=1), "contradicted"),
    ],
)
def test_one_part_may_be_enough_and_parts_of_parts_are_counted_for_the_word(check, word):
    verdict = order(check, both_arms())
    assert verdict.word == word


def test_a_claim_of_several_parts_tallies_them():
    verdict = order(parts(YES, NO), both_arms())
    assert our_value(verdict) == "1 of 2 parts holds, 1 fails"
    assert verdict.reason.endswith("the claim needs 2; against it: part 1.")
    verdict = order(parts(UNCLEAR, NOT_RUN), both_arms())
    assert our_value(verdict) == ""
    assert verdict.reason.startswith("1 of 2 parts is undecided, 1 is not run;")
    verdict = order(parts(YES, YES), both_arms())
    assert our_value(verdict) == "both parts hold"
    verdict = order(parts(NO, NO, NO), both_arms())
    assert our_value(verdict) == "all 3 parts fail"


def test_what_the_paper_itself_contradicts_decides_nothing_and_is_listed():
    verdict = order(Erratum("It prints both."), both_arms())
    assert verdict.word == "erratum"
    assert verdict.reason == "It prints both."
    check = AtLeast("all", {"a": YES}, errata={"b rises": "it prints 0.2 and 0.1"})
    reason = "the paper's own numbers contradict it: b rises (it prints 0.2 and 0.1)."
    verdict = order(check, both_arms())
    assert_says(verdict, "reproduced", f"Left out, since {reason}")


@pytest.mark.parametrize(
    ("claim", "check"),
    [
        (number(1), AHEAD),
        (ORDER, VALUE),
        (ORDER, at_most(1)),
        (THEOREM, AHEAD),
        (ORDER, parts(YES, needed=2)),
    ],
)
def test_a_check_that_does_not_fit_its_claim_is_a_mistake(claim, check):
    with pytest.raises(ValueError, match=claim.id):
        judge(claim, check, with_budgets(both_arms()))


# ---------------------------------------------------------------------- what must not matter

shares = st.floats(0, 1).map(lambda share: round(share, 4))
samples = st.lists(shares, min_size=3, max_size=6)
QUESTIONS = [
    (number(60.0), VALUE),
    (ORDER, AHEAD),
    (ORDER, YES),
    (ORDER, parts(YES, AHEAD, needed=1)),
]


@given(samples, samples, samples, st.randoms())
def test_neither_order_nor_smoke_records_nor_stand_ins_change_a_verdict(a, b, noise, random):
    runs = both_arms(a, b)
    noises = both_arms(noise, noise, scale="smoke", revision=3)
    noises += both_arms(noise, noise, data=[DIGITS], revision=2)
    noises.append(failed(50, scale="smoke"))
    shuffled = runs + noises
    random.shuffle(shuffled)
    for claim, check in QUESTIONS:
        verdict = judge(claim, check, with_budgets(shuffled + shuffled))
        assert verdict == judge(claim, check, with_budgets(runs))


@given(samples, samples, st.floats(0, 0.3))
def test_swapping_the_arms_turns_reproduced_into_contradicted(a, b, margin):
    check = replace(AHEAD, margin=margin)
    swapped = replace(check, arms=(B, A))
    runs = both_arms(a, b)
    verdict = order(check, runs)
    reverse = order(swapped, runs)
    if verdict.status == "reproduced":
        assert reverse.status == "contradicted"
    assert reverse.ours == pytest.approx(-verdict.ours)
    fewer = order(replace(swapped, op="<"), runs)
    assert fewer.status == verdict.status


def with_parts(verdict: Verdict) -> Iterator[Verdict]:
    yield verdict
    for part in verdict.parts:
        yield from with_parts(part)


@given(samples, samples, st.sampled_from(BOTH_SCALES), st.booleans(), st.floats(0, 100))
def test_no_reduced_record_gives_a_word_of_the_papers_size(a, b, scale, rests, paper):
    """Whatever is asked, and whatever the records say."""
    runs = both_arms(a, b, scale="cpu") + records(b[:2], scale=scale)
    if rests:
        runs += twice(a[0], b[0])
    questions = [*QUESTIONS, (number(paper), VALUE), (ORDER, replace(AHEAD, at_rest=()))]
    for claim, check in questions:
        for verdict in with_parts(judge(claim, check, with_budgets(runs))):
            assert verdict.group in (words.REDUCED, words.NOT_RUN), check


# ---------------------------------------------------------------------------------- words


@pytest.mark.parametrize(
    "fields", [{"scale": "cpu"}, {"scale": None}, {"partial": True}, {"exact": True}]
)
def test_a_word_of_the_papers_size_cannot_be_said_of_less(fields):
    for status in ("reproduced", "better", "not reproduced", "contradicted", "inconclusive"):
        with pytest.raises(ValueError, match=status):
            Verdict(ORDER, status, "", **{"scale": "paper"} | fields)


# ---------------------------------------------------------------------- checks that are refused


@pytest.mark.parametrize("number", [0, 3, 5])
def test_a_check_compares_one_two_or_four_arms(number):
    arms = (Select("sign", arm="dynamic/bias"),) * number
    with pytest.raises(ValueError, match=f"one, two or four arms, not {number}"):
        Check(arms, "train_accuracy", ">")


@pytest.mark.parametrize("op", ["≈", "≥", "≤"])
def test_arms_are_compared_by_more_or_less_alone(op):
    arms = (Select("sign", arm="dynamic/bias"), Select("sign", arm="dynamic/no_bias"))
    with pytest.raises(ValueError, match=f"by > or <, not by {op}"):
        Check(arms, "train_accuracy", op)


@pytest.mark.parametrize("op", ["≈", ">", "<"])
def test_a_theorem_is_checked_by_at_least_or_at_most(op):
    """Another operator would have no meaning for a theorem."""
    with pytest.raises(ValueError, match=f"by ≥ or ≤, not by {op}"):
        replace(at_most(0.0), op=op)
