"""Every optimizer against the plain reference, and the limits in which it must be another method."""

from __future__ import annotations

import pytest
import torch
from cases import DENSE, METHODS, PROBLEMS, SPARSE, Problem, mlp
from torch import Tensor

import spidersilk as silk
from spidersilk import reference

STEPS, INNER, B, SMALL = 200, 8, 20, 5


def batches(problem: Problem, seed: int = 3) -> tuple[list[Tensor], list[Tensor]]:
    g = torch.Generator().manual_seed(seed)
    draw = lambda size: torch.randperm(problem.samples, generator=g)[:size]  # noqa: E731
    loops = STEPS // INNER
    return [draw(B) for _ in range(loops)], [draw(SMALL) for _ in range(loops * (INNER - 1))]


def run(problem: Problem, optimizer: silk.VarianceReduced) -> tuple[list[Tensor], list[silk.Selection]]:
    """Train; the iterates and each selection once."""
    large, small = map(iter, batches(problem))
    iterates, selections = [], []
    for t in range(STEPS):
        is_anchor = t % INNER == 0
        batch = next(large) if is_anchor else next(small)
        optimizer.step(problem.closure(optimizer, batch), anchor=is_anchor, samples=len(batch))
        iterates.append(problem.flat_x())
        if optimizer.selection is not None and optimizer.selection is not (selections or [None])[-1]:
            selections.append(optimizer.selection)
    return iterates, selections


@pytest.mark.parametrize("problem_name", PROBLEMS)
@pytest.mark.parametrize("name", METHODS)
def test_trajectory_equals_the_reference(name: str, problem_name: str) -> None:
    problem = PROBLEMS[problem_name]()
    method = METHODS[name]
    x0 = problem.flat_x()
    lr = problem.lr
    optimizer = method.make(problem.model.parameters(), lr, generator=torch.Generator().manual_seed(4))
    iterates, selections = run(problem, optimizer)

    large, small = batches(problem)
    trace = reference.algorithm_1(
        problem.flat_gradient,
        x0,
        iter(large),
        iter(small),
        lr=lr,
        inner_steps=INNER,
        loops=STEPS // INNER,
        k1=3,
        k2=None if name in DENSE else 2,
        replay=iter(selections),
        **method.options,
    )
    assert len(trace.iterates) == STEPS
    assert trace.selections == selections  # all replayed, none left over
    for got, want in zip(iterates, trace.iterates, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    assert optimizer.gradient_queries == pytest.approx(trace.queries, rel=1e-12)
    assert float(iterates[-1].sub(x0).norm()) > 0.01  # it went somewhere
