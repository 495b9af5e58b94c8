"""An estimator added from outside the library, in this one file: v := v_anchor + rtop(difference) / 2.

It has no fused kernel, so it must run in plain torch on every backend.
"""

from __future__ import annotations

import torch
from cases import mlp

import spidersilk as silk
from spidersilk.kernels.interface import Update
from spidersilk.variance.estimators import Estimator, register


def halved(update: Update) -> None:
    assert update.v_anchor is not None
    update.v.copy_(update.v_anchor)
    if update.indices is None:
        update.v.add_(update.values, alpha=0.5)
    else:
        update.v.index_add_(0, update.indices, update.weighed(), alpha=0.5)


register(Estimator("half way to the anchor", "anchor", halved))


def check(backend: str, k1: int = 3, k2: int = 4, lr: float = 0.05) -> None:
    """Twelve steps against the formula written out on flat vectors, with the selections that were drawn."""
    problem = mlp()
    x = problem.flat_x()
    optimizer = silk.VarianceReduced(
        torch.optim.SGD(problem.model.parameters(), lr),
        "half way to the anchor",
        sparsity=silk.RTop(k1, k2),
        backend=backend,
        generator=torch.Generator().manual_seed(1),
    )
    g = torch.Generator().manual_seed(5)
    x_anchor = v_anchor = memory = x
    for t in range(12):
        batch = torch.randperm(60, generator=g)[: 20 if t % 4 == 0 else 5]
        optimizer.step(problem.closure(optimizer, batch), anchor=t % 4 == 0, samples=len(batch))
        if t % 4 == 0:
            v = v_anchor = problem.flat_gradient(x, batch)
            x_anchor, memory = x, v.abs() if t == 0 else memory
        else:
            selection = optimizer.selection
            assert isinstance(selection, silk.Selection)
            y = problem.flat_gradient(x, batch) - problem.flat_gradient(x_anchor, batch)
            v = v_anchor + selection.apply(y) / 2
            memory = 0.5 * v.abs() + 0.5 * memory
        x = x - lr * v
        torch.testing.assert_close(problem.flat_x(), x, rtol=0, atol=1e-12)
    assert float((x - mlp().flat_x()).norm()) > 0.01
