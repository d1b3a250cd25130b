"""What is known by name: without torch until it is needed, and open for more."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from capslib import routing
from capslib.errors import UserError
from capslib.registry import LOSSES, NETWORKS, ROUTINGS, Registry


def test_names_are_known_without_torch():
    code = """
import sys
from capslib.errors import UserError
from capslib.registry import LOSSES, NETWORKS, ROUTINGS
assert "em" in ROUTINGS and "sign" in NETWORKS and len(LOSSES) == 3
try:
    ROUTINGS["emm"]
except UserError as error:
    assert "Did you mean 'em'" in str(error)
print("torch" in sys.modules)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.parametrize("known", [ROUTINGS, NETWORKS, LOSSES], ids=lambda known: known.kind)
def test_every_entry_can_be_had(known):
    assert all(callable(known[name]) for name in known)
    assert dict(known.items()).keys() == set(known)
    with pytest.raises(UserError, match=f"Unknown {known.kind} 'nothing like it'"):
        known["nothing like it"]
    assert known.get("nothing like it") is None


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
