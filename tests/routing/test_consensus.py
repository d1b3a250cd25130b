"""Similarity and connectionist routing: closed forms, counts and options of their own."""

from __future__ import annotations

import pytest
import torch
from conformance import (
    EXACT,
    assert_close,
    assert_equal,
    assert_gradients,
    draw,
    outcome_on,
)
from references import connectionist, similarity

from capslib.layers import ConvCapsules, bounded, with_coordinates
from capslib.networks.learned_routing import FlatCapsules
from capslib.papers.learned_routing.toy import disagreement
from capslib.routing import make_routing, use_path
from capslib.routing.consensus import closed_form

pytestmark = pytest.mark.usefixtures("float64")
VOTES, ACTIVATION = draw(3, children=9, parents=2, dim=16)
BOTH = ["similarity", "connectionist"]


def test_the_sizes_of_table_2_have_these_parameters():
    def count(**hidden):
        routing = make_routing("connectionist", 16, 16, **hidden)
        return sum(parameter.numel() for parameter in routing.parameters())

    assert count(g=(), f=()) == 3298
    assert count(g=(32, 32), f=(64, 64)) == 10_210
    assert count(g=(64, 64), f=(124, 124)) == 26_310


def test_the_lstm_is_that_of_torch():
    """Torch has the gates in another order: input, forget, candidate, output."""
    routing = make_routing("connectionist", 2, 16, iterations=1)
    cell = torch.nn.LSTMCell(34, 16)
    order = torch.arange(64).view(4, 16)[[0, 1, 3, 2]].flatten()
    weight = routing.gate_weight[order]
    with torch.no_grad():
        cell.weight_ih.copy_(weight[:, :34])
        cell.weight_hh.copy_(weight[:, 34:])
        cell.bias_ih.copy_(routing.gate_bias[order])
        cell.bias_hh.zero_()
    mu = VOTES.mean(dim=1, keepdim=True).expand_as(VOTES)
    share = torch.full_like(VOTES[..., :1], 1 / 9)
    active = ACTIVATION[..., None, None].expand_as(share)
    inputs = torch.cat([mu, active, VOTES, share], dim=-1)
    hidden, state = cell(inputs.flatten(0, 2))
    [(g_weight, g_bias)] = routing.layers("g")
    [(f_weight, f_bias)] = routing.layers("f")
    logits = hidden @ g_weight.T + g_bias
    coupling = logits.view(3, 9, 2, 1).softmax(dim=1)
    mean_state = (coupling * state.view(3, 9, 2, 16)).sum(dim=1)
    activation = (mean_state @ f_weight.T + f_bias).sigmoid()
    result = routing(VOTES, ACTIVATION)
    torch.testing.assert_close(result.coupling, coupling.squeeze(-1))
    torch.testing.assert_close(result.activation, activation.squeeze(-1))


@pytest.mark.parametrize("reads", ["paper", "released"])
def test_perceptrons_and_states_are_what_the_plain_loops_say(reads):
    """And gradients of votes, activations and every weight are those of finite differences."""
    routing = make_routing("connectionist", 2, 3, reads=reads, g=(5, 3), f=(4,)).double()
    for parameter in routing.parameters():
        torch.nn.init.normal_(parameter)
    tensors = VOTES[0, :4, :, :3], ACTIVATION[0, :4]
    assert_equal(routing(*tensors), connectionist(routing, *tensors), **EXACT)
    assert_gradients(routing, *tensors)


def test_a_second_derivative_is_right_or_refused():
    """Autograd goes through a kernel twice, and through the cell of an LSTM once."""
    votes = VOTES[0, :3, :, :2].clone().requires_grad_()
    tensors = votes, ACTIVATION[0, :3].clone().requires_grad_()
    similarity_routing = make_routing("similarity", 2, 2, start="steep")
    assert torch.autograd.gradgradcheck(similarity_routing, tensors)
    activation = make_routing("connectionist", 2, 2)(*tensors).activation
    with pytest.raises(RuntimeError, match="first derivative only"):
        torch.autograd.grad(activation.sum(), tensors, create_graph=True)


@pytest.mark.parametrize("start", ["released", "spread", "steep"])
def test_every_start_is_what_the_plain_loops_say(start):
    routing = make_routing("similarity", 2, 16, start=start)
    tensors = 0.1 * VOTES[0], ACTIVATION[0]
    assert_equal(routing(*tensors), similarity(routing, *tensors), **EXACT)


@pytest.mark.parametrize("start", ["released", "spread", "steep"])
@pytest.mark.usefixtures("every_core_is_fast")
def test_the_core_learns_from_every_start_what_the_definition_does(start):
    """Also where a width is zero or negative, and with ten kernels and logits."""
    options = {"start": start, "kernels": 10, "logistic": False, "bias": 0.1}
    routing = make_routing("similarity", 2, 16, **options)
    with torch.no_grad():
        routing.raw_width[0, :3] = torch.tensor([0.0, -0.5, -100.0])
        routing.weights[1] *= -1
    tensors = 0.1 * VOTES, ACTIVATION
    expected = outcome_on("eager", routing, *tensors)
    assert_close(outcome_on("fast", routing, *tensors), expected, 1e-9)


@pytest.mark.parametrize("name", BOTH)
def test_without_logistic_the_activation_is_a_logit(name):
    routing, logits = make_routing(name, 2, 16), make_routing(name, 2, 16, logistic=False)
    logits.load_state_dict(routing.state_dict())
    activation = routing(VOTES, ACTIVATION).activation
    logit = logits(VOTES, ACTIVATION).activation
    torch.testing.assert_close(activation, logit.sigmoid())


@pytest.mark.parametrize("lambdas", [(0.5, 0.5), (2.0, 0.1)])
def test_couplings_are_those_of_least_disagreement(lambdas):
    """No small step along the simplex lowers J (eq. 2)."""
    k, log_a = torch.rand(9), ACTIVATION[0].log()
    c = closed_form(k, log_a, *torch.tensor(lambdas)).softmax(0)
    smallest = disagreement(c, k, log_a, *lambdas)
    for step in torch.randn(50, 9):
        neighbour = c + 1e-3 * c.min() * (step - step.mean())
        assert disagreement(neighbour, k, log_a, *lambdas) > smallest


@pytest.mark.parametrize("routing", [*BOTH, "em", "dynamic"])
def test_a_bounded_layer_transforms_from_the_left_and_lengthens_no_pose(routing):
    pose, activation = torch.randn(2, 1, 3, 2, 4, 4), torch.rand(2, 1, 3, 2)
    layer = FlatCapsules(6, 3, routing=routing, coordinates=False)
    votes = layer.votes(pose).unflatten(-1, (4, 4)).mT
    children = pose.flatten(1, 3)[:, :, None]  # [N, I, 1, 4, 4]
    expected = bounded(layer.weight) @ children
    torch.testing.assert_close(votes, expected)
    norm, longest = votes.norm(dim=(-2, -1)), children.norm(dim=(-2, -1))
    assert (norm <= longest + 1e-12).all()
    result = layer(pose, activation)
    if routing in BOTH:  # dynamic routing squashes, and EM weighs by activations
        mean = torch.einsum("nij,nijab->njab", result.coupling, expected)
        torch.testing.assert_close(result.pose.unflatten(-1, (4, 4)), mean)


def test_a_bounded_convolution_knows_where_its_windows_are():
    options = {"routing": "similarity", "transform": "bounded"}
    layer = ConvCapsules(2, 3, **options, coordinates=True)
    pose, activation = torch.randn(1, 4, 5, 2, 4, 4), torch.rand(1, 4, 5, 2)
    votes = layer.fields(pose, activation)[0].form().unflatten(-1, (4, 4)).mT
    row, column, child = 1, 2, 7  # type 1 of row 1 and column 0 of the window
    child_pose = pose[0, 2, 2, 1].clone()
    child_pose[0, :3] += torch.tensor([1.5 / 2, 2.5 / 3, 7.5 / 18])
    vote = bounded(layer.weight)[1, 0, 1, 0] @ child_pose
    torch.testing.assert_close(votes[row * 3 + column, child, 0], vote)
    placed = with_coordinates(pose)
    assert torch.equal(placed[..., 1:, :], pose[..., 1:, :])


@pytest.mark.parametrize("path", ["fast", "eager"])
@pytest.mark.usefixtures("every_core_is_fast")
def test_theta_of_columns_belongs_to_the_columns_of_a_grid(path):
    """Every column is as in a layer where all parents have its θ."""
    sizes = {"kernel": 3, "transform": "bounded", "routing": "similarity"}
    layer = ConvCapsules(2, 3, columns=4, **sizes)
    shared = ConvCapsules(2, 3, **sizes)
    use_path(layer, path)
    pose, activation = torch.randn(2, 5, 6, 2, 4, 4), torch.rand(2, 5, 6, 2)
    theta = layer.routing.theta
    theta.data.normal_()
    result = layer(pose, activation)
    result.activation.sum().backward()
    assert theta.grad.abs().min() > 0
    state = layer.state_dict()
    for column in range(4):
        state["routing.theta"] = theta[column].expand(3, 3)
        shared.load_state_dict(state)
        expected = shared(pose, activation)
        for grid, expected_grid in zip(result[:2], expected[:2], strict=True):
            torch.testing.assert_close(grid[:, :, column], expected_grid[:, :, column])
