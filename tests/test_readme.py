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
def todays_verdicts() -> list[Verdict]:
    return verdicts(store=Store(ROOT / "results"))


def headline_table() -> str:
    """Return what the abstracts say and what the runs say, in words."""
    lines = ["| paper | it claims | our runs |", "|---|---|---|"]
    previous = None
    for headline in judged(todays_verdicts()):
        name = "" if headline.paper == previous else PAPERS[headline.paper].short
        previous = headline.paper
        lines.append(f"| {name} | {headline.sentence} | {headline.verdict} |")
    return "\n".join(lines)


def verdict_table() -> str:
    """Return the numbers of verdicts, in a column for each group, none added to another's."""
    lines = [f"| paper | claims | {' | '.join(GROUPS)} |", "|---" * (len(GROUPS) + 2) + "|"]
    for paper in PAPERS.values():
        of_paper = [v for v in todays_verdicts() if v.claim.paper == paper.stem]
        cells = [paper.short, str(len(of_paper))]
        for group, words in counts(of_paper).items():
            numbers = []
            for word in words:
                if words[word]:
                    number, _, note = count_text(of_paper, group, word).partition(" ")
                    numbers.append(f"{number} {word} {note}".strip())
            nothing = NONE_TRAINED if group == CAPSULES else "–"
            cells.append(", ".join(numbers) or nothing)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


TABLES = {
    r"\| paper \| it claims \|.*\n(\|.*\n)+": headline_table,
    r"\| paper \| claims \|.*\n(\|.*\n)+": verdict_table,
}


def write_tables() -> None:
    """Put today's tables in the place of the README's."""
    text = README
    for pattern, table in TABLES.items():
        (previous,) = re.finditer(pattern, text)
        text = text.replace(previous[0], table() + "\n")
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
