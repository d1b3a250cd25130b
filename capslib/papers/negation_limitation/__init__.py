"""Peer, Stabinger and Rodríguez-Sánchez (2021), "Limitation of capsule networks"."""

from __future__ import annotations

from capslib.papers.negation_limitation.checks import CHECKS
from capslib.papers.negation_limitation.depth import DEPTH, NEGATED
from capslib.papers.negation_limitation.sign import SIGN
from capslib.papers.negation_limitation.symmetry import SYMMETRY

__all__ = ["CHECKS", "EXPERIMENTS", "STEM"]

STEM = "negation_limitation"
EXPERIMENTS = {e.name: e for e in (SYMMETRY, SIGN, DEPTH, NEGATED)}
