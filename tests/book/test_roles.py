"""Numbers in prose: one rule for rounding, and what each role stands for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from capsbook import evidence, roles

from capslib.errors import UserError
from capslib.lab.ledger import ledger

NBSP = "\N{NO-BREAK SPACE}"
ARM = "sign@paper:dynamic/bias"


@pytest.fixture(scope="module")
def book(tmp_path_factory, add_records) -> SimpleNamespace:
    results = tmp_path_factory.mktemp("results")
    add_records(results)
    return SimpleNamespace(evidence=evidence.load(results))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (19.632, "19.6"),
        (0.9985, "0.999"),
        (7.0, "7"),
        (1234.5, "1234"),
        (-60431, f"−60{NBSP}431"),
        (6.104e-5, "6.10·10⁻⁵"),
    ],
)
def test_a_number_has_three_significant_digits(value, text):
    assert roles.rounded(value) == text


@pytest.mark.parametrize(
    ("value", "interval", "text"),
    [
        (19.63, (13.54, 27.58), "[13.5, 27.6]"),
        (0.977, (0.9, 1.0), "[0.900, 1.000]"),
        (0.0333, (-1.1137, 1.1804), "[−1.11, 1.18]"),
    ],
)
def test_an_interval_is_as_exact_as_its_value(value, interval, text):
    assert roles.ends(interval, value) == text


@pytest.mark.parametrize(
    ("role", "target", "text"),
    [
        ("ours", "NEG-T1-rba-bias", f"99.7{NBSP}%"),
        ("theirs", "NEG-T1-rba-bias", f"99.70{NBSP}%"),
        ("verdict", "NEG-T1-rba-bias", "reproduced"),
        ("measured", f"{ARM}:train_accuracy", f"99.7{NBSP}%"),
        ("interval", f"negation_limitation/{ARM}:train_accuracy", "[99.7, 99.7]"),
        ("count", "claims", str(len(ledger()))),
        ("count", "reproduced of negation_limitation", "1"),
        ("ours", "EM-W-8", None),
        ("measured", "sign:dynamic/bias:train_accuracy", None),
        ("measured", f"{ARM} - dynamic/bias:train_accuracy", f"0{NBSP}points"),
        ("measured", f"{ARM} - dynamic/no_bias:train_accuracy", None),
    ],
)
def test_a_role_is_a_number_of_the_records_or_missing(book, role, target, text):
    assert roles.NUMBERS[role](book, target, "negation_limitation") == text


@pytest.mark.parametrize(
    "target",
    [
        "sign",
        "sin:routing=em:loss",
        "sign@full::loss",
        f"{ARM}:train_acuracy",
    ],
)
def test_a_target_that_is_not_there_is_refused(book, target):
    with pytest.raises(UserError):
        roles.measured(book, target, "negation_limitation")


def test_an_alt_text_leaves_out_a_sentence_without_a_number(book):
    value = "{ours}`NEG-T1-rba-bias`"
    text = f"First. It has {{ours}}`EM-W-8`, or {value}. Ours is {value}."
    assert roles.alt_text(text, book, "em_routing") == f"First. Ours is 99.7{NBSP}%."
    assert "not run yet" in roles.in_text(text, book, "em_routing")
