"""What each claim of the paper asks of the records."""

from __future__ import annotations

from capslib.papers.check import AnyCheck, AtLeast, Check, Op, Select
from capslib.papers.names import DATA_SETS

TESTS = "tests/papers/test_learned_routing.py"
LEARNED = 0.9
"""The training accuracy below which a network has not learned, and decides nothing."""
AS_GOOD = {"mnist": 0.3, "smallnorb": 0.5}
"""How many points of test error more still count as *equal*.

These are the book's tolerances of an error below 3 percent, and of one above.
"""
ORIGINAL = 2.2
"""The error in percent that the authors of EM routing report, of pairs of images."""
TEST_OF_DENSE = "test_small_weights_gather_the_couplings_on_the_dense_cluster"
SETS = {data: DATA_SETS[data] for data in ("mnist", "smallnorb")}


def table_arm(data: str, routing: str) -> Select:
    """Return a network of Table 3, such as ``similarity`` or ``similarity/pairs``.

    At cpu scale similarity routing starts from kernels with which a small budget suffices.
    """
    return Select("errors", arm=f"{data}/{routing}", learned=LEARNED)


def fewer_errors(better: str, worse: str, data: str, margin: float = 0.0) -> Check:
    """Ask whether one routing errs less than another by more than a margin, in points."""
    arms = table_arm(data, better), table_arm(data, worse)
    return Check(
        arms, "test_error", "<", margin=margin, refuted_at=None if margin < 0 else "bound"
    )


def toy(metric: str, bound: float, test: str, op: Op = "≤") -> Check:
    """Ask whether a number of the toy data stays below a bound, or above it."""
    arm = Select("toys", arm="two_clusters")
    return Check(arm, metric, op, bound, test=f"{TESTS}::{test}")


def table_3() -> dict[str, AnyCheck]:
    """Return the checks of Table 3.

    At the paper's size the end of training is where the paper stops, after 100 epochs.
    """
    checks = {}
    for short_name, routing in (("conn", "connectionist"), ("sim", "similarity")):
        for data in SETS:
            name = f"LR-T3-{short_name}-{data.removeprefix('small')}"
            checks[name] = Check(table_arm(data, routing), "test_error")
    return checks


def against_em_routing() -> AtLeast:
    """Return the check of the LSTM and of the kernel against EM routing (LR-W-1)."""
    parts = {}
    for data, label in SETS.items():
        name = f"the LSTM is no worse than EM routing on {label}"
        parts[name] = fewer_errors("connectionist", "em", data, margin=-AS_GOOD[data])
    for data, label in SETS.items():
        name = f"EM routing beats the kernel on {label}"
        parts[name] = fewer_errors("em", "similarity", data)
    return AtLeast("all", parts)


def on_pairs() -> AtLeast:
    """Return the check of networks that see pairs against the original's error (LR-W-2)."""
    parts = {}
    for routing in ("connectionist", "similarity"):
        parts[f"{routing}, on pairs of images, stays above {ORIGINAL} percent"] = Check(
            table_arm("smallnorb", f"{routing}/pairs"),
            "test_error",
            ">",
            ORIGINAL,
            at_rest=(),
            paper_scale_only="a reduced network on small images errs more than the paper's, "
            "whatever its routing",
        )
    return AtLeast("all", parts)


LIMITS = {
    "a large first weight makes couplings uniform": toy(
        "off_uniform", 1e-4, "test_a_large_first_weight_makes_couplings_uniform"
    ),
    "a large second one makes them follow the activations": toy(
        "off_activation",
        1e-4,
        "test_a_large_second_weight_makes_couplings_follow_the_activations",
    ),
    "the dense cluster gains while both fall": toy(
        "largest_fall_of_share", 1e-6, TEST_OF_DENSE
    ),
    "and has most of the couplings in the end": toy(
        "least_dense_share", 0.8, TEST_OF_DENSE, "≥"
    ),
}
"""What λ₁ and λ₂ do on the toy data."""
CHECKS: dict[str, AnyCheck] = {
    **table_3(),
    "LR-X-params": Check(Select("costs", arm="connectionist"), "parameters_without_routing"),
    "LR-W-1": against_em_routing(),
    "LR-W-2": on_pairs(),
    "LR-W-3": AtLeast("all", LIMITS),
}
