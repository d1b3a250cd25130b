"""What pages get besides their text: buttons, figures for phones, code that wraps."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes

from capsbook import notebooks, travel
from capsbook.book import chapter_of

if TYPE_CHECKING:
    from sphinx.application import Sphinx

LISTING = re.compile(
    r'(<div class="highlight-(?P<language>[\w-]+)[^>]*><div class="highlight"><pre>)'
    r"(?P<code>.*?)(?=</pre>)",
    re.S,
)
SHELLS = ("shell", "bash", "sh", "console")
OPTION = re.compile(r"(?<![\w<-])--?[a-z][\w-]*")
PHONE_COLUMNS = 45
"""How many letters of code fit on a phone."""


def name_code(app: Sphinx, doctree: nodes.document) -> None:
    """Name the folded code of a cell by what it shows, in the place of ``{type}`` in its
    prompt."""
    for cell in doctree.findall(nodes.container):
        if "prompt_show" not in cell:
            continue
        tables = [raw for raw in cell.findall(nodes.raw) if _has_table_or_fold(raw)]
        pictures = [*cell.findall(nodes.image), *cell.findall(nodes.figure)]
        if pictures:
            kind = "figure"
        elif tables:
            kind = "table"
        else:
            kind = "text below" if len(cell.children) > 1 else "set-up"
        for prompt in ("prompt_show", "prompt_hide"):
            cell[prompt] = cell[prompt].replace("{type}", kind)


def _has_table_or_fold(raw: nodes.raw) -> bool:
    return re.search("<table|<details", raw.astext()) is not None


def finish_page(
    app: Sphinx,
    page: str,
    template: str,
    context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    """Finish the HTML of a page."""
    body = context.get("body", "")
    body = for_screen_readers(body)
    body = for_search(body)
    body = LISTING.sub(wrapped, body)
    if chapter_of(page) in app.env.capsbook.chapters:
        body = for_phones(app, page, context, body)
    context["body"] = body
    if doctree is not None and "header_buttons" in context:
        add_buttons(app, page, context)


def for_screen_readers(body: str) -> str:
    """Take out roles that the bibliography cannot keep, and one name for all folds of code."""
    if 'role="doc-biblioentry"' in body:
        body = re.sub(r' role="(?:list|doc-biblioentry)"', "", body)
    return body.replace('<summary aria-label="Toggle hidden content">', "<summary>")


def for_search(body: str) -> str:
    """Keep folded code out of the excerpts that the search shows, and words of neighbouring
    cells apart in them."""
    # The search of Sphinx leaves out what has the class headerlink.
    body = body.replace(' hide above-input"', ' hide above-input headerlink"')
    return re.sub("(</t[dh]>)<", r"\1\n<", body)


def wrapped(listing: re.Match) -> str:
    """Let a narrow screen wrap a long line of code at its indentation, and no option in
    itself."""
    code = listing["code"]
    if listing["language"] in SHELLS:
        code = OPTION.sub(r'<span class="whole">\g<0></span>', code)
    lines = [_line(line) for line in code.splitlines(keepends=True)]
    return listing[1] + "".join(lines)


def _line(line: str) -> str:
    text = html.unescape(re.sub("<[^>]*>", "", line)).rstrip("\n")
    if len(text) <= PHONE_COLUMNS:
        return line
    indentation = len(text) - len(text.lstrip(" "))
    return f'<span class="line" style="--in:{indentation}">{line}</span>'


def for_phones(app: Sphinx, page: str, context: dict[str, Any], body: str) -> str:
    """Give narrow screens the form of a chapter's figures whose panels stand below each
    other."""
    for name, svg in notebooks.narrow(Path(app.srcdir, f"{page}.ipynb")).items():
        path = f"_static/narrow/{name}.svg"
        address = context["pathto"](path, 1)
        source = f'<source media="(max-width: 640px)" srcset="{address}"/>'
        image = rf'<img [^>]*src="[^"]*{name}\.svg"[^>]*>'
        body, count = re.subn(image, rf"<picture>{source}\g<0></picture>", body)
        if count:
            notebooks.write_if_changed(Path(app.outdir) / path, svg)
    return body


def add_buttons(app: Sphinx, page: str, context: dict[str, Any]) -> None:
    """Offer to edit a page where it is written, and to run a chapter: the theme knows of
    neither."""
    repository, stem = app.env.capsbook.repository, chapter_of(page)
    source = f"notebooks/{stem}.py" if stem else app.env.doc2path(page, base=False)
    edit = {
        "type": "link",
        "url": f"{repository}/edit/main/{source}",
        "tooltip": "Edit this page",
        "icon": "fas fa-pencil-alt",
        "label": "edit-button",
    }
    context["header_buttons"].insert(0, edit)
    if not stem:
        return
    offers = {
        f"Open in {name}": address
        for name, address in travel.launch_links(stem, repository).items()
    }
    offers["Download .ipynb"] = context["pathto"](travel.PUBLISHED.format(stem=stem), 1)
    run = {
        "type": "group",
        "tooltip": "Run this chapter",
        "icon": "fas fa-rocket",
        "label": "launch-buttons",
        "buttons": [{"type": "link", "url": url, "text": text} for text, url in offers.items()],
    }
    context["header_buttons"].insert(0, run)
