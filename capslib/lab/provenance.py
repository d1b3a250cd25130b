"""Which code made a record: git's revision of this repository, and a hash of the files."""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from capslib.lab.records import Code
from capslib.papers.experiment import Experiment

PACKAGE = Path(__file__).parents[1]
ROOT = PACKAGE.resolve().parent
LANDMARKS = ("book/_ext/capsbook/__init__.py", "capslib/__init__.py")
"""Files, as git sorts them, that tell a repository of this project from others."""
GIT_VARIABLES_KEPT = ("GIT_CONFIG_", "GIT_DISCOVERY_")
"""Prefixes of git's variables that name no repository, and may set safe.directory.

They are kept.
"""


@functools.cache
def code_hash(entry: str | None = None) -> str:
    """Return the SHA-256 of the package.

    With ``entry``, it is that of the files that the module ``entry`` may import.
    """
    files = {
        path.relative_to(PACKAGE).as_posix(): path.read_bytes()
        for path in PACKAGE.rglob("*.py")
    }
    return hash_of_code(files, entry)


def hash_of_code(files: Mapping[str, bytes], entry: str | None = None) -> str:
    """Return the SHA-256 of files of the package, by name and content.

    With ``entry``, a module, only the files count that it can import. What a registry names
    counts as imported. So a change of the command line leaves the checkpoints of an experiment
    alone. Line ends do not count: a clone with those of Windows has the same code.
    """
    digest = hashlib.sha256()
    for name in sorted(files if entry is None else reached(files, entry)):
        content = files[name].replace(b"\r\n", b"\n")
        digest.update(name.encode() + b"\0" + content + b"\0")
    return digest.hexdigest()


def reached(files: Mapping[str, bytes], entry: str) -> set[str]:
    """Return the names of the files that a module may import, wherever in its code it does.

    A package counts where it is imported by name, and not for a module in it. The set is empty
    if there is no such module.
    """
    names: set[str] = set()
    modules = [entry]
    while modules:
        path = "/".join(modules.pop().split(".")[1:])  # without "capslib"
        for name in (f"{path}/__init__.py", f"{path}.py"):
            if name in files and name not in names:
                names.add(name)
                modules += _imported(files[name])
    return names


@functools.cache
def _imported(source: bytes) -> frozenset[str]:
    """Return the modules below the package that a file imports, or names for a registry."""
    imported: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            imported |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            module, colon, _ = node.value.partition(":")  # as in a registry
            if colon:
                imported.add(module)
    return frozenset(name for name in imported if name.startswith("capslib."))


def git(*words: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Return what git answers in a folder: ``returncode``, ``stdout``, ``stderr``.

    It does not see variables such as ``GIT_DIR``, which may name another repository. Where git
    cannot be started, the status is 127, as in a shell.
    """
    environment = dict(os.environ)
    for name in os.environ:
        if name.startswith("GIT_") and not name.startswith(GIT_VARIABLES_KEPT):
            del environment[name]
    command = ["git", *words]
    try:
        answer = subprocess.run(command, cwd=folder, env=environment, capture_output=True)
    except OSError as error:
        reason = f"git cannot be started: {error.strerror}"
        return subprocess.CompletedProcess(command, 127, stdout="", stderr=reason)
    stdout = answer.stdout.decode(errors="replace")
    stderr = answer.stderr.decode(errors="replace")
    return subprocess.CompletedProcess(command, answer.returncode, stdout, stderr)


def complaint(answer: subprocess.CompletedProcess[str]) -> str:
    """Return why git failed, in its own words and in one line."""
    return " ".join(answer.stderr.split()) or f"git ended with status {answer.returncode}"


class Checkout(NamedTuple):
    """What git knows of the code in a folder."""

    revision: str | None
    dirty: bool | None
    """Whether files of the package have changed since, or are new."""
    reason: str = ""
    """Why git knows no revision, or not whether the code is dirty."""

    @property
    def objection(self) -> str:
        """Why records of this code prove nothing; empty if they do."""
        if self.dirty:
            return "there are uncommitted changes, so commit first"
        if self.revision is None or self.dirty is None:
            unknown = f"the revision of this code is not known ({self.reason})"
            return f"{unknown}, so run a clone of this project that git accepts"
        return ""


@functools.cache
def checkout(root: Path = ROOT) -> Checkout:
    """Return what git knows of the code in a folder, if that is a checkout of this project.

    Another repository may have the project below it, copied or installed. Its revisions say
    nothing about the code. So git has to track the package and the book's extension, from the
    root of the repository on.
    """
    head = git("rev-parse", "--verify", "HEAD", folder=root)
    if head.returncode:
        return Checkout(None, None, complaint(head))
    tracked = git("ls-files", "--full-name", "--", *LANDMARKS, folder=root)
    if tracked.returncode:
        return Checkout(None, None, complaint(tracked))
    if tracked.stdout.split() != list(LANDMARKS):
        return Checkout(None, None, f"{root} is in a git repository of something else")
    package = ("capslib/*.py", "capslib/*.csv")  # git's * matches folders, too
    changes = git("status", "--porcelain", "--untracked-files=all", "--", *package, folder=root)
    if changes.returncode:
        return Checkout(head.stdout.strip(), None, complaint(changes))
    return Checkout(head.stdout.strip(), bool(changes.stdout))


@functools.cache
def revisions(root: Path = ROOT) -> frozenset[str] | None:
    """Return all revisions of a checkout of this project; None where git knows not all."""
    if checkout(root).revision is None:
        return None
    shallow = git("rev-parse", "--is-shallow-repository", folder=root).stdout.strip()
    if shallow != "false":
        return None
    return frozenset(git("rev-list", "--all", "HEAD", folder=root).stdout.split())


def code_of(experiment: Experiment) -> Code:
    """Return git's revision, and the hash of what an experiment's module imports.

    Both are those of the first time that this process asks.
    """
    code = checkout()
    imported = code_hash(experiment.run.__module__)
    return Code(revision=code.revision, dirty=code.dirty, capslib=imported)


def code_after(experiment: Experiment, code: Code) -> Code:
    """Return the code of a trial that ends and began with ``code``.

    It is dirty if files of it have changed since: what a trial imports late is then not what
    the revision has.
    """
    if _hash_now(experiment.run.__module__) == code.capslib:
        return code
    return code.model_copy(update={"dirty": True})


def _hash_now(entry: str) -> str:
    """Return the hash of what a module may import now; nothing while that cannot be read."""
    try:
        return code_hash.__wrapped__(entry)
    except (OSError, SyntaxError, ValueError):  # somebody is writing a file of it
        return ""
