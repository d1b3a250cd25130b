"""The README says what is so."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from capslib.lab.claims import verdicts
from capslib.lab.headlines import judged
from capslib.lab.store import Store
from capslib.lab.words import CAPSULES, GROUPS, NONE_TRAINED, Verdict, count_text, counts
from capslib.papers import PAPERS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@functools.cache
def todays() -> list[Verdict]:
    return verdicts(store=Store(ROOT / "results"))


def headline_table() -> str:
    """What the abstracts say and what the runs say, in words."""
    lines = ["| paper | it claims | our runs |", "|---|---|---|"]
    for paper in PAPERS.values():
        for number, headline in enumerate(h for h in judged(todays()) if h.paper == paper.stem):
            name = "" if number else paper.short
            lines.append(f"| {name} | {headline.sentence} | {headline.verdict} |")
    return "\n".join(lines)


def verdict_table() -> str:
    """The table of verdicts as the README shows it: a column for each group, whose words are never added to another's."""
    lines = [f"| paper | claims | {' | '.join(GROUPS)} |", "|---" * (len(GROUPS) + 2) + "|"]
    for paper in PAPERS.values():
        found = [v for v in todays() if v.claim.paper == paper.stem]
        cells = []
        for group, words in counts(found).items():
            parts = []
            for word, n in words.items():
                number, _, note = count_text(found, group, word).partition(" ")
                if n:
                    parts.append(f"{number} {word} {note}".strip())
            cells.append(", ".join(parts) or (NONE_TRAINED if group == CAPSULES else "–"))
        lines.append(f"| {paper.short} | {len(found)} | {' | '.join(cells)} |")
    return "\n".join(lines)


TABLES = {
    r"\| paper \| it claims \|.*\n(\|.*\n)+": headline_table,
    r"\| paper \| claims \|.*\n(\|.*\n)+": verdict_table,
}


def write_tables() -> None:
    """Put today's tables in the place of the README's."""
    text = README
    for pattern, table in TABLES.items():
        text, found = re.subn(pattern, lambda _, table=table: table() + "\n", text)
        assert found == 1, f"README.md should hold one table that looks like {pattern}"
    (ROOT / "README.md").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("table", TABLES.values())
def test_the_verdicts_are_those_of_the_records(table):
    assert table() in README, (
        f"`make verdicts` writes this table into README.md:\n\n{table()}\n"
    )


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(((?!https?:)[^)#]+)", README))))
def test_links_and_pictures_lead_somewhere(path):
    assert (ROOT / path).exists()


def test_the_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    layers, training = re.findall(r"```python\n(.*?)```", README, re.S)
    scope: dict = {}
    exec(layers, scope)
    assert scope["pose"].shape == (2, 10, 16)
    assert scope["coupling"].shape == (2, 1152, 10)
    exec(training, scope)
    assert 0.5 < scope["accuracy"] <= 1
    assert len(list((tmp_path / "trainings").glob("*.pt"))) == 1
