"""A record is a file that a stranger sends: whatever its texts say, pages show them as text."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from helpers import make_record
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from pydantic import ValidationError

from capslib import papers
from capslib.config import hash_of
from capslib.lab import frames
from capslib.lab.chapter import Chapter
from capslib.lab.records import Record
from capslib.lab.store import Store
from capslib.papers.experiment import DataFingerprint, Deviation, Metric

ROOT = Path(__file__).parents[2]
STEM = "negation_limitation"
HOSTILE = (
    "</code></td><script>document.title = 'taken'</script>"
    "<img src=nowhere onerror=\"document.title = 'taken'\">"
    '<b class="foreign">*b*</b>\n\n# h\n\n`x` [y](javascript:1) ![z](nowhere) {term}`u` '
    "\\(\\href{javascript:1}{v}\\) $\\href{javascript:1}{w}$"
)
ON_PAGES = (
    "deviations.0.what",
    "deviations.0.paper",
    "deviations.0.ours",
    "deviations.0.why",
    "environment.device",
    "metrics.largest_rise.unit",
    "metric",
    "field",
    "value",
    "routing",
    "data",
)
"""Texts that have to be on a page, or the test tests nothing."""


def named(field: str) -> str:
    return f"‹{field}›{HOSTILE}"


def places(value: Any, *path: str | int) -> Iterator[tuple[str | int, ...]]:
    """Yield where texts are in JSON."""
    if isinstance(value, str):
        yield path
    inside = value.items() if isinstance(value, dict) else ()
    for key, part in enumerate(value) if isinstance(value, list) else inside:
        yield from places(part, *path, key)


def counts(fields: dict) -> bool:
    """Say whether fields are those of a record that counts."""
    store = Store("nowhere")
    try:
        record = Record.model_validate(fields)
    except ValidationError:
        return False
    objections = store.objections(store.path(record.trial), record)
    return record.key == record.trial.key and not any(objections)


def hostile(record: Record) -> Record:
    """Return the record with a hostile text wherever it is still a record that counts."""
    fields = json.loads(record.model_dump_json())
    for *path, last in list(places(fields)):
        parent = fields
        for key in path:
            parent = parent[key]
        text = parent[last]
        parent[last] = named(".".join(map(str, (*path, last))))
        if not counts(fields):
            parent[last] = text
    fields["metrics"][named("metric")] = next(iter(fields["metrics"].values()))
    fields["config"][named("field")] = named("value")
    return Record.model_validate(fields)


@pytest.fixture
def records() -> list[Record]:
    """Records that decide claims, and one of an arm that nobody planned, with hostile texts."""
    data = DataFingerprint(
        name="smallnorb",
        sha256="0" * 64,
        stand_in=False,
        complete=False,
        deviations=["text"],
    )
    made = []
    for stem, claim in (("em_routing", "EM-W-8"), (STEM, "NEG-T1-rba-bias")):
        check = papers.checks_of(stem)[claim]
        experiment = papers.experiments(stem)[check.selects[0].experiment]
        arm = {"arm": check.selects[0].names[0]}
        trial, *_ = experiment.trials("paper", where=arm, seeds=[0])
        record = make_record(
            trial,
            metrics={check.metric: Metric(value=0.5, n=9, unit="u")},
            message="message",
            deviations=[Deviation(what="what", paper="paper", ours="ours", why="why")],
            data=[data],
            code={"revision": "a" * 40, "dirty": False, "capslib": "0" * 64},
        )
        made.append(hostile(record))
    trial = trial.model_copy(update={"config": {"routing": named("routing")}})
    config = {**made[-1].config, **trial.config, "data": named("data")}
    made.append(make_record(trial, key=hash_of(trial.model_dump()), config=config))
    return made


def chapter(text: str, records: list[Record], store: Store) -> nbformat.NotebookNode:
    """Return a chapter with every table of records that chapters have."""
    metrics = frames.metrics(records)
    tables = [
        frames.styled(frames.deviations(records)),
        frames.styled(frames.costs(records), digits=1),
        frames.styled(metrics),
        Chapter("em_routing", store.root).table("EM-W-8"),
    ]
    outputs = [
        new_output("display_data", {"text/html": table._repr_html_()}) for table in tables
    ]
    text += "\n{claim}`EM-W-8`; a formula brings MathJax: $x$.\n"
    cells = [new_markdown_cell(text), new_code_cell("shown", outputs=outputs)]
    language = {"name": "python", "pygments_lexer": "ipython3"}
    return new_notebook(cells=cells, metadata={"language_info": language})


@pytest.mark.browser
def test_texts_of_records_are_shown_as_texts(tiny_book, records, browser):
    store = Store(tiny_book.root / "results")
    for record in records:
        store.put(record)
    path = tiny_book.root / f"book/papers/{STEM}.md"
    notebook = chapter(path.read_text(encoding="utf-8"), records, store)
    path.unlink()
    nbformat.write(notebook, path.with_suffix(".ipynb"))
    tiny_book.write("book/other.md", "# Other\n")
    status, output = tiny_book.build()
    assert status == 0, output

    page, wrong, texts = browser.new_page(), [], ""
    page.on("pageerror", lambda error: wrong.append(str(error)))
    built = tiny_book.root / "_build/html"
    for path in [*(built / "book").rglob("*.html"), *(built / "records").rglob("*.html")]:
        page.goto(path.as_uri(), wait_until="load")
        if page.locator(".math").count():
            page.wait_for_function("document.querySelectorAll('mjx-container').length")
        assert page.title() != "taken"
        foreign = ".foreign, [src$=nowhere], [href^=javascript], [*|href^=javascript]"
        wrong += page.locator(foreign).evaluate_all("all => all.map(each => each.outerHTML)")
        texts += page.locator("main").inner_text()
    assert not wrong
    for field in ON_PAGES:
        assert f"‹{field}›" in texts, field


def unescaped(code: str) -> list[str]:
    """Return what code calls that shows texts as HTML: a table's own style, or any HTML."""
    found = []
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.alias(name=name):
                if "HTML" in name or (name == "style" and isinstance(node, ast.Attribute)):
                    found.append(name)
    return found


@pytest.mark.parametrize("path", [*(ROOT / "notebooks").glob("*.py")], ids=lambda p: p.stem)
def test_no_chapter_goes_around_the_escaping(path):
    assert unescaped(path.read_text(encoding="utf-8")) == [], "frames.styled escapes"
    assert unescaped(inspect.getsource(frames)), "which it can as it sets the style"
