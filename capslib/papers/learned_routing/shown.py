"""What the tables of the page show of the records, before it is written as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from capslib.papers.check import Measured, training_accuracy
from capslib.papers.experiment import Arm
from capslib.papers.learned_routing.checks import LEARNED, SETS
from capslib.papers.learned_routing.costs import hours
from capslib.papers.learned_routing.table3 import LAYERS
from capslib.papers.names import ARMS

NAMES = {name: ARMS[name] for name in ("connectionist", "similarity", "em", "dynamic")}
LEARNERS = ("connectionist", "similarity")
LAYER_NAMES = dict(zip(LAYERS, ("first layer", "second layer", "classes"), strict=True))
UNCHANGED = "as in Table 3"
CHANGES = {
    "released_start": "released start",
    "wide_kernels": "wide start",
    "steep_kernels": "steep start",
    "theta_of_columns": "θ of columns",
    "swapped_states": "swapped states",
    "raw_poses": "raw poses",
    "no_coordinates": "no coordinates",
    "cross_entropy": "cross entropy",
}
"""What a variant changes, by the last part of its name."""
Label = tuple[str, ...]


def set_name(record: Measured) -> str:
    """Return the name of the data set of a record."""
    data = record.config["data"]
    return SETS.get(data, data)


def order_of_routing(record: Measured) -> int:
    """Return the place of the routing of a record in the order of the page."""
    return list(NAMES).index(record.config["routing"])


def that_learned(records: Iterable[Measured]) -> list[Measured]:
    """Return the records whose network is right on more of its training images than the floor.

    The others decide nothing.
    """
    return [r for r in records if (training_accuracy(r) or 0.0) >= LEARNED]


def differences(errors: Mapping[int, float], baseline: Mapping[int, float]) -> list[float]:
    """Return the errors minus those of the baseline, in the seeds that both have."""
    return [errors[seed] - baseline[seed] for seed in errors if seed in baseline]


def rates(records: Iterable[Measured]) -> dict[Label, dict[float, float]]:
    """Return by set and arm of the pilot the held-out error in percent at each rate."""

    def order(record: Measured) -> tuple:
        return record.config["data"], not record.config["trained"], order_of_routing(record)

    rows: dict[Label, dict[float, float]] = {}
    for record in sorted(records, key=order):
        name = NAMES[record.config["routing"]]
        if not record.config["trained"]:
            name += ", frozen"
        row = rows.setdefault((set_name(record), name), {})
        row[record.config["learning_rate"]] = record.metrics["held_out_error"].value
    return rows


def share_of_steps(pilot: Iterable[Arm], arms: Iterable[Arm]) -> dict[str, float]:
    """Return by set how much of its steps in Table 3 a network has in the pilot.

    Those that see both images of a stereo pair at once have other steps, and are left out.
    """
    separate = [arm for arm in arms if arm.recipe.views == "separate"]
    steps = {arm.recipe.data: arm.recipe.steps for arm in separate}
    shares = {}
    for arm in pilot:
        data = arm.recipe.data
        shares[SETS.get(data, data)] = arm.recipe.steps / steps[data]
    return shares


def change(record: Measured) -> str:
    """Return what makes the network of a record differ from that of Table 3."""
    _, _, name = record.config["arm"].rpartition("/")
    return CHANGES.get(name, UNCHANGED)


def changes(
    arms: Iterable[Measured], variants: Iterable[Measured]
) -> dict[Label, tuple[list[float], list[float]]]:
    """Return test errors in percent, and how much more than in Table 3 in the same seeds.

    By set, routing and what differs from Table 3; on the sets and scales of the variants.
    Networks that see both images of a stereo pair at once are left out.
    """
    variants = list(variants)
    sets_and_scales = {(record.config["data"], record.trial.scale) for record in variants}
    errors: dict[Label, dict[int, float]] = {}
    for record in [*arms, *variants]:
        config = record.config
        learns = config["routing"] in LEARNERS and config["trained"]
        is_compared = learns and config["views"] == "separate"
        if is_compared and (config["data"], record.trial.scale) in sets_and_scales:
            row = set_name(record), NAMES[config["routing"]], change(record)
            seeds = errors.setdefault(row, {})
            seeds[record.trial.seed] = record.metrics["test_error"].value
    order = [UNCHANGED, *CHANGES.values()]
    rows = {}
    for row in sorted(errors, key=lambda row: (*row[:2], order.index(row[2]))):
        data, routing, _ = row
        unchanged = errors.get((data, routing, UNCHANGED), {})
        rows[row] = list(errors[row].values()), differences(errors[row], unchanged)
    return rows


def negation(records: Iterable[Measured]) -> dict[str, list[float]]:
    """Return the most that poses of negated votes miss negated poses, and activations change.

    By routing; poses in mean lengths.
    """
    rows: dict[str, list[float]] = {}
    for record in sorted(
        records, key=lambda record: (order_of_routing(record), record.config["bias"])
    ):
        name = NAMES[record.config["routing"]]
        if record.config["bias"]:
            name += ", bias"
        row = rows.setdefault(name, [0.0, 0.0])
        row[0] = max(row[0], record.metrics["pose_is_not_odd"].value)
        row[1] = max(row[1], record.metrics["activation_is_not_even"].value)
    return rows


def hours_of_table_3(
    records: Iterable[Measured], arms: Iterable[Arm]
) -> list[tuple[float, str]]:
    """Return the core-hours that one seed of a cell of Table 3 takes in full, least first.

    A step takes as long as in the fastest record of its costs.
    """
    seconds: dict[str, float] = {}
    for record in records:
        routing = record.config["routing"]
        step = record.metrics["seconds_of_a_step"].value
        seconds[routing] = min(step, seconds.get(routing, step))
    cells = []
    for arm in arms:
        recipe = arm.recipe
        if recipe.routing in LEARNERS and recipe.trained and recipe.views == "separate":
            cell = f"{NAMES[recipe.routing]} on {SETS[recipe.data]}"
            cells.append((hours(recipe, seconds[recipe.routing]), cell))
    return sorted(cells)
