"""The real sets, if they are here: known counts and hashes."""

import hashlib

import numpy as np
import pytest
from writers import norb_bytes

from capslib import data
from capslib.data.viewpoints import familiar

pytestmark = pytest.mark.real_data

# Labels of the complete sets, class by class.
TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.fixture(scope="session")
def load(real):
    return lambda name, split: data.load(name, split, data_dir=real(name))


COUNTS = {
    "mnist": {"train": TRAIN, "test": TEST},
    "fashion_mnist": {"train": [6000] * 10, "test": [1000] * 10},
}


@pytest.mark.parametrize("name", COUNTS)
def test_complete_sets(load, name):
    for split, counts in COUNTS[name].items():
        loaded = load(name, split)
        assert loaded.images.shape == (sum(counts), 1, 28, 28)
        assert np.bincount(loaded.labels).tolist() == counts
        assert loaded.fingerprint.sha256 == data.SETS[name].manifest  # on every machine
        assert loaded.fingerprint.complete
        assert loaded.fingerprint.deviations == ()


def test_kmnist_names_what_is_missing(load):
    train, test = load("kmnist", "train"), load("kmnist", "test")
    assert np.bincount(test.labels).tolist() == [1000] * 10
    assert (len(train) == 60_000) == train.fingerprint.complete
    assert bool(train.fingerprint.deviations) != train.fingerprint.complete


@pytest.mark.parametrize("split", ["train", "test"])
def test_cifar10_has_as_many_images_of_each_class(load, split):
    loaded = load("cifar10", split)
    assert loaded.images.shape == data.SETS["cifar10"].splits[split]
    assert np.bincount(loaded.labels).tolist() == [len(loaded) // 10] * 10


FACTORS = ("instance", "elevation", "azimuth", "lighting")
# SHA-256 of the publishers' unpacked label and factor files, which do not depend on the images.
CAT = "591ed90c090cb6724593e8de28180bd602095ee8ec82bd1a5ca30b488cd1d06e"
INFO = {
    "train": "6b4075d3800ba0c6fa8c46a02f672572abe7b93f7ed82fb7668354a99ef03306",
    "test": "318f817236b7c97af03cd90e07a9cbb4346e20ef83a1118a61eeb50e3b96db7e",
}


def norb_hash(array: np.ndarray) -> str:
    return hashlib.sha256(norb_bytes(array.astype(np.int32))).hexdigest()


@pytest.mark.parametrize("split", ["train", "test"])
def test_smallnorb_has_the_publishers_labels_and_factors_in_their_order(load, split):
    loaded = load("smallnorb", split)
    assert loaded.images.shape == data.SETS["smallnorb"].splits[split]
    assert norb_hash(loaded.labels) == CAT
    assert norb_hash(np.stack([loaded[name] for name in FACTORS], axis=1)) == INFO[split]
    assert loaded.fingerprint.deviations  # at least, the images are smaller
    for factor in ("azimuth", "elevation"):
        assert familiar(loaded, factor).sum() == 8100


def test_ham10000_has_the_images_of_table_1_and_their_lesions(load):
    loaded = load("ham10000", "all")
    assert loaded.classes == ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
    counts = np.bincount(loaded.labels).tolist()
    assert counts == [327, 514, 1099, 115, 1113, 6705, 142]
    assert len(np.unique(loaded["lesion"])) == 7470


def test_crispr_has_the_papers_off_targets_and_its_mismatches_are_right(load):
    loaded = load("crispr", "all")
    guide, target, mismatches = loaded["guide"], loaded["target"], loaded["mismatches"]
    assert loaded.labels[mismatches < 6].sum() == 615
    np.testing.assert_array_equal((guide != target).sum(axis=1), mismatches)
    g, a_or_g = 2, (0, 2)
    pam = (target[:, -1] == g) & np.isin(target[:, -2], a_or_g)
    np.testing.assert_array_equal(pam, loaded["nrg_pam"])


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "kmnist", "smallnorb", "cifar10"])
def test_verify(real, name):
    assert data.verify(name, real(name)) == []
