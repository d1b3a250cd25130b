"""A record is a file that a stranger sends: whatever its texts say, pages show them as text."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
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
    "</code></td><script>document.title = 'taken'</script><img src=nowhere onerror=\"document.title = 'taken'\">"
    '<b class="foreign">*b*</b>\n\n# h\n\n`x` [y](javascript:1) ![z](nowhere) {term}`u` \\(\\href{javascript:1}{v}\\) $\\href{javascript:1}{w}$'
)


def places(value: Any, *at: str | int) -> Iterator[tuple[str | int, ...]]:
    """Where texts are in JSON."""
    if isinstance(value, str):
        yield at
    for key, inside in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        yield from places(inside, *at, key)


def hostile(record: Record) -> tuple[Record, set[str]]:
    """The record with such a text, and the name of its place, wherever it is still a record that counts; and these names."""
    store = Store("nowhere")
    changed = json.loads(record.model_dump_json())
    named = set()
    for at in places(changed):
        *path, last = at
        parent = changed
        for key in path:
            parent = parent[key]
        before, name = parent[last], ".".join(map(str, at))
        parent[last] = f"‹{name}›{HOSTILE}"
        try:
            read = Record.model_validate(changed)
            counts = read.key == read.trial.key and not any(
                store.objections(store.path(record.trial), read)
            )
        except ValidationError:
            counts = False
        if counts:
            named.add(name)
        else:
            parent[last] = before
    changed["metrics"][f"‹metric›{HOSTILE}"] = next(iter(changed["metrics"].values()))
    changed["config"][f"‹field›{HOSTILE}"] = f"‹value›{HOSTILE}"
    return Record.model_validate(changed), named


@pytest.fixture
def records(make_record) -> tuple[list[Record], set[str]]:
    """Records that decide claims, and one of an arm that nobody planned, with a hostile text wherever there can be one."""
    made, names = [], set()
    for stem, claim in (("em_routing", "EM-W-8"), (STEM, "NEG-T1-rba-bias")):
        asked = papers.queries(stem)[claim]
        trial, *_ = papers.experiments(stem)[asked.select.experiment].trials(
            "paper", where=asked.select.where or {"arm": asked.select.arm}, seeds=[0]
        )
        record = make_record(
            trial,
            metrics={asked.metric: Metric(value=0.5, n=9, unit="u")},
            message="message",
            deviations=[Deviation(what="what", paper="paper", ours="ours", why="why")],
            data=[
                DataFingerprint(
                    name="smallnorb",
                    sha256="0" * 64,
                    stand_in=False,
                    complete=False,
                    deviations=["text"],
                )
            ],
            code={"revision": "a" * 40, "dirty": False, "capslib": "0" * 64},
        )
        record, found = hostile(record)
        made.append(record)
        names |= found
    trial = trial.model_copy(update={"config": {"routing": f"‹routing›{HOSTILE}"}})
    made.append(
        make_record(
            trial,
            key=hash_of(trial.model_dump()),
            config={**made[-1].config, **trial.config, "data": f"‹data›{HOSTILE}"},
        )
    )
    return made, names


def test_texts_of_records_are_shown_as_texts(tiny_book, records, browser):
    records, names = records
    assert {
        "deviations.0.why",
        "environment.device",
        "data.0.deviations.0",
        "metrics.largest_rise.unit",
        "message",
    } <= names
    store = Store(tiny_book.root / "results")
    for record in records:
        store.put(record)
    with_data = [
        r.model_copy(update={"config": {**r.config, "data": f"‹data›{HOSTILE}"}})
        for r in records
    ]
    shown = [
        frames.deviations(records).pipe(frames.styled),
        frames.costs(records).pipe(frames.styled, digits=1),
        frames.metrics(records).pipe(frames.styled),
        frames.means(
            frames.metrics(records), ["routing", "bias"], {"train_accuracy": "a"}
        ).pipe(frames.styled),
        Chapter("em_routing", store.root).table("EM-W-8"),
    ]
    outputs = [
        nbformat.v4.new_output("display_data", {"text/html": table._repr_html_()})
        for table in shown
    ]
    outputs.append(
        nbformat.v4.new_output("display_data", {"text/markdown": frames.standing(with_data)})
    )
    chapter = tiny_book.root / "book" / "papers" / f"{STEM}.md"
    cells = [
        nbformat.v4.new_markdown_cell(
            chapter.read_text(encoding="utf-8")
            + "\n{claim}`EM-W-8`; a formula brings MathJax: $x$.\n"
        )
    ]
    cells.append(nbformat.v4.new_code_cell("shown", outputs=outputs))
    chapter.unlink()
    nbformat.write(
        nbformat.v4.new_notebook(
            cells=cells,
            metadata={"language_info": {"name": "python", "pygments_lexer": "ipython3"}},
        ),
        chapter.with_suffix(".ipynb"),
    )
    tiny_book.write(
        "book/other.md", f"# Other\n\n```{{costs}} {STEM}\n```\n```{{record-schema}}\n```\n"
    )
    status, said = tiny_book.build()
    assert status == 0, said

    page, wrong, texts = browser.new_page(), [], ""
    page.on("pageerror", lambda error: wrong.append(str(error)))
    built = tiny_book.root / "_build" / "html"
    for path in sorted(
        [*(built / "book").rglob("*.html"), *(built / "records").rglob("*.html")]
    ):
        page.goto(path.as_uri(), wait_until="load")
        if page.locator(".math").count():
            page.wait_for_function("document.querySelectorAll('mjx-container').length")
        assert page.title() != "taken"
        wrong += page.locator(
            ".foreign, [src$=nowhere], [href^=javascript], [*|href^=javascript]"
        ).evaluate_all("found => found.map(e => e.outerHTML)")
        texts += page.locator("main").inner_text()
    assert not wrong
    for place in (
        "deviations.0.what",
        "deviations.0.paper",
        "deviations.0.ours",
        "deviations.0.why",
        "environment.device",
        "data.0.deviations.0",
        "metrics.largest_rise.unit",
        "metric",
        "field",
        "value",
        "routing",
        "data",
    ):
        assert f"‹{place}›" in texts, f"{place} is not on a page: then this tests nothing"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "notebooks").glob("*.py")), ids=lambda p: p.stem
)
def test_no_chapter_goes_around_the_escaping(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "style"
    ], "frames.styled"
    assert not [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.alias) and "HTML" in ast.dump(node)
    ]
