"""Live source: the current text of a function or class, and the test that holds it to its equation.

This module parses files and does not import them, so building a page does not load torch.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from capsbook import folding


class SourceNotFound(LookupError):
    """There is no such module, function or test. The message says where the search ended."""


@dataclass(frozen=True)
class Source:
    """A piece of a file: its text without common indentation, the file, and its first line."""

    text: str
    path: Path
    line: int


def _find(body: list[ast.stmt], names: list[str]) -> ast.stmt | None:
    for node in body:
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and node.name == names[0]
        ):
            return node if len(names) == 1 else _find(node.body, names[1:])
        if (
            isinstance(node, ast.Assign)
            and len(names) == 1
            and any(getattr(t, "id", "") == names[0] for t in node.targets)
        ):
            return node
    return None


def find_source(root: Path, dotted: str, docstring: bool = False, given: str = "") -> Source:
    """The source of ``package.module.name`` or ``package.module.Class.method`` under ``root``.

    Leaves out the definition's docstring unless ``docstring`` is set: the page around it says the same in more words. Options
    ``given`` as ``name=value`` are left out with all that they make dead. Raises :class:`SourceNotFound`.
    """
    parts = dotted.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        path = root.joinpath(*parts[:cut]).with_suffix(".py")
        if path.is_file():
            break
        path = root.joinpath(*parts[:cut], "__init__.py")
        if path.is_file():
            break
    else:
        raise SourceNotFound(f"no module of {dotted} lies under the repository")
    text = path.read_text(encoding="utf-8")
    node = _find(ast.parse(text).body, parts[cut:])
    if node is None:
        raise SourceNotFound(
            f"{path.relative_to(root)} does not define {'.'.join(parts[cut:])}"
        )
    lines = text.splitlines()
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    kept = list(range(first, node.end_lineno + 1))
    doc = getattr(node, "body", [None])[0]
    if (
        not docstring
        and isinstance(doc, ast.Expr)
        and isinstance(getattr(doc.value, "value", None), str)
        and len(node.body) > 1
    ):
        gap = (
            doc.end_lineno + 1 <= len(lines) and not lines[doc.end_lineno].strip()
        )  # also leave out the empty line below it
        kept = [n for n in kept if not doc.lineno <= n <= doc.end_lineno + gap]
    indent = len(lines[node.lineno - 1]) - len(lines[node.lineno - 1].lstrip())
    shown = "".join(lines[n - 1][indent:] + "\n" for n in kept)
    try:
        shown = folding.fold(shown, folding.options(given)) if given else shown
    except ValueError as error:
        raise SourceNotFound(
            f"{path.relative_to(root)}, {'.'.join(parts[cut:])}: {error}"
        ) from None
    return Source(shown, path, first)


def find_test(root: Path, test: str) -> Source:
    """The test of a pytest id, ``tests/…/test_x.py::TestX::test_y[parameters]``, or a check of a suite that such a test runs,
    ``tests/…/suite.py::does_so``, which is decorated with ``@check``. Raises :class:`SourceNotFound`."""
    name, _, inside = test.partition("::")
    path = root / name
    if not path.is_file():
        raise SourceNotFound(f"there is no test file {name}")
    names = re.sub(r"\[.*\]$", "", inside).split("::")
    text = path.read_text(encoding="utf-8")
    node = _find(ast.parse(text).body, names) if inside else None
    checks = any(
        getattr(decorator, "id", "") == "check"
        for decorator in getattr(node, "decorator_list", [])
    )
    if node is None or not (checks or names[-1].startswith("test")):
        raise SourceNotFound(f"{name} has no test {inside or '(none named)'}")
    return Source(ast.get_source_segment(text, node) or "", path, node.lineno)
