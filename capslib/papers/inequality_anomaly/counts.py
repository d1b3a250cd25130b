"""How many examples the sets of the paper have (Table 1; §4, data)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capslib.config import Config, DataName
from capslib.papers.common import in_unit
from capslib.papers.experiment import Outcome, Scale

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


class CountsConfig(Config):
    """A set whose examples are counted."""

    data: DataName


def run(config: CountsConfig, context: Context) -> Outcome:
    """Count the images of each class, or the pairs that are kept; ``off_…`` is how far from the
    paper's count that is.
    """
    from capslib import data
    from capslib.data.anomalies import MISMATCHES

    split = data.load(config.data, "all", data_dir=context.data_dir)
    if "mismatches" in split.arrays:
        kept = split.labels[split["mismatches"] < MISMATCHES]
        found = {"normal": int((kept == 0).sum()), "anomalous": int(kept.sum())}
    else:
        found = {name: int((split.labels == k).sum()) for k, name in enumerate(split.classes)}
    printed = PRINTED.get(config.data, found)  # a stand-in has no paper to differ from
    metrics = {
        **found,
        **{f"off_{name}": abs(count - printed[name]) for name, count in found.items()},
    }
    return Outcome(metrics=in_unit(metrics, len(split), "count"), data=[split.fingerprint])


def grid(scale: Scale) -> list[CountsConfig]:
    return [
        CountsConfig(data=name)
        for name in (("moles", "guides") if scale == "smoke" else PRINTED)
    ]
