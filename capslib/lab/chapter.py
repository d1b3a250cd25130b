"""What the page of a paper says of its claims: the verdict box, and the tables of verdicts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from IPython.display import HTML

from capslib import papers
from capslib.errors import check_name, unknown
from capslib.lab import claims, frames
from capslib.lab.records import Record
from capslib.lab.store import Store
from capslib.lab.words import STATUSES, Verdict

if TYPE_CHECKING:
    from pandas import DataFrame
    from pandas.io.formats.style import Styler

BOX = dict(
    claim="They claim",
    found="We found",
    size="Size and data",
    surprise="What surprised us",
    settles="What would settle the rest",
)
"""What the five sentences of a verdict box answer, in their order."""


class Chapter:
    """The records and claims of a paper in the results folder that its notebook names; None: the committed ones.

    Each property and method reads the folder anew, so that a table knows the trials that the cell above it has run.
    """

    def __init__(self, stem: str, results_dir: str | os.PathLike[str] | None = None):
        self.stem, self.store = stem, Store(results_dir)

    @property
    def records(self) -> list[Record]:
        """The records of the grid of each scale, which figures show: not those of twice the budget, which would count a seed twice."""
        return [r for r in self.every if papers.budget(r.trial) == 1]

    @property
    def every(self) -> list[Record]:
        """All records of the paper, those of twice the budget too."""
        return list(self.store.records(self.stem))

    @property
    def told(self) -> dict[str, Verdict]:
        """The verdict on each claim."""
        return {v.claim.id: v for v in claims.verdicts(self.stem, store=self.store)}

    def table(self, *ids: str, names: Mapping = {}, beside: Mapping = {}) -> HTML:
        """The table of an experiment: row, paper, ours with interval, n and scale, and the verdict with its square and link.

        An id that ends in a dash stands for all claims that start with it. ``names`` names rows by claim (their statement by
        default), ``beside`` puts more from the records under our value. What is not run stands below in one line that unfolds.
        Raises :class:`UserError` for an id that is not in the ledger.
        """
        found, rows, left, all_rest_on = self.told, [], [], set()
        for name in (
            n
            for of in ids
            for n in ([i for i in found if of.endswith("-") and i.startswith(of)] or [of])
        ):
            check_name("claim", name, found)
            v, code = found[name], f'<a href="#claim-{name}"><code>{name}</code></a>'
            seal, label = claims.seal(v), escape(names.get(name) or v.claim.statement)
            if v.group in claims.UNJUDGED:
                told = f"({code}; paper: {escape(claims.theirs(v))}). {escape(v.reason)}"
                left.append((v, f'<li id="at-{name}">{seal} {label} {told}</li>'))
                continue
            all_rest_on.add(small := escape(claims.basis(v)))
            values = (
                escape(claims.theirs(v)),
                escape(claims.ours(v)),
                small,
                escape(beside.get(name, "")),
            )
            rows.append(_ROW.format(name, label, code, *values, f"{seal} {v.word}"))
        same = len(all_rest_on) == 1 < len(rows)
        head = _HEAD.format(f"<br><small>{small}</small>" if same else "")
        html = (
            f'<table class="claims{" same" * same}">{head}<tbody>{"".join(rows)}</tbody></table>'
            if rows
            else ""
        )
        if left:
            counted = Counter(v.status for v, _ in left)
            told = ", ".join(
                f"{counted[status]} {status}" for status in STATUSES if counted[status]
            )
            title = "Not judged" if counted["erratum"] else "Not run"
            html += f"<details><summary>{title}: {told}</summary><ul>{''.join(text for _, text in left)}</ul></details>"
        return HTML(f'<div class="claims-wrap">{html}</div>')

    def side_by_side(self, ids: DataFrame, digits: int = 3) -> Styler:
        """A table of the paper, cell by cell: its value, ours, the square of the verdict; ``ids`` has a claim in each cell.

        Between the values stands = where they differ by the claim's tolerance at most, else < or > (paper < ours). Where a network
        did not learn there is no mean, and ours stand seed by seed after a dot.
        """
        found = self.told

        def cell(name: str) -> str:
            v = found[name]
            theirs, seal = v.claim.value, claims.seal(v, f"../scorecard.html#claim-{name}")
            if v.ours is None:
                each = " / ".join(f"{value:.{digits}f}" for value in v.listed)
                return f'<span id="at-{name}">{theirs:.{digits}f}{each and f" · {each}"} {seal}</span>'
            near = abs(v.ours - theirs) <= (v.claim.tolerance or 0)
            sign, kind = (
                ("=", "near")
                if near
                else ("&lt;", "above")
                if v.ours > theirs
                else ("&gt;", "below")
            )
            return f'<span id="at-{name}" class="cell-{kind}">{theirs:.{digits}f} {sign} {v.ours:.{digits}f} {seal}</span>'

        return (
            frames.styled(ids)
            .format(cell, na_rep="")
            .set_properties(**{"white-space": "nowrap"})
        )

    def verdict_box(self, numbers: Mapping[str, object] = {}, **said: str) -> HTML:
        """The answer of the chapter in five short paragraphs, one for each of ``BOX``, for the top of its page, and the links to paper and code.

        A sentence types no number: ``{EM-W-14}`` is a claim with the square of its verdict, ``{EM-W-14:ours}``, ``:theirs``,
        ``:basis`` or ``:verdict`` what tables say of it, ``:said`` the verdict in words that fit a sentence, ``{undecided}`` how
        many claims have that verdict, and other names are of ``numbers``, where None is a number that is missing.

        A sentence whose number is missing is left out. So is one that shows the verdict of a claim that waits for a run, except
        where the box says what would settle the rest. Raises :class:`UserError` for a name that is none of these, and
        :class:`TypeError` where a sentence is missing.
        """
        if list(said) != list(BOX):
            raise TypeError(f"a verdict box has the sentences {', '.join(BOX)}, in this order")
        verdicts = self.told
        values = dict.fromkeys(STATUSES, 0) | Counter(
            verdict.status for verdict in verdicts.values()
        )
        values |= {
            name: frames.MISSING if value in (None, "") else escape(str(value))
            for name, value in numbers.items()
        }
        paragraphs = []
        for part, text in said.items():
            named = {
                name: _Told(verdict, may_wait=part == "settles")
                for name, verdict in verdicts.items()
            }
            try:
                told = [
                    text.format_map(named | values)
                    for text in frames.sentences(escape(text, quote=False))
                ]
            except KeyError as error:
                raise unknown("name in a verdict box", error.args[0], named | values) from None
            shown = frames.whole(told) or "No record here tells."
            paragraphs.append(f'<p class="box-{part}"><b>{BOX[part]}.</b> {shown}</p>')
        places = papers.PAPERS[self.stem].links.items()
        links = " · ".join(
            f'<a href="{url}">{name}</a>' if url else f"no {name}" for name, url in places
        )
        return HTML(
            f'<div class="masthead verdict-box">{"".join(paragraphs)}<p><small>{links}</small></p></div>'
        )


class _Told(NamedTuple):
    """A verdict in a sentence, which ``may_wait`` for a run if the sentence says so."""

    verdict: Verdict
    may_wait: bool

    def __format__(self, what: str) -> str:
        verdict = self.verdict
        told = {
            "ours": claims.ours,
            "theirs": claims.theirs,
            "basis": claims.basis,
            "verdict": lambda v: v.word,
        }
        told["said"] = lambda v: "not decided yet" if v.status == "waiting" else v.word
        check_name(f"word for {verdict.claim.id}", what or "said", told)
        if what in ("", "verdict") and verdict.status == "waiting" and not self.may_wait:
            return frames.MISSING
        if (
            what == "ours"
            and verdict.group in claims.UNJUDGED
            and not claims.our_value(verdict)
        ):
            return frames.MISSING
        return (
            escape(told[what](verdict)) or frames.MISSING
            if what
            else claims.seal(verdict, named=True)
        )


_WIDTHS = "".join(
    f"<col style=width:{w}%>" for w in (39, 18, 25, 18)
)  # the page's own are for tables whose verdicts say more
_HEAD = f"<colgroup>{_WIDTHS}</colgroup><thead><tr><th>Row<th>Paper<th>Ours (95 % interval){{}}<th>Verdict</tr></thead>"
_ROW = (
    '<tr id="at-{}"><td data-label="Row">{} <small class="claim-id">{}</small></td><td data-label="Paper">{}</td>'
    '<td data-label="Ours">{} <small class="basis">{}</small> <small>{}</small></td><td data-label="Verdict">{}</td></tr>'
)
