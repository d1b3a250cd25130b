"""Each transform against the same thing done one image at a time."""

import pytest
import torch

from capslib.data import transforms as T


@pytest.fixture
def images():
    return torch.randint(0, 256, (6, 2, 9, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


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
