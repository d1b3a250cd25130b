"""Similarity and connectionist routing: their closed forms, counts and options, beside what every routing has to do."""

from __future__ import annotations

import pytest
import torch
from references import connectionist, similarity

from capslib.errors import UserError
from capslib.layers import ConvCapsules, bounded, with_coordinates
from capslib.networks.learned_routing import FlatCapsules
from capslib.papers.learned_routing.toy import disagreement
from capslib.routing import make_routing, use_path
from capslib.routing.consensus import closed_form

GENERATOR = torch.Generator().manual_seed(0)
VOTES = torch.randn(3, 9, 2, 16, generator=GENERATOR, dtype=torch.float64)
ACTIVE = torch.rand(3, 9, generator=GENERATOR, dtype=torch.float64)


def parameters(routing: torch.nn.Module) -> int:
    return sum(p.numel() for p in routing.parameters())


@pytest.mark.parametrize(
    ("g", "f", "count"),
    [((), (), 3298), ((32, 32), (64, 64), 10_210), ((64, 64), (124, 124), 26_310)],
    ids=["1", "2", "class"],
)
def test_the_sizes_of_table_2_have_these_parameters(g, f, count):
    assert parameters(make_routing("connectionist", 16, 16, g=g, f=f)) == count


def test_the_lstm_is_that_of_torch():
    """Its gates are ours in another order: torch has input, forget, candidate, output."""
    routing = make_routing("connectionist", 2, 16, iterations=1).double()
    cell = torch.nn.LSTMCell(34, 16).double()
    i, f, o, new = routing.gate_weight.chunk(4)
    order = torch.cat([i, f, new, o])
    with torch.no_grad():
        cell.weight_ih[:], cell.weight_hh[:] = order[:, :34], order[:, 34:]
        b = routing.gate_bias.chunk(4)
        cell.bias_ih[:], cell.bias_hh[:] = torch.cat([b[0], b[1], b[3], b[2]]), 0
    mu = VOTES.mean(dim=1, keepdim=True).expand_as(VOTES)
    share = torch.full((3, 9, 2, 1), 1 / 9, dtype=torch.float64)
    x = torch.cat([mu, ACTIVE[..., None, None].expand_as(share), VOTES, share], dim=-1)
    hidden, state = (t.view(3, 9, 2, 16) for t in cell(x.flatten(0, 2)))
    (g_weight, g_bias), (f_weight, f_bias) = (*routing.layers("g"), *routing.layers("f"))
    coupling = (hidden @ g_weight.T + g_bias).softmax(dim=1)
    activation = ((coupling * state).sum(dim=1) @ f_weight.T + f_bias).sigmoid().squeeze(-1)
    result = routing(VOTES, ACTIVE)
    torch.testing.assert_close(result.coupling, coupling.squeeze(-1))
    torch.testing.assert_close(result.activation, activation)


def test_swapped_states_are_another_function():
    one, other = (
        torch.manual_seed(0) and make_routing("connectionist", 2, 16, reads=r).double()
        for r in ("paper", "released")
    )
    for a, b in zip(one(VOTES, ACTIVE), other(VOTES, ACTIVE), strict=True):
        assert (a - b).abs().max() > 1e-6


@pytest.mark.parametrize("reads", ["paper", "released"])
@pytest.mark.parametrize(
    "hidden", [{}, {"g": (5, 3), "f": (4,)}], ids=["one layer", "hidden layers"]
)
def test_perceptrons_and_states_are_what_the_plain_loops_say(reads, hidden):
    """And gradients of votes, activations and every weight are those of finite differences."""
    torch.manual_seed(0)
    routing = make_routing("connectionist", 2, 3, reads=reads, **hidden).double()
    for parameter in routing.parameters():
        torch.nn.init.normal_(parameter)
    votes, active = VOTES[0, :4, :, :3], ACTIVE[0, :4]
    for a, b in zip(routing(votes, active), connectionist(routing, votes, active), strict=True):
        torch.testing.assert_close(a, b)
    names, parameters = zip(*routing.named_parameters(), strict=True)

    def function(votes, active, *parameters):
        return torch.func.functional_call(
            routing, dict(zip(names, parameters, strict=True)), (votes, active)
        )

    assert torch.autograd.gradcheck(
        function, [t.detach().clone().requires_grad_() for t in (votes, active, *parameters)]
    )


def test_a_second_derivative_is_right_or_refused():
    """Autograd goes through the kernel twice; the cell of the LSTM has a gradient of its own, once."""
    tensors = [t[0, :3].clone().requires_grad_() for t in (VOTES[..., :2], ACTIVE)]
    kernel = make_routing("similarity", 2, 2, start="steep").double()
    assert torch.autograd.gradgradcheck(kernel, tensors)
    routing = make_routing("connectionist", 2, 2).double()
    with pytest.raises(RuntimeError, match="first derivative only"):
        torch.autograd.grad(routing(*tensors).activation.sum(), tensors, create_graph=True)


@pytest.mark.parametrize("start", ["released", "spread", "steep"])
def test_every_start_is_what_the_plain_loops_say(start):
    torch.manual_seed(0)
    routing = make_routing("similarity", 2, 16, start=start).double()
    for a, b in zip(
        routing(0.1 * VOTES[0], ACTIVE[0]),
        similarity(routing, 0.1 * VOTES[0], ACTIVE[0]),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", ["similarity", "connectionist"])
def test_without_logistic_the_activation_is_a_logit(name):
    routing, plain = (
        torch.manual_seed(0) and make_routing(name, 2, 16, logistic=l).double()
        for l in (True, False)
    )
    torch.testing.assert_close(
        routing(VOTES, ACTIVE).activation, plain(VOTES, ACTIVE).activation.sigmoid()
    )


def test_couplings_are_those_of_least_disagreement():
    """No small step along the simplex lowers J (eq. 2)."""
    k, log_a = torch.rand(9, generator=GENERATOR, dtype=torch.float64), ACTIVE[0].log()
    for one, two in ((0.5, 0.5), (2.0, 0.1)):
        c = closed_form(k, log_a, torch.tensor(one), torch.tensor(two)).softmax(0)
        least = disagreement(c, k, log_a, one, two)
        for _ in range(50):
            step = torch.randn(9, generator=GENERATOR, dtype=torch.float64)
            other = c + 1e-3 * (step - step.mean()) * c.min()
            assert disagreement(other, k, log_a, one, two) > least


def test_a_transform_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="is for matrix capsules"):
        ConvCapsules(2, 3, pose="vector", transform="bounded")
    with pytest.raises(UserError, match="Unknown transform 'bound'"):
        ConvCapsules(2, 3, transform="bound")


@pytest.mark.parametrize("routing", ["similarity", "connectionist", "em", "dynamic"])
def test_a_bounded_layer_transforms_from_the_left_and_lengthens_no_pose(routing):
    torch.manual_seed(0)
    pose, active = torch.randn(2, 1, 3, 2, 4, 4), torch.rand(2, 1, 3, 2)
    layer = FlatCapsules(6, 3, routing=routing, coordinates=False)
    votes = layer.votes(pose).unflatten(-1, (4, 4)).mT
    expected = torch.einsum("ijab,nibc->nijac", bounded(layer.weight), pose.flatten(1, 3))
    torch.testing.assert_close(votes, expected)
    norms = torch.linalg.matrix_norm
    assert (norms(votes) <= norms(pose).flatten(1)[:, :, None] + 1e-5).all()
    if routing != "dynamic":  # which squashes
        result = layer(pose, active)
        if routing != "em":  # which weighs by activations
            mean = torch.einsum("nij,nijab->njab", result.coupling, expected)
            torch.testing.assert_close(result.pose.unflatten(-1, (4, 4)), mean)


def test_a_bounded_convolution_knows_where_its_windows_are():
    torch.manual_seed(0)
    layer = ConvCapsules(2, 3, routing="similarity", transform="bounded", coordinates=True)
    pose, active = torch.randn(1, 4, 5, 2, 4, 4), torch.rand(1, 4, 5, 2)
    votes = (
        layer.fields(pose, active)[0].form().unflatten(-1, (4, 4)).mT.unflatten(0, (2, 3))
    )  # windows of 18 children
    row, column, child = 1, 2, 7  # type 1 of the place (1, 0) of the window
    own = pose[0, 2, 2, 1].clone()
    own[0, :3] += torch.tensor([1.5 / 2, 2.5 / 3, 7.5 / 18])
    torch.testing.assert_close(
        votes[row, column, child, 0], bounded(layer.weight)[1, 0, 1, 0] @ own
    )
    assert (with_coordinates(pose)[..., 1:, :] == pose[..., 1:, :]).all()


@pytest.mark.parametrize("path", ["fast", "eager"])
def test_theta_of_columns_belongs_to_the_columns_of_a_grid(path):
    """In a layer whose θ belongs to columns, every column is as in a layer where all parents have its θ."""
    torch.manual_seed(0)
    options = dict(kernel=3, stride=1, transform="bounded", routing="similarity")
    layer, other = ConvCapsules(2, 3, columns=4, **options), ConvCapsules(2, 3, **options)
    use_path(layer, path)
    pose, activation = torch.randn(2, 5, 6, 2, 4, 4), torch.rand(2, 5, 6, 2)
    shared = {k: v for k, v in layer.state_dict().items() if k != "routing.theta"}
    assert layer.routing.theta.shape == (4, 3)
    layer.routing.theta.data.normal_()
    found = layer(pose, activation)
    found.activation.sum().backward()
    assert layer.routing.theta.grad.abs().min() > 0
    for x, theta in enumerate(layer.routing.theta.detach()):
        other.load_state_dict({**shared, "routing.theta": theta.expand(3, 3)})
        alone = other(pose, activation)
        for ours, expected in zip(found, alone, strict=True):
            torch.testing.assert_close(ours[:, :, x], expected[:, :, x])
