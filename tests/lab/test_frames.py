"""Records as tables, and the figure style."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from capslib import papers
from capslib.lab import frames, plots
from capslib.lab.ledger import ledger
from capslib.lab.ledger.deviations import deviations
from capslib.papers.em_routing import EXPERIMENTS as EM
from capslib.papers.experiment import Deviation
from capslib.papers.negation_limitation import EXPERIMENTS

CLAIM = ledger()["NEG-W-4"]


@pytest.fixture
def records(trial, make_record):
    """Two seeds of one arm and one of another."""
    trials = [
        trial.model_copy(
            update={"seed": seed, "config": {**trial.config, "bias": bias, "epochs": 2}}
        )
        for seed, bias in ((0, True), (1, True), (0, False))
    ]
    return [make_record(t, wall_seconds=60.0, peak_memory_bytes=2**21) for t in trials]


def test_metrics_are_one_row_a_record(records):
    table = frames.metrics(records)
    assert len(table) == 3
    assert table.loc[2, ["bias", "seed", "train_accuracy", "scale", "exit"]].tolist() == [
        False,
        0,
        0.5,
        "cpu",
        "ok",
    ]
    assert table["key"].nunique() == 3
    assert set(table["hidden"]) == {20}, "fields at their defaults are columns too"
    assert frames.metrics([]).empty


def test_means_have_the_interval_of_their_seeds(records):
    table = frames.metrics(records).assign(error=[1.0, 3.0, 5.0], crops=[1.0, None, None])
    found = frames.means(
        table,
        "bias",
        {"error": "error (%)", "crops": "crops", "nothing of the kind": "nothing"},
    )
    assert found.replace("\N{NO-BREAK SPACE}", " ", regex=True).to_dict("index") == {
        True: {"seeds": 2, "error (%)": "2.0 [0.0, 93.0]", "crops": "1.0"},
        False: {"seeds": 1, "error (%)": "5.0", "crops": "–"},
    }
    free = frames.means(table, "bias", {"error": "error"}, bounds=None)["error"]
    assert (
        free[True] == "2.0\N{NO-BREAK SPACE}[−10.7,\N{NO-BREAK SPACE}14.7]"
    )  # t of one degree of freedom is 12.7


def test_select_by_experiment_scale_and_field(records):
    assert len(frames.select(records, "sign")) == 3
    assert [r.trial.seed for r in frames.select(records, "sign", scale="cpu", bias=True)] == [
        0,
        1,
    ]
    assert frames.select(records, "sign", scale="paper") == []
    assert frames.select(records, "depth") == []
    assert frames.select(records, "sign", no_such_field=1) == []


def test_the_configuration_of_every_scale_beside_the_papers():
    table = frames.configuration(EXPERIMENTS["depth"], arm=("data", "routing"))
    assert list(table.columns) == ["paper", "cpu", "smoke"]
    assert table.loc["hidden units of the decoder", "paper"] == "512 · 1024"
    assert table.loc["Adam learning rate", "paper"] == "0.0001"
    assert table.loc["seeds"].tolist() == ["3", "3", "1"]
    assert not {"data", "routing"} & set(table.index)
    assert "pixels of a crop" not in table.index, "no scale crops"
    copy = EM["test_error"].at("cpu")["copy/main"]
    table = frames.configuration(
        EM["test_error"], more={"cpu, copy": copy}, shown=["epochs", "sizes"]
    )
    assert list(table.columns) == ["paper", "cpu", "cpu, copy", "smoke"]
    assert table.loc["weight decay", "paper"] == "2·10⁻⁷"
    assert table.loc["epochs"].tolist()[1:3] == ["12", "24"]
    assert "A, B, C, D" in table.index
    assert "loss" not in table.index, "arms differ in it"
    assert table.loc["seeds", "cpu, copy"] == table.loc["seeds", "cpu"]


def test_a_value_of_a_record_is_written_as_a_reader_would():
    assert (
        frames.text([1e-5, 0.25, -0.0, True, None, "dense", 512])
        == "1·10⁻⁵ · 0.25 · 0 · yes · – · dense · 512"
    )


def test_a_figure_shows_the_scale_with_most_records_and_smoke_only_alone(records):
    smoke = [
        r.model_copy(update={"trial": r.trial.model_copy(update={"scale": "smoke"})})
        for r in records
    ]
    paper = records[0].model_copy(
        update={"trial": records[0].trial.model_copy(update={"scale": "paper"})}
    )
    assert frames.best([*smoke, paper, *records[1:], *records[1:]], "sign") == records[1:], (
        "each record once"
    )
    assert frames.best(smoke, "sign") == frames.best([*smoke, *smoke], "sign") != []
    assert frames.best(records, "sign", bias=False) == [records[2]]
    assert frames.best([], "sign") == []


def test_deviations_are_named_once_with_their_scales(records):
    slip = Deviation(what="length", paper="50", ours="2", why="budget")
    other = Deviation(what="squashing", paper="ε", ours="none", why="symmetry")
    paper = records[2].model_copy(
        update={
            "trial": records[2].trial.model_copy(update={"scale": "paper"}),
            "deviations": [other],
        }
    )
    table = frames.deviations(
        [records[0].model_copy(update={"deviations": [slip, other]}), paper]
    )
    scales = dict(zip(table["what"], table["scale"], strict=True))
    assert (scales.pop("length"), scales.pop("squashing")) == ("cpu", "cpu, paper")
    trial = records[0].trial
    today = [d.what for d in deviations(trial.paper, trial.experiment, papers.arm(trial))]
    assert list(scales) == list(dict.fromkeys(today)), (
        "what the ledger says today, of old records too"
    )


def test_a_deviation_that_the_ledger_says_anew_is_told_as_today(records):
    trial = records[0].trial.model_copy(
        update={"config": {**records[0].trial.config, "routing": "em_vector"}}
    )
    place = trial.paper, trial.experiment, papers.arm(trial)
    today, ever = deviations(*place), deviations(*place, everywhere=True)
    old = records[0].model_copy(update={"trial": trial, "deviations": ever})
    assert {d.why for d in today} < {d.why for d in ever}
    assert set(frames.deviations([old])["why"]) == {d.why for d in today}


def test_what_a_figure_shows_is_said_and_that_smoke_runs_decide_nothing(records):
    smoke = [
        r.model_copy(update={"trial": r.trial.model_copy(update={"scale": "smoke"})})
        for r in records
    ]
    assert "they decide nothing" in frames.standing(smoke)
    assert "they decide nothing" not in frames.standing([*smoke, *records])
    assert frames.shown_are(records) == "cpu scale, 2 seeds"


def test_sentences_are_shown_as_one_text(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    frames.say("One sentence.", "And *another*.")
    assert [text.data for text in shown] == ["One sentence. And *another*."]


def test_costs_by_experiment_scale_and_device(records):
    (row,) = frames.costs(records).to_dict("records")
    assert (
        row["trials"],
        row["median seconds"],
        row["minutes in all"],
        row["MiB at most"],
    ) == (3, 60, 3, 2)
    assert frames.costs([]).empty


def contrast(a: str, b: str) -> float:
    """Contrast of two colours as WCAG 2 defines it."""

    def luminance(color: str) -> float:
        parts = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


COLORS = (
    plots.INK,
    *plots.ROUTING_COLORS.values(),
    *plots.ROLE_COLORS.values(),
    *plots.ARM_COLORS,
)


def inverted(color: str) -> str:
    """What ``filter: invert(1) hue-rotate(180deg)`` makes of a colour, as the Filter Effects
    specification computes it.
    """
    r, g, b = (1 - int(color[k : k + 2], 16) / 255 for k in (1, 3, 5))
    turned = (
        -0.574 * r + 1.43 * g + 0.144 * b,
        0.426 * r + 0.43 * g + 0.144 * b,
        0.426 * r + 1.43 * g - 0.856 * b,
    )
    return "#" + "".join(f"{round(255 * min(1, max(0, part))):02x}" for part in turned)


def test_text_in_every_colour_is_readable_on_a_white_page_and_inverted_on_a_dark_one():
    style = (Path(plots.__file__).parents[2] / "book" / "_static" / "capsules.css").read_text(
        encoding="utf-8"
    )
    assert style.count("filter: invert(1) hue-rotate(180deg)") == 1
    shades = [shade for color in COLORS for shade in plots.ordered(5, color)]
    assert shades[0] == plots.INK
    for color in (*COLORS, *shades):
        assert contrast(color, "#ffffff") >= 4.5, color
        assert contrast(inverted(color), "#14181e") >= 4.5, color


def test_one_colour_has_one_meaning():
    routings = dict(plots.ROUTING_COLORS)
    assert routings.pop("em_vector") == routings["em"], "one routing, in two forms"
    every = [plots.INK, *routings.values(), *plots.ROLE_COLORS.values(), *plots.ARM_COLORS]
    rgb = np.array([[int(color[k : k + 2], 16) for k in (1, 3, 5)] for color in every])
    apart = np.linalg.norm(rgb[:, None] - rgb[None], axis=-1) + 999 * np.eye(len(every))
    assert apart.min() > 40, [every[k] for k in np.unravel_index(apart.argmin(), apart.shape)]


def test_a_routing_that_the_book_does_not_know_has_a_colour_and_its_own_name():
    assert (plots.routing_color("em"), plots.routing_name("em")) == (
        plots.ROUTING_COLORS["em"],
        "EM",
    )
    assert (
        plots.routing_color("my_routing")
        == plots.routing_color("my_routing")
        in plots.ARM_COLORS
    )
    assert plots.routing_name("my_routing") == "my routing"
    assert plots.routing_name("cnn") == "cnn"


def test_a_mean_of_equal_values_has_no_interval():
    """Such as a count, which every seed gives again."""
    table = pd.DataFrame({"arm": ["a"] * 3, "parameters": [7.0] * 3, "error": [1.0, 2.0, 3.0]})
    found = frames.means(table, "arm", {"parameters": "parameters", "error": "error"}).loc["a"]
    assert found["parameters"] == "7.0"
    assert (
        found["error"]
        == frames.mean([1, 2, 3, float("nan")])
        == "2.0 [0.6, 6.8]".replace(" ", "\N{NO-BREAK SPACE}")
    )
    assert frames.mean([7], unit="%") == "7.0\N{NO-BREAK SPACE}%"
    assert (
        frames.mean([-0.01, -0.02, -0.03], bounds=None)
        == "0.0\N{NO-BREAK SPACE}[0.0,\N{NO-BREAK SPACE}0.0]"
    )
    assert frames.mean([]) == "–"


def test_values_of_a_metric_leave_out_the_records_without_it(records):
    assert frames.values(records, "nothing") == []
    name = next(iter(records[0].metrics))
    assert frames.values(records, name) == [r.metrics[name].value for r in records]


def test_a_table_of_rows_has_the_names_that_it_is_given_and_no_row_numbers():
    named = frames.table(
        {("a", "b"): [1.25, "x<y"], ("a", "c"): [2, None]}, ["number", "text"], "set", "arm"
    ).to_html()
    assert all(
        f">{name}</th>" in named for name in ("set", "arm", "a", "b", "c", "number", "text")
    )
    assert "x&lt;y" in named
    for picked in (slice(None), [1]):  # pandas' own numbers, in their order and not
        shown = frames.styled(pd.DataFrame({"one": ["a", "b"]}).iloc[picked]).to_html()
        assert "row_heading" not in shown
        assert ">b</td>" in shown
    assert (
        "row_heading"
        in frames.styled(pd.DataFrame({"one": ["a"]}, pd.Index([4], name="depth"))).to_html()
    )
    assert ">1.2<" in frames.styled(pd.DataFrame({"x": [1.234]}), digits=1).to_html()


@pytest.mark.parametrize(
    ("names", "said"), [("", ""), ("a", "a"), ("ab", "a and b"), ("abc", "a, b and c")]
)
def test_names_in_a_sentence(names, said):
    assert frames.listed(iter(names)) == said


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("It has 7. It has –. Why? For 3–5 of them!", "It has 7. Why? For 3–5 of them!"),
        ("Palma (–) lies below.", ""),
        ("They differ by –, or less. So be it.", "So be it."),
        ("Of these, 0 of 0 learn. Of those, 10 of 0.5 M.", "Of those, 10 of 0.5 M."),
        (
            '<a data-tip="–">7</a> are there. <b>–</b> are not.',
            '<a data-tip="–">7</a> are there.',
        ),
        ("*One* way.\n\nIt has –.\n\nAnother.", "*One* way.\n\nAnother."),
    ],
)
def test_a_sentence_whose_number_is_missing_is_not_shown(text, shown):
    assert frames.whole(frames.sentences(text)) == shown
