"""Couplings that sum to one over the children: the released layer of Kirillov & Panov (2022), and where it differs from Sabour's."""

from __future__ import annotations

import pytest
import torch

from capslib.inequality import MEASURES
from capslib.layers import ConvCapsules, DenseCapsules
from capslib.routing import dynamic_routing, make_routing


def released(votes: torch.Tensor, iterations: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The released layer word by word: L has the full shape [class, sample, primary, dimension]; poses and couplings like it."""
    votes = votes.permute(2, 0, 1, 3)  # [J, N, I, D]
    logits = torch.zeros_like(votes)
    for iteration in range(iterations):
        coupling = logits.softmax(dim=2)
        s = (coupling * votes).sum(dim=2, keepdim=True)
        squared = (s**2).sum(dim=-1, keepdim=True)
        pose = squared / (1 + squared) * s / squared.sqrt()
        if iteration != iterations - 1:
            logits = logits + (votes * pose).sum(dim=-1, keepdim=True)
    return pose[:, :, 0].transpose(0, 1), coupling


@pytest.mark.parametrize("iterations", [1, 2, 3, 5])
def test_it_is_the_released_layer_and_couplings_do_not_depend_on_the_output_dimension(
    iterations,
):
    votes = torch.randn(
        3, 40, 2, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    pose, coupling = released(votes, iterations)
    assert (coupling == coupling[..., :1]).all()  # the same for all 16 dimensions
    summed = coupling.sum(dim=-1)  # [J, N, I]  M_j of the paper, which sums to 16
    ours = make_routing("dynamic_over_children", 2, 16, iterations=iterations)(votes)
    torch.testing.assert_close(ours.pose, pose)
    torch.testing.assert_close(16 * ours.coupling, summed.permute(1, 2, 0))
    for measure in MEASURES.values():  # so one dimension is enough
        torch.testing.assert_close(measure(ours.coupling, dim=1), measure(summed).T)


def test_parents_do_not_compete():
    votes = torch.randn(4, 30, 3, 8, dtype=torch.float64)
    routing = make_routing("dynamic_over_children", 3, 8)
    alone = [
        make_routing("dynamic_over_children", 1, 8)(votes[:, :, j : j + 1]) for j in range(3)
    ]
    torch.testing.assert_close(routing(votes).pose, torch.cat([r.pose for r in alone], dim=1))
    rivals = torch.cat([dynamic_routing(votes[:, :, j : j + 1]).pose for j in range(3)], dim=1)
    assert (dynamic_routing(votes).pose - rivals).abs().max() > 0.01


def test_layers_give_the_couplings_back():
    layer = DenseCapsules(30, 2, 4, 8, routing="dynamic_over_children")
    coupling = layer(torch.randn(5, 30, 4), torch.rand(5, 30)).coupling
    torch.testing.assert_close(coupling.sum(dim=1), torch.ones(5, 2))
    windows = ConvCapsules(3, 4, routing="dynamic_over_children")(
        torch.randn(2, 5, 5, 3, 4, 4), torch.rand(2, 5, 5, 3)
    )
    torch.testing.assert_close(
        windows.coupling.flatten(3, 5).sum(dim=3), torch.ones(2, 3, 3, 4)
    )
