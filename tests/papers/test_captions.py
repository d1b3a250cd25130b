"""Captions and alternative texts that state numbers, against what the cell under them draws."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import jupytext
import numpy as np
import pytest
from matplotlib import pyplot as plt

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
    assert min(cosines["no bias, W near 1"]) > floor
    assert min(cosines["bias 0.1"]) > 0.99
    for arm in ("no bias", "no bias, W 0.3", "no bias, unit length", "bias from 0"):
        assert abs(cosines[arm][-1]) < 0.05 < 0.95 < cosines[arm][0]
