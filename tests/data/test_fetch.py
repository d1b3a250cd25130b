"""Fetching from local servers that misbehave as real ones do."""

import dataclasses
import hashlib
import os
import threading
import time
from pathlib import Path

import pytest
from mirror import Mirror
from writers import write_part

from capslib import data
from capslib.data import publishers
from capslib.errors import UserError

LABELS = "train-labels-idx1-ubyte.gz"


@pytest.fixture
def mirrors(tiny, monkeypatch):
    """``mirrors(Mirror(…), …)`` gives the tiny set these addresses, and other changes."""
    started = []

    def use(*mirrors, **changes):
        started.extend(mirrors)
        addresses = tuple(mirror.address for mirror in mirrors)
        spec = dataclasses.replace(tiny.spec, mirrors=addresses, **changes)
        monkeypatch.setitem(data.SETS, "mnist", spec)
        return mirrors

    yield use
    for mirror in started:
        mirror.close()


def test_fetch(tiny, mirrors, tmp_path, capfd):
    [mirror] = mirrors(Mirror(tiny.files))
    assert data.fetch("mnist", tmp_path) == tmp_path / "mnist"
    assert mirror.requests == list(tiny.files)
    assert capfd.readouterr().err.count("100%") == 4  # a bar for each file
    assert data.verify("mnist", tmp_path) == []
    data.fetch("mnist", tmp_path)
    assert len(mirror.requests) == 4


def test_nothing_is_downloaded_unless_it_is_allowed(tiny, mirrors, tmp_path, monkeypatch):
    [mirror] = mirrors(Mirror(tiny.files))
    with pytest.raises(UserError, match="capslib data fetch mnist"):
        data.require("mnist", tmp_path)
    monkeypatch.setenv("CAPSLIB_DOWNLOAD", "1")
    with pytest.raises(UserError, match="capslib data fetch mnist"):
        data.load("mnist", "train", data_dir=tmp_path, download=False)
    assert mirror.requests == []
    assert len(data.load("mnist", "train", data_dir=tmp_path)) == 20
    monkeypatch.delenv("CAPSLIB_DOWNLOAD")
    data.require("mnist", tmp_path / "other", download=True)
    assert len(mirror.requests) == 8


BROKEN = {
    "cut": dict(spoil=lambda content: content[:-9]),
    "corrupted": dict(spoil=lambda content: content[:-9] + bytes(9)),
    "a page of excuses": dict(spoil=lambda content: b"<html>Please log in</html>"),
    "hangs up early": dict(promise=10_000),
    # It sends a byte now and then, so that no wait for the next one is long.
    "stalls": dict(promise=1000, pause=0.2),
}


@pytest.mark.parametrize("options", BROKEN.values(), ids=BROKEN)
def test_a_broken_mirror_is_skipped(tiny, mirrors, tmp_path, monkeypatch, options):
    if "pause" in options:  # the sound mirror answers at once, also on a busy machine
        monkeypatch.setattr(publishers, "STALL_SECONDS", 2)
    broken, sound = mirrors(Mirror(tiny.files, **options), Mirror(tiny.files))
    data.fetch("mnist", tmp_path)
    assert data.verify("mnist", tmp_path) == []
    assert broken.requests == sound.requests == list(tiny.files)


@pytest.mark.parametrize("promise", [None, 10**15])
def test_a_mirror_that_sends_more_than_the_publisher_has(tiny, mirrors, tmp_path, promise):
    largest = max(len(content) for content in tiny.files.values())
    mirrors(Mirror(tiny.files, lambda content: content * 1000, promise), largest=largest)
    message = f"it has more than {largest:,} bytes, so it is not the publisher's"
    with pytest.raises(UserError, match=message):
        data.fetch("mnist", tmp_path)
    assert list((tmp_path / "mnist").iterdir()) == []


def test_a_mirror_that_has_moved(tiny, mirrors, tmp_path):
    mirrors(Mirror(tiny.files, moved=True))
    data.fetch("mnist", tmp_path)
    assert data.verify("mnist", tmp_path) == []


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
def test_what_is_no_file_in_the_place_of_a_publishers_file(tiny, mirrors, tmp_path, make):
    [mirror] = mirrors(Mirror(tiny.files))
    (tmp_path / "mnist").mkdir()
    make(tmp_path / "mnist" / LABELS)
    for call in (data.fetch, data.require, data.verify):
        with pytest.raises(UserError, match=f"{LABELS} is no regular file: remove it"):
            call("mnist", tmp_path)
    states = {row.name: row.state for row in data.describe(tmp_path)}
    assert states["mnist"] == "no"
    assert mirror.requests == ["train-images-idx3-ubyte.gz"]


def test_all_mirrors_fail_and_the_file_is_put_there_by_hand(tiny, mirrors, tmp_path):
    content, folder = tiny.files[LABELS], tmp_path / "mnist"
    spoilt = Mirror(tiny.files | {LABELS: content[::-1]})
    empty = Mirror({})
    mirrors(spoilt, empty)
    with pytest.raises(UserError) as caught:
        data.fetch("mnist", tmp_path)
    message = str(caught.value)
    for part in (spoilt.address + LABELS, empty.address + LABELS, str(folder), "404"):
        assert part in message
    assert hashlib.sha256(content).hexdigest() in message
    assert "capslib data fetch mnist" in message
    # The intact file stays, the damaged one is gone.
    assert [path.name for path in folder.iterdir()] == ["train-images-idx3-ubyte.gz"]

    (folder / LABELS).write_bytes(content)
    spoilt.requests.clear()
    data.fetch("mnist", tmp_path)
    assert spoilt.requests == ["t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"]
    assert data.verify("mnist", tmp_path) == []


def test_a_damaged_file_is_fetched_again(tiny, mirrors, tmp_path):
    [mirror] = mirrors(Mirror(tiny.files))
    (tiny.put(tmp_path / "mnist") / LABELS).write_bytes(b"half")
    data.fetch("mnist", tmp_path)
    assert mirror.requests == [LABELS]
    assert data.verify("mnist", tmp_path) == []


def test_md5_if_nothing_better_is_published(tiny, mirrors, tmp_path):
    hashes = {}
    for name, content in tiny.files.items():
        hashes[name] = f"md5:{hashlib.md5(content).hexdigest()}"
    spoilt = Mirror(tiny.files, lambda content: content[:-1] + b"x")
    mirrors(spoilt, Mirror(tiny.files), files=hashes)
    data.fetch("mnist", tmp_path)
    assert data.verify("mnist", tmp_path) == []


def test_a_part_of_a_set_is_not_replaced_and_says_so(tiny, mirrors, tmp_path):
    [mirror] = mirrors(Mirror(tiny.files))
    arrays = {name: array[:7] for name, array in tiny.arrays["train"].items()}
    write_part(tmp_path / "mnist", "train", arrays, deviations=["the first 7"])
    assert len(data.load("mnist", "train", data_dir=tmp_path, download=True)) == 7
    with pytest.raises(UserError, match=r"only part of mnist \(the first 7\)"):
        data.fetch("mnist", tmp_path)
    assert mirror.requests == []


def test_two_fetches_at_once_download_each_file_once(tiny, mirrors, tmp_path):
    def slowly(content):
        time.sleep(0.1)
        return content

    [mirror] = mirrors(Mirror(tiny.files, slowly))
    threads = [threading.Thread(target=data.fetch, args=("mnist", tmp_path)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(mirror.requests) == sorted(tiny.files)
    assert data.verify("mnist", tmp_path) == []


def test_what_cannot_be_fetched():
    with pytest.raises(UserError, match="nothing to fetch"):
        data.fetch("digits")
    with pytest.raises(UserError, match=r"Did you mean 'kmnist'\?"):
        data.fetch("kmnst")
