"""Which path a routing takes, and what a routing learns beside its betas."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from capslib.errors import UserError
from capslib.layers import DenseCapsules
from capslib.routing import (
    EMRouting,
    LazyVotes,
    Routing,
    RoutingResult,
    fast,
    make_routing,
    module,
    routing_function,
    use_path,
)

each_path = pytest.mark.parametrize("path", ["eager", "fast", "compiled"])


@routing_function
def gated_mean(votes, activation, *, gate=None, iterations=1):
    """Parents are means of votes that a learned gate has weighted."""
    weight = gate(votes).sigmoid() * activation[..., None, None]
    pose = (weight * votes).mean(dim=-3)
    return RoutingResult(pose, torch.linalg.vector_norm(pose, dim=-1), weight[..., 0])


class Gated(Routing):
    function = gated_mean

    def __init__(self, parents, dim, **options):
        super().__init__(parents, dim, **options)
        self.gate = nn.Sequential(nn.Linear(dim, 5), nn.Tanh(), nn.Linear(5, 1))

    def forward(self, votes, activation, competition=None, *, iterations=None):
        return gated_mean(votes, activation, gate=self.gate, path=self.path)


def gradients(call, votes, learned: nn.Module) -> list[torch.Tensor]:
    learned.zero_grad()
    leaves = [t.clone().requires_grad_() for t in votes]
    result = call(LazyVotes(*leaves) if len(leaves) == 2 else leaves[0])
    (
        result.pose.square().sum() + result.activation.sum() + result.coupling.square().sum()
    ).backward()
    assert all(p.grad is not None for p in learned.parameters())
    return [*result, *(t.grad for t in leaves), *(p.grad.clone() for p in learned.parameters())]


def test_a_mistyped_path_is_told_the_nearest():
    """It was the fast one, without a word."""
    votes, activation = torch.randn(2, 5, 3, 4), torch.rand(2, 5)
    for call in (
        lambda: gated_mean(votes, activation, path="fst"),
        lambda: use_path(make_routing("em", 3, 4), "fst"),
    ):
        with pytest.raises(UserError, match="Did you mean 'fast'"):
            call()


def test_votes_are_floating_point_numbers_and_iterations_whole_ones():
    """Poses of integer votes were cut to integers, mostly zero."""
    routing = make_routing("dynamic", 3, 4)
    with pytest.raises(TypeError, match=r"votes are floating-point numbers, not torch\.int64"):
        routing(torch.randint(5, (2, 5, 3, 4)), torch.rand(2, 5))
    for make in (
        lambda: make_routing("dynamic", 3, 4, iterations=2.5),
        lambda: routing(torch.randn(2, 5, 3, 4), torch.rand(2, 5), iterations=1.5),
    ):
        with pytest.raises(ValueError, match="iterations has to be a whole number"):
            make()


@each_path
@pytest.mark.parametrize("how", ["the module", "its method", "in a list", "in a dictionary"])
@pytest.mark.parametrize("lazy", [False, True], ids=["votes", "lazy votes"])
def test_a_learned_module_gets_its_gradient_on_every_path(path, how, lazy, monkeypatch):
    """It was None on the fast path, without a word."""
    monkeypatch.setitem(fast.CHUNK_BYTES, "cpu", 2 * 6 * 3 * 4 * 8)  # two examples
    torch.manual_seed(0)
    gate = nn.Linear(4, 1).double()

    @routing_function
    def routed(votes, activation, *, option):
        call = {"in a list": lambda: option[0], "in a dictionary": lambda: option["gate"]}.get(
            how, lambda: option
        )()
        return gated_mean.__wrapped__(votes, activation, gate=call)

    option = {
        "its method": gate.forward,
        "in a list": [gate],
        "in a dictionary": {"gate": gate},
    }.get(how, gate)
    shapes = ((6, 3, 4, 2), (5, 6, 2)) if lazy else ((5, 6, 3, 4),)
    votes, activation = (
        [torch.randn(s, dtype=torch.float64) for s in shapes],
        torch.rand(5, 6, dtype=torch.float64),
    )
    ours, expected = (
        gradients(lambda v, p=p: routed(v, activation, option=option, path=p), votes, gate)
        for p in (path, "eager")
    )
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b)


@each_path
def test_a_core_does_not_lose_the_gradient_of_an_option(path):
    """λ may be learned as well: a list of tensors is not seen by the core, so the definition runs."""
    votes, activation = (
        torch.randn(2, 5, 3, 4, dtype=torch.float64),
        torch.rand(2, 5, dtype=torch.float64),
    )
    lamda = torch.tensor([0.1, 0.2], dtype=torch.float64, requires_grad=True)
    routing = EMRouting(3, 4).double()
    result = EMRouting.function(
        votes,
        activation,
        *routing.betas(),
        iterations=2,
        inverse_temperature=list(lamda.unbind()),
        path=path,
    )
    result.activation.sum().backward()
    assert (lamda.grad != 0).all()


@each_path
def test_a_routing_with_a_module_says_that_its_definition_runs(path, monkeypatch):
    monkeypatch.setattr(module, "_compiler_works", lambda device: True)
    routing = Gated(3, 4)
    assert use_path(routing, path) == routing.path == ("eager" if path == "eager" else "fast")


def test_a_dropped_number_is_dropped_in_the_gradient_too():
    """The definition runs twice, and draws the same random numbers both times."""
    votes, activation = torch.ones(1, 6, 3, 4, requires_grad=True), torch.ones(1, 6)
    result = gated_mean(votes, activation, gate=nn.Dropout(0.5), path="fast")
    result.coupling.sum().backward()
    dropped = result.coupling == torch.tensor(0.0).sigmoid()
    assert dropped.any()
    assert torch.equal(votes.grad[..., 0] == 0, dropped)


# -------------------------------------------------------------------------------------------------- the path that is reported


def test_of_several_routings_the_slowest_path_is_reported(monkeypatch):
    monkeypatch.setattr(module, "_compiler_works", lambda device: True)
    network = nn.Sequential(make_routing("em", 3, 4), Gated(3, 4))
    assert use_path(network[:1], "compiled") == "compiled"
    assert use_path(network, "compiled") == "fast"
    assert [routing.path for routing in network] == ["compiled", "fast"]
    assert use_path(nn.Linear(2, 2), "compiled") == "fast"


# -------------------------------------------------------------------------------------------- iterations are an argument


def test_a_start_that_fails_changes_nothing():
    """It counted ``iterations`` up, and a failure in between left it wrong."""
    routing, activation = EMRouting(3, 4, iterations=3), torch.rand(2, 5)
    before = {k: v.clone() for k, v in routing.state_dict().items()}
    with pytest.raises(RuntimeError):
        routing.start_at_half(torch.randn(2, 5, 3, 4), activation[:, :4])
    assert routing.iterations == 3
    assert all(torch.equal(v, before[k]) for k, v in routing.state_dict().items())
    routing.start_at_half(torch.randn(2, 5, 3, 4), activation)
    assert routing.iterations == 3


def test_the_paths_are_a_switch_of_the_module():
    stack = nn.Sequential(DenseCapsules(4, 3, 2, 2), DenseCapsules(3, 2, 2, 2, routing="em"))
    assert [layer.routing.path for layer in stack] == ["fast", "fast"]
    assert use_path(stack, "eager") == "eager"
    assert [layer.routing.path for layer in stack] == ["eager", "eager"]
