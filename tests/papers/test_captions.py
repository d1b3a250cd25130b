"""Captions, alternative texts and sentences that state numbers, against what the cell draws and what the records say."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import jupytext
import numpy as np
import pytest
from matplotlib import pyplot as plt

from capslib.lab import claims, frames
from capslib.lab.records import Record
from capslib.lab.store import Store
from capslib.papers.em_routing.asks import COARSE, MAIN, SMALLER_COPY
from capslib.papers.em_routing.table1 import FULL, MATCHED
from capslib.papers.query import training_accuracy

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def drawn(stem: str, name: str, **given: object) -> tuple[str, dict]:
    """Run the cell of a figure with the imports and functions of its notebook: caption and alternative text, and what it computed."""
    cells = [c for c in jupytext.read(NOTEBOOKS / f"{stem}.py").cells if c.cell_type == "code"]
    (cell,) = (c for c in cells if c.metadata.get("mystnb", {}).get("figure", {}).get("name") == name)
    known = ast.Import, ast.ImportFrom, ast.FunctionDef
    of_notebook = ast.Module([n for c in cells for n in ast.parse(c.source).body if isinstance(n, known)], [])
    found = {"BLUE": "C0", "ORANGE": "C1", "__annotations__": {}, **given}
    exec(compile(of_notebook, stem, "exec"), found)
    exec(cell.source, found)
    plt.close("all")
    told = cell.metadata["mystnb"]
    return f"{told['image']['alt']} {told['figure']['caption']}", found


def numbers(pattern: str, text: str) -> list[float]:
    """The numbers that a sentence of this form states. A sentence that is gone fails the test."""
    found = re.search(pattern, text)
    assert found, f"no {pattern!r} in {text!r}"
    return [float(n) for n in found.groups()]


@pytest.fixture(autouse=True)
def no_window(monkeypatch):
    plt.switch_backend("agg")
    monkeypatch.setattr(plt, "show", lambda: None)


def test_where_densities_as_numbers_lose_a_child():
    told, found = drawn("negation_limitation", "fig-underflow")
    half, zero = numbers(r"falls to a half at (\d+) dimensions and to zero at (\d+)", told)
    logs, of_logs, single, double = (line.get_ydata() for line in found["axis"].lines)
    np.testing.assert_allclose([logs, of_logs], 1, atol=1e-5)
    np.testing.assert_allclose(single, double, atol=1e-3)  # so no underflow of the smaller type explains it
    x = found["dimensions"]
    assert x[np.argmax(np.array(double) < 0.5)] == half
    assert x[np.argmax(np.array(double) < 0.005)] == zero


def test_how_much_a_child_gives_away_under_the_wrong_softmax():
    told, found = drawn("negation_limitation", "fig-axis")
    stated = numbers(r"totals range from ([\d.]+) to ([\d.]+)\.", told)
    heights = [bar.get_height() for bar in found["axis"].patches]
    assert np.allclose(heights[:12], 1)
    assert [round(float(edge), 2) for edge in (min(heights[12:]), max(heights[12:]))] == stated


def test_what_an_untrained_stack_loses():
    told, found = drawn("negation_limitation", "fig-signal")
    low, high = numbers(r"lengths lie between ([\d.]+) and ([\d.]+) at every depth", told)
    assert low <= min(found["of_em"]) <= max(found["of_em"]) <= high
    (floor,) = numbers(r"near the identity above ([\d.]+)\.", told)
    cosines = found["cosines"]
    assert min(cosines["no bias, W near identity"]) > floor
    assert min(cosines["bias 0.1"]) > 0.99
    for arm in ("no bias", "no bias, W 0.3", "no bias, unit length", "bias from 0"):
        assert abs(cosines[arm][-1]) < 0.05 < 0.95 < cosines[arm][0]


def prose(stem: str) -> str:
    """All Markdown of a chapter, a sentence break a blank."""
    cells = jupytext.read(NOTEBOOKS / f"{stem}.py").cells
    return " ".join(" ".join(c.source.split()) for c in cells if c.cell_type == "markdown")


def recorded(stem: str, experiment: str, **where: object):
    """The committed records of the reduced size, as a table."""
    return frames.metrics(frames.select(claims.own_records(stem, Store()), experiment, "cpu", **where))


def rounded(values) -> list[float]:
    return [float(np.round(values.min())), float(np.round(values.max()))]


def test_how_well_networks_with_pairs_of_images_end():
    told, of = prose("negation_limitation"), recorded("negation_limitation", "negated", data="mnist")
    odd, relu = (of[of["front"] == front] for front in ("odd", "relu"))
    limited, free = (100 * odd[odd["bias"] == bias]["test_accuracy"] for bias in (False, True))
    assert len(limited) == len(free) == 6
    [stated] = numbers(r"all six runs without a bias end at (\d+) %", told)
    assert rounded(limited) == [stated, stated]
    assert numbers(r"All six with a bias end at (\d+) to (\d+) %", told) == rounded(free)
    assert numbers(r"both kinds reach (\d+) to (\d+) %", told) == rounded(100 * relu["test_accuracy"])


def test_errors_of_em_networks_that_sentences_state():
    told, main = prose("em_routing"), {k: v for k, v in MAIN.items() if k not in ("pose", "coordinates", "normalise")}
    vectors, matrices = (
        recorded(
            "em_routing", "test_error", **main, pose=pose, coordinates=coordinates, normalise=MAIN["normalise"], data="smallnorb"
        )
        for pose, coordinates in (("vector", False), ("vector", True))
    )
    [stated] = numbers(r"The third has an error of ([\d.]+) %, about a point more than with coordinates", told)
    assert round(vectors["test_error"].min(), 1) == stated
    assert 0.5 < vectors["test_error"].min() - matrices["test_error"].mean() < 1.5
    printed, released = (
        recorded("em_routing", "test_error", **MAIN | {"normalise": n}, data="smallnorb", **COARSE)["test_error"].mean()
        for n in ("types+positions", "positions-per-type")
    )
    assert "almost three times as many errors" in told
    assert 2.5 < printed / released < 3


def test_what_sentences_say_about_the_smaller_copy():
    told = prose("em_routing")

    def of(**difference: object) -> list[Record]:
        runs = frames.select(claims.own_records("em_routing", Store()), "test_error", "cpu", **MAIN | SMALLER_COPY | difference)
        return sorted(runs, key=lambda r: r.trial.seed)

    one, two, three, same, paper = (
        [r.metrics["test_error"].value for r in of(**arm)]
        for arm in (*({"iterations": t} for t in (1, 2, 3)), *({"network": "cnn", "cnn": list(cnn)} for cnn in (MATCHED, FULL)))
    )
    assert "one iteration gives fewer errors than two, and two give fewer than three, with each of three seeds" in told
    assert len(one) == 3
    assert all(a < b < c for a, b, c in zip(one, two, three, strict=True))
    assert "Both CNNs make fewer errors than any of them" in told
    assert all(max(cnns) < best for *cnns, best in zip(same, paper, one, strict=True))
    assert "the network errs on even more of its training crops than of the test images" in told
    assert all(1 - training_accuracy(r) > error / 100 for r, error in zip(of(iterations=3), three, strict=True))


def test_what_sentences_say_about_viewpoints_and_attacks():
    told = prose("em_routing")
    matched = recorded("em_routing", "viewpoint")["capsules_familiar"]
    assert numbers(r"a familiar error of (\d+) to (\d+) %", told) == rounded(matched)
    attacked = frames.select(claims.own_records("em_routing", Store()), "attacks", "cpu")
    of = frames.metrics(attacked)
    assert numbers(r"With ε = 0.2 the CNN classifies (\d+) to (\d+) % of the images", told) == rounded(
        100 * of["cnn_fgsm_accuracy_at_0.2"]
    )
    assert "gradients of the CNN are two to four times as large" in told
    assert (10 ** of["gradient_orders"]).between(2, 4).all()
    [images] = numbers(r"In (\d+) images neither network has one such pixel", told)
    assert {r.metrics["zero_share_cnn"].n for r in attacked} == {images}
    assert (of[["zero_share_cnn", "zero_share_capsules"]] == 0).all(axis=None)
