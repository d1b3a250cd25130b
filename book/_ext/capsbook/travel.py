"""Chapters that travel: a notebook that opens outside a checkout has plain Markdown, and fetches the module and the records it needs."""

from __future__ import annotations

import functools
import hashlib
import inspect
import pathlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from pybtex.database import parse_file

import capslib
from capsbook import sources
from capslib.lab import claims
from capslib.lab.runs import checkout
from capslib.papers import PAPERS

if TYPE_CHECKING:
    from capsbook import Book

FENCE = re.compile(
    r"^(?P<fence>`{3,}|:{3,})\{(?P<name>[\w-]+)\}[ \t]*(?P<of>.*)\n(?P<options>(?::[\w-]+:.*\n)*)(?P<body>(?:.*\n)*?)(?P=fence)[ \t]*$",
    re.M,
)
ROLE = re.compile(r"\{(?P<name>[a-z:]+)\}`(?P<of>[^`]+)`")
SETUP = """\
# Outside a checkout, as on Colab: installs this book's module as it was when the book was built, unless just that is installed,
# and fetches the records behind its verdicts. In a checkout it does nothing.
import hashlib, importlib.util, io, os, pathlib, sys, urllib.request, zipfile

SOURCE = "{source}"
BUILT = "{built}"
if sys.version_info < (3, 11):
    raise SystemExit("This book needs Python 3.11 or newer.")


{digest}

if not any((folder / "_toc.yml").exists() for folder in (pathlib.Path.cwd(), *pathlib.Path.cwd().parents)):
    there = importlib.util.find_spec("capslib")
    if there is None or digest(pathlib.Path(there.origin).parent) != BUILT:
        %pip uninstall --quiet --yes capslib
        %pip install --quiet "capslib[lab] @ {{SOURCE}}"
    with zipfile.ZipFile(io.BytesIO(urllib.request.urlopen(SOURCE).read())) as book:
        records = [name for name in book.namelist() if "/results/{stem}/" in name]
        book.extractall(members=records)
    if records:
        os.environ["CAPSLIB_RESULTS"] = str(pathlib.Path(records[0].partition("/")[0], "results").resolve())
"""


def source(repository: str, root: Path) -> str:
    """Return the address of the code and records of this build.

    That is the address of its revision, or of the release where git knows no revision.
    """
    version = checkout(root).revision or f"refs/tags/v{capslib.__version__}"
    return f"{repository}/archive/{version}.zip"


def digest(package: pathlib.Path) -> str:
    """Return a hash of a package's code, whatever ends its lines."""
    code = []
    for path in package.rglob("*.py"):
        content = path.read_bytes().replace(b"\r\n", b"\n")
        code.append((path.relative_to(package).as_posix(), content))
    return hashlib.sha256(repr(sorted(code)).encode()).hexdigest()


def setup(stem: str, source: str, root: Path) -> str:
    """The first cell of a notebook that travels."""
    return SETUP.format(
        source=source,
        stem=stem,
        built=digest(root / "capslib"),
        digest=inspect.getsource(digest),
    )


def citation(stem: str) -> str:
    """A paper as Markdown, with links to it and to its code."""
    paper = PAPERS[stem]
    links = " · ".join(f"[{name}]({url})" for name, url in paper.links.items())
    return f"{paper.authors}, *{paper.title}* ({paper.year}): {links}"


def plain(text: str, book: Book) -> str:
    """Markdown as a notebook shows it: directives and roles of the book become text, tables, code and formulas."""
    while found := FENCE.search(text):
        text = (
            text[: found.start()] + _directive(book, **found.groupdict()) + text[found.end() :]
        )
    text = ROLE.sub(lambda role: _role(book, **role.groupdict()), text)
    return re.sub(r"^\([\w-]+\)=\n", "", text, flags=re.M)  # the targets of links


def _directive(book: Book, fence: str, name: str, of: str, options: str, body: str) -> str:
    option = dict(re.findall(r"^:([\w-]+): *(.*)$", options, re.M))
    match name:
        case "live-source":
            found = sources.find_source(book.root, of, given=option.get("given", ""))
            place = found.path.relative_to(book.root).as_posix()
            return f"`{of.rpartition('.')[2]}` in [{place}]({book.blob(place, found.line)}):\n\n```python\n{found.text}\n```"
        case "math":
            return f"$$\n{of}{body.strip()}\n$$"
        case "masthead":
            return f"{citation(of)}."
        case "claims-table":
            rows = (claims.COLUMNS, *map(claims.row, book.evidence.of(of)))
            cells = [
                "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
                for row in rows
            ]
            return "\n".join([cells[0], "|---" * len(claims.COLUMNS) + "|", *cells[1:]])
        case "fold":
            return f"*{of}*"
        case "dropdown":
            return f"<details><summary>{of}</summary>\n\n{body}\n</details>"
    return f"**{of or name.capitalize()}**\n\n{body}"


def _role(book: Book, name: str, of: str) -> str:
    text, _, target = of.rstrip(">").partition("<")
    if name.startswith("cite"):
        return f"({'; '.join(_cited(book.bibliography, key.strip()) for key in of.split(','))})"
    if name == "numref":
        return "the figure"
    if name == "count":
        from capsbook.directives import count

        return str(count(book.evidence, of))
    if name == "claim":
        return f"**{of}** ({book.evidence.verdicts[of].word})"
    return text.strip() or target


@functools.cache
def _cited(bibliography: Path, key: str) -> str:
    """``Hinton et al., 2018``, as a link where the entry has an address."""
    entry = parse_file(str(bibliography)).entries[key]
    names = [" ".join(person.last_names).strip("{}") for person in entry.persons["author"]]
    said = f"{names[0] if len(names) == 1 else ' and '.join(names) if len(names) == 2 else names[0] + ' et al.'}, {entry.fields['year']}"
    doi = entry.fields.get("doi")
    address = f"https://doi.org/{doi}" if doi else entry.fields.get("url")
    return f"[{said}]({address})" if address else said
