"""Records as tables, and the colours of figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
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
def records(trial, make_record):
    """Two seeds of one arm and one of another."""
    records = []
    for seed, bias in ((0, True), (1, True), (0, False)):
        config = {**trial.config, "bias": bias, "epochs": 2}
        changed = trial.model_copy(update={"seed": seed, "config": config})
        records.append(make_record(changed, wall_seconds=60.0, peak_memory_bytes=2**21))
    return records


@pytest.fixture
def smoke(records):
    """The same, at smoke scale."""
    return [with_trial(record, scale="smoke") for record in records]


def test_metrics_are_one_row_a_record(records):
    table = frames.metrics(records)
    assert table["bias"].tolist() == [True, True, False]
    assert table["seed"].tolist() == [0, 1, 0]
    assert table["key"].nunique() == 3
    for column, value in (("train_accuracy", 0.5), ("scale", "cpu"), ("exit", "ok")):
        assert set(table[column]) == {value}
    assert set(table["hidden"]) == {20}, "fields at their defaults are columns too"
    assert frames.metrics([]).empty


def test_means_have_the_interval_of_their_seeds(records):
    table = frames.metrics(records).assign(error=[1.0, 3.0, 5.0], crops=[1.0, None, None])
    columns = {"error": "error (%)", "crops": "crops", "nothing of the kind": "nothing"}
    means = frames.means(table, "bias", columns).replace(BLANK, " ", regex=True)
    assert means.to_dict("index") == {
        True: {"seeds": 2, "error (%)": "2.0 [0.0, 93.0]", "crops": "1.0"},
        False: {"seeds": 1, "error (%)": "5.0", "crops": "–"},
    }


@pytest.mark.parametrize(
    ("numbers", "options", "text"),
    [
        ([1, 3], dict(bounds=None), "2.0 [−10.7, 14.7]"),  # t of one degree of freedom is 12.7
        ([1, 2, 3, float("nan")], {}, "2.0 [0.6, 6.8]"),
        ([7, 7, 7], {}, "7.0"),  # such as a count, which every seed gives again
        ([7], dict(unit="%"), "7.0 %"),
        ([-0.01, -0.02, -0.03], dict(bounds=None), "0.0 [0.0, 0.0]"),
        ([], {}, "–"),
    ],
)
def test_a_mean_is_a_text(numbers, options, text):
    assert frames.mean(numbers, **options) == text.replace(" ", BLANK)


def test_records_are_selected_by_experiment_scale_and_field(records):
    assert frames.select(records, "sign") == records
    assert frames.select(records, "sign", scale="cpu", bias=True) == records[:2]
    assert frames.select(records, "sign", scale="paper") == []
    assert frames.select(records, "depth") == []
    assert frames.select(records, "sign", no_such_field=1) == []


def test_a_figure_shows_the_scale_with_most_records_and_smoke_only_alone(records, smoke):
    paper = with_trial(records[0], scale="paper")
    mixed = [*smoke, paper, *records[1:], *records[1:]]
    assert frames.best(mixed, "sign") == records[1:], "each record once"
    assert frames.best([*smoke, *smoke], "sign") == frames.best(smoke, "sign") != []
    assert frames.best(records, "sign", bias=False) == [records[2]]
    assert frames.best([], "sign") == []


def test_values_of_a_metric_leave_out_the_records_without_it(records):
    assert frames.values([*records, records[0].model_copy(update={"metrics": {}})], "x") == []
    assert frames.values(records, "train_accuracy") == [0.5] * 3


def test_costs_by_experiment_scale_and_device(records):
    (row,) = frames.costs(records).to_dict("records")
    assert row["trials"] == 3
    assert row["median seconds"] == 60
    assert row["minutes in all"] == 3
    assert row["MiB at most"] == 2
    assert frames.costs([]).empty


def test_the_configuration_of_every_scale_beside_the_papers():
    depth = experiments("negation_limitation")["depth"]
    table = frames.configuration(depth, arm=("data", "routing"))
    assert list(table.columns) == ["paper", "cpu", "smoke"]
    assert table.loc["hidden units of the decoder", "paper"] == "512 · 1024"
    assert table.loc["Adam learning rate", "paper"] == "0.0001"
    assert table.loc["seeds"].tolist() == ["3", "3", "1"]
    assert not {"data", "routing"} & set(table.index)
    assert "pixels of a crop" not in table.index, "no scale crops"


def test_the_configuration_of_a_smaller_copy_is_a_column_of_its_own():
    errors = experiments("em_routing")["test_error"]
    more = {"cpu, copy": errors.at("cpu")["copy/main"]}
    table = frames.configuration(errors, more=more, shown=["epochs", "sizes"])
    assert list(table.columns) == ["paper", "cpu", "cpu, copy", "smoke"]
    assert table.loc["weight decay", "paper"] == "2·10⁻⁷"
    assert table.loc["epochs"].tolist()[1:3] == ["12", "24"]
    assert "A, B, C, D" in table.index
    assert "loss" not in table.index, "arms differ in it"
    assert table.loc["seeds", "cpu, copy"] == table.loc["seeds", "cpu"]


def test_deviations_are_named_once_with_their_scales(records):
    slip = Deviation(what="length", paper="50", ours="2", why="budget")
    shared = Deviation(what="squashing", paper="ε", ours="none", why="symmetry")
    small = records[0].model_copy(update={"deviations": [slip, shared]})
    large = with_trial(records[2], scale="paper").model_copy(update={"deviations": [shared]})
    table = frames.deviations([small, large]).set_index("what")
    assert table.loc["length", "scale"] == "cpu"
    assert table.loc["squashing", "scale"] == "cpu, paper"
    ledger = {deviation.what for deviation in deviations_of(small.trial)}
    assert set(table.index) == {"length", "squashing", *ledger}


def test_a_deviation_that_the_ledger_says_anew_is_shown_as_today(records):
    config = {**records[0].trial.config, "routing": "em_vector"}
    record = with_trial(records[0], config=config)
    today = deviations_of(record.trial)
    everywhere = deviations_of(record.trial, everywhere=True)
    old = record.model_copy(update={"deviations": everywhere})
    reasons = {deviation.why for deviation in today}
    assert reasons < {deviation.why for deviation in everywhere}
    assert set(frames.deviations([old])["why"]) == reasons


# ----------------------------------------------------------------------- tables and texts


def test_a_table_of_rows_has_the_names_that_it_is_given_and_no_row_numbers():
    rows = {("a", "b"): [1.25, "x<y"], ("a", "c"): [2, None]}
    html = frames.table(rows, ["number", "text"], "set", "arm").to_html()
    for name in ("set", "arm", "a", "b", "c", "number", "text"):
        assert f">{name}</th>" in html
    assert "x&lt;y" in html
    table = pd.DataFrame({"x": ["a", "b"]})
    for part in (table, table.iloc[[1]]):
        html = frames.styled(part).to_html()
        assert "row_heading" not in html
        assert ">b</td>" in html
    assert "row_heading" in frames.styled(table.rename_axis("depth")).to_html()
    assert ">1.2<" in frames.styled(pd.DataFrame({"x": [1.234]}), digits=1).to_html()


def test_a_value_of_a_record_is_written_as_a_reader_would():
    values = [1e-5, 0.25, -0.0, True, None, "dense", 512]
    assert frames.text(values) == "1·10⁻⁵ · 0.25 · 0 · yes · – · dense · 512"


def test_a_figure_says_what_it_shows_and_that_smoke_runs_decide_nothing(records, smoke):
    assert "they decide nothing" in frames.standing(smoke)
    assert "they decide nothing" not in frames.standing([*smoke, *records])
    assert frames.shown_are(records) == "cpu scale, 2 seeds"


# -------------------------------------------------------------------------------- colours

COLORS = (
    plots.INK,
    *plots.ROUTING_COLORS.values(),
    *plots.ROLE_COLORS.values(),
    *plots.ARM_COLORS,
)


def luminance(color: str) -> float:
    """Return the relative luminance of a colour, as WCAG 2 defines it."""
    parts = np.array(to_rgb(color))
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return linear @ (0.2126, 0.7152, 0.0722)


def contrast(first: str, second: str) -> float:
    low, high = sorted([luminance(first), luminance(second)])
    return (high + 0.05) / (low + 0.05)


def inverted(color: str) -> str:
    """Return what ``filter: invert(1) hue-rotate(180deg)`` makes of a colour.

    The matrix is that of the Filter Effects specification.
    """
    rotation = [[-0.574, 1.43, 0.144], [0.426, 0.43, 0.144], [0.426, 1.43, -0.856]]
    return to_hex(np.clip(rotation @ (1 - np.array(to_rgb(color))), 0, 1))


def test_text_in_every_colour_is_readable_on_a_white_page_and_inverted_on_a_dark_one():
    sheet = Path(plots.__file__).parents[2] / "book" / "_static" / "capsules.css"
    style = sheet.read_text(encoding="utf-8")
    assert style.count("filter: invert(1) hue-rotate(180deg)") == 1
    assert plots.ordered(5, plots.INK)[0] == plots.INK
    for color in COLORS:
        for shade in (color, *plots.ordered(5, color)):
            assert contrast(shade, "#ffffff") >= 4.5, shade
            assert contrast(inverted(shade), "#14181e") >= 4.5, shade


def test_one_colour_has_one_meaning():
    routings = plots.ROUTING_COLORS
    assert routings["em_vector"] == routings["em"], "one routing, in two forms"
    colors = list(COLORS)
    colors.remove(routings["em"])
    rgb = 255 * np.array([to_rgb(color) for color in colors])
    distances = np.linalg.norm(rgb[:, None] - rgb[None], axis=-1)
    assert distances[~np.eye(len(colors), dtype=bool)].min() > 40


def test_a_routing_that_the_book_does_not_know_has_a_colour_and_its_own_name():
    assert plots.routing_color("em") == plots.ROUTING_COLORS["em"]
    assert plots.routing_name("em") == "EM"
    color = plots.routing_color("my_routing")
    assert color == plots.routing_color("my_routing")
    assert color in plots.ARM_COLORS
    assert plots.routing_name("my_routing") == "my routing"
    assert plots.routing_name("cnn") == "cnn"
