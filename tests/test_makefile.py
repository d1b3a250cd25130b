"""What ``make`` says, run with the project's Makefile in folders of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder that has a blank in its name and the Makefile in it."""
    folder = tmp_path / "a book"
    folder.mkdir()
    for name in ("Makefile", "requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    return folder


def make(folder: Path, *words: str) -> subprocess.CompletedProcess:
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", *words], cwd=folder, env=outside, capture_output=True, encoding="utf-8"
    )


def script(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def test_a_python_that_is_too_old_is_told_so_before_anything_is_installed(folder, tmp_path):
    code = (
        f"#!{sys.executable}\nimport sys\nsys.version_info = (3, 10, 12)\nexec(sys.argv[2])\n"
    )
    python = script(tmp_path / "python3.10", code)
    process = make(folder, f"PYTHON={python}", ".venv/.ready")
    assert process.returncode == 2
    message = "is Python 3.10: this book needs 3.11 or newer, as in make PYTHON=python3.11\n"
    assert f"{python} {message}" in process.stderr
    assert not (folder / ".venv").exists()


def test_the_address_of_the_book_opens_from_a_folder_with_a_blank_in_its_name(folder, tmp_path):
    (folder / ".venv").mkdir()
    (folder / ".venv" / ".ready").touch()
    tools = tmp_path / "bin"
    tools.mkdir()
    script(tools / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for name in ("capslib", "jupyter-book"):
        script(tools / name, "#!/bin/sh\n")
    process = make(folder, f"BIN={tools}", "book")
    assert process.returncode == 0, process.stderr
    page = (folder / "_build" / "html" / "index.html").as_uri()
    assert process.stdout.splitlines()[-1] == f"Open {page}"
