"""A chapter that leaves the checkout: plain Markdown, and the verdicts of the book."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import nbclient
import nbformat
import pytest
from bs4 import BeautifulSoup
from capsbook import evidence, travel
from capsbook.notebooks import launch_links, runnable

from capslib.lab.runs import checkout, code_hash

ROOT = Path(__file__).parents[2]
MARKS = re.compile(r"\{[a-z:-]+\}`|^(?:`{3,}|:{3,})\{|^\([\w-]+\)=$", re.M)


@pytest.fixture(scope="module")
def book(tmp_path_factory) -> SimpleNamespace:
    return SimpleNamespace(
        root=ROOT,
        evidence=evidence.load(tmp_path_factory.mktemp("results")),
        bibliography=ROOT / "book" / "references.bib",
        blob=lambda path, line: f"https://x/{path}#L{line}",
    )


def test_directives_and_roles_become_plain_markdown(book):
    text = """(here)=
# Title
```{masthead} negation_limitation
```
See {term}`votes <vote>`, {doc}`how to read`, {claim}`NEG-W-1`, {count}`papers` {cite:p}`peer2021`.
```{live-source} capslib.inequality.gini
:test: tests/test_inequality.py::test_x
```
```{math}
a = b
```
````{dropdown} More
Inside {term}`pose`:
```{claims-table} negation_limitation
```
````
```python
x = {1: `2`}
```
"""
    plain = travel.plain(text, book)
    assert not MARKS.search(plain)
    assert plain.startswith("# Title\nPeer, ")
    assert "](https://github.com/peerdavid/" in plain
    assert (
        "See votes, how to read, **NEG-W-1** (waiting), 5 ([Peer et al., 2021](https://doi.org/"
        in plain
    )
    assert re.search(
        r"`gini` in \[capslib/inequality.py\]\(https://x/capslib/inequality.py#L\d+\):\n\n```python\n(?:@.*\n)*def gini",
        plain,
    )
    assert "$$\na = b\n$$" in plain
    assert "<details><summary>More</summary>\n\nInside pose:\n| Claim | Paper |" in plain
    assert "| NEG-T1-rba-bias | 99.70" in plain
    assert "x = {1: `2`}" in plain, "code is code"


def test_a_published_notebook_is_stable(tmp_path):
    source = tmp_path / "n.py"
    drawn = '# %% mystnb={"figure": {"caption": "What is seen."}}\nplot()\n'
    source.write_text(
        f'# %% tags=["parameters"]\nscale = "smoke"\n\n# %% [markdown]\n# # Title\n\n{drawn}',
        encoding="utf-8",
    )
    one, two = (
        runnable(
            source, travel.setup("n", "https://github.com/a/b/archive/c.zip", ROOT), str.upper
        )
        for _ in range(2)
    )
    assert one == two
    assert [c.cell_type for c in one.cells] == ["code", "code", "markdown", "code", "markdown"]
    assert one.cells[4].source == "*Figure.* WHAT IS SEEN.", (
        "the caption stands under its figure"
    )
    assert one.cells[1].metadata.tags == ["parameters"]
    assert one.cells[2].source == "# TITLE"
    assert 'SOURCE = "https://github.com/a/b/archive/c.zip"' in one.cells[0].source
    links = launch_links("n", "https://github.com/a/b/")
    assert (
        links["Colab"]
        == "https://colab.research.google.com/github/a/b/blob/gh-pages/_static/notebooks/n.ipynb"
    )
    assert (
        links["Binder"]
        == "https://mybinder.org/v2/gh/a/b/gh-pages?urlpath=lab%2Ftree%2F_static%2Fnotebooks%2Fn.ipynb"
    )


def test_the_address_is_that_of_a_commit_or_of_the_release(tmp_path):
    release = r"https://x/archive/refs/tags/v[\d.]+\.zip"
    revision = checkout(ROOT).revision
    assert re.fullmatch(
        f"https://x/archive/{revision}.zip" if revision else release,
        travel.source("https://x", ROOT),
    )
    assert re.fullmatch(release, travel.source("https://x", tmp_path))


def test_a_book_without_git_names_the_release(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert re.fullmatch(
        r"https://x/archive/refs/tags/v[\d.]+\.zip", travel.source("https://x", tmp_path)
    )


def test_the_hash_of_a_package_does_not_ask_how_lines_end(tmp_path):
    """A book that is built on Windows travels to a machine that installs the module from GitHub."""
    for folder, ending in (("linux", b"\n"), ("windows", b"\r\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_bytes(b"a = 1" + ending)
    assert travel.digest(tmp_path / "windows") == travel.digest(tmp_path / "linux")


def set_up(cell, stem: str, folder: Path) -> None:
    """Let a notebook's first cell fetch its records from a file as GitHub packs it, and install nothing, but say so."""
    with zipfile.ZipFile(folder / "source.zip", "w") as packed:
        for path in sorted((ROOT / "results" / stem).rglob("*.json")):
            packed.write(path, f"capsules-abc/{path.relative_to(ROOT).as_posix()}")
        packed.writestr("capsules-abc/_toc.yml", "")
    cell.source, changed = re.subn(
        r'SOURCE = ".*"', f'SOURCE = "{(folder / "source.zip").as_uri()}"', cell.source
    )
    assert changed == 1
    cell.source, changed = re.subn(r"%pip (\w+).*", r'print("pip \1")', cell.source)
    assert changed == 2


@pytest.mark.parametrize("there", ["nothing", "the same", "another"])
def test_the_module_is_installed_unless_just_that_of_the_book_is_there(there, tmp_path):
    package, root = tmp_path / "site" / "capslib", tmp_path / "root"
    for folder in (root / "capslib", *([package] if there != "nothing" else [])):
        (folder / "lab").mkdir(parents=True)
        (folder / "__init__.py").write_text("", encoding="utf-8")
        (folder / "lab" / "__init__.py").write_text("A = 1\n", encoding="utf-8")
    if there == "another":
        (package / "lab" / "__init__.py").write_text("A = 2\n", encoding="utf-8")
    cell = SimpleNamespace(source=travel.setup("n", "https://x", root))
    set_up(cell, "nowhere", tmp_path)
    ran = subprocess.run(
        [sys.executable, "-S", "-c", cell.source],
        cwd=tmp_path,
        env={"PYTHONPATH": str(package.parent)},
        capture_output=True,
        encoding="utf-8",
    )
    assert ran.stdout.split("\n")[:-1] == (
        [] if there == "the same" else ["pip uninstall", "pip install"]
    ), ran.stderr


def downloaded(site: Path, stem: str) -> nbformat.NotebookNode:
    notebook = nbformat.read(site / "_static" / "notebooks" / f"{stem}.ipynb", as_version=4)
    assert not [
        found
        for c in notebook.cells
        if c.cell_type == "markdown" and (found := MARKS.search(c.source))
    ]
    return notebook


WHOLE = "learned_routing"
"""The quickest chapter, of which all cells are run."""


@pytest.mark.parametrize(
    "stem", sorted({p.stem for p in (ROOT / "notebooks").glob("*.py")} - {WHOLE})
)
def test_a_downloaded_notebook_shows_the_box_of_the_book(site, stem, tmp_path, monkeypatch):
    monkeypatch.delenv("CAPSLIB_RESULTS", raising=False)
    notebook = downloaded(site, stem)
    set_up(notebook.cells[0], stem, tmp_path)
    code = [c for c in notebook.cells if c.cell_type == "code"]
    until = next(n for n, c in enumerate(code) if "chapter.verdict_box(" in c.source)
    notebook.cells = code[: until + 1]
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    page = BeautifulSoup(
        (site / "book" / "papers" / f"{stem}.html").read_text(encoding="utf-8"), "html.parser"
    )
    assert answers(notebook) == [page.select_one(".verdict-box").text]
    assert not (tmp_path / "capsules-abc" / "_toc.yml").exists(), (
        "nothing but records is unpacked"
    )


def answers(notebook: nbformat.NotebookNode) -> list[str]:
    """The verdict box and the tables of verdicts that a notebook shows, as text."""
    outputs = (
        o
        for c in notebook.cells
        for o in c.get("outputs", [])
        if "remove-cell" not in c.metadata.get("tags", [])
    )
    shown = ("".join(o.get("data", {}).get("text/html", "")) for o in outputs)
    return [
        part.text
        for html in shown
        for part in BeautifulSoup(html, "html.parser").select(".verdict-box, table.claims")
    ]


def test_a_whole_notebook_runs_outside_the_checkout_with_the_module_that_is_built_from_it(
    site, tmp_path, monkeypatch
):
    """In a folder that has nothing but the smoke runs of one experiment less: those train with what is built. That has all code of
    the checkout, so nothing is installed again."""
    clean, built, smoke = (
        tmp_path / "clean",
        tmp_path / "built",
        Path("_build", "smoke", code_hash()[:12], WHOLE),
    )
    source = tmp_path / "source"
    shutil.copytree(
        ROOT / "capslib", source / "capslib", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)],
        cwd=source,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    zipfile.ZipFile(tmp_path / done.stdout.split()[-1]).extractall(built)
    assert travel.digest(built / "capslib") == travel.digest(ROOT / "capslib")

    clean.mkdir()
    if (ROOT / smoke).exists():
        shutil.copytree(ROOT / smoke, clean / smoke, ignore=shutil.ignore_patterns("pilot"))
    for name in [name for name in os.environ if name.startswith("CAPSLIB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", str(built))
    notebook = downloaded(site, WHOLE)
    set_up(notebook.cells[0], WHOLE, tmp_path)
    notebook.cells.append(nbformat.v4.new_code_cell("import capslib; print(capslib.__file__)"))
    nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": clean}}
    ).execute()
    assert notebook.cells[-1].outputs[0].text.startswith(str(built)), "not the checkout"
    assert not notebook.cells[0].outputs, "nothing is installed"
    assert len(list((clean / smoke / "pilot").glob("*.json"))) >= 2, "it trains"
    page = BeautifulSoup(
        (site / "book" / "papers" / f"{WHOLE}.html").read_text(encoding="utf-8"), "html.parser"
    )
    told = [part.text for part in page.select(".verdict-box, .cell_output table.claims")]
    assert len(told) > 2
    assert answers(notebook) == told
