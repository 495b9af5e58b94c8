"""Estimators: how v follows from a small step's difference of gradients. One file each.

A new one is one file: a formula in plain torch and a call of `register`. `reference=` then knows its name, and it runs
on every backend; one that names a fused form runs as that kernel where the backend has it.
"""

from spidersilk.variance.estimators import recursive  # isort: split

from spidersilk.variance.estimators import anchored, refresh
from spidersilk.variance.estimators.registry import Estimator, find, register

__all__ = ["Estimator", "anchored", "find", "recursive", "refresh", "register"]
