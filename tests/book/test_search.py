"""The search of the built book finds pages by words that people use, and shows their text."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytestmark = pytest.mark.browser

WORDS = {
    "citation": ("Capsules, reproduced", "@software{"),
    "BibTeX": ("Capsules, reproduced", "@software{"),
    "API": ("Capsules, reproduced", "API"),
    "bug": ("Capsules, reproduced", "Report a bug"),
    "licence": ("Licence", "MIT"),
    "GPU": ("Rerun it yourself", "GPU"),
    "iterations": ("Matrix capsules with EM routing", "iterations"),
    "smallNORB": ("Data", "smallnorb"),
}
"""The title of a page that a word leads to, and what its excerpt shows."""
FRAME = ("Open in Colab", "Download .ipynb", "Contents", "Code of the", "any paper", "Theme by")
"""What stands around the text of pages."""


class Quiet(SimpleHTTPRequestHandler):
    """A server that prints nothing."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(site) -> Iterator[str]:
    """Where a server offers the book: excerpts are fetched, which files refuse."""
    handler = functools.partial(Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def page(browser) -> Iterator[object]:
    context = browser.new_context()
    yield context.new_page()
    context.close()


EXCERPTS = """() => [...document.querySelectorAll("#search-results li")].map((result) => [
  result.querySelector("a").textContent,
  (result.querySelector(".context") ?? result).textContent.replace(/\\s+/g, " "),
])"""
COMPLETE = """() => document.querySelector(".search-summary")?.textContent.includes("found") &&
  [...document.querySelectorAll("#search-results li")]
    .every((result) => result.children.length > 1)"""


def results(page, address: str, word: str) -> list[tuple[str, str]]:
    """Return the title and the excerpt of each result of a search."""
    page.goto(f"{address}/search.html?q={word}")
    page.wait_for_function(COMPLETE, timeout=30_000)
    return page.evaluate(EXCERPTS)


@pytest.mark.parametrize("word", WORDS)
def test_a_word_that_people_use_leads_to_its_page(page, address, word):
    title, text = WORDS[word]
    excerpts = [
        excerpt for name, excerpt in results(page, address, word) if name.endswith(title)
    ]
    assert any(text in excerpt for excerpt in excerpts), excerpts


@pytest.mark.parametrize("word", ["routing", "iterations", "GPU", "couplings", "seeds"])
def test_an_excerpt_shows_the_text_of_its_page(page, address, word):
    excerpts = results(page, address, word)
    assert len(excerpts) > 3
    for title, excerpt in excerpts:
        # That of an entry of the glossary is its term.
        assert len(excerpt) > 20 or title == "Glossary", title
        for words in FRAME:
            assert words not in excerpt, (title, excerpt)
