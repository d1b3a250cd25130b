"""Generated affNIST: digits under affine maps, each by itself, inside the frame, and called what they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from capslib import data
from capslib.data.affnist import DEGREES, SCALES, SHEAR, _maps, affine_variants, affnist
from capslib.errors import UserError


def bar(n: int = 200) -> torch.Tensor:
    """The same upright bar with a foot to its right, n times."""
    images = torch.zeros(n, 1, 28, 28, dtype=torch.uint8)
    images[:, 0, 6:22, 13:15] = 255
    images[:, 0, 20:22, 13:19] = 255
    return images


def test_maps_stay_within_the_published_ranges():
    for linear in _maps(2000, 3).numpy():
        turn, upper = np.linalg.qr(linear)
        flip = np.sign(np.diag(upper))
        turn, upper = turn * flip, upper * flip[:, None]
        assert abs(np.rad2deg(np.arctan2(turn[1, 0], turn[0, 0]))) <= DEGREES + 1e-9
        assert all(SCALES[0] - 1e-9 <= s <= SCALES[1] + 1e-9 for s in np.diag(upper))
        assert abs(upper[0, 1] / upper[1, 1]) <= SHEAR + 1e-9


def test_digits_keep_their_ink_and_their_orientation():
    seen = affine_variants(bar(), 0, 40)[:, 0].double()
    assert seen.shape == (200, 40, 40)
    ink = seen.sum(dim=(1, 2)) / bar(1).sum()
    wide, high = np.random.RandomState(0).uniform(-1, 1, (200, 4)).T[2:]
    torch.testing.assert_close(ink, torch.tensor((1 + 0.2 * wide) * (1 + 0.2 * high)), rtol=0.08, atol=0)
    rows, columns = torch.meshgrid(torch.arange(40.0), torch.arange(40.0), indexing="ij")
    low = seen * (rows > (seen * rows).sum(dim=(1, 2), keepdim=True) / seen.sum(dim=(1, 2), keepdim=True))
    lower, middle = ((of * columns).sum(dim=(1, 2)) / of.sum(dim=(1, 2)) for of in (low, seen))
    turn, shear = np.random.RandomState(0).uniform(-1, 1, (200, 4)).T[:2]
    upright = torch.tensor((abs(turn) < 0.2) & (abs(shear) < 0.2))
    assert upright.sum() > 3
    assert (lower > middle)[upright].all(), "the foot is at the right below"


def test_places_are_spread_over_the_frame_and_end_at_its_edge():
    seen = affine_variants(bar(1000), 1, 40)[:, 0] > 0
    for ink in (seen.any(dim=1), seen.any(dim=2)):  # columns and rows with ink
        first = ink.float().argmax(dim=1)
        last = 39 - ink.flip(1).float().argmax(dim=1)
        assert (first <= 1).any()
        assert (last >= 38).any()
        assert first.float().std() > 4
    kept = seen.sum(dim=(1, 2)).float()
    assert kept.min() > 0.5 * kept.mean(), "nothing is cut off"


def test_each_image_draws_for_itself_and_always_the_same():
    digits = torch.tensor(np.asarray(data.load("digits", "test").images))
    one = affine_variants(digits, 2, 12)
    assert torch.equal(one, affine_variants(digits, 2, 12))
    assert torch.equal(one[:50], affine_variants(torch.cat([digits[:50], digits[:314].flip(0)]), 2, 12)[:50])
    assert not torch.equal(one, affine_variants(digits, 3, 12))
    assert affine_variants(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), 0, 12).sum() == 0, "no ink, no error"


def test_generated_images_are_called_so_and_have_the_labels_of_their_digits():
    n = len(data.load("digits", "test"))
    images, labels, digit, fingerprint = affnist("digits", 2 * n + 5, 12)
    assert images.shape == (2 * n + 5, 1, 12, 12)
    assert torch.equal(digit, torch.arange(2 * n + 5) % n)
    assert labels.tolist() == data.load("digits", "test").labels[digit].tolist()
    assert not fingerprint.complete
    assert "generated from digits by the published ranges" in fingerprint.deviations[-1]
    with pytest.raises(UserError, match=r"affNIST has 32 variants of each of 364 test digits, not 100,000 images"):
        affnist("digits", 100_000, 12)


def test_a_prepared_set_is_taken_for_mnist(tmp_path):
    from capslib.data import prepared

    arrays = {"images": np.full((3, 1, 40, 40), 7, np.uint8), "labels": np.arange(3), "digit": np.arange(3)}
    about = {"source": "a test", "licence": "none", "complete": True, "deviations": []}
    prepared.write(tmp_path / "affnist", about, [("test", arrays)])
    images, _, _, fingerprint = affnist("mnist", 2, 40, tmp_path)
    assert images.shape == (2, 1, 40, 40)
    assert (fingerprint.name, fingerprint.complete) == ("affnist", True)


def mat(path, images, labels):
    """A file as the publisher writes it: a structure whose images are columns."""
    from scipy.io import savemat

    columns = images.reshape(len(images), -1).T
    savemat(path, {"affNISTdata": {"image": columns, "label_int": labels[None].astype(np.uint8), "affine_params": np.zeros(3)}})


def mnist_of(folder, labels):
    """A prepared MNIST whose test set has these labels."""
    from capslib.data import prepared

    arrays = {"images": np.zeros((len(labels), 1, 28, 28), np.uint8), "labels": labels}
    about = {"source": "a test", "licence": "none", "complete": False, "deviations": ["few"]}
    prepared.write(folder / "mnist", about, [("test", arrays)])


@pytest.mark.parametrize("order", ["variant by variant", "digit by digit"])
def test_the_publishers_file_is_prepared_upright_and_variant_by_variant(tmp_path, order):
    labels = np.array([3, 1, 4, 1, 5])
    mnist_of(tmp_path, labels)
    number = np.arange(10)  # of an image, variant by variant
    images = np.zeros((10, 40, 40), np.uint8)
    images[:, 2, 30] = 100 + number  # in the upper right corner
    file = number if order == "variant by variant" else number.reshape(2, 5).T.ravel()
    (tmp_path / "affnist").mkdir()
    mat(tmp_path / "affnist" / "test.mat", images[file], labels[file % 5])
    found, theirs, digit, fingerprint = affnist("mnist", 10, 40, tmp_path)
    assert found[:, 0, 2, 30].tolist() == (100 + number).tolist()
    assert theirs.tolist() == [*labels, *labels]
    assert digit.tolist() == [0, 1, 2, 3, 4] * 2
    assert (fingerprint.name, fingerprint.complete, fingerprint.deviations) == ("affnist", True, ())
    with pytest.raises(UserError, match="holds 10 test images, and 11 are wanted"):
        affnist("mnist", 11, 40, tmp_path)


def test_a_foreign_or_damaged_file_is_an_error_and_not_replaced_by_generated_images(tmp_path):
    labels = np.array([3, 1, 4])
    mnist_of(tmp_path, labels)
    (tmp_path / "affnist").mkdir()
    file = tmp_path / "affnist" / "test.mat"
    file.write_bytes(b"no matrix")
    with pytest.raises(UserError, match=r"is not affNIST's test\.mat"):
        affnist("mnist", 3, 40, tmp_path)
    mat(file, np.zeros((3, 30, 30), np.uint8), labels)
    with pytest.raises(UserError, match=r"its images are uint8 \[900, 3\] for 3 labels"):
        affnist("mnist", 3, 40, tmp_path)
    mat(file, np.zeros((3, 40, 40), np.uint8), labels[::-1].copy())
    with pytest.raises(UserError, match="in another order than MNIST's"):
        affnist("mnist", 3, 40, tmp_path)
    assert not (tmp_path / "affnist" / "manifest.json").exists()
    mat(file, np.zeros((3, 40, 40), np.uint8), labels)
    affnist("mnist", 3, 40, tmp_path)
    (tmp_path / "affnist" / "test" / "labels.npy").write_bytes(b"damaged")
    with pytest.raises(UserError, match="damaged"):
        affnist("mnist", 3, 40, tmp_path)
