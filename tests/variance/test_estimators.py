"""Updates of v and M, written out by hand."""

from __future__ import annotations

from collections import defaultdict

import torch

from spidersilk.kernels.interface import Update
from spidersilk.kernels.plain import remember
from spidersilk.operator.selection import Selection
from spidersilk.variance.estimators import ANCHORED, RECURSIVE, REFRESH, Estimator
from spidersilk.variance.flat import Slab
from spidersilk.variance.vectors import Vectors

S = Selection(torch.tensor([1]), torch.tensor([3]), 4.0, 5)  # k1 = k2 = 1 of 5


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def apply(
    estimator: Estimator,
    v: torch.Tensor,
    values: torch.Tensor,
    selection: Selection | None,
    scaling: str,
    v_anchor: torch.Tensor | None = None,
) -> None:
    indices = None if selection is None else selection.indices
    scale = selection.scale if selection is not None and scaling == "unbiased" else 1.0
    k1 = 0 if selection is None else selection.k1
    estimator.formula(Update(v, values, estimator.formula, None, v_anchor, None, indices, k1, scale))


def test_recursive() -> None:
    v = vector(1, 2, 3, 4, 5)
    apply(RECURSIVE, v, vector(10, 100), S, "unbiased")
    assert v.tolist() == [1, 12, 3, 404, 5]
    apply(RECURSIVE, v, vector(10, 100), S, "none")
    assert v.tolist() == [1, 22, 3, 504, 5]
    apply(RECURSIVE, v, vector(1, 1, 1, 1, 1), None, "unbiased")
    assert v.tolist() == [2, 23, 4, 505, 6]


def test_anchored_forgets_the_last_step_and_refresh_does_not() -> None:
    anchor, v = vector(1, 1, 1, 1, 1), vector(7, 7, 7, 7, 7)
    apply(ANCHORED, v, vector(10, 100), S, "unbiased", anchor)
    assert v.tolist() == [1, 11, 1, 401, 1]
    apply(ANCHORED, v, vector(2, 3), Selection(torch.tensor([0]), torch.tensor([1]), 4.0, 5), "none", anchor)
    assert v.tolist() == [3, 4, 1, 1, 1]
    v = vector(7, 7, 7, 7, 7)
    apply(REFRESH, v, vector(10, 100), S, "refresh", anchor)
    assert v.tolist() == [7, 11, 7, 101, 7]
    apply(ANCHORED, v, vector(0, 0, 0, 0, 5), None, "unbiased", anchor)
    assert v.tolist() == [1, 1, 1, 1, 6]


def test_selected() -> None:
    assert ANCHORED.on_selection(vector(0, 1, 2, 3, 4), vector(10, 100), S).tolist() == [11, 103]


def test_memory_start_and_decay() -> None:
    vectors = Vectors([Slab([vector(0, 0, 0, 0, 0)], [0])], defaultdict(dict), anchor_estimate=False, memory=True)
    vectors.v[0].copy_(vector(-1, 2, -3, 4, 0))
    vectors.start_memory()
    (m,) = vectors.memory
    assert m.tolist() == [1, 2, 3, 4, 0]
    remember(m, vector(-3, 0, 3, -4, 1), 0.25)
    assert m.tolist() == [1.5, 1.5, 3, 4, 0.25]
