"""The directives and roles of the book's pages."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import yaml
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

import capslib
from capsbook import render, runs, sources
from capsbook.evidence import Evidence
from capsbook.notebooks import PUBLISHED, Front, Picture, launch_links
from capsbook.travel import citation
from capslib.lab import claims, estimates
from capslib.lab.ledger import number
from capslib.lab.records import Record
from capslib.lab.store import Store
from capslib.lab.words import BASELINES, CAPSULES, EXACT, GROUPS, REDUCED, counts
from capslib.papers import PAPERS

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)


class evidence_html(nodes.General, nodes.Inline, nodes.Element):
    """A place for HTML that is drawn while the page is written: only then all link targets are known."""


def visit_evidence(translator: HTML5Translator, node: evidence_html) -> None:
    app: Sphinx = translator.builder.app
    links = PageLinks(app, translator.builder.current_docname)
    translator.body.append(DRAW[node["draw"]](app.env.capsbook.evidence, links, *node["of"]))
    raise nodes.SkipNode


class PageLinks:
    """Addresses relative to one page of the book. None where there is nothing to link to."""

    def __init__(self, app: Sphinx, page: str):
        self.app, self.page, self.book = app, page, app.env.capsbook

    def _to(self, docname: str) -> str:
        return self.app.builder.get_relative_uri(self.page, docname)

    def row(self, claim: str) -> str | None:
        """A claim's row: in its chapter's table, else on the scorecard."""
        return self.place(claim) or (
            f"{score}#claim-{claim}" if (score := self.score()) else None
        )

    def place(self, claim: str) -> str | None:
        """A claim's row in its chapter: in the table of its experiment, else in the table of all claims."""
        found = self.book.experiments.get(claim) or self.book.places.get(claim)
        if not found:
            return None
        docname, anchor = found
        return f"{'' if docname == self.page else self._to(docname)}#{anchor}"

    def score(self, query: str = "") -> str | None:
        """The scorecard, with a filter."""
        if not self.book.scorecard:
            return None
        return self._to(self.book.scorecard) + (f"?{query}" if query else "")

    def record(self, key: str) -> str | None:
        """The page of a record."""
        path = self.book.evidence.records.get(key)
        return path and self.file(
            f"records/{path.relative_to(self.book.evidence.root).with_suffix('.html').as_posix()}"
        )

    def chapter(self, stem: str) -> str | None:
        docname = self.app.config.capsbook_chapter.format(stem=stem)
        return self._to(docname) if docname in self.app.env.all_docs else None

    def file(self, path: str) -> str:
        """The address of a file of the site."""
        return "../" * self.page.count("/") + path

    def picture(self, front: Front) -> Picture | None:
        """The picture that a chapter gives to the front page, with its addresses on this page."""
        shown = front.picture
        return shown and shown._replace(
            source=self.file(shown.source), narrow=shown.narrow and self.file(shown.narrow)
        )


class fold_from(nodes.General, nodes.Element):
    """The place in a section from which it is folded."""


class fold(nodes.General, nodes.Element):
    """What is folded, under its ``summary``."""


def visit_fold(translator: HTML5Translator, node: fold) -> None:
    translator.body.append(
        f'<details class="fold"><summary>{escape(node["summary"])}</summary>\n'
    )


def depart_fold(translator: HTML5Translator, node: fold) -> None:
    translator.body.append("</details>\n")


class Folding(SphinxPostTransform):
    """Put what follows a :class:`fold_from` in its section into a fold. After the reading, so that contents and numbers know all of it."""

    default_priority = 900

    def run(self, **kwargs: object) -> None:
        for marker in list(self.document.findall(fold_from)):
            parent, start = marker.parent, marker.parent.index(marker)
            inside = parent.children[start + 1 :]
            del parent.children[start:]
            parent += fold("", *inside, summary=marker["summary"])


# ------------------------------------------------------------------------------------------------------------- directives


class Evident(SphinxDirective):
    """A directive that shows evidence. Sphinx reads its page again when the evidence changes."""

    draw = ""

    def run(self) -> list[nodes.Node]:
        return [self.drawn(self.draw)]

    def drawn(self, draw: str, *of: object) -> nodes.Node:
        self.env.capsbook.use(self.env.docname, "verdicts")
        node = evidence_html(draw=draw, of=of)
        self.set_source_info(node)
        return node

    def warn(self, text: str) -> list[nodes.Node]:
        """Warn. The strict build then fails."""
        logger.warning(text, location=self.get_location(), type="capsbook")
        return []

    def stem(self) -> str | None:
        """The argument if it is a paper; else a warning, and None."""
        if self.arguments[0] in PAPERS:
            return self.arguments[0]
        self.warn(f"{self.name}: no paper {self.arguments[0]!r}; valid: {', '.join(PAPERS)}")
        return None


class VerdictMatrix(Evident):
    """``{verdict-matrix}``: the counts, and a row of squares per paper."""

    draw = "matrix"


class Findings(Evident):
    """``{findings}``: what the chapters found and what surprised them, in the words of their verdict boxes."""

    draw = "findings"


class Runs(Evident):
    """``{runs}``: every run, by paper, experiment and configuration."""

    draw = "runs"


class ChapterCards(Evident):
    """``{chapter-cards}``: a card per paper."""

    draw = "cards"


class Scorecard(Evident):
    """``{scorecard}``: every claim of every paper. One page of the book has it, and links to claims lead there."""

    draw = "scorecard"

    def run(self) -> list[nodes.Node]:
        self.env.capsbook.scorecard = self.env.docname
        (node,) = super().run()
        node += nodes.Text(
            " ".join(self.env.capsbook.evidence.verdicts)
        )  # never written, but the search index reads it
        return [node]


class ClaimsTable(Evident):
    """``{claims-table} STEM``: the claims of a paper as a table, to whose rows links to a claim lead.

    ``{claims-table} ID ID …`` shows these claims, of any papers, with links to their rows in the chapters.
    """

    required_arguments, optional_arguments = 1, 30

    def run(self) -> list[nodes.Node]:
        book, page = self.env.capsbook, self.env.docname
        if set(self.arguments) <= {*book.evidence.verdicts}:
            return [self.drawn("table", tuple(self.arguments), False)]
        if len(self.arguments) > 1:
            unknown = [name for name in self.arguments if name not in book.evidence.verdicts]
            return self.warn(f"claims-table: no claim {', '.join(unknown)}")
        if not (stem := self.stem()):
            return []
        ids = tuple(v.claim.id for v in book.evidence.of(stem))
        book.places.update({i: (page, f"claim-{i}") for i in ids})
        return [self.drawn("table", ids, True)]


class Masthead(Evident):
    """``{masthead} STEM``: the citation with links to paper and code; then verdicts, their records, and buttons that open the chapter as
    a notebook. :func:`below_the_box` puts the latter under the verdict box, which a cell shows."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        if not (stem := self.stem()):
            return []
        paper = PAPERS[stem]
        text = self.parse_text_to_nodes(f"{citation(stem)} {{cite}}`{paper.cite}`")
        return [
            nodes.container("", *text, classes=["masthead-cited"]),
            nodes.container(
                "", self.drawn("masthead", stem, self._scale()), classes=["masthead-verdicts"]
            ),
        ]

    def _scale(self) -> str:
        """The scale of this page's notebook, as ``capslib execute`` noted it."""
        path = Path(self.env.doc2path(self.env.docname))
        if path.suffix != ".ipynb":
            return ""
        return (
            json.loads(path.read_text(encoding="utf-8"))["metadata"]
            .get("capslib", {})
            .get("parameters", {})
            .get("scale", "")
        )


def below_the_box(app: Sphinx, doctree: nodes.document) -> None:
    """Put the verdicts of a masthead under the verdict box."""
    found = list(doctree.findall(nodes.container))
    cells = [
        c
        for c in found
        if "cell" in c["classes"]
        and any('verdict-box"' in raw.astext() for raw in c.findall(nodes.raw))
    ]
    for verdicts in (c for c in found if cells and "masthead-verdicts" in c["classes"]):
        verdicts.parent.remove(verdicts)
        cells[0].parent.insert(cells[0].parent.index(cells[0]) + 1, verdicts)


class RecordSchema(SphinxDirective):
    """``{record-schema}``: the fields of a record. The site also publishes the JSON Schema itself."""

    def run(self) -> list[nodes.Node]:
        self.env.capsbook.use(self.env.docname, "schema")
        return [evidence_html(draw="schema", of=())]


class Costs(SphinxDirective):
    """``{costs}`` or ``{costs} STEM``: what the paper-scale trials that have no record yet will take, in all and by experiment."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        book, chapters, every, found_of = self.env.capsbook, [], [], {}
        for stem in self.arguments or PAPERS:
            for source in (
                *sorted((book.root / "capslib").rglob("*.py")),
                *sorted((book.root / "results" / stem).rglob("*.json")),
            ):
                book.use(self.env.docname, source)
            if not (
                found := list(estimates.outlook(stem, "paper", Store(book.root / "results")))
            ):
                continue
            found_of[PAPERS[stem].title] = found
            chapters += [
                _cost(f"**{PAPERS[stem].title}**", found),
                *(_cost(f"`{line[0]}`", [line]) for line in found),
            ]
            every += found
        head = [
            "| experiment | trials | to run | PFLOP of these | card-hours | core-hours |",
            "|---" + "|--:" * 5 + "|",
        ]
        head = [_total(found_of), "", *head] if not self.arguments else head
        return self.parse_text_to_nodes(
            "\n".join(
                [*head, *([] if self.arguments else [_cost("**all**", every)]), *chapters]
            )
        )


Outlook = Sequence[tuple[str, int, int, float, float | None]]


def _total(found: Mapping[str, Outlook]) -> str:
    """The sum over all papers as a sentence, and what it leaves out."""
    every = [line for lines in found.values() for line in lines]
    card, core = (
        sum(line[3] for line in every) / estimates.CARD / 3600,
        sum(line[4] or 0 for line in every),
    )
    said = f"The {number(sum(line[2] for line in every))} trials that have no record yet would take about {number(round(card))} hours of one large GPU"
    said += (
        f", or {number(round(core))} hours ({core / 24 / 365.25:.1f} years) of one CPU core."
        if core
        else "."
    )
    unknown = [
        (title, [line for line in lines if line[4] is None], len(lines))
        for title, lines in found.items()
    ]
    left = [
        f"*{title}* ({'all' if len(lines) == of else ', '.join(f'`{line[0]}`' for line in lines)}, {number(sum(line[2] for line in lines))} trials)"
        for title, lines, of in unknown
        if lines
    ]
    return (
        f"{said} The core-hours leave out what no record can estimate: {', '.join(left)}."
        if core and left
        else said
    )


def _cost(name: str, found: Outlook) -> str:
    """A row of the table of costs: the sums over some experiments. Those without an estimate in hours are left out of its sum."""
    trials, waiting, flops = (sum(line[column] for line in found) for column in (1, 2, 3))
    hours = [line[4] for line in found if line[4] is not None]
    amounts = (flops / 1e15, flops / estimates.CARD / 3600, *([sum(hours)] if hours else []))
    cells = [f"{amount:.2g}" if amount < 10 else number(round(amount)) for amount in amounts]
    return (
        f"| {name} | {trials} | {waiting} | {' | '.join(cells if hours else [*cells, '–'])} |"
    )


class Benchmarks(SphinxDirective):
    """``{benchmarks} layer`` or ``{benchmarks} step``: the committed measurements, machine by machine; ``:chart:`` draws the times."""

    required_arguments = 1
    option_spec: ClassVar = {"chart": directives.flag}

    def run(self) -> list[nodes.Node]:
        kind, folder = self.arguments[0], self.env.capsbook.root / "benchmarks" / "results"
        draw, text = render.bars if "chart" in self.options else render.benchmarks, []
        for path in sorted(folder.glob("*.csv")):
            self.env.capsbook.use(self.env.docname, path)
            with path.open(newline="", encoding="utf-8") as file:
                text += draw([row for row in csv.DictReader(file) if row["kind"] == kind])
        if not text:
            logger.warning(
                f"benchmarks: no {kind!r} in {folder}",
                location=self.get_location(),
                type="capsbook",
            )
        return self.parse_text_to_nodes("\n".join(text))


class Microscope(SphinxDirective):
    """``{microscope}``: a toy under every routing that needs no training, for a reader who moves its votes."""

    def run(self) -> list[nodes.Node]:
        from capsbook import microscope  # and torch, which no other page needs

        package = Path(capslib.__file__).parent
        for source in (
            *sorted(package.glob("routing/*.py")),
            package / "registry.py",
            package / "lab" / "plots.py",
        ):
            self.env.capsbook.use(self.env.docname, source)
        return [nodes.raw("", microscope.draw(), format="html")]


class Fold(SphinxDirective):
    """``{fold} SUMMARY``: the rest of the section, its cells and sections too, waits in a fold. Links into it open it."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        return [fold_from(summary=self.arguments[0])]


class Start(SphinxDirective):
    """``{start}``: the commands that fetch the repository, build the book and test it."""

    def run(self) -> list[nodes.Node]:
        address = self.env.capsbook.repository
        text = f"git clone {address}\ncd {address.rpartition('/')[2]}\nmake book     # build this book\nmake test     # run all tests"
        return [nodes.literal_block(text, text, language="shell")]


class Bibtex(SphinxDirective):
    """``{bibtex}``: how to cite the book, from ``CITATION.cff``."""

    def run(self) -> list[nodes.Node]:
        book, path = self.env.capsbook, self.env.capsbook.root / "CITATION.cff"
        book.use(self.env.docname, path)
        cited = yaml.safe_load(path.read_text(encoding="utf-8"))
        fields = {
            "title": f"{{{cited['title']}}}",
            "author": " and ".join(f"{{{a['name']}}}" for a in cited["authors"]),
            "year": cited["date-released"][:4],
            "version": cited["version"],
            "url": book.repository,
        }
        text = (
            ",\n".join(
                [
                    "@software{capsules_reproduced",
                    *(f"  {k:7} = {{{v}}}" for k, v in fields.items()),
                ]
            )
            + "\n}"
        )
        return [nodes.literal_block(text, text, language="bibtex")]


class LiveSource(SphinxDirective):
    """``{live-source} capslib.module.name``: the current source of a function or class.

    ``:test:`` names the test that holds code and equation together: a pytest id, or a check of a suite. It has to exist, and stands in
    the margin.
    ``:docstring:`` keeps the docstring. ``:given: bias=None vector=False`` leaves out options that the page does not use, with all
    that these values make dead.
    """

    required_arguments = 1
    option_spec: ClassVar = {
        "test": directives.unchanged,
        "docstring": directives.flag,
        "given": directives.unchanged,
    }

    def run(self) -> list[nodes.Node]:
        book, name, root = self.env.capsbook, self.arguments[0], self.env.capsbook.root
        try:
            source = sources.find_source(
                root, name, "docstring" in self.options, self.options.get("given", "")
            )
        except sources.SourceNotFound as error:
            logger.warning(
                f"live-source {name}: {error}", location=self.get_location(), type="capsbook"
            )
            return []
        book.use(self.env.docname, source.path)
        place = source.path.relative_to(root).as_posix()
        block = nodes.literal_block(source.text, source.text, language="python")
        self.set_source_info(block)
        caption = nodes.paragraph(
            "",
            "",
            nodes.literal("", name.rpartition(".")[2]),
            nodes.Text(" in "),
            classes=["live-source-caption"],
        )
        caption += nodes.reference(
            "",
            f"{place}, line {source.line}",
            refuri=book.blob(place, source.line),
            internal=False,
        )
        shown: list[nodes.Node] = [
            nodes.container("", caption, block, *self._left_out(), classes=["live-source"])
        ]
        if tests := self.options.get("test", "").replace(",", " ").split():
            shown.insert(0, self._margin(tests))
        return shown

    def _left_out(self) -> list[nodes.Node]:
        if not (given := self.options.get("given", "").split()):
            return []
        said = ", ".join(f"`{option}`" for option in given)
        note = self.parse_text_to_nodes(
            f"Shown for {said}. This paper uses no other values, so the listing leaves these options out."
        )
        note[0]["classes"] = ["live-source-caption"]
        return note

    def _margin(self, tests: Iterable[str]) -> nodes.Node:
        note = nodes.sidebar(
            "",
            nodes.paragraph("", "Page and code are held together by"),
            classes=["margin", "held-by"],
        )
        for test in tests:
            try:
                found = sources.find_test(self.env.capsbook.root, test)
            except sources.SourceNotFound as error:
                logger.warning(
                    f"live-source {self.arguments[0]}: {error}",
                    location=self.get_location(),
                    type="capsbook",
                )
                continue
            self.env.capsbook.use(self.env.docname, found.path)
            path, _, inside = test.partition("::")
            link = nodes.reference(
                "",
                "",
                nodes.literal("", inside),
                refuri=self.env.capsbook.blob(path, found.line),
                internal=False,
            )
            note += nodes.paragraph("", "", link, nodes.Text(" in "), nodes.literal("", path))
        return note


# ------------------------------------------------------------------------------------------------------------------ roles


class ClaimRole(SphinxRole):
    """``{claim}`ID```: the id beside the square of its verdict, linked to its row."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        self.env.capsbook.use(self.env.docname, "verdicts")
        if self.text not in self.env.capsbook.evidence.verdicts:
            logger.warning(
                f"{self.name}: the ledger has no claim {self.text!r}",
                location=self.get_location(),
                type="capsbook",
            )
            return [nodes.literal(self.rawtext, self.text)], []
        return [evidence_html(draw="claim", of=(self.text,))], []


class RepositoryRole(SphinxRole):
    """``{repository}`text```: a button that leads to the repository."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        return [
            nodes.reference(
                "", self.text, refuri=self.env.capsbook.repository, classes=["launch"]
            )
        ], []


class CountRole(SphinxRole):
    """``{count}`claims``` or ``{count}`claims of STEM```: how many claims, papers, records, claims of one verdict, or of a group:

    ``capsules`` and ``baselines`` at the papers' own size, ``reduced`` in a reduced setting, ``exact`` as theorems and counts. These
    are never added up. A word that several groups have counts those of the first of them.
    """

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        book = self.env.capsbook
        book.use(self.env.docname, "verdicts")
        number = count(book.evidence, self.text)
        if number is None:
            logger.warning(
                f"count: cannot count {self.text!r}",
                location=self.get_location(),
                type="capsbook",
            )
            return [], []
        return [nodes.inline("", str(number), classes=["count"])], []


COUNTED: dict[str, Callable[[Evidence, str | None], int]] = {
    "claims": lambda e, stem: len(e.of(stem)),
    "papers": lambda e, stem: len(PAPERS),
    "records": lambda e, stem: len(e.cited(stem)),
    "capsules": lambda e, stem: sum(v.group == CAPSULES for v in e.of(stem)),
    "baselines": lambda e, stem: sum(v.group == BASELINES for v in e.of(stem)),
    "reduced": lambda e, stem: sum(v.group == REDUCED for v in e.of(stem)),
    "exact": lambda e, stem: sum(v.group == EXACT for v in e.of(stem)),
}


def count(evidence: Evidence, text: str) -> int | None:
    """The number of what a text names, as :class:`CountRole` says; None where nobody can count it."""
    what, _, stem = text.partition(" of ")
    if stem not in ("", *PAPERS):
        return None
    if what in COUNTED:
        return COUNTED[what](evidence, stem or None)
    group = (
        REDUCED
        if what == "undecided"
        else next((group for group, words in GROUPS.items() if what in words), None)
    )
    return None if group is None else counts(evidence.of(stem or None))[group][what]


# ------------------------------------------------------------------------------------- what is drawn when a page is written


def _strip(evidence: Evidence, links: PageLinks, stem: str) -> str:
    return render.squares(stem, evidence.of(stem), links)


def _table(evidence: Evidence, links: PageLinks, ids: tuple[str, ...], anchors: bool) -> str:
    """Claims as a table, whose rows are the places of these claims, or lead there."""
    rows = (
        render.row(
            evidence.verdicts[i],
            links,
            f"claim-{i}" if anchors else None,
            not anchors,
            evidence.hours.get(i),
        )
        for i in ids
    )
    return render.table(rows)


def _claim(evidence: Evidence, links: PageLinks, name: str) -> str:
    return claims.seal(evidence.verdicts[name], links.row(name), named=True)


def _masthead(evidence: Evidence, links: PageLinks, stem: str, scale: str) -> str:
    buttons = launch_links(stem, links.book.repository)
    opened = "".join(
        f'<a class="launch" href="{href}">Open in {name}</a>' for name, href in buttons.items()
    )
    notebook = links.file(PUBLISHED.format(stem=stem))
    return (
        f'{_strip(evidence, links, stem)}{render.totals(evidence.of(stem), every=False)}<p class="masthead-standing">{render.standing(evidence, stem, scale)}</p>'
        f'<p class="masthead-launch">{opened}<a class="launch" href="{notebook}" download>Download .ipynb</a></p>'
    )


def _cards(evidence: Evidence, links: PageLinks) -> str:
    fronts = links.book.fronts.items()
    return render.cards(
        evidence,
        links,
        {
            stem: links.picture(front["thumbnail"])
            for stem, front in fronts
            if "thumbnail" in front
        },
    )


def _findings(evidence: Evidence, links: PageLinks) -> str:
    """What surprised, or else what was found, of each chapter; and of the first that has both, both. A sentence has a picture, if any has."""
    waiting = {
        name for name, verdict in evidence.verdicts.items() if verdict.status == "waiting"
    }
    told, more = {}, 1
    for stem, front in links.book.fronts.items():
        said = {
            name: front[name]
            for name in ("found", "surprise")
            if name in front and front[name].text
        }
        said = {name: one for name, one in said.items() if one.picture} or said
        named = (
            set(re.findall(r'href="#claim-([^"]+)"', said["found"].text))
            if "found" in said
            else set()
        )
        if len(said) > 1 and (
            more < 1 or (named and named <= waiting)
        ):  # an answer that nobody has yet
            del said["found"]
        more -= len(said) > 1
        told[stem] = [(one.text, links.picture(one)) for one in said.values()]
    return render.findings(evidence, links, told)


def _runs(evidence: Evidence, links: PageLinks) -> str:
    return runs.listing(evidence.runs, {key: links.record(key) for key in evidence.records})


def _schema(evidence: Evidence, links: PageLinks) -> str:
    return render.schema(Record.model_json_schema(), links.file("_static/record.schema.json"))


DRAW: dict[str, Callable[..., str]] = {
    "matrix": render.matrix,
    "cards": _cards,
    "findings": _findings,
    "runs": _runs,
    "scorecard": render.scorecard,
    "table": _table,
    "masthead": _masthead,
    "schema": _schema,
    "claim": _claim,
}

DIRECTIVES = {
    "verdict-matrix": VerdictMatrix,
    "chapter-cards": ChapterCards,
    "findings": Findings,
    "runs": Runs,
    "claims-table": ClaimsTable,
    "scorecard": Scorecard,
    "masthead": Masthead,
    "record-schema": RecordSchema,
    "fold": Fold,
    "microscope": Microscope,
    "start": Start,
    "bibtex": Bibtex,
    "live-source": LiveSource,
    "benchmarks": Benchmarks,
    "costs": Costs,
}
ROLES = {"claim": ClaimRole, "count": CountRole, "repository": RepositoryRole}


def schema_json() -> str:
    """The JSON Schema of a record."""
    return json.dumps(Record.model_json_schema(), indent=1) + "\n"
