"""A GPU trains as a CPU does: every network of the papers, step by step and captured. Skipped, saying so, where there is no GPU."""

from __future__ import annotations

import sys

import pytest
import torch

from capslib import papers, training
from capslib.recipes import Recipe, new_network, train
from capslib.training import Context, Examples

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def recipes() -> dict[str, Recipe]:
    """One smoke recipe for every network with every routing and loss that the papers train."""
    found = {}
    for stem in papers.STEMS:
        for experiment in papers.experiments(stem).values():
            for trial in experiment.trials("smoke"):
                for recipe, _ in experiment.trainings(papers.arm(trial), trial.seed):
                    found.setdefault(
                        f"{recipe.network}, {recipe.routing}, {recipe.loss}", recipe.recipe()
                    )
    return found


RECIPES = recipes()


@pytest.mark.parametrize("name", RECIPES)
def test_a_network_on_a_gpu_agrees_with_the_cpu(name):
    """The loss of a batch and its gradients, in float64."""
    recipe, found = RECIPES[name], {}
    first = recipe.splits(Context(0, max_steps=1))[0]["train"]
    some = first[torch.arange(recipe.batch_size)]
    seen = recipe.seen(some.inputs)
    network = new_network(recipe, tuple(seen.shape[1:]), 0).eval()
    recipe.start(network, first, 0)
    for device in ("cpu", "cuda"):
        network.to(device, torch.float64).zero_grad()
        batch = Examples(
            seen.to(device, torch.float64),
            None if some.labels is None else some.labels.to(device),
        )
        terms = recipe.objective(torch.device(device))(network, batch)
        terms["loss"].backward()
        gradients = {
            name: p.grad for name, p in network.named_parameters() if p.grad is not None
        }
        found[device] = {
            name: t.detach().cpu().double() for name, t in {**terms, **gradients}.items()
        }
    assert found["cuda"].keys() == found["cpu"].keys()
    largest = max(t.abs().max().item() for t in found["cpu"].values())
    for name, expected in found["cpu"].items():
        scale = max(expected.abs().max().item(), 1e-6 * largest)
        assert (found["cuda"][name] - expected).abs().max().item() <= 1e-5 * scale, name


@pytest.mark.parametrize("name", RECIPES)
def test_a_captured_step_trains_as_an_uncaptured_one(name, monkeypatch, caplog):
    """Every network can be captured, and its losses are those of a training that is not, up to the order of sums."""
    losses = []
    for warm_up in (training._Gradients.WARM_UP, sys.maxsize):
        monkeypatch.setattr(training._Gradients, "WARM_UP", warm_up)
        trained = train(RECIPES[name], 0, Context(0, "cuda", max_steps=12))
        losses.append(trained.history.terms["loss"])
    assert "cannot be captured" not in caplog.text
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
