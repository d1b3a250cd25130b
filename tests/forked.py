"""The command line in a process of its own that need not import everything anew: it is forked
from one that has.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path

SERVER = multiprocessing.get_context("forkserver")
COMMAND_LINE = ["capslib.lab.cli", "forked"]
"""What a process starts with. Torch is not among it: that a command does without is tested."""
SERVER.set_forkserver_preload(COMMAND_LINE)


@contextlib.contextmanager
def preloaded(*modules: str) -> Iterator[None]:
    """Processes that are forked meanwhile start with these modules instead: Python has one such
    server for all.
    """
    try:
        forkserver._forkserver._stop()
        SERVER.set_forkserver_preload(list(modules))
        yield
    finally:
        forkserver._forkserver._stop()
        SERVER.set_forkserver_preload(COMMAND_LINE)


@dataclass
class Done:
    status: int
    out: str
    message: str
    imported: set[str]


def call(
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    scratch: Path,
) -> Done:
    """``capslib …`` with these words in this folder and environment; ``scratch`` is for what it
    says.
    """
    files = [scratch / name for name in ("out", "message", "imported")]
    process = SERVER.Process(target=_run, args=(list(words), folder, dict(environment), files))
    process.start()
    process.join(300)
    assert process.exitcode is not None, "it does not end"
    out, message, imported = (
        file.read_text(encoding="utf-8", errors="replace") for file in files
    )
    return Done(process.exitcode, out, message, set(json.loads(imported)))


def _run(
    words: list[str], folder: Path, environment: dict[str, str], files: list[Path]
) -> None:
    for number, file in enumerate(files[:2], start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    encoding = environment.get(
        "PYTHONIOENCODING", "utf-8"
    )  # which Python looks for when it starts
    sys.stdout.reconfigure(encoding=encoding)
    sys.stderr.reconfigure(encoding=encoding, errors="backslashreplace")
    sys.argv = ["capslib", *words]
    from capslib.lab import cli

    try:
        cli.main()
    finally:
        files[2].write_text(json.dumps(sorted(sys.modules)), encoding="utf-8")
