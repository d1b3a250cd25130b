"""The strict build turns red for every kind of mistake, and pages never go stale."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import nbformat

from capslib.lab.ledger import ledger

CHAPTER = "book/papers/negation_limitation"
NBSP = "\N{NO-BREAK SPACE}"

MISTAKES_OF_MARKDOWN = """
{cite}`nobody2099` {claim}`NEG-T1-rba-bia` {ref}`no-such-section` [a](../nowhere.md)
[b](../other.md#no-anchor) {term}`unicorn`
"""
MISTAKES_OF_THE_BOOK = """# Other
{count}`unicorns` {ours}`NEG-T1` {measured}`negation_limitation/sign:biass=true:loss`
```{claims-table} negation
```
```{claims-table} NEG-W-1 NEG-T6
```
```{live-source} capslib.demo.thrice
```
```{live-source} capslib.demo.twice
:given: y=1
```
```{live-source} capslib.demo.twice
:test: tests/test_demo.py::test_thrice
```
```{live-source} capslib.demo.twice
:test: tests/test_gone.py::test_twice
```
"""
WARNINGS = (
    "nobody2099",
    "NEG-T1-rba-bia",
    "no-such-section",
    "nowhere.md",
    "no-anchor",
    "unicorn",
    "count: Unknown thing to count 'unicorns'",
    "ours: the ledger has no claim 'NEG-T1'",
    "biass",
    "claims-table: no paper or claim 'negation'",
    "claims-table: no paper or claim 'NEG-T6'",
    "capslib/demo.py does not define thrice",
    "capslib/demo.py, twice: it has no parameter 'y'",
    "tests/test_demo.py has no test test_thrice",
    "there is no test file tests/test_gone.py",
)


def test_every_mistake_is_a_warning_and_a_warning_turns_the_build_red(tiny_book):
    tiny_book.replace(f"{CHAPTER}.md", "# Negation\n", f"# Negation\n{MISTAKES_OF_MARKDOWN}")
    tiny_book.write("book/other.md", MISTAKES_OF_THE_BOOK)
    status, output = tiny_book.build()
    assert status != 0
    warnings = [line for line in output.splitlines() if "WARNING" in line]
    for message in WARNINGS:
        assert any(message in line for line in warnings), (message, output)
    assert tiny_book.build()[0] != 0, "and it stays red until somebody mends it"


def text_of(html: str) -> str:
    return " ".join(re.sub("<[^>]*>", "", html).split())


def assert_sound(tiny_book) -> None:
    page = tiny_book.html(CHAPTER)
    listing = r'<span class="k">return</span>.*<span class="c1"># FIRST</span>'
    assert re.search(listing, page), "the live source is on the page"
    assert "Says more than" not in page, "without its docstring"
    assert "test_twice" in page
    assert page.count('id="claim-NEG-T1-rba-bias"') == 1
    assert f"99.70{NBSP}%" in page
    assert "/blob/gh-pages/_static/notebooks/negation_limitation.ipynb" in page
    row = 'href="papers/negation_limitation.html#claim-NEG-T1-rba-bias"'
    assert row in tiny_book.html("book/scorecard")
    files = tiny_book.root / "_build/html/_static"
    notebook = nbformat.read(files / "notebooks/negation_limitation.ipynb", as_version=4)
    assert re.search(
        r'SOURCE = "https://github.com/.*/archive/.*\.zip"', notebook.cells[0].source
    )
    assert not any(cell.get("outputs") for cell in notebook.cells)
    claims = json.loads((files / "claims.json").read_text(encoding="utf-8"))
    assert len(claims) == len(ledger())
    assert (files / "claims.csv").read_text(encoding="utf-8").count("\n") > len(ledger())
    schema = json.loads((files / "record.schema.json").read_text(encoding="utf-8"))
    assert schema["title"] == "Record"


def test_a_sound_book_builds_and_its_pages_follow_records_and_source(tiny_book, add_records):
    status, output = tiny_book.build()
    assert status == 0, output
    assert_sound(tiny_book)
    front = tiny_book.html("book/intro")
    assert "Words come first. More words follow." in text_of(front), "no number, no sentence"
    assert 'alt="An icon."' in front
    built = tiny_book.root / "_build/html"
    first_time = (built / "book/other.html").stat().st_mtime_ns
    (built / "_images/old.svg").write_text("<svg/>", encoding="utf-8")

    keys = add_records(tiny_book.root / "results")
    tiny_book.replace("capslib/demo.py", "FIRST", "SECOND")
    status, output = tiny_book.build()
    assert status == 0, output
    page, front = tiny_book.html(CHAPTER), tiny_book.html("book/intro")
    assert "# SECOND" in page
    assert "# FIRST" not in page
    assert f"99.71{NBSP}% [" in page
    sentence = (
        "Our network has 99.7 % [99.7, 99.7], the paper’s 99.70 %. More words follow. 99.7 %."
    )
    assert sentence in text_of(front)
    assert f'alt="An icon. It has 99.7{NBSP}%, the paper 99.70{NBSP}%."' in front
    assert '<span class="number count">3</span> behind them' in front
    row = '<a href="papers/negation_limitation.html#claim-NEG-T1-rba-bias" class="claim-id">'
    assert row in front, "a table of claims of several papers leads to their chapters"
    for key in keys:
        assert f"results/negation_limitation/sign/{key}.json" in front
    untouched = (built / "book/other.html").stat().st_mtime_ns
    assert untouched == first_time, "a page that shows none of it stays"
    images = [path.name for path in (built / "_images").glob("*.svg")]
    assert images == ["favicon.svg"], "figures that no page shows any more go"

    style = tiny_book.root / "book/_static"
    style.unlink()  # the link to the real one
    shutil.copytree(Path(__file__).parents[2] / "book/_static", style)
    tiny_book.write("book/_static/capsules.css", "/* new */")
    assert tiny_book.build()[0] == 0
    assert (built / "_static/capsules.css").read_text(encoding="utf-8") == "/* new */"

    status, output = tiny_book.build()
    assert status == 0
    assert "0 added, 0 changed, 0 removed" in output, "an unchanged book is not read again"

    source = "\n@misc{new2026, title={A new source}, author={Body, Some}, year={2026}}\n"
    with (tiny_book.root / "references.bib").open("a", encoding="utf-8") as bibliography:
        bibliography.write(source)
    tiny_book.replace(f"{CHAPTER}.md", "{cite}`peer2021`", "{cite}`new2026`")
    status, output = tiny_book.build()
    assert status == 0, output
    assert "A new source" in tiny_book.html("book/references"), "a new source reaches the pages"
