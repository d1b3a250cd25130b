"""Which routing should I use? A study of our own: the routings of the library, compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from capslib.papers.which_routing.comparison import COMPARISON
from capslib.papers.which_routing.viewpoints import VIEWPOINTS

if TYPE_CHECKING:
    from capslib.papers.check import AnyCheck

__all__ = ["CHECKS", "EXPERIMENTS", "STEM"]

STEM = "which_routing"
EXPERIMENTS = {experiment.name: experiment for experiment in (COMPARISON, VIEWPOINTS)}
CHECKS: Mapping[str, AnyCheck] = {}
"""There are none: a study has questions, and no claims of a paper."""
