"""A chapter that leaves the checkout: plain Markdown, and the verdicts of the book."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path
from types import SimpleNamespace

import nbclient
import nbformat
import pytest
from bs4 import BeautifulSoup
from capsbook import evidence, travel
from capsbook.notebooks import launch_links, runnable

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
See {term}`votes <vote>`, {doc}`how to read`, {claim}`NEG-W-1`, {theirs}`NEG-T1-rba-bias`, {count}`papers` {cite:p}`peer2021`.
```{live-source} capslib.inequality.gini
:test: tests/test_inequality.py::test_x
```
```{math}
a = b
```
````{dropdown} More
Inside {term}`pose`:
```{claims-table} negation_limitation
:prefix: NEG-T1
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
        "See votes, how to read, **NEG-W-1** (waiting), 99.70\N{NO-BREAK SPACE}%, 5 ([Peer et al., 2021](https://doi.org/"
        in plain
    )
    assert re.search(
        r"`gini` in \[capslib/inequality.py\]\(https://x/capslib/inequality.py#L\d+\):\n\n```python\n(?:@.*\n)*def gini", plain
    )
    assert "$$\na = b\n$$" in plain
    assert "<details><summary>More</summary>\n\nInside pose:\n| Claim | Paper |" in plain
    assert "| NEG-T1-rba-bias | 99.70" in plain
    assert "x = {1: `2`}" in plain, "code is code"


def test_a_published_notebook_is_stable(tmp_path):
    source = tmp_path / "n.py"
    source.write_text('# %% tags=["parameters"]\nscale = "smoke"\n\n# %% [markdown]\n# # Title\n')
    one, two = (runnable(source, travel.setup("n", "https://github.com/a/b/archive/c.zip"), str.upper) for _ in range(2))
    assert one == two
    assert [c.cell_type for c in one.cells] == ["code", "code", "markdown"]
    assert one.cells[1].metadata.tags == ["parameters"]
    assert one.cells[2].source == "# TITLE"
    assert 'SOURCE = "https://github.com/a/b/archive/c.zip"' in one.cells[0].source
    links = launch_links("n", "https://github.com/a/b/")
    assert links["Colab"] == "https://colab.research.google.com/github/a/b/blob/gh-pages/_static/notebooks/n.ipynb"
    assert links["Binder"] == "https://mybinder.org/v2/gh/a/b/gh-pages?urlpath=lab%2Ftree%2F_static%2Fnotebooks%2Fn.ipynb"


def test_the_address_is_that_of_a_commit_or_of_the_release(tmp_path):
    assert re.fullmatch(r"https://x/archive/([0-9a-f]{40}|refs/tags/v[\d.]+)\.zip", travel.source("https://x", ROOT))
    assert re.fullmatch(r"https://x/archive/refs/tags/v[\d.]+\.zip", travel.source("https://x", tmp_path))


@pytest.mark.parametrize("stem", sorted(p.stem for p in (ROOT / "notebooks").glob("*.py")))
def test_a_downloaded_notebook_shows_the_verdicts_of_the_book(site, stem, tmp_path, monkeypatch):
    monkeypatch.delenv("CAPSLIB_RESULTS", raising=False)
    notebook = nbformat.read(site / "_static" / "notebooks" / f"{stem}.ipynb", as_version=4)
    assert not [found for c in notebook.cells if c.cell_type == "markdown" and (found := MARKS.search(c.source))]

    archive = io.BytesIO()  # as GitHub packs it: the repository in a folder of its own
    with zipfile.ZipFile(archive, "w") as packed:
        for path in sorted((ROOT / "results" / stem).rglob("*.json")):
            packed.write(path, f"capsules-abc/{path.relative_to(ROOT).as_posix()}")
        packed.writestr("capsules-abc/_toc.yml", "")
    (tmp_path / "source.zip").write_bytes(archive.getvalue())
    setup = notebook.cells[0]
    setup.source, changed = re.subn(r'SOURCE = ".*"', f'SOURCE = "{(tmp_path / "source.zip").as_uri()}"', setup.source)
    assert changed == 1

    code = [c for c in notebook.cells if c.cell_type == "code"]
    until = next(n for n, c in enumerate(code) if "frames.verdict_box(" in c.source)
    notebook.cells = code[: until + 1]
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    (shown,) = (o["data"]["text/html"] for o in notebook.cells[-1].outputs if "data" in o)
    told = BeautifulSoup("".join(shown), "html.parser").select_one(".verdict-box")
    page = BeautifulSoup((site / "book" / "papers" / f"{stem}.html").read_text(encoding="utf-8"), "html.parser")
    assert told.text == page.select_one(".verdict-box").text
    assert not (tmp_path / "capsules-abc" / "_toc.yml").exists(), "nothing but records is unpacked"
