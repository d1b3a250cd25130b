"""The figure style of the book: SVG for a white page, which a dark page inverts."""

from __future__ import annotations

import functools
import io
import json
import math
import pickle
import zlib
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from capslib.lab.statistics import interval

if TYPE_CHECKING:
    from IPython.display import HTML
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

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
"""Colours of the book's routings, of Wong's colour-blind safe hues.

Text in any colour of the book has a contrast above 4.5:1.
"""

ROLE_COLORS = {"printed": "#c22f45", "released": "#15737f", "mistake": "#6f6a00"}
"""What is done as the paper prints it, as its code does it, and as a common mistake does it."""

ARM_COLORS = ("#5654c4", "#a83a7c", "#4c6f14", "#7a1f1f", "#2a2d33", "#d0006f")
"""Colours of arms of a figure that are no routings, and of routings that are not the book's."""

ROUTING_NAMES = {
    "dynamic": "RBA",
    "em": "EM",
    "em_vector": "EM with vectors",
    "similarity": "similarity",
    "connectionist": "connectionist",
}
WIDTH = 7.2
"""Width of every figure of the book, in inches."""

PHONE = 3.6
"""Width of the form that a figure has on a phone, in inches."""

NARROW = "capslib_narrow"
"""The key of that form in the metadata of an output, below the MIME type of the wide one."""


def routing_color(name: str) -> str:
    """Return the colour of a routing.

    An unknown routing gets a colour of ``ARM_COLORS``, always the same one.
    """
    number = zlib.crc32(name.encode()) % len(ARM_COLORS)
    return ROUTING_COLORS.get(name, ARM_COLORS[number])


def routing_name(name: str) -> str:
    """Return the name of a routing on a figure, its own for a routing that the book lacks."""
    return ROUTING_NAMES.get(name, name.replace("_", " "))


def ordered(n: int, color: str = INK) -> list[str]:
    """Return ``n`` shades of a colour, from itself to nearly black.

    They are for a series that has an order, such as depths or iterations.
    """
    from matplotlib.colors import to_hex, to_rgb

    rgb = np.array(to_rgb(color))
    brightness = [1 - 0.75 * k / max(1, n - 1) for k in range(n)]
    return [to_hex(share * rgb) for share in brightness]


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
    shell = get_ipython()
    if shell is not None:
        formatter = shell.display_formatter.mimebundle_formatter
        formatter.for_type(
            mpl.figure.Figure,
            lambda figure, **_: ({}, {"image/svg+xml": {NARROW: svg(narrow(figure))}}),
        )


def svg(figure: Figure) -> str:
    """Return a figure as SVG. The same figure gives the same text."""
    text = io.StringIO()
    figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None})
    return text.getvalue()


def narrow(figure: Figure) -> Figure:
    """Return the form of a figure for a phone.

    Its panels stand one under the other, each with its own scales. Panels without scales stay
    in their rows, but a single row of more than three becomes rows of two. A figure that cannot
    be rearranged so brings a function ``narrow`` that draws it.
    """
    import matplotlib.pyplot as plt

    if hasattr(figure, "narrow"):
        small = figure.narrow()
    else:
        small = pickle.loads(pickle.dumps(figure))
        _rearrange(small)
    plt.close(small)
    return small


def _rearrange(figure: Figure) -> None:
    """Give a figure the width of a phone."""
    for legend in list(figure.legends):
        _wrap_legend(figure, legend)
    panels = [axes for axes in figure.axes if axes.get_subplotspec()]
    rows, columns = 1, 1
    if panels:
        rows, columns = panels[0].get_subplotspec().get_gridspec().get_geometry()
    width, height = figure.get_size_inches()
    if columns == 1:
        figure.set_size_inches(min(width, PHONE), height)
    elif any(len(axes.get_xticks()) or len(axes.get_yticks()) for axes in panels):
        _stack_panels(panels, rows, columns)
        figure.set_size_inches(PHONE, height * columns)
    else:
        pictures_a_row = 2 if rows == 1 and columns > 3 else columns
        rows_a_row = math.ceil(columns / pictures_a_row)
        cells = figure.add_gridspec(rows * rows_a_row, pictures_a_row)
        for axes, cell in zip(panels, cells, strict=False):
            axes.set_subplotspec(cell)
            axes.set_title(axes.get_title(loc="left"), fontsize=8)
        row_height = height * PHONE / width * columns / pictures_a_row
        figure.set_size_inches(PHONE, row_height * rows_a_row)


def _wrap_legend(figure: Figure, legend: Legend) -> None:
    """Put the names of a figure's legend into as many columns as a phone has room for."""
    names = [text.get_text() for text in legend.get_texts()]
    longest = max(map(len, names))
    figure.legend(
        legend.legend_handles,
        names,
        loc="outside lower center",
        ncols=max(1, 44 // (longest + 5)),
        fontsize=8.5,
    )
    legend.remove()


def _stack_panels(panels: Sequence[Axes], rows: int, columns: int) -> None:
    """Put panels under each other, row by row.

    Each keeps its labels. One without takes the label below its column, and that at the left of
    its row if it shares that axis.
    """
    first_of_rows = {}
    labels_of_columns = {}
    for axes in panels:
        cell = axes.get_subplotspec()
        if cell.is_first_col():
            first_of_rows[cell.rowspan.start] = axes
        if cell.is_last_row():
            labels_of_columns[cell.colspan.start] = axes.get_xlabel()
    cells = panels[0].figure.add_gridspec(rows * columns, 1)
    for axes in panels:
        cell = axes.get_subplotspec()
        row, column = cell.rowspan.start, cell.colspan.start
        axes.set_subplotspec(cells[row * columns + column])
        axes.tick_params(labelleft=True, labelbottom=True)
        axes.set_xlabel(axes.get_xlabel() or labels_of_columns.get(column, ""))
        first = first_of_rows.get(row)
        if first and not axes.get_ylabel() and axes.get_shared_y_axes().joined(axes, first):
            axes.set_ylabel(first.get_ylabel())


def key(axes: Axes, colors: Mapping[str, str], inside: str | None = None) -> None:
    """Say what colours mean, in these colours.

    The names stand in a row at the right above the axes, or, stacked, in a corner ``inside``
    them, such as ``"upper left"``.
    """
    from matplotlib.offsetbox import AnchoredOffsetbox, HPacker, TextArea, VPacker

    names = []
    for name, color in colors.items():
        names.append(TextArea(name, textprops={"color": color, "size": 9.5}))
    if inside:
        box = VPacker(children=names, pad=0, sep=4, align=inside.split()[1])
        anchor = {"loc": inside, "borderpad": 0.5}
    else:
        box = HPacker(children=names, pad=0, sep=6)
        anchor = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderpad": 0.3}
    axes.add_artist(
        AnchoredOffsetbox(child=box, frameon=False, bbox_transform=axes.transAxes, **anchor)
    )


def panels(
    columns: int, *, height: float = 2.8, rows: int = 1, **options: object
) -> tuple[Figure, Sequence[Axes]]:
    """Return small multiples in the book's width, each row ``height`` inches high.

    ``options`` are those of :func:`matplotlib.pyplot.subplots`.
    """
    import matplotlib.pyplot as plt

    return plt.subplots(rows, columns, figsize=(WIDTH, height * rows), **options)


def dots(
    sources: Mapping[str, tuple[Verdict | Sequence[float], str]],
    quantity: str,
    unit: str = "%",
    end: float = 100,
) -> Figure:
    """Return a small figure of a quantity for the front page, from 0 to ``end`` in ``unit``.

    A row has a verdict or our seeds, and a colour. Our mean is filled, with its interval, and
    the paper's value open. A row may lack a value.
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(2.6, 0.55 + 0.42 * len(sources)))
    for y, (name, (source, color)) in enumerate(sources.items()):
        if isinstance(source, Sequence):
            mean = fmean(source) if source else None
            ends = interval(source, (0, 100) if unit == "%" else None)
            printed = None
        else:
            mean, ends, printed = source.ours, source.interval, source.claim.value
        axes.text(0, y - 0.48, name, fontsize=8.5, va="center")
        if ends is not None:
            axes.plot(ends, (y, y), color=color, lw=5, alpha=0.35, solid_capstyle="butt")
        if printed is not None:
            axes.plot(printed, y, "o", color=INK, fillstyle="none", ms=8, clip_on=False)
        if mean is not None:
            axes.plot(mean, y, "o", color=color, ms=4.5, clip_on=False)
    axes.set(xlim=(0, end), ylim=(len(sources) - 0.65, -0.8))
    axes.set(xticks=[0, end / 2, end], yticks=[])
    axes.set_xticklabels(["0", f"{end / 2:g}", f"{end:g}{unit}"], fontsize=8.5)
    axes.set_xlabel(quantity, fontsize=8.5)
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)
    return figure


class Row(NamedTuple):
    """A row of a figure: our seeds, the paper's value, and the interval of our mean."""

    color: str
    seeds: Sequence[float]
    printed: float | None = None
    interval: Sequence[float] = ()


def rows(axes: Axes, by_name: Mapping[str, Row], guessing: float = math.inf) -> None:
    """Draw a row for each name.

    The paper's value is open, seeds are small, their mean is large, and the interval is a band.
    Where a seed reaches what counts as ``guessing``, there is no mean.
    """
    for y, row in enumerate(by_name.values()):
        ends, seeds, color = row.interval, row.seeds, row.color
        axes.plot(ends, [y] * len(ends), color=color, lw=5, alpha=0.3, solid_capstyle="butt")
        axes.plot(seeds, [y] * len(seeds), "o", color=color, ms=3.5, alpha=0.6, mew=0)
        if seeds and max(seeds) < guessing:
            axes.plot(fmean(seeds), y, "o", color=color, ms=5.5)
        if row.printed is not None:
            axes.plot(row.printed, y, "o", color=color, mfc="none", ms=9)
    axes.set_yticks(range(len(by_name)), by_name)
    axes.set_ylim(max(len(by_name), 1) - 0.5, -0.5)
    axes.grid(True, axis="both")


def errors(axes: Axes, by_name: Mapping[str, Row]) -> None:
    """Draw the :func:`rows` of test errors (%) on a logarithmic scale.

    A network that guesses one of five classes errs in 80 % of the images.
    """
    rows(axes, by_name, guessing=0.95 * 80)
    axes.axvline(80, color=INK, lw=1, ls=":")
    axes.set(xscale="log", xlim=(1, 100), xlabel="test error (%), logarithmic")
    ticks = [1, 2, 5, 10, 20, 50, 100]
    axes.set_xticks(ticks, map(str, ticks))
    axes.minorticks_off()


def network(layers: Sequence[tuple[str, str, str]], color: str) -> Figure:
    """Draw a network: the name of each layer, its shape, and what leads to the next.

    Layers of capsules have ``color``.
    """
    figure = _network(layers, color, len(layers), WIDTH)
    figure.narrow = functools.partial(_network, layers, color, 3, PHONE)
    return figure


def _network(
    layers: Sequence[tuple[str, str, str]], color: str, columns: int, width: float
) -> Figure:
    """Draw a network in rows of so many layers."""
    import matplotlib.pyplot as plt

    rows = math.ceil(len(layers) / columns)
    figure, axes = plt.subplots(figsize=(width, 1.5 * rows - 0.18))
    for n, (name, shape, operation) in enumerate(layers):
        x, y = n % columns, -2.5 * (n // columns)
        middle = (x + 0.33, y + 0.5)
        ink = color if "capsules" in name else INK
        text = {"fontsize": 9, "ha": "center"}
        axes.add_patch(plt.Rectangle((x, y), 0.66, 1, fill=False, ec=ink, lw=1.8))
        axes.text(*middle, name.replace(" ", "\n"), color=ink, va="center", **text)
        axes.text(x + 0.33, y - 0.15, shape, va="top", **text)
        axes.text(x + 0.83, y + 1.12, operation, va="bottom", **text)
        if n + 1 < len(layers):
            arrow = {"arrowstyle": "->", "color": INK}
            axes.annotate("", (x + 1, y + 0.5), (x + 0.66, y + 0.5), arrowprops=arrow)
    axes.set(xlim=(-0.1, columns - 0.24), ylim=(1.75 - 2.5 * rows, 1.45))
    axes.set(frame_on=False, xticks=[], yticks=[])
    return figure


def widget(page: str, data: object) -> HTML:
    """Return a page of HTML with data, as JSON, in the place of ``DATA`` in its script.

    No text in the data can end the script: records may come from anybody.
    """
    from IPython.display import HTML

    return HTML(page.replace("DATA", json.dumps(data).replace("<", "\\u003c")))


def show_pixels(figure: Figure) -> None:
    """Show a figure of images as PNG, at two pixels per pixel of the page, and close it."""
    import matplotlib.pyplot as plt
    from IPython.display import Image, display

    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=2 * figure.dpi)
    plt.close(figure)
    display(Image(png.getvalue(), width=round(figure.get_figwidth() * figure.dpi)))
