"""Figures: their form on a phone, their keys, and what their rows show."""

from __future__ import annotations

import itertools
import json
import re

import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.text import Text

from capslib.lab import plots
from capslib.lab.ledger import ledger
from capslib.lab.words import Verdict


@pytest.fixture(autouse=True)
def closed():
    plt.close("all")
    plots.use_style()
    yield
    plt.close("all")


def test_panels_stand_one_under_the_other_on_a_phone_each_with_its_scales():
    figure, axes = plots.panels(2, rows=2, height=2.0, sharey=True)
    for n, panel in enumerate(axes.flat):
        panel.plot([0, n], [0, 1])
        panel.set_title(f"panel {n}")
    axes[0][0].set_ylabel("error (%)")
    axes[1][1].set_xlabel("step")
    small = plots.narrow(figure)
    small.draw_without_rendering()
    assert small.get_size_inches().tolist() == [plots.PHONE, 8.0]
    boxes = [panel.get_position() for panel in small.axes]
    for above, below in itertools.pairwise(boxes):
        assert above.y0 > below.y1
    titles = [panel.get_title(loc="left") for panel in small.axes]
    assert titles == [f"panel {n}" for n in range(4)], "row by row"
    labels = [(panel.get_xlabel(), panel.get_ylabel()) for panel in small.axes]
    assert labels == [("", "error (%)"), ("step", "error (%)"), ("", ""), ("step", "")]
    for panel in small.axes:
        assert any(label.get_visible() for label in panel.get_yticklabels())
    assert figure.get_size_inches().tolist() == [plots.WIDTH, 4.0], "the wide form stays"
    assert plt.get_fignums() == [figure.number], "the other form is shown nowhere else"


def test_a_panel_takes_no_label_of_an_axis_that_it_does_not_share():
    figure, axes = plots.panels(2)
    axes[0].set(xlabel="input", ylabel="length of the capsule")
    rows = {"no bias": plots.Row("C0", [13.0]), "bias": plots.Row("C0", [98.0])}
    plots.rows(axes[1], rows)
    axes[1].set_xlabel("test accuracy (%)")
    labels = [(panel.get_xlabel(), panel.get_ylabel()) for panel in plots.narrow(figure).axes]
    assert labels == [("input", "length of the capsule"), ("test accuracy (%)", "")]


@pytest.mark.parametrize(
    ("pictures", "rows", "height"), [(3, 1, 1.2), (4, 2, 4.8), (5, 3, 9.0)]
)
def test_pictures_stay_side_by_side_up_to_three(pictures, rows, height):
    no_scales = {"xticks": [], "yticks": []}
    figure, _ = plots.panels(pictures, height=2.4, subplot_kw=no_scales)
    small = plots.narrow(figure)
    assert small.get_size_inches().tolist() == [plots.PHONE, pytest.approx(height)]
    places = {round(panel.get_position().y0, 3) for panel in small.axes}
    assert len(places) == rows


def test_a_legend_of_the_figure_takes_more_rows():
    figure, axes = plots.panels(2)
    names = [f"a score called {n}" for n in range(8)]
    for name in names:
        axes[0].plot([0, 1], label=name)
    figure.legend(loc="outside lower center", ncol=8)
    small = plots.narrow(figure)
    small.draw_without_rendering()
    (legend,) = small.legends
    assert [text.get_text() for text in legend.get_texts()] == names
    assert legend.get_window_extent().width <= small.bbox.width


def test_seeds_of_which_one_guesses_have_no_mean():
    _, axes = plt.subplots()
    rows = {
        "all learned": plots.Row("C0", [9, 10, 11], 5.0),
        "one guesses": plots.Row("C1", [80, 10.7, 80], 5.0),
    }
    plots.errors(axes, rows)
    means = [line for line in axes.lines if line.get_markersize() == 5.5]
    assert [float(line.get_xdata()[0]) for line in means] == [10]


def test_a_network_continues_in_the_next_row():
    layers = [(f"layer {n}", "8 × 8", "3×3") for n in range(6)]
    small = plots.narrow(plots.network(layers, plots.routing_color("em")))
    assert small.get_size_inches().tolist() == [plots.PHONE, pytest.approx(2.82)]
    assert len(small.axes[0].patches) >= len(layers)


def test_both_forms_leave_a_cell():
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    try:
        plots.use_style()
        _, metadata = shell.display_formatter.format(plots.panels(2)[0])
        small = metadata["image/svg+xml"][plots.NARROW]
        wide = float(re.search(r'<svg [^>]*?\bwidth="([\d.]+)pt"', small)[1])
        assert 0.8 * plots.PHONE < wide / 72 < 1.05 * plots.PHONE
    finally:
        InteractiveShell.clear_instance()


KEY = {"2": "#2f7fc1", "three layers": "#d9731a"}


def drawn_key(**options: str) -> tuple[Axes, list[Text]]:
    """Axes with a key, and its words."""
    figure, axes = plots.panels(1)
    plots.key(axes, KEY, **options)
    figure.draw_without_rendering()
    words = [word for word in axes.artists[0].findobj(Text) if word.get_text()]
    assert {word.get_text(): word.get_color() for word in words} == KEY
    return axes, words


def test_a_key_stands_above_the_axes():
    axes, words = drawn_key()
    assert words[0].get_window_extent().y0 >= axes.bbox.y1 - 1


@pytest.mark.parametrize(("corner", "edge"), [("upper left", "x0"), ("upper right", "x1")])
def test_a_key_inside_stacks_its_words_in_that_corner(corner, edge):
    axes, words = drawn_key(inside=corner)
    first, second = (word.get_window_extent() for word in words)
    assert second.y1 <= first.y0
    for word in (first, second):
        assert getattr(word, edge) == pytest.approx(getattr(axes.bbox, edge), abs=12)
        assert axes.bbox.contains(word.x0, word.y0)
        assert axes.bbox.contains(word.x1, word.y1)


def test_no_text_of_a_record_ends_the_script_of_a_widget():
    data = {"name": "</script><b>", "grey": [0.5]}
    html = plots.widget("<script>const data = DATA;</script>", data).data
    assert html.count("</script>") == 1
    assert "<b>" not in html
    assert json.loads(re.search(r"data = (.*);", html)[1]) == data


def test_a_row_of_dots_has_a_verdict_or_seeds():
    claim = ledger()["NEG-T1-rba-bias"]
    verdict = Verdict(claim, "waiting", "")
    rows = {
        "a": (verdict, "red"),
        "b": ([1.0, 2.0, 3.0], "blue"),
        "c": ([], "red"),
    }
    (axes,) = plots.dots(rows, "accuracy").axes
    assert [text.get_text() for text in axes.texts] == list(rows)
    points = [line for line in axes.lines if line.get_marker() == "o"]
    assert {(line.get_fillstyle(), *line.get_xydata()[0]) for line in points} == {
        ("none", claim.value, 0),
        ("full", 2.0, 1),
    }
