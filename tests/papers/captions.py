"""Captions, alternative texts and sentences of notebooks, and what the cells of their figures
draw.
"""

from __future__ import annotations

import ast
import contextlib
import re
from pathlib import Path

import jupytext
import numpy as np
from matplotlib import pyplot as plt
from nbformat import NotebookNode

from capslib.lab import frames
from capslib.lab.chapter import Chapter

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def figure(stem: str, name: str) -> tuple[list, NotebookNode, str]:
    """The code cells of a chapter, that of a figure, and its caption and alternative text."""
    cells = [c for c in jupytext.read(NOTEBOOKS / f"{stem}.py").cells if c.cell_type == "code"]
    (cell,) = (
        c for c in cells if c.metadata.get("mystnb", {}).get("figure", {}).get("name") == name
    )
    told = cell.metadata["mystnb"]
    return cells, cell, f"{told['image']['alt']} {told['figure']['caption']}"


def drawn(stem: str, name: str, **given: object) -> tuple[str, dict]:
    """Run the cell of a figure with the imports and functions of its notebook: caption and
    alternative text, and what it computed.
    """
    cells, cell, told = figure(stem, name)
    of_notebook = ast.Module(
        [n for c in cells for n in ast.parse(c.source).body if _known(n)], []
    )
    found = {"BLUE": "C0", "ORANGE": "C1", "__annotations__": {}, **given}
    exec(compile(of_notebook, stem, "exec"), found)
    exec(cell.source, found)
    plt.close("all")
    return told, found


def _known(node: ast.stmt) -> bool:
    """Whether a statement of a notebook is an import, a function, or a constant that needs
    nothing else.
    """
    if isinstance(node, ast.Assign):
        with contextlib.suppress(ValueError):
            ast.literal_eval(node.value)
            return isinstance(node.targets[0], ast.Name)
        return all(
            isinstance(n, ast.Assign | ast.Name | ast.Dict | ast.Constant | ast.expr_context)
            for n in ast.walk(node)
        )
    return isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef)


def numbers(pattern: str, text: str) -> list[float]:
    """The numbers that a sentence of this form states. A sentence that is gone fails the test."""
    found = re.search(pattern, text)
    assert found, f"no {pattern!r} in {text!r}"
    return [float(n) for n in found.groups()]


def prose(stem: str) -> str:
    """All Markdown of a chapter, a sentence break a blank."""
    cells = jupytext.read(NOTEBOOKS / f"{stem}.py").cells
    return " ".join(" ".join(c.source.split()) for c in cells if c.cell_type == "markdown")


def recorded(stem: str, experiment: str, **where: object):
    """The committed records of the reduced size, as a table."""
    return frames.metrics(frames.select(Chapter(stem).records, experiment, "cpu", **where))


def rounded(values) -> list[float]:
    return [float(np.round(values.min())), float(np.round(values.max()))]
