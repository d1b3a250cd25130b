"""The examples in docstrings give what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import capslib

MODULES = [
    module.name
    for module in pkgutil.walk_packages(capslib.__path__, "capslib.")
    if module.name != "capslib.__main__"
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
