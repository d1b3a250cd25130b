"""The folder of records: whole files only, damaged ones set aside, and clear messages."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import toys
from filelock import Timeout
from helpers import make_record, notified

from capslib import papers
from capslib.config import Config
from capslib.errors import UserError
from capslib.files import leftovers, locked, set_aside, write_atomically
from capslib.lab import store as storing
from capslib.lab.records import Record
from capslib.lab.runs import run_trial
from capslib.lab.settings import Settings
from capslib.lab.store import Store, project_root
from capslib.papers.experiment import Metric
from capslib.training import Context

ROOT = Path(__file__).parents[2]


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ------------------------------------------------------------------------------------ files


def test_a_write_makes_folders_replaces_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "a" / "b" / "file"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert files(tmp_path) == {path: b"two"}
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_breaks_off_leaves_the_old_file(tmp_path, monkeypatch, step):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def crash(*_: object) -> None:
        raise OSError("the power went out")

    monkeypatch.setattr(os, step, crash)
    message = f"^{path} cannot be written: the power went out. .*untouched.*same command again"
    with pytest.raises(UserError, match=message):
        write_atomically(path, b"new")
    assert files(tmp_path) == {path: b"old"}


WRITE = """
import os, signal, sys
from pathlib import Path
from capslib.files import write_atomically

def stop(source, target):
    print("about to move", flush=True)
    if not sys.stdin.readline():  # nobody is there any more
        os.kill(os.getpid(), signal.SIGKILL)
    move(source, target)

move, os.replace = os.replace, stop
write_atomically(Path(sys.argv[1]), b"of another process")
"""


def test_what_a_killed_write_left_is_removed_after_an_hour(tmp_path):
    """What another process is writing meanwhile stays, and so do files of other names."""
    path = tmp_path / "a-file-[1]"
    command = [sys.executable, "-c", WRITE, path]
    killed = subprocess.Popen(command, stdin=-1, stdout=-1, encoding="utf-8")
    assert killed.stdout.readline() == "about to move\n"
    (leftover,) = tmp_path.iterdir()
    writer = subprocess.Popen(command, stdin=-1, stdout=-1, encoding="utf-8")
    assert writer.stdout.readline() == "about to move\n"
    killed.communicate()  # closes its input
    assert killed.returncode == -signal.SIGKILL
    for age, expected in ((3_500, []), (3_700, [leftover])):
        moment = time.time() - age
        os.utime(leftover, times=(moment, moment))
        assert leftovers(tmp_path) == leftovers(tmp_path, path.name) == expected
    for name in ("a-file-1", ".a-file-[1].of-somebody-else"):
        write_atomically(tmp_path / name, b"")
        os.utime(tmp_path / name, times=(0, 0))
    assert leftovers(tmp_path) == [leftover]
    write_atomically(path, b"ours")
    assert not leftover.exists()
    writer.communicate("go on\n")
    assert path.read_bytes() == b"of another process"
    assert len(list(tmp_path.iterdir())) == 3


def test_a_write_whose_temporary_file_is_taken_away_is_done_again(tmp_path, monkeypatch):
    move = os.replace

    def take_away(source: str, target: Path) -> None:
        monkeypatch.setattr(os, "replace", move)
        os.unlink(source)
        move(source, target)

    monkeypatch.setattr(os, "replace", take_away)
    write_atomically(tmp_path / "file", b"new")
    assert files(tmp_path) == {tmp_path / "file": b"new"}


def test_what_is_set_aside_never_replaces_another_and_may_be_gone(tmp_path):
    path = tmp_path / "file"
    for content in ("first", "second"):
        path.write_text(content, encoding="utf-8")
        with notified(r"file cannot be used \(why\); it was set aside as file\.damaged-"):
            set_aside(path, "why")
    assert set(files(tmp_path).values()) == {b"first", b"second"}
    with notified("another process has set it aside"):
        set_aside(path, "why")


def test_what_cannot_be_set_aside_is_told_and_raises_nothing(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "replace", refuse)
    with notified(r"used \(why\); it is not used, and could not be set aside: Read-only"):
        set_aside(tmp_path, "why")


def test_records_go_to_the_nearest_book_unless_a_folder_is_named(tmp_path, monkeypatch):
    (tmp_path / "book" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "book" / "deep")
    monkeypatch.delenv("CAPSLIB_RESULTS", raising=False)
    with notified(f"No book is above this folder, so records are those in {ROOT}/results: "):
        assert Store().root == ROOT / "results"  # the checkout that capslib comes from
    installed = tmp_path / "site-packages" / "capslib" / "lab" / "store.py"
    monkeypatch.setattr(storing, "__file__", str(installed))
    with notified(f"those in {tmp_path}/book/deep/results: name --results-dir"):
        assert Store().root == tmp_path / "book" / "deep" / "results"
    (tmp_path / "_toc.yml").touch()
    assert project_root() == tmp_path
    assert Store().root == tmp_path / "results"
    monkeypatch.setenv("CAPSLIB_RESULTS", str(tmp_path / "elsewhere"))
    assert Store().root == tmp_path / "elsewhere"
    assert Store(tmp_path / "folder").root == tmp_path / "folder"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Store("~/x").root == Settings.check({"data_dir": "~/x"}).data_dir == tmp_path / "x"


def test_a_folder_that_cannot_be_written_is_a_user_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot be written to .*--results-dir"):
        Store(tmp_path / "file" / "below").check_writable()
    Store(tmp_path / "new" / "folder").check_writable()
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "asking makes no folder"


def test_a_lock_is_for_any_user_and_one_that_cannot_be_opened_is_a_user_error(tmp_path):
    mask = os.umask(0o077)
    path = tmp_path / "new" / "x.lock"
    try:
        with locked(path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o666
            with pytest.raises(Timeout), locked(path, blocking=False):
                pass
    finally:
        os.umask(mask)
    (tmp_path / "taken.lock").mkdir()
    message = r"taken.lock cannot be locked: .*Let it be written"
    with pytest.raises(UserError, match=message), locked(tmp_path / "taken.lock"):
        pass


def test_a_folder_without_a_name_or_a_mistyped_one_is_a_user_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CAPSLIB_RESULTS", raising=False)
    (tmp_path / "_toc.yml").touch()
    assert Store().check_not_empty().root == tmp_path / "results", "it need not be there yet"
    monkeypatch.setenv("CAPSLIB_RESULTS", "")
    for name in (None, "", " ", "a\0b"):
        with pytest.raises(UserError, match=r"names no folder: give one to .*--results-dir"):
            Store(name)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "notes" / "paper").mkdir(parents=True)
    (tmp_path / "notes" / "paper" / "notes.txt").touch()
    for name in ("reslts", "empty", "file", "notes", "results"):
        message = rf"no records in {name}: check --results-dir and \$CAPSLIB_RESULTS"
        with pytest.raises(UserError, match=message):
            Store(name).check_not_empty()


# ---------------------------------------------------------------------------------- records


@pytest.fixture
def record(trial) -> Record:
    return make_record(trial)


@pytest.fixture
def sibling(trial) -> Record:
    """The record of another seed."""
    return make_record(trial.model_copy(update={"seed": 4}))


@pytest.fixture(params=[True, False], ids=["remembering", "forgetting"])
def each_store(request, tmp_path) -> Store:
    return Store(tmp_path / "results", remember=request.param)


def test_a_file_is_read_again_only_where_it_changed(store, record, monkeypatch):
    path = store.put(record)
    assert path == store.root / "negation_limitation" / "sign" / f"{record.key}.json"
    assert store.get(record.trial) == record
    changed = record.model_copy(update={"wall_seconds": 2.5})  # a file of the same length
    store.put(changed)
    assert store.get(record.trial) == changed
    monkeypatch.setattr(storing, "read_record", None)
    assert list(store.records("negation_limitation")) == [changed]
    assert list(store.records("em_routing")) == []


def test_the_record_of_a_rehearsal_is_there_for_who_asks_for_it(store, trial):
    rehearsal = make_record(trial, exit="cut")
    store.put(rehearsal)
    assert list(store.records()) == []
    assert list(store.records(cut=True)) == [store.get(trial)] == [rehearsal]


def with_words(old: str, new: str):
    """Return a damage: some words of a record become others."""

    def damage(content: bytes) -> bytes:
        assert old.encode() in content
        return content.replace(old.encode(), new.encode("utf-8", "surrogateescape"))

    return damage


DAMAGES = {
    "not UTF-8": with_words('"message": "', '"message": "\udcff'),
    "an older schema": with_words('"schema_version": 2', '"schema_version": 1'),
    "an unknown field": with_words('"exit"', '"invented": 1, "exit"'),
    "another seed": with_words('"seed": ', '"seed": 1'),
    "a time without a zone": with_words('Z"', '"'),
    "a number for a time": with_words('"started": "2026-01-02T03:04:05Z"', '"started": 0'),
    "an infinite number": with_words('"value": 0.5', '"value": Infinity'),
    "NaN in a curve": with_words("[0.3,", "[NaN,"),
    "a key twice": with_words('"exit": "ok"', '"exit": "nan",\n "exit": "ok"'),
    "a key twice in a part": with_words('"n": 20', '"n": 5, "n": 20'),
    "a key twice in a mapping": with_words('"loss": ', '"loss" : [1.0], "loss": '),
    "a truth for a number": with_words('"value": 0.5', '"value": true'),
    "a text for a number": with_words('"value": 0.5', '"value": "0.5"'),
    "a fraction for a count": with_words('"n": 20', '"n": 20.0'),
    "a truth for a count": with_words('"threads": 1', '"threads": true'),
    "a number that no sum can hold": with_words('"value": 0.5', '"value": 1e308'),
    "such a number in a curve": with_words("[0.3,", "[-1e308,"),
    "more bytes than there are": with_words('_bytes": 1', '_bytes": 1' + "0" * 400),
    "more seconds than there were": with_words('"wall_seconds": 1.5', '"wall_seconds": 1e308'),
    "a seed of 400 digits": with_words('"seed": 3', '"seed": 3' + "0" * 400),
    "an option of 5,000 digits": with_words('"points": 20', '"points": 2' + "0" * 5000),
    "an option that is an object": with_words('"points": 20', '"points": {"a": 1}'),
    "empty": lambda content: b"",
    "cut in half": lambda content: content[: len(content) // 2],
    "cut at the end": lambda content: content[:-3],
    "nothing but zeros": lambda content: bytes(len(content)),
    "zeros at the end": lambda content: content[:-100] + bytes(100),
    "not JSON": lambda content: b"<html>" + content,
    "a record and more": lambda content: content + content,
    "a well of brackets": lambda content: b"[" * 200_000,
    "a merge": lambda content: b"<<<<<<< HEAD\n" + content + b"=======\n",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_only_writing_and_repair_set_a_damaged_record_aside(store, record, damage):
    path = store.put(record)
    content = DAMAGES[damage](path.read_bytes())
    path.write_bytes(content)
    reason = "it holds the markers of a merge conflict" if damage == "a merge" else "."
    warning = rf"{path} is damaged \({reason}.*records check --repair"
    with notified(warning) as warnings:
        assert list(store.records()) == []
    assert len(warnings) == 1
    with notified(warning):
        assert store.get(record.trial) is None
    assert files(store.root) == {path: content}
    with notified(rf"{path} cannot be used \(.*set aside as {path.name}\.damaged-"):
        store.repair_all()
    assert list(files(store.root).values()) == [content]
    path.write_bytes(content)
    with notified("set aside"):
        store.put(record)
    assert list(files(store.root).values()).count(content) == 2
    assert store.get(record.trial) == record


def test_a_record_under_the_name_of_another_is_not_taken_for_it(store, record, sibling):
    store.put(record).rename(store.path(sibling.trial))
    with notified("it was edited or renamed"):
        assert store.get(sibling.trial) is None
    assert store.path(sibling.trial).exists()


def test_a_record_of_a_newer_capslib_is_left_alone_and_never_run_again(store, record, sibling):
    store.put(sibling)
    path = store.put(record)
    text = path.read_text(encoding="utf-8")
    newer = text.replace('"schema_version": 2', '"schema_version": 3,\n "invented": true')
    path.write_text(newer, encoding="utf-8")
    content_before = files(store.root)
    message = f"{path} was written by a newer capslib; update"
    with notified(message) as warnings:
        assert list(store.records()) == [sibling]
    assert len(warnings) == 1
    with pytest.raises(UserError, match=message):
        store.get(record.trial)
    with pytest.raises(UserError, match=message):
        store.put(record)
    store.repair_all()
    assert files(store.root) == content_before


UNREADABLE = {
    "Is a directory": Path.mkdir,  # root may read anything but this
    "it is no file but a pipe or a device": os.mkfifo,  # reading it might never end
    "it is no file but a pipe": lambda target: target.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("reason", UNREADABLE)
def test_what_cannot_be_read_is_not_taken_for_damaged(each_store, record, sibling, reason):
    each_store.put(sibling)
    path = each_store.path(record.trial)
    UNREADABLE[reason](path)
    message = f"{path} cannot be read: {reason}"
    with pytest.raises(UserError, match=message):
        each_store.get(record.trial)
    with notified(message):
        assert list(each_store.records()) == [sibling]
    each_store.repair_all()
    assert os.path.lexists(path)


def with_trial(record: Record, **fields: object) -> Record:
    """Return the record of a changed trial, under its key."""
    trial = record.trial.model_copy(update=fields)
    return record.model_copy(update={"trial": trial, "key": trial.key})


def with_fields(record: Record, **fields: object) -> Record:
    return record.model_copy(update=fields)


def with_metric(record: Record, value: float, n: int = 20, unit: str = "fraction") -> Record:
    metric = Metric(value=value, n=n, unit=unit)
    return with_fields(record, metrics={"a": metric})


OBJECTIONS = {
    "there is no experiment nobody/sign": lambda r: with_trial(r, paper="nobody"),
    "there is no experiment negation_limitation/sing": lambda r: with_trial(
        r, experiment="sing"
    ),
    "of revision 99, but the experiment is at 1": lambda r: with_trial(r, revision=99),
    "not a configuration of sign (points: ": lambda r: with_trial(
        r, config={**r.trial.config, "points": "many"}
    ),
    "its config is not that of its trial (routing), so it was": lambda r: with_fields(
        r, config={**r.config, "routing": "em"}
    ),
    "finished before it started": lambda r: with_fields(
        r, finished=r.started - timedelta(days=1)
    ),
    "ended well but holds no metric": lambda r: with_fields(r, metrics={}),
    "metric a = 1.5 is out of the range of its unit, fraction": lambda r: with_metric(r, 1.5),
    "metric a = -1 is out of the range of its unit, steps": lambda r: with_metric(
        r, -1, unit="steps"
    ),
    "metric a was measured on nothing": lambda r: with_metric(r, 0.5, n=0),
    "curve loss has 2 points over 3 steps": lambda r: with_fields(
        r, series={"steps": [1, 2, 3], "loss": [1, 2]}
    ),
}


@pytest.mark.parametrize("objection", OBJECTIONS)
def test_a_sound_file_that_counts_for_nothing_is_named_and_left_out(
    store, record, sibling, objection
):
    store.put(sibling)
    path = store.put(OBJECTIONS[objection](record))
    content_before = files(store.root)
    with notified(re.escape(f"{path} is not used: {objection}")) as warnings:
        assert list(store.records()) == [sibling]
    assert len(warnings) == 1
    store.repair_all()
    assert files(store.root) == content_before, "nobody knows whether it will be of use again"


def test_nothing_objects_to_a_record_of_an_earlier_revision_that_had_another_default(store):
    today = make_record(papers.experiments("negation_limitation")["symmetry"].trials("cpu")[0])
    earlier = with_trial(today, revision=today.trial.revision - 1)
    earlier = with_fields(earlier, config={**today.config, "inputs": 63})
    store.put(earlier)
    assert list(store.records()) == [earlier]


@pytest.mark.parametrize("paper", ["nobody", "em_routing"])
def test_a_record_in_the_folder_of_another_trial_is_named_and_left_out(store, record, paper):
    path = store.put(with_trial(record, paper=paper))
    target = store.path(record.trial).with_name(path.name)
    target.parent.mkdir(parents=True)
    path.rename(target)
    with notified(f"{target} is not used: belongs in {paper}/sign: move it there"):
        assert list(store.records("negation_limitation")) == []


class Before(Config):
    size: int = 1


class After(Before):
    """A release later: an option more."""

    sharp: bool = False


def test_a_new_option_orphans_no_record_and_reading_shows_it(store, monkeypatch):
    old = toys.experiment(Before, toys.measured)
    new = toys.experiment(After, toys.measured)
    chapter = papers.experiments("negation_limitation")
    monkeypatch.setitem(chapter, "toy", old)
    records = {t.key: run_trial(old, t, store, Context(seed=0)) for t in old.trials("smoke")}
    monkeypatch.setitem(chapter, "toy", new)
    for trial in new.trials("smoke"):
        expected = records.pop(trial.key)
        config = {**expected.config, "arm": f"size_{expected.config['size']}", "sharp": False}
        assert store.get(trial) == expected.model_copy(update={"config": config})
    assert not records, "nothing runs again"
    assert [record.config["sharp"] for record in store.records()] == [False] * 3
    for trial in new.trials("smoke", change={"sharp": True}):
        assert store.get(trial) is None


def test_a_record_keeps_the_defaults_that_it_ran_with(store, record):
    """A default that changes needs a new revision; what a record says of its run stands."""
    store.put(with_fields(record, config={**record.config, "hidden": 21}))
    assert store.get(record.trial).config["hidden"] == 21


@pytest.mark.parametrize("change", [{"paper": "x"}, {"experiment": "x"}, {"config": {"x": 1}}])
def test_a_record_that_no_experiment_knows_any_more_is_still_read(store, record, change):
    stranger = with_trial(record, **change)
    store.put(stranger)
    assert store.get(stranger.trial) == stranger


# ------------------------------------------------------------------------ a disk of its own

DISK = """
disk=$1
mount -t tmpfs -o size=160k tmpfs "$disk" || exit 77
head -c 94208 /dev/zero > "$disk/ballast" || exit 77
run() {
    "$2" -m capslib run negation_limitation --scale smoke --experiment sign \
        --set points=20 --set epochs=40 --workers 1 --results-dir "$1/results" 2>&1
    echo "status $?"
}
records() { find "$disk/results" -type f | sort; }
echo "--- full"; run "$@"; records
echo "--- room"; rm "$disk/ballast"; mount -o remount,size=4m "$disk"; run "$@"; records
echo "--- damaged"; find "$disk/results" -name '*.json' -exec truncate -s 300 {} +
mount -o remount,ro "$disk"
"$2" -m capslib claims negation_limitation --json --results-dir "$disk/results" 2>&1
echo "status $?"
echo "--- read-only"; run "$@"
"""


def test_a_disk_that_fills_up_in_the_middle_of_a_run(tmp_path):
    """A disk of 160 kB: not all five trials fit on it, a page or more for each file.

    Then there is room; then it is read-only.
    """
    may_mount = shutil.which("unshare") and not subprocess.call(["unshare", "-rm", "true"])
    if not may_mount:
        pytest.skip("no disk of its own: this system lets nobody here mount one")
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(
        ["unshare", "-rm", "bash", "-c", DISK, "bash", disk, sys.executable],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "COLUMNS": "400"},
    )
    if done.returncode == 77:
        pytest.skip(f"no disk of its own: {done.stderr}")
    outputs = dict(part.split("\n", 1) for part in done.stdout.split("--- ")[1:])

    def records(part: str) -> set[str]:
        lines = [line for line in outputs[part].splitlines() if line.startswith(str(tmp_path))]
        # Nothing half-written stayed. Where the machine is slow there is a checkpoint.
        for line in lines:
            assert re.fullmatch(r"\w+\.(json|pt|lock|log)", Path(line).name)
        return {line for line in lines if line.endswith(".json")}

    assert "status 2" in outputs["full"]
    target = rf"{disk}/results/\S+\.(json|pt)"
    message = rf"{target} cannot be written: No space left on device\. .*same command"
    assert re.search(message, outputs["full"])
    count = len(records("full"))
    assert 1 <= count < 5
    assert "status 0" in outputs["room"]
    assert f"5 trials at scale smoke: {count} have a record" in outputs["room"]
    assert records("full") < records("room")
    assert len(records("room")) == 5
    assert outputs["damaged"].count(".json is damaged (") == 5
    assert "status 0" in outputs["damaged"]
    assert "Results cannot be written to" in outputs["read-only"]
    assert "status 2" in outputs["read-only"]
    assert "Traceback" not in done.stdout
