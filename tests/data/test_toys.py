"""The stand-in for smallNORB: its factors, its pictures, and that only reading renders them."""

import numpy as np
import pytest

from capslib import data
from capslib.data import toys

TOYS = np.arange(50)  # 10 · category + instance
FINGERPRINT = "35ab44c33c08a2cdeeba16b93c4834eb6e7195555ec2241eb12645519955f3fa"
PICTURES = [  # category by category
    194.94,
    169.37,
    189.02,
    192.41,
    157.41,
    108.15,
    193.49,
    173.65,
    195.53,
    192.90,
    157.83,
    111.18,
    191.76,
    178.36,
    192.59,
    193.49,
    159.91,
    108.26,
    191.34,
    170.63,
    189.45,
    188.47,
    151.40,
    103.58,
    181.76,
    161.95,
    186.08,
    196.72,
    152.82,
    106.70,
    179.43,
    170.22,
    193.28,
    182.15,
    137.88,
    102.64,
    190.39,
    167.39,
    170.74,
    175.87,
    146.46,
    98.71,
    176.42,
    156.72,
    184.32,
    191.43,
    148.47,
    98.09,
    175.88,
    165.59,
]


def render(*factors):
    """Toys, elevations, azimuths and lightings broadcast against each other: uint8 [*their shape, 2, 48, 48]."""
    factors = np.broadcast_arrays(*factors)
    return toys.render(*(f.ravel() for f in factors)).reshape(*factors[0].shape, 2, 48, 48)


@pytest.fixture
def silhouette(monkeypatch):
    """Like ``render``, with True where a toy is seen: every part is painted too bright for any ground."""
    toy = toys.toy
    monkeypatch.setattr(
        toys, "toy", lambda k: ([(*part, 1e6) for *part, _ in toy(k)[0]], toy(k)[1])
    )
    return lambda *factors: render(*factors) == 255


@pytest.fixture(scope="module")
def sample():
    """One picture of every toy, over all elevations, azimuths and lightings."""
    return render(TOYS, TOYS % 9, TOYS * 7 % 18, TOYS % 6)


@pytest.mark.parametrize(
    ("split", "instances"), [("train", [4, 6, 7, 8, 9]), ("test", [0, 1, 2, 3, 5])]
)
def test_every_combination_of_factors_once(split, instances):
    found = data.load("toys", split)
    values = [range(5), instances, range(9), range(0, 36, 2), range(6)]
    names = ["labels", "instance", "elevation", "azimuth", "lighting"]
    rows = np.stack([found[name] for name in names], 1)
    np.testing.assert_array_equal(
        rows, np.stack(np.meshgrid(*values, indexing="ij"), -1).reshape(-1, 5)
    )
    assert all(
        found[name].dtype == np.int64 and not found[name].flags.writeable for name in names
    )
    assert found.images.shape == data.SETS["toys"].splits[split] == (len(found), 2, 48, 48)
    assert found.classes == data.SETS["smallnorb"].classes
    row = 20_000
    toy = 10 * found.labels[row] + found["instance"][row]
    picture = render(
        toy, found["elevation"][row], found["azimuth"][row] // 2, found["lighting"][row]
    )
    np.testing.assert_array_equal(found.images[row], picture)


def test_nothing_is_rendered_for_a_fingerprint(monkeypatch):
    monkeypatch.setattr(toys, "render", None)
    train, test = (data.load("toys", split) for split in ("train", "test"))
    # Another hash means other factors or another revision: records made with them cannot be compared.
    assert train.fingerprint == test.fingerprint
    assert (train.fingerprint.name, train.fingerprint.sha256, train.fingerprint.stand_in) == (
        "toys",
        FINGERPRINT,
        True,
    )


def test_images_are_rendered_when_they_are_read_and_once(monkeypatch):
    def count(*factors):
        rendered.extend(factors[1].tolist())
        return draw(*factors)

    draw, rendered = toys.render, []
    monkeypatch.setattr(toys, "render", count)
    factors = np.full(9, 12), np.arange(9), np.arange(9), np.arange(9) % 6
    array, images = draw(*factors), toys.Renderings(*factors)
    assert (images.shape, images.dtype, images.ndim, len(images)) == (
        array.shape,
        array.dtype,
        array.ndim,
        len(array),
    )
    mask = np.arange(9) == 6
    for key, new in (
        (4, [4]),
        ([4, 2], [2]),
        (slice(2, 5), [3]),
        (mask, [6]),
        (-1, [8]),
        ((4, 0, ..., 7), []),
        ([], []),
    ):
        np.testing.assert_array_equal(images[key], array[key])
        assert rendered == new
        rendered.clear()
    with pytest.raises(IndexError):
        images[9]
    with pytest.raises(ValueError, match="read-only"):
        images[2:4][:] = 0
    np.testing.assert_array_equal(images[..., 0], array[..., 0])
    assert rendered == [0, 1, 5, 7]
    np.testing.assert_array_equal(np.asarray(images), array)
    assert np.asarray(images, np.float32).dtype == np.float32


def test_a_row_has_the_same_bytes_alone_and_in_any_company():
    elevation, azimuth, lighting = np.indices((4, 3, 2)).reshape(3, -1)
    for toy in (8, 31, 47):
        together = render(toy, elevation, azimuth, lighting)
        for row in (0, 11, 23):
            np.testing.assert_array_equal(
                render(toy, elevation[row], azimuth[row], lighting[row]), together[row]
            )


def test_no_picture_has_changed(sample):
    """One number of each toy, which a mirrored or shifted picture would change too. If this fails, take back the change or raise
    ``REVISION``: records made before must not be compared with records made after."""
    ramp = np.linspace(0, 2, sample[0].size).reshape(sample[0].shape)
    assert (sample * ramp).mean((1, 2, 3)) == pytest.approx(PICTURES, abs=0.05)


# -------------------------------------------------------------------------------------------------------- the pictures


def test_toys_are_whole_and_in_the_middle(silhouette):
    seen = silhouette(TOYS[:, None, None], np.array([0, 8])[:, None], np.array([3, 8]), 3)
    share = seen.mean((-1, -2))
    assert share.min() > 0.02
    assert share.max() < 0.4
    for axis in (-1, -2):
        line = seen.any(axis)  # of rows, of columns
        assert not line[..., [0, 1, 2, -3, -2, -1]].any()
        middle = (line.argmax(-1) + 47 - line[..., ::-1].argmax(-1)) / 2
        assert abs(middle - 23.5).max() < 6


def test_silhouettes_are_those_of_points_inside_of_parts(silhouette, monkeypatch):
    """Every fourth pixel of every fourth row against a walk along its ray: is any step inside of any part?"""
    monkeypatch.setattr(toys, "BASELINE", 0)
    up, turn = np.radians(40), np.radians(60)
    ahead, right, down = (
        np.array([-np.cos(up), 0, -np.sin(up)]),
        np.array([0, 1, 0]),
        np.array([np.sin(up), 0, -np.cos(up)]),
    )
    pixel = (np.arange(0, 48, 4) + 0.5) / 24 - 1
    v, u, t = np.meshgrid(pixel, pixel, np.linspace(4.9, 7.1, 300), indexing="ij")
    points = -toys.DISTANCE * ahead + t[..., None] * (
        ahead + toys.FIELD * (u[..., None] * right + v[..., None] * down)
    )
    points = points @ [
        [np.cos(turn), -np.sin(turn), 0],
        [np.sin(turn), np.cos(turn), 0],
        [0, 0, 1],
    ]  # back to a toy not turned
    for toy in (1, 22, 33):
        inside = np.zeros(t.shape, bool)
        for at, size, bend, _ in toys.toy(toy)[0]:
            own = (points - at) / size
            inside |= (abs(own) <= 1).all(-1) & ((bend * own**2).sum(-1) <= 1)
        expected = inside.any(-1)
        assert expected.sum() > 5
        assert (
            silhouette(toy, 2, 3, 3)[0, ::4, ::4] != expected
        ).sum() <= 1  # a ray may touch an edge


def test_the_ground_is_even_and_brighter_than_most_of_a_toy(sample, silhouette):
    seen = silhouette(TOYS, TOYS % 9, TOYS * 7 % 18, TOYS % 6)
    assert all(
        picture[~toy].mean() > picture[toy].mean()
        for picture, toy in zip(sample, seen, strict=True)
    )
    assert np.ptp(sample[:, :, :3, :3].reshape(50, -1), axis=1).max() <= 30


def test_no_two_toys_look_the_same():
    one = render(TOYS, 3, 4, 3)[:, 0].astype(np.float32).reshape(50, -1)
    apart = np.stack([abs(one - other).mean(1) for other in one]) + 99 * np.eye(50)
    assert apart.min() > 1


def test_lighting_changes_grey_values_and_not_the_silhouette(request):
    some = TOYS[::10, None], 2, 5, np.arange(6)
    lit = render(*some).astype(int)
    seen = request.getfixturevalue("silhouette")(*some)
    assert (seen == seen[:, :1]).all()
    for a, b in zip(*np.triu_indices(6, 1), strict=True):
        change = abs(lit[:, a] - lit[:, b])
        assert all(one[where].mean() > 2 for one, where in zip(change, seen[:, 0], strict=True))


def test_what_is_near_lies_further_right_for_the_left_camera():
    """A car or a truck that points to the cameras: its front is below the middle of the picture, its rear above."""
    left, right = np.moveaxis(render(TOYS[30:], 0, 0, 3).astype(int), 1, 0)
    shifts = range(-4, 5)

    def best(rows):
        costs = [
            abs(left[:, rows, 5:-5] - right[:, rows, 5 - s : 43 - s]).sum((1, 2))
            for s in shifts
        ]
        return np.array(shifts)[np.argmin(costs, 0)]

    near, far = best(slice(28, 40)), best(slice(8, 20))
    assert (near >= far).all()
    assert near.mean() > 0.5
    assert far.mean() < -0.5


def test_neighbouring_viewpoints_are_more_alike_than_distant_ones():
    around = render(TOYS[::10, None], 3, np.arange(18), 3)[:, :, 0].astype(int)
    by_angle = [
        abs(around - np.roll(around, k, axis=1)).mean() for k in range(1, 5)
    ]  # 20°, 40°, 60°, 80°
    assert by_angle == sorted(by_angle)
    assert by_angle[0] < 0.7 * by_angle[3]
    above = render(TOYS[::10, None], np.arange(0, 9, 2), 5, 3)[:, :, 0].astype(int)
    by_height = [abs(above[:, k] - above[:, 0]).mean() for k in range(5)]
    assert by_height == sorted(by_height)


def test_the_nearest_mean_finds_many_categories_but_not_all():
    """On unseen toys at 24×24 pixels, one elevation and one lighting: clearly better than chance (0.2), and not trivial."""
    pictures, labels = {}, {}
    for split, instances in toys.INSTANCES.items():
        some = (10 * np.arange(5)[:, None] + instances).ravel()
        found = render(some[:, None], 3, np.arange(0, 18, 6), 3)[:, :, 0].reshape(
            25 * 3, 24, 2, 24, 2
        )
        pictures[split], labels[split] = (
            found.mean((2, 4)).reshape(len(found), -1),
            np.repeat(some // 10, 3),
        )
    means = np.stack([pictures["train"][labels["train"] == k].mean(0) for k in range(5)])
    guesses = (((means * means).sum(1)) - 2 * pictures["test"] @ means.T).argmin(1)
    assert 0.4 < (guesses == labels["test"]).mean() < 0.9
