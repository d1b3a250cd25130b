"""What publishers publish: each format becomes arrays, and another form is an error."""

import dataclasses
import gzip
import tarfile

import numpy as np
import pytest
from test_fetch import Mirror
from writers import (
    NAMES,
    TINY,
    affnist_mat,
    cifar_batches,
    diagnosis_table,
    idx_bytes,
    norb_bytes,
    picture,
    picture_archive,
    tar_gz,
)

from capslib import data
from capslib.data.readers import BLOCK, halve, shrink


@pytest.mark.parametrize(
    ("name", "options"), [*((name, {}) for name in TINY), ("affnist", {"by_digit": True})]
)
def test_publishers_files_become_arrays(publish, tmp_path, name, options):
    tiny = publish(name, **options)
    tiny.put(tmp_path / name)
    for split, arrays in tiny.arrays.items():
        loaded = data.load(name, split, data_dir=tmp_path)
        assert set(loaded.arrays) == set(arrays)
        for key, array in arrays.items():
            np.testing.assert_array_equal(loaded[key], array, strict=True)
        assert loaded.fingerprint.complete
        assert bool(loaded.fingerprint.deviations) == (name == "smallnorb")
    assert data.verify(name, tmp_path) == []
    assert data.fetch(name, tmp_path) == tmp_path / name  # complete, in spite of deviations


IDX = idx_bytes(np.arange(400, dtype=np.uint8).reshape(20, 4, 5))
PACKED = gzip.compress(IDX)
NORB = "smallnorb-5x01235x9x18x6x2x96x96-testing-{}.mat.gz"
FACTORS = norb_bytes(np.zeros((7, 4), np.int32))
BATCH = "cifar-10-batches-bin/data_batch_2.bin"
BLACK = np.zeros((160, 40, 40), np.uint8)
DIGITS = np.tile([3, 1, 4, 1, 5], 32)


def images(content):
    return "mnist", {"train-images-idx3-ubyte.gz": content}


def norb(kind, content):
    return "smallnorb", {NORB.format(kind): content}


def batch(member):
    """Return CIFAR-10 with this in the place of its second batch."""
    *_, batches = cifar_batches()
    del batches[BATCH]
    return "cifar10", {"cifar-10-binary.tar.gz": tar_gz([member, *batches.items()])}


def link(kind):
    member = tarfile.TarInfo(BATCH)
    member.type, member.linkname = kind, "cifar-10-batches-bin/data_batch_1.bin"
    return batch(member)


def lesions(part, content):
    return "ham10000", {f"HAM10000_{part}": content}


def first_picture(**options):
    """Return HAM10000 with such a picture in the place of the first one."""
    content = picture_archive(NAMES[:3], **{NAMES[0]: picture(0, **options)})
    return lesions("images_part_1.zip", content)


def affnist(content):
    return "affnist", {"test.mat": content}


REFUSED = {
    "images cut": (images(gzip.compress(IDX[:-7])), ""),
    "gzip with another checksum": (images(PACKED[:-5] + b"\0" + PACKED[-4:]), ""),
    "fewer pairs": (norb("dat", gzip.compress(norb_bytes(BLACK[:6, :2, :48]))), ""),
    "factors cut": (norb("info", gzip.compress(FACTORS[:-7])), ""),
    "symbolic link": (link(tarfile.SYMTYPE), ""),
    "batch too large": (batch((BATCH, bytes(77))), ""),
    "batch elsewhere": (batch((f"../{BATCH}", bytes(76))), ""),
    "a picture too few": (
        lesions("images_part_2.zip", picture_archive(NAMES[4:])),
        f"KeyError: '{NAMES[3]}'",
    ),
    "a shorter table": (lesions("metadata.csv", diagnosis_table(NAMES[1:])), "ValueError"),
    "no matrix": (affnist(b"no matrix"), "truncated"),
    "another size": (
        affnist(affnist_mat(BLACK[:, :30, :30], DIGITS)),
        "are uint8 [900, 160] for 160 labels, expected uint8 [1600, 160]",
    ),
    "another order": (
        affnist(affnist_mat(BLACK, np.roll(np.sort(DIGITS), 1))),
        "neither variant by variant nor digit by digit",
    ),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED)
def test_another_form_is_refused(refused, changes, message):
    assert message in refused(*changes)


def test_halve_rounds_half_up():
    pixels = np.random.default_rng(0).integers(0, 256, (3, 2, 4, 6), dtype=np.uint8)
    means = pixels.reshape(3, 2, 2, 2, 3, 2).mean(axis=(3, 5))
    np.testing.assert_array_equal(halve(pixels), np.floor(means + 0.5))
    pixels = np.array([[0, 0, 255, 255, 0, 1, 1, 1], [0, 1, 255, 254, 1, 0, 0, 0]], np.uint8)
    assert halve(pixels).tolist() == [[0, 255, 1, 1]]  # means ¼, 254¾, ½, ½


def test_a_picture_is_shrunk_as_the_released_code_does_it():
    """By what scikit-image's ``resize`` calls, which samples the middle of each block."""
    from scipy.ndimage import gaussian_filter, zoom

    shape = (8 * BLOCK, 9 * BLOCK, 3)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    blurred = gaussian_filter(pixels.astype(float), (2.5, 2.5, 0), mode="mirror")
    expected = zoom(blurred, (1 / BLOCK, 1 / BLOCK, 1), order=1, mode="mirror", grid_mode=True)
    assert np.abs(shrink(pixels) - expected).max() < 0.501


def test_a_file_is_fetched_from_its_own_address(publish, tmp_path, monkeypatch):
    tiny = publish("ham10000")
    paths = tiny.spec.paths
    mirror = Mirror({paths[name]: content for name, content in tiny.files.items()})
    spec = dataclasses.replace(tiny.spec, mirrors=(mirror.address,))
    monkeypatch.setitem(data.SETS, "ham10000", spec)
    try:
        data.fetch("ham10000", tmp_path)
    finally:
        mirror.close()
    assert mirror.requests == ["4338392?format=original", "3172585", "3172584"]
    assert data.verify("ham10000", tmp_path) == []
