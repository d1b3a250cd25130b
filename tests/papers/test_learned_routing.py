"""The chapter of Faria (2019): its network, its recipe, the limits of its weights, and what its records hold."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from capslib import data
from capslib.lab import frames
from capslib.lab.chapter import Chapter
from capslib.lab.store import Store
from capslib.networks.learned_routing import ConsensusCapsNet
from capslib.papers.experiment import Metric
from capslib.papers.learned_routing import QUERIES, costs, limits, shown, start, table3, toy
from capslib.papers.learned_routing.recipe import REDUCED, ConsensusRecipe, margin_at
from capslib.papers.query import Index, selects
from capslib.recipes import new_network, train
from capslib.routing import make_routing
from capslib.routing.consensus import closed_form, kernel, similarity_routing
from capslib.training import Context, Examples

ROUTINGS = ("connectionist", "similarity", "em", "dynamic")


def recipe(**changes) -> ConsensusRecipe:
    return ConsensusRecipe(**{"data": "toys", **REDUCED["smoke"]["toys"], **changes})


# ---------------------------------------------------------------------------------------------------------- network


@pytest.mark.parametrize("routing", ROUTINGS)
def test_the_network_has_the_parameters_of_table_1(routing):
    network = ConsensusCapsNet((1, 32, 32), routing=routing)
    assert sum(p.numel() for p in network.parameters()) - network.of_routing() == 86_344
    assert routing != "connectionist" or network.of_routing() == 39_818


def test_the_grids_have_the_sizes_of_table_1():
    found = ConsensusCapsNet((1, 32, 32), routing="dynamic").layers(torch.rand(2, 1, 32, 32))
    assert {name: tuple(r.pose.shape[1:]) for name, r in found.items()} == {
        "capsules1": (6, 6, 16, 4, 4),
        "capsules2": (4, 4, 16, 4, 4),
        "classes": (5, 16),
    }


def test_pairs_and_shared_classes_would_have_other_counts():
    assert sum(p.numel() for p in ConsensusCapsNet((2, 32, 32)).parameters()) - 39_818 == 87_944


def test_primary_poses_are_positive_and_of_length_one_unless_raw():
    images = torch.randn(3, 1, 17, 17)
    for raw in (False, True):
        torch.manual_seed(0)
        pose, activation = ConsensusCapsNet(
            (1, 17, 17), sizes=(8, 2, 2, 2), raw_poses=raw
        ).primary_capsules(images)
        norm = torch.linalg.vector_norm(pose.flatten(4), dim=-1)
        assert raw == bool((pose < 0).any())
        assert raw != bool(((norm - 1).abs() < 1e-4).all())
        assert ((activation > 0) & (activation < 1)).all()


@pytest.mark.parametrize("routing", ["similarity", "connectionist"])
def test_a_frozen_routing_stays_as_it_starts_and_lets_gradients_through(routing):
    network = new_network(recipe(routing=routing, trained=False), (1, 20, 20), 0)
    network(torch.randn(4, 1, 20, 20)).square().sum().backward()
    for name, parameter in network.named_parameters():
        assert (parameter.grad is None) == (".routing." in name), name
    optimizer = recipe(routing=routing, trained=False).optimizer(network)
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == {
        id(p) for name, p in network.named_parameters() if ".routing." not in name
    }


def test_theta_of_columns_has_a_row_for_each_column_of_each_grid():
    network = ConsensusCapsNet(
        (1, 20, 32), sizes=(8, 2, 3, 3), routing="similarity", theta="columns"
    )
    found = network.layers(torch.rand(2, 1, 20, 32))
    found["classes"].activation.sum().backward()
    for name, columns in (("capsules1", 6), ("capsules2", 4), ("classes", 1)):
        theta = getattr(network, name).routing.theta
        assert len(theta) == columns == (1 if name == "classes" else found[name].pose.shape[2])
        assert (theta.grad[:, 1] != 0).all()


@pytest.mark.parametrize(
    "change",
    [
        dict(iterations=1),
        dict(coordinates=False),
        dict(raw_poses=True),
        dict(reads="released"),
        *(
            dict(routing="similarity", **of)
            for of in (
                dict(theta="columns"),
                dict(similarity_start="steep"),
                dict(similarity_start="spread"),
            )
        ),
    ],
    ids=str,
)
def test_every_option_changes_what_the_network_says(change):
    images = torch.randn(2, 1, 20, 20)
    one, other = (
        new_network(recipe(**of), (1, 20, 20), 0)
        for of in ({"routing": change.get("routing", "connectionist")}, change)
    )
    assert (one(images) - other(images)).abs().max() > 1e-6


@pytest.mark.parametrize("routing", ROUTINGS)
def test_cross_entropy_is_an_option_of_logits_where_routings_learn(routing):
    images = torch.randn(2, 1, 20, 20)
    spread, logits = (
        new_network(recipe(routing=routing, loss=of), (1, 20, 20), 0)(images)
        for of in ("spread", "cross_entropy")
    )
    learns = routing in ("similarity", "connectionist")
    torch.testing.assert_close(logits.sigmoid() if learns else logits, spread)


def test_children_are_active_at_the_start_and_an_lstm_remembers():
    """Biases as released: 0.8 ± 0.2 of the primary activations, one of the forget gates, none of the other gates."""
    activation = (
        ConsensusCapsNet((1, 17, 17)).primary_capsules(torch.zeros(1, 1, 17, 17))[1].logit()
    )
    assert activation.min() > 0.6 - 1e-4
    assert activation.max() < 1 + 1e-4
    entry, forget, leave, new = make_routing("connectionist", 2, 3).gate_bias.chunk(4)
    assert (forget == 1).all()
    assert not torch.cat([entry, leave, new]).any()


@pytest.mark.parametrize("start", ["released", "spread"])
def test_a_parent_of_similarity_routing_is_active_at_the_start(start):
    """θ₂ is one. Beside it stand θ₁ of at most 0.2, times an agreement between 0 and 1, and the logarithm of (0.9 + 0.1)."""
    found = make_routing("similarity", 20, 4, start=start)(
        torch.randn(9, 20, 4), torch.full((9,), 0.9)
    )
    assert ((found.activation.logit() - 1).abs() < 0.2 + 1e-4).all()


def test_em_routing_starts_with_half_of_the_capsules_active():
    config = recipe(routing="em")
    torch.manual_seed(0)
    images = Examples(
        torch.randint(0, 256, (16, 1, 24, 24), dtype=torch.uint8), torch.zeros(16)
    )
    network = new_network(config, (1, 20, 20), 0)
    config.start(network, images, 0)
    for result in network.layers(config.seen(images.inputs)).values():
        assert 0.3 < (result.activation > 0.5).float().mean() < 0.7


def test_images_too_small_for_four_layers_are_refused():
    with pytest.raises(ValueError, match="17 is the least"):
        ConsensusCapsNet((1, 16, 20))


# ----------------------------------------------------------------------------------------------------------- recipe


def test_both_images_of_a_pair_are_examples():
    parts = {
        "train": Examples(
            torch.arange(12, dtype=torch.uint8).view(3, 2, 1, 2), torch.tensor([4, 2, 1])
        )
    }
    apart = recipe().arrange(parts)["train"]
    assert apart.inputs.shape == (6, 1, 1, 2)
    assert apart.inputs[3, 0, 0].tolist() == [6, 7]
    assert apart.labels.tolist() == [4, 4, 2, 2, 1, 1]
    assert recipe(views="pairs").arrange(parts) is parts
    separate, pairs = ConsensusRecipe(), ConsensusRecipe(views="pairs")
    assert (separate.input_shape, separate.train_size) == ((1, 32, 32), 48_600)
    assert (pairs.input_shape, pairs.train_size) == ((2, 32, 32), 24_300)


def test_jitter_comes_after_the_images_are_standardised():
    images = torch.randint(0, 256, (50, 1, 48, 48), dtype=torch.uint8)
    for jitter in (True, False):
        x = recipe(crop=32, resize=None, jitter=jitter).prepare(
            images, torch.Generator().manual_seed(0)
        )
        assert x.shape == (50, 1, 32, 32)
        whole = recipe(crop=48, resize=None, jitter=jitter).prepare(
            images, torch.Generator().manual_seed(0)
        )
        mean, deviation = whole.mean(dim=(1, 2, 3)), whole.std(dim=(1, 2, 3))
        for of, least, most in ((mean, -2, 2), (deviation, 0.5, 1.5)):
            if jitter:
                assert least - 1e-2 <= of.min() < least + 0.2 * (most - least)
                assert most + 1e-2 >= of.max() > most - 0.2 * (most - least)
            else:
                torch.testing.assert_close(
                    of, torch.full_like(of, (least + most) / 2), rtol=0, atol=1e-3
                )


def test_digits_of_the_paper_are_moved_by_two_pixels():
    mnist = ConsensusRecipe(data="mnist", **REDUCED["paper"]["mnist"])
    image = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)
    image[..., 14, 14] = 255
    seen = {
        tuple(mnist.prepare(image, torch.Generator().manual_seed(k)).nonzero()[0].tolist()[2:])
        for k in range(200)
    }
    assert seen == {(row, column) for row in range(12, 17) for column in range(12, 17)}
    assert mnist.prepare(image).equal(image.float() / 255)
    assert mnist == mnist.setting()


def test_the_rate_falls_as_released_and_the_margin_grows():
    paper = ConsensusRecipe()
    steps = 100 * 760
    assert paper.rate(20_000 / steps) == pytest.approx(3e-3 * 0.96)
    assert recipe(decay="cosine").rate(1) == pytest.approx(0)
    margins = [0.2142, 0.595, 0.988]
    assert [margin_at(p) for p in (0, 0.4, 1)] == pytest.approx(margins, abs=1e-3)
    loss = recipe().objective(torch.device("cpu"))
    for progress, margin in zip((0, 0.4, 1), margins, strict=True):
        loss.at(progress)  # of two classes that are equally active, the square of the margin
        assert float(loss.loss(torch.ones(1, 2), torch.tensor([0]))) == pytest.approx(
            margin**2, abs=2e-3
        )


def test_what_is_held_out_is_not_trained_on():
    for name in ("toys", "digits"):
        held = ConsensusRecipe(
            data=name, **{**REDUCED["smoke"][name], "images": 0, "held_out": True}
        )
        split = data.load(name, "train")
        masks = held.choose(split)
        assert (masks["train"] ^ masks["test"]).all()
        assert 0.05 < masks["test"].mean() < 0.25
        assert held.choose(data.load(name, "test")) == {}
        if name == "toys":
            toys = {
                of: {*zip(split["labels"][mask], split["instance"][mask], strict=True)}
                for of, mask in masks.items()
            }
            assert not toys["train"] & toys["test"], "a toy is on one side with all its images"
            assert {category for category, _ in toys["test"]} == set(range(5))


# ----------------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize("seed", range(5))
def test_a_large_first_weight_makes_couplings_uniform(seed):
    c = toy.couplings(seed, limits.LIMIT, 1.0)
    torch.testing.assert_close(c, torch.full_like(c, 1 / len(c)), rtol=1e-4, atol=0)


@pytest.mark.parametrize("seed", range(5))
def test_a_large_second_weight_makes_couplings_follow_the_activations(seed):
    activation = toy.clusters(seed)[1]
    torch.testing.assert_close(
        toy.couplings(seed, 1.0, limits.LIMIT), activation / activation.sum(), rtol=1e-4, atol=0
    )


@pytest.mark.parametrize("seed", range(5))
def test_small_weights_gather_the_couplings_on_the_dense_cluster(seed):
    shares = [
        float(toy.couplings(seed, w, w, iterations=10)[: toy.DENSE].sum()) for w in limits.SMALL
    ]
    assert shares == sorted(shares)
    assert shares[-1] > 0.8


@pytest.mark.parametrize(("one", "two"), [(0.5, 0.5), (2.0, 0.1), (0.2, 1.0), (0.0, 0.7)])
def test_the_closed_form_is_what_projected_gradient_finds(one, two):
    votes, activation, mixture, width = toy.clusters(3)
    mu = votes.mean(dim=0)[0]
    k = kernel(votes.permute(2, 1, 0), mu[:, None], mixture, width)[0]
    closed = closed_form(k, activation.log(), torch.tensor(one), torch.tensor(two)).softmax(0)
    found = toy.minimised(k, activation.log(), one, two)
    assert (closed - found).abs().max() < 1e-6
    assert (closed - 1 / len(closed)).abs().max() > 1e-3


@pytest.mark.parametrize(("one", "two"), [(0.5, 0.5), (2.0, 0.1), (0.2, 1.0)])
def test_the_objective_falls_over_alternating_steps(one, two):
    assert toy.largest_rise(1, one, two) < 1e-12


def test_the_activation_is_that_of_equation_13():
    """Three children whose votes are the mean itself: every kernel is one, and couplings follow (a + 0.1) to the λ₂/(λ₁ + λ₂)."""
    active, theta = torch.tensor([0.1, 0.4, 0.9]), torch.tensor([[2.0, -1.0, -0.5]])
    weights = torch.tensor([[-1.0, 3.0]])  # their absolute values count
    found = similarity_routing(
        torch.ones(3, 1, 2), active, torch.zeros(1, 2), torch.ones(1, 2), weights, theta
    )
    c = (active + 0.1) ** 0.75 / ((active + 0.1) ** 0.75).sum()
    torch.testing.assert_close(found.coupling[:, 0], c, rtol=1e-5, atol=0)
    expected = torch.sigmoid(2 * 1 - 1 + 0.5 * (c * (active + 0.1).log()).sum())
    torch.testing.assert_close(found.activation[0], expected, rtol=1e-5, atol=0)


def test_a_new_network_tells_near_from_far_from_the_steep_start_only():
    looks = {of: start.sight(of, images=2) for of in ("released", "spread", "steep")}
    for layer in table3.LAYERS:
        assert (
            max(looks[of][layer].ratio for of in ("released", "spread"))
            < 1.05
            < looks["steep"][layer].ratio
        )
        assert looks["spread"][layer].blind == looks["steep"][layer].blind == 0
        assert looks["released"][layer].near < looks["released"][layer].far < 1
    blind = {layer: of.blind for layer, of in looks["released"].items()}
    assert min(blind["capsules1"], blind["classes"]) > 0.8
    assert blind["capsules2"] < 0.5


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_new_network_hardly_sees_its_images_but_one_with_raw_poses_does(routing):
    """So what it does with a negative says nothing of symmetry: another image moves its poses as much."""
    for raw, least, most in ((False, 0, 0.05), (True, 0.1, 1)):
        negative, other = limits.negate_network(routing, raw, images=4)
        assert least < negative < most
        assert 0.5 < negative / other < 2


def test_negation_is_seen_by_the_lstm_and_by_a_bias_only():
    found = {
        (c.routing, c.bias): limits.negate(c, Context(seed=0)).metrics
        for c in limits.negation_grid("cpu")
    }
    odd = {which: metrics["pose_is_not_odd"].value for which, metrics in found.items()}
    assert {which for which, value in odd.items() if value == 0} == {
        (r, False) for r in ("similarity", "em", "dynamic")
    }
    assert found["connectionist", False]["activation_is_not_even"].value > 1e-2


# ------------------------------------------------------------------------------------------------------------ grids


def test_similarity_routing_starts_as_released_at_the_size_of_the_paper_and_a_claim_asks_for_that():
    for scale, own, other in (("paper", "released", "steep"), ("cpu", "steep", "released")):
        assert {
            c.similarity_start for c in table3.grid(scale) if c.routing == "similarity"
        } == {own}
        tried = {
            c.similarity_start for c in table3.variants_grid(scale) if c.routing == "similarity"
        }
        assert tried == {own, other, "spread"}
        trials = [("errors", scale, c.model_dump(), c) for c in table3.grid(scale)]
        for select in selects(QUERIES["LR-W-1"]):
            found = Index(trials).of(select, scale)
            assert len(found) == 1, select
            assert found[0].views == "separate"
            assert found[0].trained


def test_only_networks_that_see_pairs_are_compared_with_the_error_of_pairs():
    paper = [("errors", "paper", c.model_dump(), c) for c in table3.grid("paper")]
    found = [
        c for select in selects(QUERIES["LR-W-2"]) for c in Index(paper).of(select, "paper")
    ]
    assert [(c.routing, c.views, c.data) for c in found] == [
        (r, "pairs", "smallnorb") for r in ("connectionist", "similarity")
    ]
    assert not [
        c for scale in ("smoke", "cpu") for c in table3.grid(scale) if c.views == "pairs"
    ]


def test_every_variant_differs_from_an_arm_of_its_scale_in_one_field():
    for scale in ("smoke", "cpu", "paper"):
        for variant in table3.variants_grid(scale):
            own = variant.model_dump()
            assert "," not in table3.change(own, scale) != "", own
            fields = [
                {k for k, v in arm.model_dump().items() if v != own[k]}
                for arm in table3.grid(scale)
            ]
            assert min(map(len, fields)) == 1, own


def test_the_records_of_the_pilot_choose_the_rates_of_the_reduced_arms():
    records = frames.select(Store().records("learned_routing"), "pilot", "cpu")
    errors: dict[tuple, dict[float, float]] = {}
    for r in records:
        arm = r.config["data"], r.config["routing"], r.config["trained"]
        errors.setdefault(arm, {})[r.config["learning_rate"]] = r.metrics[
            "held_out_error"
        ].value
    assert {len(rates) for rates in errors.values()} == {len(table3.RATES)}
    chosen = {arm: min(rates, key=rates.get) for arm, rates in errors.items()}
    assert chosen == {
        (c.data, c.routing, c.trained): c.learning_rate for c in table3.grid("cpu")
    }


# ---------------------------------------------------------------------------------------------------------- records


def test_children_are_divided_by_what_they_are_ordered_by():
    weight = torch.tensor([[0.5, 0.1, 0.1, 0.3]]).view(1, 4, 1)
    by = torch.tensor([[4.0, 2.0, 1.0, 3.0]]).view(1, 4, 1)
    torch.testing.assert_close(table3.in_parts(weight, by), torch.tensor([0.4, 0.4, 1.2, 2.0]))


@pytest.mark.parametrize("routing", [*ROUTINGS, "em_vector", "dynamic_over_children"])
def test_votes_have_the_weights_in_the_mean_that_the_routing_gives_them(routing):
    """Two children with the same couplings, one of which is hardly active: where activations count, the mean is the other's vote."""
    route = make_routing(routing, 1, 2)
    even, active = torch.full((1, 2, 1), 0.5), torch.tensor([[1.0, 0.0]])
    expected = [1.0, 0.0] if routing.startswith("em") else [0.5, 0.5]
    assert table3.weights(route, even, active).flatten().tolist() == expected
    votes, active = torch.randn(7, 9, 3, 4), torch.rand(7, 9)
    found = make_routing(routing, 3, 4)(votes, active)
    mean = (
        table3.weights(make_routing(routing, 3, 4), found.coupling, active)[..., None] * votes
    ).sum(dim=1)
    torch.testing.assert_close(
        *(F.normalize(t, dim=-1) for t in (found.pose, mean)), rtol=0, atol=1e-4
    )


def test_the_first_mean_of_em_routing_follows_activations_alone():
    """Its couplings are all equal, so without the activations every tenth of the children would have the same share."""
    network = new_network(recipe(routing="em"), (1, 20, 20), 0)
    with torch.no_grad():
        images = Examples(
            torch.randint(0, 256, (32, 1, 24, 24), dtype=torch.uint8), torch.zeros(32)
        )
        _, series = table3.look_inside(recipe(routing="em"), network, images)
    assert series["by_activation_classes_1"] == sorted(series["by_activation_classes_1"])
    assert series["by_activation_classes_1"][-1] > series["by_activation_classes_1"][0]


@pytest.mark.parametrize("routing", ["connectionist", "similarity"])
def test_a_record_of_the_errors_says_what_the_network_does(routing, monkeypatch):
    """Its error in tests, and what couplings of the classes follow: each weighs 3·c of the nearest, next and farthest child."""
    trained = []
    monkeypatch.setattr(
        table3, "train", lambda *given: trained.append(train(*given)) or trained[0]
    )
    (config,) = (
        c
        for c in table3.grid("smoke")
        if (c.data, c.routing, c.trained) == ("digits", routing, True)
    )
    found = table3.run(config, Context(seed=0))
    network, test = trained[0].network, trained[0].splits["test"]
    images = config.prepare(test.inputs)
    with torch.no_grad():
        wrong = (network(images).argmax(dim=1) != test.labels).float()
        layers = network.layers(images)
        votes, active = (
            network.classes.votes(layers["capsules2"].pose),
            layers["capsules2"].activation.flatten(1),
        )
        assert found.metrics["test_error"].value == pytest.approx(100 * float(wrong.mean()))
        assert found.metrics["test_error"].n == len(test.labels)
        mean = votes.mean(dim=1)
        for t in (1, 2, 3):
            far = torch.linalg.vector_norm(votes - mean[:, None], dim=-1)
            mean, _, coupling = network.classes.routing(votes, active, iterations=t)
            for key, by in (
                ("distance", far),
                ("activation", active[..., None].expand_as(far)),
            ):
                weighs = 3 * coupling.gather(1, by.argsort(dim=1)).mean(dim=(0, 2))
                assert found.series[f"by_{key}_classes_{t}"] == pytest.approx(
                    weighs.tolist(), abs=2e-5
                )


def test_what_is_kept_for_the_gradient_counts_shared_storage_once():
    linear = torch.nn.Linear(100, 50, bias=False)
    images = torch.zeros(10, 100)
    assert costs.kept(torch.nn.Sequential(linear, torch.nn.Sigmoid()), images) == 4 * (
        10 * 100 + 10 * 50
    )


def test_a_step_of_the_lstm_is_recorded_as_no_slower_than_five_of_em_routing_on_the_same_path():
    """In a training the core of EM routing is compiled, and then its step is far shorter."""
    found = frames.select(
        Chapter("learned_routing").records, "costs", "cpu", routing="connectionist"
    )
    assert len(found) == 3
    assert all(
        1 < r.metrics["times_em"].value <= 5 < r.metrics["times_em_in_training"].value
        for r in found
    )


def test_a_whole_training_takes_as_long_as_its_steps():
    """76,000 steps at one second on one core; images of pairs have more operations, and digits fewer."""
    assert costs.hours(ConsensusRecipe(), 1.0) == pytest.approx(76_000 / 3600)
    pairs, mnist = (
        ConsensusRecipe(views="pairs"),
        ConsensusRecipe(data="mnist", **REDUCED["paper"]["mnist"]),
    )
    assert costs.hours(pairs, 1.0) > costs.hours(ConsensusRecipe(), 1.0) / 2
    assert costs.hours(mnist, 1.0) < costs.hours(ConsensusRecipe(), 1.0) * 93_800 / 76_000


def test_the_least_hours_come_first():
    found = [
        SimpleNamespace(
            config={"routing": r}, metrics={"seconds_of_a_step": Metric(value=s, n=1, unit="s")}
        )
        for r, s in (("connectionist", 4), ("similarity", 1), ("similarity", 3))
    ]
    told = shown.hours_of_table_3(found, table3.grid("paper"))
    assert [cell for _, cell in told] == [
        "kernel on MNIST",
        "kernel on smallNORB",
        "LSTM on MNIST",
        "LSTM on smallNORB",
    ]
    assert told[1][0] == pytest.approx(76_000 / 3600)


def record(error: float, seed: int = 0, right: float = 1.0, **config) -> SimpleNamespace:
    own = {
        **ConsensusRecipe(
            data="mnist", routing="similarity", similarity_start="steep"
        ).model_dump(),
        **config,
    }
    trial, series = SimpleNamespace(seed=seed, scale="cpu"), {"batch_accuracy": [right]}
    return SimpleNamespace(
        config=own,
        trial=trial,
        series=series,
        metrics={"test_error": Metric(value=error, n=1, unit="percent")},
    )


def test_differences_are_taken_seed_by_seed():
    records = [
        record(5, 0),
        record(7, 1),
        record(6, 0, trained=False),
        record(10, 1, trained=False),
        record(1, 2),
    ]
    assert shown.trained_against_frozen(records) == {
        ("MNIST", "LSTM"): [],
        ("MNIST", "kernel"): [-1, -3],
    }
    guessing = [*records, record(3, 2, right=0.4, trained=False)]
    assert shown.trained_against_frozen(guessing) == shown.trained_against_frozen(records)
    variants = [
        record(9, 1, theta="columns"),
        record(2, 0, routing="connectionist", reads="released", similarity_start="released"),
    ]
    found = shown.changes([*records, record(3, data="smallnorb")], variants)
    assert found == {
        ("MNIST", "LSTM", "swapped states"): ([2], []),
        ("MNIST", "kernel", "as in Table 3"): ([5, 7, 1], [0, 0, 0]),
        ("MNIST", "kernel", "θ of columns"): ([9], [2]),
    }


def test_the_least_error_is_the_best_mean_of_a_set_that_all_routings_have_run_on():
    """A network that is frozen does not count, and one lucky seed does not make an arm the best."""
    trained = [
        record(1, 0),
        record(9, 1),
        *(record(e, s, routing="em") for s, e in enumerate((4, 2))),
    ]
    others = [
        record(6, routing="connectionist"),
        record(0, routing="connectionist", trained=False),
    ]
    found = [*trained, *others, record(2, data="smallnorb")]
    assert shown.least(found) == {}
    assert shown.least([*found, record(7, routing="dynamic")]) == {"MNIST": ("EM", [4, 2])}


def test_a_network_prefers_inactive_children_by_the_last_iteration_of_its_first_layer():
    def looks(first: list[float], last: list[float], **config) -> SimpleNamespace:
        r = record(1, routing="connectionist", **config)
        r.series = {"by_activation_capsules1_1": first, "by_activation_capsules1_3": last}
        return r

    found = [looks([1, 2], [3, 2]), looks([3, 2], [1, 1]), looks([1, 2], [3, 2], trained=False)]
    assert shown.prefers_least(found, "connectionist", "activation") == [True, False]
    assert shown.prefers_least(found, "similarity", "activation") == []


def test_the_pilot_is_told_by_arm_and_by_its_share_of_the_steps():
    rates = shown.rates(frames.select(Store().records("learned_routing"), "pilot", "cpu"))
    assert len(rates) == 12
    assert all(set(of) == set(table3.RATES) for of in rates.values())
    share = shown.share_of_steps(table3.pilot_grid("cpu"), table3.grid("cpu"))
    assert share == {"smallNORB": pytest.approx(314 / 1252), "MNIST": pytest.approx(395 / 1256)}
