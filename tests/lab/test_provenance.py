"""Which code made a record: the hash of what an experiment imports, and the revision of git."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from capslib.lab import provenance
from capslib.lab.provenance import (
    PACKAGE,
    checkout,
    code_after,
    code_hash,
    code_of,
    git,
    hash_of_code,
    reached,
    revisions,
)
from capslib.lab.records import Code
from capslib.papers import experiments


@pytest.fixture(scope="module")
def code() -> dict[str, bytes]:
    """The files of the package, by name."""
    return {p.relative_to(PACKAGE).as_posix(): p.read_bytes() for p in PACKAGE.rglob("*.py")}


def edited(
    code: dict[str, bytes], name: str, old: bytes = b'"""', new: bytes = b'"""Edited. '
) -> dict[str, bytes]:
    assert old in code[name]
    return {**code, name: code[name].replace(old, new, 1)}


SIGN = "capslib.papers.negation_limitation.sign"


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("papers/negation_limitation/sign.py", True),
        ("routing/em.py", True),  # by its name in the registry
        ("networks/em_routing.py", True),
        ("training.py", True),
        ("lab/cli.py", False),
        ("papers/em_routing/table1.py", False),
    ],
)
def test_the_code_of_an_experiment_is_what_its_module_imports(code, name, counts):
    """Checkpoints outlive a change of the command line, and none of a routing."""
    changed = edited(code, name)
    assert (hash_of_code(changed, SIGN) != hash_of_code(code, SIGN)) is counts
    assert hash_of_code(changed) != hash_of_code(code), "a worker has the whole package"


def test_the_hash_of_the_code_does_not_ask_how_lines_end(code):
    """So a checkpoint goes on in a clone of Windows, and a cluster may have both."""
    windows = {name: content.replace(b"\n", b"\r\n") for name, content in code.items()}
    assert hash_of_code(windows, SIGN) == hash_of_code(code, SIGN)


def test_what_is_imported_within_a_function_counts(code):
    function = b"def late():\n    from capslib.lab import statistics\n\n\ndef abscissa"
    late = edited(code, "papers/common.py", b"def abscissa", function)
    assert "lab/statistics.py" not in reached(code, SIGN)
    assert "lab/statistics.py" in reached(late, SIGN)


def test_a_record_and_a_checkpoint_hold_the_hash_of_their_own_code(code):
    sign = experiments("negation_limitation")["sign"]
    assert code_of(sign).capslib == code_hash(SIGN) == hash_of_code(code, SIGN) != code_hash()


@pytest.mark.parametrize(
    ("name", "content", "dirty"),
    [
        ("late.py", "A = 2", True),
        ("late.py", "A = (", True),  # somebody is writing it
        ("papers/sign.py", None, True),
        ("other.py", "A = 2", False),
    ],
)
def test_code_that_changes_during_a_trial_is_dirty(tmp_path, monkeypatch, name, content, dirty):
    """What is imported late is then not what the revision has."""
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "sign.py").write_text("def run():\n    import capslib.late")
    for module in ("late.py", "other.py"):
        (tmp_path / module).write_text("A = 1")
    monkeypatch.setattr(provenance, "PACKAGE", tmp_path)
    sign = SimpleNamespace(run=SimpleNamespace(__module__="capslib.papers.sign"))
    start = code_hash.__wrapped__(sign.run.__module__)
    code = Code(revision="a" * 40, dirty=False, capslib=start)
    assert code_after(sign, code) == code
    (tmp_path / name).unlink() if content is None else (tmp_path / name).write_text(content)
    assert code_after(sign, code) == code.model_copy(update={"dirty": dirty})


# ------------------------------------------------------------------------------------------
# revisions


def commit(root: Path) -> str:
    """Put what lies in a folder into a repository, and give the revision."""
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    for words in (("init", "-q"), ("add", "."), (*identity, "commit", "-qm", "a")):
        assert not git(*words, folder=root).returncode
    return git("rev-parse", "HEAD", folder=root).stdout.strip()


@pytest.fixture
def project(tmp_path) -> Path:
    """A folder with what tells this project from others, in no repository yet."""
    root = tmp_path / "project"
    for name in (*provenance.LANDMARKS, "capslib/lab/ledger/em_routing.csv", ".gitignore"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(".venv\n")
    return root


@pytest.mark.parametrize(
    ("name", "dirty"),
    [
        ("capslib/__init__.py", True),
        ("capslib/lab/new.py", True),
        ("capslib/lab/ledger/em_routing.csv", True),
        ("capslib/todo.txt", False),
        ("results.json", False),
    ],
)
def test_a_checkout_has_a_revision_and_may_have_changes(project, monkeypatch, name, dirty):
    """A hook of git sets variables for the repository that it belongs to."""
    revision = commit(project)
    monkeypatch.setenv("GIT_DIR", "elsewhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "elsewhere")
    assert checkout(project) == (revision, False, "")
    checkout.cache_clear()
    (project / name).write_text("A = 2")
    assert checkout(project) == (revision, dirty, "")
    assert ("commit first" in checkout(project).objection) is dirty


STRANGE = "is in a git repository of something else"


def assert_unknown(root: Path, reason: str) -> None:
    code = checkout(root)
    assert (code.revision, code.dirty) == (None, None)
    assert reason in code.reason
    assert code.reason in code.objection


def test_a_package_that_is_not_committed_has_no_revision(project):
    assert_unknown(project, "not a git repository")
    checkout.cache_clear()
    git("init", "-q", folder=project)
    assert_unknown(project, "Needed a single revision")


def test_a_repository_that_tracks_a_copy_says_nothing_of_its_revision(project):
    commit(project.parent)
    assert_unknown(project, STRANGE)


def test_a_clone_says_nothing_of_a_package_that_is_installed_below_it(project):
    commit(project)
    (project / ".venv").mkdir()
    (project / "capslib").rename(project / ".venv" / "capslib")
    assert_unknown(project / ".venv", STRANGE)


def test_a_repository_that_has_the_package_alone_says_nothing_of_its_revision(project):
    (project / "book").rename(project / "pages")
    commit(project)
    assert_unknown(project, STRANGE)


def test_a_broken_repository_gives_no_revision(project):
    commit(project)
    (project / ".git" / "index").write_text("broken")
    assert_unknown(project, "index file")


@pytest.mark.skipif(
    getattr(os, "geteuid", lambda: 1)() != 0, reason="only root gives a folder away"
)
def test_git_says_itself_why_it_trusts_no_folder_of_somebody_else(project):
    commit(project)
    os.chown(project, 12_345, -1)
    assert checkout(project).revision is None
    assert "dubious ownership" in checkout(project).reason
    assert "safe.directory" in checkout(project).objection


def test_a_history_is_known_where_it_is_whole(project, tmp_path):
    first = commit(project)
    (project / "new.txt").touch()
    last = commit(project)
    assert not git(
        "clone", "-q", "--depth", "1", project.as_uri(), "shallow", folder=tmp_path
    ).returncode
    assert revisions(project) == {first, last}
    assert checkout(tmp_path / "shallow").revision == last
    assert revisions(tmp_path / "shallow") is None
    assert revisions(tmp_path) is None, "no checkout"


@pytest.mark.skipif(sys.platform == "win32", reason="programs there have other names")
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "git cannot be started: "),
        ("#!/bin/sh\nexit 1\n", "git ended with status 1"),
        ("#!/bin/sh\nprintf '\\351t' >&2; exit 1\n", "\ufffdt"),
    ],
)
def test_without_a_git_that_works_the_code_has_no_revision(
    project, tmp_path, monkeypatch, content, reason
):
    commit(project)
    program = tmp_path / "programs" / "git"
    program.parent.mkdir()
    if content:
        program.write_text(content)
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    assert_unknown(project, reason)
