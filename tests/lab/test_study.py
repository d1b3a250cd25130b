"""The page of the study: which runs count, what is compared, and what it recommends."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from capslib import papers
from capslib.lab import frames, study
from capslib.lab.statistics import compared
from capslib.lab.store import Store
from capslib.lab.study import QUESTIONS, Study, Tally
from capslib.papers.experiment import SEEDS, Metric, Trial
from capslib.papers.which_routing import EXPERIMENTS, comparison

RESULTS = Path(__file__).parents[2] / "results"
LOW, HIGH = comparison.RATES
TRIALS = {
    (comparison.COMPARISON.arm("cpu", trial.config).name, trial.seed): trial
    for trial in comparison.COMPARISON.trials("cpu")
}
"""The trials of the comparison, by arm and seed."""
OF_COMPARISON = set(QUESTIONS.values()) - set(study.OF_VIEWPOINTS)
NOISE = (-0.001, 0.0, 0.001)


def run(
    network: str,
    accuracy: float,
    seed: int = 0,
    rate: float = LOW,
    data: str = "mnist",
    trained: bool = True,
    step: float = 0.01,
) -> SimpleNamespace:
    """Return a record of the comparison, whose accuracies are all the same."""
    fractions = dict.fromkeys(OF_COMPARISON, accuracy)
    fractions |= {f"held_out_accuracy_at_{budget}": accuracy for budget in comparison.BUDGETS}
    fractions |= {f"trained_at_{budget}": trained for budget in comparison.BUDGETS}
    metrics = {
        name: Metric(value=value, n=1, unit="fraction") for name, value in fractions.items()
    }
    metrics["seconds_of_step"] = Metric(value=step, n=1, unit="seconds")
    trial = TRIALS[f"{data}/{network}/{rate:g}", seed]
    return record(trial, metrics)


def record(trial: Trial, metrics: Mapping[str, Metric]) -> SimpleNamespace:
    return SimpleNamespace(
        key=trial.key, trial=trial, config=papers.fields(trial), metrics=metrics
    )


def runs(network: str, accuracy: float, **fields: object) -> list[SimpleNamespace]:
    """Return the records of both learning rates and all seeds; the lower rate is better."""
    records = []
    for seed, noise in zip(SEEDS["cpu"], NOISE, strict=True):
        records.append(run(network, accuracy + noise, seed, LOW, **fields))
        records.append(run(network, accuracy + noise - 0.1, seed, HIGH, **fields))
    return records


# ------------------------------------------------------------------------- runs that count


def test_runs_of_the_better_rate_count_in_the_order_of_their_seeds():
    records = [run("em", 0.9, seed, HIGH) for seed in (2, 0, 1)]
    records += [run("em", 0.8, seed, LOW) for seed in (0, 1, 2)]
    records += [run("uniform", 0.5, seed, LOW) for seed in (0, 1, 2)]
    chosen = study.chosen_runs(records, "steps", seeds=(0, 1, 2))
    assert list(chosen) == ["mnist"]
    assert list(chosen["mnist"]) == ["em"], "the other rate of uniform has not run"
    assert [run.trial.seed for run in chosen["mnist"]["em"]] == [0, 1, 2]
    assert {run.config["learning_rate"] for run in chosen["mnist"]["em"]} == {HIGH}


def test_fractions_are_in_percent_and_a_network_that_has_not_trained_is_left_out():
    records = runs("dynamic", 0.95) + runs("em", 0.5, trained=False)
    shown = Study(records)
    assert shown.networks == ["dynamic", "em"]
    accuracies = shown.values("mnist", "test_accuracy_at_steps")
    assert accuracies == {"dynamic": pytest.approx([94.9, 95, 95.1])}
    assert shown.trained_share("dynamic") == (6, 6)
    assert shown.trained_share("em") == (0, 6)


def test_a_cost_is_relative_to_dynamic_routing():
    shown = Study(runs("dynamic", 0.95, step=0.02) + runs("em", 0.95, step=0.03))
    assert shown.relative_cost("em", "seconds_of_step") == pytest.approx(1.5)
    assert shown.relative_cost("cnn", "seconds_of_step") is None


# ----------------------------------------------------------------------------- comparisons


def test_a_network_is_better_where_the_interval_of_the_paired_difference_says_so():
    values = {"uniform": [90, 92, 94], "em": [91, 93, 95.1], "dynamic": [91, 90, 95]}
    assert compared(values, "uniform") == {"em": "better", "dynamic": "undecided"}
    assert compared(values, "em") == {"uniform": "worse", "dynamic": "undecided"}
    assert compared(values, "cnn") == {}


def test_every_question_is_asked_on_every_data_set():
    records = []
    for data in ("mnist", "fashion_mnist"):
        records += runs("uniform", 0.95, data=data)
    records += runs("em", 0.97) + runs("em", 0.93, data="fashion_mnist")
    count = len(OF_COMPARISON)
    shown = Study(records)
    assert shown.tallies() == {"em": Tally(better=count, worse=count)}
    standings = shown.standings()
    assert standings["mnist", "turned by 30 degrees"] == {"em": "better"}
    assert standings["fashion_mnist", "turned by 30 degrees"] == {"em": "worse"}


def test_every_question_is_one_that_the_runs_answer():
    records = frames.select(Store(RESULTS).records("which_routing"), "comparison", "cpu")
    assert records
    for record in records:
        assert record.metrics.keys() >= OF_COMPARISON


def test_leaders_are_named_on_each_data_set():
    records = runs("uniform", 0.95) + runs("em", 0.97) + runs("cnn", 0.97, data="smallnorb")
    records += runs("dynamic", 0.97)
    leaders = Study(records).highest("rotated_30_accuracy")
    assert leaders == "dynamic (RBA) 97.0 or EM 97.0 on MNIST and CNN 97.0 on smallNORB"
    assert Study(records).highest("novel_accuracy_at_steps") == ""


def test_a_mean_is_over_data_sets_and_seeds():
    records = runs("em", 0.9) + runs("em", 0.8, data="smallnorb")
    assert Study(records).mean("em", "rotated_30_accuracy") == pytest.approx(85)
    assert Study(records).mean("cnn", "rotated_30_accuracy") is None


def test_the_path_is_that_of_the_records():
    fast = runs("em", 0.9)
    for run in fast:
        run.routing_path = "fast"
    cnn = runs("cnn", 0.9)
    for run in cnn:
        run.routing_path = "none"
    shown = Study([*fast, *cnn])
    assert [shown.path(network) for network in ("em", "cnn", "dynamic")] == ["fast", "", ""]


def test_those_too_close_to_the_leader_are_named_unless_they_are_many():
    values = {"uniform": [80, 81], "em": [90, 92], "dynamic": [89, 92.5], "cnn": [88, 93]}
    assert study.leader_or_ties(values) == "EM 91.0 or dynamic (RBA) 90.8 or CNN 90.5"
    values["similarity"] = [87, 92]
    assert study.leader_or_ties(values) == "no clear leader"
    assert study.leader_or_ties({"em": [90, 92], "cnn": [89, 92.5]}) == "no clear leader"
    assert study.leader_or_ties({}) == "–"


# ------------------------------------------------------------------------------ the answer


def test_without_a_yardstick_the_answer_is_open():
    assert Study([]).answer().startswith("Open")
    assert Study(runs("em", 0.97)).answer().startswith("Open")


def test_the_answer_is_the_routing_that_wins_most_and_loses_least():
    records = runs("uniform", 0.95) + runs("em", 0.97) + runs("similarity", 0.9)
    answer = Study(records).answer()
    assert answer.startswith("So far, in small CapsNets on MNIST, take EM:")
    assert "wins 6 of its 6 comparisons, and loses none" in answer
    assert "CNN" not in answer


def test_of_equal_routings_the_answer_is_the_faster_one():
    records = runs("uniform", 0.95) + runs("dynamic", 0.97, step=0.02)
    records += runs("em", 0.97, step=0.01) + runs("cnn", 0.9)
    answer = Study(records).answer()
    assert "take EM:" in answer
    assert "A CNN of the same size wins 0 of its 6" in answer


def test_no_routing_is_recommended_that_loses_as_often_as_it_wins():
    answer = Study(runs("uniform", 0.95) + runs("em", 0.9)).answer()
    assert "none of 1 routing is shown to help. So begin with one iteration of " in answer
    assert "routings win 0 and lose 6; chance alone gives about 0 of each" in answer
    assert "take" not in answer


def test_an_answer_is_final_once_all_networks_have_run(monkeypatch):
    shown = Study(runs("uniform", 0.95) + runs("em", 0.97))
    assert shown.answer().startswith("So far, in small CapsNets on ")
    monkeypatch.setattr(Study, "expected", shown.finished)
    assert shown.answer().startswith("In small CapsNets, take EM:")


def test_a_study_is_complete_when_every_trial_has_a_record():
    records = []
    for experiment in EXPERIMENTS.values():
        records += [record(trial, {}) for trial in experiment.trials("cpu")]
    assert Study(records).finished == Study(records).expected
    assert Study(records[1:]).finished < Study(records).expected
    assert Study(records[:-1]).finished < Study(records).expected


def test_a_record_counts_once_and_only_if_it_is_of_an_arm_of_today():
    records = runs("uniform", 0.95) + runs("em", 0.97)
    older = record(records[0].trial.model_copy(update={"revision": 0}), {})
    other_seed = record(records[0].trial.model_copy(update={"seed": 99}), {})
    shown = Study([*records, *records, older, other_seed])
    assert shown.finished == len(records)
    assert shown.trained_share("em") == (6, 6)
    assert shown.answer() == Study(records).answer()


def test_names_of_the_page_fit_the_networks_and_the_data():
    known = set(comparison.networks())
    assert set(study.LABELS) <= known
    assert set(study.TITLES) == set(comparison.DATA)
    labels = [study.label(network) for network in known]
    assert len(set(labels)) == len(labels)
    assert not any("_" in label for label in itertools.chain(labels, study.TITLES.values()))
