"""Test error of every routing in the same network (Table 3), what the couplings follow, and the choice of the learning rate."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from capslib.papers.common import in_unit, outcome
from capslib.papers.experiment import Metric, Outcome, Scale
from capslib.papers.learned_routing.recipe import REDUCED, ConsensusRecipe
from capslib.recipes import train

if TYPE_CHECKING:
    from torch import Tensor, nn

    from capslib.routing import Routing
    from capslib.training import Context, Examples

LAYERS = ("capsules1", "capsules2", "classes")
PARTS = 10
"""Into how many equal parts the children of a parent are divided, by distance or by activation."""
LOOKED_AT = 128
"""Test images whose couplings are looked at."""


def run(config: ConsensusRecipe, context: Context) -> Outcome:
    """Train one network and measure its error on all test images, and what its couplings follow in every layer and iteration."""
    trained = train(config, context.seed, context)
    network, test = trained.network, trained.splits["test"]
    metrics = in_unit({"test_error": config.error(network, test)}, len(test.labels), "percent")
    found, series = look_inside(config, network, test.some(LOOKED_AT))
    return outcome(trained, metrics | found, series | learned(network), ["error_of_some"])


def look_inside(
    config: ConsensusRecipe, network: nn.Module, examples: Examples
) -> tuple[dict[str, Metric], dict[str, list[float]]]:
    """Weights c [parent, child] of votes in their mean, see :func:`weights`, by layer and iteration.

    ``even_…`` is the share of the children that would have the same entropy if all of theirs were equal: 1 for equal weights.
    ``by_distance_…`` has I·c, 1 for an equal share, of the tenth of the children with the least distance from the mean of the
    iteration before to that with the largest; ``by_activation_…`` from the least to the most active tenth.
    """
    import torch

    sums: dict[str, Tensor] = {}
    with torch.no_grad():
        for images, _ in examples.batches(32):
            pose, activation = network.primary_capsules(config.seen(images))
            for name in LAYERS:
                layer = getattr(network, name)
                votes, children, more = votes_of(layer, pose, activation)
                weight = weights(
                    layer.routing, torch.ones_like(votes[..., 0]), children
                )  # [N, I, J]
                for t in range(1, config.iterations + 1):
                    mean = (weight[..., None] * votes).sum(dim=1, keepdim=True)
                    distance = torch.linalg.vector_norm(votes - mean, dim=-1)  # [N, I, J]
                    coupling = layer.routing(votes, children, iterations=t, **more).coupling
                    weight = weights(layer.routing, coupling, children)
                    active = children[..., None].expand_as(weight)
                    entropy = -(weight * weight.clamp_min(1e-30).log()).sum(dim=1)  # [N, J]
                    for key, value in (
                        ("even", entropy.exp().mean() / weight.shape[1]),
                        ("by_distance", in_parts(weight, distance)),
                        ("by_activation", in_parts(weight, active)),
                    ):
                        key = f"{key}_{name}_{t}"
                        sums[key] = sums.get(key, 0) + value.double().cpu() * len(images)
                pose, activation, _ = layer(pose, activation)
    means = {key: value / len(examples.labels) for key, value in sums.items()}
    metrics = in_unit(
        {k: float(v) for k, v in means.items() if not v.ndim},
        len(examples.labels),
        "share of the children",
    )
    return metrics, {k: [round(x, 5) for x in v.tolist()] for k, v in means.items() if v.ndim}


def votes_of(
    layer: nn.Module, pose: Tensor, activation: Tensor
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Votes [N, I, J, D] and activations [N, I] of the children that parents of a layer see, and what its routing is told of rivals."""
    if not hasattr(layer, "fields"):  # the classes see all positions
        return layer.votes(pose), activation.flatten(1), {}
    votes, children, rivals = layer.fields(pose, activation)
    return votes.form(), children, {} if rivals is None else {"competition": rivals}


def weights(routing: Routing, coupling: Tensor, children: Tensor) -> Tensor:
    """What votes have in a parent's mean [N, I, J], with a sum of one: couplings [N, I, J], and activations [N, I] where they count."""
    weight = coupling * children[..., None] if routing.activation_weighs_votes else coupling
    return weight / weight.sum(dim=1, keepdim=True).clamp_min(1e-30)


def in_parts(weight: Tensor, by: Tensor) -> Tensor:
    """The mean of I·c [PARTS, or as many as there are children] of equal parts of the children of weights [N, I, J], in the order of ``by`` [N, I, J]."""
    import torch

    ordered = weight.gather(1, by.argsort(dim=1)) * weight.shape[1]
    return torch.stack(
        [part.mean() for part in ordered.tensor_split(min(PARTS, ordered.shape[1]), dim=1)]
    )


def learned(network: nn.Module) -> dict[str, list[float]]:
    """Of similarity routing: λ₁, λ₂, θ and all widths of every layer, parent by parent."""
    found = {}
    for name in LAYERS:
        routing = getattr(network, name).routing
        if hasattr(routing, "theta"):
            lambdas, theta = routing.weights.abs().T, routing.theta.T
            values = {
                "lambda1": lambdas[0],
                "lambda2": lambdas[1],
                "width": routing.width().abs().flatten(),
            }
            values |= {f"theta{k + 1}": row for k, row in enumerate(theta)}
            found |= {
                f"{of}_{name}": [round(v, 5) for v in row.tolist()]
                for of, row in values.items()
            }
    return found


def rehearse(config: ConsensusRecipe, context: Context) -> Outcome:
    """Train one network on a part of the training images and measure its error on the others."""
    trained = train(config, context.seed, context)
    rest = trained.splits["test"]
    metrics = in_unit(
        {"held_out_error": config.error(trained.network, rest)}, len(rest.labels), "percent"
    )
    return outcome(trained, metrics, {}, ["error_of_some"])


Arm = dict[str, Any]
STARTS: dict[Scale, str] = {"smoke": "steep", "cpu": "steep", "paper": "released"}
"""Where similarity routing starts: as released, but where the budget is too small to leave that start."""


def arms(scale: Scale) -> list[Arm]:
    """Every routing, and the two that learn as they start."""
    learned = (
        {"routing": "connectionist"},
        {"routing": "similarity", "similarity_start": STARTS[scale]},
    )
    return [
        *learned,
        {"routing": "em"},
        {"routing": "dynamic"},
        *({**arm, "trained": False} for arm in learned),
    ]


def variants(scale: Scale) -> list[Arm]:
    """Where the released code or its options differ from the paper, and coordinates, which the paper does not name."""
    lstm, kernel, *_ = arms(scale)
    return [
        *(
            {**kernel, "similarity_start": start}
            for start in ("released", "spread", "steep")
            if start != STARTS[scale]
        ),
        {**kernel, "theta": "columns"},
        {**lstm, "reads": "released"},
        *(
            {**arm, **change}
            for arm in (lstm, kernel)
            for change in ({"raw_poses": True}, {"coordinates": False})
        ),
        {**lstm, "loss": "cross_entropy"},
    ]


CHANGES: dict[tuple[str, str | bool], str] = {
    ("similarity_start", "released"): "released start",
    ("similarity_start", "spread"): "wide kernels",
    ("similarity_start", "steep"): "steep kernels",
    ("theta", "columns"): "θ of columns",
    ("reads", "released"): "swapped states",
    ("raw_poses", True): "raw poses",
    ("coordinates", False): "no coordinates",
    ("loss", "cross_entropy"): "cross entropy",
}
"""What the one field is called in which a variant differs from an arm."""


def change(config: Mapping[str, Any], scale: Scale) -> str:
    """What makes a configuration differ from its arm of Table 3 at this scale; nothing where it is that arm."""
    usual = {**ConsensusRecipe().model_dump(), "similarity_start": STARTS[scale]}
    if config["routing"] != "similarity":
        usual["similarity_start"] = config["similarity_start"]
    return ", ".join(
        name
        for (field, value), name in CHANGES.items()
        if config[field] == value != usual[field]
    )


RATES = (3e-3, 1e-2)
"""The learning rates that every arm is tried with: the paper's, and three times as much, for a reduced budget
is over before a rate as small as the paper's has left the start."""
CHOSEN: dict[tuple[str, str, bool], float] = {
    **{
        ("mnist", routing, True): 1e-2 for routing in ("connectionist", "similarity", "dynamic")
    },
    **{("smallnorb", routing, True): 1e-2 for routing in ("similarity", "em", "dynamic")},
    **{("mnist", routing, False): 1e-2 for routing in ("connectionist", "similarity")},
    ("smallnorb", "similarity", False): 1e-2,
}
"""The rate of a reduced arm, by set, routing and whether it is trained, where the pilot chose another than the paper's."""


def _sets(scale: Scale) -> tuple[str, ...]:
    return ("digits", "toys") if scale == "smoke" else ("smallnorb", "mnist")


def grid(scale: Scale) -> list[ConsensusRecipe]:
    """Table 3 on both sets; at paper scale also the two routings that learn on pairs of images, as those of the quoted 2.2 percent."""
    pairs = (
        [_config(scale, "smallnorb", {**arm, "views": "pairs"}) for arm in arms(scale)[:2]]
        if scale == "paper"
        else []
    )
    return [
        _config(scale, name, arm) for name, arm in itertools.product(_sets(scale), arms(scale))
    ] + pairs


def variants_grid(scale: Scale) -> list[ConsensusRecipe]:
    """On both sets at paper scale; smaller, on the one whose error is the smaller."""
    sets = {"smoke": ("digits",), "cpu": ("mnist",), "paper": _sets(scale)}[scale]
    return [_config(scale, name, arm) for name, arm in itertools.product(sets, variants(scale))]


def _config(scale: Scale, name: str, arm: Arm) -> ConsensusRecipe:
    rate = (
        CHOSEN.get((name, arm["routing"], arm.get("trained", True))) if scale == "cpu" else None
    )
    chosen = {} if rate is None else {"learning_rate": rate}
    return ConsensusRecipe(data=name, **{**REDUCED[scale][name], **arm, **chosen})


def pilot_grid(scale: Scale) -> list[ConsensusRecipe]:
    """A part of the budget at both rates; at smoke scale, for one arm only."""
    tried, sets = (
        (arms(scale)[:1], ("digits",)) if scale == "smoke" else (arms(scale), _sets(scale))
    )
    less = {
        "smoke": {"digits": {}},
        "cpu": {"mnist": dict(images=5000, epochs=5), "smallnorb": dict(images=5000, epochs=2)},
        "paper": {name: dict(epochs=25) for name in sets},
    }[scale]
    return [
        ConsensusRecipe(
            data=name,
            **{
                **REDUCED[scale][name],
                **arm,
                **less[name],
                "held_out": True,
                "learning_rate": rate,
            },
        )
        for name, arm, rate in itertools.product(sets, tried, RATES)
    ]
