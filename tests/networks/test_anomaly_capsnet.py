"""The two-class capsule networks at the paper's sizes, and what their decoder sees."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from torch import nn

from capslib.networks.inequality_anomaly import ANOMALY, NORMAL, AnomalyCapsNet
from capslib.papers.experiment import Arm
from capslib.papers.inequality_anomaly.recipe import (
    PAPER,
    AnomalyRecipe,
    paper_recipe,
    smaller,
)
from capslib.training import Context, Examples, fit

OUTLIERS = {"setup": "outliers", "kind": 0, "percent": 10}
ARMS = {
    "mnist": OUTLIERS,
    "cifar10": OUTLIERS,
    "ham10000": {"setup": "A"},
    "crispr": {"setup": "off_targets"},
}


@pytest.mark.parametrize(
    ("data", "shape", "children", "dim"),
    [
        ("mnist", (1, 28, 28), 1152, 32),
        ("cifar10", (3, 32, 32), 2048, 32),
        ("ham10000", (3, 75, 100), 40_320, 8),
        ("crispr", (2, 4, 23), 352, 32),
    ],
)
def test_sizes_of_the_paper(data, shape, children, dim):
    """§2.1 of the specification, counted by hand; 23.8 M for MNIST, 21.2 M of them primary."""
    recipe = AnomalyRecipe(data=data, **ARMS[data], **PAPER.get(data, {}))
    with torch.device("meta"):
        network = recipe.build(shape, 2)
        output = network(torch.rand(3, *shape))
    window, pixels = recipe.kernel**2, math.prod(shape)
    assert output.coupling.shape == (3, children, 2)
    assert output.reconstruction.shape == (3, pixels)
    sizes = Counter()
    for name, parameter in network.named_parameters():
        sizes[name.split(".")[0]] += parameter.numel()
    assert sizes == {
        "conv": (shape[0] * window + 1) * 256,
        "primary": (256 * window + 1) * 32 * dim,
        "classes": children * dim * 2 * 16,
        "decoder": 33 * 512 + 513 * 1024 + 1025 * pixels,
    }
    if data == "mnist":
        assert (sizes.total(), sizes["primary"]) == (23_781_136, 21_234_688)
    nonlinearity = nn.functional.elu if data == "ham10000" else nn.functional.relu
    assert network.nonlinearity is nonlinearity


@pytest.mark.parametrize(
    ("data", "scale", "is_last"),
    [
        ("mnist", "cpu", True),
        ("mnist", "paper", False),
        ("ham10000", "paper", False),
        ("crispr", "paper", True),
    ],
)
def test_a_cpu_trains_all_but_the_largest_convolutions_in_channels_last(data, scale, is_last):
    """Records at cpu scale, and those of CRISPR, were made so: it decides the last digits."""
    arm = Arm(data, paper_recipe(data, **ARMS[data]))
    recipe = arm.changed(smaller(scale, arm)).recipe
    with torch.device("meta"):
        network = recipe.build(recipe.input_shape, 2)
    assert network.channels_last == is_last


@pytest.mark.parametrize("channels_last", [True, False])
def test_training_sets_the_memory_format_that_the_network_names(channels_last):
    network = AnomalyCapsNet((1, 8, 8), filters=4, kernel=3, primary_types=2, primary_dim=2)
    network.channels_last = channels_last
    examples = Examples(torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 0, 1]))
    fit(
        network,
        examples,
        loss=lambda model, batch: {"loss": model(batch.inputs).activation.sum()},
        optimizer=torch.optim.SGD(network.parameters(), 0.1),
        epochs=1,
        batch_size=4,
        context=Context(seed=0),
    )
    weight = network.primary.conv.weight
    assert weight.is_contiguous(memory_format=torch.channels_last) == channels_last


def test_at_the_start_norms_are_tiny():
    """0.001 to 0.004, by §3 of the specification: W ~ N(0, 1), and 1152 terms averaged."""
    network = AnomalyCapsNet((1, 28, 28), filters=32)
    with torch.no_grad():
        assert 1e-4 < network(torch.rand(4, 1, 28, 28)).activation.mean() < 1e-2


def test_the_decoder_sees_the_longer_capsule_only():
    torch.manual_seed(1)  # each capsule is the longer one for some images
    small = dict(kernel=3, filters=4, primary_types=2, primary_dim=4, decoder=(8, 8))
    network = AnomalyCapsNet((1, 12, 12), **small)
    poses = []
    network.decoder.register_forward_pre_hook(lambda _, inputs: poses.append(inputs[0]))
    activation = network(torch.rand(64, 1, 12, 12)).activation
    longest = activation.argmax(dim=1, keepdim=True)
    assert set(longest.flatten().tolist()) == {NORMAL, ANOMALY}
    lengths = poses[0].unflatten(1, (2, 16)).norm(dim=-1)
    expected = torch.zeros_like(lengths).scatter(1, longest, activation.gather(1, longest))
    torch.testing.assert_close(lengths, expected)
