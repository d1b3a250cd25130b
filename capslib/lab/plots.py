"""The figure style of the whole book: SVG, drawn for a white page (a dark one inverts it), one colour for one meaning."""

from __future__ import annotations

import functools
import io
import json
import math
import pickle
import zlib
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from capslib.lab.statistics import interval

if TYPE_CHECKING:
    from IPython.display import HTML
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from capslib.lab.words import Verdict

INK = "#565d69"
"""Colour of text and axes, and of whatever is none of the things that have a colour."""

ROUTING_COLORS = {
    "dynamic": "#1d6fb3",
    "em": "#bd560a",
    "em_vector": "#bd560a",
    "similarity": "#167d58",
    "connectionist": "#9048b8",
    "cnn": "#7d5a2e",
}
"""Colours of the book's routings, of Wong's colour-blind safe hues. Text in any colour of the book has a contrast above 4.5:1."""

ROLE_COLORS = {"printed": "#c22f45", "released": "#15737f", "mistake": "#6f6a00"}
"""What is done as the paper prints it, as its code does it, and as a common mistake does it, in every chapter."""

ARM_COLORS = ("#5654c4", "#a83a7c", "#4c6f14", "#7a1f1f", "#2a2d33", "#d0006f")
"""Colours of the arms of one figure that are no routings, and of routings that the book does not know."""

ROUTING_NAMES = {
    "dynamic": "RBA",
    "em": "EM",
    "em_vector": "EM (vector)",
    "similarity": "similarity",
    "connectionist": "connectionist",
}
WIDTH = 7.2
"""Width of every figure of the book, in inches."""

PHONE = 3.6
"""Width of the form that a figure has on a phone, in inches."""

NARROW = "capslib_narrow"
"""Where a cell leaves that form: in the metadata of its output, below the MIME type of the wide one."""


def routing_color(name: str) -> str:
    """The colour of a routing. A routing that the book does not know gets one of ``ARM_COLORS``, always the same."""
    return ROUTING_COLORS.get(name) or ARM_COLORS[zlib.crc32(name.encode()) % len(ARM_COLORS)]


def ordered(n: int, color: str = INK) -> list[str]:
    """``n`` shades for a series that has an order, such as depths or iterations: from the colour itself to nearly black."""
    from matplotlib.colors import to_hex, to_rgb

    return [
        to_hex([c * (1 - 0.75 * k / max(1, n - 1)) for c in to_rgb(color)]) for k in range(n)
    ]


def routing_name(name: str) -> str:
    """The name of a routing on a figure. A routing that the book does not know keeps its own."""
    return ROUTING_NAMES.get(name, name.replace("_", " "))


def use_style() -> None:
    """Set the style of every figure that follows. Call it once, at the top of a notebook."""
    import matplotlib as mpl
    import seaborn as sns
    from IPython import get_ipython
    from matplotlib_inline.backend_inline import set_matplotlib_formats

    sns.set_theme(
        context="notebook",
        style="ticks",
        rc={
            "figure.figsize": (WIDTH, 3.2),
            "figure.facecolor": "none",
            "figure.constrained_layout.use": True,
            "savefig.transparent": True,
            "axes.facecolor": "none",
            "axes.edgecolor": INK,
            "axes.labelcolor": INK,
            "axes.titlecolor": INK,
            "axes.titlesize": 11,
            "axes.titlelocation": "left",
            "axes.labelsize": 10.5,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.grid.axis": "y",
            "grid.color": INK,
            "grid.alpha": 0.22,
            "text.color": INK,
            "xtick.color": INK,
            "ytick.color": INK,
            "xtick.labelsize": 9.5,
            "ytick.labelsize": 9.5,
            "legend.frameon": False,
            "legend.fontsize": 9.5,
            "lines.linewidth": 1.9,
            "svg.fonttype": "path",
            "svg.hashsalt": "capslib",  # the same figure gives the same file
        },
    )
    mpl.rcParams["figure.dpi"] = 96
    set_matplotlib_formats("svg", metadata={"Date": None})
    if shell := get_ipython():
        bundle = shell.display_formatter.mimebundle_formatter
        bundle.for_type(
            mpl.figure.Figure,
            lambda figure, **_: ({}, {"image/svg+xml": {NARROW: svg(narrow(figure))}}),
        )


def svg(figure: Figure) -> str:
    """A figure as SVG. The same figure gives the same text."""
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", bbox_inches="tight", metadata={"Date": None})
    return drawn.getvalue()


def narrow(figure: Figure) -> Figure:
    """The figure for a phone: its panels stand one under the other, each with its own scales. Panels without scales stay in
    their rows, but a single row of more than three becomes rows of two.

    A figure that cannot be rearranged so brings a function ``narrow`` that draws it.
    """
    import matplotlib.pyplot as plt

    if hasattr(figure, "narrow"):
        other = figure.narrow()
        plt.close(other)
        return other
    other = pickle.loads(pickle.dumps(figure))
    plt.close(other)
    width, height = other.get_size_inches()
    panels = [axes for axes in other.axes if axes.get_subplotspec()]
    rows, columns = (
        panels[0].get_subplotspec().get_gridspec().get_geometry() if panels else (1, 1)
    )
    for legend in list(other.legends):
        names = [text.get_text() for text in legend.get_texts()]
        columns_of_names = max(1, 44 // (max(map(len, names)) + 5))
        other.legend(
            legend.legend_handles,
            names,
            loc="outside lower center",
            ncols=columns_of_names,
            fontsize=8.5,
        )
        legend.remove()
    if columns == 1:
        other.set_size_inches(min(width, PHONE), height)
        return other
    if not any(len(axes.get_xticks()) or len(axes.get_yticks()) for axes in panels):
        across = 2 if rows == 1 and columns > 3 else columns
        more = -(-columns // across)
        for axes, place in zip(panels, other.add_gridspec(rows * more, across), strict=False):
            axes.set_subplotspec(place)
            axes.set_title(axes.get_title(loc="left"), fontsize=8)
        other.set_size_inches(PHONE, height * PHONE / width * columns / across * more)
        return other
    left, below = {}, {}
    for axes in panels:
        place = axes.get_subplotspec()
        if place.is_first_col():
            left[place.rowspan.start] = axes.get_ylabel()
        if place.is_last_row():
            below[place.colspan.start] = axes.get_xlabel()
    grid = other.add_gridspec(rows * columns, 1)
    for axes in panels:
        row, column = axes.get_subplotspec().rowspan.start, axes.get_subplotspec().colspan.start
        axes.set_subplotspec(grid[row * columns + column])
        axes.tick_params(labelleft=True, labelbottom=True)
        axes.set(
            xlabel=axes.get_xlabel() or below.get(column, ""),
            ylabel=axes.get_ylabel() or left.get(row, ""),
        )
    other.set_size_inches(PHONE, height * columns)
    return other


def key(axes: Axes, colors: Mapping[str, str], inside: str | None = None) -> None:
    """Say what colours mean, in these colours: in a row at the right above the axes, or stacked in a corner ``inside`` ("upper left")."""
    from matplotlib.offsetbox import AnchoredOffsetbox, HPacker, TextArea, VPacker

    words = [
        TextArea(name, textprops={"color": color, "size": 9.5})
        for name, color in colors.items()
    ]
    if inside:
        packed, place = (
            VPacker(children=words, pad=0, sep=4, align=inside.split()[1]),
            {"loc": inside, "borderpad": 0.5},
        )
    else:
        packed, place = (
            HPacker(children=words, pad=0, sep=6),
            {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderpad": 0.3},
        )
    axes.add_artist(
        AnchoredOffsetbox(child=packed, frameon=False, bbox_transform=axes.transAxes, **place)
    )


def panels(
    columns: int, *, height: float = 2.8, rows: int = 1, **options: object
) -> tuple[Figure, Sequence[Axes]]:
    """Small multiples in the book's width, each row ``height`` inches high."""
    import matplotlib.pyplot as plt

    return plt.subplots(rows, columns, figsize=(WIDTH, height * rows), **options)


def dots(
    rows: Mapping[str, tuple[Verdict | Sequence[float] | float, str]],
    unit: str = "%",
    end: float = 100,
) -> Figure:
    """A small figure for the front page: a row has a verdict, or our seeds, or only the paper's value; and a colour.

    Our mean is filled, with its interval, and the paper's value open, in ``unit``, from 0 to ``end``. A row may lack a value.
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(2.6, 0.4 + 0.42 * len(rows)))
    for y, (name, (told, color)) in enumerate(rows.items()):
        if isinstance(told, float):
            ours, between, theirs = None, None, told
        elif isinstance(told, Sequence):
            ours, between, theirs = (
                fmean(told) if told else None,
                interval(told, (0, 100) if unit == "%" else None),
                None,
            )
        else:
            ours, between, theirs = told.ours, told.interval, told.claim.value
        axes.text(0, y - 0.48, name, fontsize=8.5, va="center")
        if between:
            axes.plot(
                between, (y, y), color=color, linewidth=5, alpha=0.35, solid_capstyle="butt"
            )
        if theirs is not None:
            axes.plot(theirs, y, "o", color=INK, fillstyle="none", markersize=8, clip_on=False)
        if ours is not None:
            axes.plot(ours, y, "o", color=color, markersize=4.5, clip_on=False)
    axes.set(xlim=(0, end), ylim=(len(rows) - 0.65, -0.8), yticks=[], xticks=[0, end / 2, end])
    axes.set_xticklabels(["0", f"{end / 2:g}", f"{end:g}{unit}"], fontsize=8.5)
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)
    return figure


def rows(
    axes: Axes,
    of: Mapping[str, tuple[str, float | None, Sequence[float], Sequence[float]]],
    guessed: float = math.inf,
) -> None:
    """A row each of colour, the paper's value (open), our seeds (small) with their mean (large), and its interval or nothing (a band).

    Where a seed reaches what counts as ``guessed``, there is no mean.
    """
    for y, (color, paper, ours, between) in enumerate(of.values()):
        axes.plot(
            between, [y] * len(between), color=color, lw=5, alpha=0.3, solid_capstyle="butt"
        )
        axes.plot(ours, [y] * len(ours), "o", color=color, ms=3.5, alpha=0.6, mew=0)
        if ours and max(ours) < guessed:
            axes.plot(fmean(ours), y, "o", color=color, ms=5.5)
        if paper is not None:
            axes.plot(paper, y, "o", color=color, mfc="none", ms=9)
    axes.set_yticks(range(len(of)), of)
    axes.set_ylim(max(len(of), 1) - 0.5, -0.5)
    axes.grid(True, axis="both")


def errors(
    axes: Axes, of: Mapping[str, tuple[str, float | None, Sequence[float]]], chance: float = 80
) -> None:
    """The :func:`rows` of test errors in percent, without intervals, on a logarithmic scale; who guesses errs as ``chance`` does."""
    rows(axes, {name: (*row, ()) for name, row in of.items()}, guessed=0.95 * chance)
    axes.axvline(chance, color=INK, lw=1, ls=":")
    axes.set(xscale="log", xlim=(1, 100), xlabel="test error (%), logarithmic")
    axes.set_xticks(ticks := [1, 2, 5, 10, 20, 50, 100], map(str, ticks))
    axes.minorticks_off()


def network(layers: Sequence[tuple[str, str, str]], color: str) -> Figure:
    """Draw a network, for each layer its name, its shape and what leads to the next; layers of capsules have ``color``."""
    figure = _network(layers, color, len(layers), WIDTH)
    figure.narrow = functools.partial(_network, layers, color, 3, PHONE)
    return figure


def _network(
    layers: Sequence[tuple[str, str, str]], color: str, columns: int, width: float
) -> Figure:
    import matplotlib.pyplot as plt

    rows = -(-len(layers) // columns)
    figure, axes = plt.subplots(figsize=(width, 1.5 * rows - 0.18))
    for n, (name, shape, leads) in enumerate(layers):
        x, y = n % columns, -2.5 * (n // columns)
        ink = color if "capsules" in name else INK
        axes.add_patch(plt.Rectangle((x, y), 0.66, 1, fill=False, ec=ink, lw=1.8))
        axes.text(
            x + 0.33,
            y + 0.5,
            name.replace(" ", "\n"),
            color=ink,
            ha="center",
            va="center",
            fontsize=9,
        )
        axes.text(x + 0.33, y - 0.15, shape, ha="center", va="top", fontsize=9)
        axes.text(x + 0.83, y + 1.12, leads, ha="center", va="bottom", fontsize=9)
        if n + 1 < len(layers):
            axes.annotate(
                "",
                (x + 1, y + 0.5),
                (x + 0.66, y + 0.5),
                arrowprops={"arrowstyle": "->", "color": INK},
            )
    axes.set(
        xlim=(-0.1, columns - 0.24),
        ylim=(1.75 - 2.5 * rows, 1.45),
        frame_on=False,
        xticks=[],
        yticks=[],
    )
    return figure


def widget(page: str, data: object) -> HTML:
    """HTML whose script reads ``DATA``, as JSON in which no text can end the script: records may come from anybody."""
    from IPython.display import HTML

    return HTML(page.replace("DATA", json.dumps(data).replace("<", "\\u003c")))


def show_pixels(figure: Figure) -> None:
    """Show a figure of images as PNG, at two pixels per pixel of the page, and close it."""
    import matplotlib.pyplot as plt
    from IPython.display import Image, display

    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=2 * figure.dpi)
    plt.close(figure)
    display(Image(drawn.getvalue(), width=round(figure.get_figwidth() * figure.dpi)))
