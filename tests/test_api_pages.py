"""The API reference has a page for each module that a user calls, and examples on it."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "book" / "api").glob("*.md"))
MODULES = [
    name
    for page in PAGES
    for name in re.findall(r"automodule:: (\S+)", page.read_text(encoding="utf-8"))
]
WITHOUT_EXAMPLE = {"fetch", "blame", "notify"}
"""They download, name a layer in the message of an error, and write to the log."""


def functions(module: str) -> list[str]:
    members = vars(importlib.import_module(module))
    return [name for name in members["__all__"] if inspect.isroutine(members[name])]


@pytest.mark.parametrize("module", MODULES)
def test_every_public_function_has_an_example(module):
    members = vars(importlib.import_module(module))
    for name in set(functions(module)) - WITHOUT_EXAMPLE:
        assert ">>>" in (inspect.getdoc(members[name]) or ""), name


def test_what_a_user_calls_is_on_a_page():
    for name in ("networks", "layers", "routing", "losses", "attacks", "inequality"):
        assert f"capslib.{name}" in MODULES
    for name in ("training", "recipes", "registry", "errors", "data"):
        assert f"capslib.{name}" in MODULES


def test_every_page_is_in_the_contents():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    for page in PAGES:
        assert f"book/api/{page.stem}" in str(toc)
