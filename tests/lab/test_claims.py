"""Verdicts: each rule by itself on small made-up records, and what must not matter to any of them."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capslib.errors import UserError
from capslib.lab.claims import (
    COLUMNS,
    FAILED,
    STATUSES,
    Claim,
    Verdict,
    counts,
    judge,
    ledger,
    number,
    our_value,
    page_table,
    table,
    to_json,
    verdicts,
)
from capslib.lab.records import Code, Environment, Record
from capslib.lab.statistics import interval
from capslib.lab.store import Store
from capslib.papers import experiments, queries
from capslib.papers.experiment import DataFingerprint, Metric, Trial
from capslib.papers.query import CONVERGED, Above, Count, Order, Property, Select, Value

REAL = DataFingerprint(name="mnist", sha256="0" * 64, stand_in=False, complete=True)
STAND_IN = DataFingerprint(name="digits", sha256="0" * 64, stand_in=True, complete=True)
PARTIAL = DataFingerprint(name="kmnist", sha256="0" * 64, stand_in=False, complete=False, deviations=["7,011 of 60,000 images."])


def record(
    value=None, seed=0, scale="paper", arm="a", exit="ok", data=(REAL,), change=0.0, unit="fraction", config=None, revision=1,
    paper="negation_limitation", experiment="depth", metrics=None, parameters=7, converged=CONVERGED[0],
) -> Record:  # fmt: skip
    """A record of one made-up trial; ``change`` is its convergence metric, None leaves that out."""
    trial = Trial(
        paper=paper, experiment=experiment, revision=revision, scale=scale, config=config or {"arm": arm, "size": 3}, seed=seed
    )
    found = {} if value is None else {"accuracy": Metric(value=value, n=10_000, unit=unit)}
    if change is not None:
        found[converged] = Metric(value=change, n=100, unit="share of the initial loss")
    now = datetime(2024, 1, 1, tzinfo=UTC)
    return Record(
        key=trial.key, trial=trial, config=trial.config, deviations=[], metrics=({} if exit != "ok" else found | (metrics or {})), series={}, data=list(data),
        code=Code(revision=None, dirty=None, capslib="0" * 64), routing_path="eager", parameters=parameters, wall_seconds=1,
        environment=Environment(python="3.12", torch="2.13", device="CPU", threads=1, deterministic=True),
        peak_memory_bytes=1, started=now, finished=now, exit=exit,
    )  # fmt: skip


def runs(values, **more) -> list[Record]:
    return [record(v, seed=s, **more) for s, v in enumerate(values)]


def claim(kind="value", value=None, tolerance=0.5, unit="percent", metric="test accuracy", **more) -> Claim:
    row = dict(
        id="NEG-X-test", paper="negation_limitation", where="Table 1", kind=kind, statement="A is so.", dataset="MNIST", setting="",
        metric=metric, unit=unit, value=value, std=None, tolerance=tolerance, not_run="", notes="", printed=str(value or ""),
    )  # fmt: skip
    return Claim(**(row | more))


A, B = Select("depth", {"arm": "a"}), Select("depth", {"arm": "b"})
VALUE = Value(A, "accuracy")
ORDER = Order(A, B, "accuracy")
ordered = claim("order", unit="", metric="")
exact = claim("property", unit="", metric="")
GOOD, BAD = [0.95, 0.96, 0.955], [0.10, 0.11, 0.105]


def arms(a=GOOD, b=BAD, **more) -> list[Record]:
    return runs(a, arm="a", **more) + runs(b, arm="b", **more)


# ----------------------------------------------------------------------------------------------------------- intervals


def test_the_interval_of_few_values_is_students():
    assert interval([1, 2, 3]) == pytest.approx((2 - 2.4841377, 2 + 2.4841377))  # 4.302653 · 1/√3
    assert interval([1, 2, 3], level=0.9) == pytest.approx((2 - 1.6858545, 2 + 1.6858545))  # 2.919986 · 1/√3


def test_the_interval_of_one_value_does_not_exist_and_of_equal_values_is_a_point():
    assert interval([]) is interval([0.5]) is None
    assert interval([0.5, 0.5, 0.5]) == interval([0.5] * 20) == (0.5, 0.5)


def test_from_ten_values_on_the_interval_is_bootstrapped():
    skewed = list(np.random.default_rng(0).exponential(size=12))
    low, high = interval(skewed)
    mean, half = np.mean(skewed), 2.200985 * np.std(skewed, ddof=1) / np.sqrt(12)
    assert low < mean < high
    assert (low, high) != pytest.approx((mean - half, mean + half), rel=1e-3)
    assert high - mean > mean - low, "a bootstrap of skewed values is skewed"
    assert interval(skewed) == interval(skewed[::-1])


@pytest.mark.parametrize("values", [[1.0] * 9 + [2.0], [0.0] * 10 + [1e-300], [0.5] * 19 + [np.nextafter(0.5, 1)]])
def test_the_bootstrap_survives_values_that_are_nearly_equal(values):
    low, high = interval(values)
    assert min(values) <= low <= high <= max(values) or np.isclose(low, high)


@pytest.mark.parametrize(("n", "trials", "low", "high"), [(3, 2000, 0.93, 0.97), (5, 2000, 0.93, 0.97), (12, 200, 0.85, 0.99)])
def test_the_interval_covers_the_mean_as_often_as_it_says(n, trials, low, high):
    draws = np.random.default_rng(1).normal(size=(trials, n))
    hits = sum(lo <= 0 <= hi for lo, hi in map(interval, draws))
    assert low < hits / trials < high


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=9), st.randoms())
def test_the_interval_ignores_order_and_moves_with_the_values(values, rng):
    low, high = interval(values)
    assert low <= np.mean(values) + 1e-6 <= high + 2e-6
    shuffled = rng.sample(values, len(values))
    assert interval(shuffled) == (low, high)


# --------------------------------------------------------------------------------------------------------------- value


@pytest.mark.parametrize(
    ("paper", "status"),
    [(95.5, "reproduced"), (97.2, "reproduced"), (93.8, "reproduced"), (97.3, "not reproduced"), (93.7, "better")],
)
def test_a_value_is_reproduced_inside_the_widened_interval(paper, status):
    found = judge(claim(value=paper), VALUE, runs(GOOD))  # 95.5 ± 1.242 percent, widened by 0.5
    assert (found.status, found.n, found.test_n, found.scale, found.unit) == (status, 3, 10_000, "paper", "percent")
    assert found.ours == pytest.approx(95.5)
    assert found.interval == pytest.approx((95.5 - 1.2421, 95.5 + 1.2421), abs=1e-3)
    assert found.records == tuple(r.key for r in runs(GOOD))
    assert str(paper)[:4] in found.reason


def test_an_edge_of_the_tolerance_counts_as_inside():
    """In binary 93.9 + 0.3 is less than 94.2."""
    assert judge(claim(value=94.2, tolerance=0.3), VALUE, runs([0.939] * 3)).status == "reproduced"
    assert judge(claim(value=94.21, tolerance=0.3), VALUE, runs([0.939] * 3)).status == "not reproduced"


@pytest.mark.parametrize(
    ("metric", "status"), [("test error", "not reproduced"), ("AUROC", "better"), ("parameters", "not reproduced")]
)
def test_better_depends_on_the_direction_of_the_metric(metric, status):
    assert judge(claim(value=50, metric=metric), VALUE, runs(GOOD)).status == status


def test_a_lower_error_is_better():
    assert judge(claim(value=50, metric="test error"), VALUE, runs(BAD)).status == "better"


def test_units_meet_in_the_unit_of_the_paper():
    percent = judge(claim(value=95.5), VALUE, runs(GOOD))
    fraction = judge(claim(value=0.955, unit="fraction", tolerance=0.005), VALUE, runs([100 * v for v in GOOD], unit="percent"))
    assert percent.status == fraction.status == "reproduced"
    assert (percent.ours, fraction.ours) == pytest.approx((95.5, 0.955))
    odd = judge(claim(value=95.5), VALUE, runs(GOOD, unit="steps"))
    assert (odd.status, odd.interval) == ("inconclusive", None)
    assert "steps" in odd.reason


def test_the_parameters_of_a_network_are_a_metric_of_every_record():
    asked = Value(A, "parameters", final=False)
    found = judge(
        claim(value=310_000, unit="count", metric="trainable parameters", tolerance=10_000), asked, runs(GOOD, parameters=316_650)
    )
    assert (found.status, found.ours) == ("reproduced", 316_650)


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ([], "No record"),
        (runs(GOOD, scale="cpu"), "3 at cpu scale"),
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
def test_a_value_without_three_real_runs_at_paper_scale_is_not_run(records, why):
    found = judge(claim(value=95.5), VALUE, records)
    assert (found.status, found.ours, found.interval, found.scale) == ("not run", None, None, None)
    assert why in found.reason


@pytest.mark.parametrize("end", FAILED)
def test_a_failed_replicate_is_named_and_not_dropped(end):
    """To drop it would be to choose runs by their outcome."""
    failed = record(seed=8, exit=end, data=[])
    found = judge(claim(value=95.5), VALUE, [*runs(GOOD), failed])
    assert (found.status, found.n, found.ours) == ("inconclusive", 3, pytest.approx(95.5))
    assert found.reason == f"Failed replicates: seed 8 ended in {end}."
    assert failed.key in found.records
    for query in (ORDER, replace(ORDER, better=B, worse=A), YES, Count({"x": YES})):  # the other arm has no run of that seed
        found = judge(ordered, query, [*arms(), failed])
        assert found.status == "inconclusive"
        assert f"seed 8 ended in {end}" in (found.parts[0] if found.parts else found).reason
    found = judge(exact, exactly(1e-12), [*violations(1e-13), failed])
    assert (found.status, found.reason) == ("inconclusive", f"Failed replicates: seed 8 ended in {end}.")


def test_each_end_of_failed_replicates_is_named_with_its_seeds():
    ends = {3: "oom", 4: "nan", 5: "oom", 6: "error", 7: "interrupted", 8: "cut"}
    found = judge(claim(value=95.5), VALUE, [*runs(GOOD), *(record(seed=s, exit=e, data=[]) for s, e in ends.items())])
    assert found.reason == "Failed replicates: seed 4 ended in nan; seeds 3, 5 ended in oom; seed 6 ended in error."


@pytest.mark.parametrize("end", FAILED)
def test_a_claim_whose_runs_all_failed_says_so(end):
    found = judge(claim(value=95.5), VALUE, runs([None] * 3, exit=end, data=[]))
    assert (found.status, found.ours) == ("inconclusive", None)
    assert found.reason == f"Failed replicates: seeds 0, 1, 2 ended in {end}."


@pytest.mark.parametrize(
    ("change", "status"), [(0.0, "reproduced"), (0.02, "reproduced"), (0.021, "inconclusive"), (-0.3, "inconclusive")]
)
@pytest.mark.parametrize("converged", CONVERGED)
def test_a_run_that_has_not_flattened_decides_nothing_about_the_end(change, status, converged):
    records = [*runs(GOOD[:2]), record(GOOD[2], seed=2, change=change, converged=converged)]
    for asked, query in ((claim(value=95.5), VALUE), (ordered, Above(A, "accuracy", 0.5)), (ordered, ORDER)):
        found = judge(asked, query, records + runs(BAD, arm="b"))
        assert found.status == status
        assert ("Not converged" in found.reason and "seed 2" in found.reason) == (status == "inconclusive")
        assert judge(asked, replace(query, final=False), records + runs(BAD, arm="b")).status == "reproduced"


def test_a_missing_convergence_check_is_no_convergence():
    found = judge(claim(value=95.5), VALUE, runs(GOOD, change=None))
    assert (found.status, "Not known to have converged" in found.reason) == ("inconclusive", True)


def test_records_of_different_configurations_are_no_replicates():
    records = [record(v, seed=s, config={"arm": "a", "size": s}) for s, v in enumerate(GOOD)]
    found = judge(claim(value=95.5), VALUE, records)
    assert (found.status, "differ in size" in found.reason) == ("inconclusive", True)


def test_only_the_last_revision_of_an_experiment_counts():
    found = judge(claim(value=95.5), VALUE, runs([*BAD, 0.2, 0.3]) + runs(GOOD, revision=2))
    assert (found.status, found.n) == ("reproduced", 3)


def test_a_verdict_on_partial_data_says_so():
    found = judge(claim(value=95.5), VALUE, runs(GOOD, data=[PARTIAL, REAL]))
    assert found.partial == "kmnist: incomplete, 7,011 of 60,000 images"
    assert judge(claim(value=95.5), VALUE, runs(GOOD)).partial == ""


def test_what_the_ledger_rules_out_stays_not_run_with_its_reason():
    found = judge(claim(value=95.5, not_run="Quoted from elsewhere."), VALUE, runs(GOOD))
    assert (found.status, found.reason) == ("not run", "Quoted from elsewhere.")
    assert judge(claim(value=95.5), None, runs(GOOD)).status == "not run"


# --------------------------------------------------------------------------------------------------- order and above


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
        (Order(A, B, "accuracy", margin=0.9), "contradicted"),
        (Order(A, B, "accuracy", margin=0.85), "inconclusive"),
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
    ],
)
def test_comparisons(query, status):
    found = judge(ordered, query, arms([0.95, 0.97, 0.96], [0.10, 0.11, 0.12]))  # ahead by 0.85, 0.86, 0.84
    assert (found.status, found.n, found.scale) == (status, 3, "paper")
    assert found.interval is not None


def test_a_bound_is_shown_in_the_unit_of_the_paper():
    chance = claim("order", value=20, unit="percent")
    found = judge(chance, Above(A, "accuracy", 0.2), runs(GOOD))
    assert (found.status, found.ours, found.unit) == ("reproduced", pytest.approx(95.5), "percent")
    assert "above 20." in found.reason


def test_a_bound_on_something_else_than_the_claims_number_keeps_its_own_unit():
    found = judge(claim("order", value=0.2, unit="pixel intensity"), Above(A, "accuracy", 0.96), runs(GOOD))
    assert (found.status, found.ours, found.unit) == ("inconclusive", pytest.approx(0.955), "fraction")
    assert found.interval is not None


def test_a_difference_of_percentages_is_in_points():
    a, b = (runs([100 * v for v in values], arm=arm, unit="percent") for values, arm in ((GOOD, "a"), (BAD, "b")))
    found = judge(claim("order"), ORDER, a + b)
    assert (found.unit, found.ours) == ("points", pytest.approx(100 * (np.mean(GOOD) - np.mean(BAD))))
    for unit in ("points", "percent"):  # a metric that is a difference comes with its unit
        assert judge(ordered, Above(A, "accuracy", 0), runs(GOOD, unit=unit)).unit == unit


def test_two_equal_arms_do_not_show_an_order():
    assert judge(ordered, ORDER, arms(GOOD, GOOD)).status == "inconclusive"


def test_fewer_than_three_pairs_decide_nothing():
    found = judge(ordered, ORDER, arms(GOOD, BAD[:2]))
    assert (found.status, found.n, found.interval) == ("inconclusive", 2, None)
    assert "needs 3 pairs of runs with one seed; there are 2" in found.reason
    apart = judge(ordered, ORDER, runs(GOOD) + [record(v, seed=9 + s, arm="b") for s, v in enumerate(BAD)])
    assert (apart.status, "no seed in common" in apart.reason) == ("not run", True)


def test_the_scale_of_the_paper_is_preferred_where_it_has_enough_and_scales_never_mix():
    small, full = arms(BAD, GOOD, scale="cpu"), arms(scale="paper")
    assert [(v.status, v.scale) for v in (judge(ordered, ORDER, small), judge(ordered, ORDER, small + full))] == [
        ("contradicted", "cpu"),
        ("reproduced", "paper"),
    ]
    two = [r for r in full if r.trial.seed < 2]
    assert (found := judge(ordered, ORDER, small + two)).scale == "cpu"
    assert set(found.records) == {r.key for r in small}
    half = runs(GOOD, arm="a", scale="paper") + runs(BAD, arm="b", scale="cpu")
    assert judge(ordered, ORDER, half).status == "not run"


def test_a_claim_may_need_the_scale_of_the_paper():
    found = judge(ordered, Above(A, "accuracy", 0.5, paper_scale_only=True), runs(GOOD, scale="cpu"))
    assert (found.status, "paper scale" in found.reason) == ("not run", True)
    assert judge(ordered, Above(A, "accuracy", 0.5, paper_scale_only=True), runs(GOOD)).status == "reproduced"
    mixed = Count({"any scale": YES, "paper scale": Above(A, "accuracy", 0.5, paper_scale_only=True)})
    assert [p.status for p in judge(ordered, mixed, runs(GOOD, scale="cpu")).parts] == ["reproduced", "not run"]


def test_a_nan_in_either_arm_leaves_an_order_open():
    records = [*arms(), record(seed=3, arm="a", exit="nan", data=[]), record(0.1, seed=3, arm="b")]
    found = judge(ordered, ORDER, records)
    assert (found.status, "seed 3 ended in nan" in found.reason) == ("inconclusive", True)


# -------------------------------------------------------------------------------------------------- property and count


def exactly(bound, above=False, select=A):
    return Property(select, "violation", bound, "tests/test_x.py::test_y", above=above)


def violations(*values, **more):
    return [
        record(seed=s, data=[], metrics={"violation": Metric(value=v, n=64, unit="difference")}, **more)
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
    assert judge(exact, exactly(1e-12), violations(1e-13, scale="smoke")).status == "not run"
    assert judge(exact, exactly(1e-12), [*both, record(seed=7, exit="nan", data=[])]).status == "inconclusive"


YES, NO, OPEN, NONE = (
    Above(A, "accuracy", 0.5),
    Above(B, "accuracy", 0.5),
    Above(A, "accuracy", 0.955),
    Above(Select("depth", {"arm": "c"}), "accuracy", 0.5),
)


@pytest.mark.parametrize(
    ("parts", "at_least", "status"),
    [
        ([YES, YES], None, "reproduced"),
        ([YES, NO], None, "contradicted"),
        ([YES, NO], 1, "reproduced"),
        ([YES, OPEN], None, "inconclusive"),
        ([YES, NONE], None, "not run"),
        ([YES, NONE], 1, "reproduced"),
        ([NO, NONE], None, "contradicted"),
        ([NO, NO, OPEN], 2, "contradicted"),
        ([NO, YES, OPEN], 2, "inconclusive"),
        ([NO, YES, OPEN, NONE], 2, "not run"),
        ([Count({"x": YES, "y": NO}, at_least=1), YES], None, "reproduced"),
    ],
)
def test_a_count_is_decided_by_its_parts(parts, at_least, status):
    query = Count({f"part {k}": p for k, p in enumerate(parts)}, at_least)
    found = judge(ordered, query, arms())
    assert found.status == status
    assert [p.name for p in found.parts] == list(query.parts)
    if status == "not run":
        assert "not run: part" in found.reason


def test_a_count_says_how_many_of_its_parts_hold():
    assert our_value(judge(ordered, Count({"a": YES, "b": NO}), arms())) == "1 of 2 parts"
    assert our_value(judge(ordered, Count({"a": YES, "b": NONE}), arms())) == ""


def test_a_count_of_properties_holds_or_fails():
    both = Count({"low": exactly(1e-12), "high": exactly(1e-14, above=True)})
    assert judge(exact, both, violations(1e-13, 2e-13)).status == "holds"
    assert judge(exact, both, violations(1e-13, 2e-12)).status == "fails"


def test_all_parts_of_a_count_are_judged_at_one_scale():
    query = Count({"a": YES, "b": Above(B, "accuracy", 0.5, below=True)})
    found = judge(ordered, query, runs(GOOD, scale="paper") + arms(scale="cpu"))
    assert (found.status, found.scale, {p.scale for p in found.parts}) == ("reproduced", "cpu", {"cpu"})


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


# ----------------------------------------------------------------------------------------------------- what must not matter

shares = st.floats(0, 1).map(lambda v: round(v, 4))
samples = st.lists(shares, min_size=3, max_size=6)
QUERIES = [(claim(value=60.0), VALUE), (ordered, ORDER), (ordered, YES), (ordered, Count({"x": YES, "y": ORDER}, at_least=1))]
fast = settings(max_examples=60, deadline=None)


def said(v: Verdict) -> tuple:
    return v.status, v.reason, v.ours, v.interval, v.records, v.scale, v.n


@fast
@given(samples, samples, st.randoms())
def test_the_order_of_the_records_does_not_matter(a, b, rng):
    records = arms(a, b)
    shuffled = rng.sample(records, len(records))
    for asked, query in QUERIES:
        assert said(judge(asked, query, records)) == said(judge(asked, query, shuffled + shuffled))


@fast
@given(samples, samples, samples)
def test_smoke_records_and_stand_ins_never_change_a_verdict(a, b, noise):
    records = arms(a, b)
    others = arms(noise, noise, scale="smoke", revision=3) + arms(noise, noise, data=[STAND_IN], revision=2)
    others += [record(seed=50, scale="smoke", exit="nan", data=[])]
    for asked, query in QUERIES:
        assert said(judge(asked, query, others + records)) == said(judge(asked, query, records))


@fast
@given(samples, samples, st.floats(0, 0.3))
def test_swapping_the_arms_turns_reproduced_into_contradicted(a, b, margin):
    query = Order(A, B, "accuracy", margin=margin)
    found, swapped = (judge(ordered, q, arms(a, b)) for q in (query, replace(query, better=B, worse=A)))
    if found.status == "reproduced":
        assert swapped.status == "contradicted"
    if found.status != "not run":
        assert swapped.ours == pytest.approx(-found.ours)
    mirrored = judge(ordered, replace(query, better=B, worse=A, higher_is_better=False), arms(a, b))
    assert (mirrored.status, mirrored.ours) == (found.status, pytest.approx(found.ours))


@fast
@given(samples, st.floats(0, 100), st.floats(0, 50), st.floats(0, 50))
def test_widening_the_tolerance_never_undoes_a_reproduction(a, value, tolerance, more):
    narrow, wide = (judge(claim(value=value, tolerance=t), VALUE, runs(a)) for t in (tolerance, tolerance + more))
    if narrow.status == "reproduced":
        assert wide.status == "reproduced"


@fast
@given(samples, st.floats(0, 100))
def test_a_value_far_from_the_paper_is_better_on_one_side_only(a, value):
    up, down = (judge(claim(value=value, metric=m), VALUE, runs(a)).status for m in ("test accuracy", "test error"))
    assert (up, down) in {("reproduced", "reproduced"), ("better", "not reproduced"), ("not reproduced", "better")}


# ------------------------------------------------------------------------------------------------- the ledger as a whole


def test_without_records_every_claim_is_not_run_and_says_why(tmp_path):
    found = verdicts(store=Store(tmp_path))
    assert [v.claim.id for v in found] == list(ledger())
    assert {v.status for v in found} == {"not run"}
    assert all(v.reason.endswith(".") for v in found)
    assert counts(found) == {status: len(found) if status == "not run" else 0 for status in STATUSES}
    with pytest.raises(UserError, match="Did you mean"):
        verdicts("negation_limitatio", store=Store(tmp_path))


CHAPTER = "negation_limitation"


def answered(store: Store, **more) -> tuple[str, list[Record]]:
    """Records at paper scale for the first value claim of the chapter, from the chapter's own grid, on the paper's value."""
    name, query = next((n, q) for n, q in queries(CHAPTER).items() if isinstance(q, Value))
    experiment = experiments(CHAPTER)[query.select.experiment]
    share = ledger()[name].value / 100
    records = []
    for trial in experiment.trials("paper", where=query.select.where, seeds=range(4), **more):
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
    shown = table(CHAPTER, [name], store)
    assert tuple(shown.columns) == COLUMNS
    assert shown.iloc[0]["Verdict"] == "reproduced"
    assert shown.iloc[0]["Paper"] == ledger()[name].printed + "\N{NO-BREAK SPACE}%"
    assert shown.iloc[0]["95 % interval"] == "(all equal)"
    row = {r["id"]: r for r in json.loads(to_json(found.values()))}[name]
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
    }
    assert row["our_value"] == pytest.approx(row["paper_value"])
    assert sorted(row["records"]) == sorted(r.key for r in records)
    with pytest.raises(UserError, match="Unknown claim"):
        table(CHAPTER, ["NEG-T1-rba"], store)


@pytest.mark.parametrize(
    ("value", "text"),
    [(4253349, "4 253 349"), (-12345, "-12 345"), (68618.0, "68 618"), (1024, "1024"), (12.345, "12.35"), (0.04567, "0.04567")],
)
def test_numbers_are_written_for_readers(value, text):
    assert number(value) == text.replace(" ", "\N{NO-BREAK SPACE}")


def test_a_page_shows_groups_of_claims_in_the_order_asked_for(tmp_path):
    shown = page_table(CHAPTER, "NEG-W-4", "NEG-T1-", store=Store(tmp_path))
    assert shown.data["Claim"][0] == "NEG-W-4"
    assert list(shown.data["Claim"][1:]) == [name for name in ledger(CHAPTER) if name.startswith("NEG-T1-")]
    assert "NEG-T1-" in shown.to_html()
    assert list(shown.data) == ["Claim", "Paper", "Verdict"], "nothing is known of these"
    for wrong in ("NEG-T1", "NEG-T7-"):
        with pytest.raises(UserError, match="Unknown claim"):
            page_table(CHAPTER, wrong, store=Store(tmp_path))


def test_a_page_leaves_out_columns_that_are_empty_for_all_of_its_claims(tmp_path):
    store = Store(tmp_path)
    name, _ = answered(store)
    shown = page_table(CHAPTER, name, "NEG-W-9", store=store).data
    assert list(shown) == ["Claim", "Paper", "Ours (95\N{NO-BREAK SPACE}% interval)", "n", "Verdict"]
    told = table(CHAPTER, [name], store).iloc[0]
    assert shown.iloc[0, 2:4].tolist() == [
        f"{told['Ours']}<br>{told['95 % interval']}",
        f"{told['n']}, {told['Scale']}",
    ]
    assert list(page_table(CHAPTER, "NEG-W-9", store=store).data) == ["Claim", "Paper", "Verdict"]


def test_a_changed_configuration_does_not_pass_for_the_scale(tmp_path):
    """``--scale paper`` with fewer epochs makes a sound record, but not one of the paper's setting."""
    store = Store(tmp_path)
    name, records = answered(store, change={"epochs": 1})
    found = {v.claim.id: v for v in verdicts(CHAPTER, store=store)}[name]
    assert found.status == "not run"
    assert f"{len(records)} of the experiment" in found.reason
