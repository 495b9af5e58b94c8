"""What one file outside the library can add: an estimator, and a named optimizer."""

from __future__ import annotations

import added_estimator
import pytest
import torch
from cases import mlp
from torch.optim.optimizer import ParamsT

import spidersilk as silk


@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_an_estimator(backend: str) -> None:
    added_estimator.check(backend)


def test_an_estimator_that_cannot_move_the_selected_alone_says_so() -> None:
    with pytest.raises(ValueError, match="half way to the anchor"):
        silk.VarianceReduced(
            torch.optim.SGD(mlp().model.parameters(), 0.1),
            "half way to the anchor",
            move="selected",
            sparsity=silk.RTop(1, 1),
        )


class SparseRMSprop(silk.VarianceReduced):
    """An optimizer of a user's own: anchored differences, any base."""

    def __init__(self, params: ParamsT, lr: float, k: float = 0.1):
        super().__init__(torch.optim.RMSprop(params, lr), "anchor", sparsity=silk.RTop(k / 2, k / 2))


def test_an_optimizer() -> None:
    problem = mlp()
    optimizer = SparseRMSprop(problem.model.parameters(), 0.01)
    everything = torch.arange(60)
    before = float(problem.loss(problem.model, everything).detach())
    for t in range(40):
        batch = torch.arange(60) if t % 8 == 0 else torch.arange(t, t + 10)
        optimizer.step(problem.closure(optimizer, batch), anchor=t % 8 == 0, samples=len(batch))
    assert float(problem.loss(problem.model, everything).detach()) < 0.9 * before
    assert optimizer.gradient_queries == pytest.approx(5 * 60 + 35 * 2 * 10 * 8 / 66)
