"""A tiny MNIST: the same four files under the same names, 20 + 10 images of 4 × 5 pixels, known to the registry by their hashes."""

import dataclasses
import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest
from idx_writer import idx_bytes

from capslib.data import registry


@dataclasses.dataclass
class Tiny:
    spec: registry.DataSet
    arrays: dict[str, tuple[np.ndarray, np.ndarray]]  # split: images [N, 4, 5], labels [N]
    files: dict[str, bytes]  # name: content as published

    def put(self, folder: Path, *, without=()) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            if name not in without:
                (folder / name).write_bytes(content)
        return folder


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    arrays, files = {}, {}
    for split, stem, n in (("train", "train", 20), ("test", "t10k", 10)):
        images = rng.integers(0, 256, (n, 4, 5), dtype=np.uint8)
        labels = rng.permutation(np.arange(n, dtype=np.uint8) % 10)
        arrays[split] = images, labels
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            files[f"{stem}-{kind}-ubyte.gz"] = gzip.compress(idx_bytes(array), mtime=0)
    spec = dataclasses.replace(
        registry.SETS["mnist"],
        splits={"train": (20, 1, 4, 5), "test": (10, 1, 4, 5)},
        files={name: "sha256:" + hashlib.sha256(content).hexdigest() for name, content in files.items()},
        mirrors=("http://127.0.0.1:9/nobody-listens/",),
    )
    monkeypatch.setitem(registry.SETS, "mnist", spec)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for variable in ("CAPSLIB_DATA", "CAPSLIB_DOWNLOAD"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)  # the mirrors of these tests are on this machine
    return Tiny(spec, arrays, files)
