"""The measures of a small step: its variance, captured energy and entropy."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spidersilk as silk
from spidersilk.operator.sparsity import captured_energy, residuals


def one_small_step(seed: int, k1: int = 8, k2: int = 6, **options: Any) -> tuple[silk.Measures, Tensor, Tensor]:
    """Measures of the first small step of a small network, M and y; the seed changes only the selection."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    x, y = torch.randn(30, 4, dtype=torch.float64), torch.randint(3, (30,))
    g = torch.Generator().manual_seed(seed)
    optimizer = silk.SparseSVRG(model.parameters(), lr=0.5, k1=k1, k2=k2, generator=g, **options)
    told: list[silk.Measures] = []
    optimizer.register_measures_hook(told.append)
    gradients: list[Tensor] = []
    for batch in (slice(None), slice(0, 7)):

        def closure(batch: slice = batch) -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            gradients.append(torch.cat([p.grad.reshape(-1) for p in model.parameters()]))  # pyright: ignore
            return loss

        optimizer.step(closure, anchor=batch == slice(None), samples=30 if batch == slice(None) else 7)
    return told[0], gradients[0].abs(), gradients[1] - gradients[2]


@pytest.mark.statistical
def test_estimated_variance_agrees_with_the_true_one() -> None:
    """Over draws of the random coordinates the mean of the estimates is the true value, within four standard errors."""
    seeds = 200
    runs = [one_small_step(seed) for seed in range(seeds)]
    _, memory, y = runs[0]
    for name, exact in (
        ("rtop_variance", silk.rtop_variance(memory, y, 8, 6)),
        ("outside_energy", residuals(memory, y[None], 8)[0]),
    ):
        values = [getattr(measures, name) for measures, _, _ in runs]
        error = statistics.stdev(values) / math.sqrt(seeds)
        assert abs(statistics.fmean(values) - exact) < 4 * error
        assert error < 0.15 * exact  # so that a missing factor would show
    draws = torch.stack([silk.rtop(memory, y, 8, 6, generator=torch.Generator().manual_seed(s)) for s in range(4000)])
    spread = (draws - y).square().sum(1)
    error = float(spread.std()) / math.sqrt(4000)
    assert abs(float(spread.mean()) - silk.rtop_variance(memory, y, 8, 6)) < 4 * error


def test_exact_measures_where_everything_is_read() -> None:
    d = 4 * 6 + 6 + 6 * 3 + 3
    measures, memory, y = one_small_step(0, k1=8, k2=d - 8)
    assert measures.captured == pytest.approx(captured_energy(memory, y, 8))
    assert measures.outside_energy == pytest.approx(residuals(memory, y[None], 8)[0])
    assert measures.rtop_variance == 0
    assert measures.variance == pytest.approx(float(y.square().sum()) / 7)
    assert measures.entropy > 0


def test_nothing_is_known_outside_the_top_without_a_random_part() -> None:
    measures, _, _ = one_small_step(0, k1=8, k2=0)
    assert math.isnan(measures.outside_energy)
    assert math.isnan(measures.captured)
    assert measures.rtop_variance == 0
    assert math.isnan(measures.variance)
    refreshed, _, _ = one_small_step(0, scaling="refresh")
    assert math.isnan(refreshed.variance)


def test_selected_and_unscaled_moves_have_their_own_variance() -> None:
    plain, _, _ = one_small_step(0)
    selected, _, _ = one_small_step(0, move="selected")
    unscaled, _, _ = one_small_step(0, scaling="none")
    batch_part = (plain.top_energy + plain.outside_energy) / 7
    assert plain.variance == pytest.approx(plain.rtop_variance + batch_part)
    assert selected.variance == pytest.approx(batch_part)
    scale = (51 - 8) / 6
    assert unscaled.variance == pytest.approx(plain.outside_energy * (1 - 1 / scale) + batch_part)


def test_hooks_can_be_removed_and_change_nothing() -> None:
    def run(hook: bool) -> list[float]:
        torch.manual_seed(0)
        w = torch.nn.Parameter(torch.randn(20))
        optimizer = silk.SparseSpiderBoost([w], lr=0.1, k1=2, k2=4, generator=torch.Generator().manual_seed(0))
        told: list[silk.Measures] = []
        handle = optimizer.register_measures_hook(told.append) if hook else None
        for step in range(6):

            def closure() -> Tensor:
                optimizer.zero_grad()
                loss = w.square().sum()
                loss.backward()
                return loss

            optimizer.step(closure, anchor=step == 0)
            if step == 3 and handle is not None:
                handle.remove()
        assert [m.inner_step for m in told] == ([1, 2, 3] if hook else [])
        assert all(a.variance <= b.variance for a, b in itertools.pairwise(told))  # a recursive v gathers it
        return w.detach().tolist()

    assert run(True) == run(False)
