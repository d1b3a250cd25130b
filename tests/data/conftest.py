"""Tiny sets: publishers' files with their real names, few small images, and known hashes."""

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
    """The user's cache: the default data folder, with notes of the arrays that were read."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "capslib"


@dataclasses.dataclass
class Tiny:
    spec: registry.DataSet
    arrays: dict[str, tuple[np.ndarray, ...]]  # of each split: images and labels first
    files: dict[str, bytes]  # name: content as published

    def put(self, folder: Path, *, without=()) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            if name not in without:
                (folder / name).write_bytes(content)
        return folder


@pytest.fixture
def publish(monkeypatch, tmp_path):
    """``publish(name, splits, arrays, files)`` replaces a real set by a tiny one."""

    def use(name, splits, arrays, files):
        real, hashes = registry.SETS[name], {}
        assert list(files) == list(real.files)
        for file, content in files.items():
            hashes[file] = f"sha256:{hashlib.sha256(content).hexdigest()}"
            if not real.files[file]:
                hashes[file] = ""
        mirrors = ("http://127.0.0.1:9/nobody-listens/",) if real.mirrors else ()
        changes = dict(splits=splits, files=hashes, mirrors=mirrors, manifest="")
        spec = dataclasses.replace(real, **changes)
        monkeypatch.setitem(registry.SETS, name, spec)
        return Tiny(spec, arrays, files)

    # The mirrors of these tests run on this machine.
    proxies = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
    for variable in ("CAPSLIB_DATA", "CAPSLIB_DOWNLOAD", *proxies):
        monkeypatch.delenv(variable, raising=False)
    return use


@pytest.fixture
def refused(publish, tmp_path):
    """``refused(tiny, changes)``: files of another form, with the right hashes, are an error.

    It says what broke, and nothing half-written or extracted is left.
    """

    def use(tiny, changes):
        name, folder = tiny.spec.name, tmp_path / tiny.spec.name
        publish(name, tiny.spec.splits, {}, tiny.files | changes).put(folder)
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
    """smallNORB with 1,010 + 7 pairs of 8 × 6 pixels: over two slabs, and under one."""
    rng = np.random.default_rng(0)
    training, testing = "5x46789x9x18x6x2x96x96-training", "5x01235x9x18x6x2x96x96-testing"
    arrays, files = {}, {}
    for split, stem, n in (("train", training, 1010), ("test", testing, 7)):
        images = rng.integers(0, 256, (n, 2, 8, 6), dtype=np.uint8)
        labels = rng.integers(0, 5, n, dtype=np.int32)
        info = rng.integers(0, 10, (n, 4), dtype=np.int32)
        arrays[split] = images, labels, info
        for kind, array in (("dat", images), ("cat", labels), ("info", info)):
            files[f"smallnorb-{stem}-{kind}.mat.gz"] = gzip.compress(norb_bytes(array), mtime=0)
    return publish("smallnorb", {"train": (1010, 2, 4, 3), "test": (7, 2, 4, 3)}, arrays, files)


@pytest.fixture
def tiny_cifar(publish):
    """CIFAR-10 with five batches of 4 and one of 3 images of 2 × 3 pixels.

    They stand in the archive in another order, with a file that is none of them.
    """
    rng = np.random.default_rng(0)
    arrays = {}
    for split, n in (("train", 20), ("test", 3)):
        images = rng.integers(0, 256, (n, 3, 2, 3), dtype=np.uint8)
        arrays[split] = images, rng.integers(0, 10, n)
    images, labels = arrays["train"]
    members = [("cifar-10-batches-bin/test_batch.bin", cifar_records(*arrays["test"]))]
    for k in reversed(range(5)):
        rows = slice(4 * k, 4 * k + 4)
        content = cifar_records(images[rows], labels[rows])
        members.append((f"cifar-10-batches-bin/data_batch_{k + 1}.bin", content))
    members.insert(3, ("cifar-10-batches-bin/batches.meta.txt", b"airplane\n"))
    splits = {"train": (20, 3, 2, 3), "test": (3, 3, 2, 3)}
    return publish("cifar10", splits, arrays, {"cifar-10-binary.tar.gz": tar_gz(members)})
