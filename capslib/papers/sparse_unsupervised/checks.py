"""What each claim of the paper asks of the records."""

from __future__ import annotations

from capslib.papers.check import (
    AnyCheck,
    AtLeast,
    Check,
    Measured,
    Quantity,
    Select,
    difference,
)
from capslib.papers.experiment import Metric

MOST_UNEXPLAINED = {"unexplained": 0.5}
"""A network has to leave less than half of the error that the mean image leaves.

One that leaves more has not learned to reconstruct, and decides nothing.
"""
LEARNED = 0.9
"""The training accuracy below which a network that sees labels has not learned."""
FLAT = 0.5
"""Mean support of the ranks below the first, as a share of it: nearly flat above this."""


def encodings(name: str) -> Select:
    """Return a network of Table 1 that reconstructs without labels."""
    return Select("encodings", arm=name, at_most=MOST_UNEXPLAINED)


def beyond(name: str) -> Select:
    """Return a network of the conjectures of §4."""
    return Select("beyond", arm=name, at_most=MOST_UNEXPLAINED)


SPARSE = encodings("sparse")
DENSE = encodings("dense")
NO_BOOSTING = encodings("no_boosting")
SUPCAPS = Select("encodings", arm="supcaps", learned=LEARNED)


def more(*arms: Select, metric: str, margin: float = 0.0) -> Check:
    """Ask whether the first network has more of a metric than the second.

    Of four arms, whether its lead is larger than that of the third over the fourth.
    """
    return Check(arms, metric, ">", margin=margin)


def above(arm: Select, metric: str, bound: float) -> Check:
    """Ask whether a number lies above a bound of ours."""
    return Check(arm, metric, ">", bound, refuted_at=None)


def below(arm: Select, metric: str, bound: float) -> Check:
    """Ask whether a number lies below a bound of ours."""
    return Check(arm, metric, "<", bound, refuted_at=None)


def accuracy_on_mnist(record: Measured) -> Metric:
    """Return the accuracy on MNIST in percent.

    Of a network with labels it is that of its own classes, of one without them that of the
    classifier of its encodings.
    """
    has_classes = "mnist_accuracy" in record.metrics
    share = record.metrics["mnist_accuracy" if has_classes else "mnist_raw"]
    return share.model_copy(update={"value": 100 * share.value, "unit": "percent"})


ACCURACY_ON_MNIST = Quantity("accuracy on MNIST", accuracy_on_mnist)


def table_1() -> dict[str, AnyCheck]:
    """Return the checks of Table 1.

    The released result files have the encodings without their mask.
    """
    checks = {}
    for prefix, arm in (("", SPARSE), ("unmasked-", DENSE)):
        for protocol in ("a", "b"):
            checks[f"SP-T1-mnist-{prefix}{protocol}"] = Check(arm, "mnist_raw")
            checks[f"SP-T1-affnist-{prefix}{protocol}"] = Check(arm, f"affnist_{protocol}_raw")
    return checks


CHECKS: dict[str, AnyCheck] = {
    **table_1(),
    "SP-T2-mnist-sparsecaps": Check(SPARSE, "mnist_raw"),
    "SP-T2-affnist-sparsecaps": Check(SPARSE, "affnist_a_raw"),
    "SP-X-recon-mnist": Check(SPARSE, "error_mnist"),
    "SP-X-recon-affnist": Check(SPARSE, "error_affnist"),
    # how many capsules an image needs
    "SP-W-1": AtLeast(
        "all",
        {
            "dense capsules reconstruct better": Check((DENSE, SPARSE), "error_mnist", "<"),
            "more than three quarters of them contribute to an image": above(
                DENSE, "contributing", 12
            ),
            "no single one holds a quarter of it": below(DENSE, "largest_change", 0.25),
            "sparse ones contribute less": more(DENSE, SPARSE, metric="contributing", margin=2),
        },
    ),
    # how far support falls off
    "SP-W-2": AtLeast(
        "all",
        {
            "sparse capsules fall off more than dense ones": more(
                DENSE, SPARSE, metric="support_left"
            ),
            "supervised capsules fall off more than dense ones": more(
                DENSE, SUPCAPS, metric="support_left"
            ),
        },
    ),
    "SP-W-3": Check(
        Select("sizes", arm="side_40"),
        "off_one_and_two",
        "≤",
        test="tests/networks/test_sparse_capsnet.py::test_the_mask_of_sixteen_capsules_by_hand",
    ),
    # who wins without boosting, and with it
    "SP-W-4": AtLeast(
        "all",
        {
            "without boosting at most four capsules win": below(NO_BOOSTING, "winners", 4.5),
            "with boosting more do": more(SPARSE, NO_BOOSTING, metric="winners", margin=2),
        },
    ),
    "SP-W-5": AtLeast(
        "all",
        {
            "every capsule wins at least half as often as the band asks": above(
                SPARSE, "smallest_first_share", 0.02
            ),
            "none wins more than twice as often": below(SPARSE, "largest_first_share", 0.2),
        },
    ),
    # what the classifier is fitted to
    "SP-W-7": AtLeast(
        "all",
        {
            "fitted to affNIST the classifier is far better": Check(
                SPARSE, difference("affnist_a_raw", "affnist_b_raw"), ">", margin=0.3
            ),
            "fitted to MNIST it is near chance": below(SPARSE, "affnist_b_raw", 0.3),
        },
    ),
    "SP-W-8": Check((SPARSE, SUPCAPS), ACCURACY_ON_MNIST, ">", margin=-1.0, refuted_at=None),
    # deeper networks, and EM routing
    "SP-W-9": AtLeast(
        "all",
        {
            "a deeper network costs sparse encodings less than dense ones": more(
                beyond("sparse/one_layer_more"),
                beyond("dense/one_layer_more"),
                SPARSE,
                DENSE,
                metric="affnist_a_raw",
            ),
            "EM: dense capsules are nearly flat too": above(
                beyond("dense/em"), "support_left", FLAT
            ),
            "EM: but less flat than RBA": more(
                DENSE, beyond("dense/em"), metric="support_left"
            ),
        },
    ),
}
