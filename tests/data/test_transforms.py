"""Each transform against the same computation on single images."""

import pytest
import torch

from capslib.data import transforms as T


def draw(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def images():
    return torch.randint(0, 256, (6, 2, 9, 7), dtype=torch.uint8)


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
    faint = torch.zeros(1, 1, 4, 4)
    faint[0, 0, 0, 0] = 1e-3  # its deviation is below the floor 1/√16
    torch.testing.assert_close(T.standardise(faint), (faint - faint.mean()) * 4)


@pytest.mark.filterwarnings("ignore:std")  # torch warns of numbers without a deviation
def test_a_batch_without_images_stays_one(x):
    assert T.standardise(x[:0]).shape == (0, 2, 9, 7)


def test_bounds_are_what_black_and_white_become(x):
    """Also for an image of a grey, whose deviation has a floor: it becomes 0, in the middle."""
    grey = torch.full((1, 2, 9, 7), 0.25)
    x = torch.cat([x, grey, torch.zeros_like(grey), torch.ones_like(grey)])
    standard = T.standardise(x)
    black = torch.zeros(9, 1, 1, 1)
    low = T.standardise(black, of=x)
    high = T.standardise(black + 1, of=x)
    for bound, value in ((low, 0.0), (high, 1.0)):
        pixels = x == value
        expected = bound.expand_as(x)[pixels]
        torch.testing.assert_close(standard[pixels], expected)
        assert len(expected) > 126, "not only of the image that is all black or all white"
    assert (low <= standard).all()
    assert (standard <= high).all()
    ranges = (high - low)[6:].flatten()
    assert ranges.tolist() == pytest.approx([126**0.5] * 3)
    assert not standard[6].any()


def test_downsample():
    x = torch.arange(16.0).reshape(1, 1, 4, 4)
    assert T.downsample(x, 2).tolist() == [[[[2.5, 4.5], [10.5, 12.5]]]]
    for factor in (0, 3):
        with pytest.raises(ValueError, match="does not divide"):
            T.downsample(x, factor)


def test_random_crop_is_a_slice_of_each_image_at_a_place_of_its_own():
    x = torch.arange(400 * 2 * 6 * 5).reshape(400, 2, 6, 5)  # a pixel reveals its place
    counts = torch.zeros(4, 3)
    for image, crop in zip(x, T.random_crop(x, 3, draw()), strict=True):
        [[_, row, column]] = (image == crop[0, 0, 0]).nonzero().tolist()
        assert torch.equal(crop, image[:, row : row + 3, column : column + 3])
        counts[row, column] += 1
    assert counts.min() > 15  # expected: 33 ± 6


@pytest.mark.parametrize("transform", [lambda x, g: T.random_crop(x, 4, g), T.jitter])
def test_random_transforms_depend_on_their_generator_and_move_it_on(x, transform):
    generator = draw()
    first = transform(x, generator)
    assert torch.equal(first, transform(x, draw()))
    assert not torch.equal(first, transform(x, draw(1)))
    assert not torch.equal(first, transform(x, generator))


def test_center_crop(images):
    assert torch.equal(T.center_crop(images, 5), images[:, :, 2:7, 1:6])
    as_in_tensorflow = images[:, :, 2:6, 1:5]  # from (9 − 4) // 2 and (7 − 4) // 2
    assert torch.equal(T.center_crop(images, 4), as_in_tensorflow)
    with pytest.raises(ValueError, match="not all crops of 8 × 8 lie within images of 9 × 7"):
        T.center_crop(images, 8)


def test_crops_are_those_of_the_centre_and_the_diagonals():
    x = torch.rand(3, 2, 48, 48)
    offsets = {(0, 0)}
    for step in (-3, -2, -1, 1, 2, 3):
        offsets |= {(step, step), (step, -step)}
    assert set(T.CENTRE_AND_DIAGONALS) == offsets
    assert len(T.CENTRE_AND_DIAGONALS) == 13
    for crop, offset in zip(T.crops(x, 32), T.CENTRE_AND_DIAGONALS, strict=True):
        top, side = 8 + offset[0], 8 + offset[1]
        assert torch.equal(crop, x[:, :, top : top + 32, side : side + 32])


def test_every_crop_lies_within_the_image():
    x = torch.rand(3, 2, 48, 48)
    T.crops(x, 32, [(8, -8)])
    for outside in ((9, 0), (0, -9)):
        with pytest.raises(ValueError, match="not all crops"):
            T.crops(x, 32, [(0, 0), outside])


def test_jitter_draws_a_shift_and_a_factor_for_each_image():
    """Of contrast, about the mean of a channel; both within their bounds, and independent."""
    channels = torch.tensor([[0.0, 1.0], [0.3, 0.5]])
    x = channels[None, :, None].expand(20_000, 2, 1, 2)
    jittered = T.jitter(x, draw())
    shift = (jittered - x).mean(dim=(2, 3))
    factor = jittered.diff(dim=3).flatten(1) / x.diff(dim=3).flatten(1)
    for numbers, low, high in ((shift, -63 / 255, 63 / 255), (factor, 0.2, 1.8)):
        first, second = numbers.T
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)
        assert first.min().item() == pytest.approx(low, abs=0.01)
        assert first.max().item() == pytest.approx(high, abs=0.01)
        assert first.mean().item() == pytest.approx((low + high) / 2, abs=0.02)
    draws = torch.stack([shift[:, 0], factor[:, 0]])
    assert abs(torch.corrcoef(draws)[0, 1]) < 0.03
    unchanged = T.jitter(x, draw(), brightness=0, contrast=(1, 1))
    torch.testing.assert_close(unchanged, x)


def test_standardise_removes_brightness_but_keeps_differences_between_channels(x):
    shifted = T.jitter(x, draw(), contrast=(1, 1))
    torch.testing.assert_close(T.standardise(shifted), T.standardise(x))
    jittered = T.standardise(T.jitter(x, draw()))
    assert not torch.allclose(jittered, T.standardise(x), atol=1e-3)
