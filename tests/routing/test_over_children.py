"""Couplings that sum to one over the children, as released by Kirillov & Panov (2022)."""

from __future__ import annotations

import torch
from conformance import draw
from references import dynamic_over_children
from torch import Tensor

from capslib.inequality import MEASURES
from capslib.routing import dynamic_routing, make_routing
from capslib.routing.over_children import OverChildren


def test_couplings_do_not_depend_on_the_output_dimension():
    """The paper sums over it, M_j = D·c_j; for a measure of inequality one will do."""
    votes, activation = draw(children=40, parents=2, dim=16)
    routing = make_routing("dynamic_over_children", 2, 16)
    coupling = routing(votes).coupling
    expected = dynamic_over_children(routing, votes, activation).coupling
    torch.testing.assert_close(coupling, expected)
    for measure in MEASURES.values():
        torch.testing.assert_close(measure(coupling, dim=0), measure(16 * expected, dim=0))


def test_parents_do_not_compete():
    votes, _ = draw(4)
    over_children = OverChildren()

    def routed_alone(competition: OverChildren | None) -> Tensor:
        poses = [
            dynamic_routing(votes[:, :, j : j + 1], competition=competition).pose
            for j in range(3)
        ]
        return torch.cat(poses, dim=1)

    together = dynamic_routing(votes, competition=over_children).pose
    torch.testing.assert_close(together, routed_alone(over_children))
    assert (dynamic_routing(votes).pose - routed_alone(None)).abs().max() > 0.01
