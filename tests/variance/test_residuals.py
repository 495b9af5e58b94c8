"""Residuals: R_j of Theorem 2 along a run, against the plain reference and the planner's condition."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from cases import quadratic
from torch import Tensor

import spidersilk as silk
from spidersilk import reference
from spidersilk.operator.sparsity import residuals

LENGTHS, K1, K2, D = [4, 1, 3, 0, 5], 3, 2, 12


def run(seed: int, small: int = 5) -> tuple[silk.Residuals, list[silk.Selection], list[Tensor], list[Tensor]]:
    """Algorithm 1 with loops of these lengths: its residuals, its selections and the batches."""
    problem = quadratic()
    g = torch.Generator().manual_seed(seed)
    optimizer = silk.SparseSpiderBoost(problem.model.parameters(), 0.02, k1=K1, k2=K2, generator=g)
    found = silk.Residuals(optimizer)
    assert math.isnan(found.mean)
    assert not found.hold(1.0)
    draw = torch.Generator().manual_seed(seed + 9)
    large, selections, smalls = [], [], []
    for length in LENGTHS:
        large.append(torch.randperm(problem.samples, generator=draw)[:20])
        anchor = silk.Anchor(idle=length == 0)
        optimizer.step(problem.closure(optimizer, large[-1]), anchor=anchor, samples=20)
        for _ in range(length - 1):
            smalls.append(torch.randperm(problem.samples, generator=draw)[:small])
            optimizer.step(problem.closure(optimizer, smalls[-1]), anchor=False, samples=small)
            selections.append(optimizer.selection)
    return found, selections, large, smalls


def last_steps(selections: list[silk.Selection], large: list[Tensor], smalls: list[Tensor]) -> list[tuple]:
    """For each loop with small steps, x before and after the move before its last one, M, selection and batch."""
    problem = quadratic()
    trace = reference.algorithm_1(
        problem.flat_gradient, problem.flat_x(), iter(large), iter(smalls), lr=0.02, inner_steps=1, k1=K1, k2=K2,
        loops=len(LENGTHS), lengths=LENGTHS, replay=iter(selections),
    )  # fmt: skip
    points, steps, update, small = [problem.flat_x(), *trace.iterates], [], 0, 0
    for length in LENGTHS:
        update, small = update + length, small + max(0, length - 1)
        if length > 1:
            last = small - 1
            pair = points[update - 2], points[update - 1]
            steps.append((*pair, trace.selected_from[last], trace.selections[last], smalls[last]))
    return steps


def test_they_are_those_of_the_reference() -> None:
    found, selections, large, smalls = run(0)
    problem, want = quadratic(), []
    for before, after, _, selection, batch in last_steps(selections, large, smalls):
        y = problem.flat_gradient(after, batch) - problem.flat_gradient(before, batch)
        want.append((D - K1) / K2 * float(y[selection.random].square().sum()))
    assert found.values == pytest.approx(want, rel=1e-9)
    assert len(want) == 3  # loops of 0 or 1 updates have no small step
    assert found.mean == pytest.approx(statistics.fmean(want))
    assert found.inner_steps == pytest.approx(sum(LENGTHS) / len(LENGTHS))


@pytest.mark.statistical
def test_their_mean_is_that_of_exact_residuals() -> None:
    """Over draws and batches, within four standard errors: g + (G - g)(n - b) / (b (n - 1)), which is below g + G/b."""
    n, b, problem, errors = 40, 5, quadratic(), []
    for seed in range(80):
        found, *rest = run(seed, small=b)
        pairs = []
        for before, after, memory, _, _ in last_steps(*rest):
            each = [
                problem.flat_gradient(after, i) - problem.flat_gradient(before, i) for i in torch.arange(n)[:, None]
            ]
            pairs.append(residuals(memory, torch.stack(each), K1))
        exact = statistics.fmean(g + (G - g) * (n - b) / (b * (n - 1)) for g, G in pairs)
        assert exact < statistics.fmean(g + G / b for g, G in pairs)
        errors.append(found.mean / exact - 1)
    error = statistics.stdev(errors) / math.sqrt(len(errors))
    assert abs(statistics.fmean(errors)) < 4 * error < 0.5  # so that a missing factor would show


def test_the_condition_is_the_planners() -> None:
    found, *_ = run(1)
    eps = found.smallest_eps
    plan = silk.plan(eps=eps, smoothness=1, sigma2=1, delta_f=1, n=40, d=D, k1=K1, k2=K2, outside=0.5,
                     inner_steps=found.inner_steps)  # fmt: skip
    assert plan.allowed_residual == pytest.approx(found.mean)
    assert found.hold(eps * 1.001)
    assert not found.hold(eps * 0.999)


def test_what_theorem_2_does_not_speak_of_is_refused() -> None:
    w = [torch.nn.Parameter(torch.ones(20))]
    for optimizer, words in (
        (silk.SparseSVRG(w, lr=0.1), "Theorem 2 is about Algorithm 1"),
        (torch.optim.SGD(w, lr=0.1), "Theorem 2 is about Algorithm 1"),
        (silk.SparseSpiderBoost(w, lr=0.1, scaling="none"), "needs scaling='unbiased'"),
        (silk.SparseSpiderBoost(w, lr=0.1, k1=2, k2=0), "k2 above 0"),
    ):
        with pytest.raises(ValueError, match=words):
            silk.Residuals(optimizer)  # pyright: ignore
    with pytest.raises(ValueError, match="eps = 0"):
        silk.Residuals(silk.SparseSpiderBoost(w, lr=0.1)).hold(0)
