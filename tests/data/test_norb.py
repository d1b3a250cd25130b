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

# ---------------------------------------------------------------------------------------------------------- the images


@given(
    hnp.arrays(
        np.uint8, st.tuples(st.integers(1, 3), st.just(2), st.integers(1, 4), st.integers(1, 4))
    )
)
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
    for kind, array in (
        ("dat", images),
        ("cat", np.zeros(5_000, np.int32)),
        ("info", np.zeros((5_000, 4), np.int32)),
    ):
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
    np.testing.assert_array_equal(
        found.images, np.floor(images.reshape(-1, 2, 4, 2, 3, 2).mean(axis=(3, 5)) + 0.5)
    )
    np.testing.assert_array_equal(found.labels, labels)
    for name, column in zip(
        ("instance", "elevation", "azimuth", "lighting"), info.T, strict=True
    ):
        np.testing.assert_array_equal(found[name], column.astype(np.int64), strict=True)
    assert set(found.arrays) == {
        "images",
        "labels",
        "instance",
        "elevation",
        "azimuth",
        "lighting",
    }
    assert found.fingerprint.complete
    [deviation] = found.fingerprint.deviations
    assert "averaged" in deviation
    assert data.verify("smallnorb", tmp_path) == []
    assert (
        data.fetch("smallnorb", tmp_path) == tmp_path / "smallnorb"
    )  # complete, in spite of its deviation


OTHER = norb_bytes(np.arange(120, dtype=np.uint8).reshape(3, 2, 4, 5))
REFUSED = {
    "another shape": gzip.compress(OTHER),
    "header only": gzip.compress(OTHER[:24]),
    "half a header": gzip.compress(OTHER[:10]),
    "gzip cut": gzip.compress(OTHER)[:-20],
    "not packed": OTHER,
    "empty": b"",
    "a page": b"<html>",
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("kind", ["dat", "cat", "info"])
def test_refused(tiny_norb, refused, kind, what):
    refused(
        tiny_norb,
        {name: REFUSED[what] for name in tiny_norb.files if f"testing-{kind}" in name},
    )


@pytest.mark.parametrize("what", ["cut", "too long", "of bytes"])
@pytest.mark.parametrize("kind", ["cat", "info"])
def test_labels_and_factors_of_another_size_are_refused(tiny_norb, refused, kind, what):
    [name] = [name for name in tiny_norb.files if f"training-{kind}" in name]
    whole = gzip.decompress(tiny_norb.files[name])
    other = {
        "cut": whole[:-7],
        "too long": whole + b"four",
        "of bytes": norb_bytes(np.zeros(1010, np.uint8)),
    }
    refused(tiny_norb, {name: gzip.compress(other[what])})


# ------------------------------------------------------------------------------------------------------- the viewpoints


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
