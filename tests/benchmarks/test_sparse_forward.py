"""The experiment on the sparse forward pass: rtop row by row, and the bias of a layer that uses it."""

from __future__ import annotations

import pytest
import torch
from sparse_forward import relative_bias, rtop_rows, sparse_linear


@pytest.mark.statistical
def test_sparse_forward_is_unbiased_for_a_linear_layer_with_independent_draws_alone() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(3, 20, dtype=torch.float64), torch.randn(4, 20, dtype=torch.float64)
    exact = x @ weight.t()
    draws = {one: lambda one=one: sparse_linear(x, weight, None, 2, 3, one_draw=one) for one in (False, True)}
    bias, noise = relative_bias(exact, draws[False], 4000)
    assert bias < 4 * noise
    bias, noise = relative_bias(exact, draws[True], 4000)
    assert bias > 10 * noise  # a random coordinate counts (d - k1) / k2 = 6 times
    curved = exact.square()
    bias, noise = relative_bias(curved, lambda: draws[False]().square(), 4000)
    assert bias > 5 * noise  # not so behind a non-linearity


def test_rtop_of_each_row_keeps_the_largest_and_scales_the_drawn() -> None:
    x = torch.tensor([[5.0, 1.0, 2.0, -6.0, 3.0], [1.0, 2.0, 3.0, 4.0, 5.0]])
    out = rtop_rows(x, 2, 1, torch.Generator().manual_seed(0))
    assert out[0, [0, 3]].tolist() == [5.0, -6.0]
    assert out[1, [3, 4]].tolist() == [4.0, 5.0]
    ratio = (out / x)[:, [1, 2]]
    assert sorted((out / x)[0, [1, 2, 4]].tolist()) == [0.0, 0.0, 3.0]
    assert set(ratio.reshape(-1).tolist()) <= {0.0, 3.0}
