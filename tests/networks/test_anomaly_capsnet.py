"""The two-class capsule networks at the paper's sizes, counted, and what their decoder sees."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from capslib.networks.inequality_anomaly import ANOMALY, NORMAL, AnomalyCapsNet
from capslib.papers.inequality_anomaly.recipe import PAPER, AnomalyRecipe

PAPERS = {  # data: shape, setup, children and their dimension (§2.1 of the specification)
    "mnist": ((1, 28, 28), "outliers", 1152, 32),
    "cifar10": ((3, 32, 32), "outliers", 2048, 32),
    "ham10000": ((3, 75, 100), "A", 40_320, 8),
    "crispr": ((2, 4, 23), "off_targets", 352, 32),
}


@pytest.mark.parametrize("data", PAPERS)
def test_sizes_of_the_paper(data):
    shape, setup, children, dim = PAPERS[data]
    which = dict(kind=0, percent=10) if setup == "outliers" else {}
    recipe = AnomalyRecipe(data=data, setup=setup, **which, **PAPER.get(data, {}))
    with torch.device("meta"):
        network = recipe.build(shape, 2)
        output = network(torch.rand(3, *shape))
    k, pixels = recipe.kernel**2, shape[0] * shape[1] * shape[2]
    assert output.coupling.shape == (3, children, 2)
    assert output.reconstruction.shape == (3, pixels)
    parts = {
        "conv": (shape[0] * k + 1) * 256,
        "primary": (256 * k + 1) * 32 * dim,
        "classes": children * dim * 2 * 16,
        "decoder": 33 * 512 + 513 * 1024 + 1025 * pixels,
    }
    assert {
        name: sum(p.numel() for p in getattr(network, name).parameters()) for name in parts
    } == parts
    if data == "mnist":
        assert (sum(parts.values()), parts["primary"]) == (
            23_781_136,
            21_234_688,
        )  # "23.8M, 21.2M of them primary"
    assert network.nonlinearity is (
        nn.functional.elu if data == "ham10000" else nn.functional.relu
    )


def test_at_the_start_norms_are_tiny():
    """With W ~ N(0, 1) and 1152 terms averaged, 0.001 to 0.004 (§3 of the specification): the first epoch only grows them."""
    torch.manual_seed(0)
    network = AnomalyCapsNet((1, 28, 28), filters=32)
    with torch.no_grad():
        assert 1e-4 < network(torch.rand(4, 1, 28, 28)).activation.mean() < 1e-2


def test_the_decoder_sees_the_longer_capsule_only():
    network = AnomalyCapsNet(
        (1, 12, 12), kernel=3, filters=4, primary_types=2, primary_dim=4, decoder=(8, 8)
    ).eval()
    seen = []
    network.decoder.register_forward_pre_hook(
        lambda _, given: seen.append(given[0].unflatten(1, (2, 16)))
    )
    output = network(torch.rand(64, 1, 12, 12))
    longer = output.activation.argmax(dim=1)
    assert set(longer.tolist()) == {NORMAL, ANOMALY}
    lengths = seen[0].norm(dim=-1)
    torch.testing.assert_close(
        lengths.gather(1, longer[:, None])[:, 0], output.activation.amax(dim=1)
    )
    assert (lengths.gather(1, 1 - longer[:, None]) == 0).all()
