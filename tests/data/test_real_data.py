"""The real sets, if they are here: known counts and hashes."""

import hashlib

import numpy as np
import pytest
from writers import norb_bytes

from capslib import data
from capslib.papers.em_routing.recipe import familiar

pytestmark = pytest.mark.real_data

# Labels of the complete sets, class by class.
MNIST = {
    "train": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    "test": [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
}


@pytest.fixture(scope="session")
def load(real):
    return lambda name, split: data.load(name, split, data_dir=real(name))


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_complete_sets(load, name, split):
    found = load(name, split)
    n = {"train": 60_000, "test": 10_000}[split]
    assert found.images.shape == (n, 1, 28, 28)
    assert np.bincount(found.labels).tolist() == (
        MNIST[split] if name == "mnist" else [n // 10] * 10
    )
    assert found.fingerprint.sha256 == data.SETS[name].manifest  # on every machine
    assert (found.fingerprint.complete, found.fingerprint.deviations) == (True, ())


def test_kmnist_names_what_is_missing(load):
    train, test = load("kmnist", "train"), load("kmnist", "test")
    assert np.bincount(test.labels).tolist() == [1000] * 10
    assert (len(train) == 60_000) == train.fingerprint.complete
    assert bool(train.fingerprint.deviations) != train.fingerprint.complete


FACTORS = ("instance", "elevation", "azimuth", "lighting")
NORB = {  # SHA-256 of the publishers' unpacked label and factor files, which do not depend on the images
    "train": {
        "cat": "591ed90c090cb6724593e8de28180bd602095ee8ec82bd1a5ca30b488cd1d06e",
        "info": "6b4075d3800ba0c6fa8c46a02f672572abe7b93f7ed82fb7668354a99ef03306",
    },
    "test": {
        "cat": "591ed90c090cb6724593e8de28180bd602095ee8ec82bd1a5ca30b488cd1d06e",
        "info": "318f817236b7c97af03cd90e07a9cbb4346e20ef83a1118a61eeb50e3b96db7e",
    },
}


@pytest.mark.parametrize("split", ["train", "test"])
def test_smallnorb_has_the_publishers_labels_and_factors_in_their_order(load, split):
    found = load("smallnorb", split)
    assert found.images.shape == data.SETS["smallnorb"].splits[split]
    info = np.stack([found[name] for name in FACTORS], axis=1)
    files = {
        "cat": norb_bytes(found.labels.astype(np.int32)),
        "info": norb_bytes(info.astype(np.int32)),
    }
    assert {
        kind: hashlib.sha256(content).hexdigest() for kind, content in files.items()
    } == NORB[split]
    assert found.fingerprint.deviations  # at least, the images are smaller


def test_smallnorb_is_split_by_instance_and_every_view_of_a_toy_is_there_once(load):
    instances = {}
    for split in ("train", "test"):
        found = load("smallnorb", split)
        toys, counts = np.unique(
            np.stack([found.labels, found["instance"]]), axis=1, return_counts=True
        )
        assert counts.tolist() == [972] * 25
        instances[split] = {toy for _, toy in toys.T.tolist()}
        views = np.stack([found.labels, *(found[name] for name in FACTORS)])
        assert np.unique(views, axis=1).shape == (5, 24_300)
        assert [np.unique(found[name]).tolist() for name in FACTORS[1:]] == [
            [*range(9)],
            [*range(0, 36, 2)],
            [*range(6)],
        ]
        assert {
            factor: familiar(found, factor).sum() for factor in ("azimuth", "elevation")
        } == dict(azimuth=8100, elevation=8100)
    assert instances == {"train": {4, 6, 7, 8, 9}, "test": {0, 1, 2, 3, 5}}  # no toy is in both


def test_ham10000_has_the_images_of_table_1_and_their_lesions(load):
    found = load("ham10000", "all")
    ours = {name: int((found.labels == k).sum()) for k, name in enumerate(found.classes)}
    assert ours == {
        "akiec": 327,
        "bcc": 514,
        "bkl": 1099,
        "df": 115,
        "mel": 1113,
        "nv": 6705,
        "vasc": 142,
    }
    assert len(np.unique(found["lesion"])) == 7470


def test_crispr_has_the_papers_off_targets_and_its_mismatches_are_right(load):
    found = load("crispr", "all")
    assert found.labels[found["mismatches"] < 6].sum() == 615
    np.testing.assert_array_equal(
        (found["guide"] != found["target"]).sum(axis=1), found["mismatches"]
    )
    pam = (found["target"][:, -1] == 2) & np.isin(found["target"][:, -2], (0, 2))
    np.testing.assert_array_equal(pam, found["nrg_pam"])


@pytest.mark.parametrize("split", ["train", "test"])
def test_cifar10(load, split):
    found = load("cifar10", split)
    assert found.images.shape == data.SETS["cifar10"].splits[split]
    assert np.bincount(found.labels).tolist() == [len(found) // 10] * 10


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "kmnist", "smallnorb", "cifar10"])
def test_verify(real, name):
    assert data.verify(name, real(name)) == []
