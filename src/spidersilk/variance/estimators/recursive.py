"""SPIDER: v := v + rtop(g(x_t) - g(x_{t-1})), the difference taken to the previous iterate (Algorithm 1, line 11)."""

from __future__ import annotations

from spidersilk.kernels.interface import Update
from spidersilk.variance.estimators.registry import Estimator, register


def recursive(update: Update) -> None:
    if update.indices is None:
        update.v.add_(update.values)
    else:
        update.v.index_add_(0, update.indices, update.weighed())


RECURSIVE = register(Estimator("previous", "previous", recursive, fused="recursive"))
