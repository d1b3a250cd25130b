"""What CONTRIBUTING says is done, word for word, in a copy of the checkout."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


HIDDEN = (".ci", ".github", ".gitattributes")
"""What a copy has of what begins with a dot; the rest is history, environments and data."""


@pytest.fixture
def copy(tmp_path) -> Path:
    """A copy of the checkout without history and builds; its records are those of the book."""
    folder = tmp_path / "copy"
    folder.mkdir()
    without = shutil.ignore_patterns("__pycache__", "*.ipynb", "*.egg-info")
    for path in ROOT.iterdir():
        is_left_out = path.name.startswith((".", "_build")) and path.name not in HIDDEN
        if is_left_out or path.name == "results":
            continue
        if path.is_dir():
            shutil.copytree(path, folder / path.name, ignore=without)
        else:
            shutil.copy(path, folder)
    (folder / "results").symlink_to(ROOT / "results")
    return folder


def test_every_constant_that_is_named_is_defined():
    code = ""
    for folder in ("capslib", "benchmarks", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            code += path.read_text(encoding="utf-8")
    names = set(re.findall(r"`([A-Z][A-Z_]+)`", CONTRIBUTING)) - {"NAME", "STEM", "ARM", "TODO"}
    assert len(names) > 5
    for name in names:
        assert re.search(rf"^{name}\b.* = ", code, re.MULTILINE), name


def commands(section: str, **names: str) -> list[str]:
    """Return the lines that a section gives to a shell, with names in the place of ``NAME``."""
    text = CONTRIBUTING.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```shell\n(.*?)```", text, re.DOTALL)
    for name, value in names.items():
        block = re.sub(rf"\b{name}\b", value, block)
    return [line.partition(" #")[0].strip() for line in block.splitlines()]


def call(line: str, folder: Path) -> str:
    """Run a line in a folder, with the capslib that lies there, and return what it prints."""
    program, _, rest = line.partition(" ")
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTEST_ADDOPTS": "-n 0"}
    for name in ("CAPSLIB_RESULTS", "CI"):
        environment.pop(name, None)
    done = subprocess.run(
        f'"{sys.executable}" -m {program} {rest}',
        shell=True,
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, f"{line}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def test_the_example_of_a_routing_passes_what_a_routing_has_to_pass(copy):
    example = copy / "capslib" / "routing" / "demo.py"
    shutil.copy(copy / "tests" / "routing" / "soft_k_means.py", example)
    registry = copy / "capslib" / "registry.py"
    start = '    "routing",\n    {\n'
    line = '        "demo": "capslib.routing.demo:SoftKMeans",\n'
    text = registry.read_text(encoding="utf-8")
    assert text.count(start) == 1
    registry.write_text(text.replace(start, start + line), encoding="utf-8")
    (case,) = re.findall(r"Add `(RoutingCase\(.*?\))` to", CONTRIBUTING)
    measured = copy / "benchmarks" / "cases.py"
    lines = measured.read_text(encoding="utf-8").splitlines(keepends=True)
    for node in ast.parse("".join(lines)).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LAYERS":
            end = node.end_lineno - 1
    lines.insert(end, f"    {case.replace('NAME', 'demo')},\n")
    measured.write_text("".join(lines), encoding="utf-8")
    tests, run = commands("Add a routing", NAME="demo")
    assert " passed" in call(tests, copy)
    call(run.replace("/tmp/", f"{copy.parent}/"), copy)
    assert list(copy.parent.glob("demo/em_routing/viewpoint/*.json"))


def test_a_new_paper_passes_what_a_paper_has_to_pass(copy):
    for line in commands("Add a paper", STEM="demo_paper"):
        printed = call(line.replace("/tmp/", f"{copy.parent}/"), copy)
        assert "pytest" not in line or " passed" in printed
    assert (copy / "book" / "papers" / "demo_paper.ipynb").exists()
