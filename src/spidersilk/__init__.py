"""Variance-reduced optimisation with sparse gradients, for PyTorch."""

from spidersilk.loop.lengths import Adaptive, Geometric
from spidersilk.loop.loader import AnchorLoader
from spidersilk.loop.markers import Anchor
from spidersilk.loop.step_size import InnerLine
from spidersilk.operator.rtop import rtop, rtop_variance, select
from spidersilk.operator.selection import Selection
from spidersilk.operator.settings import RTop
from spidersilk.operator.sparsity import captured_energy, entropy
from spidersilk.sparse.optimizers import SparseAdamW, SparseSGD
from spidersilk.theory.inspection import Inspection, inspect
from spidersilk.theory.planner import Plan, plan
from spidersilk.variance.divergence import DivergenceError
from spidersilk.variance.lazy import LazySVRG
from spidersilk.variance.measures import Measures
from spidersilk.variance.optimizers import SVRG, SparseSpiderBoost, SparseSVRG, SpiderBoost
from spidersilk.variance.variance_reduced import VarianceReduced

__version__ = "0.2.0.dev0"

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
