"""Tiny sets: publishers' files with their real names, a few small images, and hashes that the registry knows."""

import dataclasses
import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest
from writers import cifar_records, idx_bytes, norb_bytes, tar_gz

from capslib import data
from capslib.data import registry
from capslib.errors import UserError


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path) -> Path:
    """The user's cache, which is the default data folder and notes which arrays were read."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "capslib"


@dataclasses.dataclass
class Tiny:
    spec: registry.DataSet
    arrays: dict[
        str, tuple[np.ndarray, ...]
    ]  # split: the content of its files, images and labels first
    files: dict[str, bytes]  # name: content as published

    def put(self, folder: Path, *, without=()) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            if name not in without:
                (folder / name).write_bytes(content)
        return folder


@pytest.fixture
def publish(monkeypatch, tmp_path):
    """``publish(name, splits, arrays, files)`` replaces the real set of that name by a tiny one."""

    def use(name, splits, arrays, files):
        real = registry.SETS[name]
        spec = dataclasses.replace(
            real,
            splits=splits,
            files={
                name: known and f"sha256:{hashlib.sha256(files[name]).hexdigest()}"
                for name, known in real.files.items()
            },
            mirrors=real.mirrors and ("http://127.0.0.1:9/nobody-listens/",),
            manifest="",
        )
        assert list(files) == list(real.files)
        monkeypatch.setitem(registry.SETS, name, spec)
        return Tiny(spec, arrays, files)

    for variable in ("CAPSLIB_DATA", "CAPSLIB_DOWNLOAD"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(
            variable, raising=False
        )  # the mirrors of these tests run on this machine
    return use


@pytest.fixture
def refused(publish, tmp_path):
    """``refused(tiny, changed)``: files of another form with the right hashes are an error that says what broke, and leave nothing."""

    def use(tiny, changed):
        name, place = tiny.spec.name, tmp_path / tiny.spec.name
        publish(name, tiny.spec.splits, {}, tiny.files | changed).put(place)
        with pytest.raises(UserError) as caught:
            data.require(name, tmp_path)
        assert str(caught.value).startswith(f"The files of {name} in {place} cannot be read: ")
        assert {p.name for p in place.iterdir()} == set(
            tiny.files
        )  # nothing half-written, nothing extracted
        return str(caught.value)

    return use


@pytest.fixture
def tiny(publish):
    """MNIST with 20 + 10 images of 4 × 5 pixels."""
    rng = np.random.default_rng(0)
    arrays, files = {}, {}
    for split, stem, n in (("train", "train", 20), ("test", "t10k", 10)):
        images = rng.integers(0, 256, (n, 4, 5), dtype=np.uint8)
        labels = rng.permutation(np.arange(n, dtype=np.uint8) % 10)
        arrays[split] = images, labels
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            files[f"{stem}-{kind}-ubyte.gz"] = gzip.compress(idx_bytes(array), mtime=0)
    return publish("mnist", {"train": (20, 1, 4, 5), "test": (10, 1, 4, 5)}, arrays, files)


@pytest.fixture
def tiny_norb(publish):
    """smallNORB with 1,010 + 7 pairs of 8 × 6 pixels: more than two slabs of the reader, and less than one."""
    rng = np.random.default_rng(0)
    arrays, files = {}, {}
    for split, stem, n in (
        ("train", "5x46789x9x18x6x2x96x96-training", 1010),
        ("test", "5x01235x9x18x6x2x96x96-testing", 7),
    ):
        images = rng.integers(0, 256, (n, 2, 8, 6), dtype=np.uint8)
        labels = rng.integers(0, 5, n, dtype=np.int32)
        info = rng.integers(0, 10, (n, 4), dtype=np.int32)
        arrays[split] = images, labels, info
        for kind, array in (("dat", images), ("cat", labels), ("info", info)):
            files[f"smallnorb-{stem}-{kind}.mat.gz"] = gzip.compress(norb_bytes(array), mtime=0)
    return publish("smallnorb", {"train": (1010, 2, 4, 3), "test": (7, 2, 4, 3)}, arrays, files)


@pytest.fixture
def tiny_cifar(publish):
    """CIFAR-10 with five batches of 4 and one of 3 images of 2 × 3 pixels, in an archive with another order and with other files."""
    rng = np.random.default_rng(0)
    arrays = {
        split: (rng.integers(0, 256, (n, 3, 2, 3), dtype=np.uint8), rng.integers(0, 10, n))
        for split, n in (("train", 20), ("test", 3))
    }
    batches = {"test_batch": cifar_records(*arrays["test"])}
    for k in range(5):
        batches[f"data_batch_{k + 1}"] = cifar_records(
            *(a[4 * k : 4 * k + 4] for a in arrays["train"])
        )
    members = [
        (f"cifar-10-batches-bin/{name}.bin", batches[name])
        for name in sorted(batches, reverse=True)
    ]
    members.insert(3, ("cifar-10-batches-bin/batches.meta.txt", b"airplane\n"))
    splits = {"train": (20, 3, 2, 3), "test": (3, 3, 2, 3)}
    return publish("cifar10", splits, arrays, {"cifar-10-binary.tar.gz": tar_gz(members)})
