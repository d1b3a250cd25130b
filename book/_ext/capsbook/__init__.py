"""The Sphinx extension of this book: claims, verdicts, records and live source on its pages.

This module connects the others to Sphinx::

    evidence    judges the claims; book keeps them between builds
    directives  what authors write; numbers in prose are in roles, and rounding writes them
    templating  draws HTML from templates; render and runs have what these call
    benchmarks  the tables of the speed page
    sources     finds code and tests; fixed_options leaves out what a page does not use
    microscope  couplings, iteration by iteration; digits has the network that runs in a page
    notebooks   what executed chapters give to other pages
    travel      publishes notebooks that run outside a checkout
    docstrings  prepares docstrings for the API pages
    pages       finishes pages

Sphinx reads a page again when its own text, a file that it shows, or the evidence changes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment

from capsbook import directives, notebooks, pages, roles, runs, travel
from capsbook.book import Book
from capslib.lab import claims
from capslib.lab.records import Record
from capslib.papers import WITH_TRIALS


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the extension to Sphinx."""
    folder = Path(__file__).parent
    app.add_config_value("capsbook_style", "", "html", [str])
    app.add_config_value("capsbook_bibliography", "", "env", [str])
    app.add_node(directives.FoldFrom)
    app.add_node(directives.Folded, html=(directives.visit_folded, directives.depart_folded))
    app.add_post_transform(directives.Folding)
    for name, directive in directives.DIRECTIVES.items():
        app.add_directive(name, directive)
    for name, role in roles.ROLES.items():
        app.add_role(name, role())
    app.connect("config-inited", configure)
    app.connect("builder-inited", offer_mathjax)
    app.connect("env-get-outdated", renew_evidence)
    app.connect("env-purge-doc", forget_page)
    app.connect("doctree-read", pages.name_code)
    app.connect("doctree-read", roles.write_alt_texts)
    app.connect("doctree-read", roles.leave_out_sentences)
    app.connect("env-updated", write_files)
    app.connect("html-page-context", pages.finish_page, priority=600)
    app.connect("build-finished", remove_old_images)
    app.connect("build-finished", stay_red, priority=900)
    return {
        "version": "1",
        "env_version": int(_hash([*folder.glob("*.py"), *folder.glob("templates/*")]), 16),
        "parallel_read_safe": False,
        "parallel_write_safe": True,
    }


def _hash(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def configure(app: Sphinx, config: Config) -> None:
    """Note the states of files that Sphinx does not watch, and where GitHub publishes the book.

    A changed style sheet or script has pages written again, a changed bibliography has them
    read.
    """
    source = Path(app.srcdir)
    static = source / config.html_static_path[0]
    config.capsbook_style = _hash([*static.glob("*.css"), *static.glob("*.js")])
    config.capsbook_bibliography = _hash(source / name for name in config.bibtex_bibfiles)
    repository = config.html_theme_options.get("repository_url", "")
    address = re.fullmatch(r"https://github\.com/([\w.-]+)/([\w.-]+?)/?", repository)
    if address:
        owner, name = address.groups()
        config.ogp_site_url = f"https://{owner}.github.io/{name}/"


def offer_mathjax(app: Sphinx) -> None:
    """Serve MathJax from the book itself.

    The package ``sphinx-mathjax-offline`` ships the release's files unchanged. Its SVG output
    holds the glyphs inside the script, so mathematics also shows at a ``file://`` address,
    where browsers refuse to load fonts.
    """
    package = importlib.util.find_spec("sphinx-mathjax-offline")
    if package is None or package.origin is None:
        raise ImportError("sphinx-mathjax-offline is missing: pip install -r requirements.txt")
    app.config.html_static_path.append(str(Path(package.origin).parent / "static"))


def renew_evidence(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> Iterable[str]:
    """Judge the claims again if a record or ``capslib`` changed; return the pages that show
    it."""
    if not hasattr(env, "capsbook"):
        env.capsbook = Book()
    env.capsbook.locate(app)
    return set(env.capsbook.pages) if env.capsbook.renew(Path(app.srcdir)) else ()


def forget_page(app: Sphinx, env: BuildEnvironment, page: str) -> None:
    """Forget a page before Sphinx reads it again, or after its file is gone."""
    env.capsbook.pages.discard(page)


def write_files(app: Sphinx, env: BuildEnvironment) -> None:
    """Write the files that pages link to into the site."""
    if app.builder.format != "html":
        return
    site, book = Path(app.outdir), env.capsbook
    if book.published != book.stamp or not (site / "_static" / "claims.json").is_file():
        verdicts = book.evidence.verdicts_of()
        files = {
            "claims.csv": runs.claims_csv(verdicts),
            "claims.json": claims.to_json(verdicts) + "\n",
            "record.schema.json": json.dumps(Record.model_json_schema(), indent=1) + "\n",
        }
        for stem in WITH_TRIALS:
            files[f"runs/{stem}.csv"] = runs.runs_csv(book.evidence.runs_of(stem))
        for name, text in files.items():
            notebooks.write_if_changed(site / "_static" / name, text.encode())
        book.published = book.stamp
    for executed in book.chapters.values():
        notebooks.write_picture(executed.front, site)
    travel.publish(Path(app.srcdir) / "notebooks", site, book)


def remove_old_images(app: Sphinx, error: Exception | None) -> None:
    """Delete the figures of earlier builds that no page shows any more.

    A figure is named after its content, so each change of one leaves the file before it.
    """
    if error is not None or app.builder.format != "html":
        return
    names = {name for _, name in app.env.images.values()}
    for file in Path(app.outdir, app.builder.imagedir).glob("*"):
        if file.is_file() and file.name not in names:
            file.unlink()


def stay_red(app: Sphinx, error: Exception | None) -> None:
    """Make Sphinx read every page again after a build with warnings.

    Sphinx warns only while it reads a page, and it reads an unchanged page once. Without this
    the second strict build of a broken book would pass.
    """
    if error is not None or app._warncount:
        Path(app.doctreedir, "environment.pickle").unlink(missing_ok=True)
