"""``capslib new paper`` writes a chapter that is green, and writes over nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from capslib.errors import UserError
from capslib.lab.skeleton import LONGEST, NEW, SHARED, new_paper

ROOT = Path(__file__).parents[2]
LONG = "a_" + (LONGEST - 2) * "z"


@pytest.fixture
def checkout(tmp_path) -> Path:
    """The files that get lines from a paper, in a folder of their own."""
    for name, _ in SHARED.values():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def texts(root: Path) -> dict[Path, str]:
    """Return the text of every file."""
    files = [path for path in root.rglob("*") if path.is_file()]
    return {path: path.read_text(encoding="utf-8") for path in files}


@pytest.mark.parametrize("stem", ["abc", LONG])
def test_a_skeleton_keeps_every_line_that_was_there_and_the_rules_of_lint(checkout, stem):
    before = texts(checkout)
    written = new_paper(stem, prefix="QQ", root=checkout)
    after = texts(checkout)
    assert set(after) == set(written)
    for path, text in before.items():
        lines = iter(after[path].splitlines())
        assert all(line in lines for line in text.splitlines()), path
    for name in ("pyproject.toml", "notebooks/ruff.toml"):
        shutil.copy(ROOT / name, checkout / name)
    first_party = 'lint.isort.known-first-party=["capslib"]'
    for words in (["check", "--config", first_party], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *words, "."]
        done = subprocess.run(command, cwd=checkout, capture_output=True, encoding="utf-8")
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("Demo-Paper",), "is no stem: .* For example demo_paper"),
        (("2020",), "is no stem: .* For example demo_paper"),
        ((LONG + "z",), f"{LONGEST} at most"),
        (("em_routing",), "There is a paper em_routing already. Give another stem"),
        (("training",), "training is taken: .* such as training_paper"),
        (("lambda",), "lambda is taken"),
        (("new_work", "dp"), "'dp' is no prefix: .*--prefix DP"),
        (("new_work", "NEG"), "begin with NEG. Give other letters with --prefix, none of EM"),
        (("exact_match",), "begin with EM. Give other letters"),
    ],
)
def test_a_name_that_is_none_or_is_taken_is_refused(checkout, words, message):
    before = texts(checkout)
    with pytest.raises(UserError, match=message):
        new_paper(*words, root=checkout)
    assert texts(checkout) == before


@pytest.mark.parametrize("name", NEW)
def test_a_file_that_exists_stays_as_it_is(checkout, name):
    path = checkout / NEW[name].replace("$stem", "abc")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine", encoding="utf-8")
    before = texts(checkout)
    with pytest.raises(UserError, match="exists already: move it away, or give another stem"):
        new_paper("abc", root=checkout)
    assert texts(checkout) == before


def test_a_folder_that_is_no_checkout_is_refused(tmp_path):
    with pytest.raises(UserError, match="writes into a checkout of the book"):
        new_paper("abc", root=tmp_path)
    assert not list(tmp_path.iterdir())


def test_files_that_have_no_place_for_a_paper_are_refused(checkout):
    (checkout / "_toc.yml").write_text("root: book/intro\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"_toc.yml has no place .* git checkout _toc.yml"):
        new_paper("abc", root=checkout)
    assert len(texts(checkout)) == len(SHARED)
