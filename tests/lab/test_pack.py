"""A pack takes runs to a machine without a network, and their records come back, checked."""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
import torch
from helpers import notified
from toys import until

from capslib import papers
from capslib.errors import UserError
from capslib.files import locked
from capslib.lab import batch
from capslib.lab import pack as packing
from capslib.lab.budget import Waiting
from capslib.lab.pack import ARCHIVE, UNPACKED, Parts, Unpacked, pack, parse_size, unpack
from capslib.lab.provenance import Checkout, checkout
from capslib.lab.review import review
from capslib.lab.settings import Settings
from capslib.lab.store import Store

ROOT = Path(__file__).parents[2]
STEM = "learned_routing"
SIGN = "negation_limitation"
TOYS = ROOT / "results" / STEM / "toys"


@pytest.fixture
def committed(monkeypatch) -> str:
    """The revision of this checkout, as if nothing had changed since."""
    revision = checkout(ROOT).revision
    if revision is None:
        pytest.skip(f"no git checkout: {checkout(ROOT).reason}")
    monkeypatch.setattr(packing, "checkout", lambda: Checkout(revision, False))
    return revision


@pytest.fixture
def brought(tmp_path) -> Path:
    """A folder with the committed records of an experiment."""
    shutil.copytree(TOYS, tmp_path / "brought" / STEM / "toys")
    return tmp_path / "brought"


def keys(folder: Path) -> set[str]:
    """Return the keys of all records in a folder."""
    return {path.stem for path in folder.glob("*/*/*.json")}


@pytest.fixture
def there(committed, tmp_path):
    """Start ``run.sh`` of a pack at smoke scale; what is left of it ends with the test."""
    pack([SIGN], tmp_path / "there", scale="smoke")
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment |= {"PYTHON": sys.executable, "CAPSLIB_CHECKPOINT_SECONDS": "0"}
    started: list[subprocess.Popen] = []

    def start(*words: str) -> subprocess.Popen:
        running = subprocess.Popen(
            ["sh", tmp_path / "there" / "run.sh", "--results-dir", "results", *words],
            env=environment,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            start_new_session=True,
        )
        started.append(running)
        return running

    yield start
    for running in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        running.stderr.close()


@pytest.mark.parametrize(("text", "size"), [("700", 700), ("60M", 60_000_000), ("1.5k", 1500)])
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "60X", "M", "1e3", "0.1", "9" * 400])
def test_what_is_no_size_is_refused_with_what_is_one(text):
    with pytest.raises(UserError, match="60M"):
        parse_size(text)


def test_the_whole_way(committed, tmp_path):
    """Packed in parts, run elsewhere without a network, and brought back.

    A Python without packages is first told all that it lacks.
    """
    parts = pack([STEM], tmp_path / "there", scale="smoke", part_size=2_000_000)
    sizes = [part.stat().st_size for part in parts]
    assert set(sizes[:-1]) == {2_000_000}
    assert 0 < sizes[-1] <= 2_000_000
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    offline = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
    command = ["sh", tmp_path / "there" / "run.sh", "--experiment", "toys", "--workers", "1"]
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n', encoding="utf-8")
    bare.chmod(0o755)
    lacking = environment | {"PYTHON": str(bare)}
    answer = subprocess.run(command, env=lacking, capture_output=True, encoding="utf-8")
    assert answer.returncode == 2
    for package in ("torch", "dask", "typer", "--all-wheels"):
        assert package in answer.stderr
    for _ in range(2):  # the second time nothing is left to do
        subprocess.run(
            [*command, "--results-dir", "results"],
            env=environment | offline | {"PYTHON": sys.executable},
            check=True,
            capture_output=True,
            cwd=tmp_path,
        )
    clone = tmp_path / "there" / UNPACKED / "capsules"
    assert {path.name for path in (clone / "results").iterdir() if path.is_dir()} >= {STEM}
    assert not (clone / "results" / "em_routing").exists(), "records of other papers stay here"
    store = Store(tmp_path / "here")
    unpacked = unpack(tmp_path / "there", store)
    assert unpacked == (len(keys(store.root)), 0, 0)
    (record,) = [r for r in store.records(STEM) if r.trial.scale == "smoke"]
    assert record.exit == "ok"
    assert record.code.revision == committed
    assert record.code.dirty is False
    assert unpack(tmp_path / "there", store) == (0, unpacked.records, 0)


def test_a_pack_that_is_killed_in_a_training_brings_what_an_unkilled_run_has(there, tmp_path):
    words = ["--experiment", "sign", "--where", "arm=dynamic/no_bias", "--seeds", "1"]
    words += ["--set", "points=256", "--set", "epochs=200"]
    (trial,) = papers.experiments(SIGN)["sign"].trials(
        "smoke",
        seeds=range(1),
        where={"arm": "dynamic/no_bias"},
        change={"points": 256, "epochs": 200},
    )
    brought = Store(tmp_path / "there" / UNPACKED / "capsules" / "results")

    running = there(*words)
    until(lambda: running.poll() is not None or any(brought.trainings.glob("*.pt")))
    assert running.poll() is None, running.stderr.read()
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    assert not brought.path(trial).exists(), "it was not killed in time"

    killed = Store(tmp_path / "killed")
    assert unpack(tmp_path / "there", killed, checkpoints=True).checkpoints == 1
    running = there(*words)
    message = running.stderr.read()
    assert running.wait() == 0, message
    assert unpack(tmp_path / "there", killed, checkpoints=True).checkpoints == 1
    problems = review(killed, SIGN).problems
    assert [problem for problem in problems if trial.key in problem] == []

    undisturbed = Store(tmp_path / "undisturbed")
    batch.run([trial], undisturbed, Settings(scale="smoke", workers=1))
    record, expected = killed.get(trial), undisturbed.get(trial)
    assert record.resumed_from, "it was not taken up again"
    assert record.exit == expected.exit == "ok"
    assert record.metrics == expected.metrics
    assert record.series == expected.series


def test_the_packages_that_a_run_needs_include_those_of_the_library():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.match(r"[\w-]+", line)[0] for line in project["dependencies"]}
    assert names - {"torch", "numpy"} <= set(packing.NEEDED)


def test_a_pack_is_refused_before_anything_is_written(committed, tmp_path, monkeypatch):
    there = tmp_path / "there"
    there.mkdir()
    with pytest.raises(UserError, match="data set mnist is missing"):
        pack([STEM], there, scale="paper", data_dir=tmp_path / "none")
    with pytest.raises(UserError, match="no wheel of this"):
        pack([STEM], there, scale="smoke", wheels=["no wheel of this"])
    with pytest.raises(UserError, match="smokey"):
        pack([STEM], there, scale="smokey")
    assert list(tmp_path.iterdir()) == [there]
    assert list(there.iterdir()) == []
    monkeypatch.setattr(packing, "checkout", lambda: Checkout(committed, True))
    with pytest.raises(UserError, match="commit first"):
        pack([STEM], there, scale="smoke")
    (there / "file").touch()
    with pytest.raises(UserError, match="is not empty: name a new folder"):
        pack([STEM], there, scale="smoke")


def test_data_sets_are_those_of_trials_without_a_record(monkeypatch, tmp_path):
    assert packing.real_sets([STEM], "smoke") == [], "stand-ins are in the package"
    monkeypatch.setenv("CAPSLIB_RESULTS", str(tmp_path))
    assert packing.real_sets([STEM], "cpu") == ["mnist", "smallnorb"]


def test_a_longer_trial_that_a_claim_waits_for_brings_its_data(monkeypatch):
    """Also where all other trials have a record."""
    depth = papers.experiments(SIGN)["depth"]
    arm = depth.twice(depth.at("cpu")["fashion_mnist/em_vector/5/no_bias"])
    longer = depth.trial("cpu", arm, seed=0)
    waiting = Waiting(trials={longer.key: longer})
    monkeypatch.setattr(packing, "waiting_for", lambda *_: waiting)
    monkeypatch.setattr(Store, "ended", lambda self, trial: "ok")
    assert packing.real_sets([SIGN], "cpu") == ["fashion_mnist"]


def test_a_trial_keeps_the_record_that_it_has_unless_that_was_interrupted(brought, tmp_path):
    store = Store(tmp_path / "here")
    records = list(Store(brought).records())
    kept = records[0].model_copy(update={"message": "ours"})
    store.put(kept)
    expected = len(records) - 1
    if expected:
        unfinished = {"exit": "interrupted", "metrics": {}, "message": "stopped"}
        store.put(records[1].model_copy(update=unfinished))
    assert unpack(brought, store) == Unpacked(expected, 1, 0)
    assert store.get(kept.trial).message == "ours"
    assert {record.exit for record in store.records()} == {"ok"}


def test_a_record_comes_back_byte_for_byte(brought, tmp_path):
    """Also without fields of its configuration that were added later."""
    store = Store(tmp_path / "here")
    unpack(brought, store)
    for path in brought.glob("*/*/*.json"):
        assert (store.root / path.relative_to(brought)).read_bytes() == path.read_bytes()


def test_damaged_records_stay_where_they_are(brought, tmp_path):
    path = next(brought.glob("*/*/*.json"))
    path.write_text(path.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    store = Store(tmp_path / "here")
    with notified("damaged"):
        unpack(brought, store)
    assert path.stem not in keys(store.root)


@pytest.fixture
def checkpoint(brought, tmp_path):
    """Write a checkpoint there or here, and return its file."""

    def write(place: str, step: int, *, finished: bool = False, time: int = 0) -> Path:
        path = {"there": brought, "here": tmp_path / "here"}[place] / ".trainings" / "abc.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"code": "", "step": step, "finished": finished}, path)
        os.utime(path, times=(time, time))
        return path

    return write


def test_checkpoints_come_along_when_asked(brought, tmp_path, checkpoint):
    theirs = checkpoint("there", 5)
    store = Store(tmp_path / "here")
    assert unpack(brought, store).checkpoints == 0
    assert not store.trainings.exists()
    assert unpack(brought, store, checkpoints=True).checkpoints == 1
    assert (store.trainings / "abc.pt").read_bytes() == theirs.read_bytes()
    assert unpack(brought, store, checkpoints=True).checkpoints == 0


@pytest.mark.parametrize(
    ("brought_state", "local_state", "copied"),
    [
        ({"step": 5, "time": 2}, {"step": 6, "time": 1}, False),
        ({"step": 5, "time": 2}, {"step": 4, "finished": True, "time": 1}, False),
        ({"step": 6, "time": 1}, {"step": 5, "time": 2}, True),
        ({"step": 4, "finished": True, "time": 1}, {"step": 5, "time": 2}, True),
        ({"step": 5, "time": 2}, {"step": 5, "time": 1}, True),
    ],
)
def test_the_checkpoint_that_is_further_along_stays(
    brought, tmp_path, checkpoint, brought_state, local_state, copied
):
    """A later file may hold fewer steps."""
    brought_file = checkpoint("there", **brought_state)
    local_file = checkpoint("here", **local_state)
    expected = brought_file.read_bytes() if copied else local_file.read_bytes()
    assert unpack(brought, Store(tmp_path / "here"), checkpoints=True).checkpoints == copied
    assert local_file.read_bytes() == expected


def test_a_training_that_runs_keeps_its_checkpoint_and_a_damaged_one_is_left(
    brought, tmp_path, checkpoint
):
    theirs, ours = checkpoint("there", 6), checkpoint("here", 5)
    store = Store(tmp_path / "here")
    with locked(ours.with_suffix(".lock")), notified("abc.pt stays: its training runs here"):
        assert unpack(brought, store, checkpoints=True).checkpoints == 0
    theirs.write_bytes(theirs.read_bytes()[:99])
    with notified("abc.pt is damaged and was not copied"):
        assert unpack(brought, store, checkpoints=True).checkpoints == 0
    assert torch.load(ours)["step"] == 5


def test_a_tar_archive_of_a_pack_is_unpacked_and_a_hostile_one_is_refused(brought, tmp_path):
    archive = tmp_path / "back.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(brought, "pack/results")
    store = Store(tmp_path / "here")
    assert unpack(archive, store).records == len(keys(brought))
    with tarfile.open(archive, "w") as tar:
        tar.addfile(tarfile.TarInfo("../outside"), io.BytesIO())
    with pytest.raises(UserError, match="no sound tar archive"):
        unpack(archive, store)
    assert not (tmp_path / "outside").exists()
    archive.write_bytes(b"no archive")
    with pytest.raises(UserError, match="no sound tar archive"):
        unpack(archive, store)


@pytest.mark.parametrize("compression", ["gz", "xz"])
def test_an_archive_that_is_damaged_in_the_middle_is_refused(tmp_path, compression):
    """Its decompressor has an error of its own."""
    content = tmp_path / "content"
    content.write_bytes(random.Random(0).randbytes(100_000).hex().encode())
    archive = tmp_path / "back.tar"
    with tarfile.open(archive, f"w:{compression}") as tar:
        tar.add(content, "content")
    packed = archive.read_bytes()
    noise = random.Random(1).randbytes(500)
    archive.write_bytes(packed[:50_000] + noise + packed[50_500:])
    with pytest.raises(UserError, match="no sound tar archive"):
        unpack(archive, Store(tmp_path / "here"))


def test_more_parts_than_a_shell_can_order_are_refused(tmp_path):
    """``cat pack.*`` would put part 1000 between 100 and 101."""
    with Parts(tmp_path / "pack", 1) as parts:
        parts.write(bytes(999))
        with pytest.raises(UserError, match="give a larger --max-size"):
            parts.write(bytes(1))
    assert [path.name for path in sorted(parts.paths)][-1] == "pack.999"


def test_a_folder_without_records_is_named(tmp_path):
    with pytest.raises(UserError, match=r"no records in .*run\.sh"):
        unpack(tmp_path, Store(tmp_path / "here"))


def test_the_parts_are_one_archive(committed, tmp_path):
    parts = pack([STEM], tmp_path / "whole", scale="smoke")
    assert [part.name for part in parts] == [f"{ARCHIVE}.001"]
    with tarfile.open(parts[0]) as archive:
        names = archive.getnames()
    assert "capsules/capslib/__init__.py" in names
    assert any(name.startswith("capsules/.git/") for name in names)
