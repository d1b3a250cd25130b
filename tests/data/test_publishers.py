"""What publishers publish: each format becomes arrays, and another form is an error."""

import dataclasses
import gzip
import tarfile
import tracemalloc

import numpy as np
import pytest
from mirror import Mirror
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
from capslib.data.readers import BLOCK, halve, norb_splits, shrink


def assert_read(tiny, name, folder):
    """Check that a set is read as it was made, and is complete in spite of deviations."""
    tiny.put(folder / name)
    for split, arrays in tiny.arrays.items():
        loaded = data.load(name, split, data_dir=folder)
        assert set(loaded.arrays) == set(arrays)
        for key, array in arrays.items():
            np.testing.assert_array_equal(loaded[key], array, strict=True)
        assert loaded.fingerprint.complete
        assert bool(loaded.fingerprint.deviations) == (name == "smallnorb")
    assert data.verify(name, folder) == []
    assert data.fetch(name, folder) == folder / name


@pytest.mark.parametrize("name", TINY)
def test_publishers_files_become_arrays(publish, tmp_path, name):
    assert_read(publish(name), name, tmp_path)


def test_affnist_may_be_sorted_digit_by_digit(publish, tmp_path):
    assert_read(publish("affnist", by_digit=True), "affnist", tmp_path)


# --------------------------------------------------------------------------- another form


def test_idx_files_of_another_form_are_refused(refused):
    content = idx_bytes(np.arange(400, dtype=np.uint8).reshape(20, 4, 5))
    packed = gzip.compress(content)
    cut = gzip.compress(content[:-7])
    too_long = gzip.compress(content + b"x")
    another_checksum = packed[:-5] + b"\0" + packed[-4:]
    for file in (cut, too_long, packed[:-8], another_checksum, content):
        refused("mnist", {"train-images-idx3-ubyte.gz": file})


def test_matrices_of_another_form_are_refused(refused):
    fewer_pairs = norb_bytes(np.zeros((6, 2, 8, 6), np.uint8))
    factors = norb_bytes(np.zeros((7, 4), np.int32))
    labels_of_bytes = norb_bytes(np.zeros(7, np.uint8))
    matrices = {
        "dat": [fewer_pairs, fewer_pairs[:10]],
        "info": [factors[:-7], factors + b"four"],
        "cat": [labels_of_bytes],
    }
    for kind, contents in matrices.items():
        name = f"smallnorb-5x01235x9x18x6x2x96x96-testing-{kind}.mat.gz"
        for content in contents:
            refused("smallnorb", {name: gzip.compress(content)})


ARCHIVE = "cifar-10-binary.tar.gz"
BATCH = "cifar-10-batches-bin/data_batch_2.bin"


def archive_with(member):
    """Return CIFAR-10 with this in the place of its second batch."""
    *_, batches = cifar_batches()
    del batches[BATCH]
    return {ARCHIVE: tar_gz([member, *batches.items()])}


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_a_link_in_an_archive_is_refused(refused, kind):
    member = tarfile.TarInfo(BATCH)
    member.type = kind
    member.linkname = "cifar-10-batches-bin/data_batch_1.bin"
    refused("cifar10", archive_with(member))


def test_a_batch_that_is_too_large_or_elsewhere_is_refused(refused):
    refused("cifar10", archive_with((BATCH, bytes(77))))
    refused("cifar10", archive_with((f"../{BATCH}", bytes(76))))


def test_what_is_no_archive_is_refused(refused):
    refused("cifar10", {ARCHIVE: b"<html>"})
    refused("cifar10", {ARCHIVE: gzip.compress(b"x" * 999)})


def test_pictures_without_an_archive_or_a_table_are_refused(refused):
    def message(part, content):
        return refused("ham10000", {f"HAM10000_{part}": content})

    lacking = picture_archive(NAMES[4:])
    assert f"KeyError: '{NAMES[3]}'" in message("images_part_2.zip", lacking)
    assert "not a zip file" in message("images_part_1.zip", b"<html>")
    assert "ValueError" in message("metadata.csv", diagnosis_table(NAMES[1:]))
    assert "KeyError: 'image_id'" in message("metadata.csv", b"a,b\n1,2\n")


def test_a_picture_of_another_form_is_refused(refused):
    def message(**options):
        first = {NAMES[0]: picture(0, **options)}
        archive = picture_archive(NAMES[:3], **first)
        return refused("ham10000", {"HAM10000_images_part_1.zip": archive})

    assert "ValueError" in message(width=18)
    assert "RuntimeError" in message(mode="L")
    assert "cannot identify image" in message(form="PNG")


def test_affnist_of_another_form_is_refused(refused):
    images = np.zeros((160, 40, 40), np.uint8)
    labels = np.tile([3, 1, 4, 1, 5], 32)

    def message(images, labels):
        return refused("affnist", {"test.mat": affnist_mat(images, labels)})

    smaller = message(images[:, :30, :30], labels)
    assert "uint8 [900, 160] for 160 labels, expected uint8 [1600, 160]" in smaller
    assert "[1600, 160] for 155 labels" in message(images, labels[:155])
    assert "are float64 [1600, 160]" in message(images / 255, labels)
    shuffled = np.roll(np.sort(labels), 1)
    assert "neither variant by variant nor digit by digit" in message(images, shuffled)
    assert "truncated" in refused("affnist", {"test.mat": b"no matrix"})


# -------------------------------------------------------------------------- smaller images


def test_halve_rounds_half_up():
    pixels = np.random.default_rng(0).integers(0, 256, (3, 2, 4, 6), dtype=np.uint8)
    means = pixels.reshape(3, 2, 2, 2, 3, 2).mean(axis=(3, 5))
    np.testing.assert_array_equal(halve(pixels), np.floor(means + 0.5))


def test_a_split_is_never_held_at_full_size(tmp_path):
    pairs = np.zeros((5_000, 2, 16, 16), np.uint8)
    factors = np.zeros((5_000, 4), np.int32)
    paths = []
    for kind, array in {"dat": pairs, "cat": factors[:, 0], "info": factors}.items():
        paths.append(tmp_path / kind)
        paths[-1].write_bytes(gzip.compress(norb_bytes(array)))
    tracemalloc.start()
    [(_, arrays)] = norb_splits(paths, {"train": (5_000, 2, 8, 8)})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(array.nbytes for array in arrays.values()) < peak < pairs.nbytes


def test_a_picture_is_shrunk_as_the_released_code_does_it():
    """By what scikit-image's ``resize`` calls, which samples the middle of each block."""
    from scipy.ndimage import gaussian_filter, zoom

    shape = (8 * BLOCK, 9 * BLOCK, 3)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    blurred = gaussian_filter(pixels.astype(float), (2.5, 2.5, 0), mode="mirror")
    factors = 1 / BLOCK, 1 / BLOCK, 1
    expected = zoom(blurred, factors, order=1, mode="mirror", grid_mode=True)
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
