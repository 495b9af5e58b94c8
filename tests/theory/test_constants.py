"""The constants of the theorems: smoothness, gradient moments, the initial gap."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spidersilk as silk
from spidersilk.theory.constants import gradient_moments, initial_gap, smoothness


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
    """A model that torch.func cannot vectorise: it branches on a value."""

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
