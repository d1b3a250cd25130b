"""smallNORB: its matrix format, read with the same distrust as IDX, its halved images, factors and viewpoints."""

import gzip
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from writers import norb_bytes

from capslib import data
from capslib.data.readers import halve, norb_splits, read_matrix
from capslib.data.viewpoints import familiar
from capslib.errors import UserError

SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=6)
ARRAYS = st.one_of(hnp.arrays(np.uint8, SHAPES), hnp.arrays(np.int32, SHAPES))


def matrix(path, array, **options):
    return np.concatenate(list(read_matrix(path, array.dtype.name, array.shape, **options)))


# ---------------------------------------------------------------------------------------------------------- the format


@given(array=ARRAYS, packed=st.booleans(), rows=st.none() | st.integers(1, 7))
def test_round_trip(tmp_path_factory, array, packed, rows):
    path = tmp_path_factory.getbasetemp() / "matrix"
    path.write_bytes(gzip.compress(norb_bytes(array)) if packed else norb_bytes(array))
    slabs = list(read_matrix(path, array.dtype.name, array.shape, rows))
    assert [len(s) for s in slabs[:-1]] == [rows] * (len(slabs) - 1)
    np.testing.assert_array_equal(np.concatenate(slabs), array, strict=True)


@given(array=ARRAYS, packed=st.booleans(), rows=st.none() | st.integers(1, 7), data=st.data())
def test_any_cut_is_found(tmp_path_factory, array, packed, rows, data):
    whole = gzip.compress(norb_bytes(array)) if packed else norb_bytes(array)
    path = tmp_path_factory.getbasetemp() / "cut"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(UserError, match="cut"):
        matrix(path, array, rows=rows)


BYTES = np.arange(120, dtype=np.uint8).reshape(3, 2, 4, 5)
NORB = norb_bytes(BYTES)  # 24 bytes, then 120
flipped = bytearray(gzip.compress(NORB))
flipped[-5] ^= 0xFF  # in the checksum

REFUSED = {
    "cut": (NORB[:-7], "truncated: expected 144 bytes unpacked, found 137"),
    "cut and packed": (gzip.compress(NORB[:-7]), "truncated: expected 144 bytes unpacked, found 137"),
    "header only": (NORB[:24], "truncated: expected 144 bytes unpacked, found 24"),
    "half a header": (NORB[:10], "truncated: expected 144 bytes unpacked, found 10"),
    "too long": (NORB + b"x", "too long: expected 144 bytes unpacked, found more"),
    "gzip cut": (gzip.compress(NORB)[:-20], "ended before"),
    "gzip without its checksum": (gzip.compress(NORB)[:-8], "ended before"),
    "gzip damaged": (bytes(flipped), "CRC"),
    "gzip with a tail": (gzip.compress(NORB) + b"x", "cannot be read"),
    "empty": (b"", "not a matrix of uint8"),
    "a page": (b"<html>", "starts with 3c 68 74 6d, not with 55 4c 3d 1e"),
    "a pickle": (b"\x80\x04\x95.........", "not a matrix of uint8"),
    "integers": (norb_bytes(BYTES.astype(np.int32)), "not a matrix of uint8: it starts with 54 4c 3d 1e"),
    "big-endian": (NORB[:4][::-1] + NORB[4:], "not a matrix of uint8"),
    "another shape": (norb_bytes(BYTES.reshape(3, 2, 5, 4)), r"lengths \[3, 2, 5, 4\], expected shape \[3, 2, 4, 5\]"),
    "another rank": (norb_bytes(BYTES.reshape(3, 2, 20)), r"rank 3 and lengths .*, expected shape \[3, 2, 4, 5\]"),
    "a rank that promises more than memory": (NORB[:4] + b"\xff\xff\xff\x7f" + NORB[8:], "rank 2147483647"),
    "a rank below zero": (NORB[:4] + b"\xff\xff\xff\xff" + NORB[8:], "rank -1"),
    "lengths that promise more than memory": (NORB[:8] + b"\xff\xff\xff\x7f" * 4, r"lengths \[2147483647"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(tmp_path, what):
    path = tmp_path / "some-dat.mat.gz"
    content, message = REFUSED[what]
    path.write_bytes(content)
    for rows in (None, 2):
        with pytest.raises(UserError, match=message) as caught:
            matrix(path, BYTES, rows=rows)
        assert str(path) in str(caught.value)


def test_missing_file(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        matrix(tmp_path / "nothing", BYTES)


# ---------------------------------------------------------------------------------------------------------- the images


@given(hnp.arrays(np.uint8, st.tuples(st.integers(1, 3), st.just(2), st.integers(1, 4), st.integers(1, 4))))
def test_halve_rounds_half_up(quarters):
    wide = np.repeat(np.repeat(quarters, 2, axis=-2), 2, axis=-1)
    np.testing.assert_array_equal(halve(wide), quarters, strict=True)
    wide[..., ::2, ::2] ^= 0xFF  # any four pixels
    means = wide.reshape(*quarters.shape[:3], 2, quarters.shape[3], 2).mean(axis=(3, 5))
    np.testing.assert_array_equal(halve(wide), np.floor(means + 0.5))


def test_halve_at_the_ends_of_the_range():
    pixels = np.array([[0, 0, 255, 255, 0, 1, 1, 1], [0, 1, 255, 254, 1, 0, 0, 0]], np.uint8)
    assert halve(pixels).tolist() == [[0, 255, 1, 1]]  # means ¼, 254¾, ½, ½


def test_a_split_is_never_held_at_full_size(tmp_path):
    images = np.zeros((5_000, 2, 16, 16), np.uint8)
    paths = []
    for kind, array in (("dat", images), ("cat", np.zeros(5_000, np.int32)), ("info", np.zeros((5_000, 4), np.int32))):
        paths.append(tmp_path / kind)
        paths[-1].write_bytes(gzip.compress(norb_bytes(array)))
    tracemalloc.start()
    [(_, arrays)] = norb_splits(paths, {"train": (5_000, 2, 8, 8)})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(a.nbytes for a in arrays.values()) < peak < images.nbytes


# ------------------------------------------------------------------------------------------------------------- the set


@pytest.mark.parametrize("split", ["train", "test"])
def test_publishers_files_become_pairs_with_their_factors(tiny_norb, tmp_path, split):
    tiny_norb.put(tmp_path / "smallnorb")
    found = data.load("smallnorb", split, data_dir=tmp_path)
    images, labels, info = tiny_norb.arrays[split]
    np.testing.assert_array_equal(found.images, np.floor(images.reshape(-1, 2, 4, 2, 3, 2).mean(axis=(3, 5)) + 0.5))
    np.testing.assert_array_equal(found.labels, labels)
    for name, column in zip(("instance", "elevation", "azimuth", "lighting"), info.T, strict=True):
        np.testing.assert_array_equal(found[name], column.astype(np.int64), strict=True)
    assert set(found.arrays) == {"images", "labels", "instance", "elevation", "azimuth", "lighting"}
    assert found.fingerprint.complete
    [deviation] = found.fingerprint.deviations
    assert "averaged" in deviation
    assert data.verify("smallnorb", tmp_path) == []
    assert data.fetch("smallnorb", tmp_path) == tmp_path / "smallnorb"  # complete, in spite of its deviation


@pytest.mark.parametrize("kind", ["dat", "cat", "info"])
def test_right_hash_and_wrong_shape(tiny_norb, publish, tmp_path, kind):
    files = {name: gzip.compress(norb_bytes(BYTES)) if f"-{kind}" in name else good for name, good in tiny_norb.files.items()}
    publish("smallnorb", tiny_norb.spec.splits, {}, files).put(tmp_path / "smallnorb")
    with pytest.raises(UserError, match=rf"training-{kind}.mat.gz (has rank 4|is not a matrix of int32)"):
        data.load("smallnorb", "train", data_dir=tmp_path)
    assert {p.name for p in (tmp_path / "smallnorb").iterdir()} == set(files)  # nothing half-written


# ------------------------------------------------------------------------------------------------------- the viewpoints


def test_familiar_viewpoints():
    azimuth, elevation = (a.ravel() for a in np.meshgrid(np.arange(0, 36, 2), np.arange(9)))
    arrays = {"azimuth": azimuth, "elevation": elevation}
    split = data.DataSplit("toys", "train", arrays, (), data.Fingerprint("toys", "0" * 64, True, True, ()))
    mask = familiar(split, "azimuth")
    assert (mask.dtype, mask.shape) == (bool, (162,))
    assert set(azimuth[mask] * 10) == {300, 320, 340, 0, 20, 40}
    assert set(azimuth[~mask] * 10) == set(range(60, 300, 20))
    mask = familiar(split, "elevation")
    assert set(elevation[mask]) == {0, 1, 2}
    assert set(elevation[~mask]) == {3, 4, 5, 6, 7, 8}
    with pytest.raises(UserError, match=r"Did you mean 'azimuth'\?"):
        familiar(split, "azimut")
    del arrays["elevation"]
    with pytest.raises(UserError, match="array of toys/train 'elevation'"):
        familiar(split, "elevation")
