"""SVRG: v := v_anchor + rtop(g(x_t) - g(x_anchor)), the difference taken to the anchor point.

The noise of rtop is fresh at each step and never compounds.
"""

from __future__ import annotations

from torch import Tensor

from spidersilk.kernels.interface import Update
from spidersilk.operator.selection import Selection
from spidersilk.variance.estimators.registry import Estimator, register


def anchored(update: Update) -> None:
    assert update.v_anchor is not None
    update.v.copy_(update.v_anchor)
    if update.indices is None:
        update.v.add_(update.values)
    else:
        update.v.index_add_(0, update.indices, update.weighed())


def on_selection(v_anchor: Tensor, values: Tensor, selection: Selection) -> Tensor:
    """v_anchor + difference on the selected coordinates, unscaled."""
    return selection.gather(v_anchor).add_(values)


ANCHORED = register(Estimator("anchor", "anchor", anchored, fused="anchored", on_selection=on_selection))
