"""MNIST's format: a file of another form is an error, whatever breaks."""

import gzip

import numpy as np
import pytest
from writers import idx_bytes

IMAGES = idx_bytes(np.arange(400, dtype=np.uint8).reshape(20, 4, 5))
PACKED = gzip.compress(IMAGES)

REFUSED = {
    "cut": gzip.compress(IMAGES[:-7]),
    "too long": gzip.compress(IMAGES + b"x"),
    "gzip cut": PACKED[:-20],
    "gzip without its checksum": PACKED[:-8],
    "gzip with another checksum": PACKED[:-5] + bytes([PACKED[-5] ^ 0xFF]) + PACKED[-4:],
    "gzip with a tail": PACKED + b"x",
    "not packed": IMAGES,
    "empty": b"",
    "another shape": gzip.compress(idx_bytes(np.zeros((20, 5, 5), np.uint8))),
}


@pytest.mark.parametrize("content", REFUSED.values(), ids=REFUSED)
def test_refused(tiny, refused, content):
    refused(tiny, {"train-images-idx3-ubyte.gz": content})


def test_labels_of_another_length_are_refused(tiny, refused):
    refused(tiny, {"t10k-labels-idx1-ubyte.gz": PACKED})
