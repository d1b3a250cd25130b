"""Each transform against the same computation on single images."""

import pytest
import torch

from capslib.data import transforms as T


def draw(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def images():
    return torch.randint(0, 256, (6, 2, 9, 7), dtype=torch.uint8, generator=draw())


@pytest.fixture
def x(images):
    return T.to_float(images)


def test_to_float(images, x):
    assert x.dtype == torch.float32
    assert torch.equal((x * 255).round().to(torch.uint8), images)
    assert T.to_float(torch.tensor([0, 255], dtype=torch.uint8)).tolist() == [0.0, 1.0]
    with pytest.raises(TypeError, match="uint8"):
        T.to_float(x)


def test_standardise(x):
    for image, original in zip(T.standardise(x), x, strict=True):
        expected = (original - original.mean()) / original.std(correction=0)
        torch.testing.assert_close(image, expected)


def test_standardise_of_a_grey_and_of_almost_a_grey():
    assert torch.equal(T.standardise(torch.full((1, 1, 4, 4), 0.5)), torch.zeros(1, 1, 4, 4))
    faint = torch.zeros(1, 1, 4, 4)
    faint[0, 0, 0, 0] = 1e-3  # its deviation is below the floor 1/√16
    torch.testing.assert_close(T.standardise(faint), (faint - faint.mean()) * 4)


def test_bounds_are_what_black_and_white_become(x):
    """Also for an image of a grey, whose deviation has a floor: it becomes 0, in the middle."""
    grey = torch.tensor([0.25, 0.0, 1.0]).reshape(3, 1, 1, 1).expand(3, 2, 9, 7)
    x = torch.cat([x, grey])
    standard = T.standardise(x)
    corner = torch.zeros(9, 1, 1, 1)
    low, high = T.standardise(corner, of=x), T.standardise(corner + 1, of=x)
    for bound, value in ((low, 0.0), (high, 1.0)):
        extreme = standard[x == value]
        torch.testing.assert_close(extreme, bound.expand_as(x)[x == value])
        assert len(extreme) > 126  # not only of the image that is all black or all white
    assert ((low <= standard) & (standard <= high)).all()
    assert (high - low)[6:].flatten().tolist() == pytest.approx([126**0.5] * 3)
    assert torch.equal(standard[6], torch.zeros(2, 9, 7))


def test_downsample():
    x = torch.arange(16.0).reshape(1, 1, 4, 4)
    assert T.downsample(x, 2).tolist() == [[[[2.5, 4.5], [10.5, 12.5]]]]
    for factor in (0, 3):
        with pytest.raises(ValueError, match="does not divide"):
            T.downsample(x, factor)


def test_random_crop_is_a_slice_of_each_image_at_a_place_of_its_own():
    x = torch.arange(400 * 2 * 6 * 5).reshape(400, 2, 6, 5)  # a pixel reveals its place
    crops = T.random_crop(x, 3, draw())
    counts = torch.zeros(4, 3)
    for image, crop in zip(x, crops, strict=True):
        [[_, row, column]] = (image == crop[0, 0, 0]).nonzero().tolist()
        assert torch.equal(crop, image[:, row : row + 3, column : column + 3])
        counts[row, column] += 1
    assert counts.min() > 15  # expected: 33 ± 6
    with pytest.raises(ValueError, match="no crop of"):
        T.random_crop(x, 6, draw())


@pytest.mark.parametrize("transform", [lambda x, g: T.random_crop(x, 4, g), T.jitter])
def test_random_transforms_depend_on_their_generator_and_move_it_on(x, transform):
    generator = draw()
    first = transform(x, generator)
    assert torch.equal(first, transform(x, draw()))
    assert not torch.equal(first, transform(x, draw(1)))
    assert not torch.equal(first, transform(x, generator))


def test_center_crop(images):
    assert torch.equal(T.center_crop(images, 5), images[:, :, 2:7, 1:6])
    # (9 − 4) // 2 and (7 − 4) // 2, as in TensorFlow
    assert torch.equal(T.center_crop(images, 4), images[:, :, 2:6, 1:5])
    with pytest.raises(ValueError, match="not all crops of 8 × 8 lie within images of 9 × 7"):
        T.center_crop(images, 8)


def test_crops():
    x = torch.rand(3, 2, 48, 48, generator=draw())
    diagonals = [(a, a) for a in range(-3, 4)] + [(a, -a) for a in range(-3, 4) if a]
    assert sorted(T.CENTRE_AND_DIAGONALS) == sorted(diagonals)
    for crop, (down, right) in zip(T.crops(x, 32), T.CENTRE_AND_DIAGONALS, strict=True):
        assert torch.equal(crop, x[:, :, 8 + down : 40 + down, 8 + right : 40 + right])
    T.crops(x, 32, [(8, -8)])
    for outside in ((9, 0), (0, -9)):
        with pytest.raises(ValueError, match="not all crops"):
            T.crops(x, 32, [(0, 0), outside])


def test_jitter_draws_a_shift_and_a_factor_for_each_image(x):
    for image, original in zip(T.jitter(x, draw()), x, strict=True):
        # Contrast leaves the mean of a channel where it is.
        shift = (image - original).mean(dim=(1, 2))
        torch.testing.assert_close(shift[0], shift[1])
        contrast = original - original.mean(dim=(1, 2), keepdim=True)
        factors = (image - image.mean(dim=(1, 2), keepdim=True)) / contrast
        factor = factors.median().expand_as(factors)
        torch.testing.assert_close(factors, factor, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(T.jitter(x, draw(), brightness=0, contrast=(1, 1)), x)


def test_jitter_reaches_its_bounds_and_draws_both_numbers_apart():
    x = torch.tensor([0.0, 1.0]).reshape(1, 1, 1, 2).expand(20_000, 1, 1, 2)
    dark, light = T.jitter(x, draw()).reshape(20_000, 2).T
    shift, factor = (dark + light) / 2 - 0.5, light - dark
    for numbers, low, high in ((shift, -63 / 255, 63 / 255), (factor, 0.2, 1.8)):
        assert low <= numbers.min() + 1e-6
        assert numbers.max() <= high + 1e-6
        extremes = [numbers.min().item(), numbers.max().item()]
        assert extremes == pytest.approx([low, high], abs=0.01)
        assert numbers.mean().item() == pytest.approx((low + high) / 2, abs=0.02)
    assert abs(torch.corrcoef(torch.stack([shift, factor]))[0, 1]) < 0.03


def test_standardise_removes_brightness_but_keeps_differences_between_channels(x):
    shifted = T.jitter(x, draw(), contrast=(1, 1))
    torch.testing.assert_close(T.standardise(shifted), T.standardise(x))
    grey = x[:, :1].expand_as(x)
    jittered = T.standardise(T.jitter(grey, draw()))
    torch.testing.assert_close(jittered, T.standardise(grey))
    jittered = T.standardise(T.jitter(x, draw()))
    assert not torch.allclose(jittered, T.standardise(x), atol=1e-3)


def test_a_constant_image_stays_finite():
    x = torch.full((4, 2, 8, 8), 0.5)
    crops = T.random_crop(T.jitter(x, draw()), 5, draw())
    torch.testing.assert_close(T.standardise(crops), torch.zeros(4, 2, 5, 5), atol=1e-5, rtol=0)
