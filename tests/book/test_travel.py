"""A chapter that leaves the checkout: plain Markdown, and the verdicts of the book."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import nbclient
import nbformat
import pytest
from bs4 import BeautifulSoup
from capsbook import evidence, travel
from capsbook.book import Book

from capslib.lab.provenance import checkout, code_hash
from capslib.papers import PAPERS

ROOT = Path(__file__).parents[2]
MARKS = re.compile(r"\{[a-z:-]+\}`|^(?:`{3,}|:{3,})\{|^\([\w-]+\)=$", re.M)


@pytest.fixture(scope="module")
def book(tmp_path_factory) -> Book:
    book = Book()
    book.root = ROOT
    book.repository = "https://x"
    book.bibliography = ROOT / "book/references.bib"
    book.evidence = evidence.load(tmp_path_factory.mktemp("results"))
    return book


MARKDOWN = """(here)=
# Title
```{masthead} negation_limitation
```
See {term}`votes <vote>`, {claim}`NEG-W-1`, {count}`papers`,
{theirs}`NEG-T1-rba-bias` and {ours}`NEG-T1-rba-bias` {cite:p}`peer2021`.
```{live-source} capslib.inequality.gini
:test: tests/test_inequality.py::test_x
```
```{math}
a = b
```
```{math}
:label: eq-over-children
c = d
```
In equation {eq}`eq-over-children` of {doc}`that chapter <papers/em_routing>`,
see {doc}`/book/rerun`.
:::{div} answer
It holds.
:::
```{headlines} negation_limitation
```
````{dropdown} More
Inside {term}`pose`:
```{claims-table} negation_limitation
```
````
```{claims-table} EM-W-8 NEG-W-1
```
```python
x = {1: `2`}
```
"""


def test_directives_and_roles_become_plain_markdown(book):
    plain = travel.plain(MARKDOWN, book, "negation_limitation")
    assert not MARKS.search(plain)
    assert plain.startswith("# Title\nPeer, ")
    number = "99.70\N{NO-BREAK SPACE}%"
    for text in (
        "](https://github.com/peerdavid/",
        f"See votes, **NEG-W-1** (waiting), {len(PAPERS)},\n",
        f"{number} and not run yet ([Peer et al., 2021](https://doi.org/",
        "$$\na = b\n$$",
        "$$\nc = d \\tag{1}\n$$",
        "In equation (1) of [that chapter](https://x/blob/main/notebooks/em_routing.py),\n"
        "see [Rerun it yourself](https://x/blob/main/book/rerun.md).",
        "<details><summary>More</summary>\n\nInside pose:\n| Claim | Paper |",
        "| NEG-T1-rba-bias | 99.70",
        "</details>\n| Claim | Paper |",
        "\n| EM-W-8 |",
        "\nIt holds.\n\n| The paper claims | Verdict |",
        "x = {1: `2`}",
    ):
        assert text in plain
    link = (
        r"`gini` in \[capslib/inequality.py\]\(https://x/blob/main/capslib/inequality.py#L\d+\)"
    )
    assert re.search(rf"{link}:\n\n```python\n(?:@.*\n)*def gini", plain)


def test_a_paper_without_public_code_says_so(monkeypatch):
    paper = replace(
        PAPERS["learned_routing"], links={"arXiv": "https://x", "public code": None}
    )
    monkeypatch.setitem(PAPERS, "learned_routing", paper)
    assert travel.citation("learned_routing").endswith(": [arXiv](https://x) · no public code")


def test_a_published_notebook_is_stable(tmp_path):
    source = tmp_path / "n.py"
    figure = '# %% mystnb={"figure": {"caption": "What is seen."}}\nplot()\n'
    parameters = '# %% tags=["parameters"]\nscale = "smoke"\n'
    source.write_text(f"{parameters}\n# %% [markdown]\n# # Title\n\n{figure}", encoding="utf-8")
    archive = "https://github.com/a/b/archive/c.zip"
    setup = travel.first_cell("n", archive, ROOT)
    notebook = travel.runnable(source, setup, str.upper)
    assert notebook == travel.runnable(source, setup, str.upper)
    first, tagged, title, _, caption = notebook.cells
    assert f'SOURCE = "{archive}"' in first.source
    assert tagged.metadata.tags == ["parameters"]
    assert title.source == "# TITLE"
    assert caption.source == "*Figure.* WHAT IS SEEN.", "it stands under its figure"


def test_colab_and_binder_open_what_is_published():
    links = travel.launch_links("n", "https://github.com/a/b")
    colab = (
        "https://colab.research.google.com/github/a/b/blob/gh-pages/_static/notebooks/n.ipynb"
    )
    path = "lab%2Ftree%2F_static%2Fnotebooks%2Fn.ipynb"
    assert links == {
        "Colab": colab,
        "Binder": f"https://mybinder.org/v2/gh/a/b/gh-pages?urlpath={path}",
    }


RELEASE = r"https://x/archive/refs/tags/v[\d.]+\.zip"


def test_the_address_is_that_of_a_commit_or_of_the_release(tmp_path, monkeypatch):
    revision = checkout(ROOT).revision
    pattern = rf"https://x/archive/{revision}\.zip" if revision else RELEASE
    assert re.fullmatch(pattern, travel.archive_of("https://x", ROOT))
    assert re.fullmatch(RELEASE, travel.archive_of("https://x", tmp_path)), "no checkout"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert re.fullmatch(RELEASE, travel.archive_of("https://x", tmp_path)), "no git"


def test_the_hash_of_a_package_does_not_ask_how_lines_end(tmp_path):
    """A book that is built on Windows travels to a machine that installs the module from
    GitHub."""
    for folder, ending in (("linux", b"\n"), ("windows", b"\r\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_bytes(b"a = 1" + ending)
        (tmp_path / folder / "a.csv").write_bytes(b"id,value" + ending)
    assert travel.digest(tmp_path / "windows") == travel.digest(tmp_path / "linux")


def test_the_hash_of_a_package_tells_of_its_ledger(tmp_path):
    (tmp_path / "a.csv").write_text("id,value\nA,1\n", encoding="utf-8")
    before = travel.digest(tmp_path)
    (tmp_path / "a.csv").write_text("id,value\nA,2\n", encoding="utf-8")
    assert travel.digest(tmp_path) != before


def without_network(code: str, stem: str, folder: Path) -> str:
    """Return a first cell that fetches records from a file, and installs nothing, but says
    so."""
    archive = folder / "source.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for path in (ROOT / "results" / stem).rglob("*.json"):
            packed.write(path, f"capsules-abc/{path.relative_to(ROOT).as_posix()}")
        packed.writestr("capsules-abc/_toc.yml", "")
    code, sources = re.subn(r'SOURCE = ".*"', f'SOURCE = "{archive.as_uri()}"', code)
    code, installs = re.subn(r"%pip (\w+).*", r'print("pip \1")', code)
    assert (sources, installs) == (1, 2)
    return code


@pytest.mark.parametrize(
    ("installed", "steps"),
    [
        (None, ["pip uninstall", "pip install"]),
        ("A = 2\n", ["pip uninstall", "pip install"]),
        ("A = 1\n", []),
    ],
)
def test_the_module_is_installed_unless_just_that_of_the_book_is_there(
    installed, steps, tmp_path
):
    package, built = tmp_path / "site/capslib", tmp_path / "root/capslib"
    for folder, text in ((built, "A = 1\n"), (package, installed)):
        if text is not None:
            folder.mkdir(parents=True)
            (folder / "__init__.py").write_text(text, encoding="utf-8")
    code = travel.first_cell("nowhere", "https://x", built.parent)
    ran = subprocess.run(
        [sys.executable, "-S", "-c", without_network(code, "nowhere", tmp_path)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(package.parent)},
        capture_output=True,
        encoding="utf-8",
    )
    assert ran.stdout.splitlines() == steps, ran.stderr


def downloaded(site: Path, stem: str, folder: Path) -> nbformat.NotebookNode:
    """Return a published notebook, which fetches its records from a file."""
    notebook = nbformat.read(site / f"_static/notebooks/{stem}.ipynb", as_version=4)
    for cell in notebook.cells:
        assert cell.cell_type != "markdown" or not MARKS.search(cell.source), cell.source
    notebook.cells[0].source = without_network(notebook.cells[0].source, stem, folder)
    return notebook


def run(notebook: nbformat.NotebookNode, folder: Path) -> None:
    client = nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3")
    client.resources = {"metadata": {"path": folder}}
    client.execute()


def answers(html: str) -> list[str]:
    """Return the tables of verdicts of a page, as text without white space."""
    page = BeautifulSoup(html, "html.parser")
    tables = page.select(".cell_output table.claims")
    return ["".join(table.get_text().split()) for table in tables]


def shown(notebook: nbformat.NotebookNode) -> str:
    """Return what the cells of a notebook show on the page, as HTML."""
    html = ""
    for cell in notebook.cells:
        if "remove-cell" not in cell.metadata.get("tags", []):
            for output in cell.get("outputs", []):
                html += "".join(output.get("data", {}).get("text/html", ""))
    return f'<div class="cell_output">{html}</div>'


WHOLE = "learned_routing"
"""The quickest chapter, of which all cells are run."""


@pytest.mark.parametrize("stem", [stem for stem in PAPERS if stem != WHOLE])
def test_a_downloaded_notebook_finds_the_verdicts_of_the_book(
    site, stem, tmp_path, monkeypatch
):
    monkeypatch.delenv("CAPSLIB_RESULTS", raising=False)
    notebook = downloaded(site, stem, tmp_path)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    front = next(n for n, cell in enumerate(code) if "front" in cell.metadata.get("tags", []))
    words = "{name: verdict.word for name, verdict in chapter.verdicts.items()}"
    last = nbformat.v4.new_code_cell(f"import json\nprint(json.dumps({words}))")
    notebook.cells = [*code[: front + 1], last]
    run(notebook, tmp_path)
    verdicts = json.loads(notebook.cells[-1].outputs[0].text)
    claims = json.loads((site / "_static/claims.json").read_text(encoding="utf-8"))
    assert verdicts == {c["id"]: c["verdict"] for c in claims if c["paper"] == stem}
    assert not (tmp_path / "capsules-abc/_toc.yml").exists(), "it unpacks only records"


def build_wheel(folder: Path) -> Path:
    """Build the module from its sources alone, and return where it is unpacked."""
    source, built = folder / "source", folder / "built"
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "capslib", source / "capslib", ignore=without)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(folder)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, capture_output=True, check=True)
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(built)
    return built


def test_a_whole_notebook_runs_outside_the_checkout_with_the_module_that_is_built_from_it(
    site, tmp_path, monkeypatch
):
    """In a folder with the smoke runs of all experiments but one, which it trains."""
    built, clean = build_wheel(tmp_path), tmp_path / "clean"
    assert travel.digest(built / "capslib") == travel.digest(ROOT / "capslib")
    smoke = Path("_build/smoke", code_hash()[:12], WHOLE)
    clean.mkdir()
    if (ROOT / smoke).exists():
        but_one = shutil.ignore_patterns("pilot")
        shutil.copytree(ROOT / smoke, clean / smoke, ignore=but_one)
    for name in list(os.environ):
        if name.startswith("CAPSLIB_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", str(built))
    notebook = downloaded(site, WHOLE, tmp_path)
    notebook.cells.append(nbformat.v4.new_code_cell("import capslib; print(capslib.__file__)"))
    run(notebook, clean)
    assert notebook.cells[-1].outputs[0].text.startswith(str(built)), "not the checkout"
    assert not notebook.cells[0].outputs, "nothing is installed"
    assert len(list((clean / smoke / "pilot").glob("*.json"))) >= 2, "it trains"
    page = (site / f"book/papers/{WHOLE}.html").read_text(encoding="utf-8")
    assert len(answers(page)) > 2
    assert answers(shown(notebook)) == answers(page)
