"""Options that are words: a mistyped one is refused, with the words that are valid."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from capslib.errors import UserError, unknown
from capslib.losses import margin_loss, spread_loss
from capslib.networks.inequality_anomaly import AnomalyCapsNet
from capslib.networks.learned_routing import ConsensusCapsNet
from capslib.networks.sparse_unsupervised import routing_support
from capslib.routing.free_energy import em_trajectory, free_energy
from capslib.training import Context, Examples, Patience, fit

VOTES = torch.randn(4, 3, 2), torch.rand(4), torch.zeros(3), torch.zeros(3)


def stop_early(**options: str) -> None:
    """Train with a patience of these options."""
    line = nn.Linear(1, 1)
    fit(
        line,
        Examples(torch.ones(4, 1)),
        loss=lambda model, batch: {"loss": model(batch.inputs).sum()},
        optimizer=torch.optim.SGD(line.parameters(), 0.1),
        epochs=1,
        batch_size=4,
        context=Context(seed=0),
        evaluate=lambda model: {"error": 1.0},
        patience=Patience("error", 1, **options),
    )


MISTYPED = {
    "min": lambda word: stop_early(better=word),
    "bests": lambda word: stop_early(keep=word),
    "weigthed": lambda word: free_energy(next(em_trajectory(*VOTES)), *VOTES, word),
    "papers": lambda word: next(em_trajectory(*VOTES, e_step=word)),
    "positions": lambda word: routing_support(torch.rand(1, 4, 1), 2, word),
    "column": lambda word: ConsensusCapsNet((1, 32, 32), theta=word),
    "gelu": lambda word: AnomalyCapsNet((1, 20, 20), nonlinearity=word),
    "sum": lambda word: margin_loss(torch.rand(2, 3), torch.tensor([0, 1]), reduction=word),
    "means": lambda word: spread_loss(torch.rand(2, 3), torch.tensor([0, 1]), reduction=word),
}


@pytest.mark.parametrize("word", MISTYPED)
def test_a_mistyped_word_is_refused_with_the_valid_ones(word):
    with pytest.raises(UserError, match=rf"Unknown .* '{word}'\..* Valid: "):
        MISTYPED[word](word)


@pytest.mark.parametrize("name", [None, nn.Linear, 3])
def test_what_is_no_word_is_refused_as_well(name):
    assert "Valid: em." in str(unknown("routing", name, ["em"]))
