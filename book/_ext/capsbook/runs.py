"""Every run as a page to read, the list of them, and the claims as files for other programs: text from records, always escaped."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from capsbook.render import mark, plain_table, tag
from capslib.lab import claims, frames, progress
from capslib.lab.ledger import plural
from capslib.lab.records import ABSCISSAS, LISTS
from capslib.papers import PAPERS

if TYPE_CHECKING:
    from capslib.lab.records import Record
    from capslib.lab.words import Verdict


def _name(of: str) -> str:
    """What a metric, a series or an experiment is called where nothing says it better."""
    return escape(of.replace("_", " "))


def _fold(summary: str, inside: str, open_: bool = False) -> str:
    return (
        tag("details", tag("summary", summary) + inside, open="" if open_ else None)
        if inside
        else ""
    )


def curve(name: str, x: Sequence[float], y: Sequence[float], over: str) -> str:
    """A series as a small drawing: its range at the left, its abscissa below. Points without a number are left out."""
    points = [
        (a, b)
        for a, b in zip(x, y, strict=True)
        if abs(b) < float("inf") and abs(a) < float("inf")
    ]
    if len(points) < 2:
        return ""
    (left, right), (low, high) = ((min(of), max(of)) for of in zip(*points, strict=True))
    at = " ".join(
        f"{56 + 180 * (a - left) / (right - left or 1):.1f},{78 - 66 * (b - low) / (high - low or 1):.1f}"
        for a, b in points
    )
    name, over = name.replace("_", " "), over.replace("_", " ")
    said = f"{name} over {over}: from {points[0][1]:.4g} to {points[-1][1]:.4g}, between {low:.4g} and {high:.4g}"
    drawn = (
        f'<polyline points="{at}"/><path d="M56 8V82H240"/><text x="50" y="16">{high:.3g}</text><text x="50" y="82">{low:.3g}</text>'
        f'<text x="56" y="96" class="left">{left:.4g}</text><text x="240" y="96">{escape(over)} {right:.4g}</text>'
    )
    picture = tag("svg", drawn, viewBox="0 0 248 100", role="img", aria_label=said)
    return tag("figure", picture + tag("figcaption", _name(name)), class_="run-curve")


def _curves(series: Mapping[str, list[float]]) -> str:
    found = []
    for name, values in series.items():
        over = next(
            (a for a in ABSCISSAS if a in series and len(series[a]) == len(values)), None
        )
        if name not in ABSCISSAS and not name.startswith(LISTS):
            found.append(
                curve(
                    name,
                    series[over] if over else range(1, len(values) + 1),
                    values,
                    over or "position",
                )
            )
    shown, rest = found[:12], found[12:]
    more = (
        _fold(f"{len(rest)} more series", tag("div", "".join(rest), class_="run-curves"))
        if rest
        else ""
    )
    return (tag("div", "".join(shown), class_="run-curves") if any(shown) else "") + more


def page(record: Record, used_by: Iterable[Verdict], up: str, file: str) -> str:
    """One record as an HTML page of its own. ``up`` leads to the root of the site, ``file`` to the JSON file."""
    trial, code, at = record.trial, record.code, record.environment
    known = PAPERS.get(trial.paper)
    name = f"{trial.experiment.replace('_', ' ')}, seed {trial.seed}"
    users = "".join(
        tag(
            "li",
            f"{mark(v.status, v.group)} {tag('a', tag('code', v.claim.id), href=f'{up}book/scorecard.html#claim-{v.claim.id}')} {escape(v.claim.statement)}",
        )
        for v in used_by
    )
    differs = [
        (tag("code", escape(k)), escape(frames.text(v))) for k, v in trial.config.items()
    ]
    others = [
        (tag("code", escape(k)), escape(frames.text(v)))
        for k, v in record.config.items()
        if k not in trial.config
    ]
    about = {
        "ended": f"{escape(record.exit)}{': ' + escape(record.message) if record.message else ''}",
        "ran": f"{record.started:%Y-%m-%d %H:%M} to {record.finished:%Y-%m-%d %H:%M}, {record.wall_seconds:,.0f} s",
        "taken up again at": frames.text(record.resumed_from) or "never",
        "machine": f"{escape(at.device)}, {plural(at.threads, 'thread')}, {record.peak_memory_bytes / 2**20:,.0f} MiB",
        "software": f"Python {escape(at.python)}, torch {escape(at.torch)}, routing path {escape(record.routing_path)}",
        "code": f"revision {tag('code', escape(code.revision or 'unknown'))}{' with uncommitted changes' if code.dirty else ''}",
        "trainable parameters": f"{record.parameters:,}",
    }
    measured = (
        (_name(k), frames.text(m.value), str(m.n), escape(m.unit))
        for k, m in record.metrics.items()
    )
    data = (
        (
            escape(d.name),
            tag("code", escape(d.sha256[:12])),
            "stand-in" if d.stand_in else "real",
            escape("; ".join(d.deviations)) or "–",
        )
        for d in record.data
    )
    deviations = (
        tuple(escape(t) for t in (d.what, d.paper, d.ours, d.why)) for d in record.deviations
    )
    parts = (
        tag(
            "p",
            f"{escape(known.title if known else trial.paper)} · {escape(trial.scale)} scale · record {tag('code', escape(record.key))} · {tag('a', 'JSON', href=file)} · {tag('a', 'all runs', href=f'{up}book/records.html#runs')}",
            class_="run-of",
        ),
        tag("h2", "Claims that rest on this run") + tag("ul", users, class_="run-claims")
        if users
        else tag("p", "No claim rests on this run."),
        tag("h2", "Measured")
        + plain_table(("metric", "value", "n", "unit"), measured)
        + _curves(record.series),
        tag("h2", "Configuration")
        + (
            plain_table(("option that differs from its default", "value"), differs)
            if differs
            else ""
        ),
        _fold(
            f"{len(others)} options with their defaults",
            plain_table(("option", "value"), others) if others else "",
        ),
        (
            tag("h2", "Deviations from the paper")
            + plain_table(("what", "paper", "here", "why"), deviations)
        )
        if record.deviations
        else "",
        (tag("h2", "Data") + plain_table(("set", "SHA-256", "kind", "how it differs"), data))
        if record.data
        else "",
        tag("h2", "Run") + plain_table(("", "this run"), ((k, v) for k, v in about.items())),
    )
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(name)} · Capsules, reproduced</title>'
        f'<link rel="stylesheet" href="{up}_static/capsules.css"><script src="{up}_static/run.js"></script>'
    )
    inside = f'<main class="bd-article run">{tag("h1", escape(name[:1].upper() + name[1:]))}{"".join(parts)}</main>'
    return f'<!doctype html>\n<html lang="en" data-theme="light"><head>{head}</head><body class="run-page">{inside}</body></html>\n'


def listing(records: Mapping[str, Sequence[Record]], href: Mapping[str, str]) -> str:
    """All runs: a fold for each experiment and scale, a row for each configuration, a link for each seed."""
    shown = []
    for stem, found in records.items():
        groups: dict[tuple[str, str], list[Record]] = {}
        for r in found:
            groups.setdefault((r.trial.experiment, r.trial.scale), []).append(r)
        folds = []
        for (experiment, scale), runs in sorted(groups.items()):
            arms: dict[str, list[Record]] = {}
            for r in sorted(
                runs, key=lambda r: (json.dumps(r.trial.config, sort_keys=True), r.trial.seed)
            ):
                arm = ", ".join(
                    f"{escape(k)} = {escape(frames.text(v))}"
                    for k, v in sorted(r.trial.config.items())
                )
                arms.setdefault(arm or "as the paper", []).append(r)
            rows = [
                (
                    arm,
                    " ".join(
                        tag(
                            "a",
                            f"{r.trial.seed}{'' if r.exit == 'ok' else ' ' + escape(r.exit)}",
                            href=href[r.key],
                            class_="run-seed",
                        )
                        for r in of
                    ),
                )
                for arm, of in arms.items()
            ]
            took = progress.duration(sum(r.wall_seconds for r in runs))
            said = f"{_name(experiment)}, {escape(scale)} scale: {plural(len(runs), 'run')}, {took}"
            folds.append(
                _fold(
                    said,
                    plain_table(("options that differ from their defaults", "seeds"), rows),
                )
            )
        title = escape(PAPERS[stem].title)
        shown.append(
            tag("h3", title)
            + (
                tag("div", "".join(folds), class_="run-list")
                if folds
                else tag("p", "No runs yet.")
            )
        )
    return "".join(shown)


def claims_csv(found: Iterable[Verdict]) -> str:
    """Every claim as a line of CSV: the columns of ``capslib claims``, its statement, its reason and its records."""
    file = io.StringIO()
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(["paper", *claims.COLUMNS, "Place", "Statement", "Reason", "Records"])
    for v in found:
        row = (
            v.claim.paper,
            *claims.row(v),
            v.claim.where,
            v.claim.statement,
            v.reason,
            " ".join(v.records),
        )
        rows.writerow(
            f"'{cell}" if re.match(r"[=+\-@](?!\d)", cell) else cell for cell in row
        )  # a spreadsheet would run it
    return file.getvalue()
