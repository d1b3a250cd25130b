"""What is known by name, and open for more. That names are known without torch is tested with the house."""

from __future__ import annotations

import pytest
import torch

from capslib import routing
from capslib.errors import UserError
from capslib.registry import LOSSES, NETWORKS, ROUTINGS, Registry


@pytest.mark.parametrize("known", [ROUTINGS, NETWORKS, LOSSES], ids=lambda known: known.kind)
def test_every_entry_can_be_had(known):
    assert all(callable(known[name]) for name in known)
    assert dict(known.items()).keys() == set(known)
    with pytest.raises(UserError, match=f"Unknown {known.kind} 'nothing like it'"):
        known["nothing like it"]
    assert known.get("nothing like it") is None


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("em", {"spread": "varience"}),
        ("connectionist", {"reads": "papr"}),
        ("similarity", {"start": "stepp"}),
    ],
)
def test_a_mistyped_option_of_a_routing_is_answered(name, option):
    """It passed for the other of two words, and the routing was not the one that was asked for."""
    (kind, word), *_ = option.items()
    with pytest.raises(UserError, match=f"Unknown {kind} '{word}'. Did you mean "):
        routing.make_routing(name, 3, 4, **option)(torch.randn(2, 5, 3, 4), torch.rand(2, 5))


def test_the_routings_are_those_of_the_registry():
    assert routing.ROUTINGS is ROUTINGS
    assert LOSSES["cross_entropy"] is torch.nn.functional.cross_entropy


def test_an_entry_can_be_added_replaced_and_taken_out_again(monkeypatch):
    known = Registry("thing", {"one": 1, "pi": "math:pi"})
    with monkeypatch.context() as patch:
        patch.setitem(known, "two", 2)
        patch.setitem(known, "one", "math:e")
        assert (known["two"], round(known["one"], 2), len(known)) == (2, 2.72, 3)
    assert (list(known), known["one"]) == (["one", "pi"], 1)
