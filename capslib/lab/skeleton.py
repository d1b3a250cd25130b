"""A new paper: every file that a chapter needs, green from the start.

The texts lie in ``templates``. What an author has to fill in is marked TODO there.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from string import Template

from capslib.errors import UserError
from capslib.files import write_atomically
from capslib.lab.ledger import ledger
from capslib.papers import PAPERS

TEMPLATES = Path(__file__).with_name("templates")
PACKAGE = Path(__file__).parents[1]
LONGEST = 20
"""The letters of the longest stem: lines of the templates then keep to 96 columns."""
NEW = {
    "init.py": "capslib/papers/$stem/__init__.py",
    "recipe.py": "capslib/papers/$stem/recipe.py",
    "accuracy.py": "capslib/papers/$stem/accuracy.py",
    "checks.py": "capslib/papers/$stem/checks.py",
    "ledger.csv": "capslib/lab/ledger/$stem.csv",
    "deviations.csv": "capslib/lab/ledger/deviations/$stem.csv",
    "notebook.py": "notebooks/$stem.py",
    "test.py": "tests/papers/test_$stem.py",
}
"""The files of a paper, by the template of each."""


def _end_of_papers(text: str) -> int:
    """Return where the last paper of ``PAPERS`` ends."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "PAPERS":
            calls = [call for call in ast.walk(node) if isinstance(call, ast.Call)]
            ends = [call.end_lineno for call in calls if ast.unparse(call.func) == "Paper"]
            return sum(map(len, text.splitlines(keepends=True)[: max(ends)]))
    raise ValueError("no PAPERS")


def _end_of(pattern: str) -> Callable[[str], int]:
    """Return a function that says where the last match of a pattern ends in a text."""

    def end(text: str) -> int:
        return max(match.end() for match in re.finditer(pattern, text))

    return end


SHARED: dict[str, tuple[str, Callable[[str], int]]] = {
    "paper.py": ("capslib/papers/__init__.py", _end_of_papers),
    "headlines.csv": ("capslib/lab/ledger/headlines.csv", len),
    "references.bib": ("book/references.bib", len),
    "toc.yml": ("_toc.yml", _end_of(r" +- file: book/papers/\w+\n")),
    "readme.md": ("README.md", _end_of(r"\| paper \| it claims \|.*\n(\|.*\n)+")),
}
"""The files of all papers that get lines, by the template of these: where the lines go."""


def new_paper(stem: str, prefix: str | None = None, root: Path | None = None) -> list[Path]:
    """Write the skeleton of a paper into a checkout, and return the files that it touches.

    ``prefix`` begins the ids of the paper's claims; by default it is the initials of the stem.
    ``root`` is the folder of the checkout, by default that of this package. Nothing that
    exists is written over. Raises :class:`UserError`, before a file is touched, for a stem or
    prefix that is no name or is taken, and for a folder that is no checkout.
    """
    root = PACKAGE.parent if root is None else root
    _check_stem(stem)
    prefix = _prefix_of(stem) if prefix is None else prefix
    _check_prefix(prefix)
    words = stem.split("_")
    fields = {
        "stem": stem,
        "name": "".join(map(str.capitalize, words)),
        "short": " ".join(words).capitalize(),
        "prefix": prefix,
    }
    texts = dict(_files(root, fields))
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    return list(texts)


def _check_stem(stem: str) -> None:
    """Raise :class:`UserError` for a stem that is no name, or that is taken."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", stem) or len(stem) > LONGEST:
        words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", stem).lower())
        example = "_".join(words)[:LONGEST].strip("_0123456789") or "demo_paper"
        raise UserError(
            f"{stem!r} is no stem: take lower-case letters, digits and single underscores, "
            f"a letter first, {LONGEST} at most. For example {example}."
        )
    if stem in PAPERS:
        raise UserError(f"There is a paper {stem} already. Give another stem.")
    modules = set()
    for folder in (PACKAGE, PACKAGE / "papers", PACKAGE / "lab", PACKAGE / "lab" / "ledger"):
        modules |= {path.stem for path in folder.iterdir()}
    if stem in modules or keyword.iskeyword(stem):
        raise UserError(
            f"{stem} is taken: a module, a file or Python has this name. "
            f"Give a longer stem, such as {stem[: LONGEST - 6]}_paper."
        )


def _prefix_of(stem: str) -> str:
    """Return the initials of a stem, or the first letters of its only word."""
    words = stem.split("_")
    letters = stem[:3] if len(words) == 1 else "".join(word[0] for word in words)
    return re.sub("[0-9]", "", letters).upper()


def _check_prefix(prefix: str) -> None:
    """Raise :class:`UserError` for a prefix that no id can have, or that is taken."""
    taken = sorted({claim.partition("-")[0] for claim in ledger()})
    if not re.fullmatch("[A-Z]{1,8}", prefix):
        raise UserError(
            f"{prefix!r} is no prefix: ids of claims begin with one to eight capital letters. "
            "Give them with --prefix, such as --prefix DP."
        )
    if prefix in taken:
        raise UserError(
            f"The ids of another paper begin with {prefix}. Give other letters with --prefix, "
            f"none of {', '.join(taken)}."
        )


def _files(root: Path, fields: dict[str, str]) -> Iterator[tuple[Path, str]]:
    """Yield the files of a paper and their texts, new ones first.

    Raises :class:`UserError` for a file that exists, and for one that lacks its place.
    """
    for name, target in NEW.items():
        path = root / Template(target).substitute(fields)
        if path.exists():
            raise UserError(f"{path} exists already: move it away, or give another stem.")
        yield path, _filled(name, fields)
    for name, (target, end_of) in SHARED.items():
        path = root / target
        try:
            text = path.read_text(encoding="utf-8")
            end = end_of(text)
        except FileNotFoundError:
            raise UserError(
                f"There is no {path}: `capslib new` writes into a checkout of the book. "
                "Clone it and run `make .venv/.ready` there, then .venv/bin/capslib."
            ) from None
        except (SyntaxError, ValueError):
            raise UserError(
                f"{path} has no place for a paper. Restore it: git checkout {target}"
            ) from None
        yield path, text[:end] + _filled(name, fields) + text[end:]


def _filled(name: str, fields: dict[str, str]) -> str:
    """Return the text of a template. Imports stand in the order of their modules."""
    template = (TEMPLATES / f"{name}.in").read_text(encoding="utf-8")
    text = Template(template).substitute(fields)

    def in_order(block: re.Match) -> str:
        return "".join(sorted(block[0].splitlines(keepends=True), key=str.split))

    return re.sub(r"(^from capslib\S* import .*\n)+", in_order, text, flags=re.MULTILINE)
