"""Each transform against the same computation on single images."""

import pytest
import torch

from capslib.data import transforms as T


@pytest.fixture
def images():
    return torch.randint(
        0, 256, (6, 2, 9, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )


def test_to_float(images):
    x = T.to_float(images)
    assert x.dtype == torch.float32
    assert torch.equal((x * 255).round().to(torch.uint8), images)
    assert T.to_float(torch.tensor([0, 255], dtype=torch.uint8)).tolist() == [0.0, 1.0]
    with pytest.raises(TypeError, match="uint8"):
        T.to_float(x)


def test_standardise(images):
    x = T.standardise(T.to_float(images))
    for one, raw in zip(x, T.to_float(images), strict=True):
        assert one.mean().item() == pytest.approx(0, abs=1e-5)
        assert one.std(correction=0).item() == pytest.approx(1, abs=1e-4)
        torch.testing.assert_close(one, (raw - raw.mean()) / raw.std(correction=0))


def test_standardise_of_one_grey_and_of_almost_one_grey():
    assert torch.equal(T.standardise(torch.full((1, 1, 4, 4), 0.5)), torch.zeros(1, 1, 4, 4))
    faint = torch.zeros(1, 1, 4, 4)
    faint[0, 0, 0, 0] = 1e-3  # its deviation is below the floor 1/√16
    torch.testing.assert_close(T.standardise(faint), (faint - faint.mean()) * 4)


def test_bounds_are_what_black_and_white_become(images):
    """Also for an image of one grey, whose deviation has a floor: its own value becomes 0, between the two."""
    x = torch.cat(
        [
            T.to_float(images),
            torch.full((1, 2, 9, 7), 0.25),
            torch.zeros(1, 2, 9, 7),
            torch.ones(1, 2, 9, 7),
        ]
    )
    low, high = (
        T.standardise(torch.full_like(x[:, :1, :1, :1], grey), of=x) for grey in (0, 1)
    )
    assert low.shape == high.shape == (9, 1, 1, 1)
    mean = x.mean(dim=(1, 2, 3), keepdim=True)
    std = x.std(dim=(1, 2, 3), keepdim=True, correction=0).clamp_min(x[0].numel() ** -0.5)
    torch.testing.assert_close(T.standardise(x), (x - mean) / std, rtol=0, atol=0)
    for bound, value in ((low, 0.0), (high, 1.0)):
        extreme = T.standardise(x).masked_select(x == value)
        torch.testing.assert_close(extreme, bound.expand_as(x)[x == value])
        assert (
            len(extreme) > 126
        )  # of random images too, not only of the one that is all black or all white
    standard = T.standardise(x)
    assert ((low <= standard) & (standard <= high)).all()
    assert (high - low)[6:].flatten().tolist() == pytest.approx([126**0.5] * 3)
    assert torch.equal(standard[6], torch.zeros(2, 9, 7))


def test_downsample():
    x = torch.arange(16.0).reshape(1, 1, 4, 4)
    assert T.downsample(x, 2).tolist() == [[[[2.5, 4.5], [10.5, 12.5]]]]
    for factor in (0, 3):
        with pytest.raises(ValueError, match="does not divide"):
            T.downsample(x, factor)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_random_crop_is_a_slice_of_each_image_at_a_place_of_its_own():
    x = torch.arange(400 * 2 * 6 * 5).reshape(
        400, 2, 6, 5
    )  # all pixels differ, so each reveals its place
    out = T.random_crop(x, 3, generator())
    places = []
    for one, crop in zip(x, out, strict=True):
        [[_, top, left]] = (one == crop[0, 0, 0]).nonzero().tolist()
        assert torch.equal(crop, one[:, top : top + 3, left : left + 3])
        places.append((top, left))
    counts = [places.count((top, left)) for top in range(4) for left in range(3)]
    assert sum(counts) == 400
    assert min(counts) > 15  # expected: 33 ± 6
    assert torch.equal(out, T.random_crop(x, 3, generator()))
    assert not torch.equal(out, T.random_crop(x, 3, generator(1)))
    with pytest.raises(ValueError, match="no crop of"):
        T.random_crop(x, 6, generator())


def test_random_crop_moves_its_generator_on(images):
    one = generator()
    assert not torch.equal(T.random_crop(images, 4, one), T.random_crop(images, 4, one))


def test_center_crop(images):
    assert torch.equal(T.center_crop(images, 5), images[:, :, 2:7, 1:6])
    assert torch.equal(
        T.center_crop(images, 4), images[:, :, 2:6, 1:5]
    )  # (9 − 4) // 2 and (7 − 4) // 2, as in TensorFlow
    with pytest.raises(ValueError, match="not all crops of 8 × 8 lie within images of 9 × 7"):
        T.center_crop(images, 8)


def test_crops():
    x = torch.rand(3, 2, 48, 48, generator=generator())
    out = T.crops(x, 32)
    assert out.shape == (13, 3, 2, 32, 32)
    assert torch.equal(out[0], T.center_crop(x, 32))
    assert sorted(T.CENTRE_AND_DIAGONALS) == sorted(
        [(0, 0), *((a, b) for a in range(-3, 4) for b in (-a, a) if a)]
    )
    for crop, (down, right) in zip(out, T.CENTRE_AND_DIAGONALS, strict=True):
        assert torch.equal(crop, x[:, :, 8 + down : 40 + down, 8 + right : 40 + right])
    T.crops(x, 32, [(8, -8)])
    for outside in ((9, 0), (0, -9)):
        with pytest.raises(ValueError, match="not all crops"):
            T.crops(x, 32, [(0, 0), outside])


def test_jitter_draws_a_shift_and_a_factor_for_each_image(images):
    x = T.to_float(images)
    out = T.jitter(x, generator())
    assert out.dtype == torch.float32
    for one, raw in zip(out, x, strict=True):
        shift = (one - raw).mean(
            dim=(1, 2)
        )  # contrast leaves the mean of a channel where it is
        torch.testing.assert_close(shift[0], shift[1])
        assert abs(shift[0]) <= 63 / 255
        factors = (one - one.mean(dim=(1, 2), keepdim=True)) / (
            raw - raw.mean(dim=(1, 2), keepdim=True)
        )
        torch.testing.assert_close(
            factors, factors[0, 0, 0].expand_as(factors), rtol=1e-3, atol=1e-3
        )
        assert 0.2 <= factors.median() <= 1.8
    assert torch.equal(out, T.jitter(x, generator()))
    assert not torch.equal(out, T.jitter(x, generator(1)))
    torch.testing.assert_close(T.jitter(x, generator(), brightness=0, contrast=(1, 1)), x)


def test_jitter_reaches_its_bounds():
    x = torch.tensor([0.0, 1.0]).reshape(1, 1, 1, 2).expand(20_000, 1, 1, 2)
    dark, light = T.jitter(x, generator()).reshape(20_000, 2).T
    shift, factor = (dark + light) / 2 - 0.5, light - dark
    for found, low, high in ((shift, -63 / 255, 63 / 255), (factor, 0.2, 1.8)):
        assert low <= found.min() + 1e-6
        assert found.max() <= high + 1e-6
        assert found.min().item() == pytest.approx(low, abs=0.01)
        assert found.max().item() == pytest.approx(high, abs=0.01)
        assert found.mean().item() == pytest.approx((low + high) / 2, abs=0.02)
    assert abs(torch.corrcoef(torch.stack([shift, factor]))[0, 1]) < 0.03


def test_standardise_removes_brightness_but_keeps_differences_between_channels(images):
    x = T.to_float(images)
    torch.testing.assert_close(
        T.standardise(T.jitter(x, generator(), contrast=(1, 1))), T.standardise(x)
    )
    same = x[:, :1].expand_as(x)
    torch.testing.assert_close(T.standardise(T.jitter(same, generator())), T.standardise(same))
    assert not torch.allclose(
        T.standardise(T.jitter(x, generator())), T.standardise(x), atol=1e-3
    )


def test_a_constant_image_stays_finite():
    x = torch.full((4, 2, 8, 8), 0.5)
    out = T.standardise(T.random_crop(T.jitter(x, generator()), 5, generator()))
    torch.testing.assert_close(out, torch.zeros(4, 2, 5, 5), atol=1e-5, rtol=0)
