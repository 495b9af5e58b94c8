"""Variance-reduced optimisation with sparse gradients, for PyTorch."""

from spidersilk.diagnostics import captured_energy, entropy
from spidersilk.errors import DivergenceError
from spidersilk.inspection import Inspection, inspect
from spidersilk.lazy import LazySVRG
from spidersilk.loader import AnchorLoader
from spidersilk.measures import Measures
from spidersilk.optimizers import (
    SVRG,
    SparseAdamW,
    SparseSGD,
    SparseSpiderBoost,
    SparseSVRG,
    SpiderBoost,
    VarianceReduced,
)
from spidersilk.planner import Plan, plan
from spidersilk.schedule import Adaptive, Anchor, Geometric, InnerLine
from spidersilk.selection import RTop, Selection, rtop, rtop_variance, select

__version__ = "0.1.0"

__all__ = [
    "SVRG",
    "Adaptive",
    "Anchor",
    "AnchorLoader",
    "DivergenceError",
    "Geometric",
    "InnerLine",
    "Inspection",
    "LazySVRG",
    "Measures",
    "Plan",
    "RTop",
    "Selection",
    "SparseAdamW",
    "SparseSGD",
    "SparseSVRG",
    "SparseSpiderBoost",
    "SpiderBoost",
    "VarianceReduced",
    "captured_energy",
    "entropy",
    "inspect",
    "plan",
    "rtop",
    "rtop_variance",
    "select",
]
