"""Updates of v and M, written out by hand."""

from __future__ import annotations

import torch

from spidersilk.kernels import plain as ops
from spidersilk.operator.selection import Selection
from spidersilk.variance import estimators, memory

S = Selection(torch.tensor([1]), torch.tensor([3]), 4.0, 5)  # k1 = k2 = 1 of 5


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_recursive() -> None:
    v = vector(1, 2, 3, 4, 5)
    estimators.recursive(v, vector(10, 100), S, "unbiased", ops)
    assert v.tolist() == [1, 12, 3, 404, 5]
    estimators.recursive(v, vector(10, 100), S, "none", ops)
    assert v.tolist() == [1, 22, 3, 504, 5]
    estimators.recursive(v, vector(1, 1, 1, 1, 1), None, "unbiased", ops)
    assert v.tolist() == [2, 23, 4, 505, 6]


def test_anchored_forgets_the_last_step_and_refresh_does_not() -> None:
    anchor, v = vector(1, 1, 1, 1, 1), vector(7, 7, 7, 7, 7)
    estimators.anchored(v, anchor, vector(10, 100), S, "unbiased", ops)
    assert v.tolist() == [1, 11, 1, 401, 1]
    estimators.anchored(v, anchor, vector(2, 3), Selection(torch.tensor([0]), torch.tensor([1]), 4.0, 5), "none", ops)
    assert v.tolist() == [3, 4, 1, 1, 1]
    v = vector(7, 7, 7, 7, 7)
    estimators.anchored(v, anchor, vector(10, 100), S, "refresh", ops)
    assert v.tolist() == [7, 11, 7, 101, 7]
    estimators.anchored(v, anchor, vector(0, 0, 0, 0, 5), None, "unbiased", ops)
    assert v.tolist() == [1, 1, 1, 1, 6]


def test_fresh() -> None:
    v = vector(7, 7, 7, 7, 7)
    estimators.fresh(v, vector(10, 100), S, "unbiased", ops)
    assert v.tolist() == [0, 10, 0, 400, 0]
    estimators.fresh(v, vector(10, 100), S, "none", ops)
    assert v.tolist() == [0, 10, 0, 100, 0]


def test_selected() -> None:
    assert estimators.selected(None, vector(10, 100), S).tolist() == [10, 100]
    assert estimators.selected(vector(0, 1, 2, 3, 4), vector(10, 100), S).tolist() == [11, 103]


def test_memory_start_and_decay() -> None:
    m = vector(0, 0, 0, 0, 0)
    memory.start(m, vector(-1, 2, -3, 4, 0))
    assert m.tolist() == [1, 2, 3, 4, 0]
    memory.update(m, vector(-3, 0, 3, -4, 1), 0.25, ops)
    assert m.tolist() == [1.5, 1.5, 3, 4, 0.25]
    memory.update_selected(m, S, vector(-5.5, 0), 0.5, ops)
    assert m.tolist() == [1.5, 3.5, 3, 2, 0.25]
