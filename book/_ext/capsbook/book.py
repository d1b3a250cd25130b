"""What the pages are made from, kept by Sphinx's environment between builds."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import capslib
from capsbook import evidence, notebooks
from capslib.lab.notebooks import page_of
from capslib.lab.store import Store
from capslib.papers import WITH_TRIALS

if TYPE_CHECKING:
    from sphinx.application import Sphinx

    from capsbook.evidence import Evidence
    from capslib.lab.ledger import Claim

SCORECARD = "book/scorecard"
RECORDS = "book/records"


def chapter_of(page: str) -> str:
    """Return the paper or the study whose page this is; empty for any other page."""
    stem = page.rpartition("/")[2]
    return stem if stem in WITH_TRIALS and page == page_of(stem) else ""


class Executed(NamedTuple):
    """What an executed chapter gives to other pages."""

    state: str
    front: notebooks.Front
    """For the front page."""
    claims: frozenset[str]
    """The claims that the chapter anchors as ``at-ID``: in a row, a cell or a sentence."""


class Book:
    """The evidence, the executed chapters, and the pages that show them."""

    evidence: Evidence

    def __init__(self) -> None:
        self.stamp = ""
        self.published = ""
        """The stamp of the evidence whose files the site has."""
        self.benchmarks = ""
        """The state of the committed tables of the benchmarks."""
        self.chapters: dict[str, Executed] = {}
        self.pages: set[str] = set()
        """The pages that show evidence."""

    def locate(self, app: Sphinx) -> None:
        """Note the folders and addresses of a build."""
        source = Path(app.srcdir)
        folder = os.environ.get("CAPSLIB_RESULTS")
        if folder is None:
            self.results = source / "results"
        else:
            self.results = Store(folder).check_not_empty().root
        in_checkout = (source / "capslib").is_dir()
        self.root = source if in_checkout else Path(capslib.__file__).parents[1]
        self.bibliography = source / app.config.bibtex_bibfiles[0]
        self.repository = app.config.html_theme_options.get("repository_url", "").rstrip("/")

    def renew(self, source: Path) -> bool:
        """Judge the claims and read the chapters again where something changed; say whether.

        A table of the benchmarks that is new, changed or gone counts too.
        """
        old = self._shown()
        stamp = evidence.stamp(self.results)
        if stamp != self.stamp:
            self.evidence = evidence.load(self.results)
            self.stamp = stamp
        self.benchmarks = evidence.state(self.tables_of_benchmarks)
        self.chapters = dict(self._read_chapters(source))
        return old != self._shown()

    def _shown(self) -> tuple:
        """Return what changes when a page that shows evidence has to change."""
        chapters = {}
        for stem, executed in self.chapters.items():
            chapters[stem] = (executed.front, executed.claims)
        return self.stamp, self.benchmarks, chapters

    @property
    def tables_of_benchmarks(self) -> list[Path]:
        """The committed table of every machine that ran the benchmarks."""
        return sorted((self.root / "benchmarks" / "results").glob("*.csv"))

    def _read_chapters(self, source: Path) -> Iterable[tuple[str, Executed]]:
        for stem in WITH_TRIALS:
            path = source / f"{page_of(stem)}.ipynb"
            if not path.is_file():
                continue
            state = evidence.state([path])
            previous = self.chapters.get(stem)
            if previous and previous.state == state:
                yield stem, previous
                continue
            anchored = re.findall(r'id=\\?"at-([^"\\]+)', path.read_text(encoding="utf-8"))
            yield stem, Executed(state, notebooks.front(path), frozenset(anchored))

    def blob(self, path: str, line: int | None = None) -> str:
        """Return the address of a file of the repository, or of a line of it."""
        address = f"{self.repository}/blob/main/{path}"
        return address if line is None else f"{address}#L{line}"


class Links:
    """The addresses of the book as one page writes them; None where there is no such place."""

    def __init__(self, app: Sphinx, page: str):
        self.app = app
        self.page = page
        self.book: Book = app.env.capsbook

    def _page(self, name: str) -> str | None:
        if name not in self.app.env.found_docs:
            return None
        return "" if name == self.page else self.app.builder.get_relative_uri(self.page, name)

    def chapter(self, stem: str) -> str | None:
        """Return the address of a paper's chapter."""
        return self._page(page_of(stem))

    def place(self, claim: Claim) -> str | None:
        """Return a claim's place in its chapter: its anchor ``at-ID``, else its row in the
        table of all."""
        address = self.chapter(claim.paper)
        if address is None:
            return None
        executed = self.book.chapters.get(claim.paper)
        kind = "at" if executed and claim.id in executed.claims else "claim"
        return f"{address}#{kind}-{claim.id}"

    def row(self, claim: Claim) -> str | None:
        """Return a claim's place in its chapter, or its row on the scorecard where there is no
        chapter."""
        return self.place(claim) or self.score(f"#claim-{claim.id}")

    def score(self, suffix: str = "") -> str | None:
        """Return the address of the scorecard, followed by a filter or an anchor."""
        address = self._page(SCORECARD)
        return None if address is None else address + suffix

    def file(self, path: str) -> str:
        """Return the address of a file of the site."""
        return "../" * self.page.count("/") + path

    def record(self, run: evidence.Run) -> str:
        """Return the address of the file of a run in the repository."""
        path = run.path.relative_to(self.book.results)
        return self.book.blob(f"results/{path.as_posix()}")

    def runs(self, anchor: str) -> str | None:
        """Return the address of a table of runs."""
        address = self._page(RECORDS)
        return None if address is None else f"{address}#{anchor}"


def runs_anchor(stem: str, experiment: str, scale: str) -> str:
    """Return the anchor of the runs of an experiment at a scale."""
    return f"runs-{stem}-{experiment}-{scale}"
