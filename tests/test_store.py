"""The folder of records: whole files only, damaged ones set aside, and a reviewer's list of what is wrong."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest

from capslib.errors import UserError
from capslib.store import Store, project_root, set_aside, write_atomically
from capslib.trials import Code

# ------------------------------------------------------------------------------------------------------------- files


def test_a_write_makes_folders_replaces_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "a" / "b" / "file"
    for data in (b"one", b"two"):
        write_atomically(path, data)
        assert path.read_bytes() == data
    assert list(path.parent.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_a_write_that_breaks_off_leaves_the_old_file(tmp_path, monkeypatch, fails):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def crash(*_: object) -> None:
        raise OSError("the power went out")

    monkeypatch.setattr(os, fails, crash)
    with pytest.raises(OSError, match="power"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_set_aside_is_kept_and_never_replaces_another(tmp_path):
    path, kept = tmp_path / "file", []
    for content in ("first", "second"):
        path.write_text(content)
        with pytest.warns(UserWarning, match=r"file is damaged \(why\); it was set aside as file\.damaged-"):
            kept.append(set_aside(path, "why"))
    assert [p.read_text() for p in kept] == ["first", "second"]
    assert not path.exists()


def test_the_project_is_the_nearest_folder_with_a_table_of_contents(tmp_path, monkeypatch):
    (tmp_path / "book" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "book" / "deep")
    assert project_root() == tmp_path / "book" / "deep"
    (tmp_path / "_toc.yml").touch()
    assert project_root() == tmp_path


def test_where_records_go(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CAPSLIB_RESULTS", raising=False)
    assert Store().root == tmp_path / "results"
    monkeypatch.setenv("CAPSLIB_RESULTS", str(tmp_path / "elsewhere"))
    assert Store().root == tmp_path / "elsewhere"
    assert Store(tmp_path / "given").root == tmp_path / "given"


def test_a_folder_that_cannot_be_written_is_a_user_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot be written to .*--results-dir"):
        Store(tmp_path / "file" / "below").check_writable()
    Store(tmp_path / "new").check_writable()
    assert list((tmp_path / "new").iterdir()) == []


# ----------------------------------------------------------------------------------------------------------- records


def test_a_record_comes_back_as_it_was(store, trial, make_record):
    record = make_record(trial)
    path = store.put(record)
    assert path == store.root / "negation_limitation" / "sign" / f"{trial.key}.json"
    assert store.get(trial) == record
    assert store.get(trial.model_copy(update={"seed": 4})) is None
    assert list(store.records()) == list(store.records("negation_limitation")) == [record]
    assert list(store.records("em_routing")) == []


@pytest.mark.parametrize(
    ("exit", "done"), [("ok", True), ("nan", True), ("oom", False), ("error", False), ("interrupted", False)]
)
def test_what_ended_by_its_own_fault_is_not_run_again_and_what_did_not_is(store, trial, make_record, exit, done):
    assert not store.done(trial)
    store.put(make_record(trial, exit=exit))
    assert store.done(trial) is done


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.99])
def test_a_record_cut_short_is_set_aside_and_the_trial_is_not_done(store, trial, make_record, share):
    path = store.put(make_record(trial))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.warns(UserWarning, match=r"is damaged \(.*set aside"):
        assert not store.done(trial)
    assert not path.exists()
    assert [p.read_bytes() for p in path.parent.glob("*.damaged-*")] == [whole[: int(share * len(whole))]]
    assert list(store.records()) == []
    store.put(make_record(trial))
    assert store.done(trial)


def test_a_record_under_the_name_of_another_is_not_taken_for_it(store, trial, make_record):
    other = trial.model_copy(update={"seed": 4})
    store.put(make_record(trial)).rename(store.path(other))
    with pytest.warns(UserWarning, match="not the one that its name stands for"):
        assert store.get(other) is None
    assert not store.path(other).exists()


def _move(store: Store, path: Path, place: str) -> None:
    (store.root / place).parent.mkdir(parents=True, exist_ok=True)
    path.rename(store.root / place)


@pytest.mark.parametrize(
    ("changes", "spoil", "says"),
    [
        ({}, lambda store, path: path.write_bytes(path.read_bytes()[:100]), "not a valid record"),
        ({}, lambda store, path: path.write_text(path.read_text().replace('"exit"', '"exits"')), "not a valid record: 2 validation"),
        ({}, lambda store, path: path.write_text(path.read_text().replace('"seed": 3', '"seed": 4')), "its trial hashes to"),
        ({"key": "0" * 16}, None, "its trial hashes to"),
        ({}, lambda store, path: path.rename(path.with_name("0123456789abcdef.json")), "its trial hashes to"),
        ({}, lambda store, path: _move(store, path, f"negation_limitation/depth/{path.name}"), "belongs in negation_limitation/sign"),
        ({}, lambda store, path: _move(store, path, f"em_routing/sign/{path.name}"), "belongs in negation_limitation/sign"),
        ({"metrics": {}}, None, "ended well but holds no metric"),
        ({"code": Code(revision="1" * 40, dirty=True, capslib="0" * 64)}, None, "uncommitted changes"),
        ({}, lambda store, path: path.rename(path.with_name(f"{path.name}.damaged-1")), "set aside as damaged"),
    ],
)  # fmt: skip
def test_a_reviewer_is_told_of_each_problem(store, trial, make_record, changes, spoil, says):
    path = store.path(trial)
    store.put(make_record(trial, **changes))
    if spoil:
        spoil(store, path)
    files = {p: p.read_bytes() for p in store.root.rglob("*") if p.is_file()}
    problems = store.problems()
    assert len(problems) == 1
    assert says in problems[0]
    assert next(iter(files)).name in problems[0]
    assert {p: p.read_bytes() for p in store.root.rglob("*") if p.is_file()} == files, "looking moved something"


def test_a_record_that_ended_before_it_began_is_a_problem(store, trial, make_record):
    record = make_record(trial)
    store.put(make_record(trial, finished=record.started - timedelta(seconds=1)))
    assert [p.partition(": ")[2] for p in store.problems()] == ["finished before it started"]


def test_sound_records_are_no_problem(store, trial, make_record):
    assert store.problems() == []
    store.put(make_record(trial))
    store.put(make_record(trial.model_copy(update={"seed": 4}), exit="nan", metrics={}, message="step 3"))
    assert store.problems() == store.problems("negation_limitation") == store.problems("em_routing") == []
