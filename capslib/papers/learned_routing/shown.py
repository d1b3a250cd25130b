"""What the tables of the page show of the records, before it is written as text."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from capslib.papers.learned_routing.asks import LEARNED, SETS
from capslib.papers.learned_routing.costs import hours
from capslib.papers.learned_routing.table3 import CHANGES, LAYERS, change
from capslib.papers.query import Measured, Select

NAMES = {"connectionist": "LSTM", "similarity": "kernel", "em": "EM", "dynamic": "RBA"}
LEARNERS = ("connectionist", "similarity")
PLACES = dict(zip(LAYERS, ("first layer", "second layer", "classes"), strict=True))
VALUES = {
    "lambda1": "λ₁",
    "lambda2": "λ₂",
    "width": "width",
    "theta1": "θ₁",
    "theta2": "θ₂",
    "theta3": "θ₃",
}
UNCHANGED = "as in Table 3"
Row = tuple[str, ...]


def _row(record: Measured, *more: str) -> Row:
    return SETS.get(record.config["data"], record.config["data"]), *more


def by_seed(records: Iterable[Measured], **where: Any) -> dict[int, float]:
    """Test error in percent of each seed, of the records with these field values."""
    own = (r for r in records if all(r.config[name] == value for name, value in where.items()))
    return {
        r.trial.seed: r.metrics["test_error"].value
        for r in sorted(own, key=lambda r: r.trial.seed)
    }


def learned(records: Iterable[Measured]) -> list[Measured]:
    """Those whose network is right on more of its training images than the floor: the others decide nothing."""
    errors = Select("errors", learned=LEARNED)
    return [r for r in records if not errors.unfit(r)]


def differences(one: Mapping[int, float], other: Mapping[int, float]) -> list[float]:
    """One minus the other, in the seeds that both have."""
    return [one[seed] - other[seed] for seed in one if seed in other]


def trained_against_frozen(records: Iterable[Measured]) -> dict[Row, list[float]]:
    """By set and routing, how much more a learned routing errs than its own start frozen, in points, where both networks learned."""
    every = list(records)
    sets, of = dict.fromkeys(r.config["data"] for r in every), learned(every)
    return {
        (SETS.get(data, data), NAMES[routing]): differences(
            *(by_seed(of, data=data, routing=routing, trained=t) for t in (True, False))
        )
        for data, routing in itertools.product(sets, LEARNERS)
    }


def least(records: Iterable[Measured]) -> dict[str, tuple[str, list[float]]]:
    """By set that all routings have run on, the trained one with the least mean test error, and its errors in percent."""
    of, found = [r for r in records if r.config["trained"]], {}
    for data in dict.fromkeys(r.config["data"] for r in of):
        errors = {
            name: list(by_seed(of, data=data, routing=routing).values())
            for routing, name in NAMES.items()
        }
        if all(errors.values()):
            best = min(errors, key=lambda name: fmean(errors[name]))
            found[SETS.get(data, data)] = best, errors[best]
    return found


def prefers_least(
    records: Iterable[Measured], routing: str, what: str, layer: str = LAYERS[0]
) -> list[bool]:
    """For each of the trained networks with a routing: in the last iteration of a layer the tenth of the children with the least
    of this, "activation" or "distance" of the vote, outweighs the tenth with the most."""
    own = (r for r in records if r.config["trained"] and r.config["routing"] == routing)
    ranked = (r.series[f"by_{what}_{layer}_{r.config['iterations']}"] for r in own)
    return [weights[0] > weights[-1] for weights in ranked]


def rates(records: Iterable[Measured]) -> dict[Row, dict[float, float]]:
    """By set and arm of the pilot, the held-out error in percent at each learning rate."""
    found: dict[Row, dict[float, float]] = {}
    order = list(NAMES)
    for r in sorted(
        records,
        key=lambda r: (
            r.config["data"],
            not r.config["trained"],
            order.index(r.config["routing"]),
        ),
    ):
        arm = NAMES[r.config["routing"]] + ("" if r.config["trained"] else ", frozen")
        found.setdefault(_row(r, arm), {})[r.config["learning_rate"]] = r.metrics[
            "held_out_error"
        ].value
    return found


def share_of_steps(pilot: Iterable[Any], whole: Iterable[Any]) -> dict[str, float]:
    """By set, how much of its steps in Table 3 a network has in the pilot, from the configurations of both."""
    steps = {config.data: config.steps for config in whole}
    shares = {}
    for config in pilot:
        shares[SETS.get(config.data, config.data)] = config.steps / steps[config.data]
    return shares


def values_of_the_kernel(records: Iterable[Measured]) -> dict[Row, list[list[float]]]:
    """By set, layer and whether it is trained, every λ₁, λ₂, width and θ of similarity routing."""
    found: dict[Row, list[list[float]]] = {}
    of = [r for r in records if r.config["routing"] == "similarity"]
    for (layer, place), trained, r in itertools.product(PLACES.items(), (False, True), of):
        if r.config["trained"] == trained:
            row = found.setdefault(
                _row(r, place, "trained" if trained else "start"), [[] for _ in VALUES]
            )
            for own, name in zip(row, VALUES, strict=True):
                own += r.series[f"{name}_{layer}"]
    return dict(sorted(found.items(), key=lambda row: row[0][0]))


def changes(
    arms: Iterable[Measured], variants: Iterable[Measured]
) -> dict[Row, tuple[list[float], list[float]]]:
    """By set, routing and what differs from Table 3, test errors in percent, and how much more than there in the same seeds."""
    found: dict[Row, dict[int, float]] = {}
    tried = list(variants)
    places = {(r.config["data"], r.trial.scale) for r in tried}
    for r in [*arms, *tried]:
        if (
            r.config["routing"] in LEARNERS
            and r.config["trained"]
            and (r.config["data"], r.trial.scale) in places
        ):
            row = _row(
                r, NAMES[r.config["routing"]], change(r.config, r.trial.scale) or UNCHANGED
            )
            found.setdefault(row, {})[r.trial.seed] = r.metrics["test_error"].value
    order = [UNCHANGED, *CHANGES.values()]
    rows = sorted(found, key=lambda row: (*row[:2], order.index(row[2].partition(", ")[0])))
    return {
        row: (
            list(found[row].values()),
            differences(found[row], found.get((*row[:2], UNCHANGED), {})),
        )
        for row in rows
    }


def negation(records: Iterable[Measured]) -> dict[str, list[float]]:
    """By routing, the most that poses of negated votes miss negated poses, in mean lengths, and that activations change."""
    found: dict[str, list[float]] = {}
    for r in sorted(
        records, key=lambda r: (list(NAMES).index(r.config["routing"]), r.config["bias"])
    ):
        row = found.setdefault(
            NAMES[r.config["routing"]] + (", bias" if r.config["bias"] else ""), [0.0, 0.0]
        )
        row[:] = map(
            max,
            row,
            (r.metrics[name].value for name in ("pose_is_not_odd", "activation_is_not_even")),
        )
    return found


def hours_of_table_3(
    records: Iterable[Measured], arms: Iterable[Any]
) -> list[tuple[float, str]]:
    """The core-hours that one seed of a cell of Table 3 takes in full, least first, by the fastest records of its costs."""
    seconds: dict[str, float] = {}
    for r in records:
        own = r.metrics["seconds_of_a_step"].value
        seconds[r.config["routing"]] = min(own, seconds.get(r.config["routing"], own))
    cells = [c for c in arms if c.routing in LEARNERS and c.trained and c.views == "separate"]
    return sorted(
        (hours(c, seconds[c.routing]), f"{NAMES[c.routing]} on {SETS[c.data]}") for c in cells
    )
