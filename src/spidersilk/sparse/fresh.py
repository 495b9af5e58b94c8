"""A fresh gradient, compared with nothing: v := rtop(g(x_t)), so nothing of an earlier v stays."""

from __future__ import annotations

from torch import Tensor

from spidersilk.kernels.interface import Update
from spidersilk.operator.selection import Selection
from spidersilk.variance.estimators import Estimator, register


def fresh(update: Update) -> None:
    if update.indices is None:
        update.v.copy_(update.values)
    else:
        update.v.zero_().index_copy_(0, update.indices, update.weighed())


def on_selection(v_anchor: Tensor | None, values: Tensor, selection: Selection) -> Tensor:
    """The gradient itself."""
    return values


FRESH = register(Estimator(None, None, fresh, fused="fresh", on_selection=on_selection))
