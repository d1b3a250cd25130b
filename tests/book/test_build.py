"""The strict build turns red for every kind of mistake, and pages never go stale."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import nbformat

from capslib.lab.ledger import ledger

CHAPTER = "book/papers/negation_limitation.md"


def assert_sound(tiny_book) -> None:
    page = tiny_book.html("book/papers/negation_limitation")
    assert re.search(r'<span class="k">return</span>.*<span class="c1"># FIRST</span>', page), (
        "the live source is on the page"
    )
    assert "Says more than" not in page, "without its docstring"
    assert "test_twice" in page
    assert page.count('id="claim-NEG-T1-rba-bias"') == 1
    assert "99.70\N{NO-BREAK SPACE}%" in page
    assert "colab.research.google.com/github/" in page
    assert "/blob/gh-pages/_static/notebooks/negation_limitation.ipynb" in page
    score = tiny_book.html("book/scorecard")
    assert 'href="papers/negation_limitation.html#claim-NEG-T1-rba-bias"' in score
    built = tiny_book.root / "_build" / "html"
    published = nbformat.read(
        built / "_static" / "notebooks" / "negation_limitation.ipynb", as_version=4
    )
    assert re.search(
        r'SOURCE = "https://github.com/.*/archive/.*\.zip"', published.cells[0].source
    )
    assert not any(cell.get("outputs") for cell in published.cells)
    assert len(
        json.loads((built / "_static" / "claims.json").read_text(encoding="utf-8"))
    ) == len(ledger())
    assert (built / "_static" / "claims.csv").read_text(encoding="utf-8").count("\n") > len(
        ledger()
    )
    assert (
        json.loads((built / "_static" / "record.schema.json").read_text(encoding="utf-8"))[
            "title"
        ]
        == "Record"
    )


MISTAKES = {
    "citation": ("{cite}`peer2021`", "{cite}`nobody2099`", "nobody2099"),
    "claim": ("{claim}`NEG-T1-rba-bias`", "{claim}`NEG-T1-rba-biass`", "NEG-T1-rba-biass"),
    "cross-reference": (
        "# Negation\n",
        "# Negation\n\n{ref}`no-such-section`\n",
        "no-such-section",
    ),
    "link": ("# Negation\n", "# Negation\n\n[a](../nowhere.md)\n", "nowhere.md"),
    "anchor": ("# Negation\n", "# Negation\n\n[a](../other.md#nowhere)\n", "nowhere"),
}


def test_every_mistake_is_a_warning_and_a_warning_turns_the_build_red(tiny_book):
    """All kinds in one build, for a build takes seconds; those in directives are on another page."""
    for old, new, _ in MISTAKES.values():
        tiny_book.replace(CHAPTER, old, new)
    tiny_book.write(
        "book/other.md",
        """# Other
{count}`unicorns` {term}`unicorn`
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
""",
    )
    status, said = tiny_book.build()
    assert status != 0
    warnings = [line for line in said.splitlines() if "WARNING" in line]
    for message in (
        *(message for *_, message in MISTAKES.values()),
        "count: cannot count 'unicorns'",
        "unicorn",
        "claims-table: no paper 'negation'",
        "claims-table: no claim NEG-T6",
        "capslib/demo.py does not define thrice",
        "capslib/demo.py, twice: it has no parameter 'y'",
        "tests/test_demo.py has no test test_thrice",
        "there is no test file tests/test_gone.py",
    ):
        assert any(message in line for line in warnings), (message, said)
    assert tiny_book.build()[0] != 0, "and it stays red until somebody mends it"


def test_a_sound_book_builds_and_its_pages_follow_records_and_source(tiny_book, add_records):
    status, said = tiny_book.build()
    assert status == 0, said
    assert_sound(tiny_book)
    chapter = "book/papers/negation_limitation"
    assert "capsules of negation_limitation" not in tiny_book.html("book/intro")
    assert "waiting" in tiny_book.html(chapter)
    before = (tiny_book.root / "_build/html/book/other.html").stat().st_mtime_ns

    keys = add_records(tiny_book.root / "results")
    tiny_book.replace("capslib/demo.py", "FIRST", "SECOND")
    status, said = tiny_book.build()
    assert status == 0, said
    page = tiny_book.html(chapter)
    assert "# SECOND" in page
    assert "# FIRST" not in page
    assert "reproduced" in page
    assert "99.71\N{NO-BREAK SPACE}% [" in page
    front = tiny_book.html("book/intro")
    assert '<span class="count">1</span> judged' in front
    row = '<a href="papers/negation_limitation.html#claim-NEG-T1-rba-bias" class="claim-id">'
    assert row in front, "a table of claims of several papers leads to their chapters"
    assert "<code>EM-W-8</code>" in front
    for key in keys:
        assert f"records/negation_limitation/sign/{key}.html" in page
        assert (
            tiny_book.root / f"_build/html/records/negation_limitation/sign/{key}.html"
        ).is_file()
        assert (
            tiny_book.root / f"_build/html/records/negation_limitation/sign/{key}.json"
        ).is_file()
    assert (tiny_book.root / "_build/html/book/other.html").stat().st_mtime_ns == before, (
        "a page that shows none of it stays"
    )

    style = tiny_book.root / "book" / "_static"
    style.unlink()  # the link to the real one
    shutil.copytree(Path(__file__).parents[2] / "book" / "_static", style)
    tiny_book.write("book/_static/capsules.css", "/* new */")
    assert tiny_book.build()[0] == 0
    assert (tiny_book.root / "_build/html/_static/capsules.css").read_text(
        encoding="utf-8"
    ) == "/* new */", "a new style reaches the site"

    status, said = tiny_book.build()
    assert status == 0
    assert "0 added, 0 changed, 0 removed" in said, "an unchanged book is not read again"

    sources = tiny_book.root / "references.bib"
    sources.write_text(
        sources.read_text(encoding="utf-8")
        + "\n@misc{new2026, title={A new source}, author={Body, Some}, year={2026}}\n",
        encoding="utf-8",
    )
    tiny_book.replace(CHAPTER, "{cite}`peer2021`", "{cite}`new2026`")
    status, said = tiny_book.build()
    assert status == 0, said
    assert "A new source" in tiny_book.html("book/references"), "a new source reaches the pages"
