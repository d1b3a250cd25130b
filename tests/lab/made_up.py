"""Made-up records, claims and checks for tests of verdicts."""

from __future__ import annotations

from typing import Any

from helpers import make_record

from capslib.lab.ledger import Claim, ledger
from capslib.lab.records import Record
from capslib.lab.replicates import Runs
from capslib.papers.check import Check, Select
from capslib.papers.experiment import DataFingerprint, Metric, Trial

MNIST = DataFingerprint(name="mnist", sha256="0" * 64, stand_in=False, complete=True)
DIGITS = MNIST.model_copy(update={"name": "digits", "stand_in": True})
PART = MNIST.model_copy(
    update={"name": "kmnist", "complete": False, "deviations": ["7,011 of 60,000 images."]}
)
GOOD = [0.95, 0.96, 0.955]
BAD = [0.10, 0.11, 0.105]
EPOCHS = 4

A = Select("depth", arm="a")
B = Select("depth", arm="b")
VALUE = Check(A, "accuracy")
AHEAD = Check((A, B), "accuracy", ">")
YES = Check(A, "accuracy", ">", 0.5)
NO = Check(B, "accuracy", ">", 0.5)
UNCLEAR = Check(A, "accuracy", ">", 0.955)
NOT_RUN = Check(Select("depth", arm="c"), "accuracy", ">", 0.5)

ORDER = ledger()["NEG-W-4"]
THEOREM = ledger()["NEG-W-1"]


def number(value: float, **fields: Any) -> Claim:
    """Return a claim that a paper makes in a number, by default in percent."""
    row = ledger()["NEG-T1-rba-bias"]
    return row.model_copy(update={"value": value, "tolerance": 0.5, **fields})


def metric(value: float, unit: str = "fraction") -> Metric:
    """Return a metric of nine things."""
    return Metric(value=value, n=9, unit=unit)


def record(
    value: float | None = None,
    seed: int = 0,
    arm: str = "a",
    scale: str = "paper",
    unit: str = "fraction",
    epochs: int = EPOCHS,
    learned: float = 0.9,
    revision: int = 1,
    **fields: Any,
) -> Record:
    """Return the record of a made-up trial, whose accuracy is ``value``."""
    config = {"arm": arm, "epochs": epochs}
    address = {"paper": ORDER.paper, "experiment": "depth", "revision": revision}
    trial = Trial(**address, scale=scale, config=config, seed=seed)
    metrics = fields.pop("metrics", {})
    if value is not None:
        metrics = {**metrics, "accuracy": metric(value, unit)}
    series = {"batch_accuracy": [learned]}
    defaults = {"data": [MNIST], "routing_path": "fast", "series": series}
    return make_record(trial, config=config, metrics=metrics, **{**defaults, **fields})


def records(values: list[float | None], **fields: Any) -> list[Record]:
    """Return a record for each value, with seeds from 0 on."""
    return [record(value, seed, **fields) for seed, value in enumerate(values)]


def failed(seed: int, exit: str = "nan", **fields: Any) -> Record:
    """Return the record of a run that did not end well."""
    return record(seed=seed, exit=exit, series={}, **fields)


def both_arms(a: list[float] = GOOD, b: list[float] = BAD, **fields: Any) -> list[Record]:
    """Return records of two arms."""
    return records(a, **fields) + records(b, arm="b", **fields)


def twice(a: float | None = GOOD[0], b: float | None = BAD[0], **fields: Any) -> list[Record]:
    """Return a record of each of two arms with twice the epochs, at cpu scale."""
    fields = {"epochs": 2 * EPOCHS, "scale": "cpu"} | fields
    return [record(a, **fields), record(b, arm="b", **fields)]


def with_budgets(records: list[Record]) -> Runs:
    """Return runs of which those with twice the epochs have twice the budget."""
    return Runs(records, lambda record: record.config["epochs"] // EPOCHS)
