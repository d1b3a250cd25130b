"""smallNORB: its matrix format, its halved images, factors and viewpoints."""

import gzip
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from writers import norb_bytes

from capslib import data
from capslib.data.readers import halve, norb_splits
from capslib.errors import UserError
from capslib.papers.em_routing.recipe import familiar

# ---------------------------------------------------------------------------------- the images


SIDES = st.integers(1, 4)


@given(hnp.arrays(np.uint8, st.tuples(SIDES, st.just(2), SIDES, SIDES)))
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
    factors = np.zeros((5_000, 4), np.int32)
    paths = [tmp_path / "dat", tmp_path / "cat", tmp_path / "info"]
    for path, array in zip(paths, (images, factors[:, 0], factors), strict=True):
        path.write_bytes(gzip.compress(norb_bytes(array)))
    tracemalloc.start()
    [(_, arrays)] = norb_splits(paths, {"train": (5_000, 2, 8, 8)})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(a.nbytes for a in arrays.values()) < peak < images.nbytes


# ------------------------------------------------------------------------------------- the set


@pytest.mark.parametrize("split", ["train", "test"])
def test_publishers_files_become_pairs_with_their_factors(tiny_norb, tmp_path, split):
    tiny_norb.put(tmp_path / "smallnorb")
    loaded = data.load("smallnorb", split, data_dir=tmp_path)
    images, labels, info = tiny_norb.arrays[split]
    np.testing.assert_array_equal(loaded.images, halve(images))
    np.testing.assert_array_equal(loaded.labels, labels)
    factors = ("instance", "elevation", "azimuth", "lighting")
    for name, column in zip(factors, info.T, strict=True):
        np.testing.assert_array_equal(loaded[name], column.astype(np.int64), strict=True)
    assert set(loaded.arrays) == {"images", "labels", *factors}
    assert loaded.fingerprint.complete
    assert "averaged" in loaded.fingerprint.deviations[0]
    assert data.verify("smallnorb", tmp_path) == []
    # It is complete, in spite of its deviation.
    assert data.fetch("smallnorb", tmp_path) == tmp_path / "smallnorb"


SHAPE = norb_bytes(np.arange(120, dtype=np.uint8).reshape(3, 2, 4, 5))
FACTORS = norb_bytes(np.zeros((7, 4), np.int32))
REFUSED = {
    "images of another shape": ("dat", gzip.compress(SHAPE)),
    "half a header": ("dat", gzip.compress(SHAPE[:10])),
    "images whose gzip is cut": ("dat", gzip.compress(SHAPE)[:-20]),
    "images that are not packed": ("dat", SHAPE),
    "factors that are cut": ("info", gzip.compress(FACTORS[:-7])),
    "factors that are too long": ("info", gzip.compress(FACTORS + b"four")),
    "labels of bytes": ("cat", gzip.compress(norb_bytes(np.zeros(7, np.uint8)))),
}


@pytest.mark.parametrize(("kind", "content"), REFUSED.values(), ids=REFUSED)
def test_refused(tiny_norb, refused, kind, content):
    [name] = [name for name in tiny_norb.files if f"testing-{kind}" in name]
    refused(tiny_norb, {name: content})


# ------------------------------------------------------------------------------ the viewpoints


def test_familiar_viewpoints():
    azimuth, elevation = (a.ravel() for a in np.meshgrid(np.arange(0, 36, 2), np.arange(9)))
    arrays = {"azimuth": azimuth, "elevation": elevation}
    split = data.DataSplit("toys", "train", arrays, (), data.load("toys", "train").fingerprint)
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
