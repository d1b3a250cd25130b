"""Every run as a page to read, the list of them, and the claims as CSV."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from capsbook.book import page_of
from capsbook.render import TEMPLATES, draw, words
from capslib.lab import claims, frames, progress
from capslib.lab.ledger import plural
from capslib.lab.records import ABSCISSAS, LISTS

if TYPE_CHECKING:
    from capsbook.evidence import Run
    from capslib.lab.records import Record
    from capslib.lab.words import Verdict


class Curve(NamedTuple):
    """A series as a small drawing: its range at the left, its abscissa below."""

    name: str
    abscissa: str
    label: str
    points: str
    start: float
    end: float
    low: float
    high: float


def curve(name: str, x: Sequence[float], y: Sequence[float], abscissa: str) -> Curve | None:
    """Return the curve of a series; None for fewer than two points that are finite."""
    points = []
    for point in zip(x, y, strict=True):
        if all(map(math.isfinite, point)):
            points.append(point)
    if len(points) < 2:
        return None
    xs, ys = zip(*points, strict=True)
    start, end, low, high = min(xs), max(xs), min(ys), max(ys)
    places = []
    for position, value in points:
        across = 56 + 180 * (position - start) / (end - start or 1)
        down = 78 - 66 * (value - low) / (high - low or 1)
        places.append(f"{across:.1f},{down:.1f}")
    name, abscissa = words(name), words(abscissa)
    ends, between = f"from {ys[0]:.4g} to {ys[-1]:.4g}", f"between {low:.4g} and {high:.4g}"
    label = f"{name} over {abscissa}: {ends}, {between}"
    return Curve(name, abscissa, label, " ".join(places), start, end, low, high)


def curves(series: Mapping[str, Sequence[float]]) -> list[Curve]:
    """Return the curves of a record, each over the first abscissa that has as many points."""
    drawn = []
    for name, values in series.items():
        if name in ABSCISSAS or name.startswith(LISTS):
            continue
        abscissa, places = "position", range(1, len(values) + 1)
        for candidate in reversed(ABSCISSAS):
            if len(series.get(candidate, ())) == len(values):
                abscissa, places = candidate, series[candidate]
        drawn.append(curve(name, places, values, abscissa))
    return [line for line in drawn if line]


def page(record: Record, users: Sequence[Verdict], up: str, file: str) -> str:
    """Return the page of a record.

    ``users`` are the verdicts that rest on it, ``up`` leads to the root of the site, ``file``
    to the JSON file.
    """
    trial = record.trial
    name = f"{words(trial.experiment)}, seed {trial.seed}"
    defaults = {
        name: value for name, value in record.config.items() if name not in trial.config
    }
    metrics = [
        (words(name), frames.text(metric.value), metric.n, metric.unit)
        for name, metric in record.metrics.items()
    ]
    deviations = [(d.what, d.paper, d.ours, d.why) for d in record.deviations]
    data = []
    for seen in record.data:
        kind = "stand-in" if seen.stand_in else "real"
        differences = "; ".join(seen.deviations) or "–"
        data.append((seen.name, seen.sha256[:12], kind, differences))
    return draw(
        "record",
        record=record,
        users=users,
        up=up,
        file=file,
        title=name[:1].upper() + name[1:],
        metrics=metrics,
        curves=curves(record.series),
        settings=_texts(trial.config),
        defaults=_texts(defaults),
        deviations=deviations,
        data=data,
        circumstances=_circumstances(record),
    )


def _texts(fields: Mapping[str, object]) -> list[tuple[str, str]]:
    return [(name, frames.text(value)) for name, value in fields.items()]


def _circumstances(record: Record) -> dict[str, str]:
    """Return how, when and where a record came about."""
    machine, code = record.environment, record.code
    ended = record.exit
    if record.message:
        ended += f": {record.message}"
    revision = f"revision {code.revision or 'unknown'}"
    if code.dirty:
        revision += " with uncommitted changes"
    minute = "%Y-%m-%d %H:%M"
    times = f"{record.started:{minute}} to {record.finished:{minute}}"
    threads = plural(machine.threads, "thread")
    memory = f"{record.peak_memory_bytes / 2**20:,.0f} MiB"
    versions = f"Python {machine.python}, torch {machine.torch}"
    return {
        "ended": ended,
        "ran": f"{times}, {record.wall_seconds:,.0f} s",
        "taken up again at": frames.text(record.resumed_from) or "never",
        "machine": f"{machine.device}, {threads}, {memory}",
        "software": f"{versions}, routing path {record.routing_path}",
        "code": revision,
        "trainable parameters": f"{record.parameters:,}",
    }


Arms = dict[str, list["Run"]]


def grouped(runs: Iterable[Run]) -> dict[str, dict[tuple[str, str], Arms]]:
    """Return runs by paper, experiment and scale, and configuration."""
    papers: dict[str, dict[tuple[str, str], Arms]] = {}
    for run in sorted(runs, key=_place):
        trial = run.trial
        experiments = papers.setdefault(trial.paper, {})
        arms = experiments.setdefault((trial.experiment, trial.scale), {})
        fields = _texts(dict(sorted(trial.config.items())))
        arm = ", ".join(f"{name} = {text}" for name, text in fields)
        arms.setdefault(arm or "as the paper", []).append(run)
    return papers


def _place(run: Run) -> tuple:
    trial = run.trial
    config = json.dumps(trial.config, sort_keys=True)
    return trial.experiment, trial.scale, config, trial.seed


TEMPLATES.globals.update(grouped=grouped, duration=progress.duration, page_of=page_of)


def claims_csv(verdicts: Iterable[Verdict]) -> str:
    """Return every claim as a line of CSV: its row of ``capslib claims``, reason and
    records."""
    file = io.StringIO()
    lines = csv.writer(file, lineterminator="\n")
    lines.writerow(["paper", *claims.COLUMNS, "Place", "Statement", "Reason", "Records"])
    for verdict in verdicts:
        claim = verdict.claim
        cells = [claim.paper, *claims.row(verdict), claim.where, claim.statement]
        cells += [verdict.reason, " ".join(verdict.records)]
        lines.writerow([_no_formula(cell) for cell in cells])
    return file.getvalue()


def _no_formula(cell: str) -> str:
    """Quote what a spreadsheet would run as a formula."""
    return f"'{cell}" if re.match(r"[=+\-@](?!\d)", cell) else cell
