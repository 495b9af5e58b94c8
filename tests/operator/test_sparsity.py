"""Measures of sparsity and variance, the constants of the theorems, and the query counter."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spidersilk as silk
from spidersilk.operator.sparsity import QueryCounter, captured_energy, residuals
from spidersilk.theory.constants import gradient_moments, initial_gap, smoothness


def test_entropy_of_known_distributions() -> None:
    assert silk.entropy(torch.ones(64)) == pytest.approx(6.0, abs=1e-12)
    assert silk.entropy(torch.tensor([0.0, -5.0, 0.0])) == 0.0
    assert silk.entropy(torch.tensor([0.5, -0.25, 0.25])) == pytest.approx(1.5, abs=1e-12)
    assert math.isnan(silk.entropy(torch.zeros(3)))


def test_entropy_does_not_depend_on_scale_and_sums_in_float64() -> None:
    g = torch.Generator().manual_seed(0)
    memory = torch.rand(100_000, generator=g)
    p = memory.double() / memory.double().sum()
    exact = float(-(p * p.log2()).sum())
    assert silk.entropy(memory) == pytest.approx(exact, abs=1e-9)
    assert silk.entropy(memory * 1e-30) == pytest.approx(exact, abs=1e-6)
    assert silk.entropy(torch.ones(3_000_000, dtype=torch.bfloat16)) == pytest.approx(math.log2(3e6), abs=1e-9)


def test_entropy_in_pieces_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = torch.rand(1000, dtype=torch.float64)
    whole = silk.entropy(memory)
    monkeypatch.setattr("spidersilk.operator.sparsity._CHUNK", 7)
    assert silk.entropy(memory) == pytest.approx(whole, abs=1e-12)


def test_query_counter() -> None:
    counter = QueryCounter()
    counter.add(1000, 1, 1.0)
    counter.add(100, 2, 0.1)
    assert counter.total == pytest.approx(1020)
    counter.add(None, 1, 1.0)
    assert math.isnan(counter.total)


def test_captured_energy_is_the_share_in_the_top() -> None:
    memory = torch.tensor([0.1, 5.0, -3.0, 0.0])
    y = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert captured_energy(memory, y, 2) == pytest.approx((4 + 9) / 30)
    assert captured_energy(memory, y, 1.0) == 1.0
    assert math.isnan(captured_energy(memory, torch.zeros(4), 2))
    with pytest.raises(ValueError, match="exceeds d = 4"):
        captured_energy(memory, y, 5)


# Theorem 2's residuals.


def test_residuals_are_those_of_the_definition() -> None:
    g = torch.Generator().manual_seed(0)
    memory, differences = torch.rand(7, generator=g), torch.randn(5, 7, generator=g, dtype=torch.float64)
    outside = [i for i in range(7) if i not in memory.topk(3).indices.tolist()]
    mean = differences.mean(0)
    expected_g = sum(float(mean[i]) ** 2 for i in outside)
    expected_big = sum(float(differences[s, i]) ** 2 for s in range(5) for i in outside) / 5
    assert residuals(memory, differences, 3) == pytest.approx((expected_g, expected_big))
    assert residuals(memory, differences, 7) == (0.0, 0.0)
    with pytest.raises(ValueError, match=r"not \(n, d\)"):
        residuals(memory, memory, 3)


def test_mean_outside_energy_of_a_batch_follows_from_the_residuals() -> None:
    """What a small step estimates, over all batches: g + (G - g) (n - b) / (b (n - 1)), at most g + G / b."""
    g = torch.Generator().manual_seed(1)
    n, b = 6, 2
    memory, differences = torch.rand(9, generator=g), torch.randn(n, 9, generator=g, dtype=torch.float64)
    small, big = residuals(memory, differences, 4)
    energies = [
        residuals(memory, differences[list(batch)].mean(0, keepdim=True), 4)[0]
        for batch in itertools.combinations(range(n), b)
    ]
    mean = statistics.fmean(energies)
    assert mean == pytest.approx(small + (big - small) * (n - b) / (b * (n - 1)))
    assert mean <= small + big / b


# What a small step tells of itself.


def one_small_step(seed: int, k1: int = 8, k2: int = 6, **options: Any) -> tuple[silk.Measures, Tensor, Tensor]:
    """Measures of the first small step of a small network, the same but for the selection; also M and y there."""
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


# The constants of the theorems.


def test_power_iteration_finds_the_largest_eigenvalue_of_a_quadratic() -> None:
    g = torch.Generator().manual_seed(0)
    for sign in (1.0, -1.0):  # the largest in absolute value, whatever its sign
        root = torch.linalg.qr(torch.randn(30, 30, generator=g, dtype=torch.float64)).Q
        eigenvalues = torch.linspace(-1, 3, 30, dtype=torch.float64) * sign
        hessian = root @ torch.diag(eigenvalues) @ root.T
        x = nn.Parameter(torch.randn(30, generator=g, dtype=torch.float64))
        found = smoothness(lambda h=hessian, x=x: 0.5 * x @ h @ x, [x], generator=g)
        assert found == pytest.approx(3.0, rel=0.05)


def test_power_iteration_on_logistic_regression_and_on_recurrent_networks() -> None:
    g = torch.Generator().manual_seed(0)
    a = torch.randn(80, 12, generator=g, dtype=torch.float64)
    w = nn.Parameter(torch.randn(12, generator=g, dtype=torch.float64))
    p = torch.sigmoid(a @ w.detach())
    exact = torch.linalg.eigvalsh((a.T * (p * (1 - p))) @ a / 80 + 0.01 * torch.eye(12, dtype=torch.float64))[-1]
    found = smoothness(lambda: nn.functional.softplus(-a @ w).mean() + 0.005 * w.square().sum(), [w], generator=g)
    assert found == pytest.approx(float(exact), rel=0.05)
    lstm = nn.LSTM(3, 4, batch_first=True)
    x = torch.randn(5, 6, 3, generator=g)
    found = smoothness(lambda: lstm(x)[0].square().mean(), lstm.parameters(), generator=g)
    assert found > 0
    flat = nn.Parameter(torch.ones(3))
    assert smoothness(lambda: flat.sum() + 0 * w.sum(), [flat]) == 0.0


def test_smoothness_refuses_what_it_cannot_do() -> None:
    frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    with pytest.raises(ValueError, match="no parameter requires a gradient"):
        smoothness(lambda: frozen.sum(), [frozen])
    with pytest.raises(ValueError, match="iterations = 0"):
        smoothness(lambda: frozen.sum(), [frozen], iterations=0)


def test_secants_along_a_run_bound_smoothness_from_below() -> None:
    x = nn.Parameter(torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64))
    scale = torch.tensor([0.5, 2.0, 4.0], dtype=torch.float64)
    optimizer = silk.SpiderBoost([x], lr=0.1)
    assert optimizer.smoothness is None
    for step in range(4):

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = 0.5 * (scale * x.square()).sum()
            loss.backward()
            return loss

        optimizer.step(closure, anchor=step == 0)
    assert optimizer.smoothness is not None
    assert 2.0 < optimizer.smoothness <= 4.0


def per_sample(model: nn.Module, loss: Any, x: Tensor, y: Tensor) -> Tensor:
    rows = []
    for i in range(len(x)):
        model.zero_grad()
        loss(model, (x[i : i + 1], y[i : i + 1])).backward()
        rows.append(torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]))
    model.zero_grad()
    return torch.stack(rows).double()


class Branching(nn.Module):
    """A model that torch.func cannot vectorise: it looks at a value."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * (2.0 if x.sum().item() > 0 else 1.0)


@pytest.mark.parametrize("make", [lambda: nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), Branching])
@pytest.mark.parametrize("chunk", [None, 1, 7])
def test_gradient_moments_are_those_of_single_samples(make: Any, chunk: int | None) -> None:
    torch.manual_seed(0)
    model = make()
    x, y = torch.randn(20, 5), torch.randint(3, (20,))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    rows = per_sample(model, loss, x, y)
    found = gradient_moments(model, loss, [(x[:12], y[:12]), (x[12:], y[12:])], chunk_size=chunk)
    assert found.samples == 20
    assert found.second_moment == pytest.approx(float(rows.square().sum(1).mean()), rel=1e-5)
    assert found.mean_energy == pytest.approx(float(rows.mean(0).square().sum()), rel=1e-4)
    assert found.variance == pytest.approx(float(rows.var(0).sum()), rel=1e-4)


def test_gradient_moments_refuse_batchnorm_in_training() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    batches = [torch.randn(8, 2)]
    with pytest.raises(ValueError, match=r"model.eval\(\)"):
        gradient_moments(model, lambda m, b: m(b).square().mean(), batches)
    assert gradient_moments(model.eval(), lambda m, b: m(b).square().mean(), batches).samples == 8
    with pytest.raises(ValueError, match="batches is empty"):
        gradient_moments(model, lambda m, b: m(b).square().mean(), [])


def test_initial_gap() -> None:
    assert initial_gap([2.3, 1.0, 1.2]) == pytest.approx(1.3)
    assert initial_gap([2.3, 1.0], floor=0.0) == pytest.approx(2.3)
    with pytest.raises(ValueError, match="above a loss that was seen"):
        initial_gap([2.3, 1.0], floor=1.5)
    with pytest.raises(ValueError, match="losses is empty"):
        initial_gap([])
