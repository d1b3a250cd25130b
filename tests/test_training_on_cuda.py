"""A GPU trains as a CPU does: every network of the papers, step by step and captured."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor

from capslib import papers, training
from capslib.recipes import Recipe, new_network, train
from capslib.training import Context, Examples

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def recipes() -> dict[str, Recipe]:
    """Return a smoke recipe for every network with every routing and loss that papers train."""
    by_name = {}
    for stem in papers.WITH_TRIALS:
        for experiment in papers.experiments(stem).values():
            for trial in experiment.trials("smoke"):
                for recipe, _ in experiment.trainings(papers.arm(trial), trial.seed):
                    loss = getattr(recipe, "loss", "its own loss")
                    name = f"{recipe.network}, {recipe.routing}, {loss}"
                    by_name.setdefault(name, recipe)
    return by_name


RECIPES = recipes()


def loss_and_gradients(recipe: Recipe, device: str) -> dict[str, Tensor]:
    """Return the terms of the loss of the first batch, and its gradients, in float64."""
    first = recipe.splits(Context(0, max_steps=1))[0]["train"]
    batch = first.rows(torch.arange(recipe.batch_size))
    inputs = recipe.seen(batch.inputs)
    network = new_network(recipe, tuple(inputs.shape[1:]), 0).eval()
    recipe.start(network, first, 0)
    network.to(device, torch.float64)
    labels = None if batch.labels is None else batch.labels.to(device)
    examples = Examples(inputs.to(device, torch.float64), labels)
    terms = recipe.objective(torch.device(device))(network, examples)
    terms["loss"].backward()
    tensors = dict(terms)
    for name, parameter in network.named_parameters():
        if parameter.grad is not None:
            tensors[name] = parameter.grad
    return {name: tensor.detach().cpu().double() for name, tensor in tensors.items()}


@pytest.mark.parametrize("name", RECIPES)
def test_a_network_on_a_gpu_agrees_with_the_cpu(name):
    ours = loss_and_gradients(RECIPES[name], "cuda")
    expected = loss_and_gradients(RECIPES[name], "cpu")
    assert ours.keys() == expected.keys()
    largest = max(tensor.abs().max() for tensor in expected.values())
    for part, tensor in expected.items():
        scale = max(tensor.abs().max(), 1e-6 * largest)
        assert (ours[part] - tensor).abs().max() <= 1e-5 * scale, part


@pytest.mark.parametrize("name", RECIPES)
def test_a_captured_step_trains_as_an_uncaptured_one(name, monkeypatch, caplog):
    """Every network can be captured. Its losses are the same, up to the order of sums."""
    losses = []
    for warm_up in (training._Gradients.WARM_UP, sys.maxsize):
        monkeypatch.setattr(training._Gradients, "WARM_UP", warm_up)
        trained = train(RECIPES[name], 0, Context(0, "cuda", max_steps=12))
        losses.append(trained.history.terms["loss"])
    assert "cannot be captured" not in caplog.text
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
