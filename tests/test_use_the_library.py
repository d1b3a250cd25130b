"""The page "Use the library" runs, block by block, as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from capslib.routing import ROUTINGS

PAGE = Path(__file__).parent.parent / "book" / "use_the_library.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


@pytest.fixture(scope="module")
def names(tmp_path_factory) -> dict:
    """Return what all blocks of the page define, after they ran in order."""
    scope: dict = {"__name__": "page"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("page"))
        patch.setattr(ROUTINGS, "data", dict(ROUTINGS.data))
        for number, block in enumerate(BLOCKS):
            exec(compile(block, f"block {number} of {PAGE.name}", "exec"), scope)
    return scope


def test_the_first_network_learns(names):
    assert names["score"] > 0.9


def test_layers_of_your_own_start_too(names):
    assert names["activation"].shape == (64, 10)
    assert names["activation"].std() > 0.05


def test_compiled_loaded_and_exported_networks_are_the_same(names):
    images = names["colour"][:8]
    network, loaded = names["colour_network"].eval(), names["loaded"]
    expected = network(images).activation
    torch.testing.assert_close(names["compiled_activation"], expected)
    torch.testing.assert_close(loaded(images).activation, expected)
    torch.testing.assert_close(names["exported"], expected[:5])
    in_bfloat16 = names["bfloat16_activation"].float()
    torch.testing.assert_close(in_bfloat16, expected, atol=0.05, rtol=0.2)


def test_attacked_images_stay_near_and_cost_accuracy(names):
    assert (names["attacked"] - names["colour"][:8]).abs().max() <= 0.03 + 1e-6
    assert names["accuracies"][1] <= names["accuracies"][0]


def test_anomalies_score_higher(names):
    test = names["test"]
    gini = names["anomaly"]["gini"]
    three = torch.tensor(test.labels) == 3
    assert gini[three].median() > gini[~three].median()


def test_a_routing_of_your_own_works_by_name(names):
    assert names["mean"](torch.rand(2, 1, 20, 20)).activation.shape == (2, 3)
