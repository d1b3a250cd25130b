"""The real sets, where they are: their known counts, their known hashes."""

import os
from pathlib import Path

import numpy as np
import pytest

from capslib import data

pytestmark = pytest.mark.real_data

# Labels of the complete sets, class by class.
MNIST = {
    "train": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    "test": [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
}


@pytest.fixture(scope="module")
def root():
    if not (given := os.environ.get("CAPSLIB_DATA")):
        pytest.skip("real data: $CAPSLIB_DATA is not set")
    return Path(given)


def load(root, name, split):
    if name not in data.present(root):
        pytest.skip(f"real data: {name} is not in $CAPSLIB_DATA")
    return data.load(name, split, data_dir=root)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_complete_sets(root, name, split):
    found = load(root, name, split)
    n = {"train": 60_000, "test": 10_000}[split]
    assert found.images.shape == (n, 1, 28, 28)
    assert np.bincount(found.labels).tolist() == (MNIST[split] if name == "mnist" else [n // 10] * 10)
    assert found.fingerprint == (name, data.SETS[name].manifest, False, True, ())  # wherever it was prepared


def test_kmnist_says_what_it_lacks(root):
    train, test = load(root, "kmnist", "train"), load(root, "kmnist", "test")
    assert np.bincount(test.labels).tolist() == [1000] * 10
    assert (len(train) == 60_000) == train.fingerprint.complete
    assert bool(train.fingerprint.deviations) != train.fingerprint.complete


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "kmnist"])
def test_verify(root, name):
    load(root, name, "test")
    assert data.verify(name, root) == []
