"""What executed chapters give to other pages and to phones, read from their notebooks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import nbformat

from capslib.lab.plots import NARROW

if TYPE_CHECKING:
    from nbformat import NotebookNode

SVG = "image/svg+xml"


class Picture(NamedTuple):
    """A picture of the front page: its alt text, its SVG, and that for a phone where there is
    one."""

    alt: str
    svg: str
    narrow: str

    @property
    def wide(self) -> bool:
        """Whether it takes a row of its own."""
        width = re.search(r'<svg[^>]* width="([\d.]+)pt"', self.svg)
        return width is not None and float(width[1]) > 300


class Front(NamedTuple):
    """What a chapter gives to the front page: a sentence of its verdict box as HTML, and a
    picture."""

    text: str
    picture: Picture | None


def front(executed: Path) -> dict[str, Front]:
    """Return what an executed chapter gives to the front page, by name.

    ``found`` and ``surprise`` are the sentences of its verdict box, each with the first picture
    of the cell tagged ``front-NAME``. ``thumbnail`` is the picture of its card.
    """
    notebook = nbformat.read(executed, as_version=4)
    box = ""
    pictures: dict[str, Picture] = {}
    for cell, output in _outputs(notebook):
        html = "".join(output.get("data", {}).get("text/html", ""))
        if 'verdict-box"' in html and not box:
            box = html
        if SVG in output.get("data", {}):
            for name in cell.metadata.get("tags", []):
                pictures.setdefault(name.removeprefix("front-"), _picture(cell, output))
    fronts = {}
    for name in ("found", "surprise", "thumbnail"):
        sentence = re.search(rf'<p class="box-{name}"><b>.*?</b>(.*?)</p>', box, re.S)
        if sentence or name in pictures:
            text = sentence[1].strip() if sentence else ""
            fronts[name] = Front(text, pictures.get(name))
    return fronts


def narrow(executed: Path) -> dict[str, bytes]:
    """Return the forms for a phone of a chapter's figures, by the name that MyST-NB gives the
    wide ones."""
    figures = {}
    for cell, output in _outputs(nbformat.read(executed, as_version=4)):
        if SVG not in output.get("data", {}):
            continue
        picture = _picture(cell, output)
        if picture.narrow:
            wide = "\n".join(picture.svg.splitlines())
            figures[hashlib.sha256(wide.encode()).hexdigest()] = picture.narrow.encode()
    return figures


def _outputs(notebook: NotebookNode) -> Iterator[tuple[NotebookNode, NotebookNode]]:
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            yield cell, output


def _picture(cell: NotebookNode, output: NotebookNode) -> Picture:
    alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
    small = output.get("metadata", {}).get(SVG, {}).get(NARROW, "")
    return Picture(alt, "".join(output["data"][SVG]), "".join(small))


def site_file(svg: str) -> str:
    """Return the place of a picture in the site: it is named after its content."""
    return f"_static/cards/{hashlib.sha256(svg.encode()).hexdigest()[:16]}.svg"


def write_pictures(fronts: Mapping[str, Front], site: Path) -> None:
    """Write the pictures of a chapter for the front page into the site."""
    for front in fronts.values():
        picture = front.picture
        for svg in (picture.svg, picture.narrow) if picture else ():
            if svg:
                write_if_changed(site / site_file(svg), svg.encode())


def write_if_changed(target: Path, content: bytes) -> None:
    """Write a file of the site unless it is there with that content."""
    if not target.is_file() or target.read_bytes() != content:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
