"""What each claim of the paper asks of the records."""

from __future__ import annotations

from capslib.papers.query import Above, Count, Order, Property, Query, Select, Value

TESTS = "tests/papers/test_learned_routing.py"
LEARNED = 0.9
"""The training accuracy below which a network has not learned, and decides nothing."""
AS_GOOD = {"mnist": 0.3, "smallnorb": 0.5}
"""How many points of test error more still count as *equal*.

These are the book's tolerances of an error below 3 percent, and of one above.
"""
ORIGINAL = 2.2
"""The error in percent that the authors of EM routing report, of pairs of images."""
SETS = {"mnist": "MNIST", "smallnorb": "smallNORB"}


def table_arm(data: str, routing: str) -> Select:
    """Return a network of Table 3, such as ``similarity`` or ``similarity/pairs``.

    At cpu scale similarity routing starts from kernels with which a small budget suffices.
    """
    return Select("errors", arm=f"{data}/{routing}", learned=LEARNED)


def fewer_errors(better: str, worse: str, data: str, margin: float = 0.0) -> Order:
    """Ask whether one routing errs less than another by more than a margin, in points."""
    return Order(
        table_arm(data, better),
        table_arm(data, worse),
        "test_error",
        higher_is_better=False,
        margin=margin,
        ours=True,
        final="reduced",
    )


def toy(metric: str, bound: float, test: str, above: bool = False) -> Property:
    """Ask whether a number of the toy data stays below a bound, or above it."""
    return Property(
        Select("toys", arm="two_clusters"), metric, bound, f"{TESTS}::{test}", above
    )


def table_3() -> dict[str, Query]:
    """Return the checks of Table 3.

    At the paper's size the end of training is where the paper stops, after 100 epochs.
    """
    checks: dict[str, Query] = {}
    for short_name, routing in (("conn", "connectionist"), ("sim", "similarity")):
        for data in SETS:
            name = f"LR-T3-{short_name}-{data.removeprefix('small')}"
            checks[name] = Value(table_arm(data, routing), "test_error", final=False)
    return checks


def against_em_routing() -> Count:
    """Return the check of the LSTM and of the kernel against EM routing (LR-W-1)."""
    parts: dict[str, Query] = {}
    for data, label in SETS.items():
        name = f"the LSTM is no worse than EM routing on {label}"
        parts[name] = fewer_errors("connectionist", "em", data, margin=-AS_GOOD[data])
    for data, label in SETS.items():
        name = f"EM routing beats the kernel on {label}"
        parts[name] = fewer_errors("em", "similarity", data)
    return Count(parts)


def on_pairs() -> Count:
    """Return the check of networks that see pairs against the original's error (LR-W-2)."""
    parts: dict[str, Query] = {}
    for routing in ("connectionist", "similarity"):
        parts[f"{routing}, on pairs of images, stays above {ORIGINAL} percent"] = Above(
            table_arm("smallnorb", f"{routing}/pairs"),
            "test_error",
            ORIGINAL,
            final=False,
            paper_scale_only="a reduced network on small images errs more than the paper's, "
            "whatever its routing",
        )
    return Count(parts)


def limits_of_the_weights() -> Count:
    """Return the check of what λ₁ and λ₂ do on the toy data (LR-W-3)."""
    uniform = "test_a_large_first_weight_makes_couplings_uniform"
    active = "test_a_large_second_weight_makes_couplings_follow_the_activations"
    dense = "test_small_weights_gather_the_couplings_on_the_dense_cluster"
    return Count(
        {
            "a large first weight makes couplings uniform": toy("off_uniform", 1e-4, uniform),
            "a large second one makes them follow the activations": toy(
                "off_activation", 1e-4, active
            ),
            "the dense cluster gains while both fall": toy(
                "largest_fall_of_share", 1e-6, dense
            ),
            "and has most of the couplings in the end": toy(
                "least_dense_share", 0.8, dense, above=True
            ),
        }
    )


QUERIES: dict[str, Query] = {
    **table_3(),
    "LR-X-params": Value(
        Select("costs", arm="connectionist"), "parameters_without_routing", final=False
    ),
    "LR-W-1": against_em_routing(),
    "LR-W-2": on_pairs(),
    "LR-W-3": limits_of_the_weights(),
}
