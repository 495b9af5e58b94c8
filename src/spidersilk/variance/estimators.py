"""Estimators: how v follows from a small step's difference of gradients, and which ones there are.

A new one is a formula in plain torch and a call of `register`. `reference=` then knows its name, and it runs on every
backend; one that names a fused form runs as that kernel where the backend has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from spidersilk.kernels.interface import Form, Update
from spidersilk.operator.selection import Selection
from spidersilk.operator.settings import Scaling


@dataclass(frozen=True)
class Estimator:
    """A way to update v.

    name: what `reference=` calls it. point: where a small step's gradient is compared: the "previous" iterate or the
    "anchor" point. formula: updates v in place. scalings: those of the random part that it is for. fused: the kernel
    that does the same as the formula; None if there is none.
    on_selection(v_anchor, values, selection): the k values of v by which only the selected coordinates move;
    None: it cannot be used with move="selected".
    """

    name: str
    point: Literal["previous", "anchor"]
    formula: Callable[[Update], None]
    scalings: tuple[Scaling, ...] = ("unbiased", "none")
    fused: Form | None = None
    on_selection: Callable[[Tensor, Tensor, Selection], Tensor] | None = None


_KNOWN: dict[tuple[str, Scaling], Estimator] = {}


def register(estimator: Estimator) -> Estimator:
    """Make an estimator known by its name, for each of its scalings."""
    for scaling in estimator.scalings:
        _KNOWN[estimator.name, scaling] = estimator
    return estimator


def find(reference: str, scaling: Scaling) -> Estimator:
    """The estimator of that name for that scaling; ValueError if there is none."""
    names = list(dict.fromkeys(name for name, _ in _KNOWN))
    known = ", ".join(map(repr, names))
    if reference is None:
        raise ValueError(
            f"reference = None is not one of {known}: a fresh gradient is sparse training: use silk.SparseSGD, "
            "silk.SparseAdamW or silk.Sparse"
        )
    if reference not in names:
        raise ValueError(f"reference = {reference!r} is not one of {known}")
    if (reference, scaling) not in _KNOWN:
        fit = [name for name, known in _KNOWN if known == scaling]
        raise ValueError(
            f"scaling = {scaling!r} with reference = {reference!r}: only reference={', '.join(map(repr, fit))} has it"
        )
    return _KNOWN[reference, scaling]


def recursive(update: Update) -> None:
    """SPIDER: v := v + rtop(g(x_t) - g(x_{t-1})), the difference to the previous iterate (Algorithm 1, line 11)."""
    if update.indices is None:
        update.v.add_(update.values)
    else:
        update.v.index_add_(0, update.indices, update.weighed())


def anchored(update: Update) -> None:
    """SVRG: v := v_anchor + rtop(g(x_t) - g(x_anchor)). The noise of rtop is fresh at each step and never compounds."""
    assert update.v_anchor is not None
    update.v.copy_(update.v_anchor)
    recursive(update)


def refresh(update: Update) -> None:
    """SVRG that keeps what it refreshed: v := v_anchor + difference on the selection, elsewhere v stays as it was."""
    assert update.v_anchor is not None
    assert update.indices is not None
    update.v.index_copy_(0, update.indices, update.v_anchor[update.indices].add_(update.values))


def on_selection(v_anchor: Tensor, values: Tensor, selection: Selection) -> Tensor:
    """v_anchor + difference on the selected coordinates, unscaled."""
    return selection.gather(v_anchor).add_(values)


RECURSIVE = register(Estimator("previous", "previous", recursive, fused="recursive"))
ANCHORED = register(Estimator("anchor", "anchor", anchored, fused="anchored", on_selection=on_selection))
REFRESH = register(Estimator("anchor", "anchor", refresh, scalings=("refresh",), fused="refresh"))
