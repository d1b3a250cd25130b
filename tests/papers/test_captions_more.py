"""What captions, sentences and boxes of Learned routing say, against cells and verdicts."""

from __future__ import annotations

import ast
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from captions import NOTEBOOKS, figure, numbers, prose
from captions import drawn as drawn_by

from capslib.lab import frames
from capslib.lab.chapter import BOX, Chapter
from capslib.lab.statistics import interval
from capslib.lab.words import BASELINES, CAPSULES, EXACT, OPEN, Verdict
from capslib.papers import budget
from capslib.papers.learned_routing import shown
from capslib.papers.learned_routing.asks import LEARNED as FLOOR

LEARNED = "learned_routing"
COLORS = {"INKS": defaultdict(lambda: "C0"), "HERE": "C1", "MISTAKE": "C2"}


def record(scale: str) -> SimpleNamespace:
    return SimpleNamespace(trial=SimpleNamespace(scale=scale, seed=0))


def drawn(stem: str, name: str, **given: object) -> tuple[str, dict]:
    return drawn_by(stem, name, of_encodings=[record("smoke")], **COLORS | given)


def source(stem: str) -> str:
    """The notebook as it is written, with the sentences that its cells compute."""
    return (NOTEBOOKS / f"{stem}.py").read_text(encoding="utf-8")


def box(stem: str) -> str:
    """What a verdict box says, with the names of its verdicts and numbers."""
    calls = [
        n
        for n in ast.walk(ast.parse(source(stem)))
        if isinstance(n, ast.Call) and "verdict_box" in ast.dump(n.func)
    ]
    return " ".join(ast.literal_eval(k.value) for k in calls[0].keywords if k.arg in BOX)


def still_open(verdict: Verdict) -> dict[str, str]:
    """Its undecided parts, and why."""
    return {part.name: part.reason for part in verdict.parts if part.status in OPEN}


def test_why_every_part_of_the_first_claim_of_learned_routing_is_open():
    """Three compare networks that have not learned, in the fourth seeds lie apart: no part
    waits for a run, or for one of twice the budget.
    """
    said, first = box(LEARNED), Chapter(LEARNED).verdicts["LR-W-1"]
    assert (
        "Reduced networks leave open whether the LSTM errs as little as EM routing, and the kernel more {LR-W-1}."
        in said
    )
    assert (first.status, first.scale) == ("undecided", "cpu")
    left = still_open(first)
    assert len(left) == len(first.parts) == 4
    assert (
        "In {unlearned} of {parts} comparisons networks are right on less than {floor} of their training images"
        in said
    )
    unlearned = {
        name for name, why in left.items() if "did not learn (training accuracy" in why
    }
    assert unlearned == set(left) - {"the LSTM is no worse than EM routing on MNIST"}
    assert "in {apart}, seeds differ too much" in said
    (apart,) = (part for part in first.parts if part.name not in unlearned)
    assert apart.n == 3
    assert (
        "of the lead in test error (mnist/em − mnist/connectionist) over 3 seeds"
        in apart.reason
    )
    assert "does not lie wholly above" in apart.reason


def test_which_networks_of_learned_routing_learn():
    said, told, chapter = box(LEARNED), prose(LEARNED), Chapter(LEARNED)
    assert FLOOR == 0.9
    assert "{at_full} trained at the paper’s own size." in said
    assert not frames.select(chapter.all_records, "errors", "paper")
    assert {v.group for v in chapter.verdicts.values()} & {CAPSULES, BASELINES} == set()
    assert chapter.verdicts["LR-X-params"].group == EXACT
    runs = frames.select(chapter.records, "errors", "cpu")
    assert "at cpu scale no frozen network learns" in told
    frozen = [r for r in runs if not r.config["trained"]]
    assert len(frozen) == 12
    assert shown.learned(frozen) == []
    assert [more for more in shown.trained_against_frozen(runs).values() if more] == [], (
        "so the box says that this is open"
    )
    assert shown.least(shown.learned(runs)) == {}, "on no set do networks of all routings learn"
    assert "No network learns from these two: its training accuracy stays below 90 %." in told
    starts = [
        r
        for r in chapter.records
        if r.config.get("similarity_start") in ("released", "spread") and r.trial.scale == "cpu"
    ]
    starts = [
        r
        for r in starts
        if r.trial.experiment == "variants" and r.config["routing"] == "similarity"
    ]
    assert len(starts) == 6
    assert shown.learned(starts) == []
    assert (
        "With twice the training more of these reduced networks learn: {longer}, so longer runs may decide more."
        in said
    )
    twice = [
        r for r in frames.select(chapter.all_records, "errors", "cpu") if budget(r.trial) == 2
    ]
    on = {data: [r for r in twice if r.config["data"] == data] for data in shown.SETS}
    assert {data: (len(shown.learned(of)), len(of)) for data, of in on.items()} == {
        "mnist": (3, 3),
        "smallnorb": (0, 3),
    }


def test_a_kernel_that_starts_nearly_blind():
    told, found = drawn(LEARNED, "fig-lr-start")
    couplings = [axis.lines[0].get_ydata() for axis in found["axes"]]
    inside = (found["distances"] > found["low"]) & (found["distances"] < found["high"])
    released, wide, steep = (np.asarray(c)[inside] for c in couplings)
    assert "From the first two starts it hardly falls across that range" in told
    assert min(released.min(), wide.min()) > 0.93
    assert "from the steep one it falls by a sixth" in told
    assert 1 - steep[-1] / steep[0] == pytest.approx(1 / 6, abs=0.03)


def test_what_the_variants_of_learned_routing_change():
    of_errors, of_variants = (
        frames.best(Chapter(LEARNED).records, name) for name in ("errors", "variants")
    )
    apart = {
        arm[1:]: more
        for arm, (_, more) in shown.changes(of_errors, of_variants).items()
        if arm[2] != shown.UNCHANGED
    }
    lstm = [x for (name, _), more in apart.items() if name == "LSTM" for x in more]
    starts = [apart["kernel", start] for start in ("released start", "wide kernels")]
    assert all(len(more) == 3 for more in apart.values())
    *_, told = figure(LEARNED, "fig-lr-variants")
    (most,) = numbers(r"With the LSTM all marks lie within (\S+) points of the line,", told)
    assert most - 0.1 < max(map(abs, lstm)) <= most
    assert "those of cross entropy left of it" in told
    assert max(apart["LSTM", "cross entropy"]) < 0
    right = numbers(
        r"wide kernels lie right of it in every seed, by (\S+) to (\S+) points", told
    )
    assert [round(of(x for more in starts for x in more)) for of in (min, max)] == right
    left = numbers(r"raw poses left of it in every seed, by (\S+) to ([\d.]+)\.", told)
    assert [round(-of(apart["kernel", "raw poses"])) for of in (max, min)] == left
    assert "both make more errors than the steep one in every seed" in prose(LEARNED)
    assert "with each of three seeds; their interval leaves it open" in (
        NOTEBOOKS.parent / "book/across.md"
    ).read_text(encoding="utf-8")
    low, high = interval(apart["kernel", "released start"], None)
    assert low < 0 < high
    assert (
        "From the steep start training drives $\\lambda_1$ nearly to zero, from the other two it does not"
        in prose(LEARNED)
    )
    for r in (
        r
        for r in [*of_errors, *of_variants]
        if r.config["routing"] == "similarity" and r.config["trained"]
    ):
        ends = [float(np.median(r.series[f"lambda1_{layer}"])) for layer in shown.PLACES]
        if r.config["similarity_start"] == "steep" and not r.config["raw_poses"]:
            assert max(ends) < 0.1
        elif r.config["similarity_start"] != "steep":
            assert min(ends) > 1


def test_near_votes_outweigh_far_ones():
    assert "Near votes outweigh" in (NOTEBOOKS / f"{LEARNED}.py").read_text(encoding="utf-8")
    trained = frames.select(Chapter(LEARNED).records, "errors", "cpu", trained=True)
    for routing in ("connectionist", "similarity", "em"):
        near = [
            of
            for layer in shown.PLACES
            for of in shown.prefers_least(trained, routing, "distance", layer)
        ]
        assert len(near) == 18
        assert sum(near) >= 17


def test_what_the_weights_and_the_wrong_axis_do():
    told, found = drawn(LEARNED, "fig-lr-axis")
    _, parents, children = (line.get_ydata() for line in found["axis"].lines)
    votes = found["toy"].DENSE / (found["toy"].DENSE + found["toy"].LOOSE)
    assert (
        "it rises from below its share of the votes to nearly one as the weights fall" in told
    )
    assert children[0] > 0.9
    assert children[-1] < votes
    np.testing.assert_allclose(parents, votes, rtol=1e-4)


def test_what_a_missing_floor_and_a_threshold_for_each_column_do():
    told, found = drawn(LEARNED, "fig-lr-floor")
    (floor, none), (slopes, without) = (
        [line.get_ydata() for line in axis.lines] for axis in found["axes"]
    )
    assert "With the floor it levels off, without one it keeps falling" in told
    assert abs(floor[0] - floor[4]) < 1e-3
    assert none[0] < none[4] - 1
    assert "without a floor grows without bound" in told
    assert float(without[0]) > 1e5 * float(slopes[0])
    told, found = drawn(LEARNED, "fig-lr-columns")
    types, columns = (line.get_ydata() for line in found["axis"].lines)
    assert (
        "it is the same everywhere, with theta by column it differs from column to column"
        in told
    )
    assert np.ptp(types) < 1e-6
    assert len(np.unique(np.round(columns, 4))) == 6


def test_how_a_small_network_learns():
    """Its cells run as they stand, with one thread as in the notebook."""
    cells, cell, told = figure(LEARNED, "fig-lr-small")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    _, found = drawn(LEARNED, "fig-lr-columns")
    found["session"] = SimpleNamespace(settings=SimpleNamespace(data_dir=None))
    at = next(n for n, c in enumerate(cells) if c is cell)
    for one in (*cells[at - 2 : at], cell):
        exec(one.source, found)
    torch.set_num_threads(before)
    assert f"over {found['STEPS']} training steps" in told
    for curve in found["curves"].values():
        assert np.mean(curve[30:45]) > 0.9 * curve[0], (
            "it stays where it starts for some fifty steps"
        )
        assert np.mean(curve[-20:]) < 0.5 * curve[0], "and then falls"
