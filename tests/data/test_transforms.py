"""Each transform against the same thing done one image at a time."""

import numpy as np
import pytest
import torch

from capslib.data import transforms as T


@pytest.fixture
def images():
    return torch.randint(0, 256, (6, 2, 9, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_as_tensor_copies_a_read_only_array(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(6, dtype=np.int64))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    tensor = T.as_tensor(mapped)
    tensor += 1
    assert tensor.dtype == torch.int64
    assert mapped.tolist() == list(range(6))
    assert tensor.tolist() == list(range(1, 7))


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
    faint[0, 0, 0, 0] = 1e-3  # its deviation is below 1/√16, which then divides
    torch.testing.assert_close(T.standardise(faint), (faint - faint.mean()) * 4)


def test_downsample():
    x = torch.arange(16.0).reshape(1, 1, 4, 4)
    assert T.downsample(x, 2).tolist() == [[[[2.5, 4.5], [10.5, 12.5]]]]
    for factor in (0, 3):
        with pytest.raises(ValueError, match="does not divide"):
            T.downsample(x, factor)


def test_random_crop_takes_a_true_window_of_each_image(images):
    crops = T.random_crop(images, (3, 4), torch.Generator().manual_seed(1))
    assert crops.shape == (6, 2, 3, 4)
    for image, crop in zip(images, crops, strict=True):
        windows = image.unfold(1, 3, 1).unfold(2, 4, 1)  # [C, tops, lefts, 3, 4]
        assert (windows == crop[:, None, None]).all(dim=(0, 3, 4)).any()


def test_random_crop_uses_every_place_and_only_its_generator(images):
    position = torch.arange(63).reshape(1, 1, 9, 7).expand(4000, 1, 9, 7)
    crops = T.random_crop(position, 5, torch.Generator().manual_seed(2))
    corners = crops[:, 0, 0, 0].unique()
    assert corners.tolist() == [r * 7 + c for r in range(5) for c in range(3)]
    torch.manual_seed(3)
    first = T.random_crop(images, 5, torch.Generator().manual_seed(4))
    torch.manual_seed(5)
    assert torch.equal(first, T.random_crop(images, 5, torch.Generator().manual_seed(4)))


def test_centre_crop_and_pad(images):
    assert torch.equal(T.centre_crop(images, 5), images[:, :, 2:7, 1:6])
    assert torch.equal(T.centre_crop(images, (4, 7)), images[:, :, 2:6, :])
    padded = T.pad(images, 12)
    assert padded.shape == (6, 2, 12, 12)
    assert torch.equal(padded[:, :, 1:10, 2:9], images)
    assert padded.sum(dtype=torch.int64) == images.sum(dtype=torch.int64)
    assert torch.equal(T.centre_crop(padded, (9, 7)), images)
    for call in (T.centre_crop, lambda x, s: T.random_crop(x, s, torch.Generator())):
        with pytest.raises(ValueError, match="does not fit"):
            call(images, 8)
    with pytest.raises(ValueError, match="cannot be padded"):
        T.pad(images, 8)
