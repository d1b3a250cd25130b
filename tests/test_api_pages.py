"""The API reference has a page for each module that a user calls, and examples on it."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable
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
FIRST_CALLED = {
    "capslib.layers": ["PrimaryCapsules", "DenseCapsules", "ConvCapsules", "ClassCapsules"],
    "capslib.networks.capsnet": ["CapsNet"],
    "capslib.networks.inequality_anomaly": ["AnomalyCapsNet"],
    "capslib.networks.em_routing": ["MatrixCapsNet", "BaselineCNN"],
    "capslib.networks.negation_limitation": ["CapsuleStack", "DeepCapsNet", "SignNetwork"],
    "capslib.training": ["ProgressBar"],
    "capslib.config": ["matches"],
    "capslib.registry": ["Registry"],
}
"""What whoever takes capsules away to build on them calls first, beside those functions."""


def functions(module: str) -> list[str]:
    members = vars(importlib.import_module(module))
    return [name for name in members["__all__"] if inspect.isroutine(members[name])]


def assert_examples(module: str, names: Iterable[str]) -> None:
    members = vars(importlib.import_module(module))
    for name in names:
        assert ">>>" in (inspect.getdoc(members[name]) or ""), name


@pytest.mark.parametrize("module", MODULES)
def test_every_public_function_has_an_example(module):
    assert_examples(module, set(functions(module)) - WITHOUT_EXAMPLE)


@pytest.mark.parametrize("module", FIRST_CALLED)
def test_what_is_called_first_has_an_example(module):
    assert_examples(module, FIRST_CALLED[module])


def test_what_a_user_calls_is_on_a_page():
    for name in ("networks", "layers", "routing", "losses", "attacks", "inequality"):
        assert f"capslib.{name}" in MODULES
    for name in ("training", "recipes", "registry", "errors", "data"):
        assert f"capslib.{name}" in MODULES


def test_every_page_is_in_the_contents():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    for page in PAGES:
        assert f"book/api/{page.stem}" in str(toc)
