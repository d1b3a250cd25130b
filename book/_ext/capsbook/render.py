"""Evidence as HTML: pure functions from :class:`Evidence` to text. ``links`` knows the addresses on the current page."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from capsbook.evidence import Evidence
from capslib.lab import claims
from capslib.lab.claims import GLYPHS, UNJUDGED, basis, classes, ours, theirs
from capslib.lab.ledger import number, plural
from capslib.lab.words import (
    CAPSULES,
    GROUPS,
    NONE_TRAINED,
    OPEN,
    STATUSES,
    Verdict,
    count_text,
    counts,
)
from capslib.papers import PAPERS

if TYPE_CHECKING:
    from capsbook.directives import PageLinks as Links
    from capsbook.notebooks import Picture

FOLD = 200
"""A paper with more claims than this is shown as one tile per table, instead of one square per claim."""
TILE = 10
"""The fewest claims of a table that become a tile; the others keep their squares."""


def tag(name: str, content: str = "", /, **attributes: object) -> str:
    """An HTML element. ``class_`` and ``data_tip`` stand for ``class`` and ``data-tip``; an attribute of None is left out."""
    pairs = (
        (k.rstrip("_").replace("_", "-"), v) for k, v in attributes.items() if v is not None
    )
    written = "".join(f' {key}="{escape(str(value))}"' for key, value in pairs)
    return f"<{name}{written}>{content}</{name}>"


def link(href: str | None, content: str, /, **attributes: object) -> str:
    return (
        tag("a", content, href=href, **attributes)
        if href
        else tag("span", content, **attributes)
    )


def mark(status: str, group: str) -> str:
    """The square of a verdict for tables and legends, without a link. The word beside it says the same."""
    return tag("span", GLYPHS[status], class_=classes(status, group), aria_hidden="true")


def strip(verdicts: Iterable[Verdict], links: Links, label: str) -> str:
    """One square per claim, in groups that stand apart: decided ones first, then reduced ones, then what was not run."""
    found = list(verdicts)
    of = (
        [
            claims.seal(v, links.row(v.claim.id))
            for word in words
            for v in found
            if (v.group, v.status) == (group, word)
        ]
        for group, words in GROUPS.items()
    )
    groups = (tag("span", "".join(inside), class_="verdict-group") for inside in of if inside)
    return tag("div", "".join(groups), class_="verdict-strip", role="group", aria_label=label)


def bar(verdicts: Sequence[Verdict]) -> str:
    """A stacked bar of how many claims have each verdict; groups stand apart."""
    parts, said = [], []
    for group, words in counts(verdicts).items():
        for status, n in words.items():
            if n:
                parts.append(
                    tag(
                        "span",
                        class_=classes(status, group).removeprefix("vq "),
                        style=f"flex-grow:{n}",
                    )
                )
                said.append(f"{n} {status} {group}")
    return tag(
        "span", "".join(parts), class_="verdict-bar", role="img", aria_label=", ".join(said)
    )


def totals(verdicts: Sequence[Verdict], every: bool = True) -> str:
    """A line per group of verdicts, each word with its square and its count; ``every``: also those that count nothing."""
    lines = []
    for group, words in counts(verdicts).items():
        items = [
            f"{mark(s, group)} {s} {tag('b', count_text(verdicts, group, s))}"
            for s, n in words.items()
            if n or every
        ]
        inside = "".join(tag("li", item) for item in items)
        if group == CAPSULES and not sum(words.values()):
            inside = tag("li", NONE_TRAINED)
        if inside:
            lines.append(
                tag(
                    "div",
                    tag("span", group, class_="group-name") + tag("ul", inside),
                    class_="verdict-line",
                )
            )
    return tag("div", "".join(lines), class_="verdict-legend")


def legend(verdicts: Sequence[Verdict]) -> str:
    """Every verdict with its square and its count, group by group, and what the shapes say."""
    note = (
        "Full squares: capsule networks trained at their paper’s own size, on its data. Framed: the papers’ baselines, as large. "
        "Half-filled: a reduced setting, which contradicts nobody. Round: a theorem or a count. No group is added to another."
    )
    return totals(verdicts) + tag("p", note, class_="verdict-note")


def matrix(evidence: Evidence, links: Links) -> str:
    """The front page's answer to *did it reproduce?*: the counts, then a row of squares per paper."""
    everything = evidence.of()
    rows = [tag("div", bar(everything) + legend(everything), class_="verdict-totals")]
    for stem, paper in PAPERS.items():
        found = evidence.of(stem)
        name = link(links.chapter(stem), escape(paper.short), class_="matrix-name")
        note = plural(len(found), "claim") + ", folded by table" * (len(found) > FOLD)
        head = tag("div", f"{name} {tag('small', note)}")
        rows.append(tag("div", head + squares(stem, found, links), class_="matrix-row"))
    return tag("div", "".join(rows), class_="verdict-matrix")


def squares(stem: str, verdicts: Sequence[Verdict], links: Links) -> str:
    """A square per claim of a paper; of a paper with many, a tile per table."""
    return (
        _tiles(stem, verdicts, links)
        if len(verdicts) > FOLD
        else strip(verdicts, links, f"Verdicts on {PAPERS[stem].short}")
    )


def _tiles(stem: str, verdicts: Sequence[Verdict], links: Links) -> str:
    """A tile for each table with many claims, and the squares of the other claims."""
    tables: dict[str, list[Verdict]] = {}
    for v in verdicts:
        tables.setdefault(v.claim.where, []).append(v)
    tiles = "".join(
        link(
            links.score(f"paper={stem}&where={where}"),
            f"{tag('span', escape(where))} {tag('b', str(len(found)))}{bar(found)}",
            class_="verdict-tile",
        )
        for where, found in tables.items()
        if len(found) >= TILE
    )
    others = [v for found in tables.values() if len(found) < TILE for v in found]
    return tag(
        "div",
        tag("div", tiles, class_="verdict-tiles")
        + strip(others, links, f"Other verdicts on {PAPERS[stem].short}"),
    )


def picture(shown: Picture | None) -> str:
    """A picture, and its form for a phone; nothing where there is none."""
    if not shown:
        return ""
    phone = (
        f'<source media="(max-width: 640px)" srcset="{escape(shown.narrow)}">'
        if shown.narrow
        else ""
    )
    return f'<picture>{phone}<img src="{escape(shown.source)}" alt="{escape(shown.alt)}"></picture>'


def findings(
    evidence: Evidence, links: Links, told: Mapping[str, Sequence[tuple[str, Picture | None]]]
) -> str:
    """What each paper claims, and what its chapter found, in the words of its verdict box: ``told`` has sentences and pictures."""
    papers = []
    for stem, sentences in told.items():
        chapter, paper = links.chapter(stem) or "", PAPERS[stem]
        name = link(chapter, escape(paper.short), class_="finding-of")
        found = [
            tag("p", f"{name} <b>They claim.</b> {escape(paper.claim)}", class_="finding-claim")
        ]
        for place, (text, shown) in enumerate(sentences):
            here = text.replace('href="#', f'href="{escape(chapter)}#')
            class_ = "finding finding-wide" if shown and shown.wide else "finding"
            found.append(
                tag(
                    "article",
                    f"{picture(shown)}<p>{'' if place else '<b>We found.</b> '}{here}</p>",
                    class_=class_,
                )
            )
        papers.append(tag("section", "".join(found)))
    return tag("div", "".join(papers), class_="findings")


def cards(evidence: Evidence, links: Links, pictures: Mapping[str, Picture | None]) -> str:
    """A card per chapter: its figure, the paper's claim and the counts."""
    found = []
    for stem, paper in PAPERS.items():
        verdicts = evidence.of(stem)
        counts = (
            f"{bar(verdicts)} {plural(len(verdicts), 'claim')}{totals(verdicts, every=False)}"
        )
        about = (
            tag("h3", link(links.chapter(stem), escape(paper.title))),
            tag("p", f"{escape(paper.authors)}, {paper.year}", class_="card-by"),
            tag("p", escape(paper.claim)),
            tag("div", counts, class_="card-counts"),
        )
        found.append(
            tag("article", picture(pictures.get(stem)) + "".join(about), class_="chapter-card")
        )
    return tag("div", "".join(found), class_="chapter-cards")


def standing(evidence: Evidence, stem: str, scale: str = "") -> str:
    """``The code on this page ran at smoke scale. Verdicts come from 20 records, the newest of 21 November 2026. We made …``"""
    built = f"The code on this page ran at {scale} scale. " if scale else ""
    paths = evidence.cited(stem)
    newest = evidence.newest(stem)
    if newest is None:
        return f"{built}No record decides a claim of this chapter yet."
    from_ = f"Verdicts come from {plural(len(paths), 'record')}, the newest of {newest.day} {newest:%B %Y}."
    return f"{built}{from_} {comparisons(evidence.of(stem))}"


def comparisons(found: Iterable[Verdict]) -> str:
    """How many comparisons with an interval some claims rest on, and on how many runs, in a sentence for a page."""
    every, left = {}, list(found)
    for v in left:
        left += v.parts
        if (
            v.interval and v.interval[0] < v.interval[1] and v.status != "measured"
        ):  # a count is compared with nothing
            every[v.records, v.ours, v.interval] = v.status not in OPEN
    runs = {key for records, *_ in every for key in records}
    told = f"We made {len(every)} comparisons from {len(runs)} runs and decided {sum(every.values())}."
    often = f"{told} About one 95 % interval in twenty misses its mean by chance."
    return often if every else "No run is compared with anything yet."


# --------------------------------------------------------------------------------------------------------------- tables


def _list(said: str, items: Iterable[str]) -> str:
    """A list under what it lists; nothing where there is nothing."""
    inside = "".join(tag("li", item) for item in items)
    return tag("p", said) + tag("ul", inside) if inside else ""


def _why(verdict: Verdict, links: Links, hours: float | None) -> str:
    """What stands behind a verdict, in a fold: its reason, its parts, its records, and the claims that share them."""
    files = [
        link(href, tag("code", key)) for key in verdict.records if (href := links.record(key))
    ]
    parts = [
        f"{mark(p.status, p.group)} {escape(p.name)}: {p.word}. {escape(p.reason)}"
        for p in verdict.parts
    ]
    others = [link(links.row(name), tag("code", name)) for name in verdict.shares]
    said = [
        tag("p", escape(verdict.reason)) if verdict.reason else "",
        tag(
            "p",
            f"That is about {number(round(hours) or round(hours, 1))} hours of one CPU core.",
        )
        if hours
        else "",
        tag("p", f"Derived data: {escape(verdict.derived)}.") if verdict.derived else "",
        tag("p", escape(verdict.claim.notes)) if verdict.claim.notes else "",
        _list("Parts:", parts),
        _list(f"{plural(len(files), 'record')}:", files),
        _list(f"It shares runs with {plural(len(others), 'claim')}:", others),
    ]
    summary = ", ".join(
        [
            "why",
            *([plural(len(parts), "part")] if parts else []),
            *([plural(len(files), "run")] if files else []),
        ]
    )
    return (
        tag("details", tag("summary", summary) + "".join(said), class_="claim-why")
        if any(said)
        else ""
    )


def row(
    verdict: Verdict,
    links: Links,
    anchor: str | None,
    chapter_link: bool = False,
    hours: float | None = None,
) -> str:
    """One claim as a table row. ``anchor`` is the id of the row on the page, ``hours`` what it waits for on one core."""
    claim = verdict.claim
    place = links.place(claim.id) if chapter_link else None
    cells = {
        "Claim": f"{link(place, tag('code', claim.id), class_='claim-id')} {tag('span', escape(claim.statement))}",
        "Paper": tag("span", escape(theirs(verdict))) + tag("small", escape(claim.where)),
        "Ours": tag("span", escape(ours(verdict))) + tag("small", escape(basis(verdict))),
        "Verdict": tag(
            "span",
            f"{mark(verdict.status, verdict.group)} {verdict.word}",
            class_="claim-status",
        )
        + _why(verdict, links, hours),
    }
    return tag(
        "tr",
        "".join(tag("td", text, data_label=name) for name, text in cells.items()),
        id=anchor,
        class_="claim",
        data_paper=claim.paper,
        data_status=verdict.status,
        data_group=claims.SHAPES[verdict.group],
        data_run="no" if verdict.group in UNJUDGED else "yes",
        data_kind=claim.kind,
        data_where=claim.where,
        data_scale=verdict.scale or "",
    )


def table(rows: Iterable[str], class_: str = "", **attributes: object) -> str:
    head = "".join(
        tag("th", name, scope="col")
        for name in ("Claim", "Paper", "Ours (95 % interval)", "Verdict")
    )
    body = f"{tag('thead', tag('tr', head))}{tag('tbody', ''.join(rows))}"
    return tag(
        "div",
        tag("table", body, class_="claims", **attributes),
        class_=f"claims-wrap {class_}".strip(),
    )


def plain_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose cells are HTML already."""
    body = "".join(
        tag(
            "tr",
            "".join(tag("td", c, data_label=name) for name, c in zip(head, row, strict=True)),
        )
        for row in rows
    )
    top = tag("thead", tag("tr", "".join(tag("th", name, scope="col") for name in head)))
    return tag(
        "div",
        tag("table", top + tag("tbody", body), class_="claims schema"),
        class_="claims-wrap",
        tabindex="0",
    )


def scorecard(evidence: Evidence, links: Links) -> str:
    """Every claim of every paper as a table, decided ones first. A script adds filter and sorting; without scripts all rows are visible."""

    def menu(name: str, label: str, options: Iterable[tuple[str, str]]) -> str:
        inside = tag("option", f"any {label.lower()}", value="") + "".join(
            tag("option", escape(t), value=v) for v, t in options
        )
        return tag("label", f"{label} {tag('select', inside, name=name)}")

    wheres = dict.fromkeys(v.claim.where for v in evidence.of())
    groups = "".join(
        tag(
            "optgroup",
            "".join(tag("option", s, value=f"{claims.SHAPES[group]} {s}") for s in words),
            label=group,
        )
        for group, words in GROUPS.items()
    )
    standing = "".join(
        tag("option", t, value=v) for v, t in (("", "any verdict"), ("run", "whatever was run"))
    )
    filters = (
        menu("paper", "Paper", [(stem, p.short) for stem, p in PAPERS.items()])
        + tag("label", f"Verdict {tag('select', standing + groups, name='status')}")
        + menu(
            "kind", "Kind", [("value", "value"), ("order", "order"), ("property", "property")]
        )
        + menu("scale", "Scale", [("paper", "paper"), ("cpu", "cpu")])
        + menu("where", "Place", [(w, w) for w in wheres])
        + tag(
            "label",
            'Text <input type="search" name="text" placeholder="id, data set, words …">',
        )
        + tag("button", "Show all", type="reset")
        + tag("output", "", class_="score-count", aria_live="polite")
    )
    groups_in_order = list(GROUPS)
    ranked = sorted(
        evidence.of(), key=lambda v: (groups_in_order.index(v.group), STATUSES.index(v.status))
    )
    rows = [
        row(v, links, f"claim-{v.claim.id}", True, evidence.hours.get(v.claim.id))
        for v in ranked
    ]
    files = " · ".join(
        tag("a", name, href=links.file(f"_static/claims.{name.lower()}"), download="")
        for name in ("CSV", "JSON")
    )
    filters += tag("span", f"All claims as {files}", class_="score-files")
    return tag("form", filters, class_="score-filter", hidden="") + table(
        rows, class_="wide", id="scorecard-table"
    )


def benchmarks(rows: Sequence[dict[str, str]]) -> list[str]:
    """The measurements of one machine and kind as lines of Markdown. Layers have a limit, whole training steps none.

    A table without the vector rate is from before benchmarks measured it. Vectors are never faster than matrix products, so the
    rate of the latter gives such a table an upper bound of *times the limit*.
    """
    if not rows:
        return []
    about = rows[0]
    copy, matrix, vectors = (
        about.get(f"{of}_per_second") for of in ("copy_gb", "matrix_gflop", "vector_gflop")
    )
    said = f"It copies {copy} GB/s{f', computes on vectors at {vectors} GFLOP/s' if vectors else ''} and multiplies large matrices at {matrix} GFLOP/s."
    columns = {
        "ms": "milliseconds",
        "times as fast": "faster",
        "peak MiB": "peak_mib",
        "of the first": "memory_share",
    }
    if about["times_limit"]:
        columns |= {
            "GFLOP": "gflop",
            "times the limit": "times_limit",
            "limit set by": "bound_by",
        }
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
        lines.append(
            f"| {case} | {row['path']} | {' | '.join(cell(name, row) for name in columns.values())} |"
        )
    return [*lines, ""]


def bars(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """A bar for each path of each case, as long as its share of the time of the slowest path, as lines of Markdown."""
    shown = []
    for name, of_case in itertools.groupby(rows, key=lambda row: row["name"]):
        times = {row["path"]: float(row["milliseconds"]) for row in of_case}
        shown.append(tag("div", escape(name), class_="bars-case"))
        for path, time in times.items():
            bar = tag(
                "span",
                class_=f"bar bar-{path}",
                style=f"width: {100 * time / max(times.values()):.3g}%",
            )
            told = f"{number(round(time))} ms" if time >= 10 else f"{time:.1f} ms"
            shown.append(
                tag(
                    "div",
                    f"<span>{escape(path)}</span><span>{bar}</span><span>{told}</span>",
                    class_="bars-row",
                )
            )
    return [tag("div", "".join(shown), class_="bars"), ""] if shown else []


def _bounded(row: dict[str, str]) -> dict[str, str]:
    """The limit of a layer as far as the copy rate and the rate of matrix products bound it."""
    memory = float(row["gigabytes"]) / float(row["copy_gb_per_second"])
    arithmetic = float(row["gflop"]) / float(row["matrix_gflop_per_second"])
    most = float(row["milliseconds"]) / 1e3 / max(memory, arithmetic)
    return {
        "times_limit": f"≤\N{NO-BREAK SPACE}{most:.1f}",
        "bound_by": "arithmetic" if arithmetic > memory else "",
    }


def schema(model: dict, href: str) -> str:
    """The fields of a JSON Schema as tables, one per object."""

    def plain(text: str) -> str:
        """Remove the markup of a docstring."""
        return " ".join(re.sub(r":\w+:`|`", "", text).split())

    def kind(field: dict) -> str:
        if "$ref" in field:
            name = field["$ref"].rpartition("/")[2]
            return tag("a", escape(name), href=f"#schema-{name.lower()}")
        if "anyOf" in field:
            return " or ".join(dict.fromkeys(kind(option) for option in field["anyOf"]))
        if "enum" in field:
            return ", ".join(tag("code", escape(str(value))) for value in field["enum"])
        if "const" in field:
            return tag("code", escape(str(field["const"])))
        if field.get("type") == "array":
            return f"list of {kind(field.get('items', {}))}"
        if isinstance(inner := field.get("additionalProperties"), dict):
            return f"names to {kind(inner)}"
        return escape(field.get("format") or field.get("type", "anything"))

    def fields(name: str, part: dict) -> str:
        needed = part.get("required", [])
        rows = (
            (
                tag("code", field),
                kind(what),
                escape(plain(what.get("description", "")))
                + " (optional)" * (field not in needed),
            )
            for field, what in part.get("properties", {}).items()
        )
        about, shown = (
            plain(part.get("description", "")),
            plain_table(("Field", "Holds", "Means"), rows),
        )
        return f"{tag('h3', escape(name), id=f'schema-{name.lower()}')}{tag('p', escape(about))}{shown}"

    parts = {model["title"]: model, **model.get("$defs", {})}
    link = tag("p", tag("a", "The JSON Schema as a file", href=href))
    return link + "".join(
        fields(name, part) for name, part in parts.items() if part.get("properties")
    )
