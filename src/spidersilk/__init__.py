"""Variance-reduced optimisation with sparse gradients, for PyTorch."""

from spidersilk.diagnostics import entropy
from spidersilk.errors import DivergenceError
from spidersilk.loader import AnchorLoader
from spidersilk.optimizers import SVRG, SparseSGD, SparseSpiderBoost, SparseSVRG, SpiderBoost, VarianceReduced
from spidersilk.schedule import Anchor, Geometric, InnerLine
from spidersilk.selection import RTop, Selection, rtop, rtop_variance, select

__version__ = "0.1.0"

__all__ = [
    "SVRG",
    "Anchor",
    "AnchorLoader",
    "DivergenceError",
    "Geometric",
    "InnerLine",
    "RTop",
    "Selection",
    "SparseSGD",
    "SparseSVRG",
    "SparseSpiderBoost",
    "SpiderBoost",
    "VarianceReduced",
    "entropy",
    "rtop",
    "rtop_variance",
    "select",
]
