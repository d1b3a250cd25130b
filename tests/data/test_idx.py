"""The IDX reader returns every sound file unchanged and refuses every damaged one."""

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from writers import idx_bytes

from capslib.data.readers import read_idx
from capslib.errors import UserError

ARRAYS = hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=6))


@settings(deadline=None)
@given(array=ARRAYS, packed=st.booleans())
def test_round_trip(tmp_path_factory, array, packed):
    path = tmp_path_factory.getbasetemp() / "round-trip"
    path.write_bytes(gzip.compress(idx_bytes(array)) if packed else idx_bytes(array))
    found = read_idx(path)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, array)


@settings(deadline=None)
@given(array=ARRAYS, packed=st.booleans(), data=st.data())
def test_any_cut_is_found(tmp_path_factory, array, packed, data):
    whole = gzip.compress(idx_bytes(array)) if packed else idx_bytes(array)
    path = tmp_path_factory.getbasetemp() / "cut"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(UserError, match="cut"):
        read_idx(path)


IDX = idx_bytes(np.arange(60, dtype=np.uint8).reshape(3, 4, 5))  # 76 bytes
flipped = bytearray(gzip.compress(IDX))
flipped[-5] ^= 0xFF  # in the checksum

REFUSED = {
    "cut": (gzip.compress(IDX[:-7]), "truncated: expected 76 bytes unpacked, found 69"),
    "gzip cut": (gzip.compress(IDX)[:-20], "ended before"),
    "gzip without its checksum": (gzip.compress(IDX)[:-8], "ended before"),
    "gzip damaged": (bytes(flipped), "CRC"),
    "too long": (IDX + b"x", "too long: expected 76 bytes unpacked, found 77"),
    "gzip with a tail": (gzip.compress(IDX) + b"x", "cannot be read"),
    "a picture": (b"\x89PNG" + bytes(99), "not an IDX file of bytes: it starts with 89 50 4e 47"),
    "floats": (b"\0\0\x0d\x01" + bytes(99), "not an IDX file"),
    "a page": (b"<html>", "not an IDX file"),
    "a pickle": (b"\x80\x04\x95.........", "not an IDX file"),
    "lengths that promise more than memory": (b"\0\0\x08\x04" + b"\xff" * 16 + b"few bytes", "truncated"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(tmp_path, what):
    path = tmp_path / "some-images.gz"
    content, message = REFUSED[what]
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)


def test_wrong_shape_and_missing_file(tmp_path):
    path = tmp_path / "images"
    path.write_bytes(IDX)
    assert read_idx(path, (3, 4, 5)).shape == (3, 4, 5)
    for shape in ((3, 28, 28), (3,)):
        with pytest.raises(UserError, match=r"has shape \[3, 4, 5\], expected \[3"):
            read_idx(path, shape)
    with pytest.raises(UserError, match="cannot be read"):
        read_idx(tmp_path / "nothing")
