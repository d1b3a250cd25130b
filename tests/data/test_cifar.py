"""CIFAR-10's archive: the reader takes the batches in order and ignores everything else."""

import gzip
import io
import tarfile

import numpy as np
import pytest
from writers import tar_gz

from capslib import data
from capslib.data.readers import cifar_splits


@pytest.mark.parametrize("split", ["train", "test"])
def test_batches_become_splits_in_their_order(tiny_cifar, tmp_path, split):
    tiny_cifar.put(tmp_path / "cifar10")
    found = data.load("cifar10", split, data_dir=tmp_path)
    images, labels = tiny_cifar.arrays[split]
    np.testing.assert_array_equal(found.images, images, strict=True)
    np.testing.assert_array_equal(found.labels, labels, strict=True)
    assert found.classes[3] == "cat"
    assert (
        found.fingerprint.stand_in,
        found.fingerprint.complete,
        found.fingerprint.deviations,
    ) == (False, True, ())
    assert data.verify("cifar10", tmp_path) == []


BATCH = "cifar-10-batches-bin/data_batch_2.bin"


def entry(kind, target=""):
    info = tarfile.TarInfo(BATCH)
    info.type, info.linkname = kind, target
    return info


def members(packed):
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        return [(m.name, archive.extractfile(m).read()) for m in archive]


def instead(*others):
    """An archive with ``others`` in place of the second batch."""
    return lambda good: tar_gz(
        o for m in members(good) for o in (others if m[0] == BATCH else [m])
    )


REFUSED = {
    "symbolic link": instead(entry(tarfile.SYMTYPE, "/etc/passwd")),
    "hard link": instead(entry(tarfile.LNKTYPE, "cifar-10-batches-bin/data_batch_1.bin")),
    "device": instead(entry(tarfile.CHRTYPE)),
    "folder": instead(entry(tarfile.DIRTYPE)),
    "too large": instead((BATCH, bytes(77))),
    "too small": instead((BATCH, bytes(75))),
    "missing": instead(),
    "absolute path": instead((f"/{BATCH}", bytes(76))),
    "path that leaves": instead((f"../{BATCH}", bytes(76))),
    "archive cut": lambda good: gzip.compress(gzip.decompress(good)[:2000]),
    "gzip cut": lambda good: good[:-40],
    "gzip cut early": lambda good: good[:40],
    "a page": lambda good: b"<html>",
    "packed, but no archive": lambda good: gzip.compress(b"<html>" * 200),
    "empty": lambda good: b"",
    "an empty archive": lambda good: tar_gz([]),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(tiny_cifar, refused, what):
    [(name, good)] = tiny_cifar.files.items()
    refused(tiny_cifar, {name: REFUSED[what](good)})


def test_other_members_of_an_archive_are_ignored(tiny_cifar, tmp_path):
    path = tmp_path / "more.tar.gz"
    more = [("/etc/passwd", b"root"), ("../../up", b"x"), entry(tarfile.FIFOTYPE)]
    path.write_bytes(tar_gz([*members(tiny_cifar.files["cifar-10-binary.tar.gz"]), *more]))
    for split, arrays in cifar_splits([path], tiny_cifar.spec.splits):
        np.testing.assert_array_equal(arrays["images"], tiny_cifar.arrays[split][0])
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
