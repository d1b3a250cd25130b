"""Docstrings are shown as they are meant, and their examples give what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import capsbook
import pytest
from capsbook import docstrings

MODULES = [module.name for module in pkgutil.walk_packages(capsbook.__path__, "capsbook.")]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_the_extension_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_what_is_no_markup_is_escaped():
    lines = ["``*x``, |x|, *this*", "", ">>> f(*x)", "[*x]", "", "(*x)"]
    docstrings.escape(None, "function", "f", None, None, lines)
    expected = ["``*x``, \\|x\\|, *this*", "", ">>> f(*x)", "[*x]", "", "(\\*x)"]
    assert lines == expected
