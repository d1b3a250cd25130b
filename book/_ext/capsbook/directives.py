"""The directives and roles that pages are written with."""

from __future__ import annotations

import csv
import importlib.util
import itertools
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

from capsbook import render, sources
from capsbook.evidence import STATUSES, Evidence, basis, ours, theirs
from capsbook.notebooks import PUBLISHED, launch_links
from capslib.papers import PAPERS
from capslib.trials import Record

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)


class evidence_html(nodes.General, nodes.Inline, nodes.Element):
    """A place for HTML that is made when the page is written, because only then all link targets are known."""


def visit_evidence(translator: HTML5Translator, node: evidence_html) -> None:
    app: Sphinx = translator.builder.app
    links = PageLinks(app, translator.builder.current_docname)
    translator.body.append(DRAW[node["draw"]](app.env.capsbook.evidence, links, *node["of"]))
    raise nodes.SkipNode


class PageLinks:
    """:class:`render.Links` for one page of the book."""

    def __init__(self, app: Sphinx, page: str):
        self.app, self.page, self.book = app, page, app.env.capsbook

    def _to(self, docname: str) -> str:
        return self.app.builder.get_relative_uri(self.page, docname)

    def row(self, claim: str) -> str | None:
        return self.place(claim) or (f"{score}#claim-{claim}" if (score := self.score()) else None)

    def place(self, claim: str) -> str | None:
        if claim not in self.book.places:
            return None
        docname, anchor = self.book.places[claim]
        return f"{'' if docname == self.page else self._to(docname)}#{anchor}"

    def score(self, query: str = "") -> str | None:
        if not self.book.scorecard:
            return None
        return self._to(self.book.scorecard) + (f"?{query}" if query else "")

    def record(self, key: str) -> str | None:
        path = self.book.evidence.records.get(key)
        return path and self.file(f"records/{path.relative_to(self.book.evidence.root).as_posix()}")

    def chapter(self, stem: str) -> str | None:
        docname = self.app.config.capsbook_chapter.format(stem=stem)
        return self._to(docname) if docname in self.app.env.all_docs else None

    def file(self, path: str) -> str:
        """The address of a file of the site."""
        return "../" * self.page.count("/") + path


# ------------------------------------------------------------------------------------------------------------- directives


class Evident(SphinxDirective):
    """Base: a directive that shows evidence. A page with one is read again when the evidence changes."""

    def drawn(self, draw: str, *of: object) -> nodes.Node:
        self.env.capsbook.use(self.env.docname, "verdicts")
        node = evidence_html(draw=draw, of=of)
        self.set_source_info(node)
        return node

    def warn(self, text: str) -> list[nodes.Node]:
        """A warning, which the strict build turns into a failure."""
        logger.warning(text, location=self.get_location(), type="capsbook")
        return []

    def stem(self) -> str | None:
        """The argument, if it is a paper."""
        if self.arguments[0] in PAPERS:
            return self.arguments[0]
        self.warn(f"{self.name}: no paper {self.arguments[0]!r}; valid: {', '.join(PAPERS)}")
        return None


class VerdictMatrix(Evident):
    """``{verdict-matrix}``: the counts, and a row of squares per paper."""

    def run(self) -> list[nodes.Node]:
        return [self.drawn("matrix")]


class ChapterCards(Evident):
    """``{chapter-cards}``: a card per paper."""

    def run(self) -> list[nodes.Node]:
        return [self.drawn("cards")]


class VerdictStrip(Evident):
    """``{verdict-strip} STEM``: one square per claim of a paper."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        return [self.drawn("strip", stem)] if (stem := self.stem()) else []


class Scorecard(Evident):
    """``{scorecard}``: every claim of every paper. One page of the book has it; links to claims lead there."""

    def run(self) -> list[nodes.Node]:
        self.env.capsbook.scorecard = self.env.docname
        return [self.drawn("scorecard")]


class ClaimsTable(Evident):
    """``{claims-table} STEM``: the claims of a paper as a table. ``:prefix:`` keeps those whose ids start with one of these."""

    required_arguments = 1
    option_spec: ClassVar = {"prefix": directives.unchanged, "caption": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        if not (stem := self.stem()):
            return []
        book, page = self.env.capsbook, self.env.docname
        prefixes = tuple(self.options.get("prefix", "").replace(",", " ").split()) or ("",)
        ids = [v.claim.id for v in book.evidence.of(stem) if v.claim.id.startswith(prefixes)]
        if unmet := [p for p in prefixes if not any(i.startswith(p) for i in ids)]:
            return self.warn(f"claims-table: no claim of {stem} starts with {', '.join(unmet)}")
        # The first table of a chapter that shows a claim, which is the one beside its experiment, is where links to it lead.
        first = [i for i in ids if i not in book.places]
        book.places.update({i: (page, f"claim-{i}") for i in first})
        return [self.drawn("table", tuple(ids), frozenset(first), self.options.get("caption", ""))]


class Masthead(Evident):
    """``{masthead} STEM``: citation, claim, verdicts, what they rest on, and buttons that open the chapter as a notebook."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        if not (stem := self.stem()):
            return []
        paper = PAPERS[stem]
        cited = f"{paper.authors}, *{paper.title}* ({paper.year}) {{cite}}`{paper.cite}`"
        text = self.parse_text_to_nodes(f"{cited}\n\n**Claim.** {paper.claim}")
        return [nodes.container("", *text, self.drawn("masthead", stem, self._scale()), classes=["masthead"])]

    def _scale(self) -> str:
        """The scale at which the notebook of this page was executed, as ``capslib execute`` notes it."""
        path = Path(self.env.doc2path(self.env.docname))
        if path.suffix != ".ipynb":
            return ""
        return json.loads(path.read_text(encoding="utf-8"))["metadata"].get("capslib", {}).get("parameters", {}).get("scale", "")


class RecordSchema(SphinxDirective):
    """``{record-schema}``: the fields of a record. The JSON Schema itself is published beside the page."""

    def run(self) -> list[nodes.Node]:
        self.env.capsbook.use(self.env.docname, "schema")
        return [evidence_html(draw="schema", of=())]


class Costs(SphinxDirective):
    """``{costs} runs``, ``{costs} hours``, ``{costs} claims``: a table of ``benchmarks/chapters.py``, computed as the page is read."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        root = self.env.capsbook.root
        path = root / "benchmarks" / "chapters.py"
        for source in (path, root / "capslib" / "costs.py", *sorted((root / "capslib" / "papers").rglob("*.py"))):
            self.env.capsbook.use(self.env.docname, source)
        spec = importlib.util.spec_from_file_location("capsbook_costs", path)
        chapters = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(chapters)
        tables = {
            "runs": lambda: (chapters.COLUMNS, chapters.rows(chapters.runs())),
            "hours": lambda: (chapters.HOURS_COLUMNS, chapters.hours(chapters.runs())),
            "claims": lambda: (chapters.CLAIM_COLUMNS, ((f"{{claim}}`{name}`", *row) for name, *row in chapters.claims())),
        }
        if self.arguments[0] not in tables:
            logger.warning(f"costs: no table {self.arguments[0]!r}", location=self.get_location(), type="capsbook")
            return []
        columns, rows = tables[self.arguments[0]]()
        lines = [columns, ["---"] * len(columns), *rows]
        return self.parse_text_to_nodes("\n".join(f"| {' | '.join(line)} |" for line in lines))


class Benchmarks(SphinxDirective):
    """``{benchmarks} layer`` or ``{benchmarks} step``: the committed tables of ``benchmarks/results``, machine by machine."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        folder = self.env.capsbook.root / "benchmarks" / "results"
        text: list[str] = []
        for path in sorted(folder.glob("*.csv")):
            self.env.capsbook.use(self.env.docname, path)
            with path.open(newline="", encoding="utf-8") as file:
                rows = [row for row in csv.DictReader(file) if row["kind"] == self.arguments[0]]
            if not rows:
                continue
            text += [
                "**{machine}** (torch {torch}, {date}): copies {copy_gb_per_second} GB/s, multiplies large matrices at "
                "{matrix_gflop_per_second} GFLOP/s.".format(**rows[0]),
                "",
                "| case | path | ms | times as fast | peak MiB | of the first | times the limit |",
                "|---|---|--:|--:|--:|--:|--:|",
            ]
            for before, row in itertools.pairwise([{"name": ""}, *rows]):
                case = row["name"] if row["name"] != before["name"] else ""
                share = f"{100 * float(row['memory_share']):.0f}\N{NO-BREAK SPACE}%"
                time = float(row["milliseconds"])
                cells = (
                    case,
                    row["path"],
                    f"{time:.0f}" if time >= 100 else f"{time:.1f}",
                    row["faster"],
                    row["peak_mib"],
                    share,
                    row["times_limit"] or "–",
                )
                text.append(f"| {' | '.join(cells)} |")
            text.append("")
        if not text:
            logger.warning(f"benchmarks: no {self.arguments[0]!r} in {folder}", location=self.get_location(), type="capsbook")
        return self.parse_text_to_nodes("\n".join(text))


class LiveSource(SphinxDirective):
    """``{live-source} capslib.module.name``: its source as it stands today.

    ``:test:`` names the test (a pytest id) that holds code and equation together; it is shown in the margin and has to exist.
    ``:docstring:`` keeps the docstring.
    """

    required_arguments = 1
    option_spec: ClassVar = {"test": directives.unchanged, "docstring": directives.flag}

    def run(self) -> list[nodes.Node]:
        book, name, root = self.env.capsbook, self.arguments[0], self.env.capsbook.root
        try:
            source = sources.find_source(root, name, docstring="docstring" in self.options)
        except sources.SourceNotFound as error:
            logger.warning(f"live-source {name}: {error}", location=self.get_location(), type="capsbook")
            return []
        book.use(self.env.docname, source.path)
        place = source.path.relative_to(root).as_posix()
        block = nodes.literal_block(source.text, source.text, language="python")
        self.set_source_info(block)
        caption = nodes.paragraph(
            "", "", nodes.literal("", name.rpartition(".")[2]), nodes.Text(" in "), classes=["live-source-caption"]
        )
        caption += nodes.reference("", f"{place}, line {source.line}", refuri=book.blob(place, source.line), internal=False)
        shown: list[nodes.Node] = [nodes.container("", caption, block, classes=["live-source"])]
        if tests := self.options.get("test", "").replace(",", " ").split():
            shown.insert(0, self._margin(tests))
        return shown

    def _margin(self, tests: Iterable[str]) -> nodes.Node:
        note = nodes.sidebar("", nodes.paragraph("", "Equation and code are held together by"), classes=["margin", "held-by"])
        for test in tests:
            try:
                found = sources.find_test(self.env.capsbook.root, test)
            except sources.SourceNotFound as error:
                logger.warning(f"live-source {self.arguments[0]}: {error}", location=self.get_location(), type="capsbook")
                continue
            self.env.capsbook.use(self.env.docname, found.path)
            path, _, inside = test.partition("::")
            link = nodes.reference(
                "", "", nodes.literal("", inside), refuri=self.env.capsbook.blob(path, found.line), internal=False
            )
            note += nodes.paragraph("", "", link, nodes.Text(" in "), nodes.literal("", path))
        return note


# ------------------------------------------------------------------------------------------------------------------ roles


class ClaimRole(SphinxRole):
    """``{claim}`NEG-T1-rba-bias```: the id with the square of its verdict, linked to its row."""

    draw = "claim"

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        self.env.capsbook.use(self.env.docname, "verdicts")
        if self.text not in self.env.capsbook.evidence.verdicts:
            logger.warning(f"{self.name}: the ledger has no claim {self.text!r}", location=self.get_location(), type="capsbook")
            return [nodes.literal(self.rawtext, self.text)], []
        return [evidence_html(draw=self.draw, of=(self.text,))], []


class OursRole(ClaimRole):
    """``{ours}`ID```: our value with its interval, from the records."""

    draw = "ours"


class TheirsRole(ClaimRole):
    """``{theirs}`ID```: the paper's value, from the ledger."""

    draw = "theirs"


class CountRole(SphinxRole):
    """``{count}`claims```: how many claims, papers, records, judged claims, or claims with a verdict. ``claims STEM`` for one paper."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        book = self.env.capsbook
        book.use(self.env.docname, "verdicts")
        what, _, stem = self.text.partition(" of ")
        if what not in (*COUNTED, *STATUSES) or stem not in ("", *PAPERS):
            logger.warning(f"count: cannot count {self.text!r}", location=self.get_location(), type="capsbook")
            return [], []
        number = COUNTED[what](book.evidence, stem or None) if what in COUNTED else book.evidence.counts(stem or None)[what]
        return [nodes.inline("", str(number), classes=["count"])], []


COUNTED: dict[str, Callable[[Evidence, str | None], int]] = {
    "claims": lambda e, stem: len(e.of(stem)),
    "papers": lambda e, stem: len(PAPERS),
    "records": lambda e, stem: len(e.cited(stem)),
    "judged": lambda e, stem: sum(v.status != "not run" for v in e.of(stem)),
}


# ------------------------------------------------------------------------------------- what is drawn when a page is written


def _strip(evidence: Evidence, links: PageLinks, stem: str) -> str:
    return render.strip(evidence.of(stem), links, f"Verdicts on {PAPERS[stem].short}")


def _table(evidence: Evidence, links: PageLinks, ids: tuple[str, ...], first: frozenset[str], caption: str) -> str:
    rows = (render.row(evidence.verdicts[i], links, f"claim-{i}" if i in first else None) for i in ids)
    return render.table(rows, caption)


def _claim(evidence: Evidence, links: PageLinks, name: str) -> str:
    return f'<span class="claim-ref">{render.square(evidence.verdicts[name], links)}<code>{name}</code></span>'


def _ours(evidence: Evidence, links: PageLinks, name: str) -> str:
    verdict = evidence.verdicts[name]
    return f'<span class="claim-ours" title="{basis(verdict)}">{ours(verdict)}</span>'


def _masthead(evidence: Evidence, links: PageLinks, stem: str, scale: str) -> str:
    buttons = launch_links(stem, links.book.repository)
    opened = "".join(f'<a class="launch" href="{href}">Open in {name}</a>' for name, href in buttons.items())
    notebook = links.file(PUBLISHED.format(stem=stem))
    return (
        f'{_strip(evidence, links, stem)}<p class="masthead-standing">{render.standing(evidence, stem, scale)}</p>'
        f'<p class="masthead-launch">{opened}<a class="launch" href="{notebook}" download>Download .ipynb</a></p>'
    )


def _cards(evidence: Evidence, links: PageLinks) -> str:
    book = links.book
    return render.cards(evidence, links, {stem: (links.file(path), alt) for stem, (path, alt) in book.pictures.items()})


def _schema(evidence: Evidence, links: PageLinks) -> str:
    return render.schema(Record.model_json_schema(), links.file("_static/record.schema.json"))


DRAW: dict[str, Callable[..., str]] = {
    "matrix": render.matrix,
    "cards": _cards,
    "strip": _strip,
    "scorecard": render.scorecard,
    "table": _table,
    "masthead": _masthead,
    "schema": _schema,
    "claim": _claim,
    "ours": _ours,
    "theirs": lambda evidence, links, name: theirs(evidence.verdicts[name]),
}

DIRECTIVES = {
    "verdict-matrix": VerdictMatrix,
    "verdict-strip": VerdictStrip,
    "chapter-cards": ChapterCards,
    "claims-table": ClaimsTable,
    "scorecard": Scorecard,
    "masthead": Masthead,
    "record-schema": RecordSchema,
    "live-source": LiveSource,
    "benchmarks": Benchmarks,
    "costs": Costs,
}
ROLES = {"claim": ClaimRole, "ours": OursRole, "theirs": TheirsRole, "count": CountRole}


def schema_json() -> str:
    """The JSON Schema of a record."""
    return json.dumps(Record.model_json_schema(), indent=1) + "\n"
