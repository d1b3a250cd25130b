"""What a page writes for the names of metrics and arms."""

from __future__ import annotations

from capslib import papers
from capslib.papers.check import leaves
from capslib.papers.names import METRICS, difference_title, metric_title


def test_a_title_is_of_a_metric_that_a_claim_asks_for():
    asked = set()
    for stem in papers.STEMS:
        for check in papers.checks_of(stem).values():
            for leaf in leaves(check):
                asked |= set(str(leaf.metric).split(" "))
    assert METRICS.keys() <= asked


def test_no_name_of_the_code_is_left_in_what_is_judged():
    for stem in papers.STEMS:
        for claim, check in papers.checks_of(stem).items():
            for leaf in leaves(check):
                assert "_" not in leaf.label, claim
                assert "/" not in leaf.label, claim


def test_arms_of_different_depth_share_nothing():
    assert difference_title("dense/em", "dense") == "dense, EM − dense"


def test_words_between_metrics_stay():
    assert metric_title("error_mnist at the end") == "squared error on MNIST at the end"
