"""Faria (2019), "Learning to compute inner consensus"."""

from __future__ import annotations

from capslib.papers.learned_routing.checks import CHECKS
from capslib.papers.learned_routing.costs import COSTS
from capslib.papers.learned_routing.limits import NEGATION, TOYS
from capslib.papers.learned_routing.table3 import ERRORS, PILOT, VARIANTS

__all__ = ["CHECKS", "EXPERIMENTS", "STEM"]

STEM = "learned_routing"
EXPERIMENTS = {e.name: e for e in (ERRORS, VARIANTS, PILOT, TOYS, NEGATION, COSTS)}
