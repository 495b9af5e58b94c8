"""What an estimator is, and which ones there are."""

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
