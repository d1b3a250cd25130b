"""What each claim of the paper asks of the records."""

from __future__ import annotations

from collections.abc import Sequence

from capslib.papers.negation_limitation.depth import EM_DEPTHS, RBA_DEPTHS
from capslib.papers.query import Above, Count, Order, Property, Query, Select, Value

TESTS = "tests/papers/test_negation_limitation.py"
TRAINS = 0.5
"""A network trains when its test accuracy clears one half: in the paper every cell is either above 74 % or below 16 %. One that
has cleared it need not have flattened; one that has not, must."""


def _depth(routing: str, depth: int, bias: bool, data: str = "mnist", **more: object) -> Select:
    return Select("depth", {"data": data, "routing": routing, "depth": depth, "bias": bias,
                            "weight_std": 0.1, "bias_start": 0.1, **more})  # fmt: skip


def _trains_to(routing: str, depths: Sequence[int], data: str, deepest: int, degraded: Sequence[int] = ()) -> Count:
    """Without bias, depths up to ``deepest`` train and deeper ones do not; with bias, all do."""
    parts: dict[str, Query] = {}
    for n in depths:
        if n not in degraded:
            below = n > deepest
            parts[f"{n} layers without bias {'do not train' if below else 'train'}"] = Above(
                _depth(routing, n, False, data), "test_accuracy", TRAINS, below=below, final=below
            )
        parts[f"{n} layers with bias train"] = Above(_depth(routing, n, True, data), "test_accuracy", TRAINS, final=False)
    return Count(parts)


def _sooner(routing: str, depths: Sequence[int], data: str = "mnist") -> dict[str, Query]:
    return {
        f"{n} layers: learns sooner with bias": Order(
            _depth(routing, n, True, data),
            _depth(routing, n, False, data),
            "steps_to_50_percent",
            higher_is_better=False,
            final=False,
        )
        for n in depths
    }


def _negated(routing: str, front: str, bias: bool) -> Select:
    return Select("negated", {"routing": routing, "front": front, "bias": bias})


def _one_of_a_pair(routing: str, front: str, bias: bool, below: bool = False) -> Above:
    """Whether a network is right on more than one image of each pair (x, −x): half of them, and half a point for ties."""
    return Above(_negated(routing, front, bias), "test_accuracy", 0.505, below=below, final=below)


def _violation(routing: str, bias: bool, metric: str, test: str, above: bool = False) -> Property:
    bound = 1e-6 if above else 1e-12  # of numbers of order one in double precision: far above rounding, and below it
    return Property(Select("symmetry", {"routing": routing, "bias": bias}), metric, bound, f"{TESTS}::{test}", above=above)


# Table 1 gives the accuracy after 50 epochs, which is what runs; it says nothing of where training would end (hence final=False).
_SHORT = {"mnist": "mnist", "fashion_mnist": "fashion"}
QUERIES: dict[str, Query] = {
    **{
        f"NEG-T1-{short}-{'bias' if bias else 'nobias'}": Value(
            Select("sign", {"routing": routing, "bias": bias, "length_offset": 1e-8}), "train_accuracy", final=False, better_counts=bias
        )
        for short, routing in (("rba", "dynamic"), ("em", "em_vector"))
        for bias in (False, True)
    },
    **{
        f"NEG-T{table}-{short}-{'bias' if bias else 'nobias'}-{n}": Value(
            _depth(routing, n, bias, data), "test_accuracy", better_counts=bias
        )
        for table, routing, depths in ((2, "dynamic", RBA_DEPTHS), (3, "em_vector", EM_DEPTHS))
        for data, short in _SHORT.items()
        for bias in (False, True)
        for n in depths
    },
    "NEG-F2-start": Above(_depth("em_vector", 5, False), "steps_to_20_percent", 1000, final=False, paper_scale_only=True),
    "NEG-W-1": Count({
        "poses are odd": _violation("dynamic", False, "odd_violation", "test_theorem_1_dynamic_routing_is_odd"),
        "activations are even": _violation("dynamic", False, "even_violation", "test_theorem_1_dynamic_routing_is_odd"),
    }),
    "NEG-W-2": Count({
        f"{what}, {name}": _violation(routing, False, metric, "test_theorem_2_em_routing_is_odd")
        for routing, name in (("em", "matrix form"), ("em_vector", "vector form"))
        for what, metric in (("poses are odd", "odd_violation"), ("activations are even", "even_violation"))
    }),
    "NEG-W-3": Count({
        "RBA: poses are no longer odd": _violation("dynamic", True, "least_odd_violation", "test_a_bias_breaks_both_symmetries", True),
        "RBA: activations are no longer even, one layer":
            _violation("dynamic", True, "least_even_violation_one_layer", "test_a_bias_breaks_both_symmetries", True),
        "EM: poses are no longer odd": _violation("em_vector", True, "least_odd_violation", "test_a_bias_breaks_both_symmetries", True),
        "EM: activations are no longer even, two layers and more":
            _violation("em_vector", True, "least_even_violation_deeper", "test_a_bias_breaks_both_symmetries", True),
        "EM: activations are no longer even, one layer":
            _violation("em_vector", True, "least_even_violation_one_layer", "test_em_activations_ignore_a_bias_of_their_own_layer", True),
        "EM: β alone leaves both": _violation("em_vector", False, "odd_violation", "test_theorem_2_em_routing_is_odd"),
    }),
    "NEG-W-4": Count({
        **{f"RBA, {n} layers: bias or not within 1 point": Order(
            _depth("dynamic", n, True), _depth("dynamic", n, False), "test_accuracy", margin=0.01, equal=True) for n in (2, 3)},
        **{f"RBA, {n} layers: bias ahead": Order(_depth("dynamic", n, True), _depth("dynamic", n, False), "test_accuracy", margin=0.01)
           for n in (4, 5)},
    }),
    "NEG-W-5-rba-mnist": _trains_to("dynamic", RBA_DEPTHS, "mnist", 3),
    "NEG-W-5-rba-fashion": _trains_to("dynamic", RBA_DEPTHS, "fashion_mnist", 3),
    "NEG-W-5-em-mnist": _trains_to("em_vector", EM_DEPTHS, "mnist", 6, degraded=(7,)),
    "NEG-W-5-em-fashion": _trains_to("em_vector", EM_DEPTHS, "fashion_mnist", 6, degraded=(7,)),
    "NEG-W-6": Count(_sooner("em_vector", EM_DEPTHS)),
    "NEG-W-7": Count({
        f"{n} layers start before {n + 1}": Order(
            _depth("em_vector", n, False), _depth("em_vector", n + 1, False), "steps_to_50_percent", higher_is_better=False, final=False)
        for n in EM_DEPTHS[:-1]
    }),
    "NEG-W-8": Count({**_sooner("em_vector", (5, 6)), **{f"RBA, {k}": q for k, q in _sooner("dynamic", (2, 3)).items()}}),
    "NEG-W-10": Count({
        f"{name}, {claim}": part
        for name, routing in (("RBA", "dynamic"), ("EM", "em_vector"))
        for claim, part in {
            "−x arrives as a negative, no bias: at most one of a pair right": _one_of_a_pair(routing, "odd", False, below=True),
            "−x arrives as a negative, bias: more than one": _one_of_a_pair(routing, "odd", True),
            "ReLU in front, no bias: more than one": _one_of_a_pair(routing, "relu", False),
            "ReLU in front, no bias: starts later than with a bias": Order(
                _negated(routing, "relu", True), _negated(routing, "relu", False),
                "steps_to_50_percent", higher_is_better=False, final=False),
        }.items()
    }),
}  # fmt: skip
QUERIES["NEG-W-5"] = Count({f"{routing.upper()} on {name}": QUERIES[f"NEG-W-5-{routing}-{short}"]
                            for routing in ("rba", "em") for short, name in (("mnist", "MNIST"), ("fashion", "Fashion-MNIST"))})  # fmt: skip
