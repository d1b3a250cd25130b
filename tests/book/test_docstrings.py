"""Docstrings are shown as they are meant."""

from __future__ import annotations

import doctest

from capsbook import docstrings


def test_what_is_no_markup_is_escaped():
    assert doctest.testmod(docstrings).failed == 0
    lines = ["``*x``, |x|, *this*", "", ">>> f(*x)", "[*x]", "", "(*x)"]
    docstrings.escape(None, "function", "f", None, None, lines)
    expected = ["``*x``, \\|x\\|, *this*", "", ">>> f(*x)", "[*x]", "", "(\\*x)"]
    assert lines == expected
