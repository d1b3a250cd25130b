"""CIFAR-10's archive: the reader takes the batches in order and ignores everything else."""

import gzip
import io
import tarfile

import numpy as np
import pytest
from writers import tar_gz

from capslib import data
from capslib.data.readers import cifar_splits
from capslib.errors import UserError


@pytest.mark.parametrize("split", ["train", "test"])
def test_batches_become_splits_in_their_order(tiny_cifar, tmp_path, split):
    tiny_cifar.put(tmp_path / "cifar10")
    found = data.load("cifar10", split, data_dir=tmp_path)
    images, labels = tiny_cifar.arrays[split]
    np.testing.assert_array_equal(found.images, images, strict=True)
    np.testing.assert_array_equal(found.labels, labels, strict=True)
    assert found.classes[3] == "cat"
    assert found.fingerprint[2:] == (False, True, ())
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
    return lambda good: tar_gz(o for m in members(good) for o in (others if m[0] == BATCH else [m]))


REFUSED = {
    "symbolic link": (instead(entry(tarfile.SYMTYPE, "/etc/passwd")), f"{BATCH} is not a plain file of 76 bytes"),
    "hard link": (instead(entry(tarfile.LNKTYPE, "cifar-10-batches-bin/data_batch_1.bin")), f"{BATCH} is not a plain file"),
    "device": (instead(entry(tarfile.CHRTYPE)), f"{BATCH} is not a plain file"),
    "folder": (instead(entry(tarfile.DIRTYPE)), f"{BATCH} is not a plain file"),
    "too large": (instead((BATCH, bytes(77))), f"{BATCH} is not a plain file of 76 bytes"),
    "too small": (instead((BATCH, bytes(75))), f"{BATCH} is not a plain file of 76 bytes"),
    "missing": (instead(), f"has no {BATCH}"),
    "absolute path": (instead((f"/{BATCH}", bytes(76))), f"has no {BATCH}"),
    "path that leaves": (instead((f"../{BATCH}", bytes(76))), f"has no {BATCH}"),
    "archive cut": (lambda good: gzip.compress(gzip.decompress(good)[:2000]), "cannot be read: unexpected end of data|has no"),
    "gzip cut": (lambda good: good[:-20], "cannot be read"),
    "gzip cut early": (lambda good: good[:40], "cannot be read"),
    "gzip without its checksum": (lambda good: good[:-8], "cannot be read.*ended before"),
    "a page": (lambda good: b"<html>", "cannot be read"),
    "packed, but no archive": (lambda good: gzip.compress(b"<html>" * 200), "cannot be read"),
    "empty": (lambda good: b"", "cannot be read"),
    "an empty archive": (lambda good: tar_gz([]), "has no"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(tiny_cifar, tmp_path, what):
    spoil, message = REFUSED[what]
    path = tmp_path / "cifar-10-binary.tar.gz"
    path.write_bytes(spoil(tiny_cifar.files[path.name]))
    with pytest.raises(UserError, match=message) as caught:
        list(cifar_splits([path], tiny_cifar.spec.splits))
    assert str(path) in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]  # nothing was extracted


def test_other_members_of_an_archive_are_ignored(tiny_cifar, tmp_path):
    more = [
        ("/etc/passwd", b"root"),
        ("../../up", b"x"),
        entry(tarfile.FIFOTYPE),
        (BATCH, bytes(76)),
    ]  # of two members with one name, the first counts
    path = tmp_path / "more.tar.gz"
    path.write_bytes(tar_gz([*members(tiny_cifar.files["cifar-10-binary.tar.gz"]), *more]))
    for split, arrays in cifar_splits([path], tiny_cifar.spec.splits):
        np.testing.assert_array_equal(arrays["images"], tiny_cifar.arrays[split][0])
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
