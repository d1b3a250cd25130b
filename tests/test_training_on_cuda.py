"""A GPU trains as a CPU does: every network of the papers, step by step and captured. Skipped, saying so, where there is no GPU."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch

from capslib import papers, training
from capslib.recipes import Recipe, new_network, train
from capslib.routing.fast import float32_products
from capslib.training import Context

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def recipes() -> dict[str, Recipe]:
    """One smoke recipe for every network with every routing and loss that the papers train."""
    found = {}
    for stem in papers.STEMS:
        for experiment in papers.experiments(stem).values():
            for trial in experiment.trials("smoke"):
                for recipe, _ in experiment.trainings(papers.config(trial), trial.seed):
                    found.setdefault(f"{recipe.network}, {recipe.routing}, {recipe.loss}", recipe.recipe())
    return found


RECIPES = recipes()


@pytest.mark.parametrize("name", RECIPES)
def test_a_network_on_a_gpu_agrees_with_the_cpu(name):
    """The loss of a batch and its gradients, without TF32."""
    recipe, found = RECIPES[name], {}
    for device in ("cpu", "cuda"):
        with torch.backends.cudnn.flags(allow_tf32=False), float32_products(torch.device(device)):
            first = recipe.splits(Context(0, device, max_steps=1))[0]["train"]
            some = first[torch.arange(recipe.batch_size, device=device)]
            batch = some._replace(inputs=recipe.seen(some.inputs))
            network = new_network(recipe, tuple(batch.inputs.shape[1:]), 0).to(device).eval()
            recipe.start(network, first, 0)
            terms = recipe.objective(batch.inputs.device)(network, batch)
            terms["loss"].backward()
        gradients = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
        found[device] = {name: t.detach().cpu() for name, t in {**terms, **gradients}.items()}
    assert found["cuda"].keys() == found["cpu"].keys()
    largest = max(t.abs().max().item() for t in found["cpu"].values())
    for name, ours in found["cuda"].items():
        expected = found["cpu"][name]
        scale = max(expected.abs().max().item(), 1e-4 * largest)
        assert (ours - expected).abs().max().item() <= 5e-3 * scale, name


@pytest.mark.parametrize("name", RECIPES)
def test_a_captured_step_trains_as_an_uncaptured_one(name, monkeypatch):
    """Every network can be captured, and its losses are those of a training that is not, up to the order of sums."""
    losses = []
    for warm_up in (training._Gradients.WARM_UP, sys.maxsize):
        monkeypatch.setattr(training._Gradients, "WARM_UP", warm_up)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*cannot be captured")
            losses.append(train(RECIPES[name], 0, Context(0, "cuda", max_steps=12)).history.terms["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
