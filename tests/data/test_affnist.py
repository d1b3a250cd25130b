"""affNIST, generated (each digit by itself, inside the frame) or as its publisher has it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from writers import write_part

from capslib import data
from capslib.data.affnist import affine_variants, affnist
from capslib.errors import UserError


def bars(n: int) -> torch.Tensor:
    """Return the same upright bar with a foot to its right, n times."""
    images = torch.zeros(n, 1, 28, 28, dtype=torch.uint8)
    images[:, 0, 6:22, 13:15] = 255
    images[:, 0, 20:22, 13:19] = 255
    return images


def mean(values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the weighted mean over each image."""
    total = (weights * values).sum(dim=(1, 2), keepdim=True)
    return total / weights.sum(dim=(1, 2), keepdim=True)


ROWS, COLUMNS = torch.meshgrid(torch.arange(40.0), torch.arange(40.0), indexing="ij")


def test_digits_keep_their_ink_and_their_orientation():
    images = affine_variants(bars(200), 0, 40)[:, 0].double()
    draws = np.random.RandomState(0).uniform(-1, 1, (200, 4))
    turn, shear, x, y = torch.tensor(draws.T)
    ink = images.sum(dim=(1, 2)) / bars(1).sum()
    scale = (1 + 0.2 * x) * (1 + 0.2 * y)
    torch.testing.assert_close(ink, scale, rtol=0.08, atol=0)
    lower_half = images * (mean(ROWS, images) < ROWS)
    foot_is_right = mean(COLUMNS, lower_half) > mean(COLUMNS, images)
    nearly_upright = (turn.abs() < 0.2) & (shear.abs() < 0.2)
    assert foot_is_right[nearly_upright].all()


def angles(images: torch.Tensor, sign: int) -> torch.Tensor:
    """Return the angles of the long axis of lying bars (sign 1) or of upright ones (−1)."""
    ink = affine_variants(images, 4, 40)[:, 0] / (255 * 40.0)
    x = COLUMNS - mean(COLUMNS, ink)
    y = ROWS - mean(ROWS, ink)
    covariance = (ink * x * y).sum(dim=(1, 2))
    difference = (ink * (x * x - y * y)).sum(dim=(1, 2))
    return torch.atan2(2 * covariance, sign * difference) / 2


def test_bars_are_turned_by_up_to_20_degrees_and_sheared_by_up_to_a_fifth():
    """To both sides. Shear leans an upright bar, and leaves one that lies as it is."""
    lying = torch.zeros(500, 1, 28, 28, dtype=torch.uint8)
    lying[:, 0, 13:15, 4:24] = 255
    turn = angles(lying, 1)
    shear = (turn + angles(lying.mT, -1)).tan()
    for values, limit, tolerance in ((turn.rad2deg(), 20, 0.5), (shear, 0.2, 0.015)):
        extremes = [values.min().item(), values.max().item()]
        assert extremes == pytest.approx([-limit, limit], abs=tolerance)


def test_places_are_spread_over_the_frame_and_end_at_its_edge():
    ink = affine_variants(bars(1000), 1, 40)[:, 0] > 0
    for line in (ink.any(dim=1), ink.any(dim=2)):  # columns and rows with ink
        first = line.float().argmax(dim=1)
        last = 39 - line.flip(1).float().argmax(dim=1)
        assert first.min() <= 1
        assert last.max() >= 38
        assert first.float().std() > 4
    pixels = ink.sum(dim=(1, 2)).float()
    assert pixels.min() > 0.5 * pixels.mean(), "nothing is cut off"


def test_each_image_draws_for_itself_and_always_the_same():
    digits = torch.tensor(np.asarray(data.load("digits", "test").images))[:100]
    images = affine_variants(digits, 2, 12)
    company = torch.cat([digits[:50], digits[50:].flip(0)])
    assert torch.equal(images[:50], affine_variants(company, 2, 12)[:50])
    assert not torch.equal(images, affine_variants(digits, 3, 12))
    assert affine_variants(torch.zeros_like(digits), 0, 12).sum() == 0, "no ink, no error"


def test_generated_images_are_called_so_and_have_the_labels_of_their_digits():
    test = data.load("digits", "test")
    count = 2 * len(test) + 5
    images, labels, digit, fingerprint = affnist("digits", count, 12)
    assert images.shape == (count, 1, 12, 12)
    assert torch.equal(digit, torch.arange(count) % len(test))
    assert labels.tolist() == test.labels[digit].tolist()
    assert not fingerprint.complete
    assert "generated from digits by the published ranges" in fingerprint.deviations[-1]
    with pytest.raises(UserError, match=r"32 variants of each of 364 test digits, not 100,000"):
        affnist("digits", 100_000, 12)


def test_a_prepared_set_is_taken_for_mnist(tmp_path):
    numbers = np.arange(3)
    images = np.full((3, 1, 40, 40), 7, np.uint8)
    arrays = {"images": images, "labels": numbers, "digit": numbers}
    write_part(tmp_path / "affnist", "test", arrays)
    result, labels, digit, fingerprint = affnist("mnist", 2, 40, tmp_path)
    assert result.tolist() == images[:2].tolist()
    assert labels.tolist() == digit.tolist() == [0, 1]
    assert (fingerprint.name, fingerprint.deviations) == ("affnist", ("a few",))
    with pytest.raises(UserError, match="holds 3 test images, and 4 are wanted"):
        affnist("mnist", 4, 40, tmp_path)
    with pytest.raises(UserError, match="40 pixels a side, and 28 are wanted: ask for 40, or"):
        affnist("mnist", 2, 28, tmp_path)


def test_a_damaged_file_is_refused_and_not_replaced_by_generated_images(publish, tmp_path):
    publish("affnist", {"test.mat": b"no matrix"}).put(tmp_path / "affnist")
    with pytest.raises(UserError, match="files of affnist"):
        affnist("mnist", 3, 40, tmp_path)
    publish("affnist").put(tmp_path / "affnist")
    affnist("mnist", 3, 40, tmp_path)
    (tmp_path / "affnist" / "test" / "labels.npy").write_bytes(b"damaged")
    with pytest.raises(UserError, match="damaged"):
        affnist("mnist", 3, 40, tmp_path)


def test_a_missing_file_is_asked_for_by_its_source(publish, tmp_path):
    source = publish("affnist").spec.source
    for call in (data.fetch, data.require):
        with pytest.raises(UserError, match=r"test.mat is missing") as caught:
            call("affnist", tmp_path)
        assert source in str(caught.value)
        assert str(tmp_path / "affnist") in str(caught.value)
        assert "data fetch" not in str(caught.value), "there is nothing to download it from"
