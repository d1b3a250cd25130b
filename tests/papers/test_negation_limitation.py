"""The chapter of Peer et al. (2021): its two theorems, its experiments, and what its claims ask
of them.
"""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from capslib.lab.ledger.deviations import deviations
from capslib.lab.runs import run_trial
from capslib.layers import as_capsules
from capslib.networks.negation_limitation import CapsNetOutput, CapsuleStack, SignNetwork
from capslib.papers.check import leaves, read
from capslib.papers.experiment import SCALES, Arm
from capslib.papers.negation_limitation import CHECKS, EXPERIMENTS, STEM
from capslib.papers.negation_limitation.recipe import CapsNetRecipe
from capslib.papers.negation_limitation.sign import SignRecipe
from capslib.recipes import Trained, new_network
from capslib.routing import em_routing
from capslib.training import Context, Examples, History

TOLERANCE = 1e-12
ROUNDING = 1e-8
"""Where two sides are equal by algebra and not operation by operation, clusters of little
spread magnify rounding errors.
"""
BROKEN = 1e-6
"""Far above rounding. The temperatures of EM are small, so of what a bias changes little
reaches the activations.
"""
CAPSULES, DIM = 5, 4

depths, iterations, seeds = st.integers(1, 9), st.integers(1, 5), st.integers(0, 2**32 - 1)
EACH_ROUTING = pytest.mark.parametrize("routing", ["dynamic", "em", "em_vector"])
EACH_OF_THE_PAPER = pytest.mark.parametrize("routing", ["dynamic", "em_vector"])


def stack(
    routing: str, depth: int, iterations: int, seed: int, *, bias: bool
) -> tuple[CapsuleStack, torch.Tensor]:
    """Return a random stack in float64, and random poses [8, I, D] for it.

    Every bias and every β is drawn anew.

    Biases are of the size that the paper starts them with. Much larger ones drown the input:
    after some layers the output is the same for every input, and so even for a reason that has
    nothing to do with the theorems.
    """
    torch.manual_seed(seed)
    options = dict(routing=routing, iterations=iterations, weight_std=1.0)
    if routing != "dynamic":
        options["beta_std"] = 3.0
    if bias:
        options["bias"] = 0.0
    network = CapsuleStack([(CAPSULES, DIM)] * (depth + 1), **options).double()
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.1)
    return network, torch.randn(8, CAPSULES, DIM, dtype=torch.float64)


def violations(network: CapsuleStack, x: torch.Tensor) -> tuple[float, float]:
    """Return the largest |f(x) + f(−x)| of poses and |a(x) − a(−x)| of activations."""
    pose, activation = network(x)
    negated_pose, negated_activation = network(-x)
    odd = (pose + negated_pose).abs().max()
    even = (activation - negated_activation).abs().max()
    return odd.item(), even.item()


# ----------------------------------------------------------------------------------------------
# theorems


@given(depth=depths, iterations=iterations, seed=seeds)
def test_theorem_1_dynamic_routing_is_odd(depth, iterations, seed):
    odd, even = violations(*stack("dynamic", depth, iterations, seed, bias=False))
    assert odd <= TOLERANCE
    assert even <= TOLERANCE


@pytest.mark.parametrize("routing", ["em", "em_vector"])
@given(depth=depths, iterations=iterations, seed=seeds)
def test_theorem_2_em_routing_is_odd(routing, depth, iterations, seed):
    odd, even = violations(*stack(routing, depth, iterations, seed, bias=False))
    assert odd <= TOLERANCE
    assert even <= TOLERANCE


@given(
    temperatures=st.lists(st.floats(0, 10), min_size=1, max_size=5),
    seed=seeds,
    spread=st.sampled_from(["variance", "deviation"]),
    vector=st.booleans(),
)
def test_theorem_2_holds_at_any_temperature(temperatures, seed, spread, vector):
    options = dict(generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    votes = torch.randn(6, 3, 4, **options)
    activation = torch.rand(6, **options)
    betas = torch.randn(2, 3, **options)
    route = functools.partial(
        em_routing,
        iterations=len(temperatures),
        inverse_temperature=temperatures,
        spread=spread,
        vector=vector,
    )
    plain = route(votes, activation, *betas)
    negated = route(-votes, activation, *betas)
    assert (plain.pose + negated.pose).abs().max() <= TOLERANCE
    assert (plain.activation - negated.activation).abs().max() <= TOLERANCE
    assert (plain.coupling - negated.coupling).abs().max() <= TOLERANCE


@EACH_ROUTING
@given(depth=depths, iterations=iterations, seed=seeds)
def test_a_bias_breaks_both_symmetries(routing, depth, iterations, seed):
    """Of EM from the second layer on; see the next test for the first."""
    odd, even = violations(*stack(routing, depth, iterations, seed, bias=True))
    assert odd > BROKEN
    if routing == "dynamic" or depth > 1:
        assert even > BROKEN


@pytest.mark.parametrize("routing", ["em", "em_vector"])
@given(iterations=iterations, seed=seeds)
def test_em_activations_ignore_a_bias_of_their_own_layer(routing, iterations, seed):
    """A bias that all children share moves the votes of a parent together, and EM moves along:
    the paper's proof overlooks it.
    """
    network, x = stack(routing, 1, iterations, seed, bias=True)
    odd, even = violations(network, x)
    assert even <= ROUNDING
    assert odd > BROKEN
    unbiased, _ = stack(routing, 1, iterations, seed, bias=False)
    unbiased.load_state_dict(network.state_dict(), strict=False)
    _, activation = network(x)
    _, unbiased_activation = unbiased(x)
    assert (activation - unbiased_activation).abs().max() <= ROUNDING


# ----------------------------------------------------------------------------------------------
# experiments

SMALL = dict(filters=2, primary_types=1, decoder=(2, 2), epochs=1, batch_size=256)
FAST = {
    "symmetry": dict(max_depth=2, max_iterations=2, inputs=4),
    "sign": dict(points=20, epochs=1),
    "depth": dict(SMALL, depth=3),
    "negated": SMALL,
}


def run(name: str, store, seed: int = 0, *, where=None, **change):
    """Return the record of the first trial of an experiment that is so, with changes."""
    experiment = EXPERIMENTS[name]
    trial, *_ = experiment.trials("smoke", seeds=[seed], where=where, change=change)
    return run_trial(experiment, trial, store, Context(seed=seed))


@pytest.mark.parametrize("scale", SCALES)
def test_images_are_those_of_the_paper_or_a_stand_in_at_smoke_scale(scale):
    for name, sets in (("depth", {"mnist", "fashion_mnist"}), ("negated", {"mnist"})):
        names = {arm.data for arm in EXPERIMENTS[name].at(scale).values()}
        assert names == ({"digits"} if scale == "smoke" else sets)


def metrics_of(experiment: str) -> set:
    """Return the metrics that claims ask of an experiment."""
    metrics = set()
    for check in CHECKS.values():
        for leaf in leaves(check):
            if experiment in {select.experiment for select in leaf.selects}:
                metrics.add(leaf.metric)
    return metrics


@pytest.mark.parametrize("name", EXPERIMENTS)
@EACH_OF_THE_PAPER
@pytest.mark.parametrize("bias", [False, True])
def test_an_experiment_yields_what_the_claims_ask_of_it(store, name, routing, bias):
    record = run(name, store, where={"routing": routing, "bias": bias}, **FAST[name])
    metrics = metrics_of(name)
    assert metrics
    assert record.exit == "ok", record.message
    assert all(read(metric, record) for metric in metrics)
    assert all(len(curve) for curve in record.series.values())
    assert record.real == (name in ("symmetry", "sign"))
    assert (record.parameters > 0) == (name != "symmetry")


@EACH_OF_THE_PAPER
def test_an_odd_network_is_right_on_at_most_one_image_of_a_pair(store, routing):
    """Where −x arrives as the negative of x, both get the scores of one class, and they have
    two.
    """
    where = {"routing": routing, "bias": False, "front": "odd"}
    change = {**FAST["negated"], "epochs": 8, "learning_rate": 0.02}
    record = run("negated", store, where=where, **change)
    assert 0.1 < record.metrics["test_accuracy"].value <= 0.5


def test_without_a_bias_half_of_the_points_and_not_one_more(store):
    """The grid is symmetric and the activations are even, so of x and −x exactly one is right,
    before training and after it.
    """
    for routing, epochs, seed in itertools.product(("dynamic", "em_vector"), (1, 5), (0, 1)):
        where = {"routing": routing, "bias": False}
        record = run("sign", store, seed, where=where, points=100, epochs=epochs, batch_size=10)
        accuracy = record.metrics["train_accuracy"]
        assert accuracy.value == 0.5
        assert accuracy.n == 102  # zero is there twice, once as −0


@EACH_OF_THE_PAPER
def test_with_a_bias_training_gets_beyond_one_half(store, routing):
    where = {"routing": routing, "bias": True, "length_offset": 1e-8}
    change = dict(points=400, epochs=8, batch_size=16, learning_rate=0.02)
    record = run("sign", store, where=where, **change)
    assert record.metrics["train_accuracy"].value > 0.6


def test_only_the_offset_of_the_release_lets_a_gradient_into_the_first_layer_of_em():
    """Without it the direction of a pose of one dimension is a sign, which has no slope."""
    largest = {}
    options = dict(routing="em_vector", weight_std=0.5, bias=0.5, beta_std=0.5)
    for offset in (0.0, 1e-8):
        torch.manual_seed(0)
        network = SignNetwork(**options, length_offset=offset).double()
        scores = network(torch.linspace(-1, 1, 101).double())
        scores[:, 0].sum().backward()
        largest[offset] = float(network.layers[0].weight.grad.abs().max())
    assert largest[0.0] < 1e-12 < 1e-8 < largest[1e-8]


@EACH_ROUTING
@pytest.mark.parametrize("bias", [False, True])
def test_the_experiment_finds_the_symmetries_and_what_breaks_them(routing, bias):
    """By what the claims ask for. A bias that broke nothing here would say that nothing was
    there to break.
    """
    experiment = EXPERIMENTS["symmetry"]
    arm = experiment.at("smoke")[f"{routing}/{'bias' if bias else 'no_bias'}"]
    outcome = experiment.run(arm.changed(FAST["symmetry"]), Context(seed=0))
    violation = {name: metric.value for name, metric in outcome.metrics.items()}
    if bias:
        assert violation["least_odd_violation"] > BROKEN
        assert violation["least_even_violation_deeper"] > BROKEN
        is_broken = violation["least_even_violation_one_layer"] > BROKEN
        assert is_broken == (routing == "dynamic")
    else:
        assert violation["odd_violation"] <= TOLERANCE
        assert violation["even_violation"] <= TOLERANCE


@pytest.mark.parametrize(
    ("late", "steps_to_20", "steps_to_50"),
    [
        # a mean of 20 steps, k ones, 20 − k tenths, exceeds a fifth from k = 3, a half from 9
        (1.0, 33, 39),
        (0.4, 37, 60),  # k = 7; and never
        (0.1, 60, 60),
    ],
)
def test_what_a_training_tells_of_its_course(monkeypatch, late, steps_to_20, steps_to_50):
    """The last and the best accuracy, and when the mean accuracy of 20 training steps got above
    20 and 50 percent.
    """
    terms = {"loss": [1.0] * 60, "accuracy": [0.1] * 30 + [late] * 30}
    history = History(terms, {"test_accuracy": [0.1, 0.75, 0.5]})
    splits = {"test": Examples(torch.zeros(7), torch.zeros(7))}
    trained = Trained(nn.Identity(), history, splits, [])
    monkeypatch.setattr("capslib.papers.negation_limitation.depth.train", lambda *_: trained)
    metrics = EXPERIMENTS["depth"].run(Arm("any"), Context(seed=0)).metrics
    assert {name: metric.value for name, metric in metrics.items()} == {
        "test_accuracy": 0.5,
        "best_test_accuracy": 0.75,
        "steps_to_20_percent": steps_to_20,
        "steps_to_50_percent": steps_to_50,
    }


# ---------------------------------------------------------------------------------------------
# networks and training


def capsnet(seed: int = 0, **fields) -> tuple[CapsNetRecipe, nn.Module]:
    """Return a recipe with a small front end and decoder, and its network as it is drawn."""
    defaults = dict(SMALL, data="digits", depth=4, bias=False, kernel=3)
    config = CapsNetRecipe(**{**defaults, **fields})
    return config, new_network(config, (1, 8, 8), seed)


@EACH_OF_THE_PAPER
@pytest.mark.parametrize(("std", "bias"), [(0.1, 0.1), (0.3, 0.0), (0.3, None)])
def test_what_a_network_starts_from(routing, std, bias):
    """W and, of EM, β from N(0, σ²); a bias from one number. Hidden layers have 16 capsules."""
    options = dict(routing=routing, bias=bias is not None, weight_std=std)
    if bias is not None:
        options["bias_start"] = bias
    layers = []
    for seed in range(4):
        _, network = capsnet(seed, **options)
        layers += network.capsules.layers
    assert [layer.weight.shape[1] for layer in layers] == 4 * [16, 16, 10]
    drawn = ["weight"]
    if routing != "dynamic":
        drawn += ["routing.beta_u", "routing.beta_a"]
    for name in drawn:
        numbers = torch.cat([layer.get_parameter(name).flatten() for layer in layers])
        assert len(numbers) > 100
        assert numbers.std().item() == pytest.approx(std, rel=0.3)
        assert abs(numbers.mean().item()) < 0.3 * std
    for layer in layers:
        if bias is None:
            assert layer.routing.bias is None
        else:
            assert (layer.routing.bias == bias).all()


def test_hidden_capsules_have_the_dimensions_of_the_release():
    """10 under EM and 12 under RBA."""
    for scale in SCALES:
        for name in ("depth", "negated"):
            for arm in EXPERIMENTS[name].at(scale).values():
                recipe = arm.changed(dict(SMALL, kernel=3, depth=3, data="digits")).recipe
                hidden, _ = new_network(recipe, (1, 8, 8), 0).capsules.layers
                dimensions = 12 if recipe.routing == "dynamic" else 10
                assert hidden.weight.shape[2] == dimensions


@EACH_OF_THE_PAPER
def test_the_controls_start_from_the_drawn_weights(routing):
    """Scaled until s has mean length one on a first batch, or with the identity added."""
    x = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for std in ("unit", "identity"):
        config, network = capsnet(routing=routing, weight_std=std)
        _, as_drawn = capsnet(routing=routing)
        config.start(network, Examples(x, None), 0)
        pose, activation = as_capsules(network.primary_capsules(x))
        for layer, drawn in zip(network.capsules.layers, as_drawn.capsules.layers, strict=True):
            if std == "identity":
                eye = torch.eye(*layer.weight.shape[2:]).expand_as(layer.weight)
                torch.testing.assert_close(layer.weight - drawn.weight, eye)
            else:
                s = layer.votes(pose).sum(dim=1) / layer.weight.shape[1]
                assert s.norm(dim=-1).mean().item() == pytest.approx(1, abs=1e-4)
                scale = layer.weight.std() / drawn.weight.std()
                torch.testing.assert_close(layer.weight, scale * drawn.weight)
            pose, activation, _ = layer(pose, activation)
        if std == "unit":
            assert network(x).activation.mean() > 0.1, "nothing has faded on the way"


def test_the_losses_of_both_experiments():
    """§5.2: margin and, with a small weight, the squared error of all pixels. §5.1: the margin
    loss with λ = 1 (0.5 elsewhere).
    """
    scores, labels = torch.tensor([[0.5, 0.3]]), torch.tensor([0])
    images = torch.rand(1, 1, 2, 2)
    # four pixels, each wrong by two
    answer = CapsNetOutput(torch.zeros(1, 2, 16), scores, images.flatten(1) + 2)
    margin = 0.4**2 + 0.5 * 0.2**2
    for weight in (5e-4, 0.25):
        config, _ = capsnet(routing="dynamic", reconstruction_weight=weight)
        objective = config.objective(torch.device("cpu"))
        terms = objective(lambda _: answer, Examples(images, labels))
        assert float(terms["margin"]) == pytest.approx(margin)
        assert float(terms["loss"]) == pytest.approx(margin + weight * 16)
    sign = SignRecipe(routing="dynamic", bias=True).objective(torch.device("cpu"))
    assert float(sign.terms(scores, labels)["loss"]) == pytest.approx(0.4**2 + 0.2**2)


def test_the_test_accuracy_is_that_of_test_images():
    config, _ = capsnet(routing="dynamic")
    images = torch.zeros(4, 1, 8, 8)
    splits = {
        "train": Examples(images, torch.zeros(4)),
        "test": Examples(images, torch.tensor([0, 1, 1, 1])),
    }
    metrics = config.evaluate(lambda images: torch.eye(10)[[0] * len(images)], splits)
    assert metrics == {"test_accuracy": 0.25}


# ----------------------------------------------------------------------------------------------
# deviations


@pytest.mark.parametrize("name", ["sign", "depth"])
def test_deviations_name_what_differs_in_the_routing(name):
    for arm in EXPERIMENTS[name].at("paper").values():
        expected = {"E-step of EM", "direction of EM vector capsules"}
        if arm.recipe.routing == "dynamic":
            expected = {"squash"}
        assert expected <= {deviation.what for deviation in deviations(STEM, name, arm)}
