"""The folder of records: whole files only, damaged ones set aside, and a clear message where
the disk is full or read-only.
"""

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
from helpers import notified

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

# -------------------------------------------------------------------------------------------------------------
# files


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
    with pytest.raises(
        UserError,
        match=rf"^{path} cannot be written: the power went out. .*untouched.*same command again",
    ):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


WRITE = """
import os, signal, sys
from pathlib import Path
from capslib.files import write_atomically

def stop(source, place):
    print("about to move", flush=True)
    sys.stdin.readline() or os.kill(os.getpid(), signal.SIGKILL)  # nobody there any more: die as one dies
    move(source, place)

move, os.replace = os.replace, stop
write_atomically(Path(sys.argv[1]), b"of another process")
"""


def test_what_a_killed_write_left_is_removed_after_an_hour_and_what_is_being_written_is_not(
    tmp_path,
):
    path, writers, there = tmp_path / "a-file-[1]", [], []
    for _ in range(2):
        writers.append(
            subprocess.Popen(
                [sys.executable, "-c", WRITE, path], stdin=-1, stdout=-1, encoding="utf-8"
            )
        )
        assert writers[-1].stdout.readline() == "about to move\n"
        there.append(list(tmp_path.iterdir()))
    (left,), (_, _) = there
    writers[0].communicate()  # closes its input, waits for its end
    assert writers[0].returncode == -signal.SIGKILL
    for age, found in ((3_500, []), (3_700, [left])):
        os.utime(left, times=(time.time() - age,) * 2)
        assert leftovers(tmp_path) == leftovers(tmp_path, path.name) == found
    for other in ("a-file-1", ".a-file-[1].of-somebody-else"):
        assert leftovers(tmp_path, other) == []
        write_atomically(tmp_path / other, b"")
        os.utime(tmp_path / other, times=(0, 0))
    assert leftovers(tmp_path) == [left]
    write_atomically(path, b"ours")
    assert not left.exists()
    writers[1].communicate("go on\n")
    assert path.read_bytes() == b"of another process"
    assert len(list(tmp_path.iterdir())) == 3


def test_a_write_whose_temporary_file_is_taken_away_is_done_again(tmp_path, monkeypatch):
    taken, move = [], os.replace

    def replace(source: str, place: Path) -> None:
        if not taken:
            taken.append(os.unlink(source))
        move(source, place)

    monkeypatch.setattr(os, "replace", replace)
    write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


def test_what_is_set_aside_is_kept_and_never_replaces_another(tmp_path):
    path, kept = tmp_path / "file", []
    for content in ("first", "second"):
        path.write_text(content, encoding="utf-8")
        with notified(r"file cannot be used \(why\); it was set aside as file\.damaged-"):
            kept.append(set_aside(path, "why"))
    assert [p.read_text(encoding="utf-8") for p in kept] == ["first", "second"]
    assert not path.exists()


def test_what_cannot_be_set_aside_is_said_and_raises_nothing(tmp_path, monkeypatch):
    with notified("another process has set it aside"):
        assert set_aside(tmp_path / "gone", "why") is None

    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "replace", refuse)
    with notified(
        r"cannot be used \(why\); it is not used, and could not be set aside: Read-only"
    ):
        assert set_aside(tmp_path, "why") is None


def test_the_project_is_the_nearest_folder_with_a_table_of_contents(tmp_path, monkeypatch):
    (tmp_path / "book" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "book" / "deep")
    assert project_root() == ROOT, "the checkout that capslib comes from"
    monkeypatch.setattr(
        storing, "__file__", str(tmp_path / "site-packages" / "capslib" / "lab" / "store.py")
    )
    assert project_root() == tmp_path / "book" / "deep", (
        "where capslib is installed without a book"
    )
    (tmp_path / "_toc.yml").touch()
    assert project_root() == tmp_path


def test_where_records_go(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CAPSLIB_RESULTS", raising=False)
    with notified(
        f"No book is above this folder, so records are those in {ROOT}/results: name --results-dir"
    ):
        assert Store().root == ROOT / "results"
    monkeypatch.setattr(
        storing, "__file__", str(tmp_path / "site-packages" / "capslib" / "lab" / "store.py")
    )
    with notified(f"those in {tmp_path}/results"):
        assert Store().root == tmp_path / "results"
    (tmp_path / "_toc.yml").touch()
    assert Store().root == tmp_path / "results"
    monkeypatch.setenv("CAPSLIB_RESULTS", str(tmp_path / "elsewhere"))
    assert Store().root == tmp_path / "elsewhere"
    assert Store(tmp_path / "given").root == tmp_path / "given"


def test_a_folder_that_cannot_be_written_is_a_user_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot be written to .*--results-dir"):
        Store(tmp_path / "file" / "below").check_writable()
    Store(tmp_path / "new" / "er").check_writable()
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "asking makes no folder"


def test_a_lock_is_for_any_user_and_one_that_cannot_be_opened_is_a_user_error(tmp_path):
    own = os.umask(0o077)
    try:
        with locked(tmp_path / "new" / "x.lock"):
            assert stat.S_IMODE((tmp_path / "new" / "x.lock").stat().st_mode) == 0o666
            with pytest.raises(Timeout), locked(tmp_path / "new" / "x.lock", blocking=False):
                pass
    finally:
        os.umask(own)
    (tmp_path / "taken.lock").mkdir()
    with (
        pytest.raises(UserError, match=r"taken.lock cannot be locked: .*Let it be written"),
        locked(tmp_path / "taken.lock"),
    ):
        pass


def test_a_folder_in_the_home_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Store("~/x").root == tmp_path / "x"
    assert Settings.check(data_dir="~/x").data_dir == tmp_path / "x"


def test_a_folder_without_a_name_or_a_mistyped_one_is_a_user_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CAPSLIB_RESULTS", raising=False)
    (tmp_path / "_toc.yml").touch()
    assert Store().check_there().root == tmp_path / "results", (
        "the default need not be there yet"
    )
    monkeypatch.setenv("CAPSLIB_RESULTS", "")
    for unnamed in (Store, lambda: Store(""), lambda: Store(" "), lambda: Store("a\0b")):
        with pytest.raises(UserError, match=r"names no folder: give one to .*--results-dir"):
            unnamed()
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for place in ("reslts", "empty", "file"):
        with pytest.raises(
            UserError,
            match=rf"There are no records in {place}: check --results-dir and \$CAPSLIB_RESULTS",
        ):
            Store(place).check_there()


# -----------------------------------------------------------------------------------------------------------
# records


def test_a_record_comes_back_as_it_was(store, trial, make_record):
    record = make_record(trial)
    path = store.put(record)
    assert path == store.root / "negation_limitation" / "sign" / f"{trial.key}.json"
    assert store.get(trial) == record
    assert store.get(trial.model_copy(update={"seed": 4})) is None
    assert list(store.records()) == list(store.records("negation_limitation")) == [record]
    assert list(store.records("em_routing")) == []


def test_a_file_is_read_again_only_where_it_changed(store, trial, make_record, monkeypatch):
    first, second = (
        make_record(trial, wall_seconds=seconds) for seconds in (1.0, 2.0)
    )  # files of one length
    store.put(first)
    assert store.get(trial) == first
    store.put(second)
    assert store.get(trial) == second
    monkeypatch.setattr(storing, "read_record", None)
    assert store.get(trial) == second


def test_the_record_of_a_rehearsal_is_there_for_who_asks_for_it(store, trial, make_record):
    record = make_record(trial, exit="cut")
    store.put(record)
    assert list(store.records()) == []
    assert list(store.records(cut=True)) == [store.get(trial)] == [record]


DAMAGES = {
    "empty": lambda whole: b"",
    "cut at the start": lambda whole: whole[:1],
    "cut in half": lambda whole: whole[: len(whole) // 2],
    "cut at the end": lambda whole: whole[:-3],
    "nothing but zeros": lambda whole: bytes(len(whole)),
    "zeros at the end": lambda whole: whole[:-4096] + bytes(min(len(whole), 4096)),
    "not UTF-8": lambda whole: whole.replace(b'"message": "', b'"message": "\xff\xfe'),
    "half a letter": lambda whole: whole.replace(b'"message": "', b'"message": "\xe2\x80'),
    "not JSON": lambda whole: b"<html>" + whole,
    "a record and more": lambda whole: whole + whole,
    "no such schema": lambda whole: whole.replace(
        b'"schema_version": 2', b'"schema_version": 1'
    ),
    "a field that nobody knows": lambda whole: whole.replace(
        b'"exit"', b'"invented": 1, "exit"'
    ),
    "another seed": lambda whole: whole.replace(b'"seed": ', b'"seed": 1'),
    "a time without a zone": lambda whole: whole.replace(b'Z"', b'"'),
    "an infinite number": lambda whole: whole.replace(b'"value": 0.5', b'"value": Infinity'),
    "a key twice": lambda whole: whole.replace(
        b'"exit": "ok"', b'"exit": "nan",\n "exit": "ok"'
    ),
    "a key twice, further in": lambda whole: whole.replace(b'"n": 20', b'"n": 5, "n": 20'),
    "a well of brackets": lambda whole: b"[" * 200_000,
    "a truth for a number": lambda whole: whole.replace(b'"value": 0.5', b'"value": true'),
    "a text for a number": lambda whole: whole.replace(b'"value": 0.5', b'"value": "0.5"'),
    "a fraction for a count": lambda whole: whole.replace(b'"n": 20', b'"n": 20.0'),
    "a truth for a count": lambda whole: whole.replace(b'"threads": 1', b'"threads": true'),
    "a number that no sum can hold": lambda whole: whole.replace(
        b'"value": 0.5', b'"value": 1e308'
    ),
    "such a number in a curve": lambda whole: whole.replace(b"[0.3,", b"[-1e308,"),
    "more bytes than there are": lambda whole: whole.replace(
        b'_bytes": 1', b'_bytes": 1' + b"0" * 400
    ),
    "more parameters than there are": lambda whole: whole.replace(
        b'"parameters": 7', b'"parameters": 1' + b"0" * 400
    ),
    "more seconds than there were": lambda whole: whole.replace(
        b'"wall_seconds": 1.5', b'"wall_seconds": 1e308'
    ),
    "a seed of 400 digits": lambda whole: whole.replace(
        b'"seed": 3', b'"seed": 3' + b"0" * 400
    ),
    "an option of 5,000 digits": lambda whole: whole.replace(
        b'"points": 20', b'"points": 2' + b"0" * 5000
    ),
    "an option that is an object": lambda whole: whole.replace(
        b'"points": 20', b'"points": {"a": 1}'
    ),
    "a number for a time": lambda whole: whole.replace(
        b'"started": "2026-01-02T03:04:05Z"', b'"started": 0'
    ),
    "NaN in a curve": lambda whole: whole.replace(b"[0.3,", b"[NaN,"),
}


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("damage", DAMAGES)
def test_reading_a_damaged_record_warns_and_changes_no_file(store, trial, make_record, damage):
    path = store.put(make_record(trial))
    spoilt = DAMAGES[damage](path.read_bytes())
    assert spoilt != path.read_bytes()
    path.write_bytes(spoilt)
    before = files(store.root)
    for read in (lambda: store.get(trial), lambda: next(store.records(), None)):
        with notified(rf"{path} is damaged \(.*records check --repair") as warned:
            assert read() is None
        assert len(warned) == 1
        assert files(store.root) == before


@pytest.mark.parametrize("repair", ["repair", "put"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_only_writing_and_repair_set_a_damaged_record_aside(
    store, trial, make_record, damage, repair
):
    path = store.put(make_record(trial))
    spoilt = DAMAGES[damage](path.read_bytes())
    path.write_bytes(spoilt)
    with notified(rf"{path} cannot be used \(.*set aside as {path.name}\.damaged-"):
        store.repair(path) if repair == "repair" else store.put(make_record(trial))
    assert [p.read_bytes() for p in path.parent.glob("*.damaged-*")] == [spoilt]
    assert store.get(trial) == (None if repair == "repair" else make_record(trial))


def test_the_markers_of_a_merge_conflict_are_named(store, trial, make_record):
    path = store.put(make_record(trial))
    whole = path.read_text(encoding="utf-8")
    path.write_text(f"<<<<<<< HEAD\n{whole}=======\n{whole}>>>>>>> other\n", encoding="utf-8")
    with notified("is damaged .it holds the markers of a merge conflict"):
        assert store.get(trial) is None


def test_a_record_of_a_newer_capslib_is_left_alone_and_never_run_again(
    store, trial, make_record
):
    other = trial.model_copy(update={"seed": 4})
    store.put(make_record(other))
    path = store.put(make_record(trial))
    path.write_text(
        path.read_text(encoding="utf-8").replace(
            '"schema_version": 2', '"schema_version": 3,\n "invented": true'
        ),
        encoding="utf-8",
    )
    before = files(store.root)
    with notified(f"{path} was written by a newer capslib; update") as warned:
        assert list(store.records()) == [make_record(other)]
    assert len(warned) == 1
    for write in (
        lambda: store.get(trial),
        lambda: store.put(make_record(trial)),
        lambda: store.repair(path),
    ):
        with pytest.raises(UserError, match=f"{path} was written by a newer capslib; update"):
            write()
    store.repair_all()
    assert files(store.root) == before


UNREADABLE = {
    "a folder": (Path.mkdir, "Is a directory"),  # root may read anything but this
    "a pipe": (os.mkfifo, "it is no file but a pipe or a device"),  # reading it might never end
    "a device": (
        lambda place: place.symlink_to("/dev/zero"),
        "it is no file but a pipe or a device",
    ),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_what_cannot_be_read_in_the_place_of_a_record_is_named_and_not_taken_for_damaged(
    store, trial, make_record, what, caplog
):
    make, why = UNREADABLE[what]
    other = make_record(trial.model_copy(update={"seed": 4}))
    store.put(other)
    path = store.path(trial)
    make(path)
    with pytest.raises(UserError, match=f"{path} cannot be read: {why}"):
        store.get(trial)
    assert list(store.records()) == [other]
    assert re.search(f"{path} cannot be read: {why}", caplog.text)
    store.repair_all()
    assert os.path.lexists(path)


def with_trial(record: Record, **fields: object) -> Record:
    """The record of a changed trial, under its key."""
    trial = record.trial.model_copy(update=fields)
    return record.model_copy(update={"trial": trial, "key": trial.key})


def with_fields(record: Record, **fields: object) -> Record:
    return record.model_copy(update=fields)


def with_metric(record: Record, **fields: object) -> Record:
    return with_fields(record, metrics={"a": Metric(**fields)})


OBJECTIONS = {
    "an unknown paper": (
        lambda r: with_trial(r, paper="nobody"),
        "there is no experiment nobody/sign",
    ),
    "an unknown experiment": (
        lambda r: with_trial(r, experiment="sing"),
        "there is no experiment negation_limitation/sing",
    ),
    "a revision to come": (
        lambda r: with_trial(r, revision=99),
        "of revision 99, but the experiment is at 1",
    ),
    "no configuration": (
        lambda r: with_trial(r, config=r.trial.config | {"points": "many"}),
        r"not a configuration of sign \(points: ",
    ),
    "an edited configuration": (
        lambda r: with_fields(r, config=r.config | {"routing": "em"}),
        r"its config is not that of its trial \(routing\), so it was edited",
    ),
    "an end before the start": (
        lambda r: with_fields(r, finished=r.started - timedelta(days=1)),
        "finished before it started",
    ),
    "no metric": (lambda r: with_fields(r, metrics={}), "ended well but holds no metric"),
    "more than all": (
        lambda r: with_metric(r, value=1.5, n=20, unit="fraction"),
        "metric a = 1.5 is out of the range of its unit, fraction",
    ),
    "less than none": (
        lambda r: with_metric(r, value=-1, n=20, unit="steps"),
        "metric a = -1 is out of the range of its unit, steps",
    ),
    "measured on nothing": (
        lambda r: with_metric(r, value=0.5, n=0, unit="fraction"),
        "metric a was measured on nothing",
    ),
    "a curve too short": (
        lambda r: with_fields(r, series={"steps": [1, 2, 3], "loss": [1, 2]}),
        "curve loss has 2 points over 3 steps",
    ),
}


@pytest.mark.parametrize("what", OBJECTIONS)
def test_a_sound_file_that_counts_for_nothing_is_named_and_left_out(
    store, trial, make_record, what, caplog
):
    change, why = OBJECTIONS[what]
    other = make_record(trial.model_copy(update={"seed": 4}))
    store.put(other)
    path = store.put(change(make_record(trial)))
    before = files(store.root)
    assert list(store.records()) == [other]
    assert re.search(rf"{path} is not used: {why}", caplog.text)
    assert len(caplog.records) == 1
    store.repair_all()
    assert files(store.root) == before, "nobody knows whether it will be of use again"


@pytest.mark.parametrize("paper", ["nobody", "em_routing"])
def test_a_record_in_the_folder_of_another_trial_is_named_and_left_out(
    store, trial, make_record, paper, caplog
):
    path = store.put(with_trial(make_record(trial), paper=paper))
    place = store.path(trial).with_name(path.name)
    place.parent.mkdir(parents=True)
    path.rename(place)
    assert list(store.records("negation_limitation")) == []
    assert f"{place} is not used: belongs in {paper}/sign: move it there" in caplog.text


class Before(Config):
    size: int = 1


class After(Before):
    """A release later: an option more."""

    sharp: bool = False


def test_a_new_option_orphans_no_record_and_reading_shows_it(store, monkeypatch):
    old, new = (toys.experiment(options, toys.measured) for options in (Before, After))
    monkeypatch.setitem(papers.experiments("negation_limitation"), "toy", old)
    kept = {t.key: run_trial(old, t, store, Context(seed=0)) for t in old.trials("smoke")}
    before = files(store.root)
    monkeypatch.setitem(papers.experiments("negation_limitation"), "toy", new)
    assert {t.key for t in new.trials("smoke")} == set(kept), "nothing runs again"
    for trial in new.trials("smoke"):
        found = store.get(trial)
        name = papers.arm(trial).name
        assert found.config == {**kept[trial.key].config, "sharp": False, "arm": name}
        assert found == kept[trial.key].model_copy(update={"config": found.config}), (
            "only the option is new"
        )
        assert papers.arm(found.trial).options == After(size=found.config["size"])
    assert [r.config["sharp"] for r in store.records()] == [False] * 3
    sharp = {t.key for t in new.trials("smoke", change={"sharp": True})}
    assert len(sharp) == 3
    assert not sharp & set(kept)
    assert files(store.root) == before


def test_a_record_keeps_the_defaults_that_it_ran_with(store, trial, make_record):
    """A default that changes needs a new revision; what a record says of its own run stands."""
    record = make_record(trial)
    store.put(record.model_copy(update={"config": {**record.config, "hidden": 21}}))
    assert store.get(trial).config["hidden"] == 21


def test_a_record_that_no_experiment_knows_any_more_is_still_read(store, trial, make_record):
    for gone in (
        {"paper": "gone"},
        {"experiment": "gone"},
        {"config": {**trial.config, "gone": 1}},
    ):
        other = make_record(trial.model_copy(update=gone))
        store.put(other)
        assert store.get(other.trial) == other


def test_a_record_under_the_name_of_another_is_not_taken_for_it(store, trial, make_record):
    other = trial.model_copy(update={"seed": 4})
    store.put(make_record(trial)).rename(store.path(other))
    with notified("it was edited or renamed"):
        assert store.get(other) is None
    with notified("it was edited or renamed"):
        assert list(store.records()) == []
    assert store.path(other).exists()


# ---------------------------------------------------------------------------------------------------
# a disk of its own

DISK = """
mount -t tmpfs -o size=160k tmpfs "$1" && head -c 94208 /dev/zero > "$1/ballast" || exit 77
run() {
    "$2" -m capslib run negation_limitation --scale smoke --experiment sign --set points=20 --set epochs=40 --workers 1 \
         --results-dir "$1/results" 2>&1
    echo "status $?"
}
records() { find "$1/results" -type f | sort; }
echo "--- full"; run "$@"; records "$@"
echo "--- room"; rm "$1/ballast"; mount -o remount,size=4m "$1"; run "$@"; records "$@"
echo "--- damaged"; find "$1/results" -name '*.json' -exec truncate -s 300 {} +
mount -o remount,ro "$1"; "$2" -m capslib claims negation_limitation --json --results-dir "$1/results" 2>&1; echo "status $?"
echo "--- read-only"; run "$@"
"""


def test_a_disk_that_fills_up_in_the_middle_of_a_run(tmp_path):
    """A disk of 160 kB, in a mount namespace of its own: not all five trials fit on it, a page
    or more for each file. Then there is room; then it is read-only.
    """
    if (
        not shutil.which("unshare")
        or subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode
    ):
        pytest.skip("no disk of its own: this system lets nobody here mount one")
    (tmp_path / "disk").mkdir()
    script = ["unshare", "-rm", "bash", "-c", DISK, "bash", tmp_path / "disk", sys.executable]
    done = subprocess.run(
        script, capture_output=True, encoding="utf-8", env={**os.environ, "COLUMNS": "400"}
    )
    if done.returncode == 77:
        pytest.skip(f"no disk of its own: {done.stderr}")
    said = dict(part.split("\n", 1) for part in done.stdout.split("--- ")[1:])

    def kept(part: str) -> set[str]:
        files = {
            Path(line) for line in said[part].splitlines() if line.startswith(str(tmp_path))
        }
        assert all(re.fullmatch(r"\w+\.(json|pt|lock|log)", file.name) for file in files), (
            "something half-written stayed"
        )
        return {
            str(file) for file in files if file.suffix == ".json"
        }  # where the machine is slow there is a checkpoint too

    assert "status 2" in said["full"]
    assert re.search(
        rf"{tmp_path}/disk/results/\S+\.(json|pt) cannot be written: No space left on device\. .*same command",
        said["full"],
    )
    assert 1 <= len(kept("full")) < 5

    assert "status 0" in said["room"]
    assert f"5 trials at scale smoke: {len(kept('full'))} have a record" in said["room"]
    assert kept("full") < kept("room")
    assert len(kept("room")) == 5

    assert said["damaged"].count(".json is damaged (") == 5
    assert "status 0" in said["damaged"]
    assert "Results cannot be written to" in said["read-only"]
    assert "status 2" in said["read-only"]
    assert "Traceback" not in done.stdout
