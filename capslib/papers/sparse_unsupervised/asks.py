"""What each claim of the paper asks of the records."""

from __future__ import annotations

from functools import partial

from capslib.papers.experiment import Metric
from capslib.papers.query import (
    Above,
    Count,
    Derived,
    Measured,
    Order,
    Property,
    Query,
    Select,
    Value,
    difference,
)
from capslib.papers.sparse_unsupervised.encodings import CNN, DENSE, SPARSE, SUPCAPS, UNBOOSTED

FLOOR = {"unexplained": 0.5}
"""A network that leaves more than half of what the mean image leaves has not learned to reconstruct, and decides nothing."""
LEARNED = 0.9
"""The training accuracy below which a network that sees labels has not learned."""
FLAT = 0.5
"""Mean support of the ranks below the first, as a share of it: nearly flat above, falling off below."""
MUCH = 0.1
"""Shares that differ by less are not told apart in words."""
ONE_POINT = 1.0
USUAL = {
    "boost": True,
    "grouping": "position",
    "routing": "dynamic",
    "hidden": [],
    "network": "sparse_capsnet",
}


def _of(experiment: str, arm: dict[str, object]) -> Select:
    where = {**USUAL, "band": [0.04, 0.1], "distinct": 0, "capsules": 16, **arm}
    if arm in (SUPCAPS, CNN):
        return Select(experiment, where, learned=LEARNED)
    return Select(experiment, where, at_most=FLOOR)


sparse, dense, unboosted, supcaps = (
    _of("encodings", arm) for arm in (SPARSE, DENSE, UNBOOSTED, SUPCAPS)
)
deep_sparse, deep_dense = (_of("beyond", {**arm, "hidden": [32]}) for arm in (SPARSE, DENSE))
em_dense = _of("beyond", {**DENSE, "routing": "em_vector"})


def _on_mnist(record: Measured) -> Metric:
    """In percent. Of a network with labels what its classes say, of one without what the classifier makes of its encodings."""
    found = record.metrics[
        "mnist_accuracy" if "mnist_accuracy" in record.metrics else "mnist_raw"
    ]
    return found.model_copy(update={"value": 100 * found.value, "unit": "percent"})


_value = partial(Value, final=False)
_order, _above = partial(Order, final="reduced"), partial(Above, final="reduced")
"""At the paper's size the end of training is where the paper stops."""


def _cells(arm: Select, name: str) -> dict[str, Query]:
    """A row of Table 1. The released result files have the encodings without their mask."""
    return {
        f"SP-T1-{where}-{name}{protocol}": _value(
            arm, "mnist_raw" if where == "mnist" else f"affnist_{protocol}_raw"
        )
        for where in ("mnist", "affnist")
        for protocol in "ab"
    }


QUERIES: dict[str, Query] = {
    **_cells(sparse, ""),
    **_cells(dense, "unmasked-"),
    "SP-T2-mnist-sparsecaps": _value(sparse, "mnist_raw"),
    "SP-T2-affnist-sparsecaps": _value(sparse, "affnist_a_raw"),
    "SP-X-recon-mnist": _value(sparse, "error_mnist"),
    "SP-X-recon-affnist": _value(sparse, "error_affnist"),
    "SP-W-1": Count(
        {
            "dense capsules reconstruct better": _order(
                dense, sparse, "error_mnist", higher_is_better=False
            ),
            "more than three quarters of them contribute to an image": _above(
                dense, "contributing", 12, ours=True
            ),
            "no single one holds a quarter of it": _above(
                dense, "largest_change", 0.25, below=True, ours=True
            ),
            "sparse ones contribute less": _order(dense, sparse, "contributing", margin=2),
        }
    ),
    "SP-W-2": Count(
        {
            "sparse capsules fall off more than dense ones": _order(
                dense, sparse, "support_left"
            ),
            "supervised capsules fall off more than dense ones": _order(
                dense, supcaps, "support_left"
            ),
        }
    ),
    "SP-W-3": Property(
        Select("sizes", {"side": 40}),
        "off_one_and_two",
        0,
        "tests/networks/test_sparse_capsnet.py::test_the_mask_of_sixteen_capsules_by_hand",
    ),
    "SP-W-4": Count(
        {
            "without boosting at most four capsules win": _above(
                unboosted, "winners", 4.5, below=True, ours=True
            ),
            "with boosting more do": _order(sparse, unboosted, "winners", margin=2),
        }
    ),
    "SP-W-5": Count(
        {
            "every capsule wins at least half as often as the band asks": _above(
                sparse, "smallest_first_share", 0.02, ours=True
            ),
            "none wins more than twice as often": _above(
                sparse, "largest_first_share", 0.2, below=True, ours=True
            ),
        }
    ),
    "SP-W-7": Count(
        {
            "fitted to affNIST the classifier is far better": _above(
                sparse, difference("affnist_a_raw", "affnist_b_raw"), 0, margin=3 * MUCH
            ),
            "fitted to MNIST it is near chance": _above(
                sparse, "affnist_b_raw", 0.3, below=True, ours=True
            ),
        }
    ),
    "SP-W-8": _order(
        sparse, supcaps, Derived("accuracy on MNIST", _on_mnist), margin=-ONE_POINT, ours=True
    ),
    "SP-W-9": Count(
        {
            "a deeper network costs sparse encodings less than dense ones": _order(
                deep_sparse, deep_dense, "affnist_a_raw", beyond=(sparse, dense)
            ),
            "EM: dense capsules are nearly flat too": _above(
                em_dense, "support_left", FLAT, ours=True
            ),
            "EM: but less flat than RBA": _order(dense, em_dense, "support_left"),
        }
    ),
}
