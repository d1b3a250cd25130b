"""Numbers in prose: one rule for rounding, and what each role stands for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from capsbook import evidence, roles, rounding
from docutils import nodes
from docutils.utils import new_document

from capslib.errors import UserError
from capslib.lab.ledger import ledger
from capslib.papers import PAPERS

NBSP = "\N{NO-BREAK SPACE}"
ARM = "sign@paper:dynamic/bias"


@pytest.fixture(scope="module")
def book(tmp_path_factory, add_records) -> SimpleNamespace:
    results = tmp_path_factory.mktemp("results")
    add_records(results)
    return SimpleNamespace(evidence=evidence.load(results))


ROUNDED = {
    19.632: "19.6",
    0.9: "0.900",
    0.9985: "0.999",
    0: "0",
    7.0: "7",
    1234.5: "1,234",
    -60431: "−60,431",
    6.104e-5: "6.10·10⁻⁵",
}


@pytest.mark.parametrize("value", ROUNDED)
def test_a_number_has_three_significant_digits(value):
    assert rounding.rounded(value) == ROUNDED[value]


def test_an_interval_is_as_exact_as_its_value_or_its_wider_end():
    interval = (13.54, 27.58)
    assert rounding.ends(interval, 19.63) == "[13.5, 27.6]"
    interval = (0.9, 1.0)
    assert rounding.ends(interval, 0.977) == "[0.900, 1.000]"
    interval = (6.5, 7.5)
    assert rounding.ends(interval, 7) == "[6.50, 7.50]"
    assert rounding.ends((-0.0004, 12.3), 6.1) == "[0.0, 12.3]"
    interval = (-1.1137, 1.1804)
    assert rounding.ends(interval, 0.0333) == "[−1.11, 1.18]"


ACCURACY = f"{ARM}:train_accuracy"
TEXTS = {
    "{ours}`NEG-T1-rba-bias`": f"99.7{NBSP}%",
    "{theirs}`NEG-T1-rba-bias`": f"99.70{NBSP}%",
    "{verdict}`NEG-T1-rba-bias`": "reproduced",
    f"{{measured}}`{ACCURACY}`": f"99.7{NBSP}%",
    f"{{interval}}`negation_limitation/{ACCURACY}`": "[99.7, 99.7]",
    f"{{measured}}`{ARM} - dynamic/bias:train_accuracy`": f"0{NBSP}points",
    "{count}`claims`": str(len(ledger())),
    "{count}`papers`": str(len(PAPERS)),
    "{answer}`which_routing`": "Open: the networks are still training.",
    "{leading}`turned by 30 degrees`": None,
    "{ours}`EM-W-8`": None,
    "{interval}`EM-W-8`": None,
    "{verdict}`EM-W-8`": None,
    "{measured}`sign:dynamic/bias:train_accuracy`": None,
    f"{{measured}}`{ARM} - dynamic/no_bias:train_accuracy`": None,
    f"{{measured}}`{ARM}/twice:train_accuracy`": None,
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_role_is_a_number_of_the_records_or_missing(book, text):
    number = roles.in_text(text, book, "negation_limitation")
    assert number == TEXTS[text]


@pytest.mark.parametrize(
    "target",
    ["sign", "sign:a:b:c", "sin:routing=em:loss", "sign@full::loss", f"{ARM}:train_acuracy"],
)
def test_a_target_that_is_not_there_is_refused(book, target):
    with pytest.raises(UserError):
        roles.measured(book, target, "negation_limitation")


def test_an_alt_text_leaves_out_a_sentence_without_a_number(book):
    value = "{ours}`NEG-T1-rba-bias`"
    text = f"First. It has {{ours}}`EM-W-8`, or {value}. Ours is {value}."
    alt_text = roles.without_gaps(text, book, "em_routing")
    assert alt_text == f"First. Ours is 99.7{NBSP}%."
    assert roles.in_text(text, book, "em_routing") is None


def test_only_the_sentence_without_a_number_is_left_out_where_each_has_a_line():
    paragraph = nodes.paragraph()
    for text in ("First.", "\n", "It has ", None, ", ours.", "\n", "Last."):
        gap = nodes.inline(text="?", classes=[roles.MISSING_CLASS])
        paragraph += gap if text is None else nodes.Text(text)
    page = new_document("page")
    page += paragraph
    roles.leave_out_sentences(None, page)
    assert page.astext() == "First.\nLast."
