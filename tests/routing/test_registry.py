"""What is known by name, and open for more; the tests of the house import it without torch."""

from __future__ import annotations

import pytest
import torch

from capslib import routing
from capslib.errors import UserError
from capslib.registry import LOSSES, NETWORKS, ROUTINGS, Registry


@pytest.mark.parametrize("registry", [ROUTINGS, NETWORKS, LOSSES], ids=lambda r: r.kind)
def test_every_entry_can_be_had(registry):
    assert all(map(callable, registry.values()))
    with pytest.raises(UserError, match=f"Unknown {registry.kind} 'nothing like it'"):
        registry["nothing like it"]
    assert registry.get("nothing like it") is None


@pytest.mark.parametrize(
    ("name", "option"), [("em", "spread"), ("connectionist", "reads"), ("similarity", "start")]
)
def test_a_mistyped_option_of_a_routing_is_answered(name, option):
    with pytest.raises(UserError, match=f"Unknown {option} 'releasd'. "):
        routing.make_routing(name, 3, 4, **{option: "releasd"})(
            torch.randn(2, 5, 3, 4), torch.rand(2, 5)
        )


def test_the_routings_are_those_of_the_registry():
    assert routing.ROUTINGS is ROUTINGS
    with pytest.raises(UserError, match=r"Unknown routing 'emm'\. Did you mean 'em'"):
        routing.make_routing("emm", 3, 4)


def test_an_entry_can_be_added_replaced_and_taken_out_again():
    registry = Registry("thing", {"one": 1, "pi": "math:pi"})
    registry["two"] = 2
    registry["one"] = "math:e"
    assert (registry["two"], round(registry["one"], 2), len(registry)) == (2, 2.72, 3)
    del registry["two"]
    assert list(registry) == ["one", "pi"]
