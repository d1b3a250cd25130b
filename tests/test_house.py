"""The house stays as its plan draws it: floors, sizes, and what must never be committed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import capslib

PACKAGE = Path(capslib.__file__).parent
ROOT = PACKAGE.parent


def plan() -> dict[str, tuple[int, int]]:
    """Floor and place on it of every room, read from the plan in the package's docstring."""
    rooms = {}
    for line in capslib.__doc__.splitlines():
        if match := re.match(r"    (\d)  (\w+(?:  \w+)*)   ", line):  # rooms stand two blanks apart, then comes what they are for
            rooms |= {name: (int(match[1]), place) for place, name in enumerate(match[2].split("  "))}
    return rooms


def imports(path: Path) -> set[str]:
    """The rooms of capslib that a file imports, wherever in it; not those it needs for annotations only."""
    tree = ast.parse(path.read_text())
    found = set()
    skipped = {
        id(n) for i in ast.walk(tree) if isinstance(i, ast.If) and "TYPE_CHECKING" in ast.dump(i.test) for n in ast.walk(i)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "capslib":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("capslib.")}
    return found


def room(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


FILES = [p for p in sorted(PACKAGE.rglob("*.py")) if room(p) not in ("__init__", "__main__")]


def test_every_room_is_on_the_plan_and_the_plan_has_no_other():
    assert {room(p) for p in FILES} == set(plan())


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_a_module_imports_only_from_below_or_from_its_left(path):
    rooms, own = plan(), room(path)
    for name in imports(path) - {own, "__version__"}:
        assert rooms[name][0] < rooms[own][0] or (rooms[name][0] == rooms[own][0] and rooms[name][1] < rooms[own][1]), (
            f"{path.relative_to(PACKAGE)} imports {name}, which is not below it"
        )


def test_importing_the_command_line_does_not_import_torch():
    code = "import sys, capslib.cli, capslib.batch, capslib.papers as p; p.queries('negation_limitation'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]


def test_nothing_is_committed_that_must_not_be():
    files = tracked()
    assert not [p for p in files if p.suffix in (".ipynb", ".pt", ".pth", ".npy", ".gz")]
    assert not [p for p in files if p.suffix == ".npz" and ROOT / "results" not in p.parents]
    assert not [p for p in files if p.stat().st_size > 1_000_000]


def test_every_committed_record_is_sound():
    from capslib.review import review
    from capslib.store import Store

    assert review(Store(ROOT / "results")).problems == []
