"""Fetching from local servers that misbehave as real ones do."""

import contextlib
import dataclasses
import hashlib
import http.server
import os
import threading
import time
from pathlib import Path

import pytest

from capslib import data
from capslib.data import prepared, publishers
from capslib.errors import UserError


class Mirror:
    """Serves a dictionary of files, changed by ``spoil(name, content)``, and remembers every request.

    ``promise`` is the length that it announces, ``pause`` the seconds between two bytes. With ``moved`` it sends to
    another address first, in an answer without an end.
    """

    def __init__(
        self, files, spoil=lambda name, content: content, promise=None, pause=0.0, moved=False
    ):
        self.asked = asked = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                name = self.path.rpartition("/")[2]
                if moved and not self.path.startswith("/moved/"):
                    self.send_response(302)
                    self.send_header("Location", f"/moved/{name}")
                    self.end_headers()
                    with contextlib.suppress(ConnectionError):
                        while True:
                            self.wfile.write(bytes(2**16))
                    return
                asked.append(name)
                content = spoil(name, files[name]) if name in files else None
                if content is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(promise or len(content)))
                self.end_headers()
                parts = (
                    [content[k : k + 1] for k in range(len(content))] if pause else [content]
                )
                with contextlib.suppress(ConnectionError):  # the other side has had enough
                    for part in parts:
                        self.wfile.write(part)
                        time.sleep(pause)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_port}/files/"


@pytest.fixture
def mirrors(tiny, monkeypatch):
    """``mirrors(Mirror(…), …)`` gives the tiny set these addresses."""
    started = []

    def use(*given):
        started.extend(given)
        spec = dataclasses.replace(tiny.spec, mirrors=tuple(m.address for m in given))
        monkeypatch.setitem(data.SETS, "mnist", spec)
        return given

    yield use
    for mirror in started:
        mirror.server.shutdown()
        mirror.server.server_close()


def test_fetch(tiny, mirrors, tmp_path, capfd):
    [mirror] = mirrors(Mirror(tiny.files))
    assert data.fetch("mnist", tmp_path) == tmp_path / "mnist"
    assert mirror.asked == list(tiny.files)
    assert capfd.readouterr().err.count("100%") == 4  # one bar for each file
    assert data.verify("mnist", tmp_path) == []
    assert len(data.load("mnist", "train", data_dir=tmp_path)) == 20
    data.fetch("mnist", tmp_path)
    assert len(mirror.asked) == 4  # no second request


def test_nothing_is_downloaded_unless_it_is_allowed(tiny, mirrors, tmp_path, monkeypatch):
    [mirror] = mirrors(Mirror(tiny.files))
    for call in (data.require, lambda n, d: data.load(n, "train", data_dir=d)):
        with pytest.raises(UserError, match="capslib data fetch mnist"):
            call("mnist", tmp_path)
    monkeypatch.setenv("CAPSLIB_DOWNLOAD", "1")
    with pytest.raises(UserError, match="capslib data fetch mnist"):
        data.load("mnist", "train", data_dir=tmp_path, download=False)
    assert mirror.asked == []
    assert len(data.load("mnist", "train", data_dir=tmp_path)) == 20
    monkeypatch.delenv("CAPSLIB_DOWNLOAD")
    data.require("mnist", tmp_path / "other", download=True)
    assert len(data.load("mnist", "train", data_dir=tmp_path / "other")) == 20


SPOILT = {
    "404": lambda name, content: None,
    "cut": lambda name, content: content[:-9],
    "corrupted": lambda name, content: content[:-9] + bytes(9),
    "a page of excuses": lambda name, content: b"<html>Please log in</html>",
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_broken_mirror_is_skipped(tiny, mirrors, tmp_path, how):
    bad, good = mirrors(Mirror(tiny.files, SPOILT[how]), Mirror(tiny.files))
    data.fetch("mnist", tmp_path)
    assert data.verify("mnist", tmp_path) == []
    assert bad.asked == good.asked == list(tiny.files)


def test_a_mirror_that_hangs_up_early(tiny, mirrors, tmp_path):
    mirrors(Mirror(tiny.files, promise=10_000), Mirror(tiny.files))
    data.fetch("mnist", tmp_path)
    assert data.verify("mnist", tmp_path) == []


@pytest.mark.parametrize("promise", [None, 10**15])
def test_a_mirror_that_sends_more_than_the_publisher_has(
    tiny, mirrors, tmp_path, monkeypatch, promise
):
    largest = max(len(content) for content in tiny.files.values())
    endless = Mirror(tiny.files, lambda name, content: content * 1000, promise)
    mirrors(endless)
    monkeypatch.setitem(
        data.SETS, "mnist", dataclasses.replace(data.SETS["mnist"], largest=largest)
    )
    with pytest.raises(
        UserError, match=f"it has more than {largest:,} bytes, so it is not the publisher's"
    ):
        data.fetch("mnist", tmp_path)
    assert list((tmp_path / "mnist").iterdir()) == []
    mirrors(endless, Mirror(tiny.files))
    monkeypatch.setitem(
        data.SETS, "mnist", dataclasses.replace(data.SETS["mnist"], largest=largest)
    )
    data.fetch("mnist", tmp_path)
    assert data.verify("mnist", tmp_path) == []


def test_a_mirror_that_stalls_is_left(tiny, mirrors, tmp_path, monkeypatch):
    """It sends a byte now and then, so that no wait for the next one is long."""
    monkeypatch.setattr(publishers, "STALL_SECONDS", 0.2)
    slow, good = mirrors(Mirror(tiny.files, promise=1000, pause=0.02), Mirror(tiny.files))
    data.fetch("mnist", tmp_path)
    assert data.verify("mnist", tmp_path) == []
    assert slow.asked == good.asked == list(tiny.files)


def test_a_mirror_that_has_moved(tiny, mirrors, tmp_path):
    mirrors(Mirror(tiny.files, moved=True))
    data.fetch("mnist", tmp_path)
    assert data.verify("mnist", tmp_path) == []


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
def test_what_is_no_file_in_the_place_of_a_publishers_file(tiny, mirrors, tmp_path, make):
    [mirror] = mirrors(Mirror(tiny.files))
    (tmp_path / "mnist").mkdir()
    make(tmp_path / "mnist" / "train-labels-idx1-ubyte.gz")
    for call in (data.fetch, data.require, data.verify):
        with pytest.raises(
            UserError, match=r"train-labels-idx1-ubyte.gz is no regular file: remove it"
        ):
            call("mnist", tmp_path)
    assert data.describe(tmp_path)[0].state == "no"
    assert mirror.asked == ["train-images-idx3-ubyte.gz"]


def test_all_mirrors_fail_and_the_file_is_put_there_by_hand(tiny, mirrors, tmp_path):
    wrong = "train-labels-idx1-ubyte.gz"
    place, good = tmp_path / "mnist", tiny.files[wrong]
    one, two = mirrors(
        Mirror(tiny.files, lambda name, content: content[::-1] if name == wrong else content),
        Mirror({}),
    )
    with pytest.raises(UserError) as caught:
        data.fetch("mnist", tmp_path)
    hashes = [hashlib.sha256(content).hexdigest() for content in (good, good[::-1])]
    for part in (
        one.address + wrong,
        two.address + wrong,
        str(place),
        *hashes,
        "404",
        "capslib data fetch mnist",
    ):
        assert part in str(caught.value)
    assert [p.name for p in place.iterdir()] == [
        "train-images-idx3-ubyte.gz"
    ]  # the intact file stays, the damaged one is gone

    (place / wrong).write_bytes(good)
    one.asked.clear()
    data.fetch("mnist", tmp_path)
    assert one.asked == ["t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"]
    assert data.verify("mnist", tmp_path) == []


def test_a_damaged_file_is_fetched_again(tiny, mirrors, tmp_path):
    [mirror] = mirrors(Mirror(tiny.files))
    (tiny.put(tmp_path / "mnist") / "train-images-idx3-ubyte.gz").write_bytes(b"half")
    data.fetch("mnist", tmp_path)
    assert mirror.asked == ["train-images-idx3-ubyte.gz"]
    assert data.verify("mnist", tmp_path) == []


def test_offline_is_quick(tiny, tmp_path):
    started = time.perf_counter()
    with pytest.raises(UserError, match="could not be downloaded"):
        data.fetch("mnist", tmp_path)
    assert time.perf_counter() - started < 5
    assert not any(row.folder for row in data.describe(tmp_path))


def test_right_hash_but_wrong_shape(tiny, mirrors, tmp_path, monkeypatch):
    mirrors(Mirror(tiny.files))
    monkeypatch.setitem(
        data.SETS,
        "mnist",
        dataclasses.replace(data.SETS["mnist"], splits={"train": (20, 1, 28, 28)}),
    )
    with pytest.raises(
        UserError,
        match=r"files of mnist in .* cannot be read: ValueError: .*400 into shape \(20,1,28,28\)",
    ):
        data.fetch("mnist", tmp_path)
    assert not (tmp_path / "mnist" / "manifest.json").exists()


def test_md5_if_nothing_better_is_published(tiny, mirrors, tmp_path, monkeypatch):
    mirrors(Mirror(tiny.files, lambda name, content: content[:-1] + b"x"), Mirror(tiny.files))

    md5 = {
        name: "md5:" + hashlib.md5(content).hexdigest() for name, content in tiny.files.items()
    }
    monkeypatch.setitem(data.SETS, "mnist", dataclasses.replace(data.SETS["mnist"], files=md5))
    data.fetch("mnist", tmp_path)
    assert data.verify("mnist", tmp_path) == []


def test_a_part_of_a_set_is_not_replaced_and_says_so(tiny, mirrors, tmp_path):
    [mirror] = mirrors(Mirror(tiny.files))
    images, labels = tiny.arrays["train"]
    part = {"images": images[:7, None], "labels": labels[:7].astype("int64")}
    about = {
        "source": "a test",
        "licence": "none",
        "complete": False,
        "deviations": ["the first 7"],
    }
    prepared.write(tmp_path / "mnist", about, [("train", part)])
    assert len(data.load("mnist", "train", data_dir=tmp_path, download=True)) == 7
    with pytest.raises(UserError, match=r"only part of mnist \(the first 7\)"):
        data.fetch("mnist", tmp_path)
    assert mirror.asked == []


def test_two_fetches_at_once(tiny, mirrors, tmp_path):
    def slowly(name, content):
        time.sleep(0.1)
        return content

    [mirror] = mirrors(Mirror(tiny.files, slowly))
    both = [threading.Thread(target=data.fetch, args=("mnist", tmp_path)) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(30)
    assert sorted(mirror.asked) == sorted(tiny.files)  # each file once
    assert data.verify("mnist", tmp_path) == []


def test_what_cannot_be_fetched():
    with pytest.raises(UserError, match="nothing to fetch"):
        data.fetch("digits")
    with pytest.raises(UserError, match=r"Did you mean 'kmnist'\?"):
        data.fetch("kmnst")
