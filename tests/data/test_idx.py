"""The IDX reader: everything sound comes back as it was, and nothing unsound comes back at all."""

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from idx_writer import TYPES, idx_bytes

from capslib.data.readers import read_idx
from capslib.errors import UserError

ARRAYS = st.sampled_from(sorted(TYPES)).flatmap(
    lambda kind: hnp.arrays(np.dtype(kind), hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=6))
)


@settings(deadline=None)
@given(array=ARRAYS, packed=st.booleans())
def test_round_trip(tmp_path_factory, array, packed):
    path = tmp_path_factory.getbasetemp() / "round-trip"
    path.write_bytes(gzip.compress(idx_bytes(array)) if packed else idx_bytes(array))
    found = read_idx(path)
    assert found.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(found, array)


@settings(deadline=None)
@given(array=ARRAYS, packed=st.booleans(), data=st.data())
def test_any_cut_is_found(tmp_path_factory, array, packed, data):
    whole = gzip.compress(idx_bytes(array)) if packed else idx_bytes(array)
    path = tmp_path_factory.getbasetemp() / "cut"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(UserError, match="cut"):
        read_idx(path)


IMAGES = np.arange(60, dtype=np.uint8).reshape(3, 4, 5)  # 76 bytes as IDX


def refused(tmp_path, content, **wanted):
    path = tmp_path / "some-images.gz"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_idx(path, **wanted)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_truncated_payload_says_how_many_bytes(tmp_path):
    message = refused(tmp_path, gzip.compress(idx_bytes(IMAGES)[:-7]))
    assert "truncated: expected 76 bytes unpacked, found 69" in message


def test_truncated_gzip_says_how_many_bytes(tmp_path):
    rng = np.random.default_rng(0)
    whole = gzip.compress(idx_bytes(rng.integers(0, 256, (100, 28, 28), dtype=np.uint8)))
    message = refused(tmp_path, whole[: len(whole) // 2])
    assert "expected 78,416 bytes unpacked, found" in message
    assert "the gzip stream is cut" in message


def test_gzip_that_lost_only_its_checksum_is_refused(tmp_path):
    assert "the gzip stream is cut" in refused(tmp_path, gzip.compress(idx_bytes(IMAGES))[:-8])


def test_corrupted_gzip(tmp_path):
    content = bytearray(gzip.compress(idx_bytes(IMAGES)))
    content[-5] ^= 0xFF  # in the checksum
    assert "not a sound gzip file" in refused(tmp_path, bytes(content))


@pytest.mark.parametrize("tail", [b"x", b"\0" * 100])
def test_too_long(tmp_path, tail):
    assert f"too long: expected 76 bytes unpacked, found {76 + len(tail)}" in refused(tmp_path, idx_bytes(IMAGES) + tail)
    assert f"{len(tail)} bytes follow the gzip stream" in refused(tmp_path, gzip.compress(idx_bytes(IMAGES)) + tail)


@pytest.mark.parametrize("head", [b"\x89PNG", b"\0\0\x07\x01", b"\0\0\x08\0", b"<htm"])
def test_wrong_magic(tmp_path, head):
    message = refused(tmp_path, head + bytes(100))
    assert "not an IDX file" in message
    assert head.hex(" ") in message


def test_pickle_is_not_an_idx_file(tmp_path):
    assert "not an IDX file" in refused(tmp_path, b"\x80\x04\x95.........")


def test_dimensions_that_promise_more_than_memory(tmp_path):
    assert "truncated" in refused(tmp_path, b"\0\0\x0e\x04" + b"\xff" * 16 + b"few bytes")


def test_gzip_bomb(tmp_path, monkeypatch):
    monkeypatch.setattr("capslib.data.readers.LIMIT", 1000)
    assert "more than 1,000 bytes" in refused(tmp_path, gzip.compress(bytes(100_000)))


def test_wrong_type_and_shape(tmp_path):
    assert "has shape [3, 4, 5], expected [3, 28, 28]" in refused(tmp_path, idx_bytes(IMAGES), shape=(3, 28, 28))
    assert "has shape [3, 4, 5], expected [any]" in refused(tmp_path, idx_bytes(IMAGES), shape=(None,))
    assert "holds uint8 values, expected float32" in refused(tmp_path, idx_bytes(IMAGES), dtype="float32")


def test_missing_file(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read_idx(tmp_path / "nothing")
