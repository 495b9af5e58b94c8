"""SVRG that keeps what it refreshed: v := v_anchor + difference on the selection, and stays as it was elsewhere.

A coordinate outside the selection keeps the value of its last refreshment instead of v_anchor's.
"""

from __future__ import annotations

from spidersilk.kernels.interface import Update
from spidersilk.variance.estimators.registry import Estimator, register


def refresh(update: Update) -> None:
    assert update.v_anchor is not None
    if update.indices is None:
        update.v.copy_(update.v_anchor).add_(update.values)
    else:
        update.v.index_copy_(0, update.indices, update.v_anchor[update.indices].add_(update.values))


REFRESH = register(Estimator("anchor", "anchor", refresh, scalings=("refresh",), fused="refresh"))
