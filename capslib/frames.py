"""Records as pandas tables, for figures and for the tables of a chapter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from capslib.statistics import interval
from capslib.trials import SCALES, Experiment, Record

if TYPE_CHECKING:
    from pandas import DataFrame, Series


def metrics(records: Iterable[Record]) -> DataFrame:
    """One row a record: configuration, seed, scale, exit, parameters, and every metric by name."""
    import pandas as pd

    return pd.DataFrame(
        {
            **r.trial.config,
            "parameters": r.parameters,
            **{name: m.value for name, m in r.metrics.items()},
            "seed": r.trial.seed,
            "scale": r.trial.scale,
            "exit": r.exit,
            "key": r.key,
        }
        for r in records
    )


def means(table: DataFrame, by: str | list[str], columns: Mapping[str, str], digits: int = 1) -> DataFrame:
    """Of each group of :func:`metrics`: how many seeds, and as text the mean and the 95 % interval of metrics, named by ``columns``.

    A metric that no record of a group has is a dash there, and no column where no group has it.
    """

    def text(values: Series) -> str:
        values = values.dropna()
        found = interval(values)
        between = "" if found is None else f" [{found[0]:.{digits}f}, {found[1]:.{digits}f}]"
        return f"{values.mean():.{digits}f}{between}".replace(" ", "\N{NO-BREAK SPACE}") if len(values) else "–"

    of = table.groupby(by, sort=False)
    metrics = [name for name in columns if name in table]
    return of.size().to_frame("seeds").join(of[metrics].agg(text).rename(columns=dict(columns)))


def curves(records: Iterable[Record], x: str, y: str) -> DataFrame:
    """One row a point: the series ``y`` over the series ``x``, with configuration and seed."""
    import pandas as pd

    parts = []
    for r in records:
        if y in r.series:
            arm = {k: str(v) if isinstance(v, list) else v for k, v in r.trial.config.items() if k not in (x, y)}
            parts.append(pd.DataFrame({x: r.series[x], y: r.series[y]}).assign(**arm, seed=r.trial.seed, key=r.key))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def select(records: Iterable[Record], experiment: str, scale: str | None = None, **where: object) -> list[Record]:
    """The records of an experiment, at one scale, whose configuration has these values."""
    return [
        r
        for r in records
        if r.trial.experiment == experiment
        and (scale is None or r.trial.scale == scale)
        and all(r.trial.config.get(k) == v for k, v in where.items())
    ]


def configuration(experiment: Experiment, arm: Sequence[str] = ()) -> DataFrame:
    """What each scale runs with, beside the paper's own setting; fields in ``arm`` tell the configurations apart and stay out."""
    import pandas as pd

    first = {scale: experiment.grid(scale)[0] for scale in reversed(SCALES)}
    fields = [name for name in experiment.config.model_fields if name not in arm]
    table = pd.DataFrame(
        {f"{scale}": [_plain(getattr(config, name)) for name in fields] for scale, config in first.items()},
        index=[experiment.config.model_fields[name].title or name for name in fields],
    )
    table.loc["seeds"] = [str(len(experiment.seeds[scale])) for scale in first]
    return table.rename_axis("setting")


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " · ".join(map(str, value)) if isinstance(value, tuple) else f"{value:g}" if isinstance(value, float) else str(value)


def deviations(records: Iterable[Record]) -> DataFrame:
    """Every difference from the paper that the records name, once, with the scales it holds at."""
    import pandas as pd

    found: dict[tuple[str, str, str, str], set[str]] = {}
    for record in records:
        for d in record.deviations:
            found.setdefault((d.what, d.paper, d.ours, d.why), set()).add(record.trial.scale)
    rows = [(*row, ", ".join(s for s in SCALES if s in scales)) for row, scales in found.items()]
    return pd.DataFrame(rows, columns=["what", "paper", "here", "why", "scale"])


def costs(records: Iterable[Record]) -> DataFrame:
    """What the recorded trials took: number, wall time and memory, by experiment, scale and device."""
    import pandas as pd

    table = pd.DataFrame(
        {
            "experiment": r.trial.experiment,
            "scale": r.trial.scale,
            "device": r.environment.device,
            "seconds": r.wall_seconds,
            "memory": r.peak_memory_bytes / 2**20,
        }
        for r in records
    )
    if table.empty:
        return table
    of = table.groupby(["experiment", "scale", "device"])
    columns = {
        "trials": of["seconds"].size(),
        "seconds each": of["seconds"].median().round(),
        "minutes in all": (of["seconds"].sum() / 60).round(1),
        "MiB at most": of["memory"].max().round(),
    }
    return pd.DataFrame(columns).reset_index()
