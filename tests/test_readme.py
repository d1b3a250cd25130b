"""The README says what is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from capslib.lab import claims
from capslib.lab.judging import GROUPS
from capslib.lab.store import Store
from capslib.papers import PAPERS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def verdict_table() -> str:
    """The table of verdicts as the README shows it: a column for each group, whose words are never added to another's."""
    lines = [f"| paper | claims | {' | '.join(GROUPS)} |", "|---" * (len(GROUPS) + 2) + "|"]
    for paper in PAPERS.values():
        counts = claims.counts(claims.verdicts(paper.stem, store=Store(ROOT / "results")))
        cells = (", ".join(f"{counts[s]} {s}" for s in words if counts[s]) or "–" for words in GROUPS.values())
        lines.append(f"| {paper.title} | {sum(counts.values())} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write_verdict_table() -> None:
    """Put today's table of verdicts in the place of the README's."""
    text, tables = re.subn(r"\| paper \| claims \|.*\n(\|.*\n)+", lambda _: verdict_table() + "\n", README)
    assert tables == 1, "README.md should hold one table of verdicts"
    (ROOT / "README.md").write_text(text, encoding="utf-8")


def test_the_verdicts_are_those_of_the_records():
    assert verdict_table() in README, f"`make verdicts` writes this table into README.md:\n\n{verdict_table()}\n"


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
