"""Evidence as HTML: pure functions from :class:`Evidence` to text. ``links`` knows the addresses on the current page."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from capsbook.evidence import GLYPHS, Evidence
from capslib.lab import frames
from capslib.lab.claims import GROUPS, STATUSES, basis, describe, number, ours, theirs
from capslib.papers import PAPERS

if TYPE_CHECKING:
    from capsbook.directives import PageLinks as Links
    from capslib.lab.claims import Verdict

FOLD = 200
"""The front page shows a paper with more claims than this as one tile per table, instead of one square per claim."""


def _slug(status: str) -> str:
    return status.replace(" ", "-")


def _tag(name: str, content: str = "", /, **attributes: object) -> str:
    """An HTML element. ``class_`` and ``data_tip`` stand for ``class`` and ``data-tip``; an attribute of None is left out."""
    pairs = ((k.rstrip("_").replace("_", "-"), v) for k, v in attributes.items() if v is not None)
    written = "".join(f' {key}="{escape(str(value))}"' for key, value in pairs)
    return f"<{name}{written}>{content}</{name}>"


def _link(href: str | None, content: str, /, **attributes: object) -> str:
    return _tag("a", content, href=href, **attributes) if href else _tag("span", content, **attributes)


def plural(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


def mark(status: str) -> str:
    """The square of a verdict for tables and legends, without a link. The word beside it says the same."""
    return _tag("span", GLYPHS[status], class_=f"vq v-{_slug(status)}", aria_hidden="true")


def square(verdict: Verdict, links: Links) -> str:
    """The square of a verdict. It links to the verdict's row, and describes the verdict on hover and focus."""
    text = describe(verdict)
    return _link(
        links.row(verdict.claim.id),
        GLYPHS[verdict.status],
        class_=f"vq v-{_slug(verdict.status)}",
        data_tip=text,
        aria_label=text,
    )


def strip(verdicts: Iterable[Verdict], links: Links, label: str) -> str:
    """One square per claim: what was run first, then what waits, word by word, in groups that stand apart."""
    found = list(verdicts)
    of = ([square(v, links) for word in words for v in found if v.status == word] for words in GROUPS.values())
    groups = (_tag("span", "".join(squares), class_="verdict-group") for squares in of if squares)
    return _tag("div", "".join(groups), class_="verdict-strip", role="group", aria_label=label)


def bar(verdicts: Sequence[Verdict]) -> str:
    """A stacked bar of how many claims have each verdict; groups stand apart."""
    found = [(status, sum(v.status == status for v in verdicts)) for status in STATUSES]
    parts = [_tag("span", class_=f"v-{_slug(s)}", style=f"flex-grow:{n}") for s, n in found if n]
    said = ", ".join(f"{n} {s}" for s, n in found if n)
    return _tag("span", "".join(parts), class_="verdict-bar", role="img", aria_label=said)


def totals(verdicts: Sequence[Verdict], every: bool = True) -> str:
    """A line per group of verdicts, each word with its square and its count; ``every``: also those that count nothing."""
    lines = []
    for group, words in GROUPS.items():
        counts = {status: sum(v.status == status for v in verdicts) for status in words}
        items = (f"{mark(s)} {s} {_tag('b', str(n))}" for s, n in counts.items() if n or every)
        if inside := "".join(_tag("li", item) for item in items):
            lines.append(_tag("div", _tag("span", group, class_="group-name") + _tag("ul", inside), class_="verdict-line"))
    return _tag("div", "".join(lines), class_="verdict-legend")


def legend(verdicts: Sequence[Verdict]) -> str:
    """Every verdict with its square and its count, group by group, and what the shapes say."""
    note = "Full squares: trained at the paper’s own size. Half-filled: a reduced setting, which contradicts nobody. Round: a theorem or a count. Groups are never added up."
    return totals(verdicts) + _tag("p", note, class_="verdict-note")


def matrix(evidence: Evidence, links: Links) -> str:
    """The front page's answer to *did it reproduce?*: the counts, then a row of squares per paper."""
    everything = evidence.of()
    rows = [_tag("div", bar(everything) + legend(everything), class_="verdict-totals")]
    for stem, paper in PAPERS.items():
        found = evidence.of(stem)
        name = _link(links.chapter(stem) or links.score(f"paper={stem}"), escape(paper.short), class_="matrix-name")
        if len(found) > FOLD:
            cells = _tag("div", _tiles(stem, found, links), class_="verdict-tiles")
            note = f"{len(found)} claims, folded by table"
        else:
            cells, note = strip(found, links, f"Verdicts on {paper.short}"), plural(len(found), "claim")
        rows.append(_tag("div", _tag("div", f"{name} {_tag('small', note)}") + cells, class_="matrix-row"))
    return _tag("div", "".join(rows), class_="verdict-matrix")


def _tiles(stem: str, verdicts: Sequence[Verdict], links: Links) -> str:
    tables: dict[str, list[Verdict]] = {}
    for v in verdicts:
        tables.setdefault(v.claim.where, []).append(v)
    return "".join(
        _link(
            links.score(f"paper={stem}&where={where}"),
            f"{_tag('span', escape(where))} {_tag('b', str(len(found)))}{bar(found)}",
            class_="verdict-tile",
        )
        for where, found in tables.items()
    )


def cards(evidence: Evidence, links: Links, pictures: dict[str, tuple[str, str]]) -> str:
    """A card per paper: its claim and its counts. ``pictures`` holds the address and alt text of each chapter's figure."""
    found = []
    for stem, paper in PAPERS.items():
        verdicts, chapter = evidence.of(stem), links.chapter(stem)
        source, alt = pictures.get(stem, ("", ""))
        picture = f'<img src="{escape(source)}" alt="{escape(alt)}">' if source else ""
        total = plural(len(verdicts), "claim")
        state = f"{total}{'' if chapter else '; chapter to come'}"
        found.append(
            _tag(
                "article",
                picture
                + _tag("h3", _link(chapter or links.score(f"paper={stem}"), escape(paper.title)))
                + _tag("p", f"{escape(paper.authors)}, {paper.year}", class_="card-by")
                + _tag("p", escape(paper.claim))
                + _tag("div", f"{bar(verdicts)} {state}{totals(verdicts, every=False) if chapter else ''}", class_="card-counts"),
                class_="chapter-card",
            )
        )
    return _tag("div", "".join(found), class_="chapter-cards")


def standing(evidence: Evidence, stem: str, scale: str = "") -> str:
    """``Its own cells ran at smoke scale. Verdicts from 20 records, the newest of 21 November 2026. 9 comparisons rest on …``"""
    built = f"Its own cells ran at {scale} scale. " if scale else ""
    paths = evidence.cited(stem)
    newest = evidence.newest(stem)
    if newest is None:
        return f"{built}No record decides a claim of this chapter yet."
    from_ = f"Verdicts from {plural(len(paths), 'record')}, the newest of {newest.day} {newest:%B %Y}."
    return f"{built}{from_} {frames.comparisons(evidence.of(stem))}"


# --------------------------------------------------------------------------------------------------------------- tables


def _records(verdict: Verdict, links: Links) -> str:
    found = [(key, href) for key in verdict.records if (href := links.record(key))]
    if not found:
        return ""
    files = "".join(_tag("li", _link(href, _tag("code", key))) for key, href in found)
    return _tag("details", _tag("summary", plural(len(found), "record")) + _tag("ul", files), class_="claim-records")


def _parts(verdict: Verdict) -> str:
    if not verdict.parts:
        return ""
    items = (f"{mark(p.status)} {escape(p.name)}: {p.status}. {escape(p.reason)}" for p in verdict.parts)
    inside = "".join(_tag("li", item) for item in items)
    return _tag("details", _tag("summary", plural(len(verdict.parts), "part")) + _tag("ul", inside), class_="claim-parts")


def _shares(verdict: Verdict, links: Links) -> str:
    if not verdict.shares:
        return ""
    items = "".join(_tag("li", _link(links.row(name), _tag("code", name))) for name in verdict.shares)
    said = f"shares runs with {plural(len(verdict.shares), 'claim')}"
    return _tag("details", _tag("summary", said) + _tag("ul", items), class_="claim-shares")


def row(verdict: Verdict, links: Links, anchor: str | None, chapter_link: bool = False, hours: float | None = None) -> str:
    """One claim as a table row. ``anchor`` is the id of the row on the page, ``hours`` what it waits for on one core."""
    claim = verdict.claim
    place = links.place(claim.id) if chapter_link else None
    notes = _tag("small", escape(claim.notes), class_="claim-notes") if claim.notes else ""
    derived = _tag("small", f"Derived data: {escape(verdict.derived)}.") if verdict.derived else ""
    cost = _tag("small", f"That is about {number(round(hours) or round(hours, 1))} hours of one CPU core.") if hours else ""
    cells = {
        "Claim": f"{_link(place, _tag('code', claim.id), class_='claim-id')} {_tag('span', escape(claim.statement))} {notes}",
        "Paper": _tag("span", escape(theirs(verdict))) + _tag("small", escape(claim.where)),
        "Ours": _tag("span", escape(ours(verdict))) + _tag("small", escape(basis(verdict))),
        "Verdict": _tag("span", f"{mark(verdict.status)} {verdict.status}", class_="claim-status")
        + _tag("small", escape(verdict.reason))
        + cost
        + derived
        + _parts(verdict)
        + _records(verdict, links)
        + _shares(verdict, links),
    }
    return _tag(
        "tr",
        "".join(_tag("td", text, data_label=name) for name, text in cells.items()),
        id=anchor,
        class_="claim",
        data_paper=claim.paper,
        data_status=verdict.status,
        data_kind=claim.kind,
        data_where=claim.where,
        data_scale=verdict.scale or "",
    )


def table(rows: Iterable[str], caption: str = "", class_: str = "", **attributes: object) -> str:
    head = "".join(_tag("th", name, scope="col") for name in ("Claim", "Paper", "Ours (95 % interval)", "Verdict"))
    title = _tag("caption", escape(caption)) if caption else ""
    body = f"{title}{_tag('thead', _tag('tr', head))}{_tag('tbody', ''.join(rows))}"
    return _tag("div", _tag("table", body, class_="claims", **attributes), class_=f"claims-wrap {class_}".strip())


def scorecard(evidence: Evidence, links: Links) -> str:
    """Every claim of every paper as a table. A script shows the filter; without scripts all rows are visible."""

    def menu(name: str, label: str, options: Iterable[tuple[str, str]]) -> str:
        inside = _tag("option", f"any {label.lower()}", value="") + "".join(
            _tag("option", escape(t), value=v) for v, t in options
        )
        return _tag("label", f"{label} {_tag('select', inside, name=name)}")

    wheres = dict.fromkeys(v.claim.where for v in evidence.of())
    filters = (
        menu("paper", "Paper", [(stem, p.short) for stem, p in PAPERS.items()])
        + menu("status", "Verdict", [(s, s) for s in STATUSES])
        + menu("kind", "Kind", [("value", "value"), ("order", "order"), ("property", "property")])
        + menu("scale", "Scale", [("paper", "paper"), ("cpu", "cpu")])
        + menu("where", "Place", [(w, w) for w in wheres])
        + _tag("label", 'Text <input type="search" name="text" placeholder="id, data set, words …">')
        + _tag("button", "Clear", type="reset")
        + _tag("output", "", class_="score-count", aria_live="polite")
    )
    rows = [row(v, links, f"claim-{v.claim.id}", True, evidence.hours.get(v.claim.id)) for v in evidence.of()]
    return _tag("form", filters, class_="score-filter", hidden="") + table(rows, class_="wide", id="scorecard-table")


def benchmarks(rows: Sequence[dict[str, str]]) -> list[str]:
    """The measurements of one machine and kind as lines of Markdown. Layers have a limit, whole training steps none.

    A table without the vector rate is from before benchmarks measured it. Vectors are never faster than matrix products, so the
    rate of the latter gives such a table an upper bound of *times the limit*.
    """
    if not rows:
        return []
    about = rows[0]
    copy, matrix, vectors = (about.get(f"{of}_per_second") for of in ("copy_gb", "matrix_gflop", "vector_gflop"))
    said = f"It copies {copy} GB/s{f', computes on vectors at {vectors} GFLOP/s' if vectors else ''} and multiplies large matrices at {matrix} GFLOP/s."
    columns = {"ms": "milliseconds", "times as fast": "faster", "peak MiB": "peak_mib", "of the first": "memory_share"}
    if about["times_limit"]:
        columns |= {"GFLOP": "gflop", "times the limit": "times_limit", "limit set by": "bound_by"}
        if not vectors:
            said += " That run did not measure the vector rate. It cannot exceed the rate of matrix products, which gives an upper bound (≤)"
            said += " of *times the limit*; a dash waits for the next run."
            rows = [row | _bounded(row) for row in rows]

    def cell(name: str, row: dict[str, str]) -> str:
        if name == "memory_share":
            return f"{100 * float(row[name]):.0f}\N{NO-BREAK SPACE}%"
        if name == "milliseconds":
            return f"{float(row[name]):.{0 if float(row[name]) >= 100 else 1}f}"
        return row[name] or "–"

    lines = [f"**{about['machine']}** (torch {about['torch']}, {about['date']}). {said}", ""]
    lines += [f"| case | path | {' | '.join(columns)} |", f"|---|---|{'--:|' * len(columns)}"]
    for before, row in itertools.pairwise([{"name": ""}, *rows]):
        case = row["name"] if row["name"] != before["name"] else ""
        lines.append(f"| {case} | {row['path']} | {' | '.join(cell(name, row) for name in columns.values())} |")
    return [*lines, ""]


def _bounded(row: dict[str, str]) -> dict[str, str]:
    """The limit of a layer as far as the copy rate and the rate of matrix products bound it."""
    memory = float(row["gigabytes"]) / float(row["copy_gb_per_second"])
    arithmetic = float(row["gflop"]) / float(row["matrix_gflop_per_second"])
    most = float(row["milliseconds"]) / 1e3 / max(memory, arithmetic)
    return {"times_limit": f"≤\N{NO-BREAK SPACE}{most:.1f}", "bound_by": "arithmetic" if arithmetic > memory else ""}


def schema(model: dict, href: str) -> str:
    """The fields of a JSON Schema as tables, one per object."""

    def plain(text: str) -> str:
        """Remove the markup of a docstring."""
        return " ".join(re.sub(r":\w+:`|`", "", text).split())

    def kind(field: dict) -> str:
        if "$ref" in field:
            name = field["$ref"].rpartition("/")[2]
            return _tag("a", escape(name), href=f"#schema-{name.lower()}")
        if "anyOf" in field:
            return " or ".join(dict.fromkeys(kind(option) for option in field["anyOf"]))
        if "enum" in field:
            return ", ".join(_tag("code", escape(str(value))) for value in field["enum"])
        if "const" in field:
            return _tag("code", escape(str(field["const"])))
        if field.get("type") == "array":
            return f"list of {kind(field.get('items', {}))}"
        if isinstance(inner := field.get("additionalProperties"), dict):
            return f"names to {kind(inner)}"
        return escape(field.get("format") or field.get("type", "anything"))

    def fields(name: str, part: dict) -> str:
        needed = part.get("required", [])
        rows = "".join(
            _tag(
                "tr",
                _tag("td", _tag("code", field), data_label="Field")
                + _tag("td", kind(what), data_label="Holds")
                + _tag(
                    "td",
                    escape(plain(what.get("description", ""))) + ("" if field in needed else " (optional)"),
                    data_label="Means",
                ),
            )
            for field, what in part.get("properties", {}).items()
        )
        head = _tag("thead", _tag("tr", "".join(_tag("th", t, scope="col") for t in ("Field", "Holds", "Means"))))
        about = plain(part.get("description", ""))
        body = _tag("table", head + _tag("tbody", rows), class_="claims schema")
        return f"{_tag('h3', escape(name), id=f'schema-{name.lower()}')}{_tag('p', escape(about))}{_tag('div', body, class_='claims-wrap')}"

    parts = {model["title"]: model, **model.get("$defs", {})}
    link = _tag("p", _tag("a", "The JSON Schema as a file", href=href))
    return link + "".join(fields(name, part) for name, part in parts.items() if part.get("properties"))
