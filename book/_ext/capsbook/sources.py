"""Live source: the current text of a function or class, and the test that holds it to its
equation.

Files are parsed and not imported, so building a page does not load torch.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from capsbook import fixed_options

API = "book/api"
"""The folder of the pages of the API reference."""


class SourceNotFound(LookupError):
    """There is no such module, function or test. The message says where the search ended."""


class Source(NamedTuple):
    """A piece of a file: its text without common indentation, the file, and its first line."""

    text: str
    path: Path
    line: int


class Place(NamedTuple):
    """A line of a file."""

    path: Path
    line: int


def find_source(root: Path, dotted: str, docstring: bool = False, options: str = "") -> Source:
    """Return the source of ``package.module.name`` or ``package.module.Class.method``.

    Without ``docstring`` the definition's docstring is left out: the page around it says the
    same in more words. ``options`` written as ``name=value`` are left out with all that they
    make dead. Raises :class:`SourceNotFound`.
    """
    path, names = _module(root, dotted.split("."))
    file = f"{path.relative_to(root)}"
    text = path.read_text(encoding="utf-8")
    node = _find(ast.parse(text).body, names)
    if node is None:
        raise SourceNotFound(f"{file} does not define {'.'.join(names)}")
    lines = text.splitlines(keepends=True)
    decorators = getattr(node, "decorator_list", [])
    first = min(part.lineno for part in (node, *decorators))
    block = lines[first - 1 : node.end_lineno]
    if not docstring:
        start, end = _docstring(node, lines)
        del block[start - first : end - first]
    listing = "".join(line[node.col_offset :] or "\n" for line in block)
    try:
        listing = fixed_options.fix(listing, fixed_options.parse(options))
    except ValueError as error:
        raise SourceNotFound(f"{file}, {'.'.join(names)}: {error}") from None
    return Source(listing, path, first)


def find_test(root: Path, test: str) -> Place:
    """Locate the test of a pytest id, ``tests/…/test_x.py::TestX::test_y[parameters]``.

    A check of a suite that such a test runs, decorated with ``@check``, is one too. Raises
    :class:`SourceNotFound`.
    """
    name, _, inside = test.partition("::")
    path = root / name
    if not path.is_file():
        raise SourceNotFound(f"there is no test file {name}")
    names = re.sub(r"\[.*\]$", "", inside).split("::")
    node = _find(ast.parse(path.read_text(encoding="utf-8")).body, names)
    decorators = [getattr(part, "id", "") for part in getattr(node, "decorator_list", [])]
    if node is None or not ("check" in decorators or names[-1].startswith("test")):
        raise SourceNotFound(f"{name} has no test {inside or '(none named)'}")
    return Place(path, node.lineno)


def in_api(root: Path, dotted: str) -> str | None:
    """Return the name that a definition has in the API reference; None where it has none.

    The reference has what the modules on its pages list in ``__all__``.
    """
    documented: set[str] = set()
    for page in (root / API).glob("*.md"):
        text = page.read_text(encoding="utf-8")
        documented.update(re.findall(r"automodule:: (\S+)", text))
    module, _, name = dotted.rpartition(".")
    while module:
        if module in documented and name in _public_names(root, module):
            return f"{module}.{name}"
        module = module.rpartition(".")[0]
    return None


def _public_names(root: Path, module: str) -> set[str]:
    """Return the names in ``__all__`` of a module."""
    path, _ = _module(root, [*module.split("."), "__all__"])
    names = _find(ast.parse(path.read_text(encoding="utf-8")).body, ["__all__"])
    return set() if names is None else set(ast.literal_eval(names.value))


def _module(root: Path, parts: Sequence[str]) -> tuple[Path, list[str]]:
    """Return the file of a dotted name, and the names inside it."""
    for cut in range(len(parts) - 1, 0, -1):
        folder = root.joinpath(*parts[:cut])
        for path in (folder.with_suffix(".py"), folder / "__init__.py"):
            if path.is_file():
                return path, list(parts[cut:])
    raise SourceNotFound(f"no module of {'.'.join(parts)} lies under the repository")


def _find(body: Sequence[ast.stmt], names: Sequence[str]) -> ast.stmt | None:
    """Return the definition of a name, or of a name inside a class, in a list of statements."""
    for node in body:
        if isinstance(node, ast.Assign) and len(names) == 1:
            targets = [getattr(target, "id", "") for target in node.targets]
        else:
            targets = [getattr(node, "name", "")]
        if names[0] in targets:
            return node if len(names) == 1 else _find(getattr(node, "body", []), names[1:])
    return None


def _docstring(node: ast.stmt, lines: Sequence[str]) -> tuple[int, int]:
    """Return the first line of a definition's docstring, and that of the code below it."""
    body = getattr(node, "body", [])
    if len(body) < 2 or ast.get_docstring(node) is None:
        return node.lineno, node.lineno
    end = body[0].end_lineno
    while not lines[end].strip():
        end += 1
    return body[0].lineno, end + 1
