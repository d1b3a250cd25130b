"""Made-up records, claims and checks for tests of verdicts."""

from __future__ import annotations

from typing import Any

from helpers import make_record

from capslib.lab.ledger import Claim
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
NOT_THERE = Check(Select("depth", arm="c"), "accuracy", ">", 0.5)


def record(
    value: float | None = None,
    seed: int = 0,
    arm: str = "a",
    scale: str = "paper",
    unit: str = "fraction",
    exit: str = "ok",
    learned: float = 0.9,
    epochs: int = EPOCHS,
    metrics: dict[str, Metric] | None = None,
    **fields: Any,
) -> Record:
    """Return the record of a made-up trial, whose accuracy is ``value``."""
    config = {"arm": arm, "epochs": epochs}
    trial = Trial(
        paper=fields.pop("paper", "negation_limitation"),
        experiment=fields.pop("experiment", "depth"),
        revision=fields.pop("revision", 1),
        scale=scale,
        config=config,
        seed=seed,
    )
    measured = dict(metrics or {})
    if value is not None:
        measured["accuracy"] = Metric(value=value, n=10_000, unit=unit)
    return make_record(
        trial,
        config=config,
        metrics=measured if exit == "ok" else {},
        series={"batch_accuracy": [learned]},
        exit=exit,
        **{"data": [MNIST], "parameters": 7, "routing_path": "fast"} | fields,
    )


def records(values: list[float | None], **fields: Any) -> list[Record]:
    """Return a record for each value, with seeds from 0 on."""
    return [record(value, seed=seed, **fields) for seed, value in enumerate(values)]


def both_arms(a: list[float] = GOOD, b: list[float] = BAD, **fields: Any) -> list[Record]:
    """Return records of two arms."""
    return records(a, arm="a", **fields) + records(b, arm="b", **fields)


def twice(a: float = GOOD[0], b: float = BAD[0], **fields: Any) -> list[Record]:
    """Return a record of each of two arms with twice the epochs."""
    fields = {"epochs": 2 * EPOCHS, "scale": "cpu"} | fields
    return [record(a, arm="a", **fields), record(b, arm="b", **fields)]


def with_budgets(records: list[Record]) -> Runs:
    """Return runs of which those with twice the epochs have twice the budget."""
    return Runs(records, lambda r: 2 if r.config["epochs"] == 2 * EPOCHS else 1)


def metric(value: float, unit: str = "fraction") -> Metric:
    """Return a metric of nine things."""
    return Metric(value=value, n=9, unit=unit)


def claim(kind: str = "value", value: float | None = None, **fields: Any) -> Claim:
    """Return a claim that no paper makes."""
    is_value = kind == "value"
    row = {
        "id": "NEG-X-test",
        "paper": "negation_limitation",
        "where": "Table 1",
        "kind": kind,
        "statement": "A is so.",
        "dataset": "MNIST",
        "setting": "",
        "metric": "test accuracy" if is_value else "",
        "unit": "percent" if is_value else "",
        "value": value,
        "std": None,
        "tolerance": 0.5,
        "not_run": "",
        "notes": "",
        "printed": str(value or ""),
    }
    return Claim(**(row | fields))


ORDER = claim("order")
THEOREM = claim("property")
