"""The examples in docstrings give what they say, and what users of the library call has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil

import pytest

import capslib

MODULES = [
    module.name
    for module in pkgutil.walk_packages(capslib.__path__, "capslib.")
    if module.name != "capslib.__main__"
]
FACE = {
    "capslib.routing": [
        "dynamic_routing",
        "em_routing",
        "make_routing",
        "routing_options",
        "squash",
        "start_on_first_batch",
        "use_path",
    ],
    "capslib.layers": [
        "PrimaryCapsules",
        "DenseCapsules",
        "ConvCapsules",
        "ClassCapsules",
        "as_capsules",
        "field_centres",
    ],
    "capslib.losses": ["margin_loss", "spread_loss"],
    "capslib.attacks": [
        "fgsm",
        "bim",
        "input_gradient",
        "pgd",
        "robustness",
        "targeted_success",
        "zero_share",
    ],
    "capslib.inequality": ["gini", "palma", "theil", "atkinson", "hoover", "scores"],
    "capslib.networks": ["create_network"],
    "capslib.networks.capsnet": ["CapsNet"],
    "capslib.networks.inequality_anomaly": ["AnomalyCapsNet"],
    "capslib.networks.em_routing": ["MatrixCapsNet", "BaselineCNN"],
    "capslib.networks.negation_limitation": ["CapsuleStack", "DeepCapsNet", "SignNetwork"],
    "capslib.data": ["load"],
    "capslib.training": ["ProgressBar", "accuracy", "fit", "permutation", "subset"],
    "capslib.config": ["matches"],
    "capslib.recipes": ["train", "flops"],
    "capslib.registry": ["Registry"],
}
"""What whoever takes capsules away to build on them calls first."""


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", FACE)
def test_the_face_of_the_library_has_examples(name):
    module = importlib.import_module(name)
    for member in FACE[name]:
        assert ">>>" in (inspect.getdoc(getattr(module, member)) or ""), member
