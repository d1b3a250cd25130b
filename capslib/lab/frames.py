"""Records as pandas tables, for figures and for the tables of a chapter."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from numbers import Number
from typing import TYPE_CHECKING

from capslib import papers
from capslib.config import matches
from capslib.lab.ledger import plural, raised
from capslib.lab.ledger.deviations import deviations as ledger_of
from capslib.lab.records import Record
from capslib.lab.statistics import Bounds, interval
from capslib.papers.experiment import SCALES, Arm, Experiment

if TYPE_CHECKING:
    from pandas import DataFrame
    from pandas.io.formats.style import Styler


def styled(table: DataFrame, digits: int = 6) -> Styler:
    """A table for a page, its numbers with ``digits`` decimals, and without pandas' own row
    numbers.

    Every text in it is escaped: a record may come from anybody, and left alone pandas' Styler
    escapes nothing.
    """

    def safe(cell: object) -> object:
        return cell if cell is None or isinstance(cell, Number) else escape(str(cell))

    numbered = table.index.name is None and table.index.dtype.kind == "i"
    table = (
        table.map(safe).rename(index=safe, columns=safe).rename_axis(index=safe, columns=safe)
    )
    if table.index.name and table.columns.nlevels == 1 and not table.columns.name:
        table = table.rename_axis(
            index=None, columns=table.index.name
        )  # in the row of the other names
    shown = table.style.format(precision=digits)
    return shown.hide(axis="index") if numbered else shown


def table(rows: Mapping | Sequence[Sequence], columns: Sequence[str], *names: str) -> Styler:
    """A table for a page: of rows that a mapping names, by a tuple where there are several
    ``names``, or of rows without names.
    """
    from pandas import DataFrame, Index

    if not isinstance(rows, Mapping):
        return styled(DataFrame(rows, columns=columns))
    found = DataFrame(list(rows.values()), Index(list(rows)), columns)
    return styled(found.rename_axis(index=list(names)) if names else found)


MISSING = "–"
"""Stands in a table or a sentence where there is no number."""


def sentences(text: str) -> list[str]:
    """Split a text after each full stop, question or exclamation mark before a blank, which the
    next sentence begins with.
    """
    return re.split(r"(?<=[.!?])(?=\s)", text)


def whole(sentences: Iterable[str]) -> str:
    """Join the sentences (plain text, Markdown or HTML) in which no number is missing."""
    return "".join(filter(_is_whole, sentences)).strip()


def _is_whole(sentence: str) -> bool:
    """Whether a sentence has no dash in the place of a number, and no share of nothing, ``0 of
    0``.
    """
    visible = re.sub(r"<[^>]*>", "", sentence)
    return not re.search(rf"(?<![^\s(]){MISSING}(?![^\s),.;:])|\b0 of 0\b", visible)


def listed(names: Iterable[str]) -> str:
    """``a, b and c``, or nothing where there are none."""
    *first, last = [*names] or [""]
    return " and ".join(filter(None, (", ".join(first), last)))


def plain(text: str) -> str:
    """A text of a record for Markdown, where it means nothing but itself."""
    return re.sub(r"([!-/:-@[-`{-~])", r"\\\1", " ".join(text.split()))


def metrics(records: Iterable[Record]) -> DataFrame:
    """One row per record: its configuration, seed, scale, exit, parameters and metrics, each by
    name.
    """
    import pandas as pd

    return pd.DataFrame(
        {
            **r.config,
            "parameters": r.parameters,
            **{name: m.value for name, m in r.metrics.items()},
            "seed": r.trial.seed,
            "scale": r.trial.scale,
            "exit": r.exit,
            "key": r.key,
        }
        for r in records
    )


def values(records: Iterable[Record], metric: str) -> list[float]:
    """What the records that have a metric measured, in their order."""
    return [r.metrics[metric].value for r in records if metric in r.metrics]


def mean(
    values: Iterable[float], digits: int = 1, bounds: Bounds | None = (0, 100), unit: str = ""
) -> str:
    """The mean of the values that are there and its 95 % interval, as text, or a dash;
    ``bounds`` are what no mean can leave.
    """
    there = [v for v in map(float, values) if v == v]
    found = interval(there, bounds)
    between = (
        ""
        if found is None or len(set(there)) == 1
        else f" [{found[0]:z.{digits}f}, {found[1]:z.{digits}f}]"
    )
    told = (
        f"{sum(there) / len(there):z.{digits}f}{unit and f' {unit}'}{between}"
        if there
        else MISSING
    )
    return told.replace(" ", "\N{NO-BREAK SPACE}").replace("-", "−")


def means(
    table: DataFrame,
    by: str | list[str],
    columns: Mapping[str, str],
    digits: int = 1,
    bounds: Bounds | None = (0, 100),
) -> DataFrame:
    """For each group of :func:`metrics`: the number of seeds, and the :func:`mean` of some
    metrics.

    ``columns`` maps each metric to the name of its column; a metric that no group has gets
    none.
    """
    of = table.groupby(by, sort=False)
    metrics = [name for name in columns if name in table]
    texts = (
        of[metrics]
        .agg(lambda values: mean(values, digits, bounds))
        .rename(columns=dict(columns))
    )
    return of.size().to_frame("seeds").join(texts)


def select(
    records: Iterable[Record], experiment: str, scale: str | None = None, **where: object
) -> list[Record]:
    """Select the records of an experiment, at one scale, by values of their configuration."""
    found = (
        r
        for r in records
        if r.trial.experiment == experiment and scale in (None, r.trial.scale)
    )
    return [r for r in found if matches(r.config, where)]


def best(records: Iterable[Record], experiment: str, **where: object) -> list[Record]:
    """The records of an experiment that a figure shows: of the scale with most, and of smoke
    scale only where there is no other.
    """
    found = list({r.key: r for r in select(records, experiment, **where)}.values())
    scales = Counter(r.trial.scale for r in found if r.trial.scale != "smoke")
    return select(found, experiment, max(scales, key=scales.__getitem__, default="smoke"))


def standing(records: Sequence[Record]) -> str:
    """Which records a figure shows and how their data differ from the originals, as Markdown."""
    names = {r.config["data"] for r in records if r.config.get("data")}
    sets = ", ".join(sorted(map(plain, names)))
    scales = ", ".join(sorted({r.trial.scale for r in records}))
    notes = sorted(
        {
            plain(text)
            for r in records
            for seen in r.data
            for text in seen.deviations
            if not seen.stand_in
        }
    )
    smoke = (
        ["These networks trained for seconds on a stand-in; they decide nothing."]
        if scales == "smoke"
        else []
    )
    count = plural(len(records), "record")
    return " ".join(
        [
            f"Shown: {count} on {sets} at {scales} scale.",
            *(f"The data: {n}." for n in notes),
            *smoke,
        ]
    )


def say(*texts: str) -> None:
    """Show texts as Markdown, without the sentences in which a number is missing."""
    from IPython.display import Markdown, display

    shown = [whole(sentences(text)) for text in texts]
    display(Markdown(" ".join(filter(None, shown))))


def shown_are(records: Iterable[Record]) -> str:
    """Scale and seeds of what a figure shows: ``cpu scale, 3 seeds``."""
    scales, n = sorted({r.trial.scale for r in records}), len({r.trial.seed for r in records})
    return f"{', '.join(scales)} scale, {plural(n, 'seed')}"


def configuration(
    experiment: Experiment,
    arm: Sequence[str] = (),
    more: Mapping[str, Arm] = {},
    shown: Sequence[str] = (),
) -> DataFrame:
    """Return the configuration of each scale beside the paper's own setting.

    Fields in which the arms of the paper differ are left out but for those in ``shown``, and
    those named in ``arm``, and what every scale leaves None, off or empty. ``more`` adds
    columns, named by their scale and what they are: ``cpu, smaller copy``.
    """
    import pandas as pd

    columns = {scale: next(iter(experiment.at(scale).values())) for scale in SCALES}
    columns |= more
    ordered = sorted(columns, key=lambda name: -SCALES.index(name.partition(",")[0]))
    values = {name: columns[name].values() for name in ordered}
    hidden = {*arm, *(experiment.varied - set(shown))}
    fields = []
    for field in values[ordered[0]]:
        if field not in hidden and {v[field] for v in values.values()} - {None, False, ()}:
            fields.append(field)
    titles = columns[ordered[0]].titles()
    table = pd.DataFrame(
        {name: [text(values[name][field]) for field in fields] for name in ordered},
        index=[titles[field] for field in fields],
    )
    table.loc["seeds"] = [
        str(len(experiment.seeds[name.partition(",")[0]])) for name in ordered
    ]
    return table.rename_axis("setting")


def text(value: object) -> str:
    """A value of a configuration or a record for readers: numbers as one would write them,
    lists in their order.
    """
    if value is None or isinstance(value, bool):
        return {None: "–", True: "yes", False: "no"}[value]
    if isinstance(value, float):
        return raised(f"{value + 0.0:g}")  # and no negative zero
    return " · ".join(map(text, value)) if isinstance(value, list | tuple) else str(value)


def deviations(records: Iterable[Record]) -> DataFrame:
    """Each difference from the paper, as the ledger says it today, and what only the records
    name, with the scales at which it holds.
    """
    import pandas as pd

    found: dict[tuple[str, str, str], tuple[str, set[str]]] = {}
    for trial, told in ((record.trial, record.deviations) for record in records):
        place = (
            (trial.paper, trial.experiment, papers.arm(trial)) if papers.known(trial) else None
        )
        known = (
            ledger_of(*place, everywhere=True) if place else []
        )  # also what was narrowed or said anew since the record
        for d in [*(d for d in told if d not in known), *(ledger_of(*place) if place else [])]:
            found[d.what, d.paper, d.ours] = (
                d.why,
                found.get((d.what, d.paper, d.ours), ("", set()))[1] | {trial.scale},
            )
    rows = [
        (*row, why, ", ".join(s for s in SCALES if s in scales))
        for row, (why, scales) in found.items()
    ]
    return pd.DataFrame(rows, columns=["what", "paper", "here", "why", "scale"])


def costs(records: Iterable[Record]) -> DataFrame:
    """The number, wall time and memory of the recorded trials, by experiment, scale and device."""
    import pandas as pd

    rows = [
        (
            r.trial.experiment,
            r.trial.scale,
            r.environment.device,
            r.wall_seconds,
            r.peak_memory_bytes,
        )
        for r in records
    ]
    table = pd.DataFrame(rows, columns=["experiment", "scale", "device", "seconds", "memory"])
    columns = {
        "trials": ("seconds", "size"),
        "median seconds": ("seconds", lambda seconds: round(seconds.median())),
        "minutes in all": ("seconds", lambda seconds: seconds.sum() / 60),
        "MiB at most": ("memory", lambda memory: round(memory.max() / 2**20)),
    }
    return table.groupby(["experiment", "scale", "device"], as_index=False).agg(**columns)
