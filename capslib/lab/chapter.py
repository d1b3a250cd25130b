"""What the page of a paper says of its claims: tables of verdicts."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from IPython.display import HTML

from capslib import papers
from capslib.errors import check_name
from capslib.lab import claims, frames
from capslib.lab.records import Record
from capslib.lab.store import Store
from capslib.lab.words import STATUSES, Verdict

if TYPE_CHECKING:
    from pandas import DataFrame
    from pandas.io.formats.style import Styler

_WIDTHS = (
    # The style sheet's widths are for tables with longer verdicts.
    "<colgroup><col style=width:39%><col style=width:18%>"
    "<col style=width:25%><col style=width:18%></colgroup>"
)


class Chapter:
    """The records of a paper and the verdicts on its claims, for the page of the paper.

    ``results_dir`` is the folder of records, by default that of the committed ones. Each
    property and method looks there anew, so that a table knows the trials that the cell above
    it has run.
    """

    def __init__(self, stem: str, results_dir: str | os.PathLike[str] | None = None):
        self.stem = stem
        self.store = Store(results_dir)
        self._verdicts: dict[str, Verdict] = {}
        self._files: list[tuple[Path, int, int]] = []

    @property
    def records(self) -> list[Record]:
        """The records that figures show: those of the grid of each scale.

        Those of twice the budget would count a seed twice.
        """
        return [record for record in self.all_records if papers.budget(record.trial) == 1]

    @property
    def all_records(self) -> list[Record]:
        """All records of the paper, those of twice the budget too."""
        return list(self.store.records(self.stem))

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """The verdict on each claim, by its id, judged anew when a record has changed."""
        files = []
        for path in self.store.paths(self.stem):
            with contextlib.suppress(FileNotFoundError):  # somebody sets it aside just now
                state = path.stat()
                files.append((path, state.st_ino, state.st_mtime_ns))
        if not self._verdicts or files != self._files:
            verdicts = claims.verdicts(self.stem, store=self.store)
            self._verdicts = {verdict.claim.id: verdict for verdict in verdicts}
            self._files = files
        return self._verdicts

    def table(self, *ids: str, names: Mapping = {}) -> HTML:
        """Return a table of claims: row, paper, ours with interval, n and scale, and verdict.

        An id that ends in a dash stands for all claims that start with it. ``names`` names rows
        by claim (their statement by default). Claims that no run was held against stand below,
        in one line that unfolds. Raises :class:`UserError` for an id that is not in the ledger.
        """
        verdicts = self.verdicts
        judged = []
        unjudged = []
        for claim in _expanded(ids, verdicts):
            check_name("claim", claim, verdicts)
            verdict = verdicts[claim]
            group = unjudged if verdict.group in claims.UNJUDGED else judged
            group.append(verdict)
        html = _table(judged, names) + _unjudged(unjudged, names)
        return HTML(f'<div class="claims-wrap">{html}</div>')

    def side_by_side(self, table: DataFrame, digits: int = 3) -> Styler:
        """Return a table of the paper, with its value over ours and the square of the verdict.

        A cell of ``table`` may be the id of a claim with a value; any other cell stands as it
        is, such as the setting that a row names. Where a network did not learn there is no
        mean, and ours stand seed by seed.
        """
        verdicts = self.verdicts

        def cell(content: object) -> str:
            verdict = verdicts.get(content)
            if verdict is not None and verdict.claim.value is not None:
                return _cell(verdict, digits)
            return str(content)

        return (
            frames.styled(table)
            .format(cell, na_rep="")
            .set_table_attributes('class="dataframe paper-over-ours"')
        )


def _expanded(ids: Sequence[str], ledger: Iterable[str]) -> list[str]:
    """Return ids, those that end in a dash replaced by the claims that start so, if any do."""
    expanded = []
    for name in ids:
        matching = [claim for claim in ledger if claim.startswith(name)]
        expanded += matching if name.endswith("-") and matching else [name]
    return expanded


def _table(verdicts: Sequence[Verdict], names: Mapping) -> str:
    """Return the HTML of a table of judged claims; nothing where there are none.

    If all rows rest on the same, the head says so, too, and the style sheet shows one of the
    two.
    """
    if not verdicts:
        return ""
    rows = ""
    for verdict in verdicts:
        link, name = _link_and_name(verdict, names)
        rows += (
            f'<tr id="at-{verdict.claim.id}">'
            f'<td data-label="Row">{name} <small class="claim-id">{link}</small></td>'
            f'<td data-label="Paper">{escape(claims.theirs(verdict))}</td>'
            f'<td data-label="Ours">{escape(claims.ours(verdict))}'
            f' <small class="basis">{escape(claims.basis(verdict))}</small></td>'
            f'<td data-label="Verdict">{claims.seal(verdict)} {verdict.word}</td></tr>'
        )
    bases = {claims.basis(verdict) for verdict in verdicts}
    kind, basis = "claims", ""
    if len(verdicts) > 1 and len(bases) == 1:
        kind, basis = "claims same", f"<br><small>{escape(*bases)}</small>"
    head = f"<tr><th>Row<th>Paper<th>Ours (95 % interval){basis}<th>Verdict</tr>"
    return f'<table class="{kind}">{_WIDTHS}<thead>{head}</thead><tbody>{rows}</tbody></table>'


def _link_and_name(verdict: Verdict, names: Mapping) -> tuple[str, str]:
    """Return the HTML of a claim's id, with a link to its row, and of its name in ``names``."""
    claim = verdict.claim
    link = f'<a href="#claim-{claim.id}"><code>{claim.id}</code></a>'
    return link, escape(names.get(claim.id) or claim.statement)


def _unjudged(verdicts: Sequence[Verdict], names: Mapping) -> str:
    """Return the HTML of a line that unfolds to claims that were not judged, and why."""
    if not verdicts:
        return ""
    items = ""
    for verdict in verdicts:
        link, name = _link_and_name(verdict, names)
        items += (
            f'<li id="at-{verdict.claim.id}">{claims.seal(verdict)} {name} ({link}; paper: '
            f"{escape(claims.theirs(verdict))}). {escape(verdict.reason)}</li>"
        )
    counts = Counter(verdict.status for verdict in verdicts)
    title = "Not judged" if counts["erratum"] else "Not run"
    total = ", ".join(f"{counts[word]} {word}" for word in STATUSES if counts[word])
    return f"<details><summary>{title}: {total}</summary><ul>{items}</ul></details>"


def _cell(verdict: Verdict, digits: int) -> str:
    """Return the HTML of the paper's value over ours, with the square of the verdict.

    Where the value is reproduced, the cell is tinted.
    """
    claim, value = verdict.claim, verdict.ours
    seal = claims.seal(verdict, f"../scorecard.html#claim-{claim.id}")
    kind = "cell near" if verdict.status == "reproduced" else "cell"
    seeds = verdict.by_seed if value is None else (value,)
    measured = " / ".join(f"{seed:.{digits}f}" for seed in seeds)
    decimals = len(claim.printed.partition(" ")[0].partition(".")[2])
    printed = f'<span class="printed">{claim.value:.{min(decimals, digits)}f}</span>'
    ours = f"{measured} {seal}".lstrip()
    lines = f'{printed}<span class="measured">{ours}</span>'
    return f'<span id="at-{claim.id}" class="{kind}">{lines}</span>'
