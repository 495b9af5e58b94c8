"""Fresh gradients of which only the selected coordinates move."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import spidersilk as silk
from spidersilk import reference


@pytest.mark.parametrize("choose", ["anchor", "step"])
def test_sparse_adamw_is_adamw_on_the_selected_coordinates(choose: str) -> None:
    """Against AdamW's formula written out, with 12 coordinates, of which the top 4 of M move between anchors."""
    d, k, lr, decay, eps, (beta1, beta2) = 12, 4, 0.05, 0.1, 1e-3, (0.8, 0.95)
    curvature = torch.linspace(0.5, 2.0, d, dtype=torch.float64)
    noise = torch.randn(30, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = torch.nn.Parameter(torch.linspace(-1, 2, d, dtype=torch.float64))
    options: dict[str, Any] = {"betas": (beta1, beta2), "eps": eps, "weight_decay": decay, "choose": choose}
    optimizer = silk.SparseAdamW([x], lr, k1=k, **options)

    y, first, second = x.detach().clone(), torch.zeros(d).double(), torch.zeros(d).double()
    memory = torch.zeros(d).double()
    for t in range(30):

        def closure(t: int = t) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (0.5 * curvature * x.square() + noise[t] * x).sum()
            loss.backward()
            return loss

        anchor = t % 6 == 0
        optimizer.step(closure, anchor=anchor, samples=10)
        gradient = curvature * y + noise[t]
        if anchor:
            moves, memory = torch.ones(d).bool(), gradient.abs()
        elif choose == "step" or t % 6 == 1:
            moves = torch.zeros(d).bool()
            moves[reference.top(memory, k)] = True
        if not anchor and choose == "step":
            memory = torch.where(moves, 0.5 * gradient.abs() + 0.5 * memory, memory)
        first = torch.where(moves, beta1 * first + (1 - beta1) * gradient, first)
        second = torch.where(moves, beta2 * second + (1 - beta2) * gradient**2, second)
        step = lr * (first / (1 - beta1 ** (t + 1))) / ((second / (1 - beta2 ** (t + 1))).sqrt() + eps)
        y = torch.where(moves, y * (1 - lr * decay) - step, y)
        torch.testing.assert_close(x.detach(), y, rtol=1e-9, atol=1e-12)
    assert optimizer.gradient_queries == pytest.approx(5 * 10 + 25 * 10 * k / d)
