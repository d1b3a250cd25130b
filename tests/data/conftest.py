"""Tiny sets: publishers' files with their real names, few small images, and known hashes."""

import dataclasses
import hashlib
from pathlib import Path

import numpy as np
import pytest
from writers import TINY

from capslib import data
from capslib.data import registry
from capslib.errors import UserError


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path) -> Path:
    """The user's cache: the default data folder, with notes of the arrays that were read."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "capslib"


@dataclasses.dataclass
class Tiny:
    spec: registry.DataSet
    arrays: dict[str, dict[str, np.ndarray]]  # of each split, by name
    files: dict[str, bytes]  # as published, by name

    def put(self, folder: Path, *, without=()) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            if name not in without:
                (folder / name).write_bytes(content)
        return folder


@pytest.fixture
def publish(monkeypatch):
    """``publish(name, changes)`` replaces a real set by a tiny one, with changed files."""

    def use(name, changes=(), **options):
        arrays, files = TINY[name](**options)
        files.update(changes)
        original, hashes = registry.SETS[name], {}
        for file, known_hash in original.files.items():
            hashes[file] = known_hash and f"sha256:{hashlib.sha256(files[file]).hexdigest()}"
        spec = dataclasses.replace(
            original,
            splits={split: group["images"].shape for split, group in arrays.items()},
            files=hashes,
            mirrors=("http://127.0.0.1:9/nobody-listens/",) if original.mirrors else (),
            manifest="",
        )
        monkeypatch.setitem(registry.SETS, name, spec)
        return Tiny(spec, arrays, files)

    # The mirrors of these tests run on this machine.
    proxies = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
    for variable in ("CAPSLIB_DATA", "CAPSLIB_DOWNLOAD", *proxies):
        monkeypatch.delenv(variable, raising=False)
    return use


@pytest.fixture
def refused(publish, tmp_path):
    """``refused(name, changes)``: files of another form, with the right hashes, are an error.

    It says what broke, and nothing half-written or extracted is left.
    """

    def use(name, changes):
        folder = tmp_path / name
        tiny = publish(name, changes)
        tiny.put(folder)
        with pytest.raises(UserError) as caught:
            data.require(name, tmp_path)
        message = str(caught.value)
        assert message.startswith(f"The files of {name} in {folder} cannot be read: ")
        assert {path.name for path in folder.iterdir()} == set(tiny.files)
        return message

    return use


@pytest.fixture
def tiny(publish):
    """MNIST with 20 + 10 images of 4 × 5 pixels."""
    return publish("mnist")
