"""Docstrings as pages of the API reference: plain text that reStructuredText leaves alone."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

LITERAL = re.compile(r"(^\s*\* |``.*?``|:\w+:`.*?`|\*[^\s*][^*]*\*(?!\w))")
"""What is marked up on purpose: bullets, literals, roles, emphasis that ends on its line."""


def setup(app: Sphinx) -> dict[str, Any]:
    """Have autodoc show docstrings as they are meant."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", escape)
    app.connect("autodoc-skip-member", skip_bare_field)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def escape(
    app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Escape in place what would be markup by accident: ``|x|`` and ``[N, *shape]``."""
    in_example = False
    for number, line in enumerate(lines):
        in_example = line.lstrip().startswith(">>>") or (in_example and bool(line.strip()))
        if not in_example:
            lines[number] = escaped(line)


def skip_bare_field(
    app: Sphinx, what: str, name: str, thing: object, skip: bool, options: object
) -> bool | None:
    """Leave out a field of a named tuple whose docstring says its number only."""
    text = getattr(thing, "__doc__", None) or ""
    return True if text.startswith("Alias for field number") else None


def escaped(line: str) -> str:
    """Return a line whose bars and lonely asterisks are text, and whose quoted words are code.

    Else smart quotes would keep a reader from copying a word.

    >>> print(escaped("Images [N, *shape] of ``|x|``, |x| and *this*"))
    Images [N, \\*shape] of ``|x|``, \\|x\\| and *this*
    >>> print(escaped('* With "types+positions" all compete.'))
    * With ``"types+positions"`` all compete.
    """
    parts = LITERAL.split(line)
    for index in range(0, len(parts), 2):  # the others are literal
        text = re.sub(r"([|*])", r"\\\1", parts[index])
        parts[index] = re.sub(r'(?<![\w`])"([\w+.-]+)"(?![\w`])', r'``"\1"``', text)
    return "".join(parts)
