"""affNIST, generated (digits under affine maps, each by itself, inside the frame, and called what they are) or read from its file."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from scipy.io import savemat

from capslib import data
from capslib.data import prepared
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
    torch.testing.assert_close(
        ink, torch.tensor((1 + 0.2 * wide) * (1 + 0.2 * high)), rtol=0.08, atol=0
    )
    rows, columns = torch.meshgrid(torch.arange(40.0), torch.arange(40.0), indexing="ij")
    low = seen * (
        rows > (seen * rows).sum(dim=(1, 2), keepdim=True) / seen.sum(dim=(1, 2), keepdim=True)
    )
    lower, middle = ((of * columns).sum(dim=(1, 2)) / of.sum(dim=(1, 2)) for of in (low, seen))
    turn, shear = np.random.RandomState(0).uniform(-1, 1, (200, 4)).T[:2]
    upright = torch.tensor((abs(turn) < 0.2) & (abs(shear) < 0.2))
    assert upright.sum() > 3
    assert (lower > middle)[upright].all(), "the foot is at the right below"


def test_bars_are_turned_by_up_to_20_degrees_and_sheared_by_up_to_a_fifth():
    """To both sides. Shear leans an upright bar and leaves one that lies as it is, so that this shows the rotation alone."""
    lying = torch.zeros(500, 1, 28, 28, dtype=torch.uint8)
    lying[:, 0, 13:15, 4:24] = 255
    angles = []
    for bars in (lying, lying.mT):
        rows, columns = torch.meshgrid(*2 * [torch.arange(40.0)], indexing="ij")
        ink = affine_variants(bars, 4, 40)[:, 0] / (255 * 40.0)
        x, y = (
            of - (ink * of).sum(dim=(1, 2), keepdim=True) / ink.sum(dim=(1, 2), keepdim=True)
            for of in (columns, rows)
        )
        xx, xy, yy = ((ink * of).sum(dim=(1, 2)) for of in (x * x, x * y, y * y))
        angles.append(
            torch.atan2(2 * xy, (xx - yy) * (1 if bars is lying else -1)) / 2
        )  # of the long axis
    turn, shear = angles[0].rad2deg(), (angles[0] + angles[1]).tan()
    assert [float(turn.min()), float(turn.max())] == pytest.approx([-20, 20], abs=0.5)
    assert [float(shear.min()), float(shear.max())] == pytest.approx([-0.2, 0.2], abs=0.015)


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
    assert torch.equal(
        one[:50], affine_variants(torch.cat([digits[:50], digits[:314].flip(0)]), 2, 12)[:50]
    )
    assert not torch.equal(one, affine_variants(digits, 3, 12))
    assert affine_variants(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), 0, 12).sum() == 0, (
        "no ink, no error"
    )


def test_generated_images_are_called_so_and_have_the_labels_of_their_digits():
    n = len(data.load("digits", "test"))
    images, labels, digit, fingerprint = affnist("digits", 2 * n + 5, 12)
    assert images.shape == (2 * n + 5, 1, 12, 12)
    assert torch.equal(digit, torch.arange(2 * n + 5) % n)
    assert labels.tolist() == data.load("digits", "test").labels[digit].tolist()
    assert not fingerprint.complete
    assert "generated from digits by the published ranges" in fingerprint.deviations[-1]
    with pytest.raises(
        UserError,
        match=r"affNIST has 32 variants of each of 364 test digits, not 100,000 images",
    ):
        affnist("digits", 100_000, 12)


def test_a_prepared_set_is_taken_for_mnist(tmp_path):
    arrays = {
        "images": np.full((3, 1, 40, 40), 7, np.uint8),
        "labels": np.arange(3),
        "digit": np.arange(3),
    }
    about = {
        "source": "a test",
        "licence": "none",
        "complete": False,
        "deviations": ["the first three"],
    }
    prepared.write(tmp_path / "affnist", about, [("test", arrays)])
    images, _, _, fingerprint = affnist("mnist", 2, 40, tmp_path)
    assert images.shape == (2, 1, 40, 40)
    assert (fingerprint.name, fingerprint.complete, fingerprint.deviations) == (
        "affnist",
        False,
        ("the first three",),
    )
    with pytest.raises(UserError, match="holds 3 test images, and 4 are wanted"):
        affnist("mnist", 4, 40, tmp_path)


LABELS = np.array([3, 1, 4, 1, 5])
NUMBER = np.arange(32 * 5)  # of an image, variant by variant


def mat(images, labels):
    """A file as the publisher writes it: a structure whose images are columns."""
    columns = images.reshape(len(images), -1).T
    fields = {
        "image": columns,
        "label_int": labels[None].astype(np.uint8),
        "affine_params": np.zeros(3),
    }
    savemat(file := io.BytesIO(), {"affNISTdata": fields})
    return file.getvalue()


@pytest.fixture(params=["variant by variant", "digit by digit"])
def tiny_affnist(publish, request):
    """affNIST with 32 variants of 5 digits, in one or the other order; each image has its number in the upper right corner."""
    images = np.zeros((160, 40, 40), np.uint8)
    images[:, 2, 30] = NUMBER
    order = NUMBER if request.param == "variant by variant" else NUMBER.reshape(32, 5).T.ravel()
    return publish(
        "affnist",
        {"test": (160, 1, 40, 40)},
        {},
        {"test.mat": mat(images[order], LABELS[order % 5])},
    )


def test_the_publishers_file_is_prepared_upright_and_variant_by_variant(tiny_affnist, tmp_path):
    tiny_affnist.put(tmp_path / "affnist")
    found, theirs, digit, fingerprint = affnist("mnist", 160, 40, tmp_path)
    assert found[:, 0, 2, 30].tolist() == NUMBER.tolist()
    assert theirs.tolist() == [*LABELS] * 32
    assert digit.tolist() == [0, 1, 2, 3, 4] * 32
    assert (fingerprint.name, fingerprint.complete, fingerprint.deviations) == (
        "affnist",
        True,
        (),
    )
    with pytest.raises(UserError, match="holds 160 test images, and 161 are wanted"):
        affnist("mnist", 161, 40, tmp_path)
    (tmp_path / "affnist" / "test" / "labels.npy").write_bytes(b"damaged")
    with pytest.raises(UserError, match="damaged"):  # and not replaced by generated images
        affnist("mnist", 3, 40, tmp_path)


def test_fetch_prepares_the_file_without_a_network_and_says_where_it_comes_from(
    tiny_affnist, tmp_path
):
    for call in (
        data.fetch,
        data.require,
        lambda n, d: data.load(n, "test", data_dir=d, download=True),
    ):
        with pytest.raises(UserError) as caught:
            call("affnist", tmp_path)
        for part in (
            "test.mat is missing",
            tiny_affnist.spec.source,
            str(tmp_path / "affnist"),
        ):
            assert part in str(caught.value)
        assert "data fetch" not in str(caught.value)
    rows = {row.name: row for row in data.describe(tmp_path)}
    assert (rows["affnist"].state, rows["affnist"].folder) == ("no", "")
    tiny_affnist.put(tmp_path / "affnist")
    rows = {row.name: row for row in data.describe(tmp_path)}
    assert (rows["affnist"].state, rows["affnist"].folder) == (
        "to prepare",
        str(tmp_path / "affnist"),
    )
    assert data.fetch("affnist", tmp_path) == tmp_path / "affnist"
    assert data.verify("affnist", tmp_path) == []
    assert len(data.load("affnist", "test", data_dir=tmp_path)) == 160


BLACK = np.zeros((160, 40, 40), np.uint8)
REFUSED = {
    "no matrix": (b"no matrix", "truncated"),
    "empty": (b"", "MatReadError"),
    "another size": (
        mat(np.zeros((160, 30, 30), np.uint8), LABELS[NUMBER % 5]),
        "are uint8 [900, 160] for 160 labels, expected uint8 [1600, 160]",
    ),
    "fewer images": (
        mat(BLACK[:155], LABELS[NUMBER[:155] % 5]),
        "are uint8 [1600, 155] for 155 labels",
    ),
    "fewer labels": (
        mat(BLACK, LABELS[NUMBER[:155] % 5]),
        "are uint8 [1600, 160] for 155 labels",
    ),
    "floats": (mat(BLACK / 255, LABELS[NUMBER % 5]), "are float64 [1600, 160]"),
    "another order": (
        mat(BLACK, np.roll(np.repeat(LABELS, 32), 1)),
        "neither variant by variant nor digit by digit",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("tiny_affnist", ["variant by variant"], indirect=True)
def test_refused_and_not_replaced_by_generated_images(tiny_affnist, refused, tmp_path, what):
    content, message = REFUSED[what]
    assert message in refused(tiny_affnist, {"test.mat": content})
    with pytest.raises(UserError, match="files of affnist"):
        affnist("mnist", 3, 40, tmp_path)
