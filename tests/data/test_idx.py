"""MNIST's format: a file of another form is an error, whatever breaks."""

import gzip

import numpy as np
import pytest
from writers import idx_bytes

IMAGES = idx_bytes(np.arange(400, dtype=np.uint8).reshape(20, 4, 5))
flipped = bytearray(gzip.compress(IMAGES))
flipped[-5] ^= 0xFF  # in the checksum

REFUSED = {
    "cut": gzip.compress(IMAGES[:-7]),
    "gzip cut": gzip.compress(IMAGES)[:-20],
    "gzip without its checksum": gzip.compress(IMAGES)[:-8],
    "gzip damaged": bytes(flipped),
    "too long": gzip.compress(IMAGES + b"x"),
    "gzip with a tail": gzip.compress(IMAGES) + b"x",
    "not packed": IMAGES,
    "empty": b"",
    "a page": b"<html>",
    "another shape": gzip.compress(idx_bytes(np.zeros((20, 5, 5), np.uint8))),
    "another rank": gzip.compress(idx_bytes(np.zeros(20, np.uint8))),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("name", ["train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"])
def test_refused(tiny, refused, name, what):
    refused(tiny, {name: REFUSED[what]})
