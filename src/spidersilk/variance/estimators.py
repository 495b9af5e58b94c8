"""Updates of the estimate v, in place, dense (selection None) or on a selection.

`difference` is g(x_t) - g(reference) on one batch: d values when dense, else the k values of the selection in the order
of its indices. With everything selected each sparse update equals the dense one bit for bit.
"""

from __future__ import annotations

from torch import Tensor

from spidersilk.kernels.backends import Ops
from spidersilk.operator.selection import Selection


def recursive(v: Tensor, difference: Tensor, selection: Selection | None, scaling: str, ops: Ops) -> None:
    """v := v + rtop(difference), the difference taken to the previous iterate (SPIDER; Algorithm 1, line 11)."""
    if selection is None:
        v.add_(difference)
    else:
        ops.add_at(v, selection.indices, _scaled(difference, selection, scaling))


def anchored(
    v: Tensor, v_anchor: Tensor, difference: Tensor, selection: Selection | None, scaling: str, ops: Ops
) -> None:
    """v := v_anchor + rtop(difference), the difference taken to the anchor point (SVRG).

    With "refresh", coordinates outside the selection keep the value of their last refreshment instead of v_anchor's.
    """
    if selection is None:
        v.copy_(v_anchor).add_(difference)
    elif scaling == "refresh":
        ops.put_at(v, selection.indices, selection.gather(v_anchor).add_(difference))
    else:
        v.copy_(v_anchor)
        ops.add_at(v, selection.indices, _scaled(difference, selection, scaling))


def fresh(v: Tensor, gradient: Tensor, selection: Selection | None, scaling: str, ops: Ops) -> None:
    """v := rtop(gradient): no reference, so nothing of an earlier v stays."""
    if selection is None:
        v.copy_(gradient)
    else:
        v.zero_()
        ops.put_at(v, selection.indices, _scaled(gradient, selection, scaling))


def selected(v_anchor: Tensor | None, values: Tensor, selection: Selection) -> Tensor:
    """The k values of v that a `move="selected"` step moves x by: the fresh gradient, or v_anchor + difference."""
    return values if v_anchor is None else selection.gather(v_anchor).add_(values)


def _scaled(values: Tensor, selection: Selection, scaling: str) -> Tensor:
    return selection.weigh(values) if scaling == "unbiased" else values
