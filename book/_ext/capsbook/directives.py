"""The directives of the book's pages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import yaml
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

import capslib
from capsbook import benchmarks, sources
from capsbook.book import Links
from capsbook.templating import draw
from capsbook.travel import PUBLISHED, citation, launch_links
from capslib.papers import PAPERS

if TYPE_CHECKING:
    from sphinx.writers.html5 import HTML5Translator

    from capsbook.book import Book
    from capsbook.evidence import Evidence

logger = logging.getLogger(__name__)


class BookDirective(SphinxDirective):
    """What the directives of this book share."""

    @property
    def book(self) -> Book:
        """What the pages are made from."""
        return self.env.capsbook

    def evidence(self) -> Evidence:
        """Return the evidence; the page is read again when it changes."""
        self.book.pages.add(self.env.docname)
        return self.book.evidence

    @property
    def links(self) -> Links:
        """The addresses as this page writes them."""
        return Links(self.env.app, self.env.docname)

    def depend(self, path: Path) -> None:
        """Have the page read again when a file changes."""
        self.env.note_dependency(str(path))

    def draw(self, template: str, **values: object) -> nodes.raw:
        """Return what a template makes of the evidence."""
        html = draw(template, evidence=self.evidence(), links=self.links, **values)
        return nodes.raw("", html, format="html")

    def warn(self, text: str) -> list[nodes.Node]:
        """Warn, which makes the strict build fail, and show nothing."""
        logger.warning(f"{self.name}: {text}", location=self.get_location(), type="capsbook")
        return []


DRAWN = (
    "verdict-matrix",
    "paper-rows",
    "scorecard",
    "runs",
    "record-schema",
    "costs",
    "estimates",
)


class Drawn(BookDirective):
    """``{verdict-matrix}`` and the like: what the template of that name makes of the
    evidence."""

    def run(self) -> list[nodes.Node]:
        return [self.draw(self.name)]


class ClaimsTable(BookDirective):
    """``{claims-table} STEM``: the claims of a paper, in rows to which links to a claim lead.

    ``{claims-table} ID ID …`` shows these claims, of any papers, with links to their chapters.
    """

    required_arguments, optional_arguments = 1, 30

    def run(self) -> list[nodes.Node]:
        evidence = self.evidence()
        if self.arguments[0] in PAPERS:
            verdicts = evidence.verdicts_of(self.arguments[0])
            return [self.draw("claims-table", verdicts=verdicts, whole=True)]
        for name in self.arguments:
            if name not in evidence.verdicts:
                return self.warn(f"no paper or claim {name!r}")
        verdicts = [evidence.verdicts[name] for name in self.arguments]
        return [self.draw("claims-table", verdicts=verdicts, whole=False)]


class OfChapter(BookDirective):
    """A directive of the page of a paper."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        stem = self.arguments[0]
        return self.show(stem) if stem in PAPERS else self.warn(f"no paper {stem!r}")

    def show(self, stem: str) -> list[nodes.Node]:
        """Return what the page shows of a paper."""
        raise NotImplementedError


class Masthead(OfChapter):
    """``{masthead} STEM``: the citation of the paper, with links to it and its code."""

    def show(self, stem: str) -> list[nodes.Node]:
        cited = self.parse_text_to_nodes(f"{citation(stem)} {{cite}}`{PAPERS[stem].cite}`")
        return [nodes.container("", *cited, classes=["masthead"])]


class Headlines(OfChapter):
    """``{headlines} STEM``: what the paper claims, the verdict on each; and launch buttons."""

    def show(self, stem: str) -> list[nodes.Node]:
        table = self.draw(
            "headlines",
            stem=stem,
            scale=self._scale(),
            launch=launch_links(stem, self.book.repository),
            notebook=PUBLISHED.format(stem=stem),
        )
        return [table]

    def _scale(self) -> str:
        """Return the scale of this page's notebook, as ``capslib execute`` noted it."""
        path = Path(self.env.doc2path(self.env.docname))
        if path.suffix != ".ipynb":
            return ""
        noted = json.loads(path.read_text(encoding="utf-8"))["metadata"].get("capslib", {})
        return noted.get("parameters", {}).get("scale", "")


class Benchmarks(BookDirective):
    """``{benchmarks} shared``, ``layer`` or ``step``: committed measurements by machine.

    ``:chart:`` draws the times instead. ``{benchmarks} answer`` says in sentences how fast
    capslib is beside public repositories and beside the machine's limit.
    """

    required_arguments = 1
    option_spec: ClassVar = {"chart": directives.flag}

    def run(self) -> list[nodes.Node]:
        kind, machines = self.arguments[0], []
        if kind not in ("answer", *benchmarks.KINDS):
            return self.warn(f"{kind!r} is neither answer nor {', '.join(benchmarks.KINDS)}")
        self.book.pages.add(self.env.docname)
        for path in self.book.tables_of_benchmarks:
            rows = benchmarks.read(path)
            if kind != "answer":
                rows = [row for row in rows if row["kind"] == kind]
            if rows:
                machines.append(rows)
        template = "bars" if "chart" in self.options else "benchmarks"
        if kind == "answer":
            template = "answer"
        return [nodes.raw("", draw(template, machines=machines), format="html")]


class Microscope(BookDirective):
    """``{microscope}``: a toy under every routing that needs no training."""

    def run(self) -> list[nodes.Node]:
        from capsbook import microscope  # and torch, which no other page needs

        package = Path(capslib.__file__).parent
        files = [package / "registry.py", package / "lab" / "plots.py"]
        for path in (*files, *package.glob("routing/*.py")):
            self.depend(path)
        return [nodes.raw("", microscope.draw(), format="html")]


class DigitRouted(BookDirective):
    """``{digit-routed}``: test images in two CapsNets, which are trained for it."""

    def run(self) -> list[nodes.Node]:
        from capsbook import digits  # and torch

        package = Path(capslib.__file__).parent
        names = ("layers.py", "losses.py", "registry.py", "shapes.py", "training.py")
        files = [package / name for name in (*names, "lab/plots.py")]
        for path in (*files, *package.glob("routing/*.py"), *package.glob("data/*.py")):
            self.depend(path)
        networks = {routing: digits.train(routing) for routing in digits.ROUTINGS}
        return [nodes.raw("", digits.draw(networks), format="html")]


class Start(BookDirective):
    """``{start}``: the commands that fetch the repository, build the book and test it."""

    def run(self) -> list[nodes.Node]:
        address = self.book.repository
        commands = (
            f"git clone {address}",
            f"cd {address.rpartition('/')[2]}",
            "make book     # build this book",
            "make test     # run all tests",
        )
        text = "\n".join(commands)
        return [nodes.literal_block(text, text, language="shell")]


class Bibtex(BookDirective):
    """``{bibtex}``: how to cite the book, from ``CITATION.cff``.

    Index entries let the search find it by words that are not in it.
    """

    SEARCHED = ("BibTeX", "citation")

    def run(self) -> list[nodes.Node]:
        path = self.book.root / "CITATION.cff"
        self.depend(path)
        citation = yaml.safe_load(path.read_text(encoding="utf-8"))
        authors = [f"{{{author['name']}}}" for author in citation["authors"]]
        fields = {
            "title": f"{{{citation['title']}}}",
            "author": " and ".join(authors),
            "year": citation["date-released"][:4],
            "version": citation["version"],
            "url": self.book.repository,
        }
        lines = [f"  {name:7} = {{{value}}}" for name, value in fields.items()]
        text = ",\n".join(["@software{capsules_reproduced", *lines]) + "\n}"
        entries = [("single", word, self.name, "main", None) for word in self.SEARCHED]
        block = nodes.literal_block(text, text, language="bibtex", ids=[self.name])
        return [addnodes.index(entries=entries), block]


class LiveSource(BookDirective):
    """``{live-source} capslib.module.name``: the current source of a function or class.

    ``:test:`` names the test that holds code and equation together: a pytest id, or a check of
    a suite. It has to exist, and stands in the margin. ``:docstring:`` keeps the docstring.
    ``:given: bias=None vector=False`` leaves out options that the page does not use, with all
    that these values make dead.
    """

    required_arguments = 1
    option_spec: ClassVar = {
        "test": directives.unchanged,
        "docstring": directives.flag,
        "given": directives.unchanged,
    }

    def run(self) -> list[nodes.Node]:
        name, options = self.arguments[0], self.options.get("given", "")
        docstring = "docstring" in self.options
        try:
            source = sources.find_source(self.book.root, name, docstring, options)
        except sources.SourceNotFound as error:
            return self.warn(f"{name}: {error}")
        self.depend(source.path)
        listing = nodes.literal_block(source.text, source.text, language="python")
        self.set_source_info(listing)
        caption = self._caption(name, source)
        notes = self._left_out(options.split())
        box = nodes.container("", *caption, listing, *notes, classes=["live-source"])
        tests = self.options.get("test", "").replace(",", " ").split()
        return [self._margin(tests), box] if tests else [box]

    def _caption(self, name: str, source: sources.Source) -> list[nodes.Node]:
        path = source.path.relative_to(self.book.root).as_posix()
        address = self.book.blob(path, source.line)
        text = f"`{name.rpartition('.')[2]}` in [{path}, line {source.line}]({address})"
        documented = sources.in_api(self.book.root, name)
        if documented:
            text += f" · {{py:obj}}`API <{documented}>`"
        return self.parse_text_to_nodes(f"{{.live-source-caption}}\n{text}")

    def _left_out(self, options: Sequence[str]) -> list[nodes.Node]:
        if not options:
            return []
        values = ", ".join(f"`{option}`" for option in options)
        reason = "The listing leaves other values of these options out."
        return self.parse_text_to_nodes(
            f"{{.live-source-caption}}\nShown for {values}. {reason}"
        )

    def _margin(self, tests: Iterable[str]) -> nodes.Node:
        lines = ["Page and code are compared by"]
        for test in tests:
            try:
                place = sources.find_test(self.book.root, test)
            except sources.SourceNotFound as error:
                self.warn(f"{self.arguments[0]}: {error}")
                continue
            self.depend(place.path)
            path, _, name = test.partition("::")
            lines.append(f"[`{name}`]({self.book.blob(path, place.line)}) in `{path}`")
        text = self.parse_text_to_nodes("\n\n".join(lines))
        return nodes.sidebar("", *text, classes=["margin", "held-by"])


# ---------------------------------------------------------------------------------------- folds


class FoldFrom(nodes.General, nodes.Element):
    """The place in a section from which it is folded."""


class Folded(nodes.General, nodes.Element):
    """What is folded, under its ``summary``."""


def visit_folded(translator: HTML5Translator, node: Folded) -> None:
    summary = escape(node["summary"])
    translator.body.append(f'<details class="fold"><summary>{summary}</summary>\n')


def depart_folded(translator: HTML5Translator, node: Folded) -> None:
    translator.body.append("</details>\n")


class Fold(SphinxDirective):
    """``{fold} SUMMARY``: the rest of the section waits in a fold. Links into it open it."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        return [FoldFrom(summary=self.arguments[0])]


class Folding(SphinxPostTransform):
    """Put what follows a :class:`FoldFrom` in its section into a fold.

    That is after the reading, so that contents and numbers know all of it.
    """

    default_priority = 900

    def run(self, **kwargs: object) -> None:
        for marker in list(self.document.findall(FoldFrom)):
            section = marker.parent
            start = section.index(marker)
            inside = section[start + 1 :]
            del section[start:]
            section += Folded("", *inside, summary=marker["summary"])


DIRECTIVES = dict.fromkeys(DRAWN, Drawn) | {
    "claims-table": ClaimsTable,
    "headlines": Headlines,
    "masthead": Masthead,
    "fold": Fold,
    "microscope": Microscope,
    "digit-routed": DigitRouted,
    "start": Start,
    "bibtex": Bibtex,
    "live-source": LiveSource,
    "benchmarks": Benchmarks,
}
