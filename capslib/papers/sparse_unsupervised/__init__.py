"""Rawlinson, Ahmed and Kowadlo (2018), "Sparse unsupervised capsules generalize better"."""

from __future__ import annotations

from capslib.papers.sparse_unsupervised.attacks import ATTACKS
from capslib.papers.sparse_unsupervised.checks import CHECKS
from capslib.papers.sparse_unsupervised.controls import CONTROLS
from capslib.papers.sparse_unsupervised.encodings import BEYOND, ENCODINGS, OPTIONS
from capslib.papers.sparse_unsupervised.sizes import SIZES

__all__ = ["CHECKS", "EXPERIMENTS", "STEM"]

STEM = "sparse_unsupervised"
EXPERIMENTS = {e.name: e for e in (ENCODINGS, OPTIONS, BEYOND, CONTROLS, ATTACKS, SIZES)}
