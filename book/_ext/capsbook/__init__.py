"""The Sphinx extension of this book: claims, verdicts, records and live source on its pages.

``evidence`` judges the claims, ``render`` turns them into HTML, ``sources`` finds code and tests, ``notebooks`` publishes runnable
notebooks, and ``directives`` holds what authors write. This module connects them to Sphinx. It keeps pages fresh: Sphinx reads a
page again exactly when a verdict, a record, a shown source file or this extension changes.
"""

from __future__ import annotations

import functools
import hashlib
import html
import importlib.util
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import capslib
from capsbook import directives, notebooks, runs
from capsbook.evidence import Evidence, load
from capslib.lab import claims
from capslib.lab.store import Store
from capslib.papers import PAPERS


class Book:
    """What the extension knows about the pages. Sphinx's environment keeps it between builds, except for the evidence."""

    def __init__(self) -> None:
        self.uses: dict[str, dict[str, str]] = {}
        """For each page: what it shows, with the hash that this had when Sphinx read the page."""
        self.places: dict[str, tuple[str, str]] = {}
        """For each claim: the page and anchor of its row in a chapter."""
        self.scorecard = ""
        self.experiments: dict[str, tuple[str, str]] = {}
        """For each claim: the page and anchor of its row in the table of the experiment that tests it."""
        self.fronts: dict[str, dict[str, notebooks.Front]] = {}
        """For each chapter, by name: a sentence for the front page and its picture."""
        self.assets = ""
        """A hash of style sheet, scripts and bibliography: Sphinx looks at them only when it writes or reads a page."""

    def open(self, app: Sphinx) -> None:
        """Start a build: note its folders, and forget the evidence of the last one."""
        self.__dict__.pop("evidence", None)
        named = os.environ.get("CAPSLIB_RESULTS")
        self.results = (
            Path(app.srcdir) / "results" if named is None else Store(named).check_there().root
        )
        self.root = (
            Path(app.srcdir)
            if (Path(app.srcdir) / "capslib").is_dir()
            else Path(capslib.__file__).parents[1]
        )
        self.bibliography = Path(app.srcdir, app.config.bibtex_bibfiles[0])
        self.repository = app.config.html_theme_options.get("repository_url", "").rstrip("/")

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "evidence"}

    @functools.cached_property
    def evidence(self) -> Evidence:
        return load(self.results)

    def blob(self, path: str, line: int) -> str:
        """The address of a line of the repository."""
        return f"{self.repository}/blob/main/{path}#L{line}"

    def use(self, page: str, what: str | Path) -> None:
        """Note that a page shows something: ``verdicts``, ``schema``, or a file."""
        self.uses.setdefault(page, {})[str(what)] = self.state(what)

    def state(self, what: str | Path) -> str:
        """A hash of something that pages show: ``verdicts``, ``schema``, or a file."""
        if what == "verdicts":
            content = f"{self.evidence.fingerprint} {sorted(self.fronts.items())}".encode()
        elif what == "schema":
            content = directives.schema_json().encode()
        else:
            content = Path(what).read_bytes() if Path(what).is_file() else b""
        return hashlib.sha256(content).hexdigest()

    def forget(self, page: str) -> None:
        """Forget a page before Sphinx reads it again, or after its file is gone."""
        self.uses.pop(page, None)
        self.places = {claim: place for claim, place in self.places.items() if place[0] != page}
        self.experiments = {
            claim: place for claim, place in self.experiments.items() if place[0] != page
        }
        self.scorecard = "" if self.scorecard == page else self.scorecard


def _hash(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _code() -> int:
    """A number that changes with this extension's code, so that Sphinx then reads every page again."""
    return int(_hash(Path(__file__).parent.glob("*.py"))[:8], 16)


def _outdated(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> Iterable[str]:
    if not hasattr(env, "capsbook"):
        env.capsbook = Book()
    book: Book = env.capsbook
    book.open(app)
    book.fronts = dict(_fronts(app))
    files = [p for d in app.config.html_static_path[:1] for p in Path(app.srcdir, d).glob("*")]
    assets, book.assets = book.assets, _hash([*files, book.bibliography])
    app._capsbook_before = _linked(env)
    if book.assets != assets:
        return env.all_docs
    now = functools.cache(book.state)
    return [
        page
        for page, seen in book.uses.items()
        if any(now(what) != state for what, state in seen.items())
    ]


def _linked(env: BuildEnvironment) -> tuple:
    """All that links between claims and pages depend on."""
    book: Book = env.capsbook
    return dict(book.places), dict(book.experiments), book.scorecard, sorted(env.all_docs)


def _note_experiments(app: Sphinx, page: str, source: list[str]) -> None:
    """Note which claims have a row in the table of an experiment, which the output of a cell shows."""
    for claim in re.findall(r'id=\\?"at-([^"\\]+)', source[0]):
        app.env.capsbook.experiments.setdefault(claim, (page, f"at-{claim}"))


def _updated(app: Sphinx, env: BuildEnvironment) -> Iterable[str]:
    """The pages to write again because links between claims and pages changed."""
    book: Book = env.capsbook
    if app._capsbook_before == _linked(env):
        return []
    return [page for page, seen in book.uses.items() if "verdicts" in seen]


def _fronts(app: Sphinx) -> Iterable[tuple[str, dict[str, notebooks.Front]]]:
    """Copy what each executed chapter gives to the front page into the site."""
    for stem in PAPERS:
        executed = Path(app.srcdir) / f"{app.config.capsbook_chapter.format(stem=stem)}.ipynb"
        found = notebooks.front(executed)
        for name, front in found.items():
            if front.picture:
                drawn = {
                    form: getattr(front.picture, form).encode() for form in ("source", "narrow")
                }
                paths = {
                    form: f"_static/cards/{stem}-{name}-{form}.svg"
                    for form, svg in drawn.items()
                    if svg
                }
                for form, path in paths.items():
                    notebooks.write_if_changed(Path(app.outdir) / path, drawn[form])
                    paths[form] += f"?{hashlib.sha256(drawn[form]).hexdigest()[:8]}"
                found[name] = front._replace(picture=front.picture._replace(**paths))
        if found:
            yield stem, found


def _name_code(app: Sphinx, doctree: nodes.document) -> None:
    """Name the folded code of a cell by what it shows, where ``nb_code_prompt_show`` leaves that open: a figure, a table …"""
    for cell in doctree.findall(
        lambda node: isinstance(node, nodes.container) and "prompt_show" in node
    ):
        shows = {
            "figure": any(
                isinstance(node, nodes.image | nodes.figure) for node in cell.findall()
            ),
            "table": any(
                re.search("<table|<details", raw.astext()) for raw in cell.findall(nodes.raw)
            ),
            "text below": len(cell.children) > 1,
        }
        what = next((name for name, found in shows.items() if found), "set-up")
        for prompt in ("prompt_show", "prompt_hide"):
            cell[prompt] = cell[prompt].replace("{type}", what)


def _for_screen_readers(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Take out what misleads a screen reader: roles that the bibliography cannot keep, and one name for all folds of code."""
    body = context.get("body", "")
    if 'role="doc-biblioentry"' in body:
        body = re.sub(r' role="(?:list|doc-biblioentry)"', "", body)
    context["body"] = body.replace('<summary aria-label="Toggle hidden content">', "<summary>")


def _code_that_wraps(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Let a narrow screen wrap a long line of code at its indentation, and no option of a command within itself."""

    def line(found: re.Match) -> str:
        text = html.unescape(re.sub("<[^>]*>", "", found[0]))
        indent = len(text) - len(text.lstrip(" "))
        return (
            f'<span class="line" style="--in:{indent}">{found[0]}</span>'
            if len(text) > 45
            else found[0]
        )

    def block(found: re.Match) -> str:
        code = found[3]
        if found[2] in ("shell", "bash", "sh", "console"):
            code = re.sub(
                r"(?<![\w<-])--?[a-z][\w-]*", r'<span class="whole">\g<0></span>', code
            )
        return found[1] + re.sub(r"[^\n]*\n", line, code) + found[4]

    listing = re.compile(
        r'(<div class="highlight-([\w-]+)[^>]*><div class="highlight"><pre>)(.*?)(</pre>)', re.S
    )
    context["body"] = listing.sub(block, context.get("body", ""))


def _figures_for_phones(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Give narrow screens the form of a chapter's figures whose panels stand one under the other."""
    stem = pagename.rpartition("/")[2]
    if pagename != app.config.capsbook_chapter.format(stem=stem):
        return
    for name, svg in notebooks.narrow(Path(app.srcdir, f"{pagename}.ipynb")).items():
        path = f"_static/narrow/{name}.svg"
        source = f'<source media="(max-width: 640px)" srcset="{context["pathto"](path, 1)}"/>'
        shown = rf'<img [^>]*src="[^"]*{name}\.svg"[^>]*>'
        context["body"], used = re.subn(
            shown, rf"<picture>{source}\g<0></picture>", context["body"]
        )
        if used:
            notebooks.write_if_changed(Path(app.outdir) / path, svg)


def _header_buttons(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Offer to edit a page where it is written, and on a chapter's page its published notebook: the theme knows of neither."""
    if "header_buttons" not in context or doctree is None:
        return
    stem, buttons, repository = (
        pagename.rpartition("/")[2],
        context["header_buttons"],
        app.env.capsbook.repository,
    )
    chapter = pagename == app.config.capsbook_chapter.format(stem=stem)
    written = f"notebooks/{stem}.py" if chapter else app.env.doc2path(pagename, base=False)
    edit = {
        "type": "link",
        "url": f"{repository}/edit/main/{written}",
        "tooltip": "Edit this page",
        "icon": "fas fa-pencil-alt",
    }
    buttons.insert(0, edit | {"label": "edit-button"})
    if chapter:
        download = context["pathto"](notebooks.PUBLISHED.format(stem=stem), 1)
        offers = [
            (f"Open in {name}", url)
            for name, url in notebooks.launch_links(stem, repository).items()
        ]
        run = [
            {"type": "link", "url": url, "text": text}
            for text, url in [*offers, ("Download .ipynb", download)]
        ]
        group = {
            "type": "group",
            "tooltip": "Run this chapter",
            "icon": "fas fa-rocket",
            "label": "launch-buttons",
        }
        buttons.insert(0, group | {"buttons": run})


def _finish(app: Sphinx, error: Exception | None) -> None:
    """Write the files that pages link to into the site: records and their pages, claims, notebooks, the schema."""
    if error is not None or app.builder.format != "html":
        return
    site, evidence = Path(app.outdir), app.env.capsbook.evidence
    users = claims.by_record(evidence.of())
    for record in (r for of in evidence.runs.values() for r in of):
        path = evidence.records[record.key]
        target = site / "records" / path.relative_to(evidence.root)
        notebooks.write_if_changed(target, path.read_bytes())
        up = "../" * len(target.relative_to(site).parents[:-1])
        page = runs.page(record, users.get(record.key, ()), up, target.name)
        notebooks.write_if_changed(target.with_suffix(".html"), page.encode())
    (site / "_static" / "claims.csv").write_text(
        runs.claims_csv(evidence.of()), encoding="utf-8"
    )
    (site / "_static" / "claims.json").write_text(
        claims.to_json(evidence.of()) + "\n", encoding="utf-8"
    )
    notebooks.publish(Path(app.srcdir) / "notebooks", site, app.env.capsbook)
    (site / "_static" / "record.schema.json").write_text(
        directives.schema_json(), encoding="utf-8"
    )


def _stay_red(app: Sphinx, error: Exception | None) -> None:
    """Make Sphinx read every page again after a build with warnings.

    Sphinx warns only while it reads a page, and it reads an unchanged page once. Without this the second strict build of a broken
    book would pass.
    """
    if error is not None or app._warncount:
        Path(app.doctreedir, "environment.pickle").unlink(missing_ok=True)


def _offline_mathjax(app: Sphinx) -> None:
    """Serve MathJax from the book itself. The package ``sphinx-mathjax-offline`` ships the release's files unchanged.

    Its SVG output holds the glyphs inside the script, so mathematics also shows at a ``file://`` address, where browsers refuse
    to load fonts.
    """
    package = importlib.util.find_spec("sphinx-mathjax-offline")
    if package is None or package.origin is None:
        raise ImportError(
            "MathJax is missing: pip install -r requirements.txt (package sphinx-mathjax-offline)"
        )
    app.config.html_static_path.append(str(Path(package.origin).parent / "static"))


def _published_at(app: Sphinx, config: Any) -> None:
    """Set the address that link previews name: where GitHub publishes this repository's book."""
    address = config.html_theme_options.get("repository_url", "")
    if "ogp_site_url" in config and (
        found := re.fullmatch(r"https://github\.com/([\w.-]+)/([\w.-]+?)/?", address)
    ):
        config.ogp_site_url = "https://{}.github.io/{}/".format(*found.groups())


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("capsbook_chapter", "book/papers/{stem}", "env", [str])
    app.add_node(directives.evidence_html, html=(directives.visit_evidence, None))
    app.add_node(directives.fold_from)
    app.add_node(directives.fold, html=(directives.visit_fold, directives.depart_fold))
    app.add_post_transform(directives.Folding)
    for name, directive in directives.DIRECTIVES.items():
        app.add_directive(name, directive)
    for name, role in directives.ROLES.items():
        app.add_role(name, role())
    app.connect("config-inited", _published_at)
    app.connect("builder-inited", _offline_mathjax)
    app.connect("env-get-outdated", _outdated)
    app.connect(
        "env-purge-doc",
        lambda app, env, page: env.capsbook.forget(page) if hasattr(env, "capsbook") else None,
    )
    app.connect("source-read", _note_experiments)
    app.connect("doctree-read", _name_code)
    app.connect("doctree-read", directives.below_the_box)
    app.connect("env-updated", _updated)
    app.connect("html-page-context", _header_buttons, priority=600)
    app.connect("html-page-context", _for_screen_readers)
    app.connect("html-page-context", _code_that_wraps)
    app.connect("html-page-context", _figures_for_phones)
    app.connect("build-finished", _finish)
    app.connect("build-finished", _stay_red, priority=900)
    return {
        "version": "1",
        "env_version": _code(),
        "parallel_read_safe": False,
        "parallel_write_safe": True,
    }
