"""Records as tables, and the colours of figures."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from helpers import contrast, make_record
from matplotlib.colors import to_hex, to_rgb

from capslib.lab import frames, plots
from capslib.lab.ledger.deviations import deviations_of
from capslib.lab.records import Record
from capslib.papers import experiments
from capslib.papers.experiment import Deviation

BLANK = "\N{NO-BREAK SPACE}"


def with_trial(record: Record, **fields: object) -> Record:
    return record.model_copy(update={"trial": record.trial.model_copy(update=fields)})


@pytest.fixture
def records(trial):
    """Two seeds of one arm and one of another."""
    records = []
    for seed, bias in ((0, True), (1, True), (0, False)):
        config = {**trial.config, "bias": bias}
        seeded = trial.model_copy(update={"seed": seed, "config": config})
        records.append(make_record(seeded, wall_seconds=60.0, peak_memory_bytes=2**21))
    return records


@pytest.fixture
def smoke(records):
    """The same, at smoke scale."""
    return [with_trial(record, scale="smoke") for record in records]


def test_metrics_are_one_row_a_record(records):
    table = frames.metrics(records)
    assert table["bias"].tolist() == [True, True, False]
    assert table["seed"].tolist() == [0, 1, 0]
    assert table["train_accuracy"].tolist() == [0.5] * 3
    assert set(table["hidden"]) == {20}, "fields at their defaults are columns too"
    assert {"parameters", "scale", "exit", "key"} <= set(table)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([1, 2, 3, float("nan")], "2.0 [0.6, 6.8]"),
        ([7, 7], "7.0"),  # such as a count, which every seed gives again
        ([], "–"),
    ],
)
def test_a_mean_is_a_text(numbers, text):
    assert frames.mean(numbers) == text.replace(" ", BLANK)


def test_a_figure_shows_the_scale_with_most_records_and_smoke_only_alone(records, smoke):
    paper = with_trial(records[0], scale="paper")
    mixed = [*smoke, paper, *records[1:], *records[1:]]
    assert frames.best(mixed, "sign") == records[1:], "each record once"
    assert frames.best(smoke, "sign") == smoke
    assert frames.best(records, "sign", bias=False) == [records[2]]
    assert frames.best(records, "depth") == []


def test_costs_by_experiment_scale_and_device(records):
    (row,) = frames.costs(records).to_dict("records")
    assert row["trials"] == 3
    assert row["median seconds"] == 60
    assert row["minutes in all"] == 3
    assert row["MiB at most"] == 2


def test_the_configuration_of_every_scale_beside_the_papers():
    errors = experiments("em_routing")["test_error"]
    copy = {("cpu", "copy"): errors.at("cpu")["copy/main"]}
    table = frames.configuration(errors, more=copy, shown=["epochs"])
    assert list(table.columns) == ["paper", "cpu", "cpu, copy", "smoke"]
    assert table.loc["weight decay", "paper"] == "2·10⁻⁷"
    assert table.loc["epochs"].tolist()[1:3] == ["12", "24"]
    assert "loss" not in table.index, "arms differ in it"
    assert table.loc["seeds", "cpu, copy"] == table.loc["seeds", "cpu"]
    table = frames.configuration(errors, hidden=["weight_decay"])
    assert "weight decay" not in table.index


def test_deviations_are_named_once_with_their_scales(records):
    slip = Deviation(what="length", paper="50", ours="2", why="budget")
    small = records[0].model_copy(update={"deviations": [slip]})
    large = with_trial(small, scale="paper")
    table = frames.deviations([small, small, large]).set_index("what")
    assert table.loc["length", "scale"] == "cpu, paper"
    ledger = [deviation.what for deviation in deviations_of(small.trial)]
    assert set(table.index) > set(ledger)


def test_a_deviation_that_the_ledger_says_anew_is_shown_as_today(records):
    config = {**records[0].trial.config, "routing": "em_vector"}
    record = with_trial(records[0], config=config)
    everywhere = deviations_of(record.trial, everywhere=True)
    old = record.model_copy(update={"deviations": everywhere})
    today = {deviation.why for deviation in deviations_of(record.trial)}
    assert today < {deviation.why for deviation in everywhere}
    assert set(frames.deviations([old])["why"]) == today


# ----------------------------------------------------------------------- tables and texts


def test_a_table_of_rows_has_the_names_that_it_is_given_and_no_text_of_it_is_html():
    rows = {("a", "b"): [1.25, "x<y"], ("a", "c"): [2, None]}
    html = frames.table(rows, ["number", "text"], "set", "arm").to_html()
    for name in ("set", "arm", "a", "b", "c", "number", "text"):
        assert f">{name}</th>" in html
    assert "x&lt;y" in html
    assert "1.250000" in html


def test_pandas_own_numbers_of_rows_are_hidden():
    assert "row_heading" not in frames.styled(pd.DataFrame({"x": ["a"]})).to_html()


def test_a_value_of_a_record_is_written_as_a_reader_would():
    values = [1e-5, 0.25, -0.0, True, None, "dense", 512]
    assert frames.text(values) == "1·10⁻⁵ · 0.25 · 0 · yes · – · dense · 512"


def test_a_figure_says_what_it_shows(records):
    assert frames.shown_are(records) == "small networks, 2 seeds"


# -------------------------------------------------------------------------------- colours

COLORS = (
    plots.INK,
    *plots.ROUTING_COLORS.values(),
    *plots.ROLE_COLORS.values(),
    *plots.ARM_COLORS,
)


def inverted(color: str) -> str:
    """Return what ``filter: invert(1) hue-rotate(180deg)`` makes of a colour.

    The matrix is that of the Filter Effects specification.
    """
    rotation = [[-0.574, 1.43, 0.144], [0.426, 0.43, 0.144], [0.426, 1.43, -0.856]]
    return to_hex(np.clip(rotation @ (1 - np.array(to_rgb(color))), 0, 1))


@pytest.mark.parametrize("color", COLORS)
def test_text_in_every_colour_is_readable_on_a_white_page_and_inverted_on_a_dark_one(color):
    for shade in (color, *plots.ordered(5, color)):
        assert contrast(shade, "#ffffff") >= 4.5, shade
        assert contrast(inverted(shade), "#14181e") >= 4.5, shade


def test_a_routing_that_the_book_does_not_know_has_a_colour_and_its_own_name():
    color = plots.routing_color("my_routing")
    assert color == plots.routing_color("my_routing")
    assert color in plots.ARM_COLORS
    assert plots.routing_name("my_routing") == "my routing"
    assert plots.routing_name("em") == "EM"
