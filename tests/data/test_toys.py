"""The stand-in for smallNORB: factors and pictures, and that only reading renders them."""

import numpy as np
import pytest

from capslib import data
from capslib.data import toys
from capslib.data.viewpoints import familiar
from capslib.errors import UserError

TOYS = np.arange(50)  # 10 · category + instance
FINGERPRINT = "35ab44c33c08a2cdeeba16b93c4834eb6e7195555ec2241eb12645519955f3fa"
PICTURES = np.fromstring(
    """
    194.94 169.37 189.02 192.41 157.41 108.15 193.49 173.65 195.53 192.90
    157.83 111.18 191.76 178.36 192.59 193.49 159.91 108.26 191.34 170.63
    189.45 188.47 151.40 103.58 181.76 161.95 186.08 196.72 152.82 106.70
    179.43 170.22 193.28 182.15 137.88 102.64 190.39 167.39 170.74 175.87
    146.46 98.71 176.42 156.72 184.32 191.43 148.47 98.09 175.88 165.59
    """,
    sep=" ",
)
"""A number of each toy, category by category."""


def render(*factors):
    """Return uint8 [*shape, 2, 48, 48] of toys, elevations, azimuths and lightings.

    They broadcast against each other, to this shape.
    """
    factors = np.broadcast_arrays(*factors)
    images = toys.render(*[factor.ravel() for factor in factors])
    return images.reshape(*factors[0].shape, 2, 48, 48)


@pytest.fixture(scope="module")
def sample():
    """One picture of every toy, over all elevations, azimuths and lightings."""
    return render(TOYS, TOYS % 9, TOYS * 7 % 18, TOYS % 6)


@pytest.mark.parametrize(
    ("split", "instances"), [("train", [4, 6, 7, 8, 9]), ("test", [0, 1, 2, 3, 5])]
)
def test_every_combination_of_factors_once(split, instances):
    loaded = data.load("toys", split)
    values = [range(5), instances, range(9), range(0, 36, 2), range(6)]
    expected = np.meshgrid(*values, indexing="ij")
    for name, factor in zip(toys.FACTORS, expected, strict=True):
        np.testing.assert_array_equal(loaded[name], factor.ravel(), strict=True)
        assert not loaded[name].flags.writeable
    assert loaded.images.shape == data.SETS["toys"].splits[split]
    assert loaded.classes == data.SETS["smallnorb"].classes
    row = [loaded[name][20_000] for name in toys.FACTORS]
    label, instance, elevation, azimuth, lighting = row
    picture = render(10 * label + instance, elevation, azimuth // 2, lighting)
    np.testing.assert_array_equal(loaded.images[20_000], picture)


def test_nothing_is_rendered_for_a_fingerprint(monkeypatch):
    """Another hash means other factors or another revision: records cannot be compared."""
    monkeypatch.setattr(toys, "render", None)
    train, test = data.load("toys", "train"), data.load("toys", "test")
    assert train.fingerprint == test.fingerprint
    assert (train.fingerprint.sha256, train.fingerprint.stand_in) == (FINGERPRINT, True)


def test_images_are_rendered_when_they_are_read_and_once(monkeypatch):
    elevation, azimuth, lighting = np.arange(9), np.arange(9), np.arange(9) % 6
    factors = np.full(9, 12), elevation, azimuth, lighting
    array, images = toys.render(*factors), toys.Renderings(*factors)
    rendered, draw = [], toys.render

    def note(numbers, elevation, azimuth, lighting):
        rendered.extend(elevation.tolist())
        return draw(numbers, elevation, azimuth, lighting)

    monkeypatch.setattr(toys, "render", note)
    for key in (4, [4, 2], slice(2, 5), np.arange(9) == 6, -1, (4, 0, ..., 7), []):
        np.testing.assert_array_equal(images[key], array[key], strict=True)
    assert rendered == [4, 2, 3, 6, 8]
    np.testing.assert_array_equal(np.asarray(images), array)
    assert rendered[5:] == [0, 1, 5, 7]
    with pytest.raises(IndexError):
        images[9]
    with pytest.raises(ValueError, match="read-only"):
        images[2:4][:] = 0


@pytest.mark.parametrize("toy", [8, 31, 47])
def test_a_row_has_the_same_bytes_alone_and_in_any_company(toy):
    elevation, azimuth, lighting = np.indices((4, 3, 2)).reshape(3, -1)
    images = render(toy, elevation, azimuth, lighting)
    for row in (0, 11, 23):
        picture = render(toy, elevation[row], azimuth[row], lighting[row])
        np.testing.assert_array_equal(picture, images[row])


def test_no_picture_has_changed(sample):
    """The numbers of mirrored or shifted pictures differ, too.

    If this fails, take back the change or raise ``REVISION``: records made before must not be
    compared with records made after.
    """
    ramp = np.linspace(0, 2, sample[0].size).reshape(sample[0].shape)
    assert (sample * ramp).mean((1, 2, 3)) == pytest.approx(PICTURES, abs=0.05)


# ------------------------------------------------------------------------------- the pictures


def test_what_is_near_lies_further_right_for_the_left_camera():
    """A car or a truck that points to the cameras: its front is below, its rear above."""
    left_eye, right_eye = np.moveaxis(render(TOYS[30:], 0, 0, 3).astype(int), 1, 0)
    shifts = np.arange(-4, 5)

    def best_shift(rows):
        costs = []
        for shift in shifts:
            shifted = right_eye[:, rows, 5 - shift : 43 - shift]
            costs.append(abs(left_eye[:, rows, 5:-5] - shifted).sum((1, 2)))
        return shifts[np.argmin(costs, 0)]

    near, far = best_shift(slice(28, 40)), best_shift(slice(8, 20))
    assert (near >= far).all()
    assert near.mean() > 0.5
    assert far.mean() < -0.5


def test_familiar_viewpoints_of_a_factor_that_is_not_there_are_refused():
    split = data.load("toys", "train")
    with pytest.raises(UserError, match=r"Did you mean 'azimuth'\?"):
        familiar(split, "azimut")
    arrays = {"azimuth": split["azimuth"]}
    split = data.DataSplit("toys", "train", arrays, (), split.fingerprint)
    with pytest.raises(UserError, match="array of toys/train 'elevation'"):
        familiar(split, "elevation")
