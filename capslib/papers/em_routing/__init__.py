"""Hinton, Sabour and Frosst (2018), "Matrix capsules with EM routing"."""

from __future__ import annotations

from capslib.papers.em_routing.adversarial import ATTACKS
from capslib.papers.em_routing.checks import CHECKS
from capslib.papers.em_routing.energy import FREE_ENERGY
from capslib.papers.em_routing.novel_views import VIEWPOINT
from capslib.papers.em_routing.sizes import SIZES
from capslib.papers.em_routing.table1 import TEST_ERROR

__all__ = ["CHECKS", "EXPERIMENTS", "STEM"]

STEM = "em_routing"
EXPERIMENTS = {e.name: e for e in (TEST_ERROR, VIEWPOINT, ATTACKS, FREE_ENERGY, SIZES)}
