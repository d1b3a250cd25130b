"""Numbers in the prose of a notebook are roles: nobody types a measured percentage."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import jupytext
import pytest

from capslib.papers import STEMS

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
EXEMPT = re.compile(
    r"""
    ^[ ]*(?P<fence>`{3,}).*?^[ ]*(?P=fence)  # code, a formula, a directive
    | (\{[a-z]+\})?`[^`]*`                   # a role, inline code
    | \$[^$]*\$                              # maths
    | \[[^]]*\]\([^)]*\)                     # a link, whose text may quote the paper's code
    | “[^”]*”                                # a quotation
    | 95\ %\ (interval|band)                 # a level, and no result
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
TYPED = re.compile(r"(\S+\s+){0,3}\S*\d\s*(%|per\s?cent|points)")


def texts(stem: str) -> Iterator[str]:
    """Yield all Markdown of a notebook, and the caption and alt text of each figure."""
    for cell in jupytext.read(NOTEBOOKS / f"{stem}.py").cells:
        if cell.cell_type == "markdown":
            yield cell.source
        shown = cell.metadata.get("mystnb", {})
        yield shown.get("figure", {}).get("caption", "")
        yield shown.get("image", {}).get("alt", "")


def typed(text: str) -> list[str]:
    """Return the percentages and points that a text types, with the words before them."""
    return [match[0] for match in TYPED.finditer(EXEMPT.sub("…", text))]


@pytest.mark.parametrize("stem", STEMS)
def test_no_percentage_is_typed(stem):
    assert [number for text in texts(stem) for number in typed(text)] == []


def test_a_test_that_prose_names_is_there():
    tests = NOTEBOOKS.parent / "tests"
    code = "".join(path.read_text(encoding="utf-8") for path in tests.rglob("*.py"))
    named = set()
    for path in [*NOTEBOOKS.glob("*.py"), *(NOTEBOOKS.parent / "book").glob("*.md")]:
        named.update(re.findall(r"`(test_\w+)`", path.read_text(encoding="utf-8")))
    assert len(named) > 10
    assert {name for name in named if f"def {name}(" not in code} == set()


def test_no_percentage_is_typed_on_a_page():
    """But for the page that states the rules of verdicts."""
    pages = set((NOTEBOOKS.parent / "book").glob("*.md"))
    assert len(pages) > 10
    for page in pages:
        numbers = typed(page.read_text(encoding="utf-8"))
        assert bool(numbers) == (page.stem == "how_to_read"), (page.name, numbers)
