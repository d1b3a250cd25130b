"""Records as pandas tables, for figures and for the tables of a chapter."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from numbers import Number
from typing import TYPE_CHECKING

from capslib.config import matches
from capslib.lab.ledger import grouped, plural, raised
from capslib.lab.ledger.deviations import deviations_of
from capslib.lab.records import Record
from capslib.lab.statistics import Bounds, interval
from capslib.lab.words import SIZES
from capslib.papers.experiment import SCALES, Arm, Deviation, Experiment, Scale, Trial
from capslib.papers.names import in_words

if TYPE_CHECKING:
    from pandas import DataFrame
    from pandas.io.formats.style import Styler

MISSING = "–"
"""Stands in a table where there is no number."""

# ---------------------------------------------------------------------- records and numbers


def select(
    records: Iterable[Record], experiment: str, scale: str | None = None, **where: object
) -> list[Record]:
    """Return the records of an experiment, at one scale, with these fields."""
    selected = []
    for record in records:
        trial = record.trial
        if trial.experiment != experiment or scale not in (None, trial.scale):
            continue
        if matches(record.config, where):
            selected.append(record)
    return selected


def best(records: Iterable[Record], experiment: str, **where: object) -> list[Record]:
    """Return the records of an experiment that a figure shows, each once.

    They are those of the scale with most. Smoke scale is shown only where there is no other.
    """
    by_key = {record.key: record for record in select(records, experiment, **where)}
    counts = Counter(record.trial.scale for record in by_key.values())
    del counts["smoke"]
    scale = max(counts, key=counts.__getitem__, default="smoke")
    return select(by_key.values(), experiment, scale)


def metrics(records: Iterable[Record]) -> DataFrame:
    """Return a table with a row for each record.

    Its columns are the fields of the configuration, ``parameters``, the metrics by name,
    ``seed``, ``scale``, ``exit`` and ``key``. A metric takes the place of a field of its name.
    """
    import pandas as pd

    rows = []
    for record in records:
        row = {**record.config, "parameters": record.parameters}
        for name, metric in record.metrics.items():
            row[name] = metric.value
        row["seed"] = record.trial.seed
        row["scale"] = record.trial.scale
        row["exit"] = record.exit
        row["key"] = record.key
        rows.append(row)
    return pd.DataFrame(rows)


def values(records: Iterable[Record], metric: str) -> list[float]:
    """Return what the records that have a metric measured, in their order."""
    return [record.metrics[metric].value for record in records if metric in record.metrics]


def mean(values: Iterable[float], digits: int = 1, bounds: Bounds | None = (0, 100)) -> str:
    """Return the mean of the values that are no NaN, as text, or a dash.

    Its 95 % interval follows where values differ; ``bounds`` are what no mean can leave.
    """
    numbers = [number for number in map(float, values) if not math.isnan(number)]
    if not numbers:
        return MISSING
    text = f"{sum(numbers) / len(numbers):z.{digits}f}"
    ends = interval(numbers, bounds)
    if ends is not None and len(set(numbers)) > 1:
        low, high = ends
        text += f" [{low:z.{digits}f}, {high:z.{digits}f}]"
    return text.replace(" ", "\N{NO-BREAK SPACE}").replace("-", "−")


def costs(records: Iterable[Record]) -> DataFrame:
    """Return the number, wall time and memory of the recorded trials.

    There is a row for each experiment, scale and device.
    """
    import pandas as pd

    rows = []
    for record in records:
        trial, device = record.trial, record.environment.device
        group = (trial.experiment, trial.scale, device)
        rows.append((*group, record.wall_seconds, record.peak_memory_bytes))
    table = pd.DataFrame(rows, columns=["experiment", "scale", "device", "seconds", "memory"])
    columns = {
        "trials": ("seconds", "size"),
        "median seconds": ("seconds", lambda seconds: round(seconds.median())),
        "minutes in all": ("seconds", lambda seconds: seconds.sum() / 60),
        "MiB at most": ("memory", lambda memory: round(memory.max() / 2**20)),
    }
    return table.groupby(["experiment", "scale", "device"], as_index=False).agg(**columns)


def configuration(
    experiment: Experiment,
    hidden: Sequence[str] = (),
    more: Mapping[tuple[Scale, str], Arm] = {},
    shown: Sequence[str] = (),
) -> DataFrame:
    """Return the configuration of each scale beside the paper's own setting.

    Leave out fields that no scale sets, those in ``hidden``, and those in which the paper's
    arms differ, unless ``shown`` names them. ``more`` adds columns by their scale and what they
    are: ``("cpu", "smaller copy")``.
    """
    import pandas as pd

    arms = {(scale,): next(iter(experiment.at(scale).values())) for scale in SCALES}
    arms |= more
    columns = sorted(arms, key=lambda column: -SCALES.index(column[0]))
    settings = [arms[column].values() for column in columns]
    titles = arms[columns[0]].titles()
    left_out = {*hidden, *(experiment.varied - set(shown))}
    names, rows = [], []
    for field in settings[0]:
        cells = [values[field] for values in settings]
        if field not in left_out and set(cells) - {None, False, ()}:
            names.append(titles[field])
            rows.append([text(cell) for cell in cells])
    names.append("seeds")
    rows.append([str(len(experiment.seeds[column[0]])) for column in columns])
    return pd.DataFrame(rows, names, map(", ".join, columns)).rename_axis("setting")


def deviations(records: Iterable[Record]) -> DataFrame:
    """Return each difference from the paper, with the experiments and scales that have it.

    A difference that the ledger has is worded as it is there today.
    """
    import pandas as pd

    reasons: dict[tuple[str, str, str], str] = {}
    trials: dict[tuple[str, str, str], list[Trial]] = {}
    for record in records:
        for deviation in _today(record):
            difference = (deviation.what, deviation.paper, deviation.ours)
            reasons[difference] = deviation.why
            trials.setdefault(difference, []).append(record.trial)
    rows = []
    for difference, reason in reasons.items():
        experiments = dict.fromkeys(trial.experiment for trial in trials[difference])
        scales = {trial.scale for trial in trials[difference]}
        where = (
            ", ".join(map(in_words, experiments)),
            ", ".join(scale for scale in SCALES if scale in scales),
        )
        rows.append((*map(grouped, difference), reason, *where))
    columns = ["what", "paper", "here", "why", "experiment", "scale"]
    return pd.DataFrame(rows, columns=columns)


def _today(record: Record) -> list[Deviation]:
    """Return the deviations of a record, those of the ledger in today's words."""
    # The ledger may have narrowed a row, or said it anew, since the record was written.
    ledger = deviations_of(record.trial, everywhere=True)
    unknown = [deviation for deviation in record.deviations if deviation not in ledger]
    return [*unknown, *deviations_of(record.trial)]


# ----------------------------------------------------------------------- tables on a page


def styled(table: DataFrame, digits: int = 6) -> Styler:
    """Return a table for a page: thousands with commas, fractions with ``digits`` decimals.

    Pandas' own numbers of rows are hidden, and every text is escaped: a record may come from
    anybody, and pandas escapes nothing.
    """
    has_row_numbers = table.index.name is None and table.index.dtype.kind == "i"
    table = table.map(_escaped).rename(index=_escaped, columns=_escaped)
    table = table.rename_axis(index=_escaped, columns=_escaped)
    if table.index.name and table.columns.nlevels == 1 and not table.columns.name:
        # It stands in one row with the names of columns.
        table = table.rename_axis(index=None, columns=table.index.name)
    style = table.style.format(precision=digits, thousands=",")
    return style.hide(axis="index") if has_row_numbers else style


def _escaped(cell: object) -> object:
    if cell is None or isinstance(cell, Number):
        return cell
    return escape(str(cell))


def table(rows: Mapping | Sequence[Sequence], columns: Sequence[str], *names: str) -> Styler:
    """Return a table of rows for a page.

    A mapping gives rows names, by a tuple where there are several ``names`` of them.
    """
    from pandas import DataFrame, Index

    if not isinstance(rows, Mapping):
        return styled(DataFrame(rows, columns=columns))
    table = DataFrame(list(rows.values()), Index(list(rows)), columns)
    return styled(table.rename_axis(index=list(names)) if names else table)


# -------------------------------------------------------------------- text around a figure


def text(value: object) -> str:
    """Return a value of a configuration or a record as one would write it."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return raised(f"{value:zg}")
    if isinstance(value, list | tuple):
        return " · ".join(map(text, value))
    return grouped(str(value))


def shown_are(records: Iterable[Record]) -> str:
    """Return size and number of seeds of what a figure shows: ``small networks, 3 seeds``."""
    trials = [record.trial for record in records]
    sizes = sorted({SIZES[trial.scale] for trial in trials})
    seeds = {trial.seed for trial in trials}
    return f"{', '.join(sizes)}, {plural(len(seeds), 'seed')}"


def say(text: str) -> None:
    """Show a text as Markdown."""
    from IPython.display import Markdown, display

    display(Markdown(text))
