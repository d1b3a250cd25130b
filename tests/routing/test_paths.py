"""Which path a routing takes, and what a routing learns beside its betas."""

from __future__ import annotations

from copy import deepcopy
from functools import partial

import pytest
import torch
from conformance import assert_close, build, draw, draw_kind, outcome_on, small_chunks
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from capslib.errors import UserError
from capslib.layers import DenseCapsules
from capslib.routing import (
    EMRouting,
    Routing,
    RoutingResult,
    make_routing,
    module,
    routing_function,
    use_path,
)
from capslib.routing.fast import Core

PATHS = ("eager", "fast", "compiled")


def two_layers(x, weights):
    """Compute what the gate does, from its parameters."""
    return F.linear(F.linear(x, *weights[:2]).tanh(), *weights[2:])


@routing_function
def gated_mean(votes, activation, *, gate):
    """Parents are means of votes that a learned gate has weighted."""
    if isinstance(gate, dict):
        gate = gate["gate"]
    if isinstance(gate, list):
        gate = gate[0]
    weight = gate(votes).sigmoid() * activation[..., None, None]
    pose = (weight * votes).mean(dim=-3)
    return RoutingResult(pose, torch.linalg.vector_norm(pose, dim=-1), weight[..., 0])


OPTIONS = {
    "the module": lambda gate: gate,
    "its method": lambda gate: gate.forward,
    "in a list": lambda gate: [gate],
    "in a dictionary": lambda gate: {"gate": gate},
    "its method in a partial": lambda gate: partial(gate.forward),
    "an argument of a partial": lambda gate: partial(functional_call, gate, {}),
    "its parameters in a partial": lambda gate: partial(
        two_layers, weights=[*gate.parameters()]
    ),
}


class Gated(Routing):
    """A routing with a learned module, which it passes on in a form of ``OPTIONS``."""

    function = gated_mean

    def __init__(self, parents, dim, form="the module", **options):
        super().__init__(parents, dim, **options)
        self.form = form
        self.gate = nn.Sequential(nn.Linear(dim, 5), nn.Tanh(), nn.Linear(5, 1))

    def forward(self, votes, activation, competition=None, *, iterations=None):
        gate = OPTIONS[self.form](self.gate)
        return gated_mean(votes, activation, gate=gate, path=self.path)


def test_a_mistyped_path_is_told_the_nearest():
    votes, activation = draw(2)
    with pytest.raises(UserError, match="'fast'"):
        gated_mean(votes, activation, gate=None, path="fst")
    with pytest.raises(UserError, match="'fast'"):
        use_path(make_routing("em", 3, 4), "fst")


def test_votes_iterations_and_biases_that_cannot_be_meant_are_refused():
    routing = build("dynamic", None)
    with pytest.raises(TypeError, match=r"floating-point numbers, not torch\.int64"):
        routing(torch.zeros(2, 5, 3, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match="iterations has to be a whole number"):
        routing(*draw(2), iterations=1.5)
    with pytest.raises((TypeError, ValueError), match="or None for no bias"):
        build("em", False)


@pytest.mark.parametrize("form", OPTIONS)
def test_a_learned_module_gets_its_gradient_on_every_path(form, monkeypatch):
    """Also of a routing with a core, which would give it none."""
    monkeypatch.setattr(gated_mean, "core", Core(None, None, None))
    routing = Gated(3, 4, form).double()
    for votes in ("votes", "vectors"):
        tensors = draw_kind("random", votes)
        expected = outcome_on("eager", routing, *tensors)
        assert all(gradient.abs().max() > 0 for gradient in expected)
        for path in PATHS:
            with small_chunks():
                result = outcome_on(path, routing, *tensors)
            assert_close(result, expected, 1e-9, case=(votes, path))


@pytest.mark.parametrize("form", [lambda lamda: list(lamda.unbind()), lambda lamda: lamda])
@pytest.mark.parametrize("path", PATHS)
def test_a_core_does_not_lose_the_gradient_of_an_option(path, form):
    """λ can be learned as well: a core knows no gradient of it, so the definition runs."""
    lamda = torch.tensor([0.1, 0.2], requires_grad=True)
    betas = EMRouting(3, 4).betas()
    options = {"iterations": 2, "inverse_temperature": form(lamda), "path": path}
    votes, activation = torch.randn(2, 5, 3, 4), torch.rand(2, 5)
    EMRouting.function(votes, activation, *betas, **options).activation.sum().backward()
    assert (lamda.grad != 0).all()


def test_a_dropped_number_is_dropped_in_the_gradient_too():
    """The definition runs twice, and draws the same random numbers both times."""
    votes, activation = torch.ones(1, 6, 3, 4, requires_grad=True), torch.ones(1, 6)
    with small_chunks():
        result = gated_mean(votes, activation, gate=nn.Dropout(0.5), path="fast")
        result.coupling.sum().backward()
    dropped = result.coupling == 0.5  # the logistic of zero
    assert dropped.any()
    assert torch.equal(votes.grad[..., 0] == 0, dropped)


def test_the_slowest_path_of_several_routings_is_reported(monkeypatch):
    monkeypatch.setattr(module, "_compiler_works", lambda device: True)
    network = nn.Sequential(make_routing("em", 3, 4), Gated(3, 4))
    assert [routing.path for routing in network] == ["fast", "fast"]
    assert use_path(network, "eager") == "eager"
    assert use_path(network[:1], "compiled") == "compiled"
    assert use_path(network, "compiled") == "fast"
    assert [routing.path for routing in network] == ["compiled", "fast"]
    assert use_path(nn.Linear(2, 2), "compiled") == "fast"
    assert use_path(DenseCapsules(4, 3, 2, 2), "eager") == "eager"


def test_a_start_that_fails_changes_nothing():
    routing, (votes, activation) = build("em", None), draw(2)
    state = deepcopy(routing.state_dict())
    with pytest.raises(RuntimeError):
        routing.start_at_half(votes, activation[:, :4])
    torch.testing.assert_close(routing.state_dict(), state, rtol=0, atol=0)
