"""Lengths of inner loops, and the step-size line inside them."""

from __future__ import annotations

import math

import pytest
import torch
from cases import mlp

import spidersilk as silk
from spidersilk import reference
from spidersilk.loop.lengths import Fixed


def test_anchor_is_true() -> None:
    assert silk.Anchor()
    assert silk.Anchor(weight=0.0, last=False, idle=True)


@pytest.mark.statistical
@pytest.mark.parametrize("mean", [0.5, 3.0, 10.0])
def test_geometric_lengths(mean: float) -> None:
    """Mean m, variance m (m + 1), P(0) = 1 / (m + 1): each within 4 standard errors; as the reference's own draw."""
    n = 5000
    law = silk.Geometric(mean)
    ours = torch.tensor([law.length(17, loop) for loop in range(n)], dtype=torch.float64)
    g = torch.Generator().manual_seed(1)
    plain = torch.tensor([reference.geometric(mean, g) for _ in range(n)], dtype=torch.float64)
    zero = 1 / (mean + 1)
    for draws in (ours, plain):
        assert abs(float(draws.mean()) - mean) < 4 * math.sqrt(mean * (mean + 1) / n)
        assert abs(float((draws == 0).double().mean()) - zero) < 4 * math.sqrt(zero * (1 - zero) / n)
        squares = (draws - mean) ** 2
        assert abs(float(squares.mean()) - mean * (mean + 1)) < 4 * float(squares.std()) / math.sqrt(n)


def test_lengths_repeat_for_a_seed() -> None:
    law = silk.Geometric(5)
    assert [law.length(1, j) for j in range(50)] == [law.length(1, j) for j in range(50)]
    assert [law.length(1, j) for j in range(50)] != [law.length(2, j) for j in range(50)]
    assert Fixed(7).length(0, 0) == 7


def rates(optimizer: silk.VarianceReduced, scheduler: silk.InnerLine, anchors: list) -> list[float]:
    seen = []
    for anchor in anchors:

        def closure() -> torch.Tensor:
            if optimizer.evaluating == "current":
                seen.append(optimizer.param_groups[0]["lr"])
            for p in optimizer.param_groups[0]["params"]:
                p.grad = torch.zeros_like(p)
            return torch.tensor(0.0)

        optimizer.step(closure, anchor=anchor)
        scheduler.step()
    return seen


def test_the_line_restarts_at_each_anchor() -> None:
    optimizer = silk.SparseSVRG(mlp().model.parameters(), lr=5.0)
    scheduler = silk.InnerLine(optimizer, inner_steps=4, start=1.0, end=0.2)
    got = rates(optimizer, scheduler, [True, False, False, True, False, False, False, False, False, False, True])
    assert got == pytest.approx([1.0, 0.8, 0.6, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2, 1.0])


def test_the_line_when_the_optimizer_counts_and_when_an_anchor_comes_in_pieces() -> None:
    optimizer = silk.SpiderBoost(mlp().model.parameters(), lr=5.0, inner_steps=3)
    scheduler = silk.InnerLine(optimizer, inner_steps=3, start=0.9, end=0.0)
    assert rates(optimizer, scheduler, [None] * 5) == pytest.approx([0.9, 0.6, 0.3, 0.9, 0.6])
    pieces = [silk.Anchor(0.5, last=False), silk.Anchor(0.5, first=False)]
    optimizer = silk.SpiderBoost(mlp().model.parameters(), lr=5.0)
    scheduler = silk.InnerLine(optimizer, inner_steps=3, start=0.9, end=0.0)
    assert rates(optimizer, scheduler, [*pieces, False, *pieces, False]) == pytest.approx([0.9, 0.9, 0.6] * 2)


def test_the_line_resumes() -> None:
    def make() -> tuple[silk.VarianceReduced, silk.InnerLine]:
        optimizer = silk.SpiderBoost(mlp().model.parameters(), lr=5.0)
        return optimizer, silk.InnerLine(optimizer, inner_steps=4, start=1.0, end=0.2)

    optimizer, scheduler = make()
    rates(optimizer, scheduler, [True, False])
    again, line = make()
    again.load_state_dict(optimizer.state_dict())
    line.load_state_dict(scheduler.state_dict())
    assert rates(again, line, [False, False, True]) == pytest.approx([0.6, 0.4, 1.0])


def test_the_line_with_a_tensor_as_step_size() -> None:
    lr = torch.tensor(5.0)
    optimizer = silk.VarianceReduced(torch.optim.SGD(mlp().model.parameters(), lr=lr))
    scheduler = silk.InnerLine(optimizer, inner_steps=4, start=1.0, end=0.2)
    rates(optimizer, scheduler, [True, False, True])
    assert optimizer.param_groups[0]["lr"] is lr
    assert float(lr) == pytest.approx(0.8)
