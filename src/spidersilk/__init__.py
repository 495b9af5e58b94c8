"""Variance-reduced optimisation with sparse gradients, for PyTorch."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spidersilk.loop.lengths import Adaptive, Geometric
    from spidersilk.loop.loader import AnchorLoader
    from spidersilk.loop.markers import Anchor
    from spidersilk.loop.step_size import InnerLine
    from spidersilk.operator.rtop import rtop, rtop_variance, select
    from spidersilk.operator.selection import Selection
    from spidersilk.operator.settings import RTop
    from spidersilk.operator.sparsity import captured_energy, entropy
    from spidersilk.sparse.optimizers import SparseAdamW, SparseSGD
    from spidersilk.sparse.sparse import Sparse
    from spidersilk.theory.inspection import Inspection, inspect
    from spidersilk.theory.planner import Plan, plan
    from spidersilk.variance.divergence import DivergenceError
    from spidersilk.variance.lazy import LazySVRG
    from spidersilk.variance.measures import Measures
    from spidersilk.variance.optimizers import SVRG, SparseSpiderBoost, SparseSVRG, SpiderBoost
    from spidersilk.variance.output import UniformOutput
    from spidersilk.variance.residuals import Residuals
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
    "Residuals",
    "Selection",
    "Sparse",
    "SparseAdamW",
    "SparseSGD",
    "SparseSVRG",
    "SparseSpiderBoost",
    "SpiderBoost",
    "UniformOutput",
    "VarianceReduced",
    "captured_energy",
    "entropy",
    "inspect",
    "plan",
    "rtop",
    "rtop_variance",
    "select",
]
# The modules that have them are loaded with the first name that is used, so that `spidersilk --help` need not wait for
# torch.
_HOMES = (
    "loop.lengths", "loop.loader", "loop.markers", "loop.step_size", "operator.rtop", "operator.selection",
    "operator.settings", "operator.sparsity", "sparse.optimizers", "sparse.sparse", "theory.inspection",
    "theory.planner", "variance.divergence", "variance.lazy", "variance.measures", "variance.optimizers",
    "variance.output", "variance.residuals", "variance.variance_reduced",
)  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    homes = [vars(import_module(f"{__name__}.{home}")) for home in _HOMES]
    globals().update({public: next(h[public] for h in homes if public in h) for public in __all__})
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
