"""Table 3: the test error of every routing in one network, and the choice of the rate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from capslib.papers.common import in_unit, outcome, rounded
from capslib.papers.experiment import SCALES, Arm, Experiment, Metric, Outcome, Scale
from capslib.papers.learned_routing.recipe import REDUCED, ConsensusRecipe, paper_recipe
from capslib.recipes import train

if TYPE_CHECKING:
    from torch import Tensor, nn

    from capslib.routing import Routing
    from capslib.training import Context, Examples

LAYERS = ("capsules1", "capsules2", "classes")
PARTS = 10
"""Into how many equal parts the children of a parent are divided."""
LOOKED_AT = 128
"""Test images whose couplings are looked at."""


def run(arm: Arm, context: Context) -> Outcome:
    """Train one network; measure its error on all test images and what its couplings follow."""
    trained = train(arm.recipe, context.seed, context)
    network, test = trained.network, trained.splits["test"]
    errors = {"test_error": arm.recipe.error(network, test)}
    metrics = in_unit(errors, len(test.labels), "percent")
    inside, series = look_inside(arm.recipe, network, test.at_most(LOOKED_AT))
    series |= learned_parameters(network)
    return outcome(trained, metrics | inside, series, curves=["error_of_some"])


def look_inside(
    recipe: ConsensusRecipe, network: nn.Module, examples: Examples
) -> tuple[dict[str, Metric], dict[str, list[float]]]:
    """Return what the weights of votes follow, by layer and iteration.

    * The metric ``even_…`` is the exponential of the entropy of a parent's weights, divided by
      the number of children: 1 if all weigh alike.
    * The series ``by_distance_…`` has the mean weight times the number of children, for ten
      equal parts of the children, from the nearest vote to the farthest.
    * The series ``by_activation_…`` has the same from the least active child to the most.

    Distances are from the mean of the iteration before. Weights are those of :func:`weights`.
    """
    import torch

    sums: dict[str, Tensor] = {}
    with torch.no_grad():
        for images, _ in examples.batches(32):
            pose, activation = network.primary_capsules(recipe.seen(images))
            for name in LAYERS:
                layer = getattr(network, name)
                steps = route(layer, pose, activation, recipe.iterations)
                for t, (weight, distance, active) in enumerate(steps, start=1):
                    measures = {
                        "even": evenness(weight),
                        "by_distance": in_parts(weight, distance),
                        "by_activation": in_parts(weight, active),
                    }
                    for measure, value in measures.items():
                        key = f"{measure}_{name}_{t}"
                        sums[key] = sums.get(key, 0) + value.double().cpu() * len(images)
                pose, activation, _ = layer(pose, activation)
    metrics = {}
    series = {}
    n = len(examples.labels)
    for key, total in sums.items():
        mean = total / n
        if mean.ndim:
            series[key] = rounded(mean)
        else:
            metrics[key] = Metric(value=float(mean), n=n, unit="share of the children")
    return metrics, series


def route(
    layer: nn.Module, pose: Tensor, activation: Tensor, iterations: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield weights, distances and activations [N, I, J] of the children after every iteration.

    A distance is that of a vote from the mean of the iteration before.
    """
    import torch

    votes, children, options = votes_of(layer, pose, activation)
    weight = weights(layer.routing, torch.ones_like(votes[..., 0]), children)
    for t in range(1, iterations + 1):
        mean = (weight[..., None] * votes).sum(dim=1, keepdim=True)
        distance = torch.linalg.vector_norm(votes - mean, dim=-1)
        routed = layer.routing(votes, children, iterations=t, **options)
        weight = weights(layer.routing, routed.coupling, children)
        yield weight, distance, children[..., None].expand_as(weight)


def votes_of(
    layer: nn.Module, pose: Tensor, activation: Tensor
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Return what the parents of a layer see, and the keywords of its routing.

    These are votes [N, I, J, D], activations [N, I] of the children, and what the routing is
    told of rivals.
    """
    if not hasattr(layer, "fields"):  # the classes see all positions
        return layer.votes(pose), activation.flatten(1), {}
    votes, children, rivals = layer.fields(pose, activation)
    options = {} if rivals is None else {"competition": rivals}
    return votes.form(), children, options


def weights(routing: Routing, coupling: Tensor, children: Tensor) -> Tensor:
    """Return the weights [N, I, J] of votes in their parent's mean.

    They sum to one over the children. They are in proportion to the couplings [N, I, J], times
    the activations [N, I] where they count.
    """
    weight = coupling
    if routing.activation_weighs_votes:
        weight = coupling * children[..., None]
    return weight / weight.sum(dim=1, keepdim=True).clamp_min(1e-30)


def evenness(weight: Tensor) -> Tensor:
    """Return the share of children whose equal weights have the entropy of these [N, I, J]."""
    entropy = -(weight * weight.clamp_min(1e-30).log()).sum(dim=1)
    return entropy.exp().mean() / weight.shape[1]


def in_parts(weight: Tensor, order: Tensor) -> Tensor:
    """Return the mean of I·c of equal parts of the children, in that ``order``.

    Weights and ``order`` are [N, I, J]. There are :data:`PARTS` parts, or as many as children.
    """
    import torch

    ordered = weight.gather(1, order.argsort(dim=1)) * weight.shape[1]
    parts = ordered.tensor_split(min(PARTS, ordered.shape[1]), dim=1)
    return torch.stack([part.mean() for part in parts])


def learned_parameters(network: nn.Module) -> dict[str, list[float]]:
    """Return λ₁, λ₂, θ and all widths of each layer with similarity routing, by parent."""
    series = {}
    for name in LAYERS:
        routing = getattr(network, name).routing
        if not hasattr(routing, "theta"):
            continue
        lambda1, lambda2 = routing.weights.abs().T
        series[f"lambda1_{name}"] = rounded(lambda1)
        series[f"lambda2_{name}"] = rounded(lambda2)
        series[f"width_{name}"] = rounded(routing.width().abs().flatten())
        for k, theta in enumerate(routing.theta.T, start=1):
            series[f"theta{k}_{name}"] = rounded(theta)
    return series


def run_pilot(arm: Arm, context: Context) -> Outcome:
    """Train one network on a part of the training images; measure its error on the others."""
    trained = train(arm.recipe, context.seed, context)
    test = trained.splits["test"]
    errors = {"held_out_error": arm.recipe.error(trained.network, test)}
    metrics = in_unit(errors, len(test.labels), "percent")
    return outcome(trained, metrics, curves=["error_of_some"])


STARTS: dict[Scale, str] = {"smoke": "steep", "cpu": "steep", "paper": "released"}
"""Where similarity routing starts: as released, unless the budget is too small for that."""
KERNELS = {"released_start": "released", "wide_kernels": "spread", "steep_kernels": "steep"}
"""The starts of similarity routing, by the names of their variants."""
RATES = {"paper_rate": 3e-3, "higher_rate": 1e-2}
"""The learning rates that every arm is tried with.

A reduced budget is over before a rate as small as the paper's has left the start.
"""
HIGHER_RATE = {
    "mnist/connectionist",
    "mnist/similarity",
    "mnist/dynamic",
    "mnist/connectionist/frozen",
    "mnist/similarity/frozen",
    "smallnorb/similarity",
    "smallnorb/em",
    "smallnorb/dynamic",
    "smallnorb/similarity/frozen",
}
"""The arms, and their variants, for which the pilot chose the higher rate at cpu scale."""


def data_sets(scale: Scale) -> tuple[str, ...]:
    """Return the data sets of a scale."""
    return ("digits", "toys") if scale == "smoke" else ("smallnorb", "mnist")


def routings(scale: Scale) -> dict[str, dict[str, Any]]:
    """Return the fields of every routing, and of the two that learn frozen as they start."""
    lstm = dict(routing="connectionist")
    kernel = dict(routing="similarity", similarity_start=STARTS[scale])
    return {
        "connectionist": lstm,
        "similarity": kernel,
        "em": dict(routing="em"),
        "dynamic": dict(routing="dynamic"),
        "connectionist/frozen": dict(lstm, trained=False),
        "similarity/frozen": dict(kernel, trained=False),
    }


def variants(scale: Scale) -> dict[str, dict[str, Any]]:
    """Return the fields of every variant, each of which differs from an arm of Table 3 in one.

    They are where the released code or its options differ from the paper; coordinates, which
    the paper does not name; and starts of the kernel of our own.
    """
    arms = routings(scale)
    lstm = arms["connectionist"]
    kernel = arms["similarity"]
    fields = {}
    for name, start in KERNELS.items():
        if start != STARTS[scale]:
            fields[f"similarity/{name}"] = dict(kernel, similarity_start=start)
    fields["similarity/theta_of_columns"] = dict(kernel, theta="columns")
    fields["connectionist/swapped_states"] = dict(lstm, reads="released")
    for name in ("connectionist", "similarity"):
        fields[f"{name}/raw_poses"] = dict(arms[name], raw_poses=True)
        fields[f"{name}/no_coordinates"] = dict(arms[name], coordinates=False)
    fields["connectionist/cross_entropy"] = dict(lstm, loss="cross_entropy")
    return fields


def error_arms(scale: Scale) -> Iterator[Arm]:
    """Yield the networks of Table 3 on both sets: ``mnist/similarity/frozen``.

    At paper scale the two routings that learn also see pairs of images, as the networks of the
    quoted 2.2 percent.
    """
    for data in data_sets(scale):
        for name, fields in routings(scale).items():
            yield Arm(f"{data}/{name}", paper_recipe(data, **fields))
    if scale == "paper":
        for name in ("connectionist", "similarity"):
            recipe = paper_recipe("smallnorb", **routings(scale)[name], views="pairs")
            yield Arm(f"smallnorb/{name}/pairs", recipe)


def variant_arms(scale: Scale) -> Iterator[Arm]:
    """Yield the variants: ``mnist/similarity/raw_poses``.

    At paper scale they run on both sets, at smaller scales on the easier one.
    """
    data_of_scale = {"smoke": ("digits",), "cpu": ("mnist",), "paper": data_sets(scale)}
    for data in data_of_scale[scale]:
        for name, fields in variants(scale).items():
            yield Arm(f"{data}/{name}", paper_recipe(data, **fields))


def smaller(scale: Scale, arm: Arm) -> dict[str, Any]:
    """Return the fields that a scale makes smaller, and the rate that the pilot chose."""
    recipe = arm.recipe
    fields = REDUCED[scale][recipe.data]
    name = f"{recipe.data}/{recipe.routing}"
    if not recipe.trained:
        name += "/frozen"
    if scale == "cpu" and name in HIGHER_RATE:
        return fields | {"learning_rate": RATES["higher_rate"]}
    return fields


def pilot_arms(scale: Scale) -> Iterator[Arm]:
    """Yield every arm of Table 3 at both rates: ``mnist/em/higher_rate``.

    At smoke scale it is one arm alone.
    """
    for arm in error_arms(scale):
        if arm.recipe.views == "pairs":
            continue
        if scale == "smoke" and arm.name != "digits/connectionist":
            continue
        for rate in RATES:
            yield Arm(f"{arm.name}/{rate}", arm.changed({"held_out": True}).recipe)


PILOT_BUDGET: dict[Scale, dict[str, dict[str, Any]]] = {
    "smoke": {"digits": {}},
    "cpu": {"mnist": dict(images=5000, epochs=5), "smallnorb": dict(images=5000, epochs=2)},
    "paper": {"mnist": dict(epochs=25), "smallnorb": dict(epochs=25)},
}
"""The part of the budget that the pilot has."""


def smaller_pilot(scale: Scale, arm: Arm) -> dict[str, Any]:
    """Return a part of the budget of a scale, and the rate in the arm's name."""
    _, _, rate = arm.name.rpartition("/")
    budget = REDUCED[scale][arm.data] | PILOT_BUDGET[scale][arm.data]
    return budget | {"learning_rate": RATES[rate]}


ERRORS = Experiment(
    name="errors",
    paper="learned_routing",
    arms=error_arms,
    smaller=smaller,
    run=run,
)
VARIANTS = Experiment(
    name="variants",
    paper="learned_routing",
    arms=variant_arms,
    smaller=smaller,
    run=run,
)
PILOT = Experiment(
    name="pilot",
    paper="learned_routing",
    arms=pilot_arms,
    smaller=smaller_pilot,
    run=run_pilot,
    seeds=dict.fromkeys(SCALES, (0,)),
)
