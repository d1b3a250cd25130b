"""Drawing the templates of this folder, and all that they may call.

Every text in a template is escaped, so a record from anybody shows as text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

from capsbook import benchmarks, notebooks, render, roles, runs
from capslib.lab import claims, estimates, headlines, ledger, progress, words
from capslib.papers import PAPERS, STUDIES
from capslib.papers.names import in_words

TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "sort_keys": False}

CALLED = (
    benchmarks.beside_public,
    benchmarks.is_public,
    benchmarks.milliseconds,
    benchmarks.times_of_limit,
    estimates.total_of,
    headlines.judged,
    ledger.number,
    ledger.plural,
    notebooks.site_file,
    progress.duration,
    render.all_parts,
    render.brief,
    render.core_hours,
    render.counted,
    render.kinds,
    render.main_row,
    render.ranked,
    render.schema_parts,
    render.tables,
    render.two_digits,
    render.what_verdicts_rest_on,
    roles.without_gaps,
    runs.cited_runs,
    runs.table_of_runs,
    words.count_text,
    words.counts,
)
TEMPLATES.globals.update({function.__name__: function for function in CALLED})
TEMPLATES.globals.update(
    AGREEMENT=benchmarks.AGREEMENT,
    CAPSULES=words.CAPSULES,
    CARD=estimates.CARD,
    CPU_CORE=estimates.CPU_CORE,
    DOUBT=estimates.DOUBT,
    MOST_SQUARES=render.MOST_SQUARES,
    GROUPS=words.GROUPS,
    LABELS=render.LABELS,
    NONE_TRAINED=words.NONE_TRAINED,
    PAPERS=PAPERS,
    TITLES={stem: paper.title for stem, paper in PAPERS.items()} | dict(STUDIES),
    claims=claims,
    zip=zip,
)
TEMPLATES.filters.update(
    cases=benchmarks.cases, without_markup=render.without_markup, in_words=in_words
)


def draw(template: str, **values: Any) -> str:
    """Render a template with these values."""
    return TEMPLATES.get_template(f"{template}.html").render(values)
