"""The README says what is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from capslib.lab.claims import verdicts
from capslib.lab.headlines import judged
from capslib.lab.store import Store
from capslib.papers import PAPERS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
HEADLINES = r"\| paper \| it claims \|.*\n(\|.*\n)+"


def headline_table() -> str:
    """Return what the abstracts say and what the runs say, in words."""
    lines = ["| paper | it claims | our runs |", "|---|---|---|"]
    previous = None
    for headline in judged(verdicts(store=Store(ROOT / "results"))):
        name = "" if headline.paper == previous else PAPERS[headline.paper].short
        previous = headline.paper
        lines.append(f"| {name} | {headline.sentence} | {headline.verdict} |")
    return "\n".join(lines)


def write_table() -> None:
    """Put today's table in the place of the README's."""
    (previous,) = re.finditer(HEADLINES, README)
    text = README.replace(previous[0], headline_table() + "\n")
    (ROOT / "README.md").write_text(text, encoding="utf-8")


def test_the_verdicts_are_those_of_the_records():
    table = headline_table()
    assert table in README, f"`make verdicts` writes this table into README.md:\n\n{table}\n"


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(((?!https?:)[^)#]+)", README))))
def test_links_and_pictures_lead_somewhere(path):
    assert (ROOT / path).exists()


def test_the_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    network, layers, training = re.findall(r"```python\n(.*?)```", README, re.S)
    scope: dict = {}
    exec(network, scope)
    assert scope["reconstruction"].shape == (2, 3, 32, 32)
    exec(layers, scope)
    assert scope["pose"].shape == (2, 10, 16)
    assert scope["coupling"].shape == (2, 1152, 10)
    exec(training, scope)
    assert 0.5 < scope["accuracy"] <= 1
    assert len(list((tmp_path / "trainings").glob("*.pt"))) == 1
