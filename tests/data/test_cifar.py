"""CIFAR-10's archive: the reader takes batches in order and ignores what is none of them."""

import gzip
import io
import tarfile

import numpy as np
import pytest
from writers import tar_gz

from capslib import data
from capslib.data.readers import cifar_splits

BATCH = "cifar-10-batches-bin/data_batch_2.bin"


@pytest.mark.parametrize("split", ["train", "test"])
def test_batches_become_splits_in_their_order(tiny_cifar, tmp_path, split):
    tiny_cifar.put(tmp_path / "cifar10")
    loaded = data.load("cifar10", split, data_dir=tmp_path)
    images, labels = tiny_cifar.arrays[split]
    np.testing.assert_array_equal(loaded.images, images, strict=True)
    np.testing.assert_array_equal(loaded.labels, labels, strict=True)
    assert loaded.classes[3] == "cat"
    assert data.verify("cifar10", tmp_path) == []


def entry(kind, target=""):
    info = tarfile.TarInfo(BATCH)
    info.type, info.linkname = kind, target
    return info


def members(packed):
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


REFUSED = {
    "symbolic link": entry(tarfile.SYMTYPE, "/etc/passwd"),
    "hard link": entry(tarfile.LNKTYPE, "cifar-10-batches-bin/data_batch_1.bin"),
    "device": entry(tarfile.CHRTYPE),
    "too large": (BATCH, bytes(77)),
    "too small": (BATCH, bytes(75)),
    "absolute path": (f"/{BATCH}", bytes(76)),
    "path that leaves": (f"../{BATCH}", bytes(76)),
}
"""What may stand in the place of the second batch."""


@pytest.mark.parametrize("member", REFUSED.values(), ids=REFUSED)
def test_a_member_that_is_no_batch_is_refused(tiny_cifar, refused, member):
    [(name, content)] = tiny_cifar.files.items()
    batches = members(content)
    del batches[BATCH]
    refused(tiny_cifar, {name: tar_gz([member, *batches.items()])})


DAMAGES = {
    "archive cut": lambda content: gzip.compress(gzip.decompress(content)[:2000]),
    "gzip cut": lambda content: content[:-40],
    "a page": lambda content: b"<html>",
    "packed, but no archive": lambda content: gzip.compress(b"<html>" * 200),
    "an empty archive": lambda content: tar_gz([]),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_archive_is_refused(tiny_cifar, refused, damage):
    [(name, content)] = tiny_cifar.files.items()
    refused(tiny_cifar, {name: damage(content)})


def test_members_that_are_no_batches_are_ignored(tiny_cifar, tmp_path):
    [content] = tiny_cifar.files.values()
    strangers = [("/etc/passwd", b"root"), ("../../up", b"x"), entry(tarfile.FIFOTYPE)]
    path = tmp_path / "more.tar.gz"
    path.write_bytes(tar_gz([*members(content).items(), *strangers]))
    for split, arrays in cifar_splits([path], tiny_cifar.spec.splits):
        np.testing.assert_array_equal(arrays["images"], tiny_cifar.arrays[split][0])
    assert list(tmp_path.iterdir()) == [path]
