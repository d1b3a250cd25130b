"""Faria (2019): the network, the recipe, the limits of λ₁ and λ₂, and what records hold."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from capslib import data
from capslib.lab import frames
from capslib.lab.store import Store
from capslib.networks.learned_routing import ConsensusCapsNet
from capslib.papers.check import selects
from capslib.papers.common import bytes_kept
from capslib.papers.experiment import SCALES, Metric
from capslib.papers.learned_routing import (
    CHECKS,
    EXPERIMENTS,
    costs,
    limits,
    shown,
    start,
    table3,
    toy,
)
from capslib.papers.learned_routing.recipe import (
    REDUCED,
    ConsensusRecipe,
    margin_at,
    paper_recipe,
)
from capslib.recipes import new_network, train
from capslib.routing import make_routing
from capslib.routing.consensus import closed_form, kernel, similarity_routing
from capslib.training import Context, Examples, seeded

RECORDS = Store(Path(__file__).parents[2] / "results")
"""The records of the book, wherever ``$CAPSLIB_RESULTS`` is."""
ROUTINGS = ("connectionist", "similarity", "em", "dynamic")
EACH_ROUTING = pytest.mark.parametrize("routing", ROUTINGS)
EACH_DRAW = pytest.mark.parametrize("seed", range(5))


def small_recipe(**changes) -> ConsensusRecipe:
    return ConsensusRecipe(**{"data": "toys", **REDUCED["smoke"]["toys"], **changes})


def small_network(**changes) -> ConsensusCapsNet:
    return new_network(small_recipe(**changes), (1, 20, 20), 0)


def random_images(n: int, side: int) -> Examples:
    images = torch.randint(0, 256, (n, 1, side, side), dtype=torch.uint8)
    return Examples(images, torch.zeros(n))


def arms(experiment: str, scale: str) -> dict:
    return EXPERIMENTS[experiment].at(scale)


# ---------------------------------------------------------------------------------- network


@EACH_ROUTING
def test_the_network_has_the_parameters_of_table_1(routing):
    network = ConsensusCapsNet((1, 32, 32), routing=routing)
    parameters = sum(p.numel() for p in network.parameters())
    assert parameters - network.routing_parameters() == 86_344
    if routing == "connectionist":
        assert network.routing_parameters() == 39_818
        # pairs would have another count
        pairs = ConsensusCapsNet((2, 32, 32), routing=routing)
        assert sum(p.numel() for p in pairs.parameters()) - 39_818 == 87_944


def test_the_grids_have_the_sizes_of_table_1():
    network = ConsensusCapsNet((1, 32, 32), routing="dynamic")
    layers = network.layers(torch.rand(2, 1, 32, 32))
    assert layers["capsules1"].pose.shape[1:] == (6, 6, 16, 4, 4)
    assert layers["capsules2"].pose.shape[1:] == (4, 4, 16, 4, 4)
    assert layers["classes"].pose.shape[1:] == (5, 16)


@pytest.mark.parametrize("raw", [False, True])
def test_primary_poses_are_positive_and_of_length_one_unless_raw(raw):
    network = ConsensusCapsNet((1, 17, 17), sizes=(8, 2, 2, 2), raw_poses=raw)
    pose, activation = network.primary_capsules(torch.randn(3, 1, 17, 17))
    length = torch.linalg.vector_norm(pose.flatten(4), dim=-1)
    assert bool((pose < 0).any()) == raw
    assert bool(((length - 1).abs() < 1e-4).all()) != raw
    assert ((activation > 0) & (activation < 1)).all()


@pytest.mark.parametrize("routing", ["similarity", "connectionist"])
def test_a_frozen_routing_stays_as_it_starts_and_lets_gradients_through(routing):
    network = small_network(routing=routing, trained=False)
    network(torch.randn(4, 1, 20, 20)).activation.square().sum().backward()
    trained = set()
    for name, parameter in network.named_parameters():
        frozen = ".routing." in name
        assert (parameter.grad is None) == frozen, name
        if not frozen:
            trained.add(id(parameter))
    (group,) = small_recipe(routing=routing, trained=False).optimizer(network).param_groups
    assert {id(parameter) for parameter in group["params"]} == trained


def test_theta_of_columns_has_a_row_for_each_column_of_each_grid():
    network = ConsensusCapsNet(
        (1, 20, 32), sizes=(8, 2, 3, 3), routing="similarity", theta="columns"
    )
    layers = network.layers(torch.rand(2, 1, 20, 32))
    layers["classes"].activation.sum().backward()
    assert layers["capsules1"].pose.shape[2] == 6
    assert layers["capsules2"].pose.shape[2] == 4
    for name, columns in (("capsules1", 6), ("capsules2", 4), ("classes", 1)):
        theta = getattr(network, name).routing.theta
        assert len(theta) == columns
        assert (theta.grad[:, 1] != 0).all()


@pytest.mark.parametrize(
    "change",
    [
        dict(iterations=1),
        dict(coordinates=False),
        dict(raw_poses=True),
        dict(reads="released"),
        dict(routing="similarity", theta="columns"),
        dict(routing="similarity", similarity_start="steep"),
        dict(routing="similarity", similarity_start="spread"),
    ],
    ids=str,
)
def test_every_option_changes_what_the_network_says(change):
    images = torch.randn(2, 1, 20, 20)
    network = small_network(routing=change.get("routing", "connectionist"))
    changed = small_network(**change)
    assert (network(images).activation - changed(images).activation).abs().max() > 1e-6


@EACH_ROUTING
def test_cross_entropy_is_an_option_of_logits_where_routings_learn(routing):
    images = torch.randn(2, 1, 20, 20)
    activations = small_network(routing=routing)(images).activation
    scores = small_network(routing=routing, loss="cross_entropy")(images).activation
    if routing in ("similarity", "connectionist"):
        scores = scores.sigmoid()
    torch.testing.assert_close(scores, activations)


def test_children_are_active_at_the_start_and_an_lstm_remembers():
    """Check the released biases: 0.8 ± 0.2 of primary activations, 1 of the forget gates."""
    network = ConsensusCapsNet((1, 17, 17))
    _, activation = network.primary_capsules(torch.zeros(1, 1, 17, 17))
    assert ((activation.logit() - 0.8).abs() < 0.2 + 1e-4).all()
    entry, forget, leave, new = make_routing("connectionist", 2, 3).gate_bias.chunk(4)
    assert (forget == 1).all()
    assert not torch.cat([entry, leave, new]).any()


@pytest.mark.parametrize("start", ["released", "spread"])
def test_a_parent_of_similarity_routing_is_active_at_the_start(start):
    """Check a logit near θ₂, which is one.

    Beside it stand θ₁ of at most 0.2, times an agreement between 0 and 1, and ln(0.9 + 0.1).
    """
    routing = make_routing("similarity", 20, 4, start=start)
    parents = routing(torch.randn(9, 20, 4), torch.full((9,), 0.9))
    assert ((parents.activation.logit() - 1).abs() < 0.2 + 1e-4).all()


def test_em_routing_starts_with_half_of_the_capsules_active():
    recipe = small_recipe(routing="em")
    torch.manual_seed(0)
    images = random_images(16, 24)
    network = new_network(recipe, (1, 20, 20), 0)
    recipe.start(network, images, 0)
    for layer in network.layers(recipe.seen(images.inputs)).values():
        assert 0.3 < (layer.activation > 0.5).float().mean() < 0.7


# ----------------------------------------------------------------------------------- recipe


def test_both_images_of_a_pair_are_examples():
    images = torch.arange(12, dtype=torch.uint8).view(3, 2, 1, 2)
    parts = {"train": Examples(images, torch.tensor([4, 2, 1]))}
    separate = small_recipe().arrange(parts)["train"]
    assert separate.inputs.shape == (6, 1, 1, 2)
    assert separate.inputs[3, 0, 0].tolist() == [6, 7]
    assert separate.labels.tolist() == [4, 4, 2, 2, 1, 1]
    pairs = ConsensusRecipe(views="pairs")
    assert pairs.arrange(parts) is parts
    assert (pairs.input_shape, pairs.train_size) == ((2, 32, 32), 24_300)
    assert ConsensusRecipe().input_shape == (1, 32, 32)
    assert ConsensusRecipe().train_size == 48_600


def test_jitter_comes_after_the_images_are_standardised():
    images = random_images(50, 48).inputs

    def seen(**changes) -> torch.Tensor:
        recipe = small_recipe(resize=None, **changes)
        return recipe.prepare(images, torch.Generator().manual_seed(0))

    assert seen(crop=32).shape == (50, 1, 32, 32)
    plain = seen(crop=48, jitter=False).flatten(1)
    torch.testing.assert_close(plain.mean(dim=1), torch.zeros(50), rtol=0, atol=1e-3)
    torch.testing.assert_close(plain.std(dim=1), torch.ones(50), rtol=0, atol=1e-3)
    jittered = seen(crop=48, jitter=True).flatten(1)
    means, deviations = jittered.mean(dim=1), jittered.std(dim=1)
    assert -2.01 <= means.min() < -1.2
    assert 1.2 < means.max() <= 2.01
    assert 0.49 <= deviations.min() < 0.7
    assert 1.3 < deviations.max() <= 1.51


def test_digits_of_the_paper_are_moved_by_two_pixels():
    mnist = paper_recipe("mnist")
    image = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)
    image[..., 14, 14] = 255
    places = set()
    for seed in range(200):
        seen = mnist.prepare(image, torch.Generator().manual_seed(seed))
        _, _, row, column = seen.nonzero()[0].tolist()
        places.add((row, column))
    assert places == {(row, column) for row in range(12, 17) for column in range(12, 17)}
    assert mnist.prepare(image).equal(image.float() / 255)


def test_the_rate_falls_as_released_and_the_margin_grows():
    paper = ConsensusRecipe()
    assert paper.rate(20_000 / 76_000) == pytest.approx(3e-3 * 0.96)
    assert small_recipe(decay="cosine").rate(1) == pytest.approx(0)
    objective = small_recipe().objective(torch.device("cpu"))
    for progress, margin in ((0, 0.2142), (0.4, 0.595), (1, 0.988)):
        assert margin_at(progress) == pytest.approx(margin, abs=1e-3)
        objective.at(progress)
        # of two classes that are equally active, the loss is the square of the margin
        loss = objective.loss(torch.ones(1, 2), torch.tensor([0]))
        assert float(loss) == pytest.approx(margin**2, abs=2e-3)


@pytest.mark.parametrize("name", ["toys", "digits"])
def test_what_is_held_out_is_not_trained_on(name):
    recipe = small_recipe(data=name, images=0, held_out=True)
    split = data.load(name, "train")
    masks = recipe.choose(split)
    assert (masks["train"] ^ masks["test"]).all()
    assert 0.05 < masks["test"].mean() < 0.25
    assert recipe.choose(data.load(name, "test")) == {}
    if name == "toys":
        toys = {}
        for part, mask in masks.items():
            toys[part] = {*zip(split["labels"][mask], split["instance"][mask], strict=True)}
        assert not toys["train"] & toys["test"], "a toy is on one side with all its images"
        assert {category for category, _ in toys["test"]} == set(range(5))


# ----------------------------------------------------------------------------------- limits


@EACH_DRAW
def test_a_large_first_weight_makes_couplings_uniform(seed):
    c = toy.couplings(seed, limits.LIMIT, 1.0)
    torch.testing.assert_close(c, torch.full_like(c, 1 / len(c)), rtol=1e-4, atol=0)


@EACH_DRAW
def test_a_large_second_weight_makes_couplings_follow_the_activations(seed):
    _, activation, *_ = toy.clusters(seed)
    c = toy.couplings(seed, 1.0, limits.LIMIT)
    torch.testing.assert_close(c, activation / activation.sum(), rtol=1e-4, atol=0)


@EACH_DRAW
def test_small_weights_gather_the_couplings_on_the_dense_cluster(seed):
    shares = []
    for weight in limits.SMALL:
        c = toy.couplings(seed, weight, weight, iterations=10)
        shares.append(float(c[: toy.DENSE].sum()))
    assert shares == sorted(shares)
    assert shares[-1] > 0.8


@pytest.mark.parametrize("lambdas", [(0.5, 0.5), (2.0, 0.1), (0.2, 1.0), (0.0, 0.7)])
def test_the_closed_form_is_what_projected_gradient_finds(lambdas):
    votes, activation, mixture, width = toy.clusters(3)
    mu = votes.mean(dim=0)[0]
    k = kernel(votes.permute(2, 1, 0), mu[:, None], mixture, width)[0]
    closed = closed_form(k, activation.log(), *torch.tensor(lambdas)).softmax(0)
    minimised = toy.minimised(k, activation.log(), *lambdas)
    assert (closed - minimised).abs().max() < 1e-6
    assert (closed - 1 / len(closed)).abs().max() > 1e-3


@pytest.mark.parametrize("lambdas", [(0.5, 0.5), (2.0, 0.1), (0.2, 1.0)])
def test_the_objective_falls_over_alternating_steps(lambdas):
    assert toy.largest_rise(1, *lambdas) < 1e-12


def test_the_activation_is_that_of_equation_13():
    """Check three children whose votes are the mean itself, so that every kernel is one.

    Couplings follow (a + 0.1) to the λ₂/(λ₁ + λ₂); of the weights the absolute values count.
    """
    activation = torch.tensor([0.1, 0.4, 0.9])
    weights = torch.tensor([[-1.0, 3.0]])
    theta = torch.tensor([[2.0, -1.0, -0.5]])
    votes, mixture, width = torch.ones(3, 1, 2), torch.zeros(1, 2), torch.ones(1, 2)
    parents = similarity_routing(votes, activation, mixture, width, weights, theta)
    c = (activation + 0.1) ** 0.75
    c /= c.sum()
    torch.testing.assert_close(parents.coupling[:, 0], c, rtol=1e-5, atol=0)
    expected = torch.sigmoid(2 * 1 - 1 + 0.5 * (c * (activation + 0.1).log()).sum())
    torch.testing.assert_close(parents.activation[0], expected, rtol=1e-5, atol=0)


def test_a_new_network_tells_near_from_far_from_the_steep_start_only():
    released = start.sight("released", images=2)
    spread = start.sight("spread", images=2)
    steep = start.sight("steep", images=2)
    for layer in table3.LAYERS:
        assert max(released[layer].ratio, spread[layer].ratio) < 1.05 < steep[layer].ratio
        assert spread[layer].blind == steep[layer].blind == 0
        assert released[layer].near < released[layer].far < 1
    assert min(released["capsules1"].blind, released["classes"].blind) > 0.8
    assert released["capsules2"].blind < 0.5


def negate_network(routing: str, raw: bool = False, images: int = 16) -> tuple[float, float]:
    """Return how far the class poses of a new network move from an image to its negative.

    Beside it stands how far they move to another image, both in mean lengths. Images are noise;
    ``raw`` networks neither clip and divide primary poses nor add coordinates.
    """
    options = dict(routing=routing, raw_poses=raw, coordinates=not raw)
    with seeded(0), torch.no_grad():
        network = ConsensusCapsNet((1, 32, 32), **options).eval()
        x = torch.randn(images, 1, 32, 32)
        pose = network.layers(x)["classes"].pose
        negative = network.layers(-x)["classes"].pose
        next_pose = network.layers(x.roll(1, dims=0))["classes"].pose
    length = torch.linalg.vector_norm(pose, dim=-1).mean()
    to_negative = torch.linalg.vector_norm(pose - negative, dim=-1).mean()
    to_next = torch.linalg.vector_norm(pose - next_pose, dim=-1).mean()
    return float(to_negative / length), float(to_next / length)


@EACH_ROUTING
def test_a_new_network_hardly_sees_its_images_but_one_with_raw_poses_does(routing):
    """So a negative says nothing of symmetry: another image moves the poses as much."""
    for raw, lower, upper in ((False, 0, 0.05), (True, 0.1, 1)):
        to_negative, to_image = negate_network(routing, raw, images=4)
        assert lower < to_negative < upper
        assert 0.5 < to_negative / to_image < 2


def test_negation_is_seen_by_the_lstm_and_by_a_bias_only():
    metrics = {}
    for name, arm in arms("negation", "cpu").items():
        metrics[name] = limits.negate(arm, Context(seed=0)).metrics
    blind = {name for name, m in metrics.items() if m["pose_is_not_odd"].value == 0}
    assert blind == {"similarity/no_bias", "em/no_bias", "dynamic/no_bias"}
    assert metrics["connectionist/no_bias"]["activation_is_not_even"].value > 1e-2


# ------------------------------------------------------------------------------------- arms


def test_similarity_routing_starts_as_released_at_the_size_of_the_paper():
    for scale, usual in (("paper", "released"), ("cpu", "steep")):
        assert arms("errors", scale)["mnist/similarity"].recipe.similarity_start == usual
        starts = set()
        for arm in arms("variants", scale).values():
            if arm.recipe.routing == "similarity":
                starts.add(arm.recipe.similarity_start)
        assert starts == {"released", "steep", "spread"}


def test_claims_ask_for_trained_networks_and_those_of_pairs_for_pairs():
    for select in selects(CHECKS["LR-W-1"]):
        for scale in ("cpu", "paper"):
            recipe = arms("errors", scale)[select.arm].recipe
            assert recipe.trained
            assert recipe.views == "separate"
    pairs = ["smallnorb/connectionist/pairs", "smallnorb/similarity/pairs"]
    assert [select.arm for select in selects(CHECKS["LR-W-2"])] == pairs
    for scale in SCALES:
        for name, arm in arms("errors", scale).items():
            is_pair = arm.recipe.views == "pairs"
            assert is_pair == (scale == "paper" and name in pairs)


@pytest.mark.parametrize("scale", SCALES)
def test_every_variant_differs_from_an_arm_of_its_scale_in_one_field(scale):
    for name, variant in arms("variants", scale).items():
        usual, _, change = name.rpartition("/")
        assert change in shown.CHANGES
        values = arms("errors", scale)[usual].values()
        changed = [field for field, value in variant.values().items() if value != values[field]]
        assert len(changed) == 1, name


def test_the_records_of_the_pilot_choose_the_rates_of_the_reduced_arms():
    errors: dict[str, dict[float, float]] = {}
    for record in frames.select(RECORDS.records("learned_routing"), "pilot", "cpu"):
        name, _, rate = record.config["arm"].rpartition("/")
        error = record.metrics["held_out_error"].value
        errors.setdefault(name, {})[table3.RATES[rate]] = error
    assert {len(rates) for rates in errors.values()} == {len(table3.RATES)}
    chosen = {name: min(rates, key=rates.get) for name, rates in errors.items()}
    reduced = arms("errors", "cpu")
    assert chosen == {name: arm.recipe.learning_rate for name, arm in reduced.items()}


# ---------------------------------------------------------------------------------- records


def test_children_are_divided_by_what_they_are_ordered_by():
    weight = torch.tensor([[0.5, 0.1, 0.1, 0.3]]).view(1, 4, 1)
    order = torch.tensor([[4.0, 2.0, 1.0, 3.0]]).view(1, 4, 1)
    parts = table3.in_parts(weight, order)
    torch.testing.assert_close(parts, torch.tensor([0.4, 0.4, 1.2, 2.0]))


@pytest.mark.parametrize("routing", [*ROUTINGS, "em_vector", "dynamic_over_children"])
def test_votes_have_the_weights_in_the_mean_that_the_routing_gives_them(routing):
    """Check two children with the same couplings, one of which is hardly active.

    Where activations count, the mean is the vote of the other.
    """
    even, activation = torch.full((1, 2, 1), 0.5), torch.tensor([[1.0, 0.0]])
    weight = table3.weights(make_routing(routing, 1, 2), even, activation)
    assert weight.flatten().tolist() == ([1, 0] if routing.startswith("em") else [0.5, 0.5])
    votes, activation = torch.randn(7, 9, 3, 4), torch.rand(7, 9)
    module = make_routing(routing, 3, 4)
    parents = module(votes, activation)
    weight = table3.weights(module, parents.coupling, activation)
    mean = F.normalize((weight[..., None] * votes).sum(dim=1), dim=-1)
    pose = F.normalize(parents.pose, dim=-1)
    torch.testing.assert_close(pose, mean, rtol=0, atol=1e-4)


def test_the_first_mean_of_em_routing_follows_activations_alone():
    """With equal couplings, and no activations, every tenth would have the same share."""
    recipe = small_recipe(routing="em")
    network = new_network(recipe, (1, 20, 20), 0)
    _, series = table3.look_inside(recipe, network, random_images(32, 24))
    shares = series["by_activation_classes_1"]
    assert shares == sorted(shares)
    assert shares[-1] > shares[0]


@pytest.mark.parametrize("routing", ["connectionist", "similarity"])
def test_a_record_of_the_errors_says_what_the_network_does(routing, tmp_path):
    """Check the error in tests, and what couplings of the classes follow.

    Each has 3·c of the nearest, next and farthest of three children.
    """
    arm = arms("errors", "smoke")[f"digits/{routing}"]
    context = Context(seed=0, folder=tmp_path)
    outcome = table3.run(arm, context)
    trained = train(arm.recipe, 0, context)  # the same, read from the folder
    network, test = trained.network, trained.splits["test"]
    images = arm.recipe.prepare(test.inputs)
    with torch.no_grad():
        wrong = (network(images).activation.argmax(dim=1) != test.labels).float()
        children = network.layers(images)["capsules2"]
        votes = network.classes.votes(children.pose)
        activation = children.activation.flatten(1)
        assert outcome.metrics["test_error"].value == pytest.approx(100 * float(wrong.mean()))
        assert outcome.metrics["test_error"].n == len(test.labels)
        mean = votes.mean(dim=1)
        for t in (1, 2, 3):
            distance = torch.linalg.vector_norm(votes - mean[:, None], dim=-1)
            mean, _, coupling = network.classes.routing(votes, activation, iterations=t)
            active = activation[..., None].expand_as(distance)
            for key, order in (("distance", distance), ("activation", active)):
                weight = 3 * coupling.gather(1, order.argsort(dim=1)).mean(dim=(0, 2))
                series = outcome.series[f"by_{key}_classes_{t}"]
                assert series == pytest.approx(weight.tolist(), abs=2e-5)


def test_what_is_kept_for_the_gradient_counts_shared_storage_once():
    network = torch.nn.Sequential(torch.nn.Linear(100, 50, bias=False), torch.nn.Sigmoid())
    floats = 10 * 100 + 10 * 50
    assert bytes_kept(network, lambda: network(torch.zeros(10, 100))) == 4 * floats


def test_a_whole_training_takes_as_long_as_its_steps():
    """Check 76,000 steps at one second; pairs have more operations, and digits fewer."""
    separate = costs.hours(ConsensusRecipe(), 1.0)
    assert separate == pytest.approx(76_000 / 3600)
    assert costs.hours(ConsensusRecipe(views="pairs"), 1.0) > separate / 2
    assert costs.hours(paper_recipe("mnist"), 1.0) < separate * 93_800 / 76_000


def test_the_least_hours_come_first():
    records = []
    for routing, seconds in (("connectionist", 4), ("similarity", 1), ("similarity", 3)):
        metrics = {"seconds_of_a_step": Metric(value=seconds, n=1, unit="s")}
        records.append(SimpleNamespace(config={"routing": routing}, metrics=metrics))
    cells = shown.hours_of_table_3(records, arms("errors", "paper").values())
    hours, names = zip(*cells, strict=True)
    kernels = ("kernel on MNIST", "kernel on smallNORB")
    assert names == (*kernels, "LSTM on MNIST", "LSTM on smallNORB")
    assert hours[1] == pytest.approx(76_000 / 3600)


def record(
    error: float, arm: str, seed: int = 0, right: float = 1.0, scale: str = "cpu"
) -> SimpleNamespace:
    """Return a record of an arm."""
    experiments = arms("errors", scale) | arms("variants", scale)
    return SimpleNamespace(
        config=experiments[arm].fields(),
        trial=SimpleNamespace(seed=seed, scale=scale),
        series={"batch_accuracy": [right]},
        metrics={"test_error": Metric(value=error, n=1, unit="percent")},
    )


KERNELS = [
    record(5, "mnist/similarity", 0),
    record(7, "mnist/similarity", 1),
    record(6, "mnist/similarity/frozen", 0),
    record(10, "mnist/similarity/frozen", 1),
    record(1, "mnist/similarity", 2),
]


def test_variants_are_compared_with_table_3_seed_by_seed():
    variants = [
        record(9, "mnist/similarity/theta_of_columns", 1),
        record(2, "mnist/connectionist/swapped_states", 0),
    ]
    elsewhere = record(3, "smallnorb/similarity")
    assert shown.changes([*KERNELS, elsewhere], variants) == {
        ("MNIST", "LSTM", "swapped states"): ([2], []),
        ("MNIST", "kernel", "as in Table 3"): ([5, 7, 1], [0, 0, 0]),
        ("MNIST", "kernel", "θ of columns"): ([9], [2]),
    }


def test_networks_on_pairs_of_images_are_not_those_of_table_3():
    networks = [
        record(2, "smallnorb/similarity", scale="paper"),
        record(1, "smallnorb/similarity/pairs", scale="paper"),
    ]
    variant = record(5, "smallnorb/similarity/theta_of_columns", scale="paper")
    assert shown.changes(networks, [variant]) == {
        ("smallNORB", "kernel", "as in Table 3"): ([2], [0]),
        ("smallNORB", "kernel", "θ of columns"): ([5], [3]),
    }


def test_the_pilot_is_told_by_arm_and_by_its_share_of_the_steps():
    rates = shown.rates(frames.select(RECORDS.records("learned_routing"), "pilot", "cpu"))
    assert len(rates) == 12
    for errors in rates.values():
        assert set(errors) == set(table3.RATES.values())
    pilot, errors = arms("pilot", "cpu"), arms("errors", "cpu")
    assert shown.share_of_steps(pilot.values(), errors.values()) == {
        "smallNORB": pytest.approx(314 / 1252),
        "MNIST": pytest.approx(395 / 1256),
    }
