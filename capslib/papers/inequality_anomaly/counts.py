"""How many examples the sets of the paper have (Table 1; §4, data)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from capslib.config import Config, DataName
from capslib.papers.common import in_unit
from capslib.papers.experiment import Arm, Experiment, Outcome, Scale

if TYPE_CHECKING:
    from capslib.training import Context

PRINTED = {
    "ham10000": {
        "akiec": 327,
        "bcc": 514,
        "bkl": 1099,
        "df": 115,
        "mel": 1113,
        "nv": 6705,
        "vasc": 142,
    },
    "crispr": {"normal": 26_038, "anomalous": 615},
}
"""The paper's counts: images of each class, and pairs that are left with fewer than six
mismatches.
"""


class CountsOptions(Config):
    """A set whose examples are counted."""

    data: DataName


def arms(scale: Scale) -> Iterator[Arm]:
    """Yield the sets whose counts the paper prints, by their names."""
    for data in ("moles", "guides") if scale == "smoke" else PRINTED:
        yield Arm(data, options=CountsOptions(data=data))


def run(arm: Arm, context: Context) -> Outcome:
    """Count the images of each class, or the pairs that are kept.

    ``off_…`` is how far from the paper's count that is.
    """
    from capslib import data
    from capslib.data.anomalies import MISMATCHES

    split = data.load(arm.data, "all", data_dir=context.data_dir)
    if "mismatches" in split.arrays:
        labels = split.labels[split["mismatches"] < MISMATCHES]
        counts = {"normal": int((labels == 0).sum()), "anomalous": int(labels.sum())}
    else:
        counts = {name: int((split.labels == k).sum()) for k, name in enumerate(split.classes)}
    printed = PRINTED.get(arm.data, counts)  # a stand-in has no paper to differ from
    off = {f"off_{name}": abs(count - printed[name]) for name, count in counts.items()}
    metrics = in_unit({**counts, **off}, len(split), "count")
    return Outcome(metrics=metrics, data=[split.fingerprint])


COUNTS = Experiment(name="counts", paper="inequality_anomaly", arms=arms, run=run)
