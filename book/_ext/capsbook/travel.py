"""Chapters that travel: notebooks that open outside a checkout.

They have plain Markdown, and fetch the module and the records that they need. The repository
keeps only ``.py``; the site publishes ``.ipynb`` files without outputs. The Pages workflow
pushes the built site to the branch ``gh-pages``. There each notebook has an address on GitHub,
which Colab and Binder can open.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import pathlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import jupytext
import nbformat
from pybtex.database import parse_file

import capslib
from capsbook import roles, sources
from capsbook.notebooks import write_if_changed
from capslib.lab import claims
from capslib.lab.headlines import judged
from capslib.lab.provenance import checkout
from capslib.papers import PAPERS

if TYPE_CHECKING:
    from nbformat import NotebookNode

    from capsbook.book import Book

PUBLISHED = "_static/notebooks/{stem}.ipynb"
BRANCH = "gh-pages"
FENCE = re.compile(
    r"^(?P<fence>`{3,}|:{3,})\{(?P<name>[\w-]+)\}[ \t]*(?P<argument>.*)\n"
    r"(?P<options>(?::[\w-]+:.*\n)*)"
    r"(?P<body>(?:.*\n)*?)(?P=fence)[ \t]*$",
    re.M,
)
ROLE = re.compile(r"\{(?P<name>[a-z:]+)\}`(?P<target>[^`]+)`")
LABEL = re.compile(r":label: *([\w-]+)")
SETUP = """\
# Outside a checkout, as on Colab: installs this book's module as it was when the book was
# built, unless just that is installed, and fetches the records behind its verdicts.
# In a checkout it does nothing.
import hashlib, importlib.util, io, os, pathlib, sys, urllib.request, zipfile

SOURCE = "{source}"
BUILT = "{built}"
if sys.version_info < (3, 11):
    raise SystemExit("This book needs Python 3.11 or newer.")


{digest}

here = pathlib.Path.cwd()
if not any((folder / "_toc.yml").exists() for folder in (here, *here.parents)):
    package = importlib.util.find_spec("capslib")
    if package is None or digest(pathlib.Path(package.origin).parent) != BUILT:
        %pip uninstall --quiet --yes capslib
        %pip install --quiet "capslib[lab] @ {{SOURCE}}"
    with zipfile.ZipFile(io.BytesIO(urllib.request.urlopen(SOURCE).read())) as book:
        records = [name for name in book.namelist() if "/results/{stem}/" in name]
        book.extractall(members=records)
    if records:
        results = pathlib.Path(records[0].partition("/")[0], "results")
        os.environ["CAPSLIB_RESULTS"] = str(results.resolve())
"""


def archive_of(repository: str, root: Path) -> str:
    """Return the address of the code and records of this build.

    That is the address of its revision, or of the release where git knows no revision.
    """
    version = checkout(root).revision or f"refs/tags/v{capslib.__version__}"
    return f"{repository}/archive/{version}.zip"


def digest(package: pathlib.Path) -> str:
    """Return a hash of a package's code and ledger, whatever ends their lines.

    The first cell of a notebook has this function, so it uses only what that cell imports.
    """
    files = []
    for path in (*package.rglob("*.py"), *package.rglob("*.csv")):
        content = path.read_bytes().replace(b"\r\n", b"\n")
        files.append((path.relative_to(package).as_posix(), content))
    return hashlib.sha256(repr(sorted(files)).encode()).hexdigest()


def first_cell(stem: str, archive: str, root: Path) -> str:
    """Return the first cell of a notebook that travels."""
    built, code = digest(root / "capslib"), inspect.getsource(digest)
    return SETUP.format(source=archive, stem=stem, built=built, digest=code)


def citation(stem: str) -> str:
    """Return a paper as Markdown, with links to it and to its code, or that there is none."""
    paper = PAPERS[stem]
    links = []
    for name, address in paper.links.items():
        links.append(f"[{name}]({address})" if address else f"no {name}")
    return f"{paper.authors}, *{paper.title}* ({paper.year}): {' · '.join(links)}"


def plain(text: str, book: Book, paper: str) -> str:
    """Return Markdown as a notebook shows it.

    Directives and roles of the book become text, tables, code and formulas.
    """
    fence = FENCE.search(text)
    while fence:
        text = text[: fence.start()] + _directive(book, fence) + text[fence.end() :]
        fence = FENCE.search(text)
    text = ROLE.sub(lambda role: _role(book, role["name"], role["target"], paper), text)
    return re.sub(r"^\([\w-]+\)=\n", "", text, flags=re.M)  # the targets of links


def _directive(book: Book, fence: re.Match) -> str:
    argument, body = fence["argument"], fence["body"]
    match fence["name"]:
        case "live-source":
            options = dict(re.findall(r"^:([\w-]+): *(.*)$", fence["options"], re.M))
            listing = sources.find_source(book.root, argument, options=options.get("given", ""))
            file = listing.path.relative_to(book.root).as_posix()
            link = f"[{file}]({book.blob(file, listing.line)})"
            name = argument.rpartition(".")[2]
            return f"`{name}` in {link}:\n\n```python\n{listing.text}\n```"
        case "math":
            label = re.search(LABEL, fence["options"])
            tag = f" \\tag{{{_equation_numbers(book.root)[label[1]]}}}" if label else ""
            return f"$$\n{argument}{body.strip()}{tag}\n$$"
        case "masthead":
            return f"{citation(argument)}."
        case "headlines":
            headlines = judged(book.evidence.verdicts_of(argument))
            rows = [(headline.sentence, headline.verdict) for headline in headlines]
            return _table(("The paper claims", "Verdict"), rows)
        case "div":
            return body
        case "claims-table":
            if argument in PAPERS:
                verdicts = book.evidence.verdicts_of(argument)
            else:
                verdicts = [roles.verdict_on(book, claim) for claim in argument.split()]
            return _table(claims.COLUMNS, map(claims.row, verdicts))
        case "fold":
            return f"*{argument}*"
        case "dropdown":
            return f"<details><summary>{argument}</summary>\n\n{body}\n</details>"
    return f"**{argument or fence['name'].capitalize()}**\n\n{body}"


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(map(_table_row, [columns, ("---",) * len(columns), *rows]))


def _table_row(cells: tuple[str, ...]) -> str:
    escaped = [cell.replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"


def _role(book: Book, name: str, target: str, paper: str) -> str:
    if name in roles.NUMBERS:
        number = roles.NUMBERS[name](book, target, paper)
        return "not run yet" if number is None else number
    if name.startswith("cite"):
        cited = [_cited(book.bibliography, key.strip()) for key in target.split(",")]
        return f"({'; '.join(cited)})"
    if name == "numref":
        return "the figure"
    if name == "eq":
        return f"({_equation_numbers(book.root)[target]})"
    if name == "claim":
        return f"**{target}** ({roles.verdict_on(book, target).word})"
    title, explicit, address = target.rstrip(">").partition("<")
    if name == "doc":
        return _page(book, address if explicit else title, title.strip() if explicit else "")
    return title.strip() or address


def _page(book: Book, address: str, title: str) -> str:
    """Return a link to the source of a page; by default its title is the page's own."""
    path = address.removeprefix("/book/").removeprefix("/")
    chapter = f"notebooks/{path.removeprefix('papers/')}.py"
    file = chapter if (book.root / chapter).is_file() else f"book/{path}.md"
    text = (book.root / file).read_text(encoding="utf-8")
    heading = re.search(r"^(?:# )?# (.+)$", text, re.M)
    return f"[{title or heading[1]}]({book.blob(file)})"


def _equation_numbers(root: Path) -> dict[str, int]:
    """Return the number of each labelled equation: its place among those of its chapter."""
    numbers = {}
    for path in root.glob("notebooks/*.py"):
        labels = re.findall(LABEL, path.read_text(encoding="utf-8"))
        numbers |= {label: number for number, label in enumerate(labels, 1)}
    return numbers


@functools.cache
def _cited(bibliography: Path, key: str) -> str:
    """Return ``Hinton et al., 2018``, as a link where the entry has an address."""
    entry = parse_file(str(bibliography)).entries[key]
    names = [" ".join(person.last_names).strip("{}") for person in entry.persons["author"]]
    authors = " and ".join(names) if len(names) < 3 else f"{names[0]} et al."
    text = f"{authors}, {entry.fields['year']}"
    address = entry.fields.get("url")
    if "doi" in entry.fields:
        address = f"https://doi.org/{entry.fields['doi']}"
    return f"[{text}]({address})" if address else text


def runnable(source: Path, setup: str, in_plain: Callable[[str], str]) -> NotebookNode:
    """Return a ``py:percent`` file as a notebook without outputs.

    ``setup`` is the code of its first cell; ``in_plain`` makes Markdown of the book that of
    notebooks.
    """
    notebook = jupytext.read(source)
    cells = [nbformat.v4.new_code_cell(setup)]
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = in_plain(cell.source)
        cells.append(cell)
        caption = cell.metadata.get("mystnb", {}).get("figure", {}).get("caption")
        if caption:
            cells.append(nbformat.v4.new_markdown_cell(f"*Figure.* {in_plain(caption)}"))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"  # jupytext draws random ids; one source gives one file
    notebook.cells = cells
    notebook.metadata.kernelspec = {
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "name": "python3",
    }
    notebook.metadata.pop("jupytext", None)
    nbformat.validate(notebook)
    return notebook


def publish(folder: Path, site: Path, book: Book) -> None:
    """Write every notebook of ``folder`` into the site, and the requirements that Binder
    installs."""
    archive = archive_of(book.repository, book.root)
    for source in sorted(folder.glob("*.py")):
        stem = source.stem
        in_plain = functools.partial(plain, book=book, paper=stem)
        notebook = runnable(source, first_cell(stem, archive, book.root), in_plain)
        content = nbformat.writes(notebook)
        write_if_changed(site / PUBLISHED.format(stem=stem), content.encode())
    requirements = (
        "--extra-index-url https://download.pytorch.org/whl/cpu\n"
        f"jupyterlab>=4\ncapslib[lab] @ {archive}\n"
    )
    write_if_changed(site / "binder" / "requirements.txt", requirements.encode())


def launch_links(stem: str, repository: str) -> dict[str, str]:
    """Return the addresses at which Colab and Binder open a chapter's published notebook."""
    name = repository.removeprefix("https://github.com/")
    path = PUBLISHED.format(stem=stem)
    in_lab = quote(f"lab/tree/{path}", safe="")
    return {
        "Colab": f"https://colab.research.google.com/github/{name}/blob/{BRANCH}/{path}",
        "Binder": f"https://mybinder.org/v2/gh/{name}/{BRANCH}?urlpath={in_lab}",
    }
