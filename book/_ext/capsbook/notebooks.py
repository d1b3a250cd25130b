"""What executed chapters give to other pages and to phones, read from their notebooks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
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


class Front(NamedTuple):
    """What a chapter gives to the front page: its verdict line as Markdown, and a picture."""

    text: str
    picture: Picture | None


ANSWER = re.compile(r"^:::\{div\} answer\n(.*?)\n:::$", re.MULTILINE | re.DOTALL)


def front(executed: Path) -> Front:
    """Return the verdict line of an executed chapter, and the picture of its ``front`` cell."""
    notebook = nbformat.read(executed, as_version=4)
    line = None
    for cell in notebook.cells:
        line = line or ANSWER.search(cell.source)
    pictures = []
    for cell, output in _outputs(notebook):
        if SVG in output.get("data", {}) and "front" in cell.metadata.get("tags", []):
            pictures.append(_picture(cell, output))
    return Front(line[1] if line else "", pictures[0] if pictures else None)


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


def write_picture(front: Front, site: Path) -> None:
    """Write the picture of a chapter for the front page into the site."""
    if front.picture:
        for svg in filter(None, (front.picture.svg, front.picture.narrow)):
            write_if_changed(site / site_file(svg), svg.encode())


def write_if_changed(target: Path, content: bytes) -> None:
    """Write a file of the site unless it is there with that content."""
    if not target.is_file() or target.read_bytes() != content:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
