"""What each claim of the paper asks of the records."""

from __future__ import annotations

from capslib.papers.learned_routing.table3 import STARTS
from capslib.papers.query import Above, Count, Order, Property, Query, Select, Value

TESTS = "tests/papers/test_learned_routing.py"
LEARNED = 0.9
"""The training accuracy below which a network has not learned, and decides nothing."""
AS_GOOD = {"mnist": 0.3, "smallnorb": 0.5}
"""How many points of test error more still count as *equal*: the book's tolerances of an error below 3 percent, and of one above."""
ORIGINAL = 2.2
"""The error in percent that the authors of EM routing report, of pairs of images."""
_ABSOLUTE = "a reduced network on small images errs more than the paper's, whatever its routing"
SETS = {"mnist": "MNIST", "smallnorb": "smallNORB"}


def arm(routing: str, data: str, views: str = "separate") -> Select:
    """A routing in the network of Table 1, started as released; at cpu scale from the start with which a small budget suffices."""
    where, reduced = {"data": data, "routing": routing, "trained": True, "views": views}, {}
    if routing == "similarity":
        where["similarity_start"], reduced["similarity_start"] = STARTS["paper"], STARTS["cpu"]
    return Select("errors", where, learned=LEARNED, reduced=reduced)


def _error(routing: str, data: str) -> Value:
    """At the paper's size the end of training is where the paper stops, after 100 epochs."""
    return Value(arm(routing, data), "test_error", final=False)


def _fewer(better: str, worse: str, data: str, margin: float = 0.0) -> Order:
    sides = arm(better, data), arm(worse, data)
    return Order(
        *sides, "test_error", higher_is_better=False, margin=margin, ours=True, final="reduced"
    )


def _toy(metric: str, bound: float, test: str, above: bool = False) -> Property:
    return Property(Select("toys"), metric, bound, f"{TESTS}::{test}", above)


QUERIES: dict[str, Query] = {
    **{
        f"LR-T3-conn-{data.removeprefix('small')}": _error("connectionist", data)
        for data in SETS
    },
    **{f"LR-T3-sim-{data.removeprefix('small')}": _error("similarity", data) for data in SETS},
    "LR-X-params": Value(
        Select("costs", {"routing": "connectionist"}), "parameters_without_routing", final=False
    ),
    "LR-W-1": Count(
        {
            **{
                f"the LSTM is no worse than EM routing on {on}": _fewer(
                    "connectionist", "em", data, -AS_GOOD[data]
                )
                for data, on in SETS.items()
            },
            **{
                f"EM routing beats the kernel on {on}": _fewer("em", "similarity", data)
                for data, on in SETS.items()
            },
        }
    ),
    "LR-W-2": Count(
        {
            f"{routing}, on pairs of images, stays above {ORIGINAL} percent": Above(
                arm(routing, "smallnorb", "pairs"),
                "test_error",
                ORIGINAL,
                final=False,
                paper_scale_only=_ABSOLUTE,
            )
            for routing in ("connectionist", "similarity")
        }
    ),
    "LR-W-3": Count(
        {
            "a large first weight makes couplings uniform": _toy(
                "off_uniform", 1e-4, "test_a_large_first_weight_makes_couplings_uniform"
            ),
            "a large second one makes them follow the activations": _toy(
                "off_activation",
                1e-4,
                "test_a_large_second_weight_makes_couplings_follow_the_activations",
            ),
            "the dense cluster gains while both fall": _toy(
                "largest_fall_of_share",
                1e-6,
                "test_small_weights_gather_the_couplings_on_the_dense_cluster",
            ),
            "and has most of the couplings in the end": _toy(
                "least_dense_share",
                0.8,
                "test_small_weights_gather_the_couplings_on_the_dense_cluster",
                above=True,
            ),
        }
    ),
}
