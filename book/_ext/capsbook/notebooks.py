"""Runnable notebooks: the site publishes clean ``.ipynb`` files, because the repository keeps only ``.py``, and buttons open them.

The Pages workflow pushes the built site to the branch ``gh-pages``. There each notebook has an address on GitHub, which Colab and
Binder can open.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

import jupytext
import nbformat

from capsbook import travel
from capslib.lab.plots import NARROW

if TYPE_CHECKING:
    from capsbook import Book

PUBLISHED = "_static/notebooks/{stem}.ipynb"
BRANCH = "gh-pages"


def runnable(source: Path, setup: str, plain: Callable[[str], str]) -> nbformat.NotebookNode:
    """Turn a ``py:percent`` file into a notebook without outputs, with ``setup`` as its first cell and ``plain`` Markdown."""
    notebook = jupytext.read(source)
    for cell in list(notebook.cells):
        if cell.cell_type == "markdown":
            cell.source = plain(cell.source)
        if caption := cell.metadata.get("mystnb", {}).get("figure", {}).get("caption"):
            under = notebook.cells.index(cell) + 1
            notebook.cells.insert(
                under, nbformat.v4.new_markdown_cell(f"*Figure.* {plain(caption)}")
            )
    install = nbformat.v4.new_code_cell(setup, id="install-capslib")
    notebook.cells.insert(0, install)
    for n, cell in enumerate(notebook.cells[1:]):
        cell["id"] = f"cell-{n}"  # jupytext draws random ids; one source must give one file
    notebook.metadata.kernelspec = {
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "name": "python3",
    }
    notebook.metadata.pop("jupytext", None)
    nbformat.validate(notebook)
    return notebook


def publish(folder: Path, site: Path, book: Book) -> None:
    """Write every notebook of ``folder`` into the site, and the requirements that Binder installs."""
    archive = travel.source(book.repository, book.root)
    for source in sorted(folder.glob("*.py")):
        target = site / PUBLISHED.format(stem=source.stem)
        target.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(
            runnable(
                source,
                travel.setup(source.stem, archive, book.root),
                lambda text: travel.plain(text, book),
            ),
            target,
        )
    binder = site / "binder" / "requirements.txt"
    binder.parent.mkdir(exist_ok=True)
    binder.write_text(
        f"--extra-index-url https://download.pytorch.org/whl/cpu\njupyterlab>=4\ncapslib[lab] @ {archive}\n",
        encoding="utf-8",
    )


def launch_links(stem: str, repository: str) -> dict[str, str]:
    """The addresses at which Colab and Binder open a chapter's published notebook."""
    name = repository.rstrip("/").removesuffix(".git").split("github.com/")[-1]
    path = PUBLISHED.format(stem=stem)
    return {
        "Colab": f"https://colab.research.google.com/github/{name}/blob/{BRANCH}/{path}",
        "Binder": f"https://mybinder.org/v2/gh/{name}/{BRANCH}?urlpath={quote(f'lab/tree/{path}', safe='')}",
    }


class Picture(NamedTuple):
    """A picture of the front page: its alt text, its address and that of its form for a phone, and whether it takes a row of its own.

    In :func:`front` the addresses are still the SVG itself.
    """

    alt: str
    source: str
    narrow: str = ""
    wide: bool = False


class Front(NamedTuple):
    """What a chapter gives to the front page: a sentence of its verdict box as HTML, and a picture."""

    text: str
    picture: Picture | None


def front(executed: Path) -> dict[str, Front]:
    """The sentences *found* and *surprise* of a chapter's verdict box, each with the first SVG of the cell tagged ``front-NAME``.

    ``thumbnail`` has the picture of the chapter's card and no sentence. What a chapter lacks is left out.
    """
    if not executed.is_file():
        return {}
    notebook = nbformat.read(executed, as_version=4)
    cells = [c for c in notebook.cells if c.cell_type == "code"]
    shown = [(cell, output) for cell in cells for output in cell.get("outputs", [])]
    box = next(
        (
            html
            for _, o in shown
            if 'verdict-box"' in (html := "".join(o.get("data", {}).get("text/html", "")))
        ),
        "",
    )
    found = {}
    for name in ("found", "surprise", "thumbnail"):
        text = re.search(rf'<p class="box-{name}"><b>.*?</b>(.*?)</p>', box, re.S)
        tag = name if name == "thumbnail" else f"front-{name}"
        pictures = [
            _picture(c, o)
            for c, o in shown
            if tag in c.metadata.get("tags", []) and "image/svg+xml" in o.get("data", {})
        ]
        if text or pictures:
            found[name] = Front(
                text[1].strip() if text else "", pictures[0] if pictures else None
            )
    return found


def _picture(cell: nbformat.NotebookNode, output: nbformat.NotebookNode) -> Picture:
    svg, small = (
        output["data"]["image/svg+xml"],
        output.get("metadata", {}).get("image/svg+xml", {}).get(NARROW, ""),
    )
    drawn = re.search(r'<svg[^>]* width="([\d.]+)pt"', "".join(svg))
    alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
    return Picture(
        alt, "".join(svg), "".join(small), wide=bool(drawn) and float(drawn[1]) > 300
    )


def narrow(executed: Path) -> dict[str, bytes]:
    """The forms for a phone of an executed notebook's figures, by the name that MyST-NB gives to the wide ones."""
    if not executed.is_file():
        return {}
    found = {}
    for output in (
        o
        for cell in nbformat.read(executed, as_version=4).cells
        for o in cell.get("outputs", [])
    ):
        if small := output.get("metadata", {}).get("image/svg+xml", {}).get(NARROW):
            wide = "\n".join("".join(output["data"]["image/svg+xml"]).splitlines())
            found[hashlib.sha256(wide.encode()).hexdigest()] = "".join(small).encode()
    return found


def write_if_changed(target: Path, content: bytes) -> None:
    """Write a file of the site unless it is there with that content: an unchanged build writes nothing."""
    if not target.is_file() or target.read_bytes() != content:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
